"""The indexes behind the agendas, each beside a naive twin, under the same random operations."""

import numpy as np
import pytest

from srt_peft.review import chance
from srt_peft.review.backlog import UNSEEN, Backlog, ByOverdue
from srt_peft.review.column import Column
from srt_peft.review.idset import IdSet
from srt_peft.review.peaks import Peaks
from srt_peft.review.waiting import FRONT, Waiting

SEEDS = range(10)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1023, 1024, 1025, 16_384, 300_000])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 1.0])
def test_select_finds_the_ranks_of_a_sorted_list(size, share):
    """Sizes on both sides of each level's borders, from empty to full."""
    members = np.random.default_rng(size).random(size) < share
    ids = IdSet(members)
    ids.check_valid()
    naive = np.flatnonzero(members)
    assert ids.count == naive.size
    assert np.array_equal(ids.all(), naive)
    ranks = np.random.default_rng(1).permutation(naive.size)[:200]
    assert np.array_equal(ids.select(ranks), naive[ranks])


@pytest.mark.parametrize("seed", SEEDS)
def test_idset_beside_a_python_set(seed):
    """Adding, discarding and sampling at random."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5000))
    members = rng.random(size) < rng.random()
    ids, naive = IdSet(members), set(np.flatnonzero(members).tolist())
    for step in range(60):
        some = rng.permutation(size)[: int(rng.integers(0, min(size, 100) + 1))]
        inside = np.array([i for i in some.tolist() if i in naive], dtype=np.int64)
        outside = np.array([i for i in some.tolist() if i not in naive], dtype=np.int64)
        if rng.random() < 0.5:
            ids.discard(inside)
            naive -= set(inside.tolist())
        else:
            ids.add(outside)
            naive |= set(outside.tolist())
        ids.check_valid()
        assert ids.count == len(naive)
        assert all((i in ids) == (i in naive) for i in some.tolist())
        k = int(rng.integers(0, len(naive) + 1))
        drawn = ids.sample(k, chance.bits(seed, step, 0)).tolist()
        assert drawn == sorted(set(drawn))
        assert len(drawn) == k
        assert set(drawn) <= naive


@pytest.mark.parametrize("seed", SEEDS)
def test_sampling_only_whom_it_admits(seed):
    """Whoever is not admitted is never drawn, and all of the admitted can be."""
    rng = np.random.default_rng(seed)
    ids, admitted = IdSet(np.ones(3000, dtype=bool)), rng.random(3000) < 0.2
    among = int(admitted.sum())
    for k in (1, among // 10, among // 2, among):
        drawn = ids.sample(k, chance.bits(seed, k, 0), admit=lambda i: admitted[i], among=among)
        assert drawn.size == np.unique(drawn).size == k
        assert admitted[drawn].all()


@pytest.mark.parametrize("seed", SEEDS)
def test_column_beside_a_list(seed):
    """Growing at the end and shrinking at the front, in pieces of any size."""
    rng = np.random.default_rng(seed)
    column, naive = Column(), []
    for _ in range(300):
        if rng.random() < 0.5:
            some = rng.integers(0, 2**31, int(rng.integers(0, 50)))
            column.append(some)
            naive += some.tolist()
        else:
            count = int(rng.integers(0, len(naive) + 1))
            assert column.pop(count).tolist() == naive[:count]
            naive = naive[count:]
        assert (len(column), column.view().tolist()) == (len(naive), naive)
        assert column.view(3).tolist() == naive[:3]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("start", [0, 100, 6 * FRONT])
def test_waiting_beside_a_sorted_list(seed, start):
    """Whoever is due falls due at its step, and the soonest come in the order (due, tag)."""
    rng = np.random.default_rng(seed)
    size = start + 500
    due = rng.integers(1, 200 if seed % 2 else 20_000, size).astype(np.int32)
    tags = chance.tag(np.arange(size), seed).tolist()
    waiting = Waiting(due, seed, np.arange(start))
    naive, free, step = set(range(start)), set(range(start, size)), 0
    for _ in range(120):
        step += int(rng.integers(1, 4))
        fallen = waiting.fall_due(step).tolist()
        assert sorted(fallen) == sorted(i for i in naive if due[i] <= step)
        naive -= set(fallen)
        free |= set(fallen)
        if rng.random() < 0.3:
            k = int(rng.integers(0, 3000))
            soonest = waiting.soonest(k).tolist()
            assert soonest == sorted(naive, key=lambda i: (due[i], tags[i]))[:k]
            naive -= set(soonest)
            free |= set(soonest)
        back = rng.permutation(np.array(sorted(free), dtype=np.int64))[: int(rng.integers(0, 300))]
        due[back] = step + 1 + (rng.gamma(0.5, 60, back.size)).astype(np.int32)
        waiting.put(back)
        naive |= set(back.tolist())
        free -= set(back.tolist())
        waiting.check_valid()
        assert waiting.count == len(naive)


@pytest.mark.parametrize("intervals", [[1, 6, 12, 17, 50], range(1, 5000)])
@pytest.mark.parametrize("seed", SEEDS)
def test_backlog_beside_a_sorted_list(seed, intervals):
    """The longest overdue come first, by exact fractions; those never seen keep a queue of their own."""
    from fractions import Fraction

    rng = np.random.default_rng(seed)
    size = 400
    due, interval = np.zeros(size, dtype=np.int32), np.ones(size, dtype=np.int32)
    unseen = np.arange(100)
    due[:100] = unseen % 7
    tags = chance.tag(np.arange(size), seed).tolist()
    backlog = Backlog(due, interval, seed, unseen)
    naive, free = dict.fromkeys(unseen.tolist(), UNSEEN), set(range(100, size))
    for step in range(60):
        back = rng.permutation(np.array(sorted(free), dtype=np.int64))[: int(rng.integers(0, 40))]
        due[back] = step
        interval[back] = rng.choice(intervals, back.size)
        backlog.put(back)
        naive |= {i: int(interval[i]) for i in back.tolist()}
        free -= set(back.tolist())
        backlog.check_valid()
        ready = [i for i in naive if due[i] <= step]
        assert backlog.n_due(step) == len(ready)
        k = int(rng.integers(0, 30))
        key = {i: (-Fraction(int(step - due[i]), int(interval[i])), naive[i], tags[i]) for i in ready}
        taken = backlog.first(k, step, ByOverdue(step)).tolist()
        assert taken == sorted(ready, key=key.__getitem__)[:k]
        free |= set(taken)
        for i in taken:
            del naive[i]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [0, 1, 64, 65, 4097, 270_000])
def test_peaks_beside_a_sort(seed, size):
    """The largest of a changing column, with many ties and with places that never count."""
    rng = np.random.default_rng(seed)
    column = rng.choice([0.5, 1.0, 2.5, np.inf, -np.inf], size).astype(np.float32)
    if seed % 2:
        column = rng.normal(size=size).astype(np.float32)
    peaks = Peaks(column)
    for k in (0, 1, 5, 300):
        some = rng.integers(0, size, 50) if size else np.zeros(0, dtype=np.int64)
        column[some] = rng.normal(2, 1, some.size)
        peaks.refresh(some)
        peaks.check_valid()
        order = np.lexsort((np.arange(size), -column))
        naive = order[column[order] > -np.inf][:k]
        assert np.array_equal(np.sort(peaks.largest(k)), np.sort(naive))
