"""From a signal to a quality."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import make_scheduler
from srt_peft.review import recall
from tests.review import twin


def test_the_papers_thresholds():
    """τ5 = 50 and τ1 = 5000 are given; between them the steps are geometric."""
    assert list(recall.PERPLEXITY) == pytest.approx([50, 158.113883, 500, 1581.13883, 5000])


@pytest.mark.parametrize(
    ("ppl", "quality"),
    [
        (1, 5),
        (49.99, 5),
        (50, 4),
        (158, 4),
        (158.2, 3),
        (500, 2),
        (1581.1, 2),
        (1581.2, 1),
        (4999, 1),
        (5000, 0),
        (1e30, 0),
    ],
)
def test_quality_falls_at_each_threshold_that_is_reached(ppl, quality):
    """A perplexity equal to a threshold has reached it, as the paper's ≥ says."""
    assert int(recall.from_perplexity(ppl)) == quality


def test_quality_runs_from_0_to_5():
    """By the equation; the {1, …, 5} of the paper's text is a slip."""
    ppl = np.geomspace(1, 1e5, 2000)
    quality = recall.from_perplexity(ppl).tolist()
    assert quality == [twin.quality(math.log(p)) for p in ppl]
    assert set(quality) == {0, 1, 2, 3, 4, 5}


@settings(max_examples=300, derandomize=True)
@given(nll=st.floats(allow_nan=True, allow_infinity=True, width=32), alpha=st.sampled_from([0.05, 0.5, 1.0, 1.5]))
def test_nll_agrees_with_the_twin(nll, alpha):
    """Any float at all, and any α."""
    assert int(recall.from_nll(nll, alpha=alpha)) == twin.quality(nll, alpha)


def test_alpha_scales_all_five_thresholds():
    """α below 1 is stricter, above 1 more lenient."""
    ppl = np.array([30.0, 60.0, 300.0, 6000.0])
    assert recall.from_perplexity(ppl, alpha=0.5).tolist() == [4, 4, 2, 0]
    assert recall.from_perplexity(ppl, alpha=1.5).tolist() == [5, 5, 3, 1]


@pytest.mark.parametrize("signal", [math.nan, math.inf, -math.inf])
def test_a_signal_that_is_no_number_is_no_recall(signal):
    for quality in (recall.from_nll, recall.from_class_nll, recall.from_perplexity, recall.from_confidence):
        assert int(quality(signal)) == 0


@pytest.mark.parametrize(
    ("probability", "quality"),
    [(0, 0), (0.09, 0), (0.1, 1), (0.25, 2), (0.49, 2), (0.5, 3), (0.75, 4), (0.89, 4), (0.9, 5), (1, 5)],
)
def test_confidence_wins_a_point_at_each_threshold(probability, quality):
    """A pass, q ≥ 3, is a probability of one half or more: no other class can be likelier."""
    assert int(recall.from_confidence(probability)) == quality


def test_confidence_thresholds_are_even_in_log_odds():
    odds = [math.log(p / (1 - p)) for p in recall.CONFIDENCE]
    assert np.diff(odds) == pytest.approx([math.log(3)] * 4)


def test_a_classifier_reviews_with_its_cross_entropy():
    """The signal is −log p whatever the model is, so one face serves language and classes."""
    s = make_scheduler("srt", old=0, new=4, batch_size=4, stagger=1, recall="confidence")
    nll = -np.log([0.95, 0.6, 0.3, 0.01])
    assert s.review(s.draw().ids, nll).quality.tolist() == [5, 3, 2, 0]


def test_quality_is_that_of_the_signal_as_it_is_stored():
    """Computed from the float32 that state and log keep, so a replay of the log finds the same quality."""
    s = make_scheduler("srt", old=0, new=1, batch_size=1, stagger=1)
    nll = np.nextafter(math.log(500.0), 10)
    q = s.review(s.draw().ids, [nll]).quality
    assert q.tolist() == recall.from_nll(s.state.signal).tolist()
