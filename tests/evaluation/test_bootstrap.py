"""Resampling against closed forms, explicit loops, every resample there is, and simulated truth."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.evaluation import bootstrap
from srt_peft.evaluation.bootstrap import Sample, estimate, fair_binomial, paired_p, resampled

RESAMPLES = 10_000


def answers(correct, n):
    return np.arange(n) < correct


def philox(seed):
    return np.random.Generator(np.random.Philox(seed))


# --- the bootstrap ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("correct", "n"), [(271, 500), (65, 500), (1, 40), (0, 500), (7, 7), (330_000, 1_000_000)])
def test_the_deviation_of_a_proportion_is_the_closed_form(correct, n):
    """√(p(1 − p)/n), within what 10,000 resamples can tell: the error of a deviation is sd·√((κ + 2)/4R)."""
    found = estimate(Sample(answers(correct, n)), seed=3)
    p = correct / n
    exact = math.sqrt(p * (1 - p) / n)
    excess = (1 - 6 * p * (1 - p)) / (n * p * (1 - p)) if exact else 0.0
    assert found.mean == pytest.approx(p)
    assert abs(found.sd - exact) <= 4 * exact * math.sqrt((excess + 2) / (4 * RESAMPLES))


@pytest.mark.parametrize("n", [300, 40_000])
def test_the_deviation_of_a_weighted_mean_is_the_linearised_one(n):
    """√(Σ w²(x − m)²) / Σ w: resampled for few, and from the normal limit for many."""
    rng = np.random.default_rng(n)
    values, weights = rng.normal(3.0, 1.0, n), rng.integers(1, 200, n).astype(float)
    found = estimate(Sample(values, weights), seed=1)
    mean = np.average(values, weights=weights)
    exact = math.sqrt((weights**2 * (values - mean) ** 2).sum()) / weights.sum()
    assert found.mean == pytest.approx(mean)
    assert found.sd == pytest.approx(exact, rel=4 / math.sqrt(2 * RESAMPLES) + 1 / n)


@pytest.mark.parametrize(
    ("values", "weights"),
    [([1, 0, 0, 1], [1, 1, 1, 1]), ([1, 0, -1, 0], [1, 1, 1, 1]), ([0.3, 1.0, 2.5, 7.0], [1, 1, 1, 1]),
     ([0.3, 1.0, 1.0, 7.0], [1, 5, 2, 2])],
)  # fmt: skip
def test_the_draws_are_distributed_as_all_resamples_of_four_are(values, weights):
    """Counts are drawn for few different values and indices for many: either way all 256 are equally likely."""
    values, weights = np.array(values, dtype=float), np.array(weights, dtype=float)
    each = [np.average(values[list(at)], weights=weights[list(at)]) for at in itertools.product(range(4), repeat=4)]
    means, counts = np.unique(np.round(each, 9), return_counts=True)
    draws = np.round(resampled(values, weights, philox(5), 51_200), 9)
    assert set(draws) <= set(means)
    seen = np.array([(draws == mean).sum() for mean in means])
    expected = counts * 200
    chi2, freedom = ((seen - expected) ** 2 / expected).sum(), len(means) - 1
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom)


def naive(values, weights, seed, resamples):
    """The twin: one resample after another, one question after another."""
    rng = np.random.default_rng(seed)
    n, means = len(values), []
    for _ in range(resamples):
        total = weight = 0.0
        for i in rng.integers(0, n, n).tolist():
            total += weights[i] * values[i]
            weight += weights[i]
        means.append(total / weight)
    return np.array(means)


@pytest.mark.parametrize("kind", ["right or wrong", "paired", "perplexity"])
def test_the_draws_agree_with_an_explicit_loop(kind):
    """The same deviation and quantiles, within the error of both."""
    rng = np.random.default_rng(7)
    values = {
        "right or wrong": (rng.random(60) < 0.6) * 1.0,
        "paired": rng.choice([-1.0, 0.0, 1.0], 60, p=[0.1, 0.7, 0.2]),
        "perplexity": rng.gamma(2.0, size=60),
    }[kind]
    weights = rng.integers(5, 60, 60) * 1.0 if kind == "perplexity" else np.ones(60)
    slow, fast = naive(values, weights, 1, 2500), resampled(values, weights, philox(2), RESAMPLES)
    assert fast.mean() == pytest.approx(slow.mean(), abs=4 * slow.std() / math.sqrt(2500))
    assert fast.std() == pytest.approx(slow.std(), rel=0.07)
    grid = 0 if kind == "perplexity" else 1 / 60
    assert np.quantile(fast, [0.025, 0.975]) == pytest.approx(
        np.quantile(slow, [0.025, 0.975]), abs=slow.std() / 5 + grid
    )


def test_a_seed_gives_the_same_numbers_and_another_seed_others():
    for values in (answers(30, 70), np.random.default_rng(0).normal(size=70)):
        assert estimate(Sample(values), seed=4) == estimate(Sample(values), seed=4)
        assert estimate(Sample(values), seed=4).sd != estimate(Sample(values), seed=5).sd
    many = Sample(np.random.default_rng(0).normal(size=60))
    assert paired_p(many, seed=4) == paired_p(many, seed=4) != paired_p(many, seed=5)


def test_old_and_new_are_resampled_each_by_itself():
    """Combined is the mean of both, whatever their sizes, and its variance a quarter of the sum of theirs."""
    old, new = Sample(answers(251, 500)), Sample(answers(40, 100))
    a, b, both = estimate(old), estimate(new), estimate(old, new)
    assert both.mean == pytest.approx((0.502 + 0.4) / 2)
    assert both.n == 600
    assert both.sd == pytest.approx(math.hypot(a.sd, b.sd) / 2, rel=0.03)


def test_memory_is_bounded_however_many_questions():
    """Unchunked, the smallest of these would hold 160 MB."""
    rng = np.random.default_rng(0)
    samples = [(Sample(answers(3, 10**6)), RESAMPLES), (Sample(rng.normal(size=20_000)), 1000)]
    tracemalloc.start()
    for sample, resamples in samples:
        estimate(sample, resamples=resamples)
        paired_p(sample, resamples=resamples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


def test_the_normal_limit_is_what_resampling_many_gives(monkeypatch):
    """And where a few values carry the mean, they are resampled however many there are."""
    rng = np.random.default_rng(3)
    values, weights = rng.gamma(2.0, size=bootstrap._MANY), np.ones(bootstrap._MANY)
    heavy = np.exp(4 * rng.normal(size=bootstrap._MANY))
    assert bootstrap._normal(values, weights) is not None
    assert bootstrap._normal(heavy, weights) is None
    limit = resampled(values, weights, philox(0), 400)
    shift = values.mean() - 1.5 * values.std() / math.sqrt(values.size)
    test = paired_p(Sample(values - shift))
    monkeypatch.setattr(bootstrap, "_MANY", 1 << 40)
    assert limit.std() == pytest.approx(resampled(values, weights, philox(1), 400).std(), rel=0.2)
    assert test == pytest.approx(paired_p(Sample(values - shift), resamples=1000), abs=0.045)


# --- trainings --------------------------------------------------------------------------------------------------------


def test_trainings_that_differ_widen_the_interval_and_one_says_nothing():
    """The deviation over questions stays what it is; the interval has both."""
    runs = np.array([answers(300, 500), answers(250, 500), answers(200, 500)])
    several, one = estimate(Sample(runs)), estimate(Sample(runs.mean(0)))
    assert several.runs == pytest.approx((0.6, 0.5, 0.4))
    assert several.between == pytest.approx(0.1)
    assert one.between is None
    assert several.sd == pytest.approx(one.sd)
    assert several.high - several.low > 2 * (one.high - one.low)
    alike, single = estimate(Sample([answers(250, 500)] * 3)), estimate(Sample(answers(250, 500)))
    assert (alike.between, alike.low, alike.high) == (0.0, pytest.approx(single.low), pytest.approx(single.high))


def test_the_spread_of_trainings_alone_is_that_of_their_mean():
    """Where questions say nothing more: s/√k, s² with k − 1 in its denominator."""
    found = estimate(Sample(np.repeat(np.arange(8.0)[:, None], 20, axis=1)))
    assert found.sd == 0.0
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * np.arange(8).std(ddof=1) / math.sqrt(8), rel=0.03)


@pytest.mark.parametrize("spread", [0.0, 0.005, 0.02])
def test_the_interval_from_five_trainings_holds(spread):
    """Each training loses a share of its own; the interval has the mean of all trainings that could be made."""
    rng = np.random.default_rng(11)
    held, sims, n, k = 0, 250, 300, 5
    for sim in range(sims):
        lost = 0.08 + spread * rng.normal(size=(k, 1))
        u = rng.random((k, n))
        found = estimate(Sample(np.where(u < lost, 1.0, np.where(u > 0.97, -1.0, 0.0))), resamples=1000, seed=sim)
        held += found.low <= 0.05 <= found.high
    assert held / sims > 0.95 - 4 * math.sqrt(0.05 * 0.95 / sims)


# --- the paired interval and test -------------------------------------------------------------------------------------


def pairs(rng, sims, n, drop=0.0):
    """Answers of two models to questions of any difficulty; `drop` of the questions that both would know, one lost."""
    know = rng.beta(0.8, 0.8, size=(sims, n))
    a, b = rng.random((sims, n)) < know, rng.random((sims, n)) < know
    return a * 1.0, (b & (rng.random((sims, n)) >= drop)) * 1.0


def test_the_paired_interval_holds_95_percent_of_the_time():
    rng = np.random.default_rng(1)
    sims, drop = 1000, 0.06
    a, b = pairs(rng, sims, 300, drop)
    truth = drop / 2  # half of all answers are right
    found = [estimate(Sample(d), resamples=1000, seed=i) for i, d in enumerate(a - b)]
    held = np.mean([e.low <= truth <= e.high for e in found])
    assert abs(held - 0.95) < 4 * math.sqrt(0.95 * 0.05 / sims)
    apart = np.sqrt(a.var(1) + b.var(1)) / math.sqrt(300)
    assert np.mean([e.sd for e in found]) < 0.9 * apart.mean(), "pairing narrows it"


@given(lost=st.integers(0, 60), gained=st.integers(0, 60), same=st.integers(0, 5))
def test_of_right_and_wrong_it_is_mcnemars_exact_test(lost, gained, same):
    """p = 2·P(X ≤ min(b, c)), X binomial of b + c throws."""
    m = lost + gained
    p = min(1.0, 2 * sum(math.comb(m, k) for k in range(min(lost, gained) + 1)) / 2**m)
    values = [1.0] * lost + [-1.0] * gained + [0.0] * (same + 1)
    assert paired_p(Sample(values)) == pytest.approx(p, rel=1e-9)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_of_few_numbers_every_pattern_of_signs_is_counted(numbers):
    observed = abs(sum(numbers))
    patterns = list(itertools.product([1, -1], repeat=len(numbers)))
    as_large = sum(abs(sum(s * x for s, x in zip(signs, numbers, strict=True))) >= observed for signs in patterns)
    assert paired_p(Sample(np.array(numbers) / 7)) == pytest.approx(as_large / len(patterns))


@pytest.mark.parametrize("distinct", [3, 16])
def test_a_sample_of_signs_agrees_with_all_of_them(monkeypatch, distinct):
    """Whether binomials are thrown for few magnitudes, or a sign for each; and p is never 0."""
    rng = np.random.default_rng(distinct)
    size = 120 if distinct == 3 else 16
    values = rng.permutation(size) % distinct + 1.0
    values *= np.where(np.arange(size) % 3 > 0, 1, -1) if distinct == 16 else np.where(rng.random(size) < 0.62, 1, -1)
    exact = paired_p(Sample(values))
    monkeypatch.setattr(bootstrap, "_PATTERNS", 1)
    assert 0.001 < exact < 0.9
    assert paired_p(Sample(values)) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / RESAMPLES) + 1e-4)
    assert paired_p(Sample(np.ones(200))) == pytest.approx(1 / (RESAMPLES + 1))


def test_fair_throws_are_counted_rightly():
    assert fair_binomial(10) == pytest.approx([math.comb(10, k) / 1024 for k in range(11)])
    assert fair_binomial(1_000_000)[500_000] == pytest.approx(math.sqrt(2 / (math.pi * 1_000_000)), rel=1e-6)


def test_the_test_holds_its_level_where_nothing_differs():
    """2000 times two models alike, correlated by the questions' difficulty: at most 5 % are called different."""
    rng = np.random.default_rng(8)
    sims, n = 2000, 200
    a, b = pairs(rng, sims, n)
    rejected = np.mean([paired_p(Sample(d)) <= 0.05 for d in a - b])
    discordant = np.abs(a - b).mean()
    assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.3
    assert rejected <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / sims)
    theory = power(n, discordant / 2, discordant / 2)
    assert abs(rejected - theory) < 4 * math.sqrt(theory * (1 - theory) / sims), "no more conservative than it must be"


