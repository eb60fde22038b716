"""`srt-peft eval` as a person runs it: a base that knows, an update that contradicts it, and one that does nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import transformers
import yaml

from srt_peft import OptionError, cli
from srt_peft.training.loop import train
from srt_peft.training.recipe import load_recipe
from tests.evaluation import world as facts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The base, and three updates of it: `wrong` contradicts the old, `idle` learns nothing, `quantised` is QLoRA."""
    folder = tmp_path_factory.mktemp("world")
    facts.build(folder)
    changes = {
        "wrong": {"data": {"new": str(folder / "wrong.jsonl")}},
        "idle": {"training": {"learning_rate": 1e-9, "steps": 2}},
        "quantised": {
            "data": {"new": str(folder / "wrong.jsonl")},
            "model": {"tuning": "qlora"},
            "training": {"steps": 8, "learning_rate": 1e-4},
        },
        "full": {"model": {"tuning": "full"}, "training": {"steps": 2, "learning_rate": 1e-9}},
    }
    before = os.environ.get("SRT_PEFT_HOME")
    os.environ["SRT_PEFT_HOME"] = str(folder / "home")
    for name, change in changes.items():
        assert train(load_recipe(facts.recipe(folder, folder / name, **change))) == 0
    yield folder
    os.environ.pop("SRT_PEFT_HOME") if before is None else os.environ.update(SRT_PEFT_HOME=before)


def asked(world, *words, code=0):
    """The results of `srt-peft eval … --format json`, in this process."""
    path = world / "out.json"
    with path.open("w") as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert cli.main(["eval", *map(str, words), "--format", "json"]) == code
    return {result["title"]: result for result in json.loads(path.read_text())}


def scores(result, label):
    [standing] = [s for s in result["standings"] if s["label"] == str(label)]
    return {split: score["mean"] for split, score in standing["scores"].items()}


def qa(world):
    return f"qa={world / 'questions.jsonl'}"


def test_a_planted_forgetting_is_caught_and_an_untouched_update_passes(world):
    """By exit code, with the verdict in words; the base is found by itself."""
    caught = asked(world, "--compare", world / "wrong", "--suite", qa(world), "--max-forgetting", "2.0", code=3)
    by_text = caught["qa, by text"]
    assert scores(by_text, world / "base")["old"] == 1.0
    assert scores(by_text, world / "wrong")["old"] < 0.1
    [standing] = [s for s in by_text["standings"] if s["label"] == str(world / "wrong")]
    [verdict] = standing["verdicts"]
    assert verdict["outcome"] == "forgot"
    assert "Forgot too much" in verdict["sentence"]
    passed = asked(world, "--compare", world / "idle", "--suite", qa(world), "--max-forgetting", "2.0")
    [standing] = [s for s in passed["qa, by text"]["standings"] if s["label"] == str(world / "idle")]
    assert [v["outcome"] for v in standing["verdicts"]] == ["kept"]
    assert standing["effects"]["old"]["difference"]["mean"] == 0


def test_every_kind_of_target_is_asked(world):
    """A base, a run, a checkpoint, an adapter in 4 bits, a full checkpoint; by name what each one is."""
    [checkpoint] = (world / "idle/checkpoints").iterdir()
    targets = [world / "base", world / "idle", checkpoint, world / "full"]
    found = asked(world, *targets, "--suite", qa(world), "--precision", "float32")["qa, by text"]
    assert {s["label"] for s in found["standings"]} == set(map(str, targets))
    assert all(scores(found, target)["old"] == 1.0 for target in targets)
    quantised = asked(world, world / "quantised", "--suite", qa(world))["qa, by text"]
    plain = asked(world, world / "quantised", "--suite", qa(world), "--precision", "float32")["qa, by text"]
    assert scores(quantised, world / "quantised")["old"] > 0.8
    assert scores(plain, world / "quantised")["old"] > 0.8


def test_questions_that_give_themselves_away_are_seen(world):
    """Beside the scores stand those of chance, of the commonest letter, of length, and of no question at all."""
    found = asked(world, world / "base", "--suite", qa(world))["qa, by text"]["baselines"]
    assert found["chance"] == {"old": 0.25, "new": 0.25}
    assert set(found) == {
        "chance", "majority letter", "longest answer", "letter, question left out", "text, question left out",
    }  # fmt: skip
    assert found["text, question left out"]["old"] < 0.5


