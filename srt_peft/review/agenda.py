"""Who is due at step t, in one pool, and which of them come first: at a cost that depends on the batch alone.

An agenda is an index over the review state and can be rebuilt from it at any time; nothing in it is ever saved.
Every kind has the same face:

    count(t)      how many may be drawn at step t
    total()       how many there are, due or not
    take(k, t)    k of them, in the agenda's order (k ≤ count)
    ahead(k)      k more, the soonest due first, once all that is due was taken
    put(ids)      these were reviewed, and the state knows it already
    members()     everyone in it, in any order

    kind       order                 what may be drawn                 index
    Due        uniform               the due                           a set of the due, piles of the waiting
    Overdue    the longest overdue   the due                           queues of the due, piles of the waiting
    Anyone     uniform               everyone, at every step           a set of everyone
    Rounds     uniform               whoever was visited least often   a set of those, one of the others
    Hardest    the highest signal    everyone, at every step           maxima over the signals
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.backlog import UNSEEN, Backlog
from srt_peft.review.chance import Ids, bits, by_due, untag
from srt_peft.review.idset import IdSet
from srt_peft.review.peaks import Peaks
from srt_peft.review.state import ReviewState
from srt_peft.review.waiting import Waiting

# Up to this many steps of stagger, whoever is not due yet is passed over in the draw: see Due.
SHORT_STAGGER = 8


class Agenda(Protocol):
    """The face of every kind; ids are those of the pool, from 0."""

    def __init__(self, pool: Pool) -> None: ...
    def count(self, step: int) -> int: ...
    def total(self) -> int: ...
    def take(self, k: int, step: int) -> Ids: ...
    def ahead(self, k: int) -> Ids: ...
    def put(self, ids: Ids) -> None: ...
    def members(self) -> Ids: ...
    def check_valid(self) -> None: ...


class Pool:
    """One pool's rows of the state, as views, and what else a draw from it depends on."""

    def __init__(self, state: ReviewState, number: int, *, seed: int, stagger: int) -> None:
        """Pool 0 is old, pool 1 is new."""
        self.first = 0 if number == 0 else state.n_old
        self.size = state.n_old if number == 0 else state.n_new
        rows = slice(self.first, self.first + self.size)
        columns = state.columns
        self.due, self.interval, self.signal = columns["due"][rows], columns["interval"][rows], columns["signal"][rows]
        self.visits, self.suspended = columns["visits"][rows], columns["suspended"][rows]
        self.step = state.step
        self.number, self.seed, self.stagger = number, seed, stagger

    def bits(self, step: int) -> np.random.Philox:
        """The random bits of this pool at a step."""
        return bits(self.seed, step, self.number)

    def active(self) -> NDArray[np.bool_]:
        """Who is not suspended."""
        active: NDArray[np.bool_] = self.suspended == 0
        return active


class Due:
    """Uniform among the due, which is the paper's draw.

    `ready` holds whoever is due. With a short stagger it holds whoever was never seen as well, though it may not be
    due yet: were all these moved as they fall due, each of the first steps would cost a fifth of the corpus. Instead,
    who is not due yet is passed over in the draw, which then looks at no more than `stagger` times as many. With a
    long stagger few fall due at a step, and they wait like anyone else.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        active, unseen, due = pool.active(), pool.visits == 0, pool.due <= pool.step
        early = active & ~due & unseen if pool.stagger <= SHORT_STAGGER else np.zeros_like(active)
        self.ready = IdSet(active & due | early)
        self.waiting = Waiting(pool.due, pool.seed, np.flatnonzero(active & ~due & ~early))
        self.early = _tally(pool.due[early])
        """How many of `ready` are not due yet, by the step at which they will be."""

    def count(self, step: int) -> int:
        self.ready.add(self.waiting.fall_due(step))
        self.early = {due: count for due, count in self.early.items() if due > step}
        return self.ready.count - sum(self.early.values())

    def total(self) -> int:
        return self.ready.count + self.waiting.count

    def take(self, k: int, step: int) -> Ids:
        random = self.pool.bits(step)
        if self.early:
            among = self.ready.count - sum(self.early.values())
            ids = self.ready.sample(k, random, admit=lambda i: self.pool.due[i] <= step, among=among)
        else:
            ids = self.ready.sample(k, random)
        self.ready.discard(ids)
        return ids

    def ahead(self, k: int) -> Ids:
        # Whoever is left in `ready` is early, and the pool is too small to fill its slots in the first steps.
        early = self.ready.all()
        taken = _soonest(k, self.waiting, early)
        self.ready.discard(np.intersect1d(early, taken))
        self.early = _tally(self.pool.due[self.ready.all()])
        return taken

    def put(self, ids: Ids) -> None:
        self.waiting.put(ids)

    def members(self) -> Ids:
        return np.concatenate([self.ready.all(), self.waiting.members()])

    def check_valid(self) -> None:
        self.ready.check_valid()
        self.waiting.check_valid()
        due = self.pool.due[self.ready.all()]
        assert all(np.count_nonzero(due == step) == count for step, count in self.early.items()), "early is miscounted"


class Overdue:
    """The longest overdue first, for its interval: (t − t_last)/I, where t_last = d − I.

    Ties go to the shorter interval, and then by tag. Whoever was never seen counts as last seen one interval
    before its first due time.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        active, unseen, due = pool.active(), pool.visits == 0, pool.due <= pool.step
        self.backlog = Backlog(pool.due, pool.interval, pool.seed, np.flatnonzero(active & unseen))
        self.backlog.put(np.flatnonzero(active & due & ~unseen))
        self.waiting = Waiting(pool.due, pool.seed, np.flatnonzero(active & ~due & ~unseen))

    def count(self, step: int) -> int:
        self.backlog.put(self.waiting.fall_due(step))
        return self.backlog.n_due(step)

    def total(self) -> int:
        return self.backlog.count + self.waiting.count

    def take(self, k: int, step: int) -> Ids:
        return np.sort(self.backlog.first(k, step))

    def ahead(self, k: int) -> Ids:
        early = self.backlog.unseen(k)
        taken = _soonest(k, self.waiting, early)
        self.backlog.pop(UNSEEN, np.intersect1d(early, taken).size)
        return taken

    def put(self, ids: Ids) -> None:
        self.waiting.put(ids)

    def members(self) -> Ids:
        return np.concatenate([self.backlog.members(), self.waiting.members()])

    def check_valid(self) -> None:
        self.backlog.check_valid()
        self.waiting.check_valid()


