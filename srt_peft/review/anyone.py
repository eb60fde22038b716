"""Agendas that ask no review state when an example is due: what the schedule is held against.

kind       order                 what may be drawn                 index
Anyone     uniform               everyone, at every step           a set of everyone
Rounds     uniform               whoever was visited least often   a set of those, one of the others
                                 in this update
Hardest    the highest signal    everyone, at every step           maxima over the signals
"""

from __future__ import annotations

import numpy as np

from srt_peft.review.agenda import NOBODY, Pool
from srt_peft.review.chance import Ids
from srt_peft.review.idset import IdSet
from srt_peft.review.peaks import Peaks


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
        return NOBODY

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
        visits = int(self.pool.lately(np.flatnonzero(others)).min())
        level = others & (self.pool.lately() == visits)
        self.levels, self.others = {visits: IdSet(level)}, IdSet(others & ~level)

    def count(self, step: int) -> int:
        return self.total()

    def total(self) -> int:
        return self.others.count + sum(level.count for level in self.levels.values())

    def take(self, k: int, step: int) -> Ids:
        random, taken = self.pool.bits(step), [NOBODY]
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
        return NOBODY

    def put(self, ids: Ids) -> None:
        visits = self.pool.lately(ids)
        early = visits <= max(self.levels, default=-1)
        self.others.add(ids[~early])
        for number in np.unique(visits[early]).tolist():
            level = self.levels.setdefault(number, IdSet(np.zeros(self.pool.size, dtype=bool)))
            level.add(ids[visits == number])

    def back(self, ids: Ids, step: int) -> None:
        self.put(ids)

    def members(self) -> Ids:
        return np.concatenate([self.others.all(), *(level.all() for level in self.levels.values())])

    def check_valid(self) -> None:
        self.others.check_valid()
        for number, level in self.levels.items():
            level.check_valid()
            assert level.count, "an empty level was kept"
            assert np.all(self.pool.lately(level.all()) == number), "a visit was miscounted"
        assert np.all(self.pool.lately(self.others.all()) > max(self.levels, default=-1)), (
            "somebody waits behind others"
        )


class Hardest:
    """The highest last signal first, whatever was reviewed when: the paper's perplexity-prioritised control.

    Who has no signal yet counts as infinitely perplexing, so it comes first, uniformly among its like: nobody is
    left out for want of a first look. Ties between signals go to the smaller id.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        active, unheard = pool.active(), np.isnan(pool.signal[:])
        self.unheard = IdSet(active & unheard)
        self.signal = np.where(active & ~unheard, pool.signal[:], np.float32(-np.inf))
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
        return NOBODY

    def put(self, ids: Ids) -> None:
        self.signal[ids] = self.pool.signal[ids]
        self.peaks.refresh(ids)

    def members(self) -> Ids:
        return np.concatenate([self.unheard.all(), np.flatnonzero(self.signal > -np.inf)])

    def check_valid(self) -> None:
        self.unheard.check_valid()
        self.peaks.check_valid()
