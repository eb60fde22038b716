"""`srt-peft demo`, as a person meets it; and that what it says in words is what its table says, whatever came of it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

import srt_peft
from srt_peft import ReviewState
from srt_peft.demo import base, demo, world
from srt_peft.errors import LockedError
from srt_peft.evaluation import rivals
from srt_peft.evaluation.by_source import by_source
from srt_peft.evaluation.compare import compare
from srt_peft.evaluation.evaluate import Result
from srt_peft.evaluation.paired import differences
from srt_peft.report.page import available
from srt_peft.review.files import Lock

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
    assert rows[: 1 + len(demo.ENTRIES)] == ["base", *demo.ENTRIES]
    assert "by letter" not in out
    assert "Having learned the new texts alone (cpt), it answers" in out
    assert "One seed: what is said speaks of other questions" in out
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
    assert [run["entry"] for run in contest["runs"]] == list(demo.ENTRIES)
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


def test_decks_are_at_work_and_what_is_contradicted_is_set_aside(place, contest):
    """Every old slot went to a source, by what it has lost; and nothing that is superseded was drawn by anyone."""
    folder = place / "runs" / "demo-lora-quick"
    [by_source] = contest["sources"]
    assert set(by_source["questions"]) == set(world.TOPICS)
    assert [row["label"] for row in by_source["rows"]] == list(demo.ENTRIES)
    lines = [json.loads(line) for line in (folder / "auto/seed-0/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [sum(line["slots"]) for line in steps] == [line["old"] for line in steps]
    assert len({json.dumps(line["forgetting"]) for line in steps}) > 30
    assert [line["pass"] for line in lines if "pass" in line] == ["reference"]
    for run in contest["runs"]:
        with ReviewState.open(folder / run["folder"] / "review/state") as state:
            assert state.suspended.sum() > 50
            assert not state.visits[state.suspended].any()


def test_a_second_demo_is_there_at_once(place, finished, contest):
    """Nothing is made or trained again, and as JSON it is the contest as it lies on the disk."""
    out, err = ended(begun(place, "--quick", "--format", "json"))
    assert json.loads(out) == contest
    assert err.count("is there already") == len(demo.ENTRIES)
    assert "World and base are there already" in err


WRONG = {
    "no seeds": (["--seeds", "0"], "seeds: expected one or more"),
    "seeds in words": (["--seeds", "two"], "--seeds = 'two'"),
    "a tuning that is none": (["--tuning", "lorra"], "lorra"),
    "a folder of something else": (["--quick", "--output", "home"], "expected a new or empty one"),
    "no place for a folder": (["--output", "/proc/nowhere"], "expected a folder, or a path where one can be made"),
    "too many seeds": (["--seeds", "3000000000"], "expected at most 1,000 trainings of each; that seed alone is"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_told_in_words(case, place, finished):
    words, message = WRONG[case]
    before = sorted(place.glob("home/demo/*"))
    out, err = ended(begun(place, *words), code=2)
    assert out == ""
    assert message in err
    assert sorted(place.glob("home/demo/*")) == before, "and before a base is taught"


# --- what it means, whatever came of it ---------------------------------------------------------------------------


def records(shares):
    """200 questions a split, of which so large a share is answered."""
    return [
        {**ROW, "key": f"{split} {i}", "split": split, "value": float(i < 200 * share)}
        for split, share in shares.items()
        for i in range(200)
    ]


def came_of_it(tmp_path, seeds=(0, 1, 2), **shares):
    """A contest with these shares of (old, new) answered, each seed a question better than the one before."""
    apart = {s: (s - fmean(seeds)) / 200 for s in seeds}
    base, *entries = shares
    recipe = demo.recipe_of(tmp_path, "lora", demo.QUICK)
    trained = {
        name: {s: records({"old": shares[name][0] + apart[s], "new": shares[name][1] + apart[s]}) for s in seeds}
        for name in entries
    }
    targets = [(name, one) for name, both in trained.items() for one in both.values()]
    of_base = (base, records({"old": shares[base][0], "new": shares[base][1]}))
    found = rivals.Contest(tmp_path, recipe, {}, tuple(entries), tuple(seeds))
    made = compare("qa, by text", [of_base, *targets], metric="accuracy", base=base)
    figures = {"realised_old_share": 0.25}
    return replace(
        found,
        runs=tuple(rivals.Run(name, s, "", figures, {"tokens_trained": 1.0}) for name in entries for s in seeds),
        results=(Result("qa, by text", made, {}),),
        differences=tuple(differences("qa, by text", "accuracy", trained, name) for name in found.references),
    )


FORGOTTEN = {"base": (1.0, 0.25), "cpt": (0.5, 0.9), "uniform": (0.8, 0.8)}


def test_words_for_forgetting_that_replay_softens(tmp_path):
    """And for a schedule that is better on old, and worse on new."""
    first, second, third, last = demo.meaning(came_of_it(tmp_path, **FORGOTTEN, paper=(0.9, 0.6)))
    assert first == (
        "The base answers 100 % of the questions about old facts that still hold (guessing: 25 %). Having "
        "learned the new texts alone (cpt), it answers 90 % about the new facts and 50 % about the old: it forgets."
    )
    assert second.startswith(
        "With 20 % of each batch old texts, whichever come (uniform), it answers 80 % about the new"
    )
    assert second.endswith("replay softens it.")
    assert "(paper; 25 % of those drawn were old)" in third
    assert "against uniform, in points, better on old (+10.0), worse on new (−20.0), worse on both together" in third
    assert last.startswith("Level is what chance explains, of seeds or of questions.")
    assert "one world, one base, 3 seeds:" in last


def test_words_for_the_opposite(tmp_path):
    """Nothing is forgotten, and so there is nothing to soften; the schedule makes no difference."""
    shares = {"base": (0.9, 0.2), "cpt": (0.89, 0.9), "uniform": (0.5, 0.8), "paper": (0.5, 0.8)}
    first, second, third, _ = demo.meaning(came_of_it(tmp_path, **shares))
    assert first.endswith("no clear loss.")
    assert second.endswith("less of the old than cpt.")
    assert "level on old (0.0), level on new (0.0), level on both together (0.0)" in third


@pytest.mark.parametrize("seeds", [(0,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("old", [0.5, 0.98, 1.0])
def test_no_sentence_gainsays_another(seeds, old, tmp_path):
    """Replay softens, or does not, what was found to be lost; where nothing was, it has nothing to soften."""
    shares = FORGOTTEN | {"cpt": (old, 0.9)}
    first, second, *_ = demo.meaning(came_of_it(tmp_path, seeds, **shares, paper=(0.8, 0.8)))
    forgets = first.endswith(": it forgets.")
    assert forgets == (old == 0.5)
    assert ("soften" in second) == forgets


def test_one_seed_speaks_of_questions_only(tmp_path):
    *_, third, last = demo.meaning(came_of_it(tmp_path, (0,), **FORGOTTEN, paper=(0.9, 0.8)))
    assert "better on old (+10.0), level on new (0.0)" in third
    assert last.startswith("One seed: what is said speaks of other questions to these very trainings, and not of other")
    assert "1 seed:" in last


def test_two_seeds_cannot_tell(tmp_path):
    """Student's interval over two is 12.7 deviations wide: what it leaves open is neither level nor a difference."""
    found = came_of_it(tmp_path, (0, 1), **FORGOTTEN, paper=(0.9, 0.8))
    spread = [replace(row, low=-0.4, high=0.6) if row.label == "paper" else row for row in found.differences[0].rows]
    found = replace(found, differences=(replace(found.differences[0], rows=tuple(spread)),))
    first, _, third, last = demo.meaning(found)
    assert first.endswith(": it forgets.")
    assert "undecided on old (+10.0), undecided on new (0.0)" in third
    assert last.startswith("Two seeds cannot tell whether other trainings would agree")
    wide = [replace(row, low=-0.9, high=0.3) if row.label == "cpt" else row for row in found.differences[0].rows]
    found = replace(found, differences=(replace(found.differences[0], rows=tuple(wide)),))
    assert list(demo.meaning(found))[1].endswith("two seeds cannot tell whether that is more of the old than with cpt.")