def test_held_out_text_is_asked_by_default(world):
    """The run's own, and the base's on the same text; the update that learned nothing changes nothing."""
    found = asked(world, "--compare", world / "idle")["perplexity of held-out text"]
    assert scores(found, world / "idle") == pytest.approx(scores(found, world / "base"), abs=1e-6)
    assert found["splits"] == ["new"]


def test_runs_that_differ_in_their_seed_are_one_condition(world, tmp_path):
    """Two trainings, one row, and the spread between them."""
    for seed in (1, 2):
        change = {"data": {"new": str(world / "wrong.jsonl")}, "training": {"seed": seed, "steps": 6}}
        train(load_recipe(facts.recipe(world, tmp_path / str(seed), **change)))
    found = asked(world, "--compare", tmp_path / "1", tmp_path / "2", "--suite", qa(world))["qa, by text"]
    [standing] = [s for s in found["standings"] if s["label"] == str(tmp_path / "1")]
    assert standing["trainings"] == 2
    assert len(standing["scores"]["old"]["runs"]) == 2


def test_probes_in_the_format_of_the_release(world):
    """Two files, changed and unchanged; the object alone is scored."""
    folder = world / "probes"
    folder.mkdir(exist_ok=True)
    lines = (world / "old.jsonl").read_text().splitlines()[:20]
    for split, wanted in (("changed", lines[:5]), ("unchanged", lines[5:])):
        rows = [json.loads(line)["text"].removesuffix("\n").rsplit(" ", 1) for line in wanted]
        rows = [["Question: " + a.removeprefix("Question: ").split("\n")[0], "Answer:", b] for a, b in rows]
        text = "subject,relation,object\n" + "".join(f"{','.join(row)}\n" for row in rows)
        (folder / f"0801-0901_{split}.csv").write_text(text)
    found = asked(world, world / "base", "--suite", f"temporalwiki={folder}")
    means = scores(found["temporalwiki, the perplexity of the objects' mean NLL"], world / "base")
    assert set(means) == {"changed", "unchanged", "combined"}
    assert means["unchanged"] < 0.3  # it was trained on just these
    assert scores(found["temporalwiki, the mean of the objects' perplexities"], world / "base")["changed"] >= 1


