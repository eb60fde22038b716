"""The review state, counted: one pass over the columns where they are mapped, a part at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.review import files
from srt_peft.review.rows import BY_REQUEST, SUPERSEDED
from srt_peft.review.state import ReviewState

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Census:
    """The review state, counted."""

    step: int
    examples: tuple[int, int]
    seen: tuple[int, int]
    due: tuple[int, int]
    """Who may be drawn now."""
    suspended: int
    """Set aside, for whatever reason."""
    by_request: tuple[int, int]
    superseded: int
    interval: Counts
    """[pool, k]: seen examples whose interval is 2**k to 2**(k+1) - 1."""
    visits: Counts
    """[pool, k]: 0 none, then examples with 2**(k-1) to 2**k - 1 reviews."""
    ease: Counts
    """[pool, k]: seen examples with an ease from k·ease_width on."""
    ease_width: float


def count(state: ReviewState) -> Census:
    """One pass over the columns, a part at a time."""
    columns, n_old = state.columns, state.n_old
    widest = max((int(columns["ease"][part].max(initial=0)) for part in files.chunks(state.n)), default=0)
    width = next(w for w in (10, 20, 50, 100, 200, 500, 1000) if widest // w < 40)
    interval, visits, ease = (np.zeros((2, size), dtype=np.int64) for size in (32, 17, widest // width + 1))
    step = max(state.step, 0)  # below 0 where a review was interrupted
    seen, due, by_request, suspended, superseded = [0, 0], [0, 0], [0, 0], 0, 0
    for pool, begin, end in ((0, 0, n_old), (1, n_old, state.n)):
        for part in files.chunks(end - begin):
            rows = slice(begin + part.start, begin + part.stop)
            often = columns["visits"][rows].astype(np.int64)
            looked = often > 0
            seen[pool] += int(looked.sum())
            aside = columns["suspended"][rows]
            suspended += int(np.count_nonzero(aside))
            superseded += int(np.count_nonzero(aside & SUPERSEDED))
            by_request[pool] += int(np.count_nonzero(aside & BY_REQUEST))
            due[pool] += int(np.count_nonzero((columns["due"][rows] <= step) & (aside == 0)))
            visits[pool] += np.bincount(_power(often) + 1, minlength=17)
            interval[pool] += np.bincount(_power(columns["interval"][rows][looked]), minlength=32)
            ease[pool] += np.bincount(columns["ease"][rows][looked] // width, minlength=ease.shape[1])
    return Census(
        step, (n_old, state.n_new), _pair(seen), _pair(due), suspended, _pair(by_request), superseded,
        interval, visits, ease, width / 100,
    )  # fmt: skip


def _pair(of: list[int]) -> tuple[int, int]:
    return of[0], of[1]


def _power(values: NDArray[Any]) -> Counts:
    """⌊log2⌋, and −1 of 0."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1