def test_two_trainings_that_forget_are_two_trainings(tmp_path):
    """50 and 10 points of loss have an interval with 0 in it, and yet neither has kept the old."""
    found = came_of_it(tmp_path, (0, 1), **FORGOTTEN)
    compared = found.results[0].comparison
    for losses, told in (((0.5, 0.1), "both trainings forget."), ((0.5, -0.1), "cannot tell whether it forgets.")):
        cpt = next(standing for standing in compared.standings if standing.label == "cpt")
        effect = cpt.effects["old"]
        apart = replace(effect, difference=replace(effect.difference, runs=losses))
        standings = [replace(s, effects=s.effects | {"old": apart}) if s is cpt else s for s in compared.standings]
        result = replace(found.results[0], comparison=replace(compared, standings=tuple(standings)))
        assert next(demo.meaning(replace(found, results=(result,)))).endswith(told)


def test_words_for_who_leads_where_all_take_part(tmp_path):
    shares = FORGOTTEN | {"uniform-epoch": (0.8, 0.85), "paper": (0.8, 0.8), "auto": (0.8, 0.8)}
    found = came_of_it(tmp_path, **shares, leitner=(0.9, 0.9), srt=(0.8, 0.8))
    told = list(demo.meaning(found))
    assert "(uniform-epoch, the better form of it here)" in told[1]
    leads = next(line for line in told if line.startswith("First of 7 on both together is leitner (90 %)"))
    assert "against uniform-epoch, in points, better on old (+10.0), better on new (+5.0)" in leads


