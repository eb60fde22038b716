"""Chance: reproducible, uniform, and without memory."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import make_scheduler
from srt_peft.review import chance
from srt_peft.review.agenda import Due, Pool
from srt_peft.review.idset import IdSet

FALSE_ALARM = 1e-6
"""The rate at which a uniform draw would fail one of these tests, were the seeds not fixed."""


def quantile(freedom, tail):
    """The upper quantile of chi-square, by Wilson and Hilferty's cube."""
    z = {1e-6: 4.7534}[tail]
    return freedom * (1 - 2 / (9 * freedom) + z * (2 / (9 * freedom)) ** 0.5) ** 3


@given(seed=st.integers(0, 2**64 - 1), start=st.integers(0, 2**31 - 2000))
@settings(max_examples=100, derandomize=True)
def test_a_tag_can_be_turned_back(seed, start):
    """So no two ids share a tag, and tags can be sorted in their place."""
    ids = np.arange(start, start + 1000)
    assert np.array_equal(chance.untag(chance.tag(ids, seed), seed), ids)


def test_tags_and_bits_are_pinned():
    """The draws of a seed rest on these numbers; they never change."""
    assert chance.tag(np.arange(4), 7).tolist() == TAGS
    assert chance.bits(7, 3, 1).random_raw(2).tolist() == BITS


def test_a_walk_visits_every_number_once():
    """The first n distinct numbers are a permutation, whatever the blocks."""
    for block in (1, 7, 64):
        seen = []
        for numbers in chance.walk(50, chance.bits(0, 0, 0), block):
            seen += numbers.tolist()
            if len(seen) == 50:
                break
        assert sorted(seen) == list(range(50))
        if block == 1:
            first = seen
        assert seen == first, "the walk does not depend on the block"


@pytest.mark.parametrize(("members", "k"), [(20, 3), (20, 10), pytest.param(5000, 10, marks=pytest.mark.slow)])
def test_each_member_is_drawn_equally_often(members, k):
    """Chi-square over the inclusions of each member; both ways of drawing, few of many and most of few."""
    ids = IdSet(np.ones(members, dtype=bool))
    counts = np.zeros(members)
    draws = 20 * members
    for step in range(draws):
        counts[ids.sample(k, chance.bits(11, step, 0))] += 1
    expected = draws * k / members
    # Inclusions of one draw exclude each other a little; (members - 1) / (members - k) puts the variance right.
    chi2 = ((counts - expected) ** 2 / expected).sum() * (members - 1) / (members - k)
    assert chi2 < quantile(members - 1, FALSE_ALARM)


@pytest.mark.parametrize(("members", "k"), [(8, 2), (40, 2)])
def test_each_pair_is_drawn_equally_often(members, k):
    """Not only single members: all pairs are alike."""
    ids = IdSet(np.ones(members, dtype=bool))
    table = np.zeros((members, members))
    pairs = members * (members - 1) // 2
    draws = 40 * pairs
    for step in range(draws):
        a, b = ids.sample(k, chance.bits(12, step, 1))
        table[a, b] += 1
    counts = table[np.triu_indices(members, 1)]
    expected = draws / pairs
    assert ((counts - expected) ** 2 / expected).sum() < quantile(pairs - 1, FALSE_ALARM)


@pytest.mark.parametrize("step", [0, 2, 6])
def test_srt_draws_uniformly_from_the_due(step):
    """Over many seeds, everyone who is due at a step is drawn equally often, and nobody else is."""
    counts = np.zeros(60)
    s = make_scheduler("srt", old=60, new=0, batch_size=6, old_fraction=1.0)
    s.state.step = step
    for seed in range(3000):
        counts[Due(Pool(s.state, 0, seed=seed, stagger=5)).take(6, step)] += 1
    due = np.arange(60) % 5 <= step
    drawn = counts[due]
    assert counts[~due].sum() == 0
    chi2 = ((drawn - drawn.mean()) ** 2 / drawn.mean()).sum() * (drawn.size - 1) / (drawn.size - 6)
    assert chi2 < quantile(drawn.size - 1, FALSE_ALARM)


TAGS = [2492178918, 3931332538, 1117771179, 3096160893]
BITS = [3845544696532098304, 9931676275916508706]