def test_the_test_of_real_values_holds_its_level():
    """Heavy tails and all, since only symmetry is assumed: exact for few, sampled for many."""
    rng = np.random.default_rng(9)
    few, many = rng.standard_t(2, size=(1500, 10)), rng.standard_t(2, size=(300, 40))
    assert np.mean([paired_p(Sample(d)) <= 0.05 for d in few]) == pytest.approx(0.05, abs=4 * 0.0057)
    sampled = [paired_p(Sample(d), resamples=999, seed=i) <= 0.05 for i, d in enumerate(many)]
    assert np.mean(sampled) == pytest.approx(0.05, abs=4 * 0.0126)


def power(n, lost, gained, level=0.05):
    """How often McNemar's test rejects: the exact sum over how many questions differ, and how many are lost."""
    total = 0.0
    share = lost / (lost + gained)
    for m in range(n + 1):
        log_m = math.lgamma(n + 1) - math.lgamma(m + 1) - math.lgamma(n - m + 1)
        chance = math.exp(log_m + m * math.log(lost + gained) + (n - m) * math.log1p(-lost - gained))
        if chance < 1e-9:
            continue
        tail, extreme = 0.0, -1
        while 2 * (tail + math.comb(m, extreme + 1) / 2**m) <= level:
            extreme += 1
            tail += math.comb(m, extreme) / 2**m
        rejecting = [*range(extreme + 1), *range(m - extreme, m + 1)] if extreme >= 0 else []
        total += chance * sum(math.comb(m, b) * share**b * (1 - share) ** (m - b) for b in rejecting)
    return total


