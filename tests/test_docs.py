"""The documents say what the code does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import srt_peft
from srt_peft.evaluation.entries import ENTRIES
from srt_peft.review import recall, sm2
from srt_peft.review.options import RULES, Options
from tests.lifecycle import loopback

ROOT = Path(__file__).parent.parent
CHARTS = Path(srt_peft.__file__).parent / "report" / "charts.py"


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


@pytest.mark.parametrize("document", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_what_documents_link_to_is_there(document):
    path = ROOT / document
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.slow
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


def test_the_first_commands_of_corpus_run_as_they_are_printed(tmp_path):
    """And what the page says of the rows is so."""
    block = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/corpus.md").read_text(), re.DOTALL)[0]
    command = f'srt-peft() {{ {sys.executable} -m srt_peft "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-euc", command + block], cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    new = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    old = [json.loads(line) for line in (tmp_path / "corpora/july/old.jsonl").read_text().splitlines()]
    names = {row["id"]: row["text"] for row in old}
    assert [(row["text"], [names[name] for name in row["supersedes"]]) for row in new] == [
        ("The bridge\nHead: Boris Kahn", ["The bridge\nHead: Anna Berg"]),
        ("The bridge\nFare: 3 crowns (2024)", ["The bridge\nFare: 2 crowns (2021)"]),
        ("The bridge\nA lamp was hung on it in May.", []),
    ]


@pytest.mark.slow
def test_the_commands_of_the_guides_run_as_they_are_printed(tmp_path):
    """One document after the other, in one folder: a comparison that is whole, the pages that are told of, and more."""
    blocks = [
        block
        for name in ("compare", "report", "inspect", "merge", "next", "corpus")
        for block in re.findall(r"```bash\n(.*?)```", (ROOT / f"docs/{name}.md").read_text(), re.DOTALL)
    ]
    assert len(blocks) == 8
    command = f'srt-peft() {{ {sys.executable} -m srt_peft "$@"; }}\n'
    surroundings = {**os.environ, "SRT_PEFT_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["bash", "-euc", command + "\n".join(blocks)], cwd=tmp_path, env=surroundings, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    contest = json.loads((tmp_path / "runs/compared/contest.json").read_text())
    assert contest["complete"]
    assert contest["entries"] == ["uniform-epoch", "srt", "match"]
    for page in ("runs/compared/report.html", "runs/compared/srt/seed-0/report.html", "srt.html"):
        assert (tmp_path / page).stat().st_size > 1e6
    rows = [
        line.split()[0] for line in done.stdout.rpartition("== perplexity of held-out text")[2].splitlines() if line
    ]
    assert {"runs/compared/srt/seed-0", "runs/compared/match/seed-0"} <= set(rows)
    assert "runs/compared/match/seed-1" not in rows
    for told in (
        "backlog, batches",
        "the hardest, by",
        "example 17 of the old pool",
        "examples are set aside",
        '"revived"',
        "The corpus lies in corpora/july",
    ):
        assert told in done.stdout, told
    assert json.loads((tmp_path / "runs/merged/merge.json").read_text())["dtype"] == "float32"
    assert [json.loads((tmp_path / f"runs/week-{n}/history/history.json").read_text())["updates"] for n in (2, 3)] == [
        1,
        2,
    ]


@pytest.mark.slow
def test_the_commands_of_publish_run_as_they_are_printed(tmp_path):
    """In a folder that has what a clone has, against a hub on this machine: pushed, and gone on from."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/publish.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for name in ("docs", "recipes", "eval", "README.md", "CHANGELOG.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = f'srt-peft() {{ {sys.executable} -m srt_peft "$@"; }}\npython() {{ {sys.executable} "$@"; }}\n'
    with loopback.running() as hub:
        surroundings = {
            **os.environ, "SRT_PEFT_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path),
            "HF_ENDPOINT": hub.url, "HF_TOKEN": loopback.TOKEN, "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "-euc", command + "\n".join(blocks)], cwd=tmp_path, env=surroundings, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert hub.repos["me/my-adapter"].private
        pushed = hub.repos["me/my-adapter"].at("main")
    assert sorted(pushed) == sorted(
        p.relative_to(tmp_path / "whole").as_posix() for p in (tmp_path / "whole").rglob("*.*")
    )
    assert "srt_state" not in {path.name for path in (tmp_path / "look").iterdir()}
    assert "Done: 6 steps. The result lies in runs/week-2" in done.stdout


def test_each_table_of_the_documents_names_what_is_there():
    """Who takes part, and each picture of a run: added or renamed in the code, it is in the document."""
    compare, report = ((ROOT / f"docs/{name}.md").read_text() for name in ("compare", "report"))
    taking_part = compare.partition("## Who takes part")[2].partition("##")[0]
    assert re.findall(r"^\| `([a-z][\w-]*)` \|", taking_part, re.MULTILINE) == list(ENTRIES)
    titles = re.findall(r'(?:Chart|_distribution|_by_lag)\(\s*(?:run, )?"[\w-]+", "([^"]+)"', CHARTS.read_text())
    assert len(titles) == 16
    assert [title for title in titles if title not in report] == []


def test_the_readme_example_runs(capsys):
    """Every Python block of the README, as it stands."""
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})
