"""The whole update, as a person runs it: a tiny base, real tokenizers, real text, on the CPU."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from srt_peft import OptionError, ReviewLog, ReviewState
from srt_peft.training.loop import train
from srt_peft.training.recipe import load_recipe
from tests.data.helpers import byte_bpe, prose

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base that was trained on the old text, a new text that it does not know, and a cache of their own."""
    folder = tmp_path_factory.mktemp("world")
    tokenizer = byte_bpe()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    texts = {"old": [prose(4, seed=i) for i in range(60)], "new": [prose(4, seed=100 + i).upper() for i in range(60)]}
    for name, documents in texts.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    model = transformers.AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for i in range(80):
        ids = torch.tensor(tokenizer(texts["old"][i % 60])["input_ids"])[None, :100]
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    os.environ["SRT_PEFT_HOME"] = str(folder / "home")
    yield folder
    del os.environ["SRT_PEFT_HOME"]


def recipe(world, output, *overrides):
    values = {
        "model": {"base": str(world / "base"), "tuning": "lora", "dtype": "float32", "gradient_checkpointing": False},
        "data": {"old": str(world / "old.jsonl"), "new": str(world / "new.jsonl"), "max_length": 48, "holdout": 0.1},
        "training": {
            "steps": 12, "batch_size": 10, "micro_batch_tokens": 200, "learning_rate": 0.01, "warmup_steps": 2,
        },
        "checkpoints": {"every": 4, "keep": 2},
        "evaluation": {"every": 6},
        "output": str(output),
    }  # fmt: skip
    return load_recipe(values, overrides)


def logged(run):
    """How many steps there are in the metrics, which a run that begins anew removes."""
    try:
        return (run / "metrics.jsonl").read_text().count('"loss"')
    except FileNotFoundError:
        return 0


def metrics(folder):
    """The lines of a run, but for the time that they took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


SAME = (
    "adapter_model.safetensors",
    "srt_state/columns-0.safetensors",
    "srt_state/state.json",
    "trainer/optimizer.safetensors",
)


@pytest.fixture(scope="module")
def whole(world):
    """A run that was never stopped."""
    assert train(recipe(world, world / "whole")) == 0
    return world / "whole"


@pytest.fixture(scope="module")
def papers(world):
    """The same under the paper's preset, whose first steps are less steep: rounding does not grow there."""
    assert train(recipe(world, world / "papers", "review.preset=paper")) == 0
    return world / "papers"


@pytest.mark.parametrize("tuning", ["lora", "qlora", "full"])
def test_an_update_lowers_the_new_perplexity_and_loads_as_it_is(world, tmp_path, tuning):
    """On text, not on random tokens; and what is saved is what Transformers and PEFT load."""
    from peft import PeftModel

    rate = "0.003" if tuning == "full" else "0.02"
    asked = recipe(
        world, tmp_path / "run", f"model.tuning={tuning}", f"training.learning_rate={rate}", "training.steps=24"
    )
    assert train(asked) == 0
    lines = metrics(tmp_path / "run")
    held_out = [line["held_out_new_nll"] for line in lines if "held_out_new_nll" in line]
    assert held_out[-1] < held_out[0] - 0.05
    losses = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(losses[-4:]) < losses[0] - 0.1
    final = tmp_path / "run/checkpoints/step-00000024"
    if tuning == "full":
        transformers.AutoModelForCausalLM.from_pretrained(final)
    else:
        base = transformers.AutoModelForCausalLM.from_pretrained(world / "base")
        PeftModel.from_pretrained(base, final)
    transformers.AutoTokenizer.from_pretrained(final)


def test_a_run_says_what_it_did(whole):
    """A line a step; the log, the state and the metrics agree on what was drawn."""
    lines = [line for line in metrics(whole) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(12))
    _, counts = ReviewLog(whole / "review/log").counts()
    assert counts.tolist() == [[line["old"], line["new"]] for line in lines]
    state = ReviewState.open(whole / "checkpoints/step-00000012/srt_state")
    assert state.step == 12
    assert state.visits.sum() == counts.sum()
    assert lines[0]["learning_rate"] == pytest.approx(0.005) or lines[0]["learning_rate"] == 0.0
    assert sorted(p.name for p in (whole / "checkpoints").iterdir()) == ["step-00000008", "step-00000012"]


