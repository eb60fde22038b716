"""`srt-peft demo`: a base that knows a world, updates of it under several schedulers, and what these keep and learn.

The contest is `evaluation.rivals`, as in `srt-peft compare`; here stand its recipe and what it means in plain words.

    as it comes    60 people; a base of 0.5 M parameters; 3 schedulers x 3 seeds x 200 steps of 20: at most 3 minutes
                   on two cores, the first time
    --quick        24 people; a smaller base; 1 seed x 60 steps: a minute, and less to see

Questions are asked by text, and not by letter: a base of this size has never learned what a letter stands for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers.utils import logging

from srt_peft.demo import world
from srt_peft.demo.base import HOLDOUT, MAX_LENGTH, Shape, made
from srt_peft.evaluation import rivals, suites
from srt_peft.evaluation.compare import COMBINED, Standing
from srt_peft.evaluation.evaluate import told as results_told
from srt_peft.evaluation.rivals import Contest
from srt_peft.evaluation.verdict import number
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe

ENTRIES = ("cpt", "uniform", "srt")
RATES = {"lora": 1e-2, "qlora": 1e-2, "full": 2e-3}
"""The ways to tune, and the learning rate of each."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the world is and its base, and how many steps an update has."""

    sizes: world.Sizes = field(default_factory=world.Sizes)
    shape: Shape = field(default_factory=Shape)
    steps: int = 200


FULL = Scale()
QUICK = Scale(sizes=world.Sizes(people=24, added=8, changed=20), shape=Shape(steps=250), steps=60)


def demo(
    output: Path, *, tuning: str, entries: Sequence[str], seeds: Sequence[int], scale: Scale, say: Callable[[str], None]
) -> Contest:
    """World, base and contest; what is there already is neither made nor run again."""
    with _small():
        folder = made(world.make(0, scale.sizes), scale.shape, say)
        return rivals.contest(
            recipe_of(folder, tuning, scale),
            entries=entries,
            seeds=seeds,
            asked=suites.parse([f"qa-text={folder / 'world' / 'questions.jsonl'}"]),
            folder=output,
            say=say,
        )


@contextlib.contextmanager
def _small() -> Iterator[None]:
    """What befits so small a model: one thread, and no bars for the loading of its twenty matrices.

    A second thread gains little; where other work shares the machine, it waits for a core at every product, and the
    demo has taken more than ten minutes in place of one and a half.
    """
    shown, threads = logging.is_progress_bar_enabled(), torch.get_num_threads()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def recipe_of(folder: Path, tuning: str, scale: Scale) -> Recipe:
    """One update of the base; each entry of the contest sets its own scheduler."""
    return load_recipe({
        "model": {
            "base": str(folder / "base"), "tuning": tuning, "lora": {"r": 8, "alpha": 16}, "dtype": "float32",
            "gradient_checkpointing": False,
        },
        "data": {
            "old": str(folder / "world" / "old.jsonl"), "new": str(folder / "world" / "new.jsonl"),
            "max_length": MAX_LENGTH, "holdout": HOLDOUT,
        },
        "review": {"scheduler": "srt", "old_fraction": 0.2},
        "training": {
            "steps": scale.steps, "batch_size": 20, "micro_batch_tokens": 4096, "learning_rate": RATES[tuning],
            "warmup_steps": 20,
        },
        "checkpoints": {"every": scale.steps, "keep": 1},
        "evaluation": {"every": scale.steps // 5},
    })  # fmt: skip


# --- what is told -------------------------------------------------------------------------------------------------


def told(contest: Contest, style: str) -> str:
    """What each scored, and what it means; as JSON, the contest as it is."""
    if style == "json":
        return rivals.told(contest, style)
    lines = meaning(contest)
    return f"{results_told(contest.results, style)}\n" + "".join(
        f"% {line}\n" if style == "latex" else f"{line}\n" for line in lines
    )


def meaning(contest: Contest) -> Iterator[str]:
    """The table in plain words, step by step, whatever came of it."""
    scored = {standing.label: standing for standing in contest.results[0].comparison.standings}
    beside = {row.split: row for row in contest.differences[0].rows if row.label == "cpt"}
    reference, share = contest.reference, contest.exposure["srt"]["realised_old_share"]["mean"] or 0.0
    loss, seeds = scored["cpt"].effects["old"].difference, len(contest.seeds)
    yield (
        f"The base knows {_percent(scored[rivals.BASE], 'old')} of the old facts that still hold. Having learned the "
        f"new texts alone (cpt), it knows {_knows(scored['cpt'])}: {'it forgets' if loss.low > 0 else 'no clear loss'}."
    )
    yield (
        f"With {100 * contest.recipe.review.old_fraction:.0f} % of each batch old texts, whichever come ({reference}), "
        f"it knows {_knows(scored[reference])}: {_REPLAY[beside['old'].sign]}."
    )
    yield (
        f"With the texts that are due (srt; {100 * share:.0f} % of those drawn were old), it knows "
        f"{_knows(scored['srt'])}: {_against(contest, 'srt')}."
    )
    yield from _best(contest, scored)
    yield (
        f"Level is what chance explains, of seeds or of questions. This is one world, one base, {seeds} seed"
        f"{'s' if seeds > 1 else ''}: another base may shift every row, and rows that are close may change places."
    )


_REPLAY = {-1: "replay softens it", 0: "no clear difference from cpt on the old ones", 1: "replay makes it worse"}
_SIGNS = {-1: "worse", 0: "level", 1: "better"}
_TOGETHER = {COMBINED: "both together"}


def _percent(standing: Standing, split: str) -> str:
    return f"{100 * standing.scores[split].mean:.0f} %"


def _knows(standing: Standing) -> str:
    return f"{_percent(standing, 'new')} of the new facts and {_percent(standing, 'old')} of the old"


def _against(contest: Contest, label: str) -> str:
    """How an entry stands beside the reference, on each split."""
    rows = [row for row in contest.differences[0].rows if row.label == label]
    parts = [
        f"{_SIGNS[row.sign]} on {_TOGETHER.get(row.split, row.split)} ({number(100 * row.mean, 'points', '+')})"
        for row in rows
    ]
    return f"against {contest.reference}, in points, {', '.join(parts)}"


def _best(contest: Contest, scored: dict[str, Standing]) -> Iterator[str]:
    """Who leads where more take part than are told of already."""
    updates = [standing for label, standing in scored.items() if label != rivals.BASE]
    if len(updates) <= len(ENTRIES):
        return
    first = max(updates, key=lambda standing: standing.scores[COMBINED].mean)
    beside = "" if first.label == contest.reference else f", {_against(contest, first.label)}"
    yield f"First of {len(updates)} on both together is {first.label} ({_percent(first, COMBINED)}){beside}."
