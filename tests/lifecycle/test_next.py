"""Update after update: what one leaves, the next one has."""

import json
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import transformers

from srt_peft import OptionError, ReviewState
from srt_peft.data import Pool
from srt_peft.data.history import open_history
from srt_peft.lifecycle import inspect
from srt_peft.lifecycle.choosing import by_match
from srt_peft.lifecycle.following import follow
from srt_peft.lifecycle.forget import forget
from srt_peft.lifecycle.holders import look
from srt_peft.review import ReviewLog
from srt_peft.training import checkpoint
from srt_peft.training.loop import train
from srt_peft.training.recipe import load_recipe
from tests.data.helpers import prose
from tests.lifecycle.naive import Known, check, replay
from tests.training.test_loop import metrics, recipe, world  # noqa: F401 - a fixture

STEPS = 4
SETTINGS = (
    "training.steps=4",
    "training.batch_size=10",
    "data.holdout=0",
    "evaluation.every=null",
    "checkpoints.every=2",
)


def lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def texts_of(run):
    """The text of each example of a run, by its id."""
    pools = [Pool.open(run / "pools" / name / "train") for name in ("old", "new")]
    return [pool.text(i) for pool in pools for i in range(len(pool))]


def last(run):
    return checkpoint.newest(run)[0]


def week(number, count=12):
    return [prose(1, seed=7000 + 100 * number + i) for i in range(count)]


@pytest.fixture(scope="module")
def first(world):  # noqa: F811
    """The first update."""
    run = world / "weeks-01"
    old, new = lines(world / "old.jsonl", week(0, 30)), lines(world / "w1.jsonl", week(1))
    assert train(recipe(world, run, *SETTINGS, f"data.old={old}", f"data.new={new}")) == 0
    return run


@pytest.mark.parametrize("preset", ["paper", "auto", "auto, with a quiz"])
def test_ten_updates_in_a_row_are_what_a_naive_replay_of_their_logs_says(world, tmp_path, preset):  # noqa: F811
    """Identities, states, clock, log and exposures; each week's file holds some of what was there before."""
    quiz = {"auto, with a quiz": ("review.retention=high",)}.get(preset, ())
    settings = (*SETTINGS, f"review.preset={preset.partition(',')[0]}", *quiz)
    rng, corpus, known, reviewed = random.Random(0), week(0, 30), {}, 0
    old = lines(tmp_path / "old.jsonl", corpus)
    run = tmp_path / "week-1"
    for number in range(1, 11):
        fresh = week(number)
        file = [*fresh, *rng.sample(corpus, 5), fresh[0]]
        rng.shuffle(file)
        new = lines(tmp_path / f"w{number}.jsonl", file if number > 1 else fresh)
        if number == 1:
            asked = recipe(world, run, *settings, f"data.old={old}", f"data.new={new}")
        else:
            asked, made = follow(run, [new])
            run = run.with_name(f"week-{number}")
            assert asked.output == str(run)
            assert (made.kept, made.let_go, made.fresh, made.lost) == (len(corpus), 0, 0, 0)
            assert (made.updates, made.step) == (number - 1, STEPS * (number - 1))
        assert train(asked) == 0
        texts = texts_of(run)
        assert sorted(texts) == sorted([*corpus, *fresh]), "each is there once, and nothing else is"
        assert set(texts[: len(corpus)]) == set(corpus), "what was there before is old"
        reviewed += replay(known, run, texts, STEPS * (number - 1))
        check(known, last(run), texts)
        inspected(run, known, texts)
        corpus = [*corpus, *fresh]
        state = ReviewState.open(last(run) / "srt_state")
        assert state.step == STEPS * number
        assert state.visits.sum() == sum(one.visits for one in known.values())
        told = [line for line in metrics(run) if "loss" in line]
        assert [line["step"] for line in told] == list(range(STEPS * (number - 1), STEPS * number))
        assert [line["learning_rate"] for line in told] == pytest.approx([0, 0.005, 0.01, 0.005]), "it begins anew"
    asked, _ = follow(run, [lines(tmp_path / "w11.jsonl", week(11))])
    past = open_history(tmp_path / "week-11/history")
    with ReviewLog(past.folder / "log") as log:
        records = log.records()
    assert records.size == reviewed
    texts = [past.train.text(i) for i in range(len(past.train))]
    for i, text in enumerate(texts):
        mine = records[records["id"] == i]
        assert list(zip(mine["step"], mine["quality"], strict=True)) == (known[text].reviews if text in known else [])


