"""`srt-peft corpus text`, as a person runs it: folders, tables, commits; what comes out is what training reads."""

import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from srt_peft.corpora import text as made
from srt_peft.corpora.sentences import normalised, sentences_of
from tests.corpora.texts import NEW, OLD, ROOT, folders_of, jsonl, refused, rows, run, text, write
from tests.corpora.worlds import edited, prose
from tests.data.helpers import byte_bpe


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SAID = [
    ("came.md", "# Came\n\nThis page is new.", None),
    ("guide/a.md", "Bridges\nIt has a lamp.", None),
    ("guide/a.md", "Bridges\nPopulation: 7 (2024)", "Bridges\nPopulation: 5 (2021)"),
    ("guide/a.md", "Bridges\nThe bridge was built in 1651.", "Bridges\nThe bridge was built in 1650."),
]


@pytest.fixture
def folders(tmp_path):
    return folders_of(tmp_path)


def said(out):
    """Each new row: of which document, what it says, and what the row says that it replaces."""
    old = {row["id"]: row["text"] for row in rows(out, "old")}
    found = [(row["document"], row["text"], [old[name] for name in row["supersedes"]]) for row in rows(out, "new")]
    return sorted((name, text, *(replaced or [None])) for name, text, replaced in found)


def test_two_folders_with_a_rename_a_moved_paragraph_and_a_file_wrapped_anew(folders, tmp_path):
    """Only what a person would call new is; all but the two replaced sentences can be reviewed; and all is counted."""
    shown = run(*folders, "--out", tmp_path / "out")
    assert said(tmp_path / "out") == SAID
    old = rows(tmp_path / "out", "old")
    assert {row["document"] for row in old} == OLD.keys() - {"picture.png"}
    assert sum(row["id"] == row["document"] for row in old) == 5  # whole
    assert "1 paired by content" in shown
    assert "5 in both, 4 of these unchanged, 1 only in old, 1 only in new" in shown
    counts = json.loads((tmp_path / "out/MANIFEST.json").read_text())["counts"]
    assert counts["rows"] == {"old": len(old), "new": 4, "superseded": 2}
    assert f"srt-peft plan {tmp_path}/out/recipe.yaml" in shown


def test_two_commits_are_the_same_as_two_folders(folders, tmp_path, capsys, monkeypatch):
    """Whatever the work tree has; links and submodules are no files."""
    repo = tmp_path / "repo"
    repo.mkdir()

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(repo), *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    for name, files, year in (("v1", OLD, 2021), ("v2", NEW, 2024)):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{year}-01-01T12:00:00+00:00")
        git("rm", "-rq", "--ignore-unmatch", ".")
        write(repo, files)
        (repo / "link.md").unlink(missing_ok=True)
        (repo / "link.md").symlink_to("same.md")
        git("add", "-A")
        git("commit", "-qm", name)
        git("tag", name)
    (repo / "same.md").write_text("changed, and not committed")
    text(*folders, "--out", tmp_path / "folders")
    text("--repo", repo, "--old", "v1", "--new", "v2", "--held-out", "0", "--out", tmp_path / "commits")
    for name in ("old", "new"):
        assert rows(tmp_path / "commits", name) == rows(tmp_path / "folders", name)
    [old, _] = json.loads((tmp_path / "commits/MANIFEST.json").read_text())["inputs"]
    assert (old["revision"], old["files"], len(old["commit"])) == ("v1", 6, 40)
    text("--repo", repo, "--old", "v1", "--new", "v2", "--include", "guide/*", "--out", tmp_path / "some")
    assert {row["document"] for row in rows(tmp_path / "some", "old")} == {"guide/a.md"}
    wrong = refused(capsys, "--repo", repo, "--old", "v2", "--new", "v1", "--out", tmp_path / "wrong")
    assert "--old = v2: committed 2024-01-01T12:00:00+00:00, after v1 (2021" in wrong


def table(path, files):
    found = [{"page": name, "title": Path(name).stem, "body": text, "kind": name[:1]} for name, text in files.items()]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(found), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in found).encode()))
    return path


