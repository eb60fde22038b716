"""`srt-peft demo`, as a person meets it; and that what it says in words is what its table says, whatever came of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import srt_peft
from srt_peft.demo import demo
from srt_peft.evaluation import rivals
from srt_peft.evaluation.compare import compare
from srt_peft.evaluation.evaluate import Result
from srt_peft.evaluation.paired import differences
from srt_peft.report.page import available

ROW = {"key": "", "suite": "qa", "mode": "text", "weight": 1.0}


def begun(place, *words):
    """The command, running in `place`, with a cache of its own."""
    env = {
        **os.environ, "PYTHONPATH": str(Path(srt_peft.__file__).parent.parent), "SRT_PEFT_HOME": str(place / "home"),
    }  # fmt: skip
    command = [sys.executable, "-m", "srt_peft", "demo", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place, env=env, start_new_session=True
    )


def ended(process, code=0):
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def interrupted(place):
    """A demo that was stopped while its base was learning: what it told, and where it stopped."""
    process = begun(place, "--quick")
    end = time.monotonic() + 300
    while not any(path.stat().st_size > 2000 for path in place.glob("home/demo/*/run/metrics.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = ended(process, code=130)
    return out, err, [path.name for path in place.glob("home/demo/*/run/checkpoints/step-*")]


@pytest.fixture(scope="module")
def finished(place, interrupted):
    """The same command again, to its end."""
    return ended(begun(place, "--quick"))


@pytest.fixture(scope="module")
def contest(place, finished):
    return json.loads((place / "runs" / "demo-lora-quick" / "contest.json").read_text())


def test_interrupted_nothing_is_lost(interrupted):
    out, err, checkpoints = interrupted
    assert out == ""
    assert "the same command goes on from there" in err
    assert len(checkpoints) == 1
    assert checkpoints[0] > "step-00000000"


def test_the_table_and_what_it_means(finished):
    out, err = finished
    rows = [line.split()[0] for line in out.splitlines() if "±" in line and "points" not in line]
    assert rows[:4] == ["base", "cpt", "uniform", "srt"]
    assert "by letter" not in out
    assert "Having learned the new texts alone (cpt), it knows" in out
    assert "This is one world, one base, 1 seed:" in out
    assert "All of it lies in runs/demo-lora-quick" in err


def test_it_forgets_and_it_learns(contest):
    """The base knows the old facts and not the new; new text alone teaches the new, and the old are lost."""
    (result,) = contest["results"]
    scores = {each["label"]: {s: e["mean"] for s, e in each["scores"].items()} for each in result["standings"]}
    assert scores["base"]["old"] >= 0.9
    assert scores["base"]["new"] <= 0.5
    assert scores["cpt"]["new"] >= scores["base"]["new"] + 0.2
    assert scores["cpt"]["old"] <= scores["base"]["old"] - 0.1
    assert scores["uniform"]["old"] > scores["cpt"]["old"]


def test_its_runs_are_ordinary_runs(place, contest):
    """Of equally many steps, each with recipe, metrics, review state and adapter; and the page is drawn."""
    folder = place / "runs" / "demo-lora-quick"
    assert contest["complete"]
    assert [run["entry"] for run in contest["runs"]] == ["cpt", "uniform", "srt"]
    assert {run["compute"]["steps"] for run in contest["runs"]} == {60}
    for run in contest["runs"]:
        for name in (
            "recipe.yaml",
            "metrics.jsonl",
            "review/log",
            "checkpoints/step-00000060/adapter_model.safetensors",
        ):
            assert (folder / run["folder"] / name).exists()
    assert (folder / "report.html").exists() == available()


def test_a_second_demo_is_there_at_once(place, finished, contest):
    """Nothing is made or trained again, and as JSON it is the contest as it lies on the disk."""
    out, err = ended(begun(place, "--quick", "--format", "json"))
    assert json.loads(out) == contest
    assert err.count("is there already") == 3
    assert "World and base are there already" in err


WRONG = {
    "no seeds": (["--seeds", "0"], "seeds: expected one or more"),
    "seeds in words": (["--seeds", "two"], "--seeds = 'two'"),
    "a tuning that is none": (["--tuning", "lorra"], "lorra"),
    "a folder of something else": (["--quick", "--output", "home"], "expected a new or empty one"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_told_in_words(case, place, finished):
    words, message = WRONG[case]
    out, err = ended(begun(place, *words), code=2)
    assert out == ""
    assert message in err


# --- what it means, whatever came of it ---------------------------------------------------------------------------


def records(shares):
    """200 questions a split, of which so large a share is answered."""
    return [
        {**ROW, "key": f"{split} {i}", "split": split, "value": float(i < 200 * share)}
        for split, share in shares.items()
        for i in range(200)
    ]


def came_of_it(tmp_path, **shares):
    """A contest of two seeds with these shares of (old, new) answered; the second seed is a question better."""
    base, *entries = shares
    recipe = demo.recipe_of(tmp_path, "lora", demo.QUICK)
    trained = {
        name: {s: records({"old": shares[name][0] + s / 200, "new": shares[name][1] + s / 200}) for s in (0, 1)}
        for name in entries
    }
    targets = [(name, one) for name, both in trained.items() for one in both.values()]
    of_base = (base, records({"old": shares[base][0], "new": shares[base][1]}))
    found = rivals.Contest(tmp_path, recipe, {}, tuple(entries), (0, 1))
    made = compare("qa, by text", [of_base, *targets], metric="accuracy", base=base)
    figures = {"realised_old_share": 0.25}
    return rivals.Contest(
        tmp_path, recipe, {}, tuple(entries), (0, 1),
        runs=tuple(rivals.Run(name, s, "", figures, {"tokens_trained": 1.0}) for name in entries for s in (0, 1)),
        results=(Result("qa, by text", made, {}),),
        differences=(differences("qa, by text", "accuracy", trained, found.reference),),
    )  # fmt: skip


def test_words_for_forgetting_that_replay_softens(tmp_path):
    """And for a schedule that is better on old, and worse on new."""
    found = came_of_it(tmp_path, base=(1.0, 0.25), cpt=(0.5, 0.9), uniform=(0.8, 0.8), srt=(0.9, 0.6))
    first, second, third, last = demo.meaning(found)
    assert first == (
        "The base knows 100 % of the old facts that still hold. Having learned the new texts alone (cpt), it knows "
        "90 % of the new facts and 50 % of the old: it forgets."
    )
    assert second.startswith("With 20 % of each batch old texts, whichever come (uniform), it knows 80 % of the new")
    assert second.endswith("replay softens it.")
    assert "(srt; 25 % of those drawn were old)" in third
    assert "against uniform, in points, better on old (+10.0), worse on new (−20.0), worse on both together" in third
    assert "one world, one base, 2 seeds:" in last


def test_words_for_the_opposite(tmp_path):
    """Nothing is forgotten, replay harms, and the schedule makes no difference."""
    found = came_of_it(tmp_path, base=(0.9, 0.2), cpt=(0.9, 0.9), uniform=(0.5, 0.8), srt=(0.5, 0.8))
    first, second, third, _ = demo.meaning(found)
    assert first.endswith("no clear loss.")
    assert second.endswith("replay makes it worse.")
    assert "level on old (0.0), level on new (0.0), level on both together (0.0)" in third


def test_words_for_who_leads_where_all_take_part(tmp_path):
    shares = {"base": (1.0, 0.2), "cpt": (0.5, 0.9), "uniform": (0.8, 0.8), "uniform-epoch": (0.8, 0.8)}
    found = came_of_it(tmp_path, **shares, leitner=(0.9, 0.9), srt=(0.8, 0.8))
    assert any("(uniform-epoch)" in line for line in demo.meaning(found))
    leads = next(
        line for line in demo.meaning(found) if line.startswith("First of 5 on both together is leitner (90 %)")
    )
    assert "against uniform-epoch, in points, better on old (+10.0), better on new (+10.0)" in leads
