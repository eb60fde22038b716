"""An update in figures: how often examples are visited, how far more is due than can be drawn, and what it costs.

Before training the figures are those of a rehearsal, afterwards the run's own. Either way they are made of lines as
metrics.jsonl has them, of how often each example was trained on, and of how the reviews came out.

    visits an example    how often its own state can matter at all
    due over slots       the backlog, in batches of its pool: how far more is due than can be drawn
    equal qualities      the share of the commonest: where it is nearly 1, the intervals tell nothing apart
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.kinds import SCHEDULERS
from srt_peft.review.options import Options
from srt_peft.review.sm2 import PASSING

FORWARD = 1 / 3
"""The compute of a forward pass, in training steps of as many tokens: backward costs about twice as much again."""

Line = Mapping[str, Any]


def reference_tokens(lengths: NDArray[np.int64], first: int | None) -> int:
    """What scoring examples of these lengths comes to; a quiz of first tokens has these scored by themselves, too."""
    return int(lengths.sum()) + (0 if first is None else int(np.minimum(lengths, first).sum()))


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The texts, as far as a schedule goes."""

    old: int
    new: int
    lengths: NDArray[np.int64]
    """Tokens of each example."""
    deck: NDArray[np.uint16]
    decks: Sequence[str]
    superseded: NDArray[np.int64]
    namesakes: int
    """Documents of new that are called as one of old, where nothing is said of who replaces whom."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One pool."""

    examples: int
    """Without the superseded."""
    slots: float
    """Drawn a step, in the mean."""
    visits: float
    """Trained on, an example, in the whole update."""
    never: float | None
    """The share that is never trained on; None where not all steps are known."""
    backlog: tuple[float, float, float] | None
    """Due over slots: at the beginning, the median, at the end. None where nothing goes by what is due."""
    idle: float
    """The share of the steps in which nothing was due."""
    quality: int | None
    """The commonest quality; None where nothing was reviewed."""
    equal: float
    """Its share of the reviews."""
    lapses: float
    """The share of the reviews with q < 3."""


@dataclass(frozen=True, kw_only=True)
class Deck:
    """A deck of the old pool."""

    name: str
    examples: int
    slots: float
    """Drawn a step, in the mean."""
    even: float
    """What it would get a step by its size alone."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Passes of one kind from which nothing is learned."""

    name: str
    examples: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """An update in numbers."""

    scheduler: str
    options: Options
    measured: bool
    """Whether these are of a run, and not of a rehearsal."""
    steps: int
    known: int
    """Of how many of the steps these are."""
    old: Side
    new: Side
    old_share: float
    """Of all that was drawn."""
    short: int
    """Steps with fewer examples than a batch has."""
    empty: int
    decks: tuple[Deck, ...]
    superseded: int
    namesakes: int
    trained_tokens: int
    passes: tuple[Pass, ...]

    @property
    def scheduled(self) -> bool:
        """Whether draws go by what is due."""
        return "quiz" in SCHEDULERS[self.scheduler].extras

    def cost(self, name: str) -> float:
        """What the passes of a kind cost, in shares of the training itself: an estimate."""
        tokens = sum(made.tokens for made in self.passes if made.name == name)
        return FORWARD * tokens / max(self.trained_tokens, 1)


# --- from lines to figures ------------------------------------------------------------------------------------------


def figures(
    scheduler: str,
    options: Options,
    pools: Pools,
    lines: Sequence[Line],
    trained: NDArray[np.int64],
    qualities: NDArray[np.int64],
    *,
    steps: int,
    measured: bool,
) -> Figures:
    """`trained` is how often each example was; `qualities` counts the reviews of each pool by quality."""
    drawn = [line for line in lines if "old" in line]
    whole = 1.0 if measured else steps / max(len(drawn), 1)
    total = sum(line["old"] + line["new"] for line in drawn)
    sides = [_side(scheduler, options, pools, number, drawn, trained, qualities[number], whole) for number in (0, 1)]
    return Figures(
        scheduler=scheduler,
        options=options,
        measured=measured,
        steps=steps,
        known=len(drawn),
        old=sides[0],
        new=sides[1],
        old_share=sum(line["old"] for line in drawn) / max(total, 1),
        short=sum(line["old"] + line["new"] < options.batch_size for line in drawn),
        empty=sum(line["old"] + line["new"] == 0 for line in drawn),
        decks=tuple(_decks(options, pools, trained, max(len(drawn), 1))),
        superseded=int(pools.superseded.size),
        namesakes=pools.namesakes,
        trained_tokens=round(sum(line["tokens"] for line in drawn) * whole),
        passes=tuple(_passes(lines, whole)),
    )


def _side(
    scheduler: str,
    options: Options,
    pools: Pools,
    number: int,
    drawn: Sequence[Line],
    trained: NDArray[np.int64],
    qualities: NDArray[np.int64],
    whole: float,
) -> Side:
    pool, part = (("old", slice(0, pools.old)), ("new", slice(pools.old, None)))[number]
    room = (options.old_slots, options.batch_size - options.old_slots)[number]
    gone = np.zeros(pools.old + pools.new, bool)
    gone[pools.superseded] = True
    there = trained[part][~gone[part]]
    due = np.array([line[f"due_{pool}"] for line in drawn])
    by_due = "quiz" in SCHEDULERS[scheduler].extras and room > 0 and due.size > 0
    times = sum(line[pool] for line in drawn)
    known = whole == 1.0 and int(trained[part].sum()) == times  # else a part was not rehearsed, or is not in the log
    reviews = int(qualities.sum())
    return Side(
        examples=int(there.size),
        slots=times / max(len(drawn), 1),
        visits=times * whole / max(there.size, 1),
        never=float(np.mean(there == 0)) if known and there.size else None,
        backlog=(due[0] / room, float(np.median(due)) / room, due[-1] / room) if by_due else None,
        idle=float(np.mean(due == 0)) if by_due else 0.0,
        quality=int(qualities.argmax()) if reviews else None,
        equal=float(qualities.max()) / max(reviews, 1),
        lapses=float(qualities[:PASSING].sum()) / max(reviews, 1),
    )


def _decks(options: Options, pools: Pools, trained: NDArray[np.int64], steps: int) -> Iterator[Deck]:
    deck = pools.deck[: pools.old].astype(np.int64)
    there = np.ones(pools.old, bool)
    there[pools.superseded] = False
    sizes = np.bincount(deck[there], minlength=len(pools.decks))
    times = np.bincount(deck, weights=trained[: pools.old], minlength=len(pools.decks))
    even = options.old_slots * sizes / max(sizes.sum(), 1)
    for g in np.flatnonzero(sizes).tolist():
        yield Deck(name=pools.decks[g], examples=int(sizes[g]), slots=times[g] / steps, even=float(even[g]))


def _passes(lines: Sequence[Line], whole: float) -> Iterator[Pass]:
    for line in lines:
        if "pass" in line:
            yield Pass(name=line["pass"], examples=line["examples"], tokens=line["forward_only_tokens"])
    quiz = [line for line in lines if line.get("asked")]
    if quiz:
        asked, tokens = (sum(line[name] for line in quiz) for name in ("asked", "forward_only_tokens"))
        yield Pass(name="quiz", examples=round(asked * whole), tokens=round(tokens * whole))
