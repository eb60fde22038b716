"""The schedulers against their twin, over whole histories, and rebuilt at any moment."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import ReviewLog, ReviewState, StateError, load_scheduler, make_scheduler
from tests.review.twin import Twin

ORDERS = {
    "srt": ("uniform", "overdue", "epoch", "rounds", "intake"),
    "leitner": ("uniform", "overdue", "epoch", "rounds"),
    "uniform": ("uniform", "epoch"),
    "cpt": ("uniform", "epoch"),
    "match": ("uniform", "epoch"),
    "ppl": ("uniform",),
}
STEPS = 40


@st.composite
def worlds(draw):
    """A scheduler and its sizes, odd ones with preference."""
    name = draw(st.sampled_from(list(ORDERS)))
    sizes = st.sampled_from([0, 1, 2, 7, 30, 64, 65, 200])
    world = {
        "name": name,
        "old": draw(sizes),
        "new": draw(sizes),
        "batch_size": draw(st.sampled_from([1, 2, 5, 16, 33, 500])),
        "old_fraction": draw(st.sampled_from([0.0, 0.2, 0.29, 0.5, 1.0])),
        "seed": draw(st.sampled_from([0, 1, 2**64 - 1])),
        "stagger": draw(st.sampled_from([1, 5, 30])),
        "order": {
            "old": draw(st.sampled_from([order for order in ORDERS[name] if order != "intake"])),
            "new": draw(st.sampled_from(ORDERS[name])),
        },
        "underfull": draw(st.sampled_from(["short", "ahead"])),
        "max_interval": draw(st.sampled_from([None, 1, 9])),
    }
    if name == "match":
        most = st.integers(0, 20)
        world["batch_size"] = 40
        world["counts"] = draw(st.lists(st.tuples(most, most), min_size=STEPS, max_size=STEPS))
    return world


def twin_of(name, old, new, *, order="uniform", old_fraction=0.2, max_interval=None, **rest):
    orders = (order, order) if isinstance(order, str) else (order["old"], order["new"])
    return Twin(
        name,
        old,
        new,
        order=orders,
        old_fraction=Fraction(str(old_fraction)),
        max_interval=max_interval or 2**30,
        **rest,
    )


def signals(rng, size):
    """Signals of every quality, now and then a number that is none."""
    nll = rng.choice([1.0, 4.0, 5.1, 6.3, 7.5, 9.0], size=size, p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]) + rng.random(size)
    nll[rng.random(size) < 0.02] = np.nan
    return nll


@settings(max_examples=150, deadline=None, derandomize=True)
@given(world=worlds(), chance=st.integers(0, 2**32))
def test_every_draw_and_state_agrees_with_the_twin(world, chance):
    """Due sets, batch composition and states agree at every step, and a scheduler rebuilt at any step goes on alike."""
    agree(world, chance)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, derandomize=False)
@given(world=worlds(), chance=st.integers(0, 2**32))
def test_thousands_of_worlds_agree_with_the_twin(world, chance):
    """The same over 200,000 steps, other ones each night."""
    agree(world, chance)


def agree(world, chance):
    rng = np.random.default_rng(chance)
    real, twin = make_scheduler(**world), twin_of(**world)
    for _ in range(STEPS):
        real.check_valid()
        if rng.random() < 0.15 and real.state.n:
            set_aside(rng, real, twin)
        saved = real.state_dict()
        draw = real.draw()
        twin.check(draw)
        if rng.random() < 0.25:
            again = make_scheduler(**world)
            again.load_state_dict(saved)
            same = again.draw()
            assert np.array_equal(same.ids, draw.ids)
            assert (same.step, same.n_old, same.due) == (draw.step, draw.n_old, draw.due)
        nll = signals(rng, draw.ids.size)
        order = rng.permutation(draw.ids.size)
        real.review(draw.ids[order], nll[order])
        twin.review(draw.ids.tolist(), nll)
        twin.check_state(real.state)


def set_aside(rng, real, twin):
    """Suspend some examples and revive others."""
    ids = rng.integers(0, real.state.n, 3)
    value = bool(rng.random() < 0.6)
    (real.state.suspend if value else real.state.revive)(ids)
    for i in ids.tolist():
        twin.rows[i]["off"] = value


@pytest.mark.parametrize("name", [n for n in ORDERS if n != "match"])
@pytest.mark.parametrize("underfull", ["short", "ahead"])
def test_a_long_run_agrees_with_the_twin(name, underfull):
    """Over 1,500 steps of a corpus that comes due again and again, nothing drifts apart."""
    world = {
        "name": name,
        "old": 90,
        "new": 60,
        "batch_size": 12,
        "old_fraction": 0.29,
        "seed": 3,
        "underfull": underfull,
    }
    rng = np.random.default_rng(7)
    real, twin = make_scheduler(**world), twin_of(**world)
    for step in range(1500):
        draw = real.draw()
        twin.check(draw)
        nll = signals(rng, draw.ids.size)
        real.review(draw.ids, nll)
        twin.review(draw.ids.tolist(), nll)
        if step % 50 == 0:
            twin.check_state(real.state)
            real.check_valid()


@pytest.mark.parametrize("name", [n for n in ORDERS if n != "match"])
def test_nobody_is_starved(name):
    """Every example that a scheduler draws from is drawn, long before the end of a long run."""
    s = make_scheduler(name, old=400, new=300, batch_size=32, old_fraction=0.3, underfull="ahead")
    rng = np.random.default_rng(0)
    for _ in range(600):
        draw = s.draw()
        s.review(draw.ids, rng.gamma(4, 1.2, draw.ids.size))
    visited = s.state.visits > 0
    assert visited[400:].all()
    assert visited[:400].all() if name != "cpt" else not visited[:400].any()


def test_the_walk_of_an_example_that_is_always_recalled():
    """Alone in its pool, with a perfect signal, an example is seen at 0, 1, 7, 24, 74, …: intervals 1, 6, 17, 50."""
    s = make_scheduler("srt", old=0, new=1, batch_size=1)
    seen = []
    for _ in range(300):
        draw = s.draw()
        if draw.ids.size:
            seen.append(draw.step)
        s.review(draw.ids, np.zeros(draw.ids.size))
    assert seen == [0, 1, 7, 24, 74, 224]


def test_released_slots():
    """Old keeps to its ⌊ρB⌋ while new can fill the rest, gives up what it cannot fill, and takes what new leaves."""
    full = make_scheduler("srt", old=1000, new=1000, batch_size=100, old_fraction=0.29, stagger=1).draw()
    assert (full.n_old, full.ids.size) == (29, 100)
    few_old = make_scheduler("srt", old=10, new=1000, batch_size=100, old_fraction=0.29, stagger=1).draw()
    assert (few_old.n_old, few_old.ids.size) == (10, 100)
    few_new = make_scheduler("srt", old=1000, new=10, batch_size=100, old_fraction=0.29, stagger=1).draw()
    assert (few_new.n_old, few_new.ids.size) == (90, 100)


def test_epochs_catch_up_with_those_who_were_visited_least():
    """Examples that joined later, never seen, come before anyone returns, and each of them once."""
    s = make_scheduler("uniform", old=0, new=10, batch_size=10, order="epoch")
    for _ in range(5):
        s.review(s.draw().ids, np.ones(10))
    s.state.grow(new=100)
    drawn = []
    for _ in range(10):
        draw = s.draw()
        drawn += draw.ids.tolist()
        s.review(draw.ids, np.ones(10))
        s.check_valid()
    assert sorted(drawn) == list(range(10, 110))


def test_an_empty_draw_is_reviewed_and_the_clock_moves():
    """When nothing is due the batch is empty, its review is legal, and time goes on."""
    s = make_scheduler("srt", old=0, new=0, batch_size=4)
    for step in range(3):
        draw = s.draw()
        assert (draw.step, draw.ids.size, draw.ids.dtype) == (step, 0, np.int64)
        review = s.review([], [])
        assert (review.lapses, review.not_finite) == (0, 0)
    assert s.state.step == 3


def test_signals_that_are_no_numbers_count_as_not_recalled(caplog):
    """NaN and ±inf are quality 0, counted in the review and told in the log."""
    s = make_scheduler("srt", old=0, new=4, batch_size=4, stagger=1)
    review = s.review(s.draw().ids, [np.nan, np.inf, -np.inf, 1.0])
    assert review.quality.tolist() == [0, 0, 0, 5]
    assert (review.lapses, review.not_finite) == (3, 3)
    assert "step 0: 3 of 4 signals were not finite" in caplog.text
    assert s.state.signal.tolist() == [np.inf, np.inf, np.inf, 1.0]


def test_the_review_answers_in_the_order_of_the_ids_it_was_given():
    s = make_scheduler("srt", old=0, new=3, batch_size=3, stagger=1)
    s.draw()
    assert s.review([2, 0, 1], [9.0, 1.0, 4.5]).quality.tolist() == [0, 5, 4]
    assert s.state.signal.tolist() == [1.0, 4.5, 9.0]


def test_ppl_asks_the_unheard_first_and_a_scoring_pass_counts_as_hearing():
    """Without signals everyone comes first in turn; after `prime` the highest signals do."""
    s = make_scheduler("ppl", old=0, new=10, batch_size=5)
    first = s.draw().ids
    s.review(first, np.full(5, 9.0))
    assert set(s.draw().ids) == set(range(10)) - set(first)
    primed = make_scheduler("ppl", old=0, new=10, batch_size=3)
    primed.prime(np.arange(10), np.arange(10.0))
    assert primed.draw().ids.tolist() == [7, 8, 9]
    assert primed.state.visits.sum() == 0


def test_match_repeats_the_counts_of_a_log(tmp_path):
    """An unscheduled draw with another run's realised old and new counts, step by step."""
    rng = np.random.default_rng(0)
    with make_scheduler("srt", old=40, new=20, batch_size=16, log=tmp_path / "log") as srt:
        sizes = []
        for _ in range(60):
            draw = srt.draw()
            sizes.append((draw.n_old, draw.ids.size - draw.n_old))
            srt.review(draw.ids, rng.gamma(3, 1, draw.ids.size))
    assert (0, 0) in sizes, "the test is about steps in which nothing was drawn, too"
    match = make_scheduler("match", old=40, new=20, batch_size=16, counts=ReviewLog(tmp_path / "log"))
    for n_old, n_new in sizes:
        draw = match.draw()
        assert (draw.n_old, draw.ids.size - draw.n_old) == (n_old, n_new)
        match.review(draw.ids, np.ones(draw.ids.size))
    with pytest.raises(RuntimeError, match="counts for the steps 0 to 59, and step 60 was asked for"):
        match.draw()


