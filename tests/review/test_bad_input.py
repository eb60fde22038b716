"""Whatever is asked wrongly gets an answer that helps, and harms nothing."""

import copy
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import OptionError, ProtocolError, StateError, make_scheduler
from srt_peft.review.options import RULES


def drawn():
    s = make_scheduler("srt", old=20, new=20, batch_size=10, stagger=1)
    return s, s.draw()


BAD_REVIEWS = {
    "one signal too few": (lambda ids: (ids, np.ones(9)), "ids of shape (10,) and signals of shape (9,)"),
    "one signal too many": (
        lambda ids: (ids, np.ones(11)),
        "signals of shape (11,): expected one signal for each of the 10",
    ),
    "no signals": (lambda ids: (ids, []), "signals of shape (0,)"),
    "a table of signals": (lambda ids: (ids, np.ones((10, 1))), "signals of shape (10, 1)"),
    "a single number": (lambda ids: (ids[0], 1.0), "ids of shape ()"),
    "ids not drawn": (lambda ids: (ids + 100, np.ones(10)), "10 ids that were not drawn (the first is 10"),
    "one id left out": (lambda ids: (ids[1:], np.ones(9)), "1 drawn ids are missing (the first is"),
    "one id twice": (lambda ids: (np.r_[ids[:1], ids], np.ones(11)), "some ids more than once"),
    "one id for another": (
        lambda ids: (np.r_[ids[1:], 77], np.ones(10)),
        "1 ids that were not drawn (the first is 77), and 1 drawn ids",
    ),
    "ids that are no numbers": (
        lambda ids: (list("abcdefghij"), np.ones(10)),
        "ids of dtype <U1: expected whole numbers",
    ),
    "ids that are floats": (lambda ids: (ids + 0.5, np.ones(10)), "ids of dtype float64: expected whole numbers"),
    "signals that are no numbers": (lambda ids: (ids, list("abcdefghij")), "signals that are no numbers"),
}


@pytest.mark.parametrize("case", BAD_REVIEWS)
def test_a_bad_review_is_refused_and_harms_nothing(case):
    """The state stays as it was, and the right review is still welcome."""
    s, draw = drawn()
    before = copy.deepcopy(s.state_dict())
    make, message = BAD_REVIEWS[case]
    with pytest.raises(ProtocolError) as error:
        s.review(*make(draw.ids))
    assert message in str(error.value)
    after = s.state_dict()
    assert all(np.array_equal(after["columns"][k], v, equal_nan=k == "signal") for k, v in before["columns"].items())
    assert s.review(draw.ids, np.ones(10)).quality.tolist() == [5] * 10
    s.check_valid()


def test_a_second_review_is_refused():
    s, draw = drawn()
    s.review(draw.ids, np.ones(10))
    with pytest.raises(ProtocolError, match="nothing is drawn: step 0 was reviewed already"):
        s.review(draw.ids, np.ones(10))
    assert s.state.step == 1


def test_a_review_before_the_first_draw_is_refused():
    s = make_scheduler("srt", old=2, new=2, batch_size=1)
    with pytest.raises(ProtocolError, match="nothing is drawn yet"):
        s.review([], [])


def test_a_draw_before_the_review_names_prefetching():
    """The error says which step waits, what usually does that, and what to do about it."""
    s, draw = drawn()
    with pytest.raises(ProtocolError) as error:
        s.draw()
    for part in ("before step 0 was reviewed", "prefetching", "num_workers=0", "do not prepare the loader"):
        assert part in str(error.value)
    s.review(draw.ids, np.ones(10))
    assert s.draw().step == 1


