"""What a contest finds in its folder, and what it leaves there: less asked for, damage, a run that diverges, a stop."""

import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from srt_peft import OptionError, ReviewLog, cli
from srt_peft.errors import DamagedError, DivergedError, LockedError
from srt_peft.evaluation import outcome, rivals, suites
from srt_peft.review.files import Lock
from srt_peft.training import loop, run
from srt_peft.training.loop import train
from srt_peft.training.recipe import dump, load_recipe
from tests.evaluation import world as facts

STEPS = 3
NAMES, SEEDS = ["uniform", "srt", "match"], [0, 1]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base that knows nothing, and its texts."""
    folder = facts.build(tmp_path_factory.mktemp("world"), n_old=40, n_new=16, steps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(folder / "home"))
        yield folder


def recipe_of(world, **changes):
    training = {"steps": STEPS, "batch_size": 10, **changes.pop("training", {})}
    data = {"old": str(world / "old.jsonl"), **changes.pop("data", {})}
    given = facts.recipe(world, world / "unused", data=data, training=training, **changes)
    return load_recipe(given | {"review": {"preset": "paper"}})


def contest(world, folder, names=NAMES, seeds=SEEDS, say=lambda _: None, suite="qa-text=questions.jsonl", **changes):
    asked = suites.parse([suite.replace("=", f"={world}/")])
    return rivals.contest(recipe_of(world, **changes), entries=names, seeds=seeds, asked=asked, folder=folder, say=say)


@pytest.fixture(scope="module")
def held(world):
    contest(world, world / "held")
    return world / "held"


@pytest.fixture
def copy(held, world, tmp_path):
    """The contest, to be spoilt: moved, so that `match` follows what is no longer there."""
    shutil.move(held, world / "kept")
    shutil.copytree(world / "kept", held, symlinks=True)
    yield held
    shutil.rmtree(held)
    shutil.move(world / "kept", held)


def saved(folder):
    """What contest.json says, timings apart."""
    document = json.loads((folder / "contest.json").read_text())
    for compute in (*(one["compute"] for one in document["runs"]), *document["compute"].values()):
        compute.pop("seconds")
    return document


def trained(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/seed-*/checkpoints/*/MANIFEST.json")}


# --- less asked for than is there -----------------------------------------------------------------------------------


def test_a_smaller_request_loses_nothing_of_the_larger(world, copy):
    """The tables are of all that is finished, what was asked for first; and it is said."""
    before, said = trained(copy), []
    found = contest(world, copy, ["srt"], [1], said.append)
    assert found.complete
    assert found.entries == ("srt", "uniform", "match")
    assert found.seeds == (1, 0)
    assert len(found.runs) == 6
    assert (
        "Finished before, and shown with what is asked for now: uniform, seed 0, 1; srt, seed 0; match, seed 0, 1."
        in (said[0])
    )
    assert trained(copy) == before
    document = saved(copy)
    assert {tuple(key) for key in document["planned"]} == {(name, seed) for name in NAMES for seed in SEEDS}
    rows = {(row["label"], tuple(sorted(row["seeds"]))) for row in document["differences"][0]["rows"]}
    assert rows == {("srt", (0, 1)), ("match", (0, 1))}
    assert "| uniform |" in (copy / "table.md").read_text()


def test_match_goes_on_following_whom_it_followed(world, copy):
    """`auto` would be the first to follow, but runs that follow `srt` are there."""
    with pytest.raises(OptionError, match=r"'match' follows 'srt' in .*: expected 'srt' as well, or another --output"):
        contest(world, copy, ["auto", "match"], [0])
    found = contest(world, copy, ["auto", "srt", "match"], [0])
    assert found.complete
    assert [(one.reference, {row.label for row in one.rows}) for one in found.differences] == [
        ("uniform", {"auto", "srt", "match"}), ("match", {"srt"}),
    ]  # fmt: skip


def test_a_schedule_is_held_against_match(held):
    """Which has its counts, and not its choice: the control that it is there for."""
    document = saved(held)
    against, control = document["differences"]
    assert (against["reference"], control["reference"]) == ("uniform", "match")
    assert {row["label"] for row in control["rows"]} == {"srt"}
    by = {(row["label"], row["split"]): row["mean"] for row in against["rows"]}
    for row in control["rows"]:
        assert row["mean"] == pytest.approx(by["srt", row["split"]] - by["match", row["split"]])
    assert any(line.startswith("srt against match, qa, by text: ") for line in document["sentences"])
    assert "against match, paired by seed and question" in (held / "table.md").read_text()


# --- damage ---------------------------------------------------------------------------------------------------------


def test_runs_outlive_their_contest_json(world, copy):
    """Damaged it is refused, with what to do; without it, finished runs of this very comparison are taken for done."""
    before, document, path = trained(copy), saved(copy), copy / "contest.json"
    text = path.read_text()
    whole = json.loads(text)
    for damaged in (
        text[:300],
        "[]",
        json.dumps(whole | {"identity": {"base": "x"}}),
        json.dumps(whole | {"identity": whole["identity"] | {"suites": [["qa-text"]]}}),
        json.dumps(whole | {"recipe": {"model": {}, "nonsense": 1}}),
    ):
        path.write_text(damaged)
        with pytest.raises(DamagedError, match=r"contest\.json is damaged \(.* keeps the runs that are finished"):
            contest(world, copy)
    path.unlink()
    said = []
    contest(world, copy, say=said.append)
    assert sum("is there already" in line for line in said) == 6
    assert trained(copy) == before
    assert saved(copy) == document


def test_runs_of_another_recipe_are_no_part_of_it(world, copy):
    """Without a contest.json each run is looked at before anything is trained; and a stranger's file is one."""
    (copy / "contest.json").unlink()
    before = trained(copy)
    with pytest.raises(OptionError, match=r"which has no contest\.json and runs of another comparison") as error:
        contest(world, copy, ["cpt"], training={"learning_rate": 0.01})
    assert len(error.value.faults) == 6
    assert error.value.faults[0].startswith("uniform/seed-0: training.learning_rate is 0.01 here and 0.02 there")
    (copy / "srt" / "thesis.tex").write_text("")
    with pytest.raises(OptionError, match=r"it holds srt/thesis\.tex and no contest\.json"):
        contest(world, copy)
    assert trained(copy) == before
    assert not (copy / "cpt").exists()