@pytest.mark.parametrize("n", [500, 1000])
def test_a_planted_three_point_loss_is_found_as_often_as_theory_says(n):
    """7 % of the questions lost and 4 % gained: the exact binomial sum gives the power."""
    rng = np.random.default_rng(n)
    sims, lost, gained = 1500, 0.07, 0.04
    u = rng.random((sims, n))
    found = np.mean(
        [paired_p(Sample(d)) <= 0.05 for d in np.where(u < lost, 1.0, np.where(u < lost + gained, -1.0, 0.0))]
    )
    theory = power(n, lost, gained)
    assert 0.4 < theory < 0.9
    assert abs(found - theory) < 4 * math.sqrt(theory * (1 - theory) / sims)


# --- what must not matter ---------------------------------------------------------------------------------------------

DIFFERENCES = st.lists(st.sampled_from([-1.0, 0.0, 0.0, 1.0]), min_size=2, max_size=60).map(np.array)
REALS = st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=2, max_size=12).map(np.array)
FEW = {"resamples": 500}


@given(st.one_of(DIFFERENCES, REALS))
def test_swapping_the_models_turns_the_sign_and_nothing_else(d):
    there, back = estimate(Sample(d), resamples=4000), estimate(Sample(-d), resamples=4000)
    assert paired_p(Sample(d)) == pytest.approx(paired_p(Sample(-d)))
    assert back.mean == pytest.approx(-there.mean)
    assert back.sd == pytest.approx(there.sd, rel=0.15)
    step = np.ptp(d) / len(d)
    assert (-back.high, -back.low) == pytest.approx((there.low, there.high), abs=0.35 * there.sd + step)


@given(d=st.one_of(DIFFERENCES, REALS), by=st.integers(-20, 20))
def test_a_shift_moves_the_interval_along(d, by):
    still, moved = estimate(Sample(d), **FEW), estimate(Sample(d + by), **FEW)
    for name in ("mean", "low", "high"):
        assert getattr(moved, name) == pytest.approx(getattr(still, name) + by)
    assert moved.sd == pytest.approx(still.sd)


@given(d=DIFFERENCES, chance=st.randoms(use_true_random=False))
def test_the_order_of_questions_does_not_matter(d, chance):
    other = d.copy().tolist()
    chance.shuffle(other)
    assert paired_p(Sample(other)) == paired_p(Sample(d))
    assert estimate(Sample(other), **FEW) == estimate(Sample(d), **FEW)


@settings(max_examples=50)
@given(d=REALS, by=st.sampled_from([0.25, 3.0, 1e-6, 1e6]))
def test_the_unit_does_not_matter_to_the_test(d, by):
    assert paired_p(Sample(d * by)) == pytest.approx(paired_p(Sample(d)))