BAD_OPTIONS = [
    ({"batch_size": 0}, "batch_size = 0: expected the examples of one optimiser step, a whole number, 1 or more"),
    ({"batch_size": 2.5}, "batch_size = 2.5"),
    ({"batch_size": True}, "batch_size = True"),
    ({"old": -1}, "old = -1: expected how many old examples there are"),
    ({"new": 2**31}, "new = 2147483648"),
    ({"old_fraction": -0.1}, "old_fraction = -0.1: expected the share of old examples in a draw, from 0 to 1"),
    ({"old_fraction": 1.01}, "old_fraction = 1.01"),
    ({"old_fraction": float("nan")}, "old_fraction = nan"),
    ({"old_fraction": "0.2"}, "old_fraction = '0.2'"),
    ({"seed": -1}, "seed = -1: expected a whole number from 0 to 2**64 - 1"),
    ({"seed": None}, "seed = None"),
    ({"stagger": 0}, "stagger = 0"),
    ({"initial_ease": 0.9}, "initial_ease = 0.9: expected a number from 1.00 to 327.67 in whole hundredths"),
    ({"initial_ease": 2.505}, "initial_ease = 2.505"),
    ({"initial_ease": float("inf")}, "initial_ease = inf"),
    ({"min_ease": 2.6}, "initial_ease = 2.5 lies below min_ease = 2.6"),
    ({"thresholds": [50, 40, 30, 20, 10]}, "thresholds = (50, 40, 30, 20, 10): expected five positive numbers"),
    ({"thresholds": [1, 2, 3, 4]}, "thresholds = (1, 2, 3, 4)"),
    ({"thresholds": [1, 2, 3, 4, float("nan")]}, "thresholds = (1, 2, 3, 4, nan)"),
    ({"thresholds": np.ones(5)}, "thresholds = (1.0, 1.0"),
    ({"alpha": 10**400}, "alpha = 1000"),
    ({"old": 2**30, "new": 2**30}, "old and new together are more than the 2147483647 examples"),
    ({"alpha": 0}, "alpha = 0: expected a number above 0"),
    ({"alpha": float("nan")}, "alpha = nan"),
    ({"max_interval": 0}, "max_interval = 0"),
    ({"underfull": "full"}, "underfull = 'full': expected 'short'"),
    ({"underfull": np.ones(2)}, "underfull = (1.0, 1.0)"),
    ({"order": "random"}, "order = 'random': expected 'uniform', 'overdue', 'epoch', 'rounds' or 'intake'"),
    ({"order": {"old": "intake"}}, "order = 'intake' is for first visits, and so for new"),
    ({"order": {"old": "uniform", "young": "uniform"}}, "order = {'old': 'uniform', 'young': 'uniform'}"),
    ({"order": {}}, "order = {}"),
    ({"recall": "relatively"}, "recall = 'relatively': expected one of 'absolute', 'confidence'"),
    ({"recall": "confidence", "alpha": 2.0}, "alpha = 2.0 scales perplexities"),
    ({"recall": "confidence", "thresholds": [1, 2, 3, 4, 5]}, "they are probabilities"),
    ({"counts": [(1, 1)]}, "the scheduler 'match' needs them"),
    ({"batchsize": 3}, "batchsize: no such option (did you mean 'batch_size'?)"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_a_bad_option_is_told_by_name_value_and_expectation(options, message):
    with pytest.raises(OptionError) as error:
        make_scheduler("srt", **({"old": 3, "new": 3, "batch_size": 2} | options))
    assert message in str(error.value)
    assert isinstance(error.value, ValueError)
    assert error.value.exit_code == 2


def test_all_faults_are_told_at_once():
    """Every wrong option and a wrong name, each on a line of its own."""
    wrong = {"batch_size": 0, "old_fraction": 2, "alpha": -1, "order": "x", "sed": 1}
    with pytest.raises(OptionError) as error:
        make_scheduler("unifrom", old=-3, new=3, **wrong)
    assert len(error.value.faults) == 7
    assert str(error.value).startswith(
        "7 faults in make_scheduler:\n  'unifrom' is no scheduler (did you mean 'uniform'?)"
    )
    assert "sed: no such option (did you mean 'seed'?)" in str(error.value)


def test_match_without_counts_is_refused():
    with pytest.raises(OptionError, match="the scheduler 'match' needs them, a pair"):
        make_scheduler("match", old=3, new=3, batch_size=2)


@settings(max_examples=400, derandomize=True)
@given(data=st.data())
def test_no_value_of_any_option_gives_another_error_than_ours(data):
    """Numbers, strings, arrays, containers, None: accepted, or an OptionError."""
    odd = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**65), 2**65),
        st.floats(),
        st.text(max_size=3),
        st.lists(st.integers() | st.floats() | st.text(max_size=2), max_size=5),
        st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        st.sampled_from(
            [np.int64(3), np.float32(0.2), np.array([1, 2]), object(), b"x", Fraction(1, 3), 1j, "srt", ()]
        ),
    )
    name = data.draw(st.sampled_from([*(n for n in RULES if n not in ("old", "new")), "name"]))
    value = data.draw(odd)
    settings_ = {"old": 3, "new": 3, "batch_size": 2} | ({} if name == "name" else {name: value})
    try:
        s = make_scheduler(value if name == "name" else "srt", **settings_)
    except OptionError as error:
        assert error.faults
    else:
        draw = s.draw()
        s.review(draw.ids, np.ones(draw.ids.size))