def test_another_preset_is_another_comparison(world, copy):
    """Although a run's recipe compares the options that it stands for."""
    given = recipe_of(world).as_dict()
    given["review"]["preset"] = "auto"
    asked = suites.parse([f"qa-text={world}/questions.jsonl"])
    with pytest.raises(OptionError, match=r"review\.preset is auto here and paper there"):
        rivals.contest(load_recipe(given), entries=["cpt"], seeds=[0], asked=asked, folder=copy, say=print)


def test_a_finished_run_that_is_damaged_is_named_with_the_remedy(world, copy):
    """Which works: without that folder the run is trained anew, to the same result."""
    place, document = copy / "uniform" / "seed-0", saved(copy)
    for name in ("metrics.jsonl", "recipe.yaml", "review/log"):
        content = (place / name).read_bytes()
        for damaged in (None, content[:-40] + b"\xff" * 30) if name != "recipe.yaml" else (None,):
            (place / name).unlink() if damaged is None else (place / name).write_bytes(damaged)
            with pytest.raises(DamagedError) as error:
                contest(world, copy)
            assert str(place / name) in str(error.value)
            assert f"remove {place}, and the same command trains it anew" in str(error.value)
            (place / name).write_bytes(content)
    shutil.rmtree(place)
    contest(world, copy)
    assert saved(copy) == document


def test_a_log_that_was_set_aside_is_told(world, copy):
    """Its run goes on with a new one, whose figures are of a part."""
    log = copy / "uniform" / "seed-1" / "review" / "log"
    with ReviewLog(log, "a") as opened:
        opened.truncate(2)
    found = contest(world, copy)
    assert "uniform, seed 1: its review log lacks 1 of 3 steps, from 2 to 2" in found.sentences[0]
    assert [run["note"] is not None for run in saved(copy)["runs"]] == [False, True, False, False, False, False]


# --- a run that fails, a run that is stopped ------------------------------------------------------------------------


def test_a_run_that_diverges_does_not_block_the_others(world, tmp_path, monkeypatch):
    """It is told of, with what follows it; the others are judged; and the same command tries again."""
    real, said = loop.update, []

    def diverging(setup, step, rate):
        if setup.folder.parts[-2:] == ("srt", "seed-0") and step == 1:
            raise DivergedError("The gradient of step 1 is inf.")
        return real(setup, step, rate)

    monkeypatch.setattr(loop, "update", diverging)
    found = contest(world, tmp_path / "out", say=said.append)
    assert [(one.entry, one.seed) for one in found.failed] == [("srt", 0), ("match", 0)]
    assert [(run.entry, run.seed) for run in found.runs] == [("uniform", 0), ("uniform", 1), ("srt", 1), ("match", 1)]
    assert not found.complete
    assert "Run 2 of 6: srt, seed 0 has failed. The gradient of step 1 is inf." in said
    told = [line for line in found.sentences if "has failed and stands in no table" in line]
    assert len(told) == 2
    assert "The same command tries it again" in told[0]
    assert "follows srt, seed 0, which has failed" in told[1]
    document = json.loads((tmp_path / "out" / "contest.json").read_text())
    assert [one["reason"] for one in document["failed"]] == [one.reason for one in found.failed]
    monkeypatch.undo()
    again = contest(world, tmp_path / "out")
    assert again.complete
    assert not again.failed


def test_where_every_run_diverges_there_is_still_something_to_tell(world, tmp_path):
    found = contest(world, tmp_path / "out", ["cpt"], [0], training={"learning_rate": 1e30})
    assert not found.runs
    [failed] = found.failed
    assert failed.reason.startswith("The gradient of step ")
    assert "--resume" not in failed.reason
    for style in ("terminal", "markdown", "latex", "json"):
        assert "cpt, seed 0, has failed" in rivals.told(found, style)


