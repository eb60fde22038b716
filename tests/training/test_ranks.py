"""Two processes, launched as a person launches them: the same run as one, and nobody is left waiting.

A launch takes seconds, so what can share one does: `two` is a whole run, and `script` runs one case after another.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import torch
import transformers

from srt_peft import ReviewLog
from srt_peft.training import checkpoint
from srt_peft.training.loop import train
from srt_peft.training.ranks import buckets
from srt_peft.training.recipe import dump, load_recipe
from tests.data.helpers import byte_bpe, prose

ROOT = Path(__file__).parents[2]
STEPS, EVERY = 14, 5
FINAL, HALF = "checkpoints/step-00000014", "checkpoints/step-00000010"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A base that knows the old text by heart, so that its examples are recalled, and some steps draw nothing."""
    folder = tmp_path_factory.mktemp("ranks")
    tokenizer = byte_bpe()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    texts = {"old": [prose(1, seed=i) for i in range(20)], "new": [prose(1, seed=90 + i) for i in range(20)]}
    for name, documents in texts.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    model = transformers.AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ids = torch.tensor(tokenizer("\n".join(texts["old"] + texts["new"]))["input_ids"])
    ids = ids[: ids.numel() // 48 * 48].view(-1, 48)
    for _ in range(30):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    before = os.environ.get("SRT_PEFT_HOME")
    os.environ["SRT_PEFT_HOME"] = str(folder / "home")
    yield folder
    del os.environ["SRT_PEFT_HOME"]
    if before is not None:
        os.environ["SRT_PEFT_HOME"] = before


def recipe(world, output, *overrides):
    values = {
        "model": {"base": str(world / "base"), "tuning": "lora", "dtype": "float32", "gradient_checkpointing": False},
        "data": {"old": str(world / "old.jsonl"), "new": str(world / "new.jsonl"), "max_length": 48, "holdout": 0.02},
        "review": {"preset": "paper"},
        "training": {
            "steps": STEPS, "batch_size": 24, "micro_batch_tokens": 144, "learning_rate": 0.01, "warmup_steps": 2,
        },
        "checkpoints": {"every": EVERY, "keep": 9},
        "evaluation": {"every": EVERY},
        "output": str(output),
    }  # fmt: skip
    return load_recipe(values, overrides)


def logged(run):
    """How many steps there are in the metrics, which a run that begins anew removes."""
    try:
        return (run / "metrics.jsonl").read_text().count('"loss"')
    except FileNotFoundError:
        return 0


def metrics(run):
    """The lines of a run, but for the time that they took."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


class Launch:
    """Two processes on the CPU, by `torchrun` or by `accelerate launch`; a test fails if one of them is left behind."""

    TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    ACCELERATE = ("accelerate.commands.launch", "--config_file", str(ROOT / "recipes/accelerate/ddp.yaml"))

    def __init__(self, *program, launcher=TORCHRUN):
        command = [sys.executable, "-m", *launcher, *program]
        self.mark = f"TEST_RANKS={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), name: value,
        }  # fmt: skip
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @classmethod
    def train(cls, world, run, *overrides, resume=False, launcher=TORCHRUN):
        path = world / f"{run.name}.yaml"
        path.write_text(dump(recipe(world, run, *overrides)))
        return cls("-m", "srt_peft", "train", str(path), *(["--resume"] if resume else []), launcher=launcher)

    def ranks(self):
        """The processes that train."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def family(self):
        """The launcher and all that it started, as far as they live."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it has ended since, or is somebody else's
                if self.mark.encode() in environ.read_bytes():
                    found.append(int(environ.parent.name))
        return found

    def end(self):
        """(exit code, output, errors) once it has ended; it must, and so must all that it started."""
        try:
            out, err = self.process.communicate(timeout=150)
        finally:
            left = self.family()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        assert not left
        return self.process.returncode, out, err

    def wait_for_steps(self, run, count):
        """Until so many steps are in the metrics."""
        while logged(run) < count:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)


@pytest.fixture(scope="module")
def one(world):
    """The run by one process."""
    assert train(recipe(world, world / "one")) == 0
    return world / "one"


@pytest.fixture(scope="module")
def told(world):
    """What two processes said, and their exit code."""
    return Launch.train(world, world / "two").end()


@pytest.fixture(scope="module")
def two(world, told):
    """The same run by two."""
    assert told[0] == 0, told
    return world / "two"


def assert_same_run(mine, theirs):
    """The same draws and reviews; losses, norms and signals to rounding."""
    logs = [ReviewLog(run / "review/log").records() for run in (mine, theirs)]
    for field in ("step", "id", "quality", "pool"):
        assert logs[0][field].tolist() == logs[1][field].tolist(), field
    assert logs[0]["signal"] == pytest.approx(logs[1]["signal"], rel=1e-4, nan_ok=True)
    for ours, other in zip(metrics(mine), metrics(theirs), strict=True):
        assert ours.pop("slots", None) == other.pop("slots", None)
        assert ours.pop("forgetting", []) == pytest.approx(other.pop("forgetting", []), rel=1e-3, abs=1e-4)
        assert ours == pytest.approx(other, rel=1e-3, abs=1e-6)


def assert_same_bytes(mine, theirs):
    assert metrics(mine) == metrics(theirs)
    names = ("adapter_model.safetensors", "srt_state/columns-0.safetensors", "trainer/optimizer.safetensors")
    for name in ("review/log", *(f"{FINAL}/{name}" for name in names)):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes(), name


def left_at_half(run, copy):
    """A run as it is when it was killed after its second checkpoint."""
    shutil.copytree(run, copy)
    shutil.rmtree(copy / FINAL)
    return copy


def test_two_processes_do_what_one_does(one, two):
    assert_same_run(two, one)


def test_the_run_has_every_kind_of_step(one):
    """With nothing drawn, with a single micro-batch (one process has none), with several; and little is held out."""
    tokens = [line["tokens"] for line in metrics(one) if "tokens" in line]
    assert 0 in tokens
    assert any(0 < n <= 96 for n in tokens)  # three rows of 48 are sure to hold them
    assert any(n > 144 for n in tokens)
    assert any("held_out_old_nll" in line for line in metrics(one))


def test_everything_is_said_once(told):
    _, out, err = told
    assert out.count(f"Done: {STEPS} steps.") == 1
    assert err.count("held-out perplexity") == 1 + STEPS // EVERY
    assert err.count("Loading weights: 100%") <= 1
    assert "destroy" not in err
    assert "Traceback" not in err


def test_saved_by_two_resumed_by_one(world, two, one, tmp_path):
    run = left_at_half(two, tmp_path / "run")
    asked = recipe(world, run)
    assert train(asked, resume=True) == 0
    assert_same_run(run, one)


@pytest.mark.slow
def test_killed_twice_and_resumed_by_two_it_ends_with_the_same_bytes(world, two, tmp_path):
    """SIGKILL for all at once; then for one process only, whom the others do not outlive."""
    run = tmp_path / "killed"
    everyone = Launch.train(world, run)
    everyone.wait_for_steps(run, 2)
    for pid in everyone.family():
        os.kill(pid, signal.SIGKILL)
    everyone.process.communicate(timeout=60)
    lone = Launch.train(world, run, resume=True)
    lone.wait_for_steps(run, 7)
    os.kill(lone.ranks()[1], signal.SIGKILL)
    code, _, err = lone.end()
    assert code == 1
    assert "This was not foreseen" not in err
    code, out, err = Launch.train(world, run, resume=True).end()
    assert code == 0, err
    assert out.count(f"Done: {STEPS} steps.") == 1
    assert_same_bytes(run, two)


@pytest.mark.slow
def test_sigterm_to_the_launcher_saves_and_says_how_to_go_on(world, tmp_path):
    """Once, however many processes are asked to stop; and what was learned until then is saved."""
    run = tmp_path / "stopped"
    launch = Launch.train(world, run, "training.steps=5000", "checkpoints.every=5000", "evaluation.every=null")
    launch.wait_for_steps(run, 3)
    launch.process.send_signal(signal.SIGTERM)
    code, out, err = launch.end()
    assert code != 0
    assert "SIGABRT" not in err
    (steps,) = re.findall(r"Stopped after (\d+) of 5000 steps; everything is saved in", out)
    assert out.count("--resume") == 1
    assert checkpoint.newest(run) == (run / "checkpoints" / f"step-{int(steps):08d}", [])
    assert metrics(run)[-1]["step"] == int(steps) - 1


def test_fewer_examples_than_processes_is_told_once(world, tmp_path):
    """An exit code of 2, a single message, and nobody left behind; here with the configuration that we ship for DDP."""
    launch = Launch.train(world, tmp_path / "run", "training.batch_size=1", launcher=Launch.ACCELERATE)
    code, _, err = launch.end()
    assert code == 1  # the launcher's own; that of the process is in its report
    assert err.count("expected at least one example for each of the 2 processes") == 1
    assert re.findall(r"exitcode +: (\S+)", err.partition("Root Cause")[2]) == ["2"]
    assert not (tmp_path / "run").exists()


SCRIPT = """
import json, os, sys
from srt_peft.training import ranks
from srt_peft.training import checkpoint
from srt_peft.training.loop import train
from srt_peft.training.recipe import load_recipe

ranks._HEARING = 0  # nobody leaves: the next case follows
found = {}
with open(sys.argv[1]) as file:
    cases = json.load(file)
for name, (recipe, resume) in cases.items():
    try:
        found[name] = train(load_recipe(recipe), resume=resume)
    except SystemExit as left:
        found[name] = f"left with {left.code}"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def script(world, one, two):
    """What became of each case, on the main process and on the other; in one launch, one case after the other."""
    (world / "file").write_text("a file, and no folder")
    (world / "full").mkdir()
    (world / "full/checkpoints").write_text("a file, and no folder")
    cases = {
        "resumed": (left_at_half(one, world / "resumed"), True),
        "another's": (one, False),
        "no folder": (world / "file" / "run", False),
        "not saved": (world / "full", False),
        "finished": (two, True),
    }
    asked = {name: (recipe(world, run).as_dict(), resume) for name, (run, resume) in cases.items()}
    (world / "cases.json").write_text(json.dumps(asked))
    (world / "cases.py").write_text(SCRIPT)
    code, _, err = Launch(str(world / "cases.py"), str(world / "cases.json")).end()
    assert code == 0, err
    main, other = (json.loads((world / f"cases.json.{rank}").read_text()) for rank in (0, 1))
    return {name: (main[name], other[name]) for name in cases}


def test_saved_by_one_resumed_by_two(world, script, one):
    assert script["resumed"] == (0, 0)
    assert_same_run(world / "resumed", one)


@pytest.mark.parametrize(
    ("case", "why", "code"),
    [
        ("another's", "a run lies there already", 2),
        ("no folder", "Not a directory", 2),
        ("not saved", "File exists", 1),
    ],
)
def test_what_only_the_main_process_fails_at_ends_the_others_too(script, case, why, code):
    """With its exit code, and without a word."""
    main, other = script[case]
    assert why in main
    assert other == f"left with {code}"


def test_a_finished_run_is_finished_for_all(script):
    assert script["finished"] == (0, 0)


def test_buckets_hold_every_tensor_once_in_order():
    """None has more numbers than allowed, unless it is one tensor; and none mixes types."""
    kinds = [torch.float32] * 6 + [torch.bfloat16] * 3 + [torch.float32]
    tensors = [torch.zeros(n, dtype=kind) for n, kind in zip([3, 4, 5, 20, 1, 0, 2, 2, 2, 7], kinds, strict=True)]
    found = list(buckets(tensors, size=10))
    assert [[t.numel() for t in bucket] for bucket in found] == [[3, 4], [5], [20], [1, 0], [2, 2, 2], [7]]
    assert [id(t) for bucket in found for t in bucket] == [id(t) for t in tensors]
