"""A growable column of ids, four bytes each: what the indexes are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.chance import Ids


class Column:
    """Ids that are added at the end and taken from the front, where some may be put back."""

    __slots__ = ("_ids", "_start", "_stop")

    def __init__(self, ids: NDArray[np.integer] | None = None) -> None:
        self._ids = np.empty(0, dtype=np.uint32) if ids is None else ids.astype(np.uint32)
        self._start, self._stop = 0, self._ids.size

    def __len__(self) -> int:
        return self._stop - self._start

    def view(self, stop: int | None = None) -> NDArray[np.uint32]:
        """The first ids, or all of them, not copied."""
        return self._ids[self._start : self._stop if stop is None else min(self._start + stop, self._stop)]

    def append(self, ids: NDArray[np.integer]) -> None:
        """Add ids at the end. When there is no room, what has left the front makes it, or an eighth is added."""
        live = len(self)
        if self._stop + ids.size > self._ids.size:
            kept = self.view()
            self._ids = np.empty(live + ids.size + (live + ids.size) // 8 + 8, dtype=np.uint32)
            self._ids[:live] = kept
            self._start, self._stop = 0, live
        self._ids[self._stop : self._stop + ids.size] = ids
        self._stop += ids.size

    def put_back(self, ids: NDArray[np.integer]) -> None:
        """Put ids before all others: where they were taken from, as a rule, there is room."""
        if ids.size > self._start:
            self._ids = np.concatenate([ids.astype(np.uint32), self.view()])
            self._start, self._stop = 0, self._ids.size
        else:
            self._start -= ids.size
            self._ids[self._start : self._start + ids.size] = ids

    def pop(self, count: int) -> Ids:
        """Take ids from the front."""
        taken = self.view(count).astype(np.int64)
        self._start += count
        if self._start > len(self) // 4 + 64:  # what has left is given back, before it is a quarter of what is here
            self._ids = self.view().copy()
            self._start, self._stop = 0, self._ids.size
        return taken