class Anyone:
    """Uniform among all, with replacement between the batches: no review state is asked."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.all = IdSet(pool.active())

    def count(self, step: int) -> int:
        return self.all.count

    def total(self) -> int:
        return self.all.count

    def take(self, k: int, step: int) -> Ids:
        return self.all.sample(k, self.pool.bits(step))

    def ahead(self, k: int) -> Ids:
        return _NOBODY

    def put(self, ids: Ids) -> None:
        pass

    def members(self) -> Ids:
        return self.all.all()

    def check_valid(self) -> None:
        self.all.check_valid()


class Rounds:
    """Uniform in shuffled epochs: nobody returns while somebody was visited less often.

    `levels` holds, by their number of visits, those who come first; `others` were all visited more often. When the
    levels run out, a round begins: the least visited of the others are the next level. In a pool that was always
    drawn so, that is everyone; more levels than one are there only while late-comers catch up.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.others = IdSet(pool.active())
        self.levels: dict[int, IdSet] = {}

    def _begin_round(self) -> None:
        others = self.others.mask(self.pool.size)
        visits = int(self.pool.visits[others].min())
        level = others & (self.pool.visits == visits)
        self.levels, self.others = {visits: IdSet(level)}, IdSet(others & ~level)

    def count(self, step: int) -> int:
        return self.total()

    def total(self) -> int:
        return self.others.count + sum(level.count for level in self.levels.values())

    def take(self, k: int, step: int) -> Ids:
        random, taken = self.pool.bits(step), [_NOBODY]
        while k:
            if not self.levels:
                self._begin_round()
            fewest = min(self.levels)
            level = self.levels[fewest]
            ids = level.sample(min(k, level.count), random)
            level.discard(ids)
            if not level.count:
                del self.levels[fewest]
            taken.append(ids)
            k -= ids.size
        return np.sort(np.concatenate(taken))

    def ahead(self, k: int) -> Ids:
        return _NOBODY

    def put(self, ids: Ids) -> None:
        visits = self.pool.visits[ids]
        early = visits <= max(self.levels, default=-1)
        self.others.add(ids[~early])
        for number in np.unique(visits[early]).tolist():
            level = self.levels.setdefault(number, IdSet(np.zeros(self.pool.size, dtype=bool)))
            level.add(ids[visits == number])

    def members(self) -> Ids:
        return np.concatenate([self.others.all(), *(level.all() for level in self.levels.values())])

    def check_valid(self) -> None:
        self.others.check_valid()
        for number, level in self.levels.items():
            level.check_valid()
            assert level.count, "an empty level was kept"
            assert np.all(self.pool.visits[level.all()] == number), "a visit was miscounted"
        assert np.all(self.pool.visits[self.others.all()] > max(self.levels, default=-1)), (
            "somebody waits behind others"
        )


class Hardest:
    """The highest last signal first, whatever was reviewed when: the paper's perplexity-prioritised control.

    Who has no signal yet counts as infinitely perplexing, so it comes first, uniformly among its like: nobody is
    left out for want of a first look. Ties between signals go to the smaller id.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        active, unheard = pool.active(), np.isnan(pool.signal)
        self.unheard = IdSet(active & unheard)
        self.signal = np.where(active & ~unheard, pool.signal, np.float32(-np.inf))
        self.peaks = Peaks(self.signal)
        self.heard = int(np.count_nonzero(active & ~unheard))

    def count(self, step: int) -> int:
        return self.total()

    def total(self) -> int:
        return self.unheard.count + self.heard

    def take(self, k: int, step: int) -> Ids:
        first = self.unheard.sample(min(k, self.unheard.count), self.pool.bits(step))
        self.unheard.discard(first)
        self.heard += first.size
        return np.sort(np.concatenate([first, self.peaks.largest(k - first.size)]))

    def ahead(self, k: int) -> Ids:
        return _NOBODY

    def put(self, ids: Ids) -> None:
        self.signal[ids] = self.pool.signal[ids]
        self.peaks.refresh(ids)

    def members(self) -> Ids:
        return np.concatenate([self.unheard.all(), np.flatnonzero(self.signal > -np.inf)])

    def check_valid(self) -> None:
        self.unheard.check_valid()
        self.peaks.check_valid()


def _soonest(k: int, waiting: Waiting, early: NDArray[np.integer]) -> Ids:
    """Those of the waiting and the early that fall due first, by (due, tag); the waiting among them are taken out."""
    candidates = np.concatenate([waiting.soonest(k), early])
    keys = np.sort(by_due(candidates, waiting.due, waiting.seed))
    taken, left = np.split(untag(keys, waiting.seed), [k])
    waiting.put(np.setdiff1d(left, early))
    return taken


_NOBODY: Ids = np.empty(0, dtype=np.int64)


def _tally(due: NDArray[np.integer]) -> dict[int, int]:
    steps, counts = np.unique(due, return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))