@pytest.mark.parametrize(
    ("fraction", "slots"),
    [(0.29, 29), (0.57, 57), (0.07, 7), (np.float32(0.29), 29), (1, 100), (0, 0), (0.999, 99), (1e-9, 0)],
)
def test_the_old_fraction_is_the_decimal_that_was_written(fraction, slots):
    """⌊0.29·100⌋ is 29, though the float 0.29 lies below it."""
    draw = make_scheduler("srt", old=500, new=500, batch_size=100, old_fraction=fraction, stagger=1).draw()
    assert draw.n_old == slots


def test_a_state_dict_of_other_settings_is_refused():
    """Both values are told, and nothing is taken over."""
    saved = make_scheduler("srt", old=4, new=4, batch_size=2, seed=1).state_dict()
    s = make_scheduler("uniform", old=4, new=5, batch_size=3, seed=1)
    with pytest.raises(OptionError) as error:
        s.load_state_dict(saved)
    assert "scheduler is 'uniform' here and 'srt' in the saved state" in str(error.value)
    assert "batch_size is 3 here and 2 in the saved state" in str(error.value)
    assert "(old, new) is (4, 5) here and (4, 4) in the saved state" in str(error.value)
    for foreign in ({}, {"scheduler": {}, "n_old": 3, "columns": {}}, None, 3, {**saved, "columns": [1]}):
        with pytest.raises(StateError, match="no state_dict of a scheduler"):
            s.load_state_dict(foreign)


def test_a_state_dict_that_breaks_the_rules_is_refused():
    s = make_scheduler("srt", old=4, new=4, batch_size=2)
    saved = s.state_dict()
    saved["columns"]["interval"][2] = -5
    with pytest.raises(StateError, match="the interval lies between"):
        s.load_state_dict(saved)
    s.check_valid()


HARMS = {
    "a column is missing": (lambda c: c.pop("ease"), "the columns ease are not of the types and sizes"),
    "a column is short": (lambda c: c.update(ease=c["ease"][:5]), "the columns ease"),
    "a column would be broadcast": (lambda c: c.update(ease=c["ease"][:1]), "the columns ease"),
    "a column would be rounded": (lambda c: c.update(ease=c["ease"] + 0.7), "the columns ease"),
    "a column would wrap": (lambda c: c.update(ease=c["ease"].astype(np.int64) + 65536), "the columns ease"),
    "there are no hashes": (lambda c: c.pop("identity"), "the columns identity"),
    "the hashes are others": (
        lambda c: c["identity"].__setitem__(0, 9),
        "the content hashes (identity) are those of other",
    ),
}


