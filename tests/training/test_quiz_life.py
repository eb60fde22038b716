"""A run with a quiz and decks: counted as compute, and killed, packed or spread over processes, the same."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from srt_peft import ReviewLog, ReviewState
from srt_peft.training.loop import train
from srt_peft.training.recipe import dump
from tests.training.test_loop import ROOT, SAME, logged, metrics, recipe, world  # noqa: F401 - a fixture
from tests.training.test_ranks import Launch

STEPS = 8
FINAL = f"checkpoints/step-{STEPS:08d}"


@pytest.fixture(scope="module")
def asked(world):  # noqa: F811
    """A recipe with two sources of old text, a quiz of three, and everything else as the preset says."""
    lines = (world / "old.jsonl").read_text().splitlines()
    for name, some in (("one", lines[:40]), ("two", lines[40:])):
        (world / f"{name}.jsonl").write_text("\n".join(some) + "\n")
    sources = ", ".join(f"{{path: {world / name}.jsonl, source: {name}}}" for name in ("one", "two"))

    def made(output, *overrides):
        quiz = ("review.old.quiz=3", "training.batch_size=15", "evaluation.every=null", "checkpoints.every=3")
        return recipe(world, output, f"data.old=[{sources}]", f"training.steps={STEPS}", *quiz, *overrides)

    return made


@pytest.fixture(scope="module")
def whole(world, asked):  # noqa: F811
    assert train(asked(world / "quizzed")) == 0
    return world / "quizzed"


def drawn(run):
    """Who was trained on, and who only asked and passed, at each step."""
    records = ReviewLog(run / "review/log").records()
    return records[["step", "id", "quality", "untrained"]].tolist()


def steps(run):
    return [line for line in metrics(run) if "loss" in line]


def test_a_quiz_is_counted_as_compute(whole):
    """Thrice as many as there are old slots, at every step; who passed is logged as untrained; the summary adds up."""
    lines = steps(whole)
    assert [line["asked"] for line in lines] == [9] * STEPS
    records = ReviewLog(whole / "review/log").records()
    passed = np.bincount(records["step"][records["untrained"] == 1], minlength=STEPS)
    assert passed.tolist() == [line["passed"] for line in lines]
    assert passed.sum() > 0
    state = ReviewState.open(whole / FINAL / "srt_state")
    assert state.visits.sum() == len(records)
    summary = json.loads((whole / "summary.json").read_text())
    assert {made["name"]: made["tokens"] for made in summary["figures"]["passes"]} == {
        "reference": next(line["forward_only_tokens"] for line in metrics(whole) if "pass" in line),
        "quiz": sum(line["forward_only_tokens"] for line in lines),
    }
    assert summary["figures"]["trained_tokens"] == sum(line["tokens"] for line in lines)
    assert any(line.startswith("The quiz costs") for line in summary["said"])


def test_slots_and_forgetting_are_told_by_deck(whole):
    """In the order of decks.json; the slots of a step are its old examples."""
    listed = json.loads((whole / "decks.json").read_text())
    assert [deck["name"] for deck in listed] == ["one", "two", "new.jsonl"]
    for line in steps(whole):
        assert (sum(line["slots"]), line["slots"][2], len(line["forgetting"])) == (line["old"], 0, 3)
    assert any(line["forgetting"][0] != 0 for line in steps(whole))


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_bytes(world, asked, whole, tmp_path):  # noqa: F811
    """Also between a quiz and its review: who was asked is asked again."""
    run, moments, path = tmp_path / "run", random.Random(0), tmp_path / "run.yaml"
    path.write_text(dump(asked(run)))
    command = [sys.executable, "-m", "srt_peft", "train", str(path), "--resume"]
    for _ in range(2):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seen = logged(run)
        while process.poll() is None:
            if logged(run) != seen:
                time.sleep(moments.random() * 0.2)
                process.send_signal(signal.SIGKILL)
                process.wait()
        assert process.returncode in (0, -signal.SIGKILL)
    assert train(asked(run), resume=True) == 0
    assert [{**line, "found_in_cache": None} for line in metrics(run)] == [
        {**line, "found_in_cache": None} for line in metrics(whole)
    ]
    for name in SAME:
        assert (run / FINAL / name).read_bytes() == (whole / FINAL / name).read_bytes(), name


def test_packing_changes_nobody_who_is_asked_or_drawn(asked, whole, tmp_path):
    train(asked(tmp_path / "run", "data.packing=false"))
    assert drawn(tmp_path / "run") == drawn(whole)


@pytest.mark.slow
def test_two_processes_ask_and_draw_what_one_does(asked, whole, tmp_path):
    """The references, too: each rank scores a part, and all know all."""
    path = tmp_path / "two.yaml"
    path.write_text(dump(asked(tmp_path / "two", "model.dtype=float32")))
    code, _, told = Launch("-m", "srt_peft", "train", str(path)).end()
    assert code == 0, told
    assert drawn(tmp_path / "two") == drawn(whole)
    ours, other = (ReviewState.open(run / FINAL / "srt_state").columns for run in (tmp_path / "two", whole))
    assert ours["reference"] == pytest.approx(other["reference"], rel=1e-4, nan_ok=True)
    assert [line["slots"] for line in steps(tmp_path / "two")] == [line["slots"] for line in steps(whole)]


def test_a_quiz_of_first_tokens_costs_as_many(asked, whole, tmp_path):
    """They are held against what the base said of the same first tokens."""
    train(asked(tmp_path / "run", "review.old.quiz_tokens=8", "training.steps=3"))
    lines = steps(tmp_path / "run")
    assert all(line["forward_only_tokens"] <= 8 * line["asked"] for line in lines)
    assert lines[0]["forward_only_tokens"] < steps(whole)[0]["forward_only_tokens"]
    columns = ReviewState.open(tmp_path / "run/checkpoints/step-00000003/srt_state").columns
    n_old = int(np.isfinite(columns["prefix"]).sum())
    assert n_old > 40
    assert np.abs(columns["prefix"][:n_old] - columns["reference"][:n_old]).max() > 0.01


def test_a_quiz_now_and_then_is_one(asked, tmp_path):
    """In between nobody is asked, and batches are whole."""
    train(asked(tmp_path / "run", "review.old.quiz_every=3", "training.steps=7"))
    lines = steps(tmp_path / "run")
    assert [line["asked"] > 0 for line in lines] == [True, False, False, True, False, False, True]
    assert [(line["old"], line["new"]) for line in lines] == [(3, 12)] * 7
