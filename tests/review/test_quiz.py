"""The quiz and the decks around the edges of a run: killed, saved, logged, primed, and asked wrongly."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from srt_peft import OptionError, ProtocolError, ReviewLog, ReviewState, load_scheduler, make_scheduler
from srt_peft.review import files

ROOT = Path(__file__).parents[2]
KILLED = """
import sys
from tests.review.test_quiz import begun, onward
from srt_peft import load_scheduler
folder, snapshot, until = sys.argv[1:]
if snapshot == "-":
    s = begun(folder=folder + "/live", log=folder + "/log")
else:
    s = load_scheduler(snapshot, folder=folder + "/live", log=folder + "/log")
for step in onward(s, int(until)):
    if step % 4 == 0:
        s.save(f"{folder}/snapshot-{step}")
    print(step, flush=True)
s.close()
"""


def begun(**where):
    """Decks, a quiz every second step whose answers wait, first tokens only, and a base that was asked."""
    deck = np.arange(300) % 7
    s = make_scheduler(
        "srt", old=200, new=100, batch_size=20, old_fraction=0.5, seed=5, order="epoch", underfull="ahead",
        recall="relative", reference="base", decks="auto", deck=deck, quiz=3, quiz_every=2, quiz_tokens=8, **where,
    )  # fmt: skip
    s.prime(range(200), np.full(200, 2.0), prefix=np.full(200, 3.0))
    s.state.supersede(range(0, 200, 9))
    return s


def onward(s, until):
    """Steps whose signals depend on the example and the step alone."""
    while s.state.step < until:
        step = s.state.step
        asked = s.quiz()
        if asked is not None:
            s.answer(asked, 3 + (asked * 7919 + step * 104729) % 997 / 997)
        draw = s.draw()
        s.review(draw.ids, 2 + (draw.ids * 7919 + step * 104729) % 997 / 997)
        yield step + 1


def test_killed_anywhere_it_goes_on_as_if_it_never_was(tmp_path):
    """kill -9 three times, each time resumed from the newest snapshot: the same columns, and the same log."""
    whole = begun(log=tmp_path / "whole")
    assert list(onward(whole, 60))[-1] == 60
    (tmp_path / "killed").mkdir()
    snapshot = "-"
    for ends_after in (11, 17, 9, None):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, tmp_path / "killed", snapshot, "60"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as process:
            for count, _ in enumerate(process.stdout, start=1):
                if count == ends_after:
                    os.kill(process.pid, signal.SIGKILL)
                    break
        snapshots = [p for p in (tmp_path / "killed").glob("snapshot-*") if (p / "state.json").exists()]
        snapshot = str(max(snapshots, key=lambda p: int(p.name.split("-")[1])))
    assert process.returncode == 0
    state = ReviewState.open(tmp_path / "killed" / "live")
    for name, column in whole.state.columns.items():
        np.testing.assert_array_equal(state.columns[name], column, name)
    assert np.array_equal(ReviewLog(tmp_path / "killed" / "log").records(), whole.log.records())


def test_saved_between_quiz_and_review_it_asks_again_and_draws_alike(tmp_path):
    """At every point of a step, with answers that wait and without."""
    s = begun()
    steps = onward(s, 40)
    for step in (4, 5, 12, 13):
        while s.state.step < step:
            next(steps)
        s.save(tmp_path / "before")
        asked = s.quiz()
        s.save(tmp_path / "asked")
        if asked is not None:
            s.answer(asked, np.full(asked.size, 3.2))
        s.save(tmp_path / "answered")
        draw = s.draw()
        s.save(tmp_path / "drawn")
        for name in ("before", "asked", "answered", "drawn"):
            again = load_scheduler(tmp_path / name)
            assert again.state.deck.tolist() == s.state.deck.tolist()
            assert asked is None if again.quiz() is None else np.array_equal(again.quiz(), asked)
            if asked is not None:
                again.answer(asked, np.full(asked.size, 3.2))
            assert np.array_equal(again.draw().ids, draw.ids)
        s.review(draw.ids, np.full(draw.ids.size, 2.1))


def quizzed(**more):
    options = {"batch_size": 10, "old_fraction": 0.5, "stagger": 1, "recall": "relative", "quiz": 2}
    return make_scheduler("srt", old=40, new=40, **options | more)


def test_who_passed_untrained_is_logged_and_not_counted_as_drawn(tmp_path):
    """The log tells them apart, and `match` of that log trains on no more than was trained on."""
    with quizzed(log=tmp_path / "log") as s:
        trained = []
        for _ in range(12):
            asked = s.quiz()
            s.answer(asked, np.where(asked % 2, 1.0, 9.0))
            draw = s.draw()
            found = s.review(draw.ids, np.full(draw.ids.size, 1.0))
            assert found.passed == np.count_nonzero(~np.isin(asked, draw.ids) & (asked % 2 == 1))
            trained.append((draw.n_old, draw.ids.size - draw.n_old))
        records = s.log.records()
        assert records["untrained"].sum() > 20
        assert s.log.counts()[1].tolist() == [list(pair) for pair in trained]
        alike = make_scheduler("match", old=40, new=40, batch_size=10, counts=s.log)
    assert alike.options.counts == tuple(trained)


def test_who_was_asked_failed_and_is_not_studied_stays_as_it_was():
    """Not a column of theirs moves; who passed moves once."""
    s = quizzed()
    s.prime(range(40), np.full(40, 2.0))
    asked = s.quiz()
    before = s.state_dict()["columns"]
    s.answer(asked, np.where(asked % 3, 4.0, 2.0))
    draw = s.draw()
    s.review(draw.ids, np.full(draw.ids.size, 2.0))
    after = s.state_dict()["columns"]
    failed = np.setdiff1d(asked[asked % 3 > 0], draw.ids)
    passed = np.setdiff1d(asked[asked % 3 == 0], draw.ids)
    assert failed.size
    assert passed.size
    for name in ("due", "interval", "signal", "ease", "repetitions", "visits", "reference"):
        assert np.array_equal(after[name][failed], before[name][failed]), name
    assert (after["visits"][passed] == 1).all()
    s.check_valid()


def test_of_first_tokens_the_best_so_far_is_learned_from_those_that_are_studied():
    """Else a text whose first tokens are hard could never pass a quiz, nor show what it has lost."""
    s = quizzed(quiz_tokens=8)
    for _ in range(30):
        asked = s.quiz()
        if asked is not None:
            s.answer(asked, np.full(asked.size, 8.0))
        draw = s.draw()
        s.review(draw.ids, np.full(draw.ids.size, 2.0))
    known = s.state.columns["prefix"][:40]
    assert (known == 8.0).all()


def test_outside_a_sample_first_tokens_are_held_against_first_tokens():
    """The base scored half of them; of the rest some have hard beginnings, and others lose what they knew."""
    s = quizzed(quiz_tokens=8, reference="base", underfull="ahead")
    known, hard, losing = np.arange(0, 40, 2), np.arange(1, 20, 2), np.arange(21, 40, 2)
    s.prime(known, np.full(20, 2.0), prefix=np.full(20, 3.0))
    first = np.full(80, 3.0)
    first[hard] = 9.0
    studied = np.zeros(80, dtype=np.int64)
    for step in range(60):
        if step == 30:
            assert (s.state.columns["prefix"][:40] == first[:40]).all(), "who was not scored has what it said at first"
            first[losing] += 1.0
        asked = s.quiz()
        if asked is not None:
            s.answer(asked, first[asked])
        draw = s.draw()
        studied[draw.ids] += step >= 30
        s.review(draw.ids, np.full(draw.ids.size, 2.0))
    assert studied[losing].mean() > 2 * studied[hard].mean()
    assert (s.state.columns["prefix"][losing] == 3.0).all()
    assert (s.state.columns["prefix"][known] == 3.0).all()


def test_quantiles_are_of_what_the_base_said():
    """A first signal is added to none of them: else thresholds would be others after a resume."""
    s = make_scheduler("srt", old=40, new=0, batch_size=8, old_fraction=1.0, recall="quantile", reference="base")
    s.prime(range(20), np.linspace(1, 3, 20))
    for _ in range(8):
        draw = s.draw()
        s.review(draw.ids, np.full(draw.ids.size, 5.0))
    assert s.state.visits[20:].any()
    assert np.isnan(s.state.reference[20:]).all()


def test_where_all_old_ones_are_set_aside_no_base_is_missed():
    """Nor once one of them is back, in the middle: its first signal is its reference."""
    s = make_scheduler("srt", old=6, new=20, batch_size=4, old_fraction=0.5, recall="relative", reference="base")
    s.state.supersede(range(6))
    s.review(s.draw().ids, np.ones(4))
    s.state.supersede(range(5))
    for _ in range(9):
        draw = s.draw()
        s.review(draw.ids, np.full(draw.ids.size, 2.5))
    assert s.state.reference[5] == 2.5


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("order", ["uniform", "overdue", "epoch"])
def test_who_comes_back_from_a_quiz_before_it_is_due_lies_where_a_rebuilt_index_has_it(order, seed):
    """Asked ahead of time, failed, and not yet due, as where a deck is asked more at one step than at the next."""
    options = {"batch_size": 10, "old_fraction": 1.0, "quiz": 4, "order": order, "underfull": "ahead", "seed": seed}
    options |= {"recall": "relative", "reference": "base", "decks": "auto", "deck": np.arange(120) % 3, "stagger": 8}
    s, again = (make_scheduler("srt", old=120, new=0, **options) for _ in range(2))
    s.prime(range(120), np.full(120, 2.0))
    for step in range(8):
        again.load_state_dict(s.state_dict())
        asked = s.quiz()
        assert np.array_equal(again.quiz(), asked)
        nll = np.where(asked % 3 == step % 3, 9.0, 2.4)
        s.answer(asked, nll)
        again.answer(asked, nll)
        draw = s.draw()
        assert np.array_equal(again.draw().ids, draw.ids)
        s.review(draw.ids, np.full(draw.ids.size, 2.0))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_answers_and_signals_come_in_any_order_and_any_float(dtype):
    """What is given as float16 is what it says: two runs that differ in order alone are one."""
    runs = []
    for seed in (0, 1):
        rng, s = np.random.default_rng(seed), quizzed(decks="auto", deck=np.arange(80) % 3)
        for step in range(15):
            asked = s.quiz()
            mixed = rng.permutation(asked)
            s.answer(mixed, (2 + (mixed * 7 + step) % 11 / 8).astype(dtype))
            mixed = rng.permutation(s.draw().ids)
            s.review(mixed, (2 + (mixed * 5 + step) % 13 / 8).astype(dtype))
        runs.append(s.state_dict()["columns"])
    for name, column in runs[0].items():
        np.testing.assert_array_equal(runs[1][name], column, name)


# --- asked wrongly ----------------------------------------------------------------------------------------------

OPTIONS = [
    ({"deck": [0] * 5}, "deck is int64 of shape (5,): expected a whole number from 0 to 65535 for each of the 6"),
    ({"deck": np.zeros((6, 1), int)}, "deck is int64 of shape (6, 1)"),
    ({"deck": np.zeros(6)}, "deck is float64 of shape (6,)"),
    ({"deck": [0, 1, 2, 3, 4, -1]}, "deck is int64 of shape (6,), from -1 to 4"),
    ({"deck": [0, 1, 2, 3, 4, 65536]}, "deck is int64 of shape (6,), from 0 to 65536"),
    ({"deck": list("abcdef")}, "deck is <U1 of shape (6,)"),
    ({"decks": "auto"}, "decks = 'auto' without deck=: expected a number an example"),
    ({"decks": "best", "deck": [0] * 6}, "decks = 'best': expected one of 'off', 'auto', 'sqrt', 'equal'"),
    ({"deck_floor": 1.1}, "deck_floor = 1.1: expected the part of the old slots"),
    ({"name": "cpt", "decks": "equal", "deck": [0] * 6}, "decks = 'equal': the scheduler 'cpt' knows none"),
    ({"name": "uniform", "quiz": 4}, "quiz = 4: the scheduler 'uniform' knows none, expected 0"),
    ({"quiz": -1}, "quiz = -1: expected how many old examples are asked for each that is studied"),
    ({"quiz": 65}, "quiz = 65"),
    ({"quiz": True}, "quiz = True"),
    ({"quiz": 2, "quiz_every": 0}, "quiz_every = 0: expected how many steps"),
    ({"quiz_tokens": 16}, "quiz_tokens = 16 without a quiz: expected quiz = 1 or more"),
    ({"quiz": 2, "quiz_tokens": 1}, "quiz_tokens = 1: expected how many tokens of each example"),
    ({"explore": 2}, "explore = 2: expected the share of the studied that is drawn evenly, from 0 to 1"),
    ({"recall": "quantile"}, "expected reference = 'base'"),
    ({"recall": "relative", "alpha": 0.5}, "with recall = 'relative' set thresholds"),
    ({"reference": "first"}, "reference = 'first': expected 'best'"),
    ({"order": "intake"}, "order = 'intake' is for first visits, and so for new: expected another for old"),
    ({"name": "uniform", "order": {"new": "intake"}}, "order = 'intake': the scheduler 'uniform' knows only"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_bad_options_are_named_with_what_was_expected(options, message):
    with pytest.raises(OptionError) as error:
        make_scheduler(**{"name": "srt", "old": 3, "new": 3, "batch_size": 2} | options)
    assert message in str(error.value)


def test_a_quiz_out_of_turn_is_refused_and_harms_nothing():
    """Each error says what to do, and the right call is still welcome."""
    s = quizzed()
    with pytest.raises(ProtocolError, match=r"answer\(\) was called, and nothing is asked"):
        s.answer([0], [1.0])
    with pytest.raises(ProtocolError, match=r"draw\(\) was called before the quiz of step 0 was answered.*s\.answer"):
        s.draw()
    asked = s.quiz()
    wrong = {"were not asked": asked + 40, "1 asked ids are missing": asked[1:], "10 asked ids are missing": asked[:0]}
    for message, ids in wrong.items():
        with pytest.raises(ProtocolError, match=message):
            s.answer(ids, np.ones(ids.size))
    with pytest.raises(ProtocolError, match=r"ids of shape \(10,\) and signals of shape \(3,\)"):
        s.answer(asked, np.ones(3))
    with pytest.raises(ProtocolError, match="nothing is drawn yet"):
        s.review(asked, np.ones(asked.size))
    s.answer(asked, np.ones(asked.size))
    with pytest.raises(ProtocolError, match="Each quiz\\(\\) is answered once"):
        s.answer(asked, np.ones(asked.size))
    draw = s.draw()
    for late in (s.quiz, s.draw):
        with pytest.raises(ProtocolError, match="was called again before step 0 was reviewed"):
            late()
    with pytest.raises(ProtocolError, match="nothing is asked"):
        s.answer(asked, np.ones(asked.size))
    s.review(draw.ids, np.ones(draw.ids.size))
    s.check_valid()


def test_a_change_between_quiz_and_answer_voids_the_quiz():
    s = quizzed()
    asked = s.quiz()
    s.state.supersede(asked[:3])
    with pytest.raises(ProtocolError, match="That quiz is void: call quiz\\(\\) again, and answer what it gives"):
        s.answer(asked, np.ones(asked.size))
    assert not set(s.quiz().tolist()) & set(asked[:3].tolist())


def test_a_base_that_was_not_asked_is_missed_before_the_first_draw_and_not_in_the_middle_of_one():
    s = quizzed(reference="base")
    for early in (s.quiz, s.draw):
        with pytest.raises(ProtocolError, match=r"no old example has a reference yet: .* prime\(ids, nll\)"):
            early()
    for wrong, message in (
        (([0, 1], [2.0]), r"ids of shape \(2,\) and signals of shape \(1,\)"),
        (([40.5], [2.0]), "ids of dtype float64"),
        (([80], [2.0]), "there are 0 to 79"),
    ):
        with pytest.raises(ProtocolError, match=message):
            s.prime(*wrong)
    for prefix in (5.0, [1.0], np.ones((40, 1))):
        with pytest.raises(ProtocolError, match=r"ids of shape \(40,\) and prefix signals of shape"):
            s.prime(range(40), np.ones(40), prefix=prefix)
    assert np.isnan(s.state.signal).all(), "a refused pass leaves nothing behind"
    s.prime(range(40), np.ones(40))
    asked = s.quiz()
    s.answer(asked, np.ones(asked.size))
    s.draw()
    with pytest.raises(ProtocolError, match="while step 0 is drawn and not yet reviewed"):
        s.prime(range(40), np.ones(40))


def test_growing_needs_decks_where_there_are_some():
    s = quizzed(decks="auto", deck=np.zeros(80, int))
    with pytest.raises(OptionError, match="deck: this state keeps decks; give them accordingly"):
        s.state.grow(new=3)
    with pytest.raises(OptionError, match=r"deck is int64 of shape \(2,\)"):
        s.state.grow(new=3, deck=[1, 2])
    s.state.grow(new=3, deck=[1, 2, 5])
    assert s.state.forgetting.size == 6
    with pytest.raises(OptionError, match="deck: this state keeps no decks"):
        quizzed().state.grow(new=3, deck=[1, 2, 5])


@pytest.mark.parametrize("more", [{"recall": "relative"}, {"quiz": 2}])
def test_options_over_a_state_without_their_columns_are_refused(more, tmp_path):
    """As when somebody edits state.json: told, and not found out in the middle of a run."""
    s = make_scheduler("srt", old=9, new=9, batch_size=4)
    s.save(tmp_path / "s")
    rewritten(tmp_path / "s", lambda said: said["scheduler"]["options"].update(more))
    with pytest.raises(OptionError, match="these options need reference, which this state was made without"):
        load_scheduler(tmp_path / "s")


def rewritten(folder, change):
    """state.json, changed, with a check of its own that is right."""
    said = json.loads((folder / "state.json").read_text())
    said.pop("check")
    change(said)
    files.write_manifest(folder, said)


def test_a_state_from_before_there_were_decks_loads(tmp_path):
    """Written without extras and without the options that came with them; the version is still 1."""
    s = make_scheduler("srt", old=30, new=30, batch_size=8, seed=3)
    for _ in range(5):
        s.review(s.draw().ids, np.ones(8))
    s.save(tmp_path / "s")
    later = {"reference", "decks", "deck_floor", "quiz", "quiz_every", "quiz_tokens", "explore"}

    def older(said):
        del said["extras"]
        for name in later:
            del said["scheduler"]["options"][name]

    rewritten(tmp_path / "s", older)
    assert files.VERSION == 1
    again = load_scheduler(tmp_path / "s")
    assert again.options == s.options
    saved, draw = s.state_dict(), s.draw()
    assert np.array_equal(again.draw().ids, draw.ids)
    for name in later:
        del saved["scheduler"]["options"][name]
    again.load_state_dict(saved)
    assert np.array_equal(again.draw().ids, draw.ids)
