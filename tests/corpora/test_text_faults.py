"""What `srt-peft corpus text` cannot make a corpus of, and how that is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from srt_peft import OptionError
from srt_peft.corpora.rows import is_held_out
from srt_peft.corpora.sentences import sentences_of
from tests.corpora.texts import NEW, folders_of, jsonl, refused, rows, text, write


@pytest.fixture
def folders(tmp_path):
    return folders_of(tmp_path)


def test_the_same_twice_and_an_empty_diff_are_told(folders, tmp_path, capsys):
    again = refused(capsys, "--old", folders[1], "--new", folders[1], "--out", tmp_path / "out")
    assert "sha256 of --old and --new is the same" in again
    a = jsonl(tmp_path / "a.jsonl", {"id": 1, "text": "It is.  So."})
    b = jsonl(tmp_path / "b.jsonl", {"id": 1, "text": "It is. So."})
    empty = refused(capsys, "--old", a, "--new", b, "--held-out", "0", "--out", tmp_path / "out")
    assert "nothing is new in" in empty
    assert not list(tmp_path.glob("out*"))


def test_where_all_that_changed_is_held_out_that_is_told(tmp_path, capsys):
    """How many are held out, and that the others say nothing new, be they the same or shorter."""
    names = [f"p{i}" for i in range(40)]
    held = [name for name in names if is_held_out(name, 0.2)]
    old = jsonl(tmp_path / "old.jsonl", *({"id": name, "text": f"It is {name}. So."} for name in names))
    assert names[0] not in held
    for changed in ({held[0]: "It was."}, {held[0]: "It was.", names[0]: "So."}):
        said = [{"id": name, "text": changed.get(name, f"It is {name}. So.")} for name in names]
        new = jsonl(tmp_path / "new.jsonl", *said)
        told = refused(capsys, "--old", old, "--new", new, "--held-out", "0.2", "--out", tmp_path / "out")
        assert f"its 40 documents say nothing that the 40 before do not, held-out ones ({len(held)}) apart" in told


@pytest.mark.parametrize(
    ("found", "words", "told"),
    [
        ([{"name": "a", "text": "b"}], [], "--key = not given: no column of id, key, path, url, title is in both"),
        ([], [], "old.jsonl: has no row; expected a document a row"),
        ([{"id": "a", "text": "b"}], ["--key", "idd"], "has no column 'idd' (did you mean 'id'?)"),
        ([{"id": "a", "body": "b"}], [], "has no column 'text'"),
        ([{"id": "a", "text": "b"}, {"id": "a", "text": "c"}], [], "line 2: 'id' is 'a', as of"),
        ([{"id": None, "text": "b"}], [], "line 1: 'id' is empty: expected what the document is known by"),
        ([{"id": ["a"], "text": "b"}], [], "line 1: 'id' is ['a']: expected text or a number"),
        ([{"id": "a", "text": 3}], [], "'text' is 3, a int: expected text"),
    ],
)
def test_what_is_wrong_with_a_table_is_told(tmp_path, capsys, found, words, told):
    old = jsonl(tmp_path / "old.jsonl", *found)
    new = jsonl(tmp_path / "new.jsonl", {"id": "a", "text": "Other."})
    assert told in refused(capsys, "--old", old, "--new", new, *words, "--out", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("words", [[], ["--key", "id"]])
def test_tables_without_a_row_are_told_of_together(tmp_path, capsys, words):
    old, new = jsonl(tmp_path / "old.jsonl"), tmp_path / "new.csv"
    new.write_text("id,text\n")
    told = refused(capsys, "--old", old, "--new", new, *words, "--out", tmp_path / "out")
    for name, path in (("old", old), ("new", new)):
        assert f"--{name} = {path}: has no row; expected a document a row" in told


def test_a_column_that_is_named_and_in_no_row_is_told(tmp_path, capsys):
    """Of both tables at once; that some rows have it is enough, and nobody need have the usual one."""
    said = ["--held-out", "0"]
    for name, text_ in (("old", "It is."), ("new", "It was.")):
        table = [{"id": 1, "text": text_}, {"id": 2, "text": "So.", "titles": "Two", "source": "a"}]
        said += [f"--{name}", jsonl(tmp_path / f"{name}.jsonl", *table)]
    words = ["--title-column", "titel", "--source-column", "sorce", "--out", tmp_path / "out"]
    told = refused(capsys, *said, *words)
    assert "4 faults in the snapshots" in told
    for name in ("old", "new"):
        assert f"{name}.jsonl has no column 'titel' (did you mean 'titles'?): it has id, text, titles, source." in told
        assert f"{name}.jsonl has no column 'sorce' (did you mean 'source'?)" in told
    assert "Name the column with --title-column" in told
    text(*said, "--title-column", "titles", "--source-column", "source", "--out", tmp_path / "some")
    assert [row["title"] for row in rows(tmp_path / "some", "old")] == ["1", "Two"]
    text(*said, "--out", tmp_path / "usual")


def test_what_is_wrong_with_the_paths_is_told_at_once(folders, tmp_path, capsys):
    (tmp_path / "old.pdf").write_bytes(b"%PDF")
    (tmp_path / "bare").mkdir()
    both = refused(capsys, "--old", tmp_path / "nwe", "--new", tmp_path / "old.pdf", "--out", tmp_path / "out")
    assert "2 faults in the arguments" in both
    assert "does not exist (did you mean 'new'?)" in both
    assert "old.pdf: of an unknown kind; expected a folder, or a table" in both
    bare = refused(capsys, "--old", tmp_path / "bare", "--new", tmp_path / "new", "--out", tmp_path / "out")
    assert "--include PATTERN says which are text" in bare
    a = jsonl(tmp_path / "a.jsonl", {"id": 1, "text": "b"})
    assert "expected two of one kind" in refused(capsys, "--old", a, "--new", tmp_path / "new", "--out", tmp_path / "o")
    (tmp_path / "there").mkdir()
    assert "it is there already" in refused(capsys, *folders, "--out", tmp_path / "there")


def test_what_is_wrong_with_a_repository_is_told(tmp_path, capsys):
    said = ["--old", "v1", "--new", "v2", "--out", tmp_path / "out"]
    assert "does not exist; expected the folder of a git" in refused(capsys, "--repo", tmp_path / "no", *said)
    (tmp_path / "plain").mkdir()
    assert "not a git repository" in refused(capsys, "--repo", tmp_path / "plain", *said)
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    both = refused(capsys, "--repo", tmp_path / "repo", *said)
    assert "--old = v1: no commit of" in both
    assert "--new = v2: no commit of" in both
    git = [
        "git",
        "-C",
        str(tmp_path / "repo"),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
    ]
    for name in ("v1", "v2"):
        write(tmp_path / "repo", {"a.md": name})
        for words in (["add", "-A"], ["commit", "-qm", name], ["tag", name]):
            subprocess.run([*git, *words], check=True)
    none = refused(capsys, "--repo", tmp_path / "repo", *said, "--include", "*.nope")
    for name, revision in (("old", "v1"), ("new", "v2")):
        assert f"--{name} = {revision}: no file of it is of *.nope; --include PATTERN says which are text" in none
    assert "columns are a table's" in refused(capsys, "--repo", tmp_path / "repo", *said, "--key", "id")


def test_arguments_are_checked_at_once(folders, tmp_path, capsys):
    words = [*folders, "--out", tmp_path / "out", "--context", "titel", "--held-out", "1", "--workers", "0"]
    told = refused(capsys, *words)
    assert "--context = titel: expected title, none, or how many sentences" in told
    assert "--held-out = 1.0: expected a share" in told
    assert "--workers = 0" in told


def test_files_that_are_no_text_are_left_out_and_counted(folders, tmp_path, capsys):
    (tmp_path / "old/latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "new/zeros.txt").write_bytes(b"a\0b")
    (tmp_path / "new/large.txt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (tmp_path / "new/empty.md").write_text("\n")
    text(*folders, "--out", tmp_path / "out")
    shown = capsys.readouterr().out
    for why in ("no UTF-8", "binary", "a pointer of git-lfs", "empty"):
        assert f"left out: 1 files, {why}" in shown


def test_files_whose_names_are_no_text_are_left_out_and_counted(folders, tmp_path, capsys):
    """In a folder and in a commit; the rest is as it is without them."""
    text(*folders, "--out", tmp_path / "before")
    repo = tmp_path / "new"
    Path(os.fsdecode(bytes(repo) + b"/caf\xe9.md")).write_text("# Coffee\n\nIt is hot.\n")
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    (repo / "same.md").write_text("# Same\n\nNothing much changes here.")
    subprocess.run([*git, "commit", "-qam", "b"], check=True)
    text("--repo", repo, "--old", "HEAD~", "--new", "HEAD", "--held-out", "0", "--out", tmp_path / "commits")
    assert "left out: 2 files, name not UTF-8" in capsys.readouterr().out
    (repo / "same.md").write_text(NEW["same.md"])
    text(*folders, "--out", tmp_path / "after")
    assert "left out: 1 files, name not UTF-8" in capsys.readouterr().out
    for name in ("old", "new"):
        assert rows(tmp_path / "after", name) == rows(tmp_path / "before", name)


@pytest.mark.parametrize("name", ["sentencex", "datasketch"])
def test_libraries_are_asked_for_before_the_snapshots_are_read(tmp_path, capsys, monkeypatch, name):
    """Which may take minutes; here what is read is damaged, and nobody has looked at it."""
    monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "old.jsonl").write_text("nonsense\n")
    new = jsonl(tmp_path / "new.jsonl", {"id": 1, "text": "It is."})
    told = refused(capsys, "--old", tmp_path / "old.jsonl", "--new", new, "--out", tmp_path / "out")
    assert f"{name} = not installed: corpora are made with it; pip install 'srt-peft[corpora]'" in told


def test_without_the_libraries_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(OptionError, match=r"sentencex = not installed: .*pip install 'srt-peft\[corpora\]'"):
        sentences_of("A text.")
