"""The measurements run, and print what they are read for."""

import subprocess
import sys
from pathlib import Path

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
