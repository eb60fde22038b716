"""What befalls evaluations: things move, are damaged, named twice, asked by two at once, or cannot be written."""

import json
import logging
import os
import shutil
import sys

import peft
import pytest
import torch
import transformers
import yaml

from srt_peft import cli
from srt_peft.errors import LockedError, SRTError
from srt_peft.evaluation.records import Records
from srt_peft.evaluation.targets import target_of
from srt_peft.training.loop import train
from srt_peft.training.recipe import load_recipe
from tests.evaluation import world as facts
from tests.evaluation.test_records import opened, record


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base; an update, one in 4 bits, one of the whole model; and an adapter that PEFT alone has saved."""
    folder = tmp_path_factory.mktemp("world")
    facts.build(folder, n_old=40, n_new=20)
    steps = {"training": {"steps": 2}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(folder / "home"))
        for name, tuning in (("run", "lora"), ("quantised", "qlora"), ("full", "full")):
            assert train(load_recipe(facts.recipe(folder, folder / name, model={"tuning": tuning}, **steps))) == 0
        torch.manual_seed(0)
        base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        peft.get_peft_model(base, config).save_pretrained(folder / "plain")
        patch.chdir(folder)
        yield folder


@pytest.fixture(autouse=True)
def warned(caplog):
    caplog.set_level(logging.WARNING, "srt_peft")
    return caplog


def asked(world, *words, suite=None, code=0):
    """The results by title, and what is told beside them."""
    path = world / "out.json"
    with path.open("w") as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert cli.main(["eval", *words, "--suite", suite or "qa=questions.jsonl", "--format", "json"]) == code
    return {result["title"]: result for result in json.loads(path.read_text())}


def labels(result):
    return {standing["label"]: standing["trainings"] for standing in result["standings"]}


# --- who is asked -------------------------------------------------------------------------------------------------


def test_a_target_that_is_named_twice_is_one_training(world):
    """Else its spread between trainings would be nothing, and its interval too narrow."""
    assert labels(asked(world, "--compare", "run", "run")["qa, by text"]) == {str(world / "base"): 1, "run": 1}
    assert labels(asked(world, "base", "base")["qa, by text"]) == {"base": 1}


@pytest.mark.parametrize("base", ["base", "./base/", "absolute"])
@pytest.mark.parametrize("suite", ["qa=questions.jsonl", "perplexity"])
def test_a_base_may_be_named_among_those_compared(world, base, suite):
    """By whatever path: it is the base, and stands there once; held-out text it has from the others."""
    base = str(world / "base") if base == "absolute" else base
    [result, *_] = asked(world, "--compare", base, "run", "full", suite=suite).values()
    assert set(labels(result)) == {result["base"], "run", "full"}


def test_what_was_not_trained_is_asked_in_the_precision_of_what_was(world):
    """A base beside an update in 4 bits, and an adapter of which nobody knows what it was trained in."""
    together = asked(world, "--compare", "quantised", "plain", "--base", "base")["qa, by text"]
    assert set(labels(together)) == {"base", "quantised", "plain"}
    assert together == asked(world, "--compare", "quantised", "plain", "--base", "base", "--precision", "4bit")[
        "qa, by text"
    ]  # fmt: skip


def test_a_base_that_has_moved_and_has_another_name_is_named(world, tmp_path, capsys, warned):
    """Of an adapter and of a full checkpoint, which both know it by the place where it was."""
    shutil.copytree(world / "base", tmp_path / "gone")
    for name, tuning in (("adapter", "lora"), ("whole", "full")):
        model = {"tuning": tuning, "base": str(tmp_path / "gone")}
        train(load_recipe(facts.recipe(world, tmp_path / name, model=model, training={"steps": 1})))
    (tmp_path / "gone").rename(tmp_path / "moved")
    for name in ("adapter", "whole"):
        words = ["--compare", str(tmp_path / name)]
        assert cli.main(["eval", *words, "--suite", "qa=questions.jsonl"]) == 2
        assert "gone' does not exist" in (told := capsys.readouterr().err)
        assert "give its base with --base" in told
        found = asked(world, *words, "--base", str(tmp_path / "moved"))["qa, by text"]
        assert set(labels(found)) == {str(tmp_path / "moved"), str(tmp_path / name)}
    assert f"was made for the base {tmp_path / 'gone'}, and is asked on {tmp_path / 'moved'}" in warned.text
    (tmp_path / "gone").symlink_to(tmp_path / "moved")
    warned.clear()
    target_of(str(tmp_path / "adapter"), base=str(tmp_path / "gone"))
    assert not warned.text, "the same name, though it leads elsewhere"


def test_it_is_told_that_the_newest_checkpoint_is_damaged(world, tmp_path, warned):
    """What was asked is not what would be shipped."""
    shutil.copytree(world / "run", tmp_path / "run")
    home = tmp_path / "run/checkpoints"
    shutil.copytree(home / "step-00000002", home / "step-00000003")
    asked(world, str(tmp_path / "run"))
    assert "step-00000003 is not what its name says" in warned.text
    assert f"Asked instead is {home / 'step-00000002'}." in warned.text


def test_an_adapter_that_is_scaled_otherwise_is_asked_anew(world, tmp_path):
    """Its weights are the same, and their effect is not."""
    shutil.copytree(world / "plain", tmp_path / "plain")
    words = [str(tmp_path / "plain"), "--base", "base"]
    first = asked(world, *words, suite="perplexity=run/recipe.yaml")
    path = tmp_path / "plain/adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "lora_alpha": 64}))
    assert asked(world, *words, suite="perplexity=run/recipe.yaml") != first


def test_an_adapter_without_safetensors_is_told(world, tmp_path, capsys):
    shutil.copytree(world / "plain", tmp_path / "plain")
    (tmp_path / "plain/adapter_model.safetensors").unlink()
    assert cli.main(["eval", str(tmp_path / "plain"), "--base", "base", "--suite", "qa=questions.jsonl"]) == 2
    assert "has no adapter_model.safetensors" in capsys.readouterr().err


def test_a_base_that_was_changed_without_a_trace_is_asked_anew(world, tmp_path):
    """Size and time are those of the weights that were there before, as copies and archives may leave them."""
    shutil.copytree(world / "base", tmp_path / "base")
    first = asked(world, str(tmp_path / "base"))
    weights = tmp_path / "base/model.safetensors"
    times = weights.stat()
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert asked(world, str(tmp_path / "base")) != first


# --- what is asked ------------------------------------------------------------------------------------------------


def test_two_files_of_questions_are_told_apart(world, tmp_path):
    """By their names, in the tables, in metrics.jsonl and in the card."""
    lines = (world / "questions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "few.jsonl").write_text("".join(lines[30:50]))
    suites = ["qa=questions.jsonl", f"qa={tmp_path / 'few.jsonl'}"]
    found = asked(world, "base", "--suite", suites[1])
    few = f"{tmp_path.name}/few.jsonl"
    assert set(found) == {f"qa, by {mode} ({file})" for mode in ("letter", "text") for file in ("questions.jsonl", few)}
    change = {"evaluation": {"every": 2, "suites": suites}, "training": {"steps": 2}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(facts.recipe(world, tmp_path / "run", **change)))
    assert cli.main(["train", str(tmp_path / "r.yaml")]) == 0
    card = (tmp_path / "run/checkpoints/step-00000002/README.md").read_text()
    assert "| qa, by text (questions.jsonl), old, after step 2 |" in card
    assert f"| qa, by text ({few}), old, after step 2 |" in card


@pytest.mark.parametrize("suite", ["qa=qustions.jsonl", "qa-text=qustions.jsonl", "temporalwiki=qustions.csv"])
def test_a_run_does_not_begin_with_a_suite_that_would_end_it(world, tmp_path, capsys, suite):
    """Not after the steps up to the first evaluation, but before anything is made."""
    change = {"evaluation": {"every": 2, "suites": [suite]}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(facts.recipe(world, tmp_path / "run", **change)))
    assert cli.main(["train", str(tmp_path / "r.yaml")]) == 2
    assert "qustions" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


WRONG = {
    "no number": (["--max-forgetting", "nan"], "--max-forgetting = nan: expected a number of points, 0 or more"),
    "below zero": (["--max-forgetting", "-1"], "--max-forgetting = -1: expected a number of points, 0 or more"),
    "no tokens": (["--batch-tokens", "0"], "--batch-tokens = 0: expected a whole number, 1 or more"),
    "no questions": (["--limit", "0"], "--limit = 0: expected a whole number, 1 or more"),
    "a seed below zero": (["--seed", "-1"], "--seed = -1: expected a whole number, 0 or more"),
    "out is a file": (["--out", "questions.jsonl"], "--out = questions.jsonl: File exists: expected a folder"),
}


@pytest.mark.parametrize("case", WRONG)
def test_it_is_told_before_anything_is_asked(case, world, capsys, monkeypatch):
    """And not after hours, in the last line."""
    from srt_peft.evaluation import suites

    words, told = WRONG[case]
    monkeypatch.setattr(suites, "load", None)
    assert cli.main(["eval", "--compare", "run", "--suite", "qa=questions.jsonl", *words]) == 2
    assert told in capsys.readouterr().err


# --- where answers are kept ---------------------------------------------------------------------------------------


def test_one_evaluation_at_a_time_adds_to_a_file(tmp_path):
    """The second is told; and who was there first and has ended leaves its answers to those who come later."""
    first, second = opened(tmp_path), opened(tmp_path)
    answers = first.add([record(i) for i in range(4)])
    next(answers)
    with pytest.raises(LockedError, match="another evaluation that asks the same"):
        list(second.add([record(0)]))
    list(answers)
    first.close()
    assert list(second.add(record(i) for i in range(4) if record(i)["key"] not in second.known)) == []
    second.close()
    assert second.path.read_text().count('"end"') == 1
    assert opened(tmp_path).done
    assert len(opened(tmp_path).known) == 4


def test_who_only_reads_cuts_nothing_off(tmp_path):
    """Another may be in the middle of a line."""
    first = opened(tmp_path)
    list(first.add([record(1)]))
    with first.path.open("a") as file:
        file.write('{"key": "to')
    before = first.path.read_bytes()
    assert len(opened(tmp_path).known) == 1
    assert first.path.read_bytes() == before


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SRTError, match=r"cannot be written \(.*\)\. Have answers kept elsewhere, with --out"):
        list(Records(tmp_path / "file", "qa", {}, {}).add([record(1)]))


def test_a_run_that_may_not_be_written_to_has_its_answers_kept_in_the_cache(world, tmp_path, monkeypatch):
    """Another's run, say, on a disk that is shared."""
    from srt_peft.evaluation import evaluate

    shutil.copytree(world / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/evaluation", ignore_errors=True)
    allowed = evaluate.os.access
    monkeypatch.setattr(evaluate.os, "access", lambda path, mode: tmp_path / "run" != path and allowed(path, mode))
    assert labels(asked(world, str(tmp_path / "run"))["qa, by text"])
    assert not (tmp_path / "run/evaluation").exists()
