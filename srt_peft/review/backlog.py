"""Examples that are due, in the order of how long they are overdue for their interval.

An example's overdueness (t − t_last)/I grows with t, at a rate of its own, so an order by it does not last. But
among examples of one interval, whoever fell due first stays ahead for good. So each interval has a queue, and the
most overdue of all stands at the head of some queue: it is found among a few heads, however long the queues are.

Those never seen have a queue of their own, UNSEEN, sorted beforehand: it alone may hold some who are not due yet.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.chance import Ids, by_due, untag
from srt_peft.review.column import Column

UNSEEN = 0
_RUN = 256


class Queue:
    """Ids of one interval in the order (due, tag), first in, first out."""

    __slots__ = ("_runs", "due", "ids")

    def __init__(self, due: NDArray[np.int32]) -> None:
        self.due = due
        self.ids = Column()
        self._runs: deque[list[int]] | None = None

    def head(self) -> tuple[int, int]:
        """(due, how many fall due together) at the front: all of them, or as many as were looked at."""
        if not self._runs:
            due = self.due[self.ids.view(_RUN)]
            borders = [0, *(np.flatnonzero(np.diff(due)) + 1).tolist(), due.size]
            self._runs = deque([int(due[begin]), end - begin] for begin, end in pairwise(borders))
        return self._runs[0][0], self._runs[0][1]

    def pop(self, count: int) -> Ids:
        """Take ids from the front."""
        left = count
        while left and self._runs:
            gone = min(left, self._runs[0][1])
            self._runs[0][1] -= gone
            left -= gone
            if not self._runs[0][1]:
                self._runs.popleft()
        return self.ids.pop(count)


class Backlog:
    """A queue for each interval."""

    def __init__(self, due: NDArray[np.int32], interval: NDArray[np.int32], seed: int, unseen: Ids) -> None:
        """The columns of due steps and intervals, the seed by which ties are broken, and who was never seen."""
        self.due = due
        self.interval = interval
        self.seed = seed
        self.queues: dict[int, Queue] = {}
        self.count = 0
        self._append(UNSEEN, self._sorted(unseen))

    def put(self, ids: Ids) -> None:
        """Add whoever fell due, no sooner than those that are here."""
        ids = self._sorted(ids)
        interval = self.interval[ids]
        order = np.argsort(interval, kind="stable")
        ids, interval = ids[order], interval[order]
        for start, stop in pairwise([*np.flatnonzero(np.diff(interval, prepend=-1)).tolist(), ids.size]):
            self._append(int(interval[start]), ids[start:stop])

    def n_due(self, step: int) -> int:
        """How many are due at `step`."""
        unseen = self.unseen()
        return self.count - unseen.size + bisect_right(unseen, step, key=lambda i: int(self.due[i]))

    def unseen(self, k: int | None = None) -> NDArray[np.uint32]:
        """Those never seen, or the first k of them, in the order (due, tag)."""
        return self.queues[UNSEEN].ids.view(k) if UNSEEN in self.queues else np.empty(0, dtype=np.uint32)

    def first(self, k: int, step: int) -> Ids:
        """Take out the k that are the longest overdue at `step`; ties go to the shorter interval, then by tag."""

        def overdue(interval: int, due: int) -> int:
            # (t − t_last)/I = 1 + (t − d)/I. Two such fractions with I ≤ 2**30 differ by 2**-60 or more, so their
            # integer parts after 61 shifts are in the order of the fractions, and equal only where those are.
            return -(((step - due) << 61) // max(interval, 1))

        heads = [(overdue(i, queue.head()[0]), i) for i, queue in self.queues.items() if queue.head()[0] <= step]
        heapq.heapify(heads)
        taken = [np.empty(0, dtype=np.int64)]
        while k and heads:
            interval = heads[0][1]
            queue = self.queues[interval]
            taken.append(self.pop(interval, min(k, queue.head()[1])))
            k -= taken[-1].size
            if len(queue.ids) and queue.head()[0] <= step:
                heapq.heapreplace(heads, (overdue(interval, queue.head()[0]), interval))
            else:
                heapq.heappop(heads)
        return np.concatenate(taken)

    def pop(self, interval: int, count: int) -> Ids:
        """Take ids from the front of a queue."""
        if not count:
            return np.empty(0, dtype=np.int64)
        queue = self.queues[interval]
        taken = queue.pop(count)
        self.count -= count
        if not len(queue.ids):
            del self.queues[interval]
        return taken

    def _append(self, interval: int, ids: Ids) -> None:
        if ids.size:
            if interval not in self.queues:
                self.queues[interval] = Queue(self.due)
            self.queues[interval].ids.append(ids)
            self.count += ids.size

    def _sorted(self, ids: Ids) -> Ids:
        keys = by_due(ids, self.due, self.seed)
        keys.sort()
        return untag(keys, self.seed)

    def check_valid(self) -> None:
        """Assert the order of every queue, and the count over them."""
        assert self.count == sum(len(queue.ids) for queue in self.queues.values()), "the count disagrees"
        for interval, queue in self.queues.items():
            ids = queue.ids.view().astype(np.int64)
            keys = by_due(ids, self.due, self.seed)
            assert np.all(keys[1:] > keys[:-1]), "a queue is out of order"
            assert interval == UNSEEN or np.all(self.interval[ids] == interval), "an id is in the wrong queue"
