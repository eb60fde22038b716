"""Examples in the order of how long they are overdue for their interval, or how long they were not seen.

An example's overdueness (t − t_last)/I grows with t, at a rate of its own, so an order by it does not last. But
among examples of one interval, whoever was seen first stays ahead for good. So each interval has a queue, and the
most overdue of all stands at the head of some queue: it is found among the heads, however long the queues are. So is
the longest unseen. There is a head for each interval in use, hundreds or thousands; they are compared as arrays.

Those never seen have a queue of their own, UNSEEN, sorted beforehand.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.chance import Ids, by_due, untag
from srt_peft.review.column import Column

UNSEEN = 0
NEVER = 2**62
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
            borders = [0, *(np.flatnonzero(due[1:] != due[:-1]) + 1).tolist(), due.size]
            self._runs = deque([int(due[begin]), end - begin] for begin, end in pairwise(borders))
        return self._runs[0][0], self._runs[0][1]

    def put_back(self, ids: Ids) -> None:
        """Put ids before all others."""
        self.ids.put_back(ids)
        self._runs = None

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
    """A queue for each interval, and an array of what stands at their heads."""

    def __init__(self, due: NDArray[np.int32], interval: NDArray[np.int32], seed: int, unseen: Ids) -> None:
        """The columns of due steps and intervals, the seed by which ties are broken, and who was never seen."""
        self.due = due
        self.interval = interval
        self.seed = seed
        self.queues: dict[int, Queue] = {}
        self.count = 0
        # A slot a queue: its interval, and the due step of its head, NEVER where the slot is free.
        self.slot: dict[int, int] = {}
        self.slots = np.zeros((2, 64), dtype=np.int64)
        self.slots[1] = NEVER
        self.free = list(range(64))
        self._append(UNSEEN, self._sorted(unseen))

    def put(self, ids: Ids) -> None:
        """Add some who are due no sooner than those of their interval that are here."""
        for interval, part in self._by_interval(ids):
            self._append(interval, part)

    def put_back(self, ids: Ids, unseen: NDArray[np.bool_]) -> None:
        """Put some of those that were taken back where they were; `unseen` says which of them were never seen."""
        for interval, part in [(UNSEEN, self._sorted(ids[unseen])), *self._by_interval(ids[~unseen])]:
            if part.size and interval in self.queues:
                self.queues[interval].put_back(part)
                self.slots[1, self.slot[interval]] = self.due[part[0]]
                self.count += part.size
            else:
                self._append(interval, part)

    def _by_interval(self, ids: Ids) -> Iterator[tuple[int, Ids]]:
        ids = self._sorted(ids)
        interval = self.interval[ids]
        order = np.argsort(interval, kind="stable")
        ids, interval = ids[order], interval[order]
        for start, stop in pairwise([*np.flatnonzero(np.diff(interval, prepend=-1)).tolist(), ids.size]):
            yield int(interval[start]), ids[start:stop]

    def n_due(self, step: int) -> int:
        """How many are due at `step`."""
        unseen = self.unseen()
        return self.count - unseen.size + bisect_right(unseen, step, key=lambda i: int(self.due[i]))

    def unseen(self, k: int | None = None) -> NDArray[np.uint32]:
        """Those never seen, or the first k of them, in the order (due, tag)."""
        return self.queues[UNSEEN].ids.view(k) if UNSEEN in self.queues else np.empty(0, dtype=np.uint32)

    def first(self, k: int, step: int, rank: Rank) -> Ids:
        """Take out the k of those due at `step` that rank lowest; ties go to the shorter interval, then by tag."""
        interval, due = self.slots[:, self.slots[1] <= step]
        near = rank.lowest(k, interval, due)
        heads = [(rank.of(i, d), i) for i, d in zip(interval[near].tolist(), due[near].tolist(), strict=True)]
        heapq.heapify(heads)
        taken = [np.empty(0, dtype=np.int64)]
        while k and heads:
            interval = heads[0][1]
            queue = self.queues[interval]
            taken.append(self.pop(interval, min(k, queue.head()[1])))
            k -= taken[-1].size
            if len(queue.ids) and queue.head()[0] <= step:
                heapq.heapreplace(heads, (rank.of(interval, queue.head()[0]), interval))
            else:
                heapq.heappop(heads)
        return np.concatenate(taken)

    def pop(self, interval: int, count: int) -> Ids:
        """Take ids from the front of a queue."""
        if not count:
            return np.empty(0, dtype=np.int64)
        queue, slot = self.queues[interval], self.slot[interval]
        taken = queue.pop(count)
        self.count -= count
        if len(queue.ids):
            self.slots[1, slot] = queue.head()[0]
        else:
            self.slots[1, slot] = NEVER
            self.free.append(self.slot.pop(interval))
            del self.queues[interval]
        return taken

    def _append(self, interval: int, ids: Ids) -> None:
        if not ids.size:
            return
        if interval not in self.queues:
            if not self.free:
                taken = self.slots.shape[1]
                more = np.full((2, taken), NEVER, dtype=np.int64)
                self.slots, self.free = np.concatenate([self.slots, more], axis=1), list(range(taken, 2 * taken))
            slot = self.slot[interval] = self.free.pop()
            self.slots[:, slot] = interval, self.due[ids[0]]
            self.queues[interval] = Queue(self.due)
        self.queues[interval].ids.append(ids)
        self.count += ids.size

    def members(self) -> Ids:
        """Everyone here, in no particular order."""
        queues = [queue.ids.view() for queue in self.queues.values()]
        return np.concatenate([np.empty(0, np.int64), *queues]).astype(np.int64)

    def _sorted(self, ids: Ids) -> Ids:
        keys = by_due(ids, self.due, self.seed)
        keys.sort()
        return untag(keys, self.seed)

    def check_valid(self) -> None:
        """Assert the order of every queue, the count over them, and what is noted of their heads."""
        assert self.slot.keys() == self.queues.keys(), "a queue has no slot, or a slot no queue"
        assert np.count_nonzero(self.slots[1] < NEVER) == len(self.queues), "a free slot looks taken"
        assert self.count == sum(len(queue.ids) for queue in self.queues.values()), "the count disagrees"
        for interval, queue in self.queues.items():
            ids = queue.ids.view().astype(np.int64)
            keys = by_due(ids, self.due, self.seed)
            assert np.all(keys[1:] > keys[:-1]), "a queue is out of order"
            assert self.slots[:, self.slot[interval]].tolist() == [interval, self.due[ids[0]]], "a head was not noted"
            assert interval == UNSEEN or np.all(self.interval[ids] == interval), "an id is in the wrong queue"


# --- who ranks lowest, and so comes first ---------------------------------------------------------------------------


class Rank(Protocol):
    """An order of examples by their interval (UNSEEN for those never seen) and their due step; the lowest is first."""

    def of(self, interval: int, due: int, /) -> int:
        """Its rank."""

    def lowest(self, k: int, interval: NDArray[np.int64], due: NDArray[np.int64], /) -> Ids:
        """Which k of these come first, or a few more, so that no other has anyone among the first k."""


class ByLast:
    """The order by when each was seen last, t_last = d − I; those never seen have a rank of their own."""

    def __init__(self, unseen: int) -> None:
        self.unseen = unseen

    def of(self, interval: int, due: int) -> int:
        """t_last."""
        return self.unseen if interval == UNSEEN else due - interval

    def lowest(self, k: int, interval: NDArray[np.int64], due: NDArray[np.int64]) -> Ids:
        """The k lowest, and who ranks as low as the last of them."""
        return _lowest(k, np.where(interval == UNSEEN, self.unseen, due - interval))


class ByDue:
    """The order in which they fall due."""

    def of(self, _interval: int, due: int) -> int:
        """d."""
        return due

    def lowest(self, k: int, _interval: NDArray[np.int64], due: NDArray[np.int64]) -> Ids:
        """The k lowest, and who ranks as low as the last of them."""
        return _lowest(k, due)


class ByOverdue:
    """The order by (t − t_last)/I, the largest first, exactly."""

    def __init__(self, step: int) -> None:
        self.step = step

    def of(self, interval: int, due: int) -> int:
        """The overdueness as an integer, which tells any two apart."""
        # (t − t_last)/I = 1 + (t − d)/I. Two such fractions with I ≤ 2**30 differ by 2**-60 or more, so their integer
        # parts after 60 shifts are in the order of the fractions, and equal only where those are.
        return -(((self.step - due) << 60) // max(interval, 1))

    def lowest(self, k: int, interval: NDArray[np.int64], due: NDArray[np.int64]) -> Ids:
        """The k that are the most overdue."""
        late, per = self.step - due, np.maximum(interval, 1)
        overdue = late / per
        if overdue.size <= k or k == 0:
            return np.arange(overdue.size)
        # Floats part the many from the few, with a margin for their rounding; exact integers do the rest.
        least = np.partition(overdue, overdue.size - k)[overdue.size - k]
        near = np.flatnonzero(overdue >= least * (1 - 1e-9))
        whole, rest = np.divmod(late[near], per[near])
        high, rest = np.divmod(rest << 30, per[near])
        low = (rest << 30) // per[near]
        return near[np.lexsort((interval[near], -low, -high, -whole))[:k]]


def _lowest(k: int, rank: NDArray[np.int64]) -> Ids:
    if rank.size <= k or k == 0:
        return np.arange(rank.size)
    return np.flatnonzero(rank <= np.partition(rank, k - 1)[k - 1])
