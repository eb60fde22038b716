"""Forgot, kept or undecided: rightly, seldom wrongly, and with a number of questions that does decide."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.errors import OptionError
from srt_peft.evaluation.bootstrap import Sample
from srt_peft.evaluation.verdict import FORGOT, KEPT, UNDECIDED, exit_code, questions_needed, shares_interval, verdict

FEW = {"resamples": 1000}


def differences(n, lost, gained):
    """So many questions lost, so many gained, the others answered alike."""
    return Sample(np.r_[np.ones(lost), -np.ones(gained), np.zeros(n - lost - gained)])


def drawn(rng, n, lost, gained):
    u = rng.random((len(lost), n)) if np.ndim(lost) else rng.random(n)
    lost = np.reshape(lost, (-1, 1)) if np.ndim(lost) else lost
    return Sample(np.where(u < lost, 1.0, np.where(u > 1 - gained, -1.0, 0.0)))


@pytest.mark.parametrize(
    ("n", "lost", "gained", "outcome", "code"),
    [
        (500, 60, 10, FORGOT, 3),
        (500, 2, 8, KEPT, 0),
        (500, 25, 18, UNDECIDED, 0),
        (500, 0, 0, KEPT, 0),
        (150, 0, 0, UNDECIDED, 0),
        (5, 0, 0, UNDECIDED, 0),
        (5, 5, 0, FORGOT, 3),
        (2, 1, 1, UNDECIDED, 0),
        (1, 1, 0, UNDECIDED, 0),
    ],
)
def test_the_interval_against_an_allowance_of_two_points(n, lost, gained, outcome, code):
    """Questions answered alike prove nothing while they are few: with 2 % lost, 150 show none of it 5 % of the time."""
    made = verdict(differences(n, lost, gained), 2.0)
    assert (made.outcome, exit_code([made])) == (outcome, code)
    assert made.loss == pytest.approx(100 * (lost - gained) / n)
    assert made.low <= made.loss <= made.high
    assert (made.more_questions is not None) == (outcome == UNDECIDED)


def test_one_that_forgot_is_enough():
    kept, forgot = verdict(differences(500, 0, 0), 2.0), verdict(differences(500, 100, 0), 2.0)
    assert [exit_code(v) for v in ([], [kept], [kept, forgot])] == [0, 0, 3]


@pytest.mark.parametrize(
    ("n", "lost", "gained"),
    [(60, 0.02, 0.0), (100, 0.03, 0.01), (150, 0.02, 0.0), (300, 0.05, 0.03), (1000, 0.12, 0.1)],
)
def test_a_loss_just_at_the_allowance_is_seldom_called_either(n, lost, gained):
    """2.5 % each way, whether many questions differ or hardly any."""
    rng = np.random.default_rng(n)
    sims = 600
    outcomes = [verdict(drawn(rng, n, lost, gained), 2.0, seed=i, **FEW).outcome for i in range(sims)]
    for wrong in (KEPT, FORGOT):
        assert outcomes.count(wrong) / sims < 0.025 + 4 * math.sqrt(0.025 * 0.975 / sims), wrong


@pytest.mark.parametrize("of", [(500, 12, 3), (40, 1, 0), (40, 0, 0)])
def test_the_shares_interval_is_newcombes(of):
    """Against the formula for paired proportions without correlation, written out; of none lost, Wilson's of 0."""
    n, lost, gained = of
    z = 1.959964
    low, high = shares_interval(differences(*of), 0.95)

    def wilson(x):
        middle, half = x + z * z / 2, z * math.sqrt(x * (n - x) / n + z * z / 4)
        return (middle - half) / (n + z * z), (middle + half) / (n + z * z)

    (l1, u1), (l2, u2) = wilson(lost), wilson(gained)
    p1, p2 = lost / n, gained / n
    assert high == pytest.approx(p1 - p2 + math.sqrt((u1 - p1) ** 2 + (p2 - l2) ** 2), rel=1e-5)
    assert low == pytest.approx(p1 - p2 - math.sqrt((p1 - l1) ** 2 + (u2 - p2) ** 2), rel=1e-5)


# --- how many more ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "gained", "allowance"),
    [(0.02, 0.01, 4.0), (0.01, 0.0, 2.0), (0.05, 0.02, 2.0), (0.10, 0.09, 3.0), (0.08, 0.04, 2.0), (0.30, 0.20, 5.0)],
)
def test_as_many_questions_as_it_says_decide_four_times_in_five(lost, gained, allowance):
    """Whichever way: the loss lies within the allowance in some of these, beyond it in others."""
    made = verdict(differences(1000, round(1000 * lost), round(1000 * gained)), allowance)
    n = questions_needed(differences(1000, round(1000 * lost), round(1000 * gained)), allowance / 100)
    if made.outcome == UNDECIDED:
        assert made.more_questions == n - 1000
    rng = np.random.default_rng(n)
    decided = [verdict(drawn(rng, n, lost, gained), allowance, seed=i, **FEW).outcome for i in range(300)]
    right = KEPT if 100 * (lost - gained) < allowance else FORGOT
    assert decided.count(right) / 300 == pytest.approx(0.8, abs=0.1)


