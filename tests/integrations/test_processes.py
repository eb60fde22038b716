"""Two data-parallel processes, through torchrun and gloo, draw and learn as one does; either resumes the other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.worlds import needs_trl

ROOT = Path(__file__).parents[2]


def run(folder, ranks, *, accumulation, sft=False, resume=False, short=False):
    """What was drawn at each step, and the losses; B = 8 in all."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    numbers = [accumulation, 8 // accumulation // ranks, int(sft), int(resume), int(short)]
    command = [sys.executable, *start, "-m", "tests.integrations.two_processes", str(folder), *map(str, numbers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found["ranks"] == ranks
    return found


def same(mine, theirs, first=0):
    """The same ids at the same steps; signals and losses to rounding."""
    assert [step[:2] for step in mine["drawn"]] == [step[:2] for step in theirs["drawn"][first:]]
    for here, there in zip(mine["drawn"], theirs["drawn"][first:], strict=True):
        assert here[2] == pytest.approx(there[2], rel=1e-5)
    assert mine["losses"][-2:] == pytest.approx(theirs["losses"][-2:], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sft", [False, pytest.param(True, marks=needs_trl)], ids=["Trainer", "SFTTrainer"])
def test_two_processes_draw_and_learn_as_one_does(tmp_path, sft):
    """At accumulation 2 and at 1; and two go on from one's checkpoint as one would have."""
    one = run(tmp_path / "one", 1, accumulation=2, sft=sft)
    assert [step for step, _, _ in one["drawn"]] == list(range(6))
    same(run(tmp_path / "two", 2, accumulation=2, sft=sft), one)
    same(run(tmp_path / "wide", 2, accumulation=1, sft=sft), one)
    (tmp_path / "one" / "checkpoint-6").rename(tmp_path / "aside")
    same(run(tmp_path / "one", 2, accumulation=2, sft=sft, resume=True), one, first=4)


@pytest.mark.slow
def test_draws_too_small_for_their_window_are_learned_as_by_one_process(tmp_path):
    """Five examples in eight micro-batches: three are fillers, and the loss is the token mean of the five."""
    one = run(tmp_path / "one", 1, accumulation=1, short=True)
    assert len(one["drawn"][0][1]) == 5
    same(run(tmp_path / "two", 2, accumulation=4, short=True), one)
