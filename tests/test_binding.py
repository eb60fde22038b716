"""`python -m eval.binding` on texts and a base that are made here; the figures it was made for need local copies."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eval.binding
from eval.binding import texts
from tests.evaluation import world

ROOT = Path(eval.binding.__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder as the README says, small: few documents each, and a base that knows nothing."""
    folder = tmp_path_factory.mktemp("data")
    home = folder / "world"
    home.mkdir()
    world.build(home, n_old=20, n_new=10, steps=1)
    words = [line["text"] for line in map(json.loads, (home / "old.jsonl").read_text().splitlines())]

    def document(i):
        return " ".join(np.roll(words, i)[:4].tolist())

    for source in (*texts.OLD.values(), *texts.NEW.values()):
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        year = "new" if "2024" in source.path else "old"
        rows = [{"id": f"page {i}", "text": f"{year} {source.path} {i} {document(i)}"} for i in range(40)]
        content = {
            ".gz": "".join(json.dumps(row) + "\n" for row in rows),
            "tinystories_sample.txt": "<|endoftext|>".join(row["text"] for row in rows),
            "input.txt": "\n\n".join(row["text"] for row in rows),
        }
        told = next(content[name] for name in content if path.name.endswith(name)).encode()
        path.write_bytes(gzip.compress(told) if path.suffix == ".gz" else told)
    base = folder / texts.BASE
    base.parent.mkdir(parents=True)
    (home / "base").rename(base)
    return folder


def test_every_second_page_of_the_factbook_is_replaced(data, tmp_path):
    """By the page of the same name, which the new texts hold, and by no other; none of the rest is among them."""
    texts.write(data, "factbook", lambda text: len(text.split()), tmp_path)
    files = [(tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("old", "new")]
    old, new = ([json.loads(line) for line in lines] for lines in files)
    assert {row["source"] for row in old} == set(texts.OLD)
    pages = [row["id"] for row in old if row["source"] == "factbook"]
    replaced = [name for row in new for name in row["supersedes"] or []]
    assert replaced
    assert set(replaced) == set(pages[::2])
    names = {row["id"].removeprefix("factbook/") for row in new}
    assert not names & {page.removeprefix("factbook 2021/") for page in pages[1::2]}
    assert max(len(row["text"]) for row in (*old, *new)) <= texts.LONGEST


def begun(*words, home):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "SRT_PEFT_HOME": str(home)}
    command = [sys.executable, "-m", "eval.binding", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_it_prints_a_table_of_every_entry_with_and_without(data, tmp_path):
    out = tmp_path / "runs"
    done = begun(
        "factbook",
        "--data",
        str(data),
        "--seeds",
        "1",
        "--steps",
        "3",
        "--taught",
        "2",
        "--output",
        str(out),
        home=tmp_path / "home",
    )
    assert done.returncode == 0, done.stderr
    tables = done.stdout.split("### ")[1:]
    assert [table.splitlines()[0] for table in tables] == [
        "factbook: superseded texts set aside", "factbook: superseded texts replayed like all others",
    ]  # fmt: skip
    for table, kept in zip(tables, ("aside", "kept"), strict=True):
        rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
        contest = json.loads((out / f"factbook-{kept}" / "contest.json").read_text())
        assert [row[0].strip("| `") for row in rows] == contest["entries"]
        lost = [row["mean"]["mean"] for row in contest["sources"][0]["rows"]]
        assert [float(row[1].replace("−", "-")) for row in rows] == pytest.approx([1000 * x for x in lost], abs=0.06)
        assert rows[0][-1].startswith("none")
        assert not rows[-1][-1].startswith("none")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["factbook"], "factbook: expected --data FOLDER with the texts"),
        (["wikipedia", "--data", "nowhere"], "lacks tinystories/tinystories_sample.txt, factbook/"),
    ],
)
def test_what_is_missing_is_named(words, message, tmp_path):
    done = begun(*words, home=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
