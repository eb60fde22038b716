"""Who is due at step t, in one pool, and which of them come first: at a cost that depends on the batch alone.

An agenda is an index over the review state and can be rebuilt from it at any time; nothing in it is ever saved.
Every kind has the same face:

    count(t)      how many may be drawn at step t
    total()       how many there are, due or not
    take(k, t)    k of them, in the agenda's order (k ≤ count)
    ahead(k)      k more, the soonest due first, once all that is due was taken
    put(ids)      these were reviewed, and the state knows it already
    members()     everyone in it, in any order

and those that go by the due have one thing more, for a quiz:

    back(ids, t)  these were taken, and are as they were at that time: they were not reviewed after all

    kind       order                 what may be drawn                 index
    Due        uniform               the due                           a set of the due, piles of the waiting
    Overdue    the longest overdue   the due                           queues of the due, piles of the waiting
    Longest    the longest unseen    the due                           queues of everyone
    Intake     reviews before first  the due                           queues of everyone
               visits

The kinds that go by no due step stand in `anyone`.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.backlog import NEVER, UNSEEN, Backlog, ByDue, ByLast, ByOverdue, Rank
from srt_peft.review.chance import Ids, bits, by_due, untag
from srt_peft.review.idset import IdSet
from srt_peft.review.rows import waits
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


@runtime_checkable
class Schedule(Agenda, Protocol):
    """An agenda to which some may come back unreviewed."""

    def back(self, ids: Ids, step: int) -> None: ...


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
        self.before: Any = columns["before"][rows] if "before" in columns else None
        self.step = state.step
        self.number, self.seed, self.stagger = number, seed, stagger
        self.share = 0
        kept = (columns["deck"][rows], columns["reviews"], columns["forgetting"]) if "deck" in columns else None
        self.decks = kept
        """Which deck each is in, how many reviews each deck has, and what it has lost."""
        self.held: Ids = columns["asked"][waits(columns)] if number == 0 and "asked" in columns else NOBODY
        """Who was asked, and waits to be drawn by what was answered: in no agenda until then."""

    def part(self, rows: NDArray[np.uint32], share: int) -> Pool:
        """These rows as a pool of their own, with a share of chance of its own."""
        part = copy.copy(self)
        part.size, part.share, part.decks = rows.size, share, None
        for name in ("due", "interval", "signal", "visits", "suspended", "before"):
            column = getattr(self, name)
            setattr(part, name, None if column is None else Picked(column, rows))
        part.held = np.flatnonzero(np.isin(rows, self.held))
        return part

    def lately(self, ids: Ids | slice = slice(None)) -> NDArray[np.int16]:
        """How often each was visited in this update: what it was before tells nothing of whose turn it is."""
        visits: NDArray[np.int16] = self.visits[ids]
        return visits if self.before is None else visits - self.before[ids]

    def bits(self, step: int) -> np.random.Philox:
        """The random bits of this pool at a step."""
        return bits(self.seed, step, self.number, self.share)

    def active(self) -> NDArray[np.bool_]:
        """Who may be drawn at some time: not suspended, nor held."""
        active: NDArray[np.bool_] = self.suspended[:] == 0
        active[self.held] = False
        return active


class Picked:
    """Some rows of a column as a column: what is read is what the column holds now."""

    __slots__ = ("column", "rows")

    def __init__(self, column: NDArray[Any], rows: NDArray[np.uint32]) -> None:
        self.column, self.rows = column, rows

    def __getitem__(self, ids: Any) -> Any:
        return self.column[self.rows[ids]]


class Due:
    """Uniform among the due, which is the paper's draw.

    `ready` holds whoever is due. With a short stagger it holds whoever was never seen as well, though it may not be
    due yet: were all these moved as they fall due, each of the first steps would cost a fifth of the corpus. Instead,
    who is not due yet is passed over in the draw, which then looks at no more than `stagger` times as many. With a
    long stagger few fall due at a step, and they wait like anyone else.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        active, unseen, due = pool.active(), pool.visits[:] == 0, pool.due[:] <= pool.step
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

    def back(self, ids: Ids, step: int) -> None:
        due = self.pool.due[ids] <= step
        early = ~due & (self.pool.visits[ids] == 0) & (self.pool.stagger <= SHORT_STAGGER)
        self.ready.add(ids[due | early])
        for when, count in _tally(self.pool.due[ids[early]]).items():
            self.early[when] = self.early.get(when, 0) + count
        self.waiting.put(ids[~due & ~early])

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
        active, unseen, due = pool.active(), pool.visits[:] == 0, pool.due[:] <= pool.step
        self.backlog = Backlog(pool.due, pool.interval, pool.seed, np.flatnonzero(active & unseen))
        self.backlog.put(np.flatnonzero(active & due & ~unseen))
        self.waiting = Waiting(pool.due, pool.seed, np.flatnonzero(active & ~due & ~unseen))

    def count(self, step: int) -> int:
        self.backlog.put(self.waiting.fall_due(step))
        return self.backlog.n_due(step)

    def total(self) -> int:
        return self.backlog.count + self.waiting.count

    def take(self, k: int, step: int) -> Ids:
        return np.sort(self.backlog.first(k, step, ByOverdue(step)))

    def ahead(self, k: int) -> Ids:
        early = self.backlog.unseen(k)
        taken = _soonest(k, self.waiting, early)
        self.backlog.pop(UNSEEN, np.intersect1d(early, taken).size)
        return taken

    def put(self, ids: Ids) -> None:
        self.waiting.put(ids)

    def back(self, ids: Ids, step: int) -> None:
        unseen, due = self.pool.visits[ids] == 0, self.pool.due[ids] <= step
        self.backlog.put_back(ids[unseen | due], unseen[unseen | due])
        self.waiting.put(ids[~unseen & ~due])

    def members(self) -> Ids:
        return np.concatenate([self.backlog.members(), self.waiting.members()])

    def check_valid(self) -> None:
        self.backlog.check_valid()
        self.waiting.check_valid()