@pytest.mark.parametrize("signalled", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_in_the_last_save_of_a_run_no_other_begins(signalled, world, tmp_path, monkeypatch):
    """The run is finished by then, and yet the person wants the contest to end."""
    real, said = run.save, []

    def interrupted(setup, step):
        if step == STEPS:
            os.kill(os.getpid(), signalled)
        real(setup, step)

    monkeypatch.setattr(run, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        contest(world, tmp_path / "out", ["cpt", "uniform"], [0], said.append)
    assert (tmp_path / "out/cpt/seed-0/checkpoints" / f"step-{STEPS:08d}" / "MANIFEST.json").is_file()
    assert not (tmp_path / "out/uniform").exists()
    assert "the same command goes on from there" in said[-1]
    monkeypatch.undo()
    assert contest(world, tmp_path / "out", ["cpt", "uniform"], [0]).complete


def test_a_run_by_itself_that_is_finished_is_finished(world, tmp_path, monkeypatch):
    """Though it was asked to stop in its last save: nothing follows, and nothing is lacking."""
    real = run.save

    def interrupted(setup, step):
        os.kill(os.getpid(), signal.SIGINT)
        real(setup, step)

    monkeypatch.setattr(run, "save", interrupted)
    mine = rivals.recipe_of(recipe_of(world), "cpt", 0, tmp_path)
    assert train(mine) == 0


def test_a_contest_with_a_failed_run_ends_with_1(world, tmp_path, capsys):
    """What there is to tell was told, and a script sees that something is lacking."""
    (tmp_path / "recipe.yaml").write_text(dump(recipe_of(world, training={"learning_rate": 1e30})))
    words = ["--schedulers", "cpt", "--seeds", "1", "--suite", f"qa-text={world}/questions.jsonl"]
    assert cli.main(["compare", str(tmp_path / "recipe.yaml"), *words, "--output", str(tmp_path / "out")]) == 1
    assert "cpt, seed 0, has failed and stands in no table: The gradient of step" in capsys.readouterr().out


# --- what is checked before anything is read ------------------------------------------------------------------------


def test_a_place_where_none_can_be_made_is_told_before_texts_are_read(world, tmp_path):
    """Nor is anything left where one can be."""
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere", tmp_path / "file", tmp_path / "file" / "within"):
        with pytest.raises(OptionError, match=r"expected a folder, or a path where one can be made"):
            contest(world, outcome.Path(place), data={"new": "nowhere.jsonl"})
    outcome.check_place(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_comparison_that_is_being_made_says_so(held, world):
    """In words of its own: there is no checkpoint of it to work on."""
    lock = Lock(held / "lock", "The comparison")
    with pytest.raises(LockedError) as error:
        contest(world, held)
    lock.release()
    assert f"The comparison in {held} is being written by another process" in str(error.value)
    assert "name another --output" in str(error.value)
    assert "checkpoint" not in str(error.value)


# --- what is equal --------------------------------------------------------------------------------------------------


def test_another_adapter_to_begin_from_is_another_comparison(held, world, tmp_path):
    """By its weights, wherever it lies: not even its name need have changed."""
    adapter = tmp_path / "adapter"
    shutil.copytree(held / "uniform/seed-0/checkpoints" / f"step-{STEPS:08d}", adapter)
    out, model = tmp_path / "out", {"adapter": str(adapter)}
    contest(world, out, ["cpt"], [0], model=model)
    weights = load_file(adapter / "adapter_model.safetensors")
    save_file({name: w + np.float32(0.01) for name, w in weights.items()}, adapter / "adapter_model.safetensors")
    with pytest.raises(OptionError, match=r"the adapter is \w+ here and \w+ there \(other weights\)"):
        contest(world, out, ["cpt", "uniform"], [0], model=model)
    mine = rivals.recipe_of(recipe_of(world, model=model), "cpt", 0, out)
    with pytest.raises(OptionError, match=r"the adapter is \w+ now and \w+ in the checkpoint \(other weights\)"):
        train(mine, resume=True)
    shutil.rmtree(adapter)  # which a run that has begun needs no more
    assert train(mine, resume=True) == 0


def test_without_old_text_nothing_can_be_forgotten_and_it_is_said(world, tmp_path):
    lines = (world / "questions.jsonl").read_text()
    assert '"old"' in lines
    said = []
    found = contest(world, tmp_path / "out", ["cpt", "uniform"], [0], said.append, data={"old": None})
    assert "There is no old text (data.old): nothing can be forgotten" in said[0]
    assert any(line.startswith("There is no old text") for line in found.sentences)
    assert found.exposure["uniform"]["coverage_old"]["mean"] is None
    assert re.search(r"\| uniform .*\| – \|", rivals.told(found, "markdown"))
