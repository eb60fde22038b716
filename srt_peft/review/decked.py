"""A pool's agenda in decks: an agenda each, and the slots shared among them as `decks` says.

A draw stays a pure function of (seed, t, state): what the decks have lost stands in the state, and what is left of a
slot is rounded by chance of the seed and the step. Rows of a deck need not lie together: each deck keeps a list of its
rows, four bytes an example, and its agenda counts them from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from srt_peft.review import decks
from srt_peft.review.agenda import NOBODY, Agenda, Pool, Schedule
from srt_peft.review.chance import Ids, uniform
from srt_peft.review.decks import Counts

EARLY, STUDIED = 1, 2
"""What else than the due is shared out among the decks: who is drawn ahead of time, and who of the asked is studied."""


class Decked:
    """Several agendas as one; whatever they are, it has their face."""

    def __init__(self, pool: Pool, make: Callable[[Pool], Agenda], kind: str, floor: float) -> None:
        assert pool.decks is not None, "a state that is drawn by decks has them"
        self.pool, self.kind, self.floor = pool, kind, floor
        self.deck, self.reviews, self.forgetting = pool.decks
        ends = np.cumsum(np.bincount(self.deck, minlength=self.forgetting.size))
        order = np.argsort(self.deck, kind="stable").astype(np.uint32)
        self.rows = np.split(order, ends[:-1])
        self.parts = [make(pool.part(rows, number + 1)) for number, rows in enumerate(self.rows)]
        self.sizes = np.bincount(self.deck[pool.suspended[:] == 0], minlength=self.forgetting.size)
        self.step, self.available = -1, np.zeros(len(self.parts), dtype=np.int64)

    def count(self, step: int) -> int:
        """How many may be drawn at `step`, in all decks; to be asked before any of them is taken."""
        self.step, self.available = step, np.array([part.count(step) for part in self.parts])
        return int(self.available.sum())

    def total(self) -> int:
        """How many there are, due or not."""
        return sum(part.total() for part in self.parts)

    def take(self, k: int, step: int) -> Ids:
        """k of those that are due, each deck's by its own agenda."""
        shared = self.shared(k, self.available, step)
        return self._joined(lambda part, count: part.take(count, step), shared)

    def ahead(self, k: int) -> Ids:
        """k more, once all that is due was taken."""
        shared = self.shared(k, np.array([part.total() for part in self.parts]), self.step, EARLY)
        return self._joined(lambda part, count: part.ahead(count), shared)

    def shared(self, k: int, available: Counts, step: int, turn: int = 0) -> Counts:
        """How many of k slots each deck gets, where so many of it are available.

        What is shared out in the same step is rounded by another number each `turn`: were who is asked and who of them
        is studied rounded by one, a deck could be asked only in steps in which it is not studied, and never be.
        """
        share = decks.shares(self.kind, self.reviews, self.forgetting, self.sizes, self.floor)
        chance = uniform(turn + 1, self.pool.bits(step))[turn]
        return decks.slots(k, decks.wanted(k, share, self.sizes), available, float(chance))

    def put(self, ids: Ids) -> None:
        """These were reviewed, and the state knows it already."""
        for number, local in self._local(ids):
            self.parts[number].put(local)

    def back(self, ids: Ids, step: int) -> None:
        """These were taken, and are as they were."""
        for number, local in self._local(ids):
            part = self.parts[number]
            assert isinstance(part, Schedule), "only those that go by the due are asked"
            part.back(local, step)

    def members(self) -> Ids:
        """Everyone in it, in any order."""
        local = (rows[part.members()] for rows, part in zip(self.rows, self.parts, strict=True))
        return np.concatenate([NOBODY, *local]).astype(np.int64)

    def check_valid(self) -> None:
        """Assert that each deck's agenda is right, and holds nobody of another deck."""
        for part in self.parts:
            part.check_valid()
        for number, rows in enumerate(self.rows):
            assert np.all(self.deck[rows] == number), "an example lies in another deck"

    def _joined(self, take: Callable[[Agenda, int], Ids], shared: Counts) -> Ids:
        taken = [self.rows[g][take(self.parts[g], int(shared[g]))] for g in np.flatnonzero(shared).tolist()]
        return np.sort(np.concatenate([NOBODY, *taken])).astype(np.int64)

    def _local(self, ids: Ids) -> Iterator[tuple[int, Ids]]:
        deck = self.deck[ids]
        for number in np.unique(deck).tolist():
            yield number, _places(self.rows[number], ids[deck == number])


def _places(rows: NDArray[np.uint32], ids: Ids) -> Ids:
    # Of one type: of two, the search would first turn all the rows into the wider one.
    return np.searchsorted(rows, ids.astype(np.uint32)).astype(np.int64)