@pytest.mark.parametrize("kind", ["parquet", "jsonl.gz"])
def test_two_tables_by_their_key(tmp_path, kind):
    paths = [table(tmp_path / f"{name}.{kind}", files) for name, files in (("a", OLD), ("b", NEW))]
    columns = ["--key", "page", "--text-column", "body", "--source-column", "kind"]
    text("--old", paths[0], "--new", paths[1], *columns, "--held-out", "0", "--out", tmp_path / "out")
    titled = [(name, text.replace("Bridges", "a"), old and old.replace("Bridges", "a")) for name, text, old in SAID]
    assert said(tmp_path / "out")[1:] == titled[1:]
    assert {row["source"] for row in rows(tmp_path / "out", "old")} == {name[:1] for name in OLD}
    assert "source_column: source" in (tmp_path / "out/recipe.yaml").read_text()


def world(folder, count, *, seed=0):
    """Two tables of pages, of which most were edited."""
    for name in ("old", "new"):
        with (folder / f"{name}.jsonl").open("w") as file:
            for page in range(count):
                said = prose(seed + page, 40)
                said = edited(said, page) if name == "new" and page % 5 else said
                file.write(json.dumps({"id": f"p{page}", "title": f"Page {page}", "text": said}) + "\n")
    return ["--old", folder / "old.jsonl", "--new", folder / "new.jsonl"]


def test_who_is_held_out_is_in_no_row_and_asked_of(tmp_path):
    text(*world(tmp_path, 60), "--held-out", "0.2", "--out", tmp_path / "out")
    held = rows(tmp_path / "out", "held-out")
    away = {row["id"] for row in held}
    kept = {row["document"] for name in ("old", "new") for row in rows(tmp_path / "out", name)}
    assert 4 <= len(away) <= 24
    assert away | kept == {f"p{page}" for page in range(60)}
    assert not away & kept
    for row in held:
        assert row.keys() >= {"id", "title", "source", "old", "new", "changes"}
        for change in row["changes"]:
            assert change["old"] in row["old"]
            assert change["new"] in row["new"]
            assert (change["old"] == "", change["new"] == "") == (
                change["kind"] == "inserted",
                change["kind"] == "deleted",
            )


def test_however_many_processes_the_bytes_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "PART", 4_000)
    given = world(tmp_path, 60)
    outs = []
    for workers in (1, 2, 3):
        out = tmp_path / f"by-{workers}" / "out"
        text(*given, "--workers", workers, "--out", out)
        outs.append({k: v.replace(str(out).encode(), b"OUT") for k, v in bytes_of(out).items() if k != "MANIFEST.json"})
    assert outs[0] == outs[1] == outs[2]
    assert len(outs[0]) == 5


KILLED = """
import sys
from srt_peft import cli
from srt_peft.corpora import text
text.PART = 20_000
sys.exit(cli.main(sys.argv[1:]))
"""