def test_words_for_the_source_that_lost_the_most(tmp_path):
    """Of the better uniform and the schedules; none where questions have no sources."""
    found = came_of_it(tmp_path, base=(1.0, 0.2), cpt=(0.5, 0.9), uniform=(0.8, 0.7), auto=(0.9, 0.8))
    assert not any("by source" in line for line in demo.meaning(found))
    sizes = {"work": 20, "home": 10}

    def asked(**lost):
        return [
            {**ROW, "key": f"{name} {i}", "split": "old", "source": name, "value": float(i >= lost.get(name, 0))}
            for name, size in sizes.items()
            for i in range(size)
        ]

    conditions = {"cpt": [asked(work=20)], "uniform": [asked(work=10, home=1)], "auto": [asked(home=3), asked(home=5)]}
    of = by_source("qa", "accuracy", asked(), conditions)
    told = next(line for line in demo.meaning(replace(found, sources=(of,))) if "by source" in line)
    assert "uniform 50 points of work, auto 40 points of home (questions: work 20, home 10)" in told
    assert "cpt" not in told


def test_where_runs_have_failed_the_rest_is_told(tmp_path):
    """Whatever the others are: without cpt or replay there is no story, and no error."""
    failed = rivals.Failed("paper", 1, "The gradient is inf.")
    found = replace(came_of_it(tmp_path, **FORGOTTEN), failed=(failed,))
    assert next(demo.meaning(found)) == "paper, seed 1, has failed and stands in no table: The gradient is inf."
    assert len(list(demo.meaning(found))) == 4
    for gone in ("cpt", "uniform"):
        fewer = came_of_it(tmp_path, **{name: both for name, both in FORGOTTEN.items() if name != gone})
        assert list(demo.meaning(fewer)) == []
    assert list(demo.meaning(replace(found, results=(), runs=(), differences=()))) == [next(demo.meaning(found))]


# --- the base is taught by one at a time --------------------------------------------------------------------------


def test_what_a_kill_has_left_is_swept(tmp_path):
    """Staged folders of processes that are gone; one that is being written stays."""
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for process in (int(gone.stdout), os.getpid(), os.getppid()):
        (tmp_path / f".blank-{process}").mkdir()
    base._whole(tmp_path / "blank", lambda staged: (staged / "model").write_text(""))
    assert {path.name for path in tmp_path.iterdir()} == {"blank", f".blank-{os.getppid()}"}


def test_a_second_demo_is_told_to_wait(tmp_path, monkeypatch):
    """While another teaches the base that both would use."""
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path))
    made, shape = (
        world.make(0, world.Sizes(people=3, added=1, changed=1)),
        base.Shape(width=16, heads=1, hidden=16, steps=2),
    )
    home = []

    def say(line):
        home[:] = home or [line.split()[4].rstrip(".")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_learn", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            base.made(made, shape, say)
    lock = Lock(Path(home[0]) / "run" / "review" / "state" / "lock", "the other")
    with pytest.raises(LockedError, match="Another demo is teaching its base at this moment"):
        base.made(made, shape, say)
    lock.release()