def test_the_number_holds_for_several_trainings_too():
    """These very trainings, asked more questions: their own spread stays, and is allowed for."""
    rng = np.random.default_rng(4)
    lost = np.array([0.045, 0.05, 0.055])
    n = questions_needed(drawn(rng, 300_000, lost, 0.03), 0.04)
    decided = [verdict(drawn(rng, n, lost, 0.03), 4.0, seed=i, **FEW).outcome for i in range(200)]
    assert decided.count(KEPT) / 200 == pytest.approx(0.8, abs=0.15)


def test_the_number_holds_for_perplexity():
    """Nats a token, with tokens as weights."""
    rng = np.random.default_rng(6)

    def texts(n):
        return Sample(rng.normal(0.02, 0.08, n), rng.integers(20, 400, n))

    n = questions_needed(texts(50_000), 0.03, shares=False)
    decided = [verdict(texts(n), 0.03, metric="nll", seed=i, **FEW).outcome for i in range(200)]
    assert decided.count(KEPT) / 200 == pytest.approx(0.8, abs=0.1)


def test_where_no_number_of_questions_decides_it_says_what_would():
    """Trainings that lie on both sides of the allowance, or a loss that is the allowance."""
    rng = np.random.default_rng(5)
    apart = verdict(drawn(rng, 2000, [0.01, 0.04, 0.07], 0.01), 2.0)
    assert (apart.outcome, apart.more_questions) == (UNDECIDED, None)
    assert "the trainings differ too much. More of them (seeds) are needed." in apart.sentence
    near = verdict(differences(500, 20, 10), 2.0)
    assert (near.outcome, near.more_questions) == (UNDECIDED, None)
    assert "even a million questions would not decide" in near.sentence


# --- trainings, words, units ------------------------------------------------------------------------------------------


def test_the_sentence_is_one_that_a_person_understands():
    made = verdict(differences(500, 25, 18), 2.0)
    assert made.sentence == (
        "Undecided: the loss on old is 1.4 points over 500 questions "
        "(95 % interval −1.2 to 4.0), with the allowance of 2 points inside. "
        "More questions needed: about 20,000 more, if the loss is what it looks like. "
        "It is one training: how far another seed would land is unknown."
    )
    several = verdict(Sample([differences(500, lost, 9).values[0] for lost in (8, 9, 10)]), 5.0, split="physics")
    assert several.sentence.startswith("Kept: the loss on physics is 0.0 points over 500 questions (95 % interval −")
    assert "all of it within the allowance of 5 points. It is the mean of 3 trainings" in several.sentence
    assert "a standard deviation of 0.2 points between them" in several.sentence
    assert verdict(differences(500, 90, 0), 2.0).sentence.startswith("Forgot too much: the loss on old is 18.0 points")


def test_trainings_that_differ_make_it_careful():
    """One training alone would be called kept; another seed that lost far more leaves it open."""
    kept, lost = differences(2000, 10, 10).values[0], differences(2000, 120, 10).values[0]
    assert verdict(Sample(kept), 4.0).outcome == KEPT
    both = verdict(Sample([kept, lost]), 4.0)
    assert both.outcome == UNDECIDED
    assert both.between == pytest.approx(5.5 / math.sqrt(2))


def test_an_update_that_changed_no_perplexity_is_kept():
    assert verdict(Sample(np.zeros(40), np.arange(1, 41)), 0.0, metric="nll").outcome == KEPT


def test_nats_are_told_in_nats():
    made = verdict(Sample(np.random.default_rng(0).normal(0.5, 0.1, 100)), 0.2, metric="nll")
    assert made.outcome == FORGOT
    assert "nats a token over 100 questions" in made.sentence


@pytest.mark.parametrize("allowance", [-0.1, float("nan"), float("inf")])
def test_an_allowance_that_is_none_is_refused(allowance):
    with pytest.raises(OptionError, match=r"max-forgetting = .*: expected a number of points, 0 or more, such as 2\.0"):
        verdict(differences(10, 0, 0), allowance)


@settings(max_examples=60)
@given(
    lost=st.integers(0, 40),
    gained=st.integers(0, 40),
    rest=st.integers(0, 200),
    allowances=st.tuples(st.floats(0, 60), st.floats(0, 60)),
)
def test_a_larger_allowance_is_never_harder_to_keep(lost, gained, rest, allowances):
    order = [FORGOT, UNDECIDED, KEPT]
    loss = differences(lost + gained + rest + 1, lost, gained)
    strict, mild = (order.index(verdict(loss, a, **FEW).outcome) for a in sorted(allowances))
    assert strict <= mild


@settings(max_examples=60)
@given(lost=st.integers(0, 30), gained=st.integers(0, 30), rest=st.integers(1, 100), allowance=st.floats(0, 20))
def test_more_questions_are_always_more(lost, gained, rest, allowance):
    made = verdict(differences(lost + gained + rest, lost, gained), allowance, **FEW)
    assert made.more_questions is None or made.more_questions >= 1
    assert math.isfinite(made.low + made.high)