def test_a_run_asks_its_suites_on_the_way_and_its_card_says_so(world, tmp_path):
    """In metrics.jsonl at each evaluation, and in the checkpoint's README; and the end agrees with `srt-peft eval`."""
    change = {"evaluation": {"every": 2, "suites": [qa(world)]}, "training": {"steps": 4}}
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(facts.recipe(world, tmp_path / "run", **change)))
    assert cli.main(["train", str(path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if "score/qa, by text, old" in line]
    assert [line["step"] for line in told] == [-1, 1, 3]  # before the first step, and after the second and the fourth
    assert told[0]["score/qa, by text, old"] == 1.0
    after = scores(asked(world, tmp_path / "run", "--suite", qa(world))["qa, by text"], tmp_path / "run")
    assert told[-1]["score/qa, by text, old"] == pytest.approx(after["old"])
    card = (tmp_path / "run/checkpoints/step-00000004/README.md").read_text()
    assert f"| qa, by text, old, after step 4 | {after['old']:.4g} |" in card
    assert re.search(r"perplexity of held-out new text, after step 4 \| \d", card)
    assert "library_name: peft" in card
    assert str(world) not in card


# --- going on -----------------------------------------------------------------------------------------------------


def test_killed_and_asked_again_it_goes_on_and_ends_with_the_same(world, tmp_path):
    """SIGKILL while it answers: what was answered is kept, and the rest ends up the same, line by line."""
    many = tmp_path / "many.jsonl"
    facts.write_questions(many, facts.facts(200, seed=0, letter="A"), facts.facts(1500, seed=5, letter="N"))
    words = [sys.executable, "-m", "srt_peft", "eval", str(world / "base"), "--suite", f"qa={many}", "--batch-tokens",
             "256", "--format", "json", "--out"]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = subprocess.Popen([*words, str(killed)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while sum(p.read_text().count("\n") for p in killed.rglob("qa-*.jsonl")) < 300:
        assert process.poll() is None, "it was over before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    [path] = killed.rglob("qa-*.jsonl")
    before = path.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    path.write_bytes(before + b'{"key": "torn')
    for folder in (killed, whole):
        subprocess.run([*words, str(folder)], cwd=ROOT, check=True, capture_output=True)
    [other] = whole.rglob("qa-*.jsonl")
    assert path.read_bytes().startswith(before)
    assert sorted(path.read_text().splitlines()) == sorted(other.read_text().splitlines())
    assert (killed / "results.json").read_text() == (whole / "results.json").read_text()


def test_asked_again_it_loads_no_model(world, monkeypatch):
    """What is known is not asked; another model is."""
    first = asked(world, world / "idle", "--suite", qa(world))
    from srt_peft.evaluation import suites

    def load(*_):
        raise AssertionError

    monkeypatch.setattr(suites, "load", load)
    assert asked(world, world / "idle", "--suite", qa(world)) == first
    base = transformers.AutoModelForCausalLM.from_pretrained(world / "base")
    base.model.norm.weight.data.add_(0.5)
    base.save_pretrained(world / "other")
    transformers.AutoTokenizer.from_pretrained(world / "base").save_pretrained(world / "other")
    with pytest.raises(AssertionError):
        cli.main(["--debug", "eval", str(world / "other"), "--suite", qa(world)])


# --- bad input ----------------------------------------------------------------------------------------------------

WRONG = {
    "no target": (["--suite", "perplexity"], "there is no target: expected a run, a checkpoint, an adapter, or a base"),
    "an unknown suite": (["x", "--suite", "board"], "'board': 'board' is no suite (did you mean 'broad'?); known"),
    "no questions named": (["x", "--suite", "qa"], "'qa': expected qa=…, a JSONL file of questions"),
    "broad names nothing": (["x", "--suite", "broad=1"], "'broad=1': expected broad alone"),
    "no such target": (["./nope", "--suite", "broad"], "expected a run, a checkpoint, an adapter, or a base model"),
    "an allowance without a base": (["base", "--suite", "qa=q", "--max-forgetting", "2"], "expected --compare"),
    "an allowance without points": (["--compare", "base", "--max-forgetting", "2"], "expected a suite of broad, qa"),
    "perplexity of a base": (["base"], "is no run's, so there is no held-out text: expected perplexity=RECIPE.yaml"),
    "no such questions": (["base", "--suite", "qa=questons.jsonl"], "(did you mean 'questions.jsonl'?)"),
    "no probes": (["base", "--suite", "temporalwiki=old.jsonl"], "has no column subject, relation, object_new, status"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_asked_is_told(case, world, monkeypatch, capsys):
    """Exit code 2, in words, before any model is loaded."""
    words, told = WRONG[case]
    monkeypatch.chdir(world)
    assert cli.main(["eval", *words]) == 2
    assert told in capsys.readouterr().err


def test_runs_of_two_bases_are_not_compared(world, tmp_path):
    base = transformers.AutoModelForCausalLM.from_pretrained(world / "base")
    base.save_pretrained(tmp_path / "second")
    transformers.AutoTokenizer.from_pretrained(world / "base").save_pretrained(tmp_path / "second")
    change = {"model": {"base": str(tmp_path / "second")}, "training": {"steps": 1}}
    train(load_recipe(facts.recipe(world, tmp_path / "run", **change)))
    from srt_peft.evaluation.evaluate import evaluate
    from srt_peft.evaluation.suites import Options, parse

    with pytest.raises(OptionError, match=r"the targets have 2 bases \(.*\): expected one in common"):
        evaluate([str(world / "idle"), str(tmp_path / "run")], parse([qa(world)]), Options(), against_base=True)


def test_a_damaged_checkpoint_is_not_asked(world, tmp_path, capsys):
    import shutil

    shutil.copytree(world / "idle", tmp_path / "run")
    [weights] = (tmp_path / "run").rglob("adapter_model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4])
    assert cli.main(["eval", str(weights.parent), "--suite", qa(world)]) == 1
    assert "is damaged: adapter_model.safetensors is not as it was written" in capsys.readouterr().err
