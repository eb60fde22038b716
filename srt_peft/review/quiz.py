"""The quiz: ask first, and study what was lost.

Before a draw, `quiz` times as many old examples as it has slots for are scored forward only: those that come first in
their agenda. Then each slot goes to one of them by chance,

    with probability ∝ (1 − explore)·max(log(PPL_now / PPL_reference), 0.001) / Σ + explore / count

so that what was lost the most is studied the most, and nothing is chased without end. Who was not drawn and passed
(q ≥ 3) is rescheduled as reviewed, untrained. Who was not drawn and failed stays as it was; where a quiz is held only
every few steps, it waits, and is drawn from by what it answered until the next quiz.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from srt_peft.review import sm2
from srt_peft.review.chance import Ids, uniform
from srt_peft.review.decks import LEAST, Floats

PART = 2**32
"""Which part of a pool's chance a quiz has: none that a deck has."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Who was asked, in ascending order, and what came of it."""

    step: int
    """At which step they were asked; -1 where that was an earlier one."""
    ids: Ids
    signal: NDArray[np.float32]
    quality: NDArray[np.int64]
    lost: Floats
    answered: bool

    @classmethod
    def of(cls, step: int, ids: Ids, lost: Floats, *, answered: bool) -> Answers:
        """Those of whom no more is known than this: none of them has passed."""
        return cls(step, ids, np.full(ids.size, np.nan, np.float32), np.zeros(ids.size, np.int64), lost, answered)

    def only(self, these: NDArray[np.bool_]) -> Answers:
        """Some of them."""
        kept = {name: getattr(self, name)[these] for name in ("ids", "signal", "quality", "lost")}
        return replace(self, **kept)

    @property
    def passed(self) -> NDArray[np.bool_]:
        """Who was recalled."""
        return self.quality >= sm2.PASSING


def pick(k: int, lost: Floats, explore: float, random: Philox) -> Ids:
    """The places of k of them, each drawn in proportion to what it has lost, and evenly for the rest."""
    if k >= lost.size:
        return np.arange(lost.size)
    known = lost[np.isfinite(lost)]
    most = max(float(known.max(initial=0.0)), LEAST)  # who could not be scored at all has lost as much as anyone
    weight = np.clip(np.nan_to_num(lost, nan=LEAST, posinf=most), LEAST, None)
    chance = (1 - explore) * weight / weight.sum() + explore / lost.size
    # The least of exponential times with these rates: a draw without replacement, one after the other.
    times = -np.log1p(-uniform(lost.size, random)) / np.maximum(chance, 1e-300)
    return np.sort(np.argsort(times, kind="stable")[:k])