class Longest:
    """The longest unseen first: those never seen, and then by t_last = d − I. Nobody returns before who waited longer.

    Everyone lies in the queue of his interval, due or not: there, who was seen first is due first.
    """

    on_time: Rank = ByLast(unseen=-1)
    early: Rank = on_time

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        active, unseen = pool.active(), pool.visits[:] == 0
        self.backlog = Backlog(pool.due, pool.interval, pool.seed, np.flatnonzero(active & unseen))
        self.backlog.put(np.flatnonzero(active & ~unseen))
        self.falling = _tally(pool.due[np.flatnonzero(active)])
        """How many fall due, by the step at which they do."""
        self.due = 0
        self.counted = -1

    def count(self, step: int) -> int:
        if step - self.counted > len(self.falling):
            fallen = [due for due in self.falling if due <= step]
        else:
            fallen = [due for due in range(self.counted + 1, step + 1) if due in self.falling]
        self.due += sum(self.falling.pop(due) for due in fallen)
        self.counted = max(step, self.counted)
        return self.due

    def total(self) -> int:
        return self.backlog.count

    def take(self, k: int, step: int) -> Ids:
        self.due -= k
        return np.sort(self.backlog.first(k, step, self.on_time))

    def ahead(self, k: int) -> Ids:
        taken = np.sort(self.backlog.first(k, NEVER - 1, self.early))
        self._fall(taken, -1)
        return taken

    def put(self, ids: Ids) -> None:
        self.backlog.put(ids)
        self._fall(ids, 1)

    def back(self, ids: Ids, step: int) -> None:
        self.backlog.put_back(ids, self.pool.visits[ids] == 0)
        self.due += int(np.count_nonzero(self.pool.due[ids] <= step))
        self._fall(ids[self.pool.due[ids] > step], 1)

    def _fall(self, ids: Ids, sign: int) -> None:
        for due, count in _tally(self.pool.due[ids]).items():
            self.falling[due] = self.falling.get(due, 0) + sign * count
            if not self.falling[due]:
                del self.falling[due]

    def members(self) -> Ids:
        return self.backlog.members()

    def check_valid(self) -> None:
        self.backlog.check_valid()
        due = self.pool.due[self.members()]
        assert self.due == np.count_nonzero(due <= self.counted), "the due are miscounted"
        assert self.falling == _tally(due[due > self.counted]), "who falls due is miscounted"


class Intake(Longest):
    """Reviews before first visits, so that no more is begun than can be kept up; and ahead of time, the soonest due."""

    on_time, early = ByLast(unseen=NEVER), ByDue()


def _soonest(k: int, waiting: Waiting, early: NDArray[np.integer]) -> Ids:
    """Those of the waiting and the early that fall due first, by (due, tag); the waiting among them are taken out."""
    candidates = np.concatenate([waiting.soonest(k), early])
    keys = np.sort(by_due(candidates, waiting.due, waiting.seed))
    taken, left = np.split(untag(keys, waiting.seed), [k])
    waiting.put(np.setdiff1d(left, early))
    return taken


NOBODY: Ids = np.empty(0, dtype=np.int64)


def _tally(due: NDArray[np.integer]) -> dict[int, int]:
    steps, counts = np.unique(due, return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))
