"""The measurements run, and print what they are read for."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def rows(printed):
    """The lines of a printed table by the first cell of each."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if "|" in line]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}


def test_the_overhead_of_scheduling_is_measured():
    """Every run took its steps, on the same tokens (the script asserts it), and has its figures beside the others'."""
    command = [sys.executable, "eval/speed/overhead.py", "--quick", "--rounds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert list(table) == ["plain", "cpt", "cpt again", "uniform", "epoch", "srt"]
    assert all(float(row["p50 ms"]) > 0 for row in table.values())
    scheduled = [row for name, row in table.items() if name != "plain"]
    for column in ("review", "draw", "batch", "wait"):
        assert table["plain"][column] == ""
        assert all(float(row[column]) > 0 for row in scheduled), column
    assert all("[" in row["% over plain"] and "[" in row["cpu: % over plain"] for row in scheduled)


@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed: srt-peft[trl]")
def test_the_speed_beside_trl_is_measured():
    """Ours and TRL's train on the same tokens from the same base, to the loss of the first step."""
    command = [sys.executable, "-m", "eval.speed.trl", "--quick", "--rounds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    unpacked, packed = (rows(printed) for printed in done.stdout.split("quick, mixed")[1:])
    assert list(unpacked) == ["cpt", "srt", "trl"]
    assert list(packed) == ["cpt", "srt", "trl", "trl rows"]
    for column in ("tokens", "loss"):
        assert unpacked["cpt"][column] == unpacked["trl"][column] == packed["cpt"][column], column
    for name, row in [*unpacked.items(), *packed.items()]:
        assert float(row["tokens/s"]) > 0
        assert ("[" in row["over trl (p10, p90)"]) == ("[" in row["cpu: over trl"]) == (name != "trl")
