"""What tells the schedulers apart: how a batch is shared out, from whom it is drawn, and the rule of a review.

    name       draws                                                    after a review
    srt        from the due: ⌊ρB⌋ old slots, the rest new               SM-2
    leitner    the same                                                 boxes: up one when recalled, else the first
    uniform    ⌊ρB⌋ old and the rest new, whoever was reviewed when     SM-2, for the record
    cpt        new examples only                                        SM-2, for the record
    ppl        as uniform, but the highest last signal of each pool     SM-2, for the record
    match      as uniform, with another log's old and new counts        SM-2, for the record

All of them keep the review state, so that what a run under one of them learned is there for another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from srt_peft.errors import ProtocolError
from srt_peft.review import sm2
from srt_peft.review.agenda import Agenda, Due, Intake, Longest, Overdue
from srt_peft.review.anyone import Anyone, Hardest, Rounds
from srt_peft.review.options import Options

Counts = tuple[int, int]


def by_fraction(options: Options, _step: int, available: Counts) -> Counts:
    """The paper's shares. b_old = min(due old, ⌊ρB⌋), b_new = min(due new, B − b_old); the rest goes to old."""
    old, new = available
    b_old = min(old, options.old_slots)
    b_new = min(new, options.batch_size - b_old)
    return min(old, options.batch_size - b_new), b_new


def new_only(options: Options, _step: int, available: Counts) -> Counts:
    """Naive continual pre-training: the whole batch is new, whatever ρ says."""
    return 0, min(available[1], options.batch_size)


def as_counted(options: Options, step: int, available: Counts) -> Counts:
    """As many old and new ones as another scheduler drew at this step."""
    counts = options.counts or ()
    if step >= len(counts):
        raise ProtocolError(
            f"match has counts for the steps 0 to {len(counts) - 1}, and step {step} was asked for. Give the counts "
            "of a log that is long enough, or end the run there."
        )
    old, new = counts[step]
    return min(old, available[0]), min(new, available[1])


def leitner(
    ease: ArrayLike,
    repetitions: ArrayLike,
    _interval: ArrayLike,
    quality: ArrayLike,
    *,
    min_ease: int,  # noqa: ARG001 - boxes have no ease; it is kept as it is
    max_interval: int | None,
) -> sm2.Columns:
    """Leitner's boxes: n counts them, box n returns after 2ⁿ⁻¹ steps, a lapse goes back to the first."""
    passed = np.asarray(quality) >= sm2.PASSING
    n = np.where(passed, np.minimum(np.asarray(repetitions, dtype=np.int64) + 1, sm2.MAX_REPETITIONS), 0)
    interval = np.left_shift(1, np.clip(n - 1, 0, 30))
    return np.asarray(ease, dtype=np.int64), n, np.minimum(interval, sm2.longest(max_interval))


_ANYONE: dict[str, type[Agenda]] = {"uniform": Anyone, "epoch": Rounds}
_DUE: dict[str, type[Agenda]] = {
    "uniform": Due,
    "overdue": Overdue,
    "epoch": Longest,
    "rounds": Rounds,
    "intake": Intake,
}


@dataclass(frozen=True)
class Kind:
    """One row of the table: a scheduler's shares, its agendas by the order that is asked for, and its rule."""

    share: Callable[[Options, int, Counts], Counts]
    agendas: Mapping[str, type[Agenda]]
    rule: Callable[..., sm2.Columns] = sm2.review
    extras: tuple[str, ...] = ()
    """Which of `decks` and `quiz` it knows."""


SCHEDULERS = {
    "srt": Kind(by_fraction, _DUE, extras=("decks", "quiz")),
    "leitner": Kind(by_fraction, _DUE, leitner, extras=("decks", "quiz")),
    "uniform": Kind(by_fraction, _ANYONE, extras=("decks",)),
    "cpt": Kind(new_only, _ANYONE),
    "ppl": Kind(by_fraction, {"uniform": Hardest}),
    "match": Kind(as_counted, _ANYONE),
}
