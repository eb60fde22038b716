"""The examples run as they stand, and a second run goes on where the first one ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from srt_peft import load_scheduler
from tests.integrations.worlds import needs_trl

ROOT = Path(__file__).parents[2]


def run(name, out, *more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(ROOT / "examples" / name), "--out", str(out), *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_trainer(tmp_path):
    assert "10 steps; " in run("trainer.py", tmp_path, "--steps", "10")
    assert "20 steps; 20 of 20 old and 32 of 32 new examples seen" in run("trainer.py", tmp_path)
    with load_scheduler(tmp_path / "checkpoint-20" / "srt_state") as s:
        assert s.state.step == 20


@needs_trl
def test_sft(tmp_path):
    assert f"6 steps; the adapter and srt_state/ lie in {tmp_path}" in run("sft.py", tmp_path, "--steps", "6")
    assert (tmp_path / "adapter_model.safetensors").exists()
    with load_scheduler(tmp_path / "srt_state") as s:
        assert s.state.step == 6


def test_bare_loop(tmp_path):
    """A classifier; it learns, and two runs of 60 steps draw as one of 120."""
    run("bare_loop.py", tmp_path / "two")
    last = run("bare_loop.py", tmp_path / "two")
    assert last == "".join(run("bare_loop.py", tmp_path / "one", "--steps", "120").splitlines(keepends=True)[3:])
    assert "after step 120: 9" in last


@pytest.mark.parametrize("name", ["trainer.py", "sft.py", "bare_loop.py"])
def test_what_is_new_is_marked(name):
    """No more than eight lines beside a script that one has."""
    lines = (ROOT / "examples" / name).read_text().splitlines()
    assert 3 <= sum("←" in line for line in lines) <= 8
