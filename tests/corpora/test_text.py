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

from srt_peft import OptionError, cli
from srt_peft.corpora import text as made
from srt_peft.corpora.rows import is_held_out
from srt_peft.corpora.sentences import normalised, sentences_of
from tests.corpora.worlds import edited, prose
from tests.data.helpers import byte_bpe

ROOT = Path(__file__).parents[2]


def run(*words, code=0):
    """The command in a process of its own: what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "srt_peft", "corpus", "text", *map(str, words)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def text(*words):
    """The same here, where no process is needed: it is faster."""
    assert cli.main(["corpus", "text", "--workers", "1", *map(str, words)]) == 0


def refused(capsys, *words):
    assert cli.main(["corpus", "text", *map(str, words)]) == 2
    return capsys.readouterr().err


def rows(out, name):
    return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(folder, files):
    for name, said in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(said)


PARAGRAPHS = [prose(seed, 6).strip() for seed in range(4)]
OLD = {
    "guide/a.md": "# Bridges\n\nThe bridge was built in 1650. It is of stone.\n\nPopulation: 5 (2021)\n",
    "moved.md": "# Moved\n\n" + "\n\n".join(PARAGRAPHS),
    "wrapped.rst": "Wrapped\n=======\n\nThe primary road crosses the river at the old bridge, which was built of\n"
    "stone in the year 1650. It fell in the flood of 1871.\n",
    "before.txt": prose(11, 30),
    "gone.txt": "Nobody needs this any more.",
    "same.md": "# Same\n\nNothing changes here.",
    "picture.png": "no text",
}
NEW = {
    "guide/a.md": "# Bridges\n\nThe bridge was built in 1651. It is of stone. It has a lamp.\n\nPopulation: 7 (2024)\n",
    "moved.md": "# Moved\n\n" + "\n\n".join([PARAGRAPHS[2], *PARAGRAPHS[:2], PARAGRAPHS[3]]),
    "wrapped.rst": "Wrapped\n=======\n\nThe primary road crosses the river at the old\nbridge, which was built of "
    "stone in the\nyear 1650. It fell in the\nflood of 1871.\n",
    "after.txt": prose(11, 30),
    "same.md": "# Same\n\nNothing changes here.",
    "came.md": "# Came\n\nThis page is new.",
}
SAID = [
    ("came.md", "# Came\n\nThis page is new.", None),
    ("guide/a.md", "Bridges\nIt has a lamp.", None),
    ("guide/a.md", "Bridges\nPopulation: 7 (2024)", "Bridges\nPopulation: 5 (2021)"),
    ("guide/a.md", "Bridges\nThe bridge was built in 1651.", "Bridges\nThe bridge was built in 1650."),
]


@pytest.fixture
def folders(tmp_path):
    write(tmp_path / "old", OLD)
    write(tmp_path / "new", NEW)
    return ["--old", tmp_path / "old", "--new", tmp_path / "new", "--held-out", "0"]


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


# --- bad input ----------------------------------------------------------------------------------------------


def jsonl(path, *found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


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


def test_without_the_libraries_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(OptionError, match=r"sentencex = not installed: .*pip install 'srt-peft\[corpora\]'"):
        sentences_of("A text.")