@pytest.mark.parametrize(
    "override", ["data.packing=false", "training.micro_batch_tokens=60", "training.micro_batch_tokens=5000"]
)
def test_packing_and_accumulation_change_nothing_but_rounding(world, papers, tmp_path, override):
    """The same draws, the same losses to 1e-5, whatever a micro-batch holds."""
    train(recipe(world, tmp_path / "run", "review.preset=paper", override))
    for mine, theirs in zip(metrics(tmp_path / "run"), metrics(papers), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            assert mine[key] == pytest.approx(value, rel=2e-4, abs=1e-5), key


def command(world, output, *more):
    path = world / f"{output.name}.yaml"
    from srt_peft.training.recipe import dump

    path.write_text(dump(recipe(world, output, *more)))
    return ["train", str(path), "--resume"]


def test_killed_again_and_again_it_ends_with_the_same_bytes(world, whole, tmp_path):
    """SIGKILL at five random moments, each time resumed: draws, metrics, state, adapter, all the same."""
    run, moments = tmp_path / "run", random.Random(0)
    arguments = command(world, run, "checkpoints.every=2")
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-m", "srt_peft", *arguments],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        seen = logged(run)
        while process.poll() is None:
            if logged(run) != seen:  # it trains: kill it somewhere within the next steps
                time.sleep(moments.random() * 0.3)
                process.send_signal(signal.SIGKILL)
            time.sleep(0.01)
        if process.returncode == 0:
            break
    subprocess.run([sys.executable, "-m", "srt_peft", *arguments], cwd=ROOT, check=True, capture_output=True)
    assert metrics(run) == metrics(whole)
    assert (run / "review/log").read_bytes() == (whole / "review/log").read_bytes()
    for name in SAME:
        final = "checkpoints/step-00000012"
        assert (run / final / name).read_bytes() == (whole / final / name).read_bytes(), name


def test_asked_to_stop_it_saves_and_says_how_to_go_on(world, whole, tmp_path):
    """SIGTERM: the step is finished, saved, and the message names the command; resumed, it ends as if never stopped."""
    run = tmp_path / "run"
    arguments = command(world, run, "checkpoints.every=100")
    process = subprocess.Popen(
        [sys.executable, "-m", "srt_peft", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not logged(run):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    if process.returncode == 0:
        pytest.skip("the run was over before the signal came")
    assert process.returncode == 1
    assert re.search(r"Stopped after \d+ of 12 steps; everything is saved in .*checkpoints/step-", out)
    assert "--resume" in out
    assert train(recipe(world, run), resume=True) == 0
    assert [line for line in metrics(run) if "loss" in line] == [line for line in metrics(whole) if "loss" in line]


def test_a_finished_run_is_said_to_be(world, whole, capsys):
    """Resumed once more, it does nothing, and that is no failure."""
    assert train(recipe(world, whole), resume=True) == 0
    assert "is finished: all 12 steps are done" in capsys.readouterr().out


def test_a_run_is_not_begun_over_another(world, whole):
    with pytest.raises(OptionError, match="a run lies there already; give --resume to go on"):
        train(recipe(world, whole))


def test_going_on_with_other_settings_is_refused(world, whole):
    """Both values are told, and the way to go on all the same."""
    with pytest.raises(OptionError) as error:
        train(recipe(world, whole, "training.seed=3", "training.learning_rate=0.5"), resume=True)
    assert len(error.value.faults) == 2
    assert "--allow-changes" in str(error.value)


def test_a_damaged_checkpoint_is_passed_over(world, tmp_path, capsys):
    """The newest whole one is taken, and what is wrong with the newer one is told."""
    run = tmp_path / "run"
    train(recipe(world, run))
    damaged = run / "checkpoints/step-00000012/adapter_model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    assert train(recipe(world, run), resume=True) == 0
    told = capsys.readouterr().err
    assert "step-00000012 is damaged: adapter_model.safetensors is not as it was written" in told
    assert "Going on from" in told
    assert "step-00000008" in told


def test_a_batch_smaller_than_the_number_of_processes_is_refused(world, tmp_path, monkeypatch):
    from srt_peft.training import run as runs

    class Two:
        num_processes = 2

    with pytest.raises(OptionError, match="at least one example for each of the 2 processes"):
        runs._check_sizes(recipe(world, tmp_path, "training.batch_size=1"), Two())


# --- trackers, links, identity --------------------------------------------------------------------------------------


def test_a_tracker_gets_what_metrics_jsonl_has(world, tmp_path):
    """TensorBoard's own reader finds each step's loss."""
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(recipe(world, tmp_path / "run", "tracking.with=[tensorboard]", "training.steps=3"))
    files = [event_accumulator.EventAccumulator(str(p)).Reload() for p in (tmp_path / "run").rglob("events.*")]
    [scalars] = [file.Scalars("loss") for file in files if "loss" in file.Tags()["scalars"]]
    told = {event.step: event.value for event in scalars}
    lines = {line["step"]: line["loss"] for line in metrics(tmp_path / "run") if "loss" in line}
    assert told == pytest.approx(lines)


def test_a_tracker_that_is_not_installed_is_told(world, tmp_path):
    with pytest.raises(OptionError, match=r"tracking.with: dvclive cannot be used here; pip install dvclive, or leave"):
        train(recipe(world, tmp_path / "run", "tracking.with=[dvclive]"))
    assert not (tmp_path / "run").exists()


def test_a_run_links_to_its_texts(whole):
    """RUN/pools shows where the tokenised examples lie."""
    from srt_peft.data.pool import Pool

    assert {link.name for link in (whole / "pools").iterdir()} == {"old", "new"}
    state = ReviewState.open(whole / "checkpoints/step-00000012/srt_state")
    pools = [Pool.open(whole / "pools" / name / "train") for name in ("old", "new")]
    assert np.array_equal(np.concatenate([pool.identity for pool in pools]), state.identity)


def test_a_base_that_has_changed_under_a_run_is_refused(world, tmp_path):
    """Its weights are known by more than their folder's name."""
    base = tmp_path / "base"
    shutil.copytree(world / "base", base)
    train(recipe(world, tmp_path / "run", f"model.base={base}", "training.steps=2", "checkpoints.every=1"))
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        model.model.norm.weight.add_(0.1)
    model.save_pretrained(base)
    with pytest.raises(OptionError, match=r"the base is \w+ now and \w+ in the checkpoint \(other weights\)"):
        train(recipe(world, tmp_path / "run", f"model.base={base}", "training.steps=2"), resume=True)
