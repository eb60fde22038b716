"""The documents say what the code does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from srt_peft.review import recall, sm2
from srt_peft.review.options import RULES, Options

ROOT = Path(__file__).parent.parent


def test_the_worked_example_is_what_the_code_does():
    """Each row of the table in docs/scheduler.md, recomputed."""
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| (\d) \|([^|]*)\| (\d+) \|([^|]*)\| (\d+) \|$",
        (ROOT / "docs/scheduler.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 7
    state, due = (sm2.INITIAL_EASE, 0, 1), 2
    for step, ppl, quality, ease, n, interval, following in rows:
        assert int(step) == due
        q = recall.from_perplexity(float(ppl))
        assert int(q) == int(quality)
        state = tuple(int(x) for x in sm2.review(*state, q))
        due = int(sm2.due(due, state[2]))
        assert float(ease.split("=")[-1]) == state[0] / 100
        assert int(n) == state[1]
        assert int(interval.split("=")[-1].split("(")[0]) == state[2]
        assert int(following) == due


def test_every_option_is_in_the_table():
    """By name, with its default where it is a plain value."""
    table = (ROOT / "docs/scheduler.md").read_text()
    for name in RULES.keys() - {"old", "new"}:
        assert f"`{name}`" in table, name
    defaults = Options(batch_size=1)
    assert f"| `stagger` | {defaults.stagger} |" in table
    assert f"| `old_fraction` | {defaults.old_fraction} |" in table


@pytest.mark.parametrize("document", ["README.md", "docs/scheduler.md", "docs/evaluation.md"])
def test_what_documents_link_to_is_there(document):
    path = ROOT / document
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_readme_update_runs_as_it_is_printed(tmp_path):
    """Both lines of it, in a folder that has what a clone has; the new text is learned, and the adapter loads."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [block] = [block for block in blocks if "eval/tiny_base.py" in block]
    for name in ("docs", "recipes", "eval", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(Path(sys.executable).parent)
    surroundings = {**os.environ, "SRT_PEFT_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["bash", "-euc", block], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Done: 30 steps." in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "runs/tiny-cpu/metrics.jsonl").read_text().splitlines()]
    held_out = [line["held_out_new_nll"] for line in lines if "held_out_new_nll" in line]
    assert held_out[-1] < held_out[0]
    (tmp_path / "load.py").write_text(
        "from transformers import AutoModelForCausalLM\n"
        'base_model = AutoModelForCausalLM.from_pretrained("runs/tiny-base")\n'
        + "\n".join(line.strip() for line in done.stdout.splitlines() if line.startswith("    "))
    )
    subprocess.run([sys.executable, "load.py"], cwd=tmp_path, check=True, capture_output=True)


def test_the_readme_example_runs(capsys):
    """Every Python block of the README, as it stands."""
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