def test_killed_in_the_middle_and_run_again_it_is_the_same_bytes(tmp_path, monkeypatch):
    """SIGKILL, when some parts are there and some are not; no process that was started is left."""
    given = [str(word) for word in world(tmp_path, 150)]
    words = ["corpus", "text", *given, "--workers", "2", "--out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(out):
        return subprocess.Popen([sys.executable, "-c", KILLED, *words, str(out)], env=environment, cwd=tmp_path)

    out, parts = tmp_path / "out", tmp_path / "out.partial/.work/parts"
    process = start("out")
    deadline = time.monotonic() + 60
    while not any(parts.glob("rows-0000[3-9]*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = len(list(parts.glob("rows-*")))
    assert not out.exists()
    assert len(children) == 2
    assert start("out").wait(60) == 0
    (tmp_path / "straight").mkdir()
    monkeypatch.chdir(tmp_path / "straight")
    monkeypatch.setattr(made, "PART", 20_000)
    text(*given, "--out", "out")
    assert finished
    assert bytes_of(out) == bytes_of(tmp_path / "straight/out")
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_training_reads_it_and_suspends_exactly_what_was_replaced(tmp_path, monkeypatch):
    """The recipe as it is written; the old examples that are never due are the replaced rows, and no other."""
    from srt_peft.training.recipe import load_recipe
    from srt_peft.training.texts import read

    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    text(*world(tmp_path, 80), "--out", "corpora/june")
    asked = load_recipe("corpora/june/recipe.yaml", ["model.base=any", "data.holdout=0", "data.max_length=4096"])
    found = read(asked, byte_bpe())
    out = tmp_path / "corpora/june"
    replaced = {name for row in rows(out, "new") for name in row["supersedes"]}
    expected = {row["text"] for row in rows(out, "old") if row["id"] in replaced}
    suspended = {found.corpus.old.text(int(i)) for i in found.superseded}
    assert len(replaced) > 100
    assert suspended == expected
    assert found.corpus.n_old == len({row["text"] for row in rows(out, "old")})
    assert found.gone == found.nowhere == []


def test_no_sentence_of_new_stands_in_its_old_document(tmp_path):
    given = world(tmp_path, 40, seed=500)
    text(*given, "--context", "none", "--held-out", "0", "--out", tmp_path / "out")
    old = {row["id"]: row["text"] for row in map(json.loads, given[1].read_text().splitlines())}
    new = {row["id"]: row["text"] for row in map(json.loads, given[3].read_text().splitlines())}
    for row in rows(tmp_path / "out", "new"):
        begin, end = row["span"]
        for one in sentences_of(new[row["document"]]):
            if begin <= one.start and one.end <= end:
                assert f" {one.words} " not in f" {normalised(old[row['document']])} "


def test_near_duplicates_are_left_out_and_counted(tmp_path, capsys):
    notice = prose(77, 12).replace("\n", " ")
    pages = {f"{k}.md": f"{prose(k, 8)}\n\n{notice}" for k in range(3)}
    write(tmp_path / "old", {**pages, "copy.md": pages["0.md"] + "\n\nOne more."})
    write(tmp_path / "new", {**pages, **{f"new-{k}.md": prose(50, 30) for k in range(3)}})
    text(
        "--old",
        tmp_path / "old",
        "--new",
        tmp_path / "new",
        "--context",
        "none",
        "--held-out",
        "0",
        "--out",
        tmp_path / "o",
    )
    assert [row["id"] for row in rows(tmp_path / "o", "new")] == ["new-0.md"]
    shown = capsys.readouterr().out
    assert "left out: 2 near-duplicates among new rows" in shown
    assert json.loads((tmp_path / "o/MANIFEST.json").read_text())["counts"]["left out"] == {
        "near-duplicates among old rows": 1,
        "near-duplicates among new rows": 2,
    }


def test_what_still_holds_is_not_left_out_for_its_like_that_is_replaced(tmp_path):
    """It would not be reviewed any more: what it is like is suspended."""
    notice = " ".join(f"word{chr(97 + k % 26)}{chr(97 + k // 26)}" for k in range(80))
    write(
        tmp_path / "old", {"a.md": f"One.\n\nNotice here {notice}.\n", "b.md": f"Sheep: 7\n\n{notice}.\n\nGoats: 3\n"}
    )
    write(
        tmp_path / "new", {"a.md": f"One.\n\nNotice gone {notice}.\n", "b.md": f"Sheep: 8\n\n{notice}.\n\nGoats: 4\n"}
    )
    for side, name in (("old", "here"), ("new", "gone")):  # a third, which is replaced as well, and can be named
        write(tmp_path / side, {"c.md": f"Three.\n\nNotice {name} {notice}.\n"})
    options = ["--context", "none", "--held-out", "0", "--out", tmp_path / "o"]
    text("--old", tmp_path / "old", "--new", tmp_path / "new", *options)
    replaced = {name for row in rows(tmp_path / "o", "new") for name in row["supersedes"]}
    like = [(row["document"], row["id"] in replaced) for row in rows(tmp_path / "o", "old") if notice in row["text"]]
    assert like == [("a.md", True), ("b.md", False), ("c.md", True)]


def test_what_to_type_next_can_be_typed_wherever_the_corpus_lies(tmp_path):
    """A path with a space in it is quoted, on the screen and in the recipe's comments."""
    old = jsonl(tmp_path / "old.jsonl", {"id": 1, "text": "It is."})
    new = jsonl(tmp_path / "new.jsonl", {"id": 1, "text": "It was."})
    out = tmp_path / "this week's"
    shown = run("--old", old, "--new", new, "--held-out", "0", "--out", out)
    comments = (out / "recipe.yaml").read_text()
    commands = re.findall("srt-peft (?:plan|train) .*BASE.*", shown + comments)
    assert [shlex.split(line)[1:3] for line in commands] == [
        [name, f"{out}/recipe.yaml"] for name in ("plan", "plan", "train")
    ]
