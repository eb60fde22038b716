"""The rule of a review: whole histories, the fractions behind them, and the bounds."""

from datetime import datetime
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import supermemo2
from hypothesis import given, settings, strategies as st

from srt_peft.review import sm2
from tests.review import twin


def walk(qualities, *, interval=1, **bounds):
    """The histories of ease, repetitions and interval of an example that is answered so."""
    state = (sm2.INITIAL_EASE, 0, interval)
    history = []
    for q in qualities:
        state = tuple(int(x) for x in sm2.review(*state, q, **bounds))
        history.append(state)
    return [list(column) for column in zip(*history, strict=True)]


HISTORIES = [
    ([5] * 7, [260, 270, 280, 290, 300, 310, 320], [1, 2, 3, 4, 5, 6, 7], [1, 6, 17, 50, 150, 465, 1488]),
    ([4] * 6, [250] * 6, [1, 2, 3, 4, 5, 6], [1, 6, 15, 38, 95, 238]),
    ([3] * 6, [236, 222, 208, 194, 180, 166], [1, 2, 3, 4, 5, 6], [1, 6, 13, 26, 47, 79]),
    ([2] * 6, [218, 186, 154, 130, 130, 130], [0] * 6, [1] * 6),
    ([0] * 3, [170, 130, 130], [0] * 3, [1] * 3),
    ([5, 5, 5, 2, 5, 5, 5], [260, 270, 280, 248, 258, 268, 278], [1, 2, 3, 0, 1, 2, 3], [1, 6, 17, 1, 1, 6, 17]),
    ([1, 5, 4, 3, 0, 5], [196, 206, 206, 192, 130, 140], [0, 1, 2, 3, 0, 1], [1, 1, 6, 12, 1, 1]),
]


@pytest.mark.parametrize(("qualities", "ease", "repetitions", "interval"), HISTORIES)
def test_whole_histories(qualities, ease, repetitions, interval):
    """Worked by hand from the paper's equations."""
    assert walk(qualities) == [ease, repetitions, interval]


def test_the_ceiling_is_taken_in_integers():
    """⌈10·2.7⌉ is 27, where floats say 28 (10 * 2.7 is 27.000000000000004)."""
    assert int(sm2.review(260, 2, 10, 5)[2]) == 27


def test_ease_agrees_with_supermemo2_on_all_histories_of_six():
    """All 6**6 histories of quality; only the ease, since supermemo2 grows the interval by the ease from before."""
    when = datetime(2026, 1, 1)  # noqa: DTZ001 - the package asks for a naive one
    known = {(): (2.5, 0, 0)}
    for length in range(1, 7):
        for history in product(range(6), repeat=length):
            easiness, interval, repetitions = known[history[:-1]]
            r = supermemo2.review(history[-1], easiness, interval, repetitions, when)
            known[history] = (r["easiness"], r["interval"], r["repetitions"])
    histories = np.array(list(product(range(6), repeat=6)))
    ease, n, interval = (np.full(len(histories), x) for x in (sm2.INITIAL_EASE, 0, 1))
    for q in histories.T:
        ease, n, interval = sm2.review(ease, n, interval, q)
    theirs = np.array([known[tuple(h)] for h in histories.tolist()])
    assert np.abs(ease / 100 - theirs[:, 0]).max() < 1e-9
    assert np.array_equal(n, theirs[:, 2])


@settings(max_examples=500, derandomize=True)
@given(
    ease=st.integers(130, sm2.MAX_EASE),
    n=st.integers(0, 100),
    interval=st.integers(1, sm2.MAX_INTERVAL),
    q=st.integers(0, 5),
    min_ease=st.integers(100, 200),
    longest=st.none() | st.integers(1, 2**30),
)
def test_it_agrees_with_fractions_everywhere(ease, n, interval, q, min_ease, longest):
    """Any state and any quality, against the equations in exact fractions."""
    real = sm2.review(ease, n, interval, q, min_ease=min_ease, max_interval=longest)
    least = Fraction(min_ease, 100)
    e, n, i = twin.sm2(Fraction(ease, 100), n, interval, q, least, longest or sm2.MAX_INTERVAL)
    assert [int(x) for x in real] == [e * 100, n, i]


def test_nothing_wraps():
    """At the bounds ease, repetitions, interval and due stay where they are."""
    e, n, i = sm2.review(sm2.MAX_EASE, sm2.MAX_REPETITIONS, sm2.MAX_INTERVAL, 5)
    assert (int(e), int(n), int(i)) == (sm2.MAX_EASE, sm2.MAX_REPETITIONS, sm2.MAX_INTERVAL)
    assert int(sm2.due(sm2.MAX_STEP, sm2.MAX_INTERVAL)) == sm2.MAX_DUE
    assert int(sm2.due(sm2.MAX_DUE, sm2.MAX_INTERVAL)) == sm2.MAX_DUE
    for column, value in (("<i2", sm2.MAX_EASE), ("<i2", sm2.MAX_REPETITIONS), ("<i4", sm2.MAX_DUE)):
        assert np.iinfo(column).max >= value


def test_max_interval_caps_what_is_handed_out():
    assert walk([5] * 5, max_interval=10)[2] == [1, 6, 10, 10, 10]
    assert walk([5] * 3, max_interval=4)[2] == [1, 4, 4]


def test_min_ease_is_the_floor():
    assert walk([0, 0, 0], min_ease=200)[0] == [200, 200, 200]


def test_the_deltas_are_the_papers():
    """Δ(q) = 0.1 − (5 − q)(0.08 + 0.02(5 − q)), times a hundred."""
    exact = [(Fraction(1, 10) - (5 - q) * (Fraction(8, 100) + Fraction(2, 100) * (5 - q))) * 100 for q in range(6)]
    assert sm2.DELTA.tolist() == exact