@pytest.mark.parametrize("case", HARMS)
def test_a_state_dict_that_does_not_fit_is_refused_whole(case):
    """Before anything of it is taken over: not even the clock moves."""
    hashes = np.zeros((18, 16), np.uint8)
    s = make_scheduler("srt", old=9, new=9, batch_size=6, identity=hashes)
    other = make_scheduler("srt", old=9, new=9, batch_size=6, identity=hashes)
    other.review(other.draw().ids, [9.0] * 4)
    saved, before = other.state_dict(), s.state_dict()
    change, message = HARMS[case]
    change(saved["columns"])
    with pytest.raises(OptionError) as error:
        s.load_state_dict(saved)
    assert message in str(error.value)
    after = s.state_dict()["columns"]
    assert all(np.array_equal(after[k], v, equal_nan=k == "signal") for k, v in before["columns"].items())


def test_going_back_takes_the_log_back_too(tmp_path):
    """After an older state_dict the log ends where that does."""
    with make_scheduler("srt", old=9, new=9, batch_size=6, log=tmp_path / "log") as s:
        for step in range(6):
            if step == 3:
                saved = s.state_dict()
            draw = s.draw()
            s.review(draw.ids, np.ones(draw.ids.size))
        s.load_state_dict(saved)
        assert s.log.records()["step"].max() == 2
        draw = s.draw()
        s.review(draw.ids, np.ones(draw.ids.size))
        s.log.check_valid()


def test_a_state_dict_is_a_copy():
    """Neither does the live state change it, nor does it change the live state once loaded."""
    s = make_scheduler("srt", old=9, new=9, batch_size=6)
    saved = s.state_dict()
    draw = s.draw()
    s.review(draw.ids, np.ones(draw.ids.size))
    assert saved["columns"]["visits"].sum() == 0
    s.load_state_dict(saved)
    saved["columns"]["due"][:] = 77
    assert s.state.due.max() == 4
    assert np.array_equal(s.draw().ids, draw.ids)


@pytest.mark.parametrize("ids", [[20], [-1], [0, 40], [2**62], [True, False], [1.7], "a", [None], [2**70]])
def test_suspending_who_is_not_there_is_refused(ids):
    """By number, or by what is no number at all; a mask is not taken for the ids 0 and 1."""
    s = make_scheduler("srt", old=9, new=9, batch_size=6)
    with pytest.raises(ProtocolError, match=r"is no example of this state: ids run from 0 to 17|name no examples"):
        s.state.suspend(ids)
    assert not s.state.suspended.any()


def test_a_draw_before_a_change_is_void():
    """The way out is a new draw, as the message says."""
    s, draw = drawn()
    s.state.suspend([0])
    with pytest.raises(ProtocolError, match="That draw is void: call draw\\(\\) again"):
        s.review(draw.ids, np.ones(10))
    again = s.draw()
    assert again.step == 0
    s.review(again.ids, np.ones(10))


def test_a_torch_like_tensor_that_needs_a_gradient_is_told_how():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    s, draw = drawn()
    with pytest.raises(ProtocolError, match=r"requires grad.*nll.detach\(\).float\(\).cpu\(\)"):
        s.review(draw.ids, Tensor())
    with pytest.raises(ProtocolError, match="signals that are no numbers"):
        s.review(draw.ids, np.ones(10) * 1j)


def test_priming_wrongly_is_refused():
    s, draw = drawn()
    with pytest.raises(ProtocolError, match="while step 0 is drawn"):
        s.prime([1], [1.0])
    s.review(draw.ids, np.ones(10))
    with pytest.raises(ProtocolError, match=r"ids of shape \(1,\) and signals of shape \(2,\)"):
        s.prime([1], [1.0, 2.0])
    with pytest.raises(ProtocolError, match="there are 0 to 39"):
        s.prime([40], [1.0])