@pytest.mark.parametrize("name", [n for n in ORDERS if n != "match"])
def test_a_new_process_draws_the_same(name, tmp_path):
    """Saved at random steps and loaded in another process, a scheduler makes the very draws that this one makes."""
    rng = np.random.default_rng(5)
    script = (
        "import sys; from srt_peft import load_scheduler\n"
        "for folder in sys.argv[1:]:\n"
        "    s = load_scheduler(folder)\n"
        "    for _ in range(3):\n"
        "        d = s.draw(); print(d.step, d.n_old, *d.ids); s.review(d.ids, d.ids % 11)\n"
    )
    s = make_scheduler(name, old=300, new=200, batch_size=20, seed=9, underfull="ahead")
    expected, folders = [], []
    for step in range(120):
        if rng.random() < 0.08:
            folders.append(str(tmp_path / str(step)))
            s.save(folders[-1])
            expected += onward(load_scheduler(folders[-1]), 3)
        draw = s.draw()
        s.review(draw.ids, signals(rng, draw.ids.size))
    out = subprocess.run([sys.executable, "-c", script, *folders], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == expected
    assert len(folders) >= 5


def onward(s, steps):
    lines = []
    for _ in range(steps):
        d = s.draw()
        lines.append(" ".join(map(str, [d.step, d.n_old, *d.ids])))
        s.review(d.ids, d.ids % 11)
    return lines


def test_the_draws_of_a_seed_never_change():
    """Pinned: these very ids belong to this seed, on every machine and in every release."""
    s = make_scheduler("srt", old=1000, new=1000, batch_size=10, seed=1)
    drawn = []
    for _ in range(3):
        draw = s.draw()
        drawn.append(draw.ids.tolist())
        s.review(draw.ids, draw.ids % 10)
    assert drawn == PINNED


# --- what is interrupted or mishandled --------------------------------------------------------------------------


class Interrupting:
    """A column in which a write is interrupted, as by Ctrl-C."""

    def __init__(self, column):
        self.column = column

    def __getitem__(self, rows):
        return self.column[rows]

    def __setitem__(self, rows, values):
        raise KeyboardInterrupt


def test_a_review_that_is_interrupted_is_refused_and_not_applied_twice(tmp_path):
    """Half-applied, the state is neither gone on with, nor saved, nor read as whole; a state_dict mends it."""
    s = make_scheduler("srt", old=20, new=20, batch_size=8, folder=tmp_path / "live")
    saved = s.state_dict()
    draw = s.draw()
    column = s.state.columns["visits"]
    s.state.columns["visits"] = Interrupting(column)
    with pytest.raises(KeyboardInterrupt):
        s.review(draw.ids, np.ones(draw.ids.size))
    s.state.columns["visits"] = column
    for attempt in (s.draw, s.state_dict, lambda: s.review(draw.ids, np.ones(8)), lambda: s.save(tmp_path / "snap")):
        with pytest.raises(StateError, match="A review of this state was interrupted"):
            attempt()
    s.load_state_dict(saved)
    assert np.array_equal(s.draw().ids, draw.ids)
    s.state.columns["clock"][0] = -1
    s.close()
    with pytest.raises(StateError, match="closed in the middle of a review"):
        ReviewState.open(tmp_path / "live")


@pytest.mark.parametrize("method", ["count", "take"])
def test_a_draw_that_is_interrupted_changes_nothing(method, monkeypatch):
    """The next draw is the one that it would have been."""
    s = make_scheduler("srt", old=200, new=200, batch_size=16)
    for _ in range(8):
        s.review(s.draw().ids, np.ones(16))
    again = make_scheduler("srt", old=200, new=200, batch_size=16)
    again.load_state_dict(s.state_dict())
    new = s._agendas[1]
    real = getattr(new, method)

    def interrupt(*args):
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(new, method, interrupt)
    with pytest.raises(KeyboardInterrupt):
        s.draw()
    assert np.array_equal(s.draw().ids, again.draw().ids)


def test_the_ids_of_a_draw_cannot_be_changed():
    """A shuffle in place would tear ids and signals apart; it is refused where it happens."""
    draw = make_scheduler("srt", old=20, new=20, batch_size=8).draw()
    with pytest.raises(ValueError, match="read-only"):
        np.random.default_rng(0).shuffle(draw.ids)


def test_a_scheduler_is_not_copied():
    """A copy in a worker would draw on its own."""
    import copy
    import pickle

    s = make_scheduler("srt", old=20, new=20, batch_size=8)
    for attempt in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(RuntimeError, match=r"is not copied or pickled: .* num_workers=0"):
            attempt(s)


def test_a_closed_scheduler_says_so(tmp_path):
    s = make_scheduler("srt", old=20, new=20, batch_size=8, folder=tmp_path / "live", log=tmp_path / "log")
    draw = s.draw()
    s.close()
    for attempt in (s.draw, lambda: s.review(draw.ids, np.ones(draw.ids.size)), lambda: s.prime([1], [1.0])):
        with pytest.raises(StateError, match="open to read only, or closed"):
            attempt()
    assert len(ReviewLog(tmp_path / "log")) == 0


def test_a_folder_that_is_gone_does_not_disturb_the_end(tmp_path):
    """As under a TemporaryDirectory that was removed first."""
    import shutil

    s = make_scheduler("srt", old=20, new=20, batch_size=8, folder=tmp_path / "live")
    shutil.rmtree(tmp_path / "live")
    s.close()


def test_loading_over_the_snapshot_itself_is_refused(tmp_path):
    s = make_scheduler("srt", old=20, new=20, batch_size=8)
    s.save(tmp_path / "snap")
    with pytest.raises(StateError, match="is the snapshot itself, which stays as it is"):
        load_scheduler(tmp_path / "snap", folder=tmp_path / "x" / ".." / "snap")
    load_scheduler(tmp_path / "snap")


def test_a_log_in_use_leaves_the_live_state_alone(tmp_path):
    """Nothing is replaced before it is known that the log can be written."""
    from srt_peft import LockedError

    with make_scheduler("srt", old=20, new=20, batch_size=8, folder=tmp_path / "live") as s:
        s.save(tmp_path / "snap")
        s.review(s.draw().ids, np.ones(8))
    with ReviewLog(tmp_path / "log", "a"), pytest.raises(LockedError):
        load_scheduler(tmp_path / "snap", folder=tmp_path / "live", log=tmp_path / "log")
    assert ReviewState.open(tmp_path / "live").step == 1


def test_a_snapshot_that_was_opened_to_write_keeps_its_scheduler(tmp_path):
    make_scheduler("srt", old=20, new=20, batch_size=8, seed=4).save(tmp_path / "snap")
    with ReviewState.open(tmp_path / "snap", "r+") as state:
        state.suspend([1])
    s = load_scheduler(tmp_path / "snap")
    assert (s.name, s.options.seed, s.state.suspended[1]) == ("srt", 4, True)


def test_numbers_of_numpy_are_numbers(tmp_path):
    """Sizes and options may come from anywhere."""
    sizes = {"old": np.int64(200), "new": np.uint8(100), "batch_size": np.int32(8)}
    with make_scheduler("srt", **sizes, old_fraction=np.float32(0.25), folder=tmp_path / "live") as s:
        s.state.grow(old=np.int16(3), new=np.uint8(250))
        s.save(tmp_path / "snap")
        assert (s.state.n_old, s.state.n_new) == (203, 350)
    assert load_scheduler(tmp_path / "snap").options.old_slots == 2
    s = make_scheduler("srt", old=1, new=1, batch_size=1, thresholds=np.array([1.0, 2, 3, 4, 5]))
    assert s.options.thresholds == (1.0, 2.0, 3.0, 4.0, 5.0)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "srt", "order": {"old": "overdue"}, "thresholds": [1, 2, 3, 4, 5.5], "max_interval": 9, "alpha": 0.5},
        {"name": "match", "counts": [(1, 2), (0, 0)], "order": {"new": "epoch"}},
        {"name": "srt", "recall": "confidence", "old_fraction": 0.29, "seed": 2**64 - 1},
    ],
)
def test_options_come_back_from_disk_as_they_were(options, tmp_path):
    """Through JSON and back, and through a state_dict."""
    s = make_scheduler(**options, old=20, new=20, batch_size=8)
    s.save(tmp_path / "snap")
    again = load_scheduler(tmp_path / "snap")
    assert again.options == s.options
    again.load_state_dict(s.state_dict())


PINNED = [
    [745, 900, 1080, 1260, 1265, 1290, 1330, 1400, 1715, 1950],
    [75, 641, 1046, 1310, 1420, 1591, 1615, 1645, 1730, 1901],
    [36, 356, 1056, 1095, 1252, 1337, 1421, 1575, 1660, 1816],
]
