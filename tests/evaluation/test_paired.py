"""Differences between trainings that share a seed: the arithmetic, and the words."""

import math

import numpy as np
import pytest

from srt_peft.evaluation.paired import differences, in_words, student, t_quantile, t_within


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)]
)
def test_students_quantiles_are_those_of_the_tables(freedom, t):
    assert t_quantile(0.95, freedom) == pytest.approx(t, abs=1e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 6, 11, 12])
def test_the_series_is_the_integral_of_the_density(freedom):
    """Against the density itself, summed by the trapezoid rule."""
    x = np.linspace(-1.7, 1.7, 20_001)
    height = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    density = height * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert t_within(1.7, freedom) == pytest.approx(np.trapezoid(density, x), abs=1e-8)


def test_an_interval_of_students_holds_as_often_as_it_says():
    """Over ten thousand samples of three."""
    samples = np.random.default_rng(0).normal(1.0, 2.0, (10_000, 3))
    held = [low <= 1.0 <= high for low, high in map(student, samples)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.01)
    assert student([1.0]) == (None, None)


def records(split, values, weight=1.0):
    return [{"key": f"{split}{i}", "split": split, "value": v, "weight": weight} for i, v in enumerate(values)]


def test_seeds_are_paired():
    """Seeds that differ a lot, each of which the entry betters by as much: the spread is that of the differences."""
    ours = {0: records("old", [1, 1, 1, 0]), 1: records("old", [1, 1, 0, 0]), 2: records("old", [1, 0, 0, 0])}
    theirs = {2: records("old", [0, 0, 0, 0]), 0: records("old", [1, 1, 0, 0]), 1: records("old", [1, 0, 0, 0])}
    [row] = differences("qa", "accuracy", {"theirs": theirs, "ours": ours}, "theirs").rows
    assert (row.label, row.split, row.seeds, row.runs) == ("ours", "old", (0, 1, 2), (0.25, 0.25, 0.25))
    assert (row.mean, row.between, row.low, row.high, row.n) == (0.25, 0.0, 0.25, 0.25, 4)


def test_only_seeds_that_both_have_are_compared():
    theirs = {0: records("old", [0, 1])}
    ours = {0: records("old", [1, 1]), 1: records("old", [0, 0])}
    [row] = differences("qa", "accuracy", {"theirs": theirs, "ours": ours}, "theirs").rows
    assert (row.seeds, row.mean, row.between, row.low) == ((0,), 0.5, None, None)
    assert differences("qa", "accuracy", {"theirs": theirs, "ours": {1: ours[1]}}, "theirs").rows == ()


def test_positive_is_better_where_lower_is_better_too():
    """Nats a token, weighted by tokens, and the combined mean of the two splits."""
    theirs = {0: [*records("old", [2.0, 4.0], 3.0), *records("new", [1.0], 2.0)]}
    ours = {0: [*records("old", [1.0, 4.0], 3.0), *records("new", [3.0], 2.0)]}
    found = differences("perplexity", "nll", {"theirs": theirs, "ours": ours}, "theirs")
    assert {row.split: row.mean for row in found.rows} == {"old": 0.5, "new": -2.0, "combined": -0.75}


def test_the_sentence_says_which_count_and_which_do_not():
    """Better on old in every seed, worse on new in every seed, and together no more than chance."""
    theirs = {s: [*records("old", [0.0] * 40), *records("new", [1.0] * 40)] for s in range(3)}
    ours = {
        s: [*records("old", [1.0] * (20 + s) + [0.0] * (20 - s)), *records("new", [0.0] * (21 + s) + [1.0] * (19 - s))]
        for s in range(3)
    }
    lines = in_words([differences("qa", "accuracy", {"theirs": theirs, "ours": ours}, "theirs")])
    assert lines[0] == (
        "ours against theirs, qa: better on old (+52.5); worse on new (−55.0); no difference counts on combined "
        "(−1.2), in points."
    )
    assert lines[1].startswith(
        "A difference counts where none of its intervals has 0 in it and p < 0.05. Of the 3 looked at"
    )


def test_a_difference_that_seeds_do_not_bear_out_does_not_count():
    """Plain over the questions of these trainings, and of either sign in others: it is no win."""
    theirs = {s: records("old", [0.0] * 100) for s in range(2)}
    ours = {0: records("old", [1.0] * 90 + [0.0] * 10), 1: records("old", [1.0] * 5 + [0.0] * 95)}
    [row] = differences("qa", "accuracy", {"theirs": theirs, "ours": ours}, "theirs").rows
    assert row.question_low > 0 > row.low
    assert row.sign == 0


@pytest.mark.parametrize(("metric", "better"), [("accuracy", 1.0), ("nll", -0.5)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_what_few_questions_show_is_no_win_though_all_are_better(metric, better, seeds):
    """Three of three: a resample knows nothing else, and yet they would all be better by chance one time in four."""

    def against(count):
        ours = {s: records("old", [better] * count) for s in range(seeds)}
        theirs = {s: records("old", [0.0] * count) for s in range(seeds)}
        [row] = differences("qa", metric, {"theirs": theirs, "ours": ours}, "theirs").rows
        return row

    few, enough = against(3), against(6)
    assert few.question_low > 0
    assert few.p == pytest.approx(0.25)
    assert few.sign == 0
    assert enough.p == pytest.approx(2 / 2**6)
    assert enough.sign == 1


def test_a_difference_that_counts_is_seldom_there_where_there_is_none():
    """Of 400 contests between equals over 5 to 12 questions, at most one in twenty: each has a sign of its own."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(400):
        n = int(random.integers(5, 13))
        trainings = [{0: records("old", random.integers(0, 2, n).tolist())} for _ in range(2)]
        [row] = differences("qa", "accuracy", dict(zip("ab", trainings, strict=True)), "a").rows
        found.append(row.sign != 0)
    assert np.mean(found) <= 0.05