def inspected(run, known, texts):
    """`srt-peft inspect` agrees: the figures, and an example's whole history over all updates."""
    seen = inspect.look(run)
    figures = inspect.facts(seen)
    seen_before = [known.get(text, Known()) for text in texts]
    assert sum(pool["never_seen"] for pool in figures["pools"].values()) == sum(not one.visits for one in seen_before)
    assert sum(pool["reviews"] for pool in figures["pools"].values()) == sum(one.visits for one in seen_before)
    for i in (0, len(texts) // 2, len(texts) - 1):
        told = inspect.history(seen, i)
        assert told["whole"]
        assert [(one["step"], one["quality"]) for one in told["reviews"]] == seen_before[i].reviews


@pytest.mark.slow
def test_it_is_merged_first_where_the_recipe_says_so(first, tmp_path):
    """From the command line: the next update has a base of its own, and a new adapter; called again, it is redone."""
    out, new = tmp_path / "merged", lines(tmp_path / "w2.jsonl", week(2))
    call = [sys.executable, "-m", "srt_peft", "next", str(first), "--new", new, "--out", str(out), "next.adapter=merge"]
    for more in (["--prepare"], []):
        done = subprocess.run([*call, *more], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "Update 2 begins at step 4: 42 examples of the updates before are old now" in done.stderr
    asked = load_recipe(out / "recipe.yaml")
    assert (asked.model.base, asked.model.adapter) == (str(out / "base"), None)
    transformers.AutoModelForCausalLM.from_pretrained(out / "base")
    assert checkpoint.step_of(last(out)) == 2 * STEPS


def test_a_base_that_was_prepared_and_is_not_begun_from_is_not_left_there(first, tmp_path):
    out, new = tmp_path / "run", [lines(tmp_path / "w2.jsonl", week(2))]
    follow(first, new, out=out, overrides=["next.adapter=merge"], merge=lambda _, to: to.mkdir())
    assert (out / "base").is_dir()
    follow(first, new, out=out)
    assert not (out / "base").exists()


def test_a_resumed_update_is_the_one_that_was_not_stopped(first, tmp_path):
    """The same draws, state and adapter bytes."""
    new = lines(tmp_path / "w2.jsonl", week(2))
    found = []
    for name, stop in (("whole", False), ("stopped", True)):
        asked, _ = follow(first, [new], out=tmp_path / name)
        assert train(asked) == 0
        if stop:
            shutil.rmtree(last(tmp_path / name))
            assert checkpoint.step_of(last(tmp_path / name)) == STEPS + 2
            assert train(asked, resume=True) == 0
        found.append([(last(tmp_path / name) / part).read_bytes() for part in
                      ("adapter_model.safetensors", "srt_state/columns-0.safetensors")])  # fmt: skip
    assert found[0] == found[1]


def test_a_resume_leaves_to_the_preset_what_the_run_had_left_to_it(first, tmp_path):
    """By the recipe.yaml of the run, which has all that was decided: the update after it decides anew all the same."""
    asked, _ = follow(first, [lines(tmp_path / "w2.jsonl", week(2))], out=tmp_path / "w2",
                      overrides=["review.retention=high", "review.recall=relative"])  # fmt: skip
    assert train(asked) == 0
    shutil.rmtree(last(tmp_path / "w2"))
    assert train(load_recipe(tmp_path / "w2/recipe.yaml"), resume=True) == 0
    new, lower = lines(tmp_path / "w3.jsonl", week(3)), ["review.retention=normal"]
    review = follow(tmp_path / "w2", [new], out=tmp_path / "w3", overrides=lower)[0].review
    assert (review.old.order, review.old.quiz, review.decks, review.reference) == (None, None, None, None)
    assert review.recall == "relative", "which the recipe says"


def test_decks_may_be_asked_for_where_all_text_is_of_one_source(world, tmp_path):  # noqa: F811
    """It is so in some week or other; that was an error of the scheduler's."""
    one = "[{{path: {}, source: all}}]".format
    texts = {name: one(lines(tmp_path / f"{name}.jsonl", week(i, 30))) for i, name in enumerate(("old", "new"))}
    more = [f"data.{name}={text}" for name, text in texts.items()]
    assert train(recipe(world, tmp_path / "w1", *SETTINGS, *more, "review.decks=auto")) == 0
    assert train(follow(tmp_path / "w1", [lines(tmp_path / "w2.jsonl", week(2))])[0]) == 0


def test_a_run_that_was_moved_goes_on_with_its_history(first, tmp_path):
    """Resumed where it lies now, and followed: what was let go is still known."""
    new = lines(tmp_path / "w2.jsonl", week(2))
    asked, _ = follow(first, [new], out=tmp_path / "before", overrides=["next.keep=10"])
    assert train(asked) == 0
    shutil.rmtree(last(tmp_path / "before"))
    (tmp_path / "before").rename(tmp_path / "moved")
    call = [sys.executable, "-m", "srt_peft", "train", str(tmp_path / "moved/recipe.yaml"), "--resume"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, made = follow(tmp_path / "moved", [lines(tmp_path / "w3.jsonl", [*week(3), *week(1)])], out=tmp_path / "next")
    assert (made.updates, made.kept) == (2, 10)
    past = open_history(tmp_path / "next/history")
    assert len(past.let_go) == 32 + 12
    with ReviewLog(past.folder / "log") as log:
        assert log.records()["step"].min() < STEPS


def test_the_adapter_goes_on(first, tmp_path):
    asked, _ = follow(first, [lines(tmp_path / "w2.jsonl", week(2))], out=tmp_path / "run")
    assert asked.model.adapter == str(last(first))


@pytest.mark.parametrize(("keep", "kept"), [("all", 42), (10, 10), ("unmastered", None)])
def test_what_is_kept_keeps_its_state_and_what_is_let_go_is_not_new_again(first, tmp_path, keep, kept):
    """A reservoir is the same choice whoever makes it; the mastered are those of a long interval."""
    before = ReviewState.open(last(first) / "srt_state")
    texts = texts_of(first)
    mastered = (before.visits > 0) & (before.interval > 5)
    everything = lines(tmp_path / "w2.jsonl", [*week(2), *week(1), *week(0, 30)])
    asked, made = follow(first, [everything], out=tmp_path / "run", overrides=[f"next.keep={keep}", "next.horizon=5"])
    if keep == "unmastered":
        kept = int((~mastered).sum())
        assert 0 < kept < before.n
    assert (made.kept, made.let_go) == (kept, before.n - kept)
    assert train(asked) == 0
    now = texts_of(tmp_path / "run")
    assert sorted(now[kept:]) == sorted(week(2)), "what is let go is not new"
    past = open_history(tmp_path / "run/history").state([])
    for i, text in enumerate(now[:kept]):
        j = texts.index(text)
        assert not (keep == "unmastered" and mastered[j])
        for name in ("ease", "repetitions", "interval", "due", "visits"):
            assert getattr(past, name)[i] == getattr(before, name)[j]


def test_reservoirs_agree(first, tmp_path):
    """One of ten is the lower part of one of twenty."""
    found = []
    for n in (10, 20):
        follow(first, [lines(tmp_path / "w.jsonl", week(2))], out=tmp_path / f"r{n}", overrides=[f"next.keep={n}"])
        pool = open_history(tmp_path / f"r{n}/history").train
        found.append({row.tobytes() for row in pool.identity})
    assert found[0] < found[1]


def test_a_promoted_example_is_measured_against_what_it_was_known_by_at_the_end(first, tmp_path):
    """Against the base, which had not learned it, its forgetting would be invisible."""
    follow(first, [lines(tmp_path / "w.jsonl", week(2))], out=tmp_path / "run")
    left, past = ReviewState.open(last(first) / "srt_state"), open_history(tmp_path / "run/history").state([])
    seen = left.visits[left.n_old :] > 0
    assert seen.any()
    assert np.all(past.reference[left.n_old :][seen] <= left.signal[left.n_old :][seen])
    assert np.isnan(past.reference[left.n_old :][~seen]).all()


def test_more_old_text_joins_as_never_seen(first, tmp_path):
    more = lines(tmp_path / "more.jsonl", [*week(50), *week(0, 30)])
    asked, made = follow(first, [lines(tmp_path / "w.jsonl", week(2))], out=tmp_path / "run", old=[more])
    assert (made.kept, made.fresh) == (42, 12)
    assert train(asked) == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"run": "nowhere"}, "holds no run: expected a folder that `srt-peft train` has written"),
        ({"out": "first"}, "already: expected a folder that is not there yet, or is empty"),
        ({"new": "absent.jsonl"}, "absent.jsonl does not exist"),
        ({"overrides": ["next.adapter=melt"]}, "next.adapter = 'melt': expected one of 'continue', 'merge', 'stack'"),
        ({"overrides": ["next.keep=0"]}, "next.keep = 0: expected 'all', 'unmastered', or how many"),
        ({"new": "seen"}, "examples of seen.jsonl were there before: bring text that is new"),
        ({"new": "seen", "overrides": ["next.adapter=merge"]}, "were there before"),  # and nothing was merged first
    ],
)
def test_what_cannot_be_is_told_and_leaves_everything_as_it_was(first, tmp_path, wrong, told):
    new = lines(tmp_path / "w.jsonl", week(2))
    given = {"run": first, "new": [new], "out": tmp_path / "out", "overrides": []}
    if "run" in wrong:
        given["run"] = tmp_path / wrong["run"]
    if "out" in wrong:
        given["out"] = first
    if "new" in wrong:
        seen = lines(tmp_path / "seen.jsonl", week(1))
        given["new"] = [seen if wrong["new"] == "seen" else str(tmp_path / wrong["new"])]
    given["overrides"] = wrong.get("overrides", [])
    before = sorted(path.name for path in first.rglob("*"))
    with pytest.raises(OptionError) as error:
        train(follow(given["run"], given["new"], out=given["out"], overrides=given["overrides"])[0])
    assert told in str(error.value)
    assert sorted(path.name for path in first.rglob("*")) == before
    if (given["out"] / "history").is_dir() and given["out"] != first:
        assert look(given["out"]).pools, "texts were copied, and `forget` knows of them"


def test_a_folder_that_forget_has_held_is_prepared_again(first, tmp_path, monkeypatch):
    """Nobody has trained there: the lock is all that `forget` leaves of a review."""
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    run, out, new = tmp_path / "weeks-01", tmp_path / "run", [lines(tmp_path / "w2.jsonl", week(2))]
    shutil.copytree(first, run)
    follow(run, new, out=out)
    forget([run, out], by_match(re.escape(week(1)[0][:40])), agreed=lambda _: True)
    assert (out / "review/state/lock").is_file()
    follow(run, new, out=out)
    for other in ("review/log", "review/lock"):
        (out / other).write_bytes(b"somebody's")
        with pytest.raises(OptionError, match="holds review already"):
            follow(run, new, out=out)
        (out / other).unlink()
    shutil.rmtree(out / "review")
    (out / "review").write_text("a file")
    with pytest.raises(OptionError, match="holds review already"):
        follow(run, new, out=out)
