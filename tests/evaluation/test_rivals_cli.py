"""`srt-peft compare` as a person runs it: what it prints, what it refuses, and Ctrl-C in the middle of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import srt_peft
from tests.evaluation import world as facts

STEPS = 60


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base that knows nothing, texts, questions, and the recipe."""
    folder = facts.build(tmp_path_factory.mktemp("world"), n_old=60, n_new=20, steps=1)
    given = facts.recipe(
        folder, folder / "out", data={"old": str(folder / "old.jsonl")}, training={"steps": STEPS, "batch_size": 16}
    )
    given |= {"checkpoints": {"every": 5, "keep": 1}, "evaluation": {"every": 20}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(given))
    lines = (folder / "questions.jsonl").read_text().splitlines(keepends=True)
    (folder / "new_only.jsonl").write_text("".join(line for line in lines if json.loads(line)["split"] == "new"))
    return folder


def begun(world, *words):
    """The command, running among the world's files, with a cache of its own."""
    env = {
        **os.environ, "PYTHONPATH": str(Path(srt_peft.__file__).parent.parent), "SRT_PEFT_HOME": str(world / "home"),
    }  # fmt: skip
    command = [sys.executable, "-m", "srt_peft", "compare", "recipe.yaml", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=world, env=env)


def ended(process, code=0):
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


ASKED = ["--schedulers", "cpt,srt", "--seeds", "1", "--suite", "qa-text=questions.jsonl", "--format", "json"]


@pytest.fixture(scope="module")
def finished(world):
    """A comparison that was never stopped: what it printed."""
    return ended(begun(world, *ASKED, "--output", "whole"))


def plain(document):
    """A contest without its timings and its folder."""
    for compute in (*(one["compute"] for one in document["runs"]), *document["compute"].values()):
        compute.pop("seconds")
    return document


def test_what_runs_have_in_common_is_told_once_and_each_has_a_line(finished):
    """The texts, and the bar of a model's loading; then a line a run, and where all of it lies."""
    told = [line for line in re.split(r"[\n\r]", finished[1]) if line.strip()]
    assert [line.partition(":")[0] for line in told if not line.startswith("Loading weights")] == [
        "old", "new", "The base is asked first", "Run 1 of 2", "Run 2 of 2",
        "All of it lies in whole", *[line.partition(":")[0] for line in told[-1:]],
    ]  # fmt: skip
    assert sum(line.startswith("Loading weights: 100%") for line in told) == 1


def test_nothing_is_left_that_only_its_making_needed(world, finished):
    assert {path.name for path in (world / "whole").iterdir()} - {"report.html"} == {
        "base", "contest.json", "cpt", "srt", "table.md",
    }  # fmt: skip


def test_interrupted_nothing_is_lost_and_the_same_command_goes_on(world, finished):
    """Ctrl-C in the second run: it is saved after its step, and what comes of it is what would have come anyway."""
    process = begun(world, *ASKED, "--output", "stopped")
    metrics, end = world / "stopped" / "srt" / "seed-0" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = ended(process, code=130)
    assert out == ""
    assert "Stopping after this step, once it is saved." in err
    assert "What was done is kept in stopped: the same command goes on from there." in err
    before = json.loads((world / "stopped" / "contest.json").read_text())
    assert (before["complete"], [run["entry"] for run in before["runs"]]) == (False, ["cpt"])
    [saved] = (world / "stopped/srt/seed-0/checkpoints").iterdir()
    assert 0 < int(saved.name.removeprefix("step-")) < STEPS

    out, err = ended(begun(world, *ASKED, "--output", "stopped"))
    assert "Run 1 of 2: cpt, seed 0 is there already." in err
    assert "Going on from" in err
    assert plain(json.loads(out)) == plain(json.loads(finished[0]))


WRONG = {
    "questions without an old split": (
        ["--suite", "qa=new_only.jsonl"],
        ["new_only.jsonl", "split 'old' is empty: all 20 questions are 'new'. Add some"],
    ),
    "several files of questions": (
        ["--suite", "qa=questions.jsonl", "--suite", "qa=new_only.jsonl", "--suite", "qa-text=qestions.jsonl"],
        ["2 faults in the suites", "split 'old' is empty", "qestions.jsonl does not exist (did you mean 'questions.js"],
    ),
    "a scheduler that is none": (
        ["--schedulers", "srt,unifrom"],
        ["'unifrom' is no scheduler (did you mean 'uniform'?); known are cpt, uniform, uniform-epoch, ppl, leitner"],
    ),
    "seeds that are none": (
        ["--seeds", "two"],
        ["1 fault in the comparison", "--seeds = 'two': expected how many, such as 3, or which, such as 0,1,2"],
    ),
    "a base that is not there": (["model.base=./nowhere"], ["nowhere"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_told_before_anything_is_made(case, world):
    """By its name and its value, with what was expected; and no folder is left of it."""
    words, told = WRONG[case]
    out, err = ended(begun(world, "--output", "never", *words), code=2)
    assert out == ""
    assert err.startswith("error: ")
    for part in told:
        assert part in err
    assert not (world / "never").exists()


@pytest.mark.slow
def test_a_folder_of_another_comparison_is_left_as_it_is(world, finished):
    """Both values are told, and what to do; and so for a folder of anything else."""

    def content():
        return {path: path.read_bytes() for path in (world / "whole").rglob("*") if path.is_file()}

    before = content()
    _, err = ended(begun(world, *ASKED, "--output", "whole", "training.learning_rate=0.5"), code=2)
    assert "1 fault in the comparison's folder whole, which holds another comparison (name another --output" in err
    assert "training.learning_rate is 0.5 here and 0.02 there" in err
    _, err = ended(begun(world, "--schedulers", "cpt", "--output", "whole", "--suite", "perplexity"), code=2)
    assert "the suites are perplexity here and qa-text there" in err
    _, err = ended(begun(world, *ASKED, "--output", "base"), code=2)
    assert "it holds config.json and no contest.json: expected a new or empty one" in err
    assert content() == before
