"""The examples with the largest signals, found without looking at all of them.

Above the signals lie levels of maxima, each 64 times shorter than the one below. The k largest signals lie under
the k largest maxima of any level, so the search goes down with k places at a time and looks at 64·k numbers a
level. Its cost grows with the number of levels, the logarithm of the number of examples.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.chance import Ids

_FAN = 64


class Peaks:
    """The largest of a column that changes, ties going to the smaller index; -inf is never among them."""

    def __init__(self, column: NDArray[np.float32]) -> None:
        """A column that the caller goes on changing, telling us where: see `refresh`."""
        self.column = column
        self.levels: list[NDArray[np.float32]] = []
        below = column
        while below.size > _FAN:
            below = _maxima(below)
            self.levels.append(below)

    def refresh(self, ids: Ids) -> None:
        """Bring the maxima over these places up to date."""
        below = self.column
        for level in self.levels:
            ids = np.unique(ids // _FAN)
            level[ids] = _children(below, ids)[1].max(1)
            below = level

    def largest(self, k: int) -> Ids:
        """The places of the k largest, in no particular order; fewer where there are fewer."""
        places = np.zeros(min(k, self.column.size, 1), dtype=np.int64)
        if not places.size:
            return places
        for level in [*reversed(self.levels), self.column]:
            at, values = _children(level, places)
            places = _top(at, values, k)
        return places

    def check_valid(self) -> None:
        """Assert that every level holds the maxima of the one below."""
        below = self.column
        for level in self.levels:
            assert np.array_equal(level, _maxima(below)), "a maximum is out of date"
            below = level


def _maxima(below: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.maximum.reduceat(below, np.arange(0, below.size, _FAN))


def _children(level: NDArray[np.float32], parents: Ids) -> tuple[Ids, NDArray[np.float32]]:
    """Places and values of each parent's 64 children, a row a parent; those that the last one lacks are -inf."""
    at = parents[:, None] * _FAN + np.arange(_FAN)
    values = level[np.minimum(at, level.size - 1)]
    return at, np.where(at < level.size, values, np.float32(-np.inf))


def _top(places: Ids, values: NDArray[np.float32], k: int) -> Ids:
    """The k places of largest value, ties going to the smaller place; in no particular order."""
    counting = values > -np.inf
    places, values = places[counting], values[counting]
    if values.size <= k:
        return places
    least = np.partition(values, values.size - k)[values.size - k]
    larger, tied = places[values > least], places[values == least]
    return np.concatenate([larger, np.partition(tied, k - larger.size - 1)[: k - larger.size]])
