"""`srt-peft corpus code`, whole: from real repositories to old, new and held out, and why all else was left out."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter

import pytest

from srt_peft.cli import main
from srt_peft.corpora.code import build as building, scan as scanning
from srt_peft.corpora.code.build import NEAR, build
from srt_peft.corpora.code.headers import without_licence
from srt_peft.corpora.code.options import Options
from srt_peft.corpora.code.tally import told
from srt_peft.errors import DamagedError, OptionError
from tests.corpora.clones import HEADER, MIT, commit, git, modules, python

ERROR = 0.15
"""Of a share as 128 values tell it: more than three standard deviations."""
OPTIONS = Options("2022-01", "2024-07", "any", 1000, 0.0)


def made(tmp_path, out="out", *, repos="src", workers=1, **changed):
    return build([str(tmp_path / repos)], tmp_path / out, OPTIONS._replace(**changed), workers=workers, progress=False)


def rows(tmp_path, pool, out="out"):
    lines = (tmp_path / out / f"{pool}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def ids(tmp_path, pool, out="out"):
    return [row["id"] for row in rows(tmp_path, pool, out)]


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def world(root):
    """Two old repositories, one between the dates, two new ones."""
    commit(root / "old-a", "2015-05-05", {**modules(0, 4), "LICENSE": MIT, "README.md": "# a"})
    commit(root / "old-a", "2023-01-01", modules(50, 1))
    commit(root / "old-b", "2020-05-05", modules(10, 4))
    commit(root / "between", "2023-05-05", modules(20, 3))
    commit(root / "new-a", "2024-09-01", {**modules(30, 4), "LICENSE": MIT})
    commit(root / "new-b", "2025-09-01", {**modules(40, 4), "web/app.ts": "export const words = 1;\n"})
    return root


def test_old_and_new_and_what_is_neither(tmp_path):
    world(tmp_path / "src")
    manifest = made(tmp_path)
    assert ids(tmp_path, "old") == [
        *(f"old-a/src/module_{i}.py" for i in range(4)), *(f"old-b/src/module_{i}.py" for i in range(10, 14))
    ]  # fmt: skip
    assert ids(tmp_path, "new") == [
        *(f"new-a/src/module_{i}.py" for i in range(30, 34)), *(f"new-b/src/module_{i}.py" for i in range(40, 44)),
        "new-b/web/app.ts",
    ]  # fmt: skip
    counts = manifest["counts"]
    assert counts["repositories"] == {"created between the dates": 1, "new": 2, "old": 2}
    assert counts["rows"] == {"old": 8, "new": 9}
    assert counts["languages"] == {"old": {"Python": 8}, "new": {"Python": 8, "TypeScript": 1}}
    assert counts["licences"] == {"old": {"MIT": 4, "unknown": 4}, "new": {"unknown": 5, "MIT": 4}}
    assert counts["left out"] == {"old": {"other language": 2}, "new": {"other language": 1}}


def test_a_row_is_path_and_content_as_they_were(tmp_path):
    world(tmp_path / "src")
    made(tmp_path)
    row = rows(tmp_path, "old")[0]
    assert row == {
        "id": "old-a/src/module_0.py",
        "document": "old-a/src/module_0.py",
        "title": "old-a: src/module_0.py",
        "source": "Python",
        "repository": "old-a",
        "date": "2015-05-05",
        "licence": "MIT",
        "text": f"Repository: old-a\nPath: src/module_0.py\n\n{python(0)}",
    }
    assert rows(tmp_path, "new")[0]["supersedes"] == []


def test_a_recipe_reads_what_is_made(tmp_path):
    """The recipe is one of this house: its data keys are known, and its sources are the languages."""
    from srt_peft.data.sources import Wanted, documents_of, sources_of
    from srt_peft.training.recipe import load_recipe

    world(tmp_path / "src")
    made(tmp_path)
    data = load_recipe(tmp_path / "out/recipe.yaml", ["model.base=x", "output=y"]).data
    wanted = Wanted(data.text_column, data.source_column, data.id_column, data.supersedes)
    (new,) = data.new
    found = list(documents_of(sources_of(new.path, tmp_path, "text"), wanted, "text"))
    assert Counter(document.source for document in found) == {"Python": 8, "TypeScript": 1}
    assert found[0].supersedes == []


def renamed(text, every=9):
    """The same code, with one identifier in so many called otherwise."""
    names = sorted(set(re.findall(r"\b\w+_\d+\b", text)))[::every]
    return re.sub(r"\b\w+\b", lambda word: f"{word[0]}_renamed" if word[0] in names else word[0], text)


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text,
        renamed,
        lambda text: f"{HEADER}\n{text}",
        lambda text: text.replace("\n", "\r\n").replace("    ", "\t"),
    ],
    ids=["exact", "identifiers renamed", "a licence added", "set otherwise"],
)  # fmt: skip
def test_a_copied_repository_is_left_out_whole(tmp_path, changed):
    """Begun anew in 2025 with the files of an old one: its history is new, and what is in it is not."""
    world(tmp_path / "src")
    copied = {path.replace("src", "lib"): changed(text) for path, text in modules(0, 4).items()}
    assert all(text != python(i) or changed(text) == text for i, text in enumerate(copied.values()))
    commit(tmp_path / "src/copy", "2025-01-01", {**copied, **modules(60, 1)})
    counts = made(tmp_path)["counts"]
    assert not [name for name in ids(tmp_path, "new") if name.startswith("copy/")]
    assert counts["repositories"]["copied"] == 1
    assert counts["repositories"]["new"] == 2
    assert counts["left out"]["new"]["in a copied repository"] == 5


def test_what_a_repository_between_the_dates_had_is_not_new(tmp_path):
    """Nor what an old one got after the first date: both existed before the second."""
    world(tmp_path / "src")
    commit(tmp_path / "src/x", "2025-01-01", modules(20, 3))
    commit(tmp_path / "src/y", "2025-01-01", modules(50, 1))
    counts = made(tmp_path)["counts"]
    assert counts["repositories"]["copied"] == 2
    assert counts["rows"] == {"old": 8, "new": 9}


def test_few_copied_files_are_left_out_one_by_one(tmp_path):
    world(tmp_path / "src")
    files = {**modules(60, 5), "utils.py": renamed(python(1)), "same.py": python(60)}
    commit(tmp_path / "src/new-c", "2025-01-01", files)
    counts = made(tmp_path)["counts"]
    assert [name for name in ids(tmp_path, "new") if name.startswith("new-c/")] == [
        "new-c/same.py", *(f"new-c/src/module_{i}.py" for i in range(61, 65))
    ]  # fmt: skip
    assert counts["left out"]["new"] == {"existed before": 1, "near-duplicate": 1, "other language": 1}


def test_a_fork_of_an_old_repository_brings_nothing(tmp_path):
    world(tmp_path / "src")
    git(tmp_path / "src", "clone", "-q", "old-a", "fork")
    commit(tmp_path / "src/fork", "2025-01-01", modules(70, 2))
    counts = made(tmp_path)["counts"]
    assert counts["rows"] == {"old": 8, "new": 9}
    assert counts["repositories"]["old"] == 3
    assert counts["left out"]["old"]["near-duplicate"] == 4


def test_a_shared_licence_header_makes_no_two_files_alike(tmp_path):
    """Short files below the same long header have nearly all their words in common."""
    header = HEADER + "".join(f"# Term {i}: whoever has the copy numbered {i * i} may keep it.\n" for i in range(40))
    files = [f"{header}\n{python(100 + i, functions=1)}" for i in range(12)]
    commit(tmp_path / "src/old", "2020-01-01", {f"a/{i}.py": text for i, text in enumerate(files[:6])})
    commit(tmp_path / "src/new", "2025-01-01", {f"b/{i}.py": text for i, text in enumerate(files[6:])})
    words = [re.findall(r"\w+", text) for text in files]
    assert min(jaccard(one, two) for i, one in enumerate(words) for two in words[:i]) > NEAR + 0.1  # as they stand
    assert made(tmp_path)["counts"]["rows"] == {"old": 6, "new": 6}


def jaccard(one, two):
    a, b = ({" ".join(words[i : i + 3]) for i in range(len(words) - 2)} for words in (one, two))
    return len(a & b) / len(a | b)


def test_near_duplicates_are_those_that_a_slow_and_obvious_way_finds(tmp_path):
    """Files that differ by more and more: what is dropped follows the exact share, but for the sketch's error."""
    base = python(7, functions=40)

    def version(i):
        return re.sub(r"\b(\w+)_(\d+)\b", lambda w: w[0] if int(w[2]) % 40 >= i else f"{w[1]}_{i}x{w[2]}", base)

    versions = {f"v/{i:02d}.py": version(i) for i in range(1, 40, 2)}
    commit(tmp_path / "src/old", "2020-01-01", {"base.py": base})
    commit(tmp_path / "src/new", "2025-01-01", {**versions, **modules(0, 60)})
    made(tmp_path)
    kept = {row["path"] for row in ({**row, "path": row["id"].removeprefix("new/")} for row in rows(tmp_path, "new"))}
    words = {path: re.findall(r"\w+", without_licence(text)) for path, text in {"base.py": base, **versions}.items()}
    shares = {path: jaccard(words["base.py"], words[path]) for path in versions}
    assert max(shares.values()) > NEAR + ERROR
    assert min(shares.values()) < NEAR - ERROR
    assert kept.isdisjoint(path for path, share in shares.items() if share > NEAR + ERROR)
    remaining = ["base.py", *sorted(kept & versions.keys())]
    assert len(remaining) > 1
    for i, path in enumerate(remaining):
        assert all(jaccard(words[path], words[other]) < NEAR + ERROR for other in remaining[:i])
    for path in versions.keys() - kept:
        assert any(jaccard(words[path], words[other]) > NEAR - ERROR for other in remaining)


def test_everything_left_out_is_counted_with_its_reason(tmp_path):
    """Every file of the repository is a row, or has a reason."""
    world(tmp_path / "src")
    key = "AK" + "IA" + "Q7RZ2MXW5LKD3VNB"
    repo = tmp_path / "src/new-c"
    files = {
        **modules(60, 6), "vendor/lib.py": python(70), "a_pb2.py": python(71), "b.py": f"# @generated\n{python(72)}",
        "c.min.js": "x", "d.js": "a=1;" * 500, "e.py": f"{python(73)}\nKEY = '{key}'\n", "f.py": b"\0\1",
        "g.py": "é".encode("latin-1"),
        "h.py": "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "i.py": "", "j.md": "words",
        "k.py": python(74) * 4000, "said/l.py": python(75), "said/m.py": python(76),
        ".gitattributes": "said/l.py linguist-generated=true\nsaid/m.py linguist-vendored\n",
    }  # fmt: skip
    commit(repo, "2025-01-01", files)
    (repo / "link.py").symlink_to("i.py")
    (repo / os.fsdecode(b"caf\xe9.py")).write_text("x = 1\n")
    git(repo, "submodule", "add", "-q", str(tmp_path / "src/old-a"), "sub")
    commit(repo, "2025-01-02", {})
    total = len(git(repo, "ls-tree", "-r", "--name-only", "HEAD").splitlines())
    counts = made(tmp_path)["counts"]
    mine = counts["left out"]["new"] | {"other language": counts["left out"]["new"]["other language"] - 1}
    assert mine == {
        "vendored": 2, "generated": 3, "minified": 2, "secret": 1, "binary": 1, "not UTF-8": 1, "LFS pointer": 1,
        "nothing in it": 1, "other language": 3, "oversized": 1, "symbolic link": 1, "name not UTF-8": 1,
        "submodule": 1,
    }  # fmt: skip
    assert len([name for name in ids(tmp_path, "new") if name.startswith("new-c/")]) + sum(mine.values()) == total
    everything = b"".join(bytes_of(tmp_path / "out").values())
    assert key.encode() not in everything
    said = told(counts)
    for reason, count in mine.items():
        assert re.search(rf"  {re.escape(reason)} +\d+ +{count + (reason == 'other language')}\n?", said)


def test_a_cap_takes_the_same_files_whatever_else_there_is(tmp_path):
    commit(tmp_path / "src/old", "2020-01-01", modules(0, 20))
    commit(tmp_path / "src/new", "2025-01-01", modules(30, 20))
    counts = made(tmp_path, per_repo=5)["counts"]
    assert counts["rows"] == {"old": 5, "new": 5}
    assert counts["left out"]["new"] == {"over the cap": 15}
    fewer = set(ids(tmp_path, "new"))
    made(tmp_path, "more", per_repo=8)
    assert fewer < set(ids(tmp_path, "new", "more"))
    commit(tmp_path / "src/new", "2025-02-01", {"another.py": python(99)})
    made(tmp_path, "grown", per_repo=5)
    assert len(set(ids(tmp_path, "new", "grown")) - fewer) <= 1


def test_licences_are_a_filter(tmp_path):
    world(tmp_path / "src")
    commit(
        tmp_path / "src/new-b", "2025-10-01", {"src/gpl.py": f"# SPDX-License-Identifier: GPL-3.0-only\n{python(88)}"}
    )
    counts = made(tmp_path, licences="permissive")["counts"]
    assert counts["licences"] == {"old": {"MIT": 4}, "new": {"MIT": 4}}
    assert counts["left out"]["new"]["licence"] == 6
    made(tmp_path, "gpl", licences="MIT,GPL-3.0-only")
    assert ids(tmp_path, "new", "gpl")[-1] == "new-b/src/gpl.py"


def test_held_out_are_whole_repositories_and_no_row_is_of_one(tmp_path):
    for i in range(12):
        commit(tmp_path / f"src/r{i:02d}", "2020-01-01" if i % 2 else "2025-01-01", modules(10 * i, 3))
    manifest = made(tmp_path, held_out=0.3)
    held = rows(tmp_path, "held-out")
    away = {row["repository"] for row in held}
    assert away
    assert away.isdisjoint(row["repository"] for pool in ("old", "new") for row in rows(tmp_path, pool))
    assert Counter(row["repository"] for row in held) == dict.fromkeys(away, 3)
    for row in held:
        new = int(row["repository"][1:]) % 2 == 0
        assert (row["old"] is None, row["new"] is None) == (new, not new)
        assert python(int(re.search(r"module_(\d+)", row["id"])[1])) in (row["new"] or row["old"])
        assert row["changes"] == []
    assert sum(manifest["counts"]["held out"].values()) == len(held)
    commit(tmp_path / "src/another", "2025-01-01", modules(500, 3))
    made(tmp_path, "grown", held_out=0.3)
    assert away <= {row["repository"] for row in rows(tmp_path, "held-out", "grown")} <= {*away, "another"}


@pytest.mark.parametrize("left", ["old", "new"])
def test_a_corpus_without_old_or_without_new_is_refused_with_its_counts(tmp_path, left):
    commit(tmp_path / "src/a", "2020-01-01" if left == "new" else "2025-01-01", {**modules(0, 1), "b.md": "x"})
    commit(tmp_path / "src/b", "2023-01-01", modules(1, 1))
    git(tmp_path, "init", "-q", "src/c")
    with pytest.raises(OptionError) as caught:
        made(tmp_path)
    assert f"no {left} file is left" in str(caught.value)
    assert "1 created between the dates, 1 empty" in str(caught.value)
    assert not list(tmp_path.glob("out*"))


HELD_OUT = 0.4


def outcome(folder):
    """What is in a folder but its own name: the recipe has it, and the manifest the recipe's hash."""
    return {name: raw for name, raw in bytes_of(folder).items() if name not in ("recipe.yaml", "MANIFEST.json")}


def larger(root):
    """Of which some repositories are held out."""
    for i in range(4):
        commit(root / f"old-{i}", "2020-05-05", modules(100 * i, 3))
        commit(root / f"new-{i}", "2025-05-05", modules(100 * i + 50, 40))
    return root


def test_the_same_bytes_whatever_the_workers(tmp_path):
    larger(tmp_path / "src")
    made(tmp_path, "one", workers=1, held_out=HELD_OUT)
    made(tmp_path, "three", workers=3, held_out=HELD_OUT)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "three")
    assert rows(tmp_path, "held-out", "one")


def command(tmp_path, *more):
    return ["corpus", "code", "--repos", str(tmp_path / "src"), "--out", str(tmp_path / "out"), *more]


def test_killed_and_given_again_it_is_the_same_bytes_and_no_process_is_left(tmp_path, monkeypatch):
    """Killed outright once some repositories are read: those are not read again, and nobody is left behind."""
    larger(tmp_path / "src")
    made(tmp_path, "straight", held_out=HELD_OUT)
    words = command(tmp_path, "--held-out", str(HELD_OUT), "--workers", "2")
    process = subprocess.Popen([sys.executable, "-m", "srt_peft", *words], start_new_session=True)
    parts = tmp_path / "out.partial/.work/parts"

    def finished():
        return {path.name for path in parts.glob("[!.]*")} if parts.is_dir() else set()

    try:
        while len(finished()) < 2:
            assert process.poll() is None
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 20
    while alive(process.pid):
        assert time.monotonic() < deadline, "a process outlived the one that was killed"
        time.sleep(0.1)
    assert not (tmp_path / "out").exists()
    before, read = len(finished()), []
    real = building.scan
    monkeypatch.setattr(building, "scan", lambda clone, *rest: (read.append(clone.name), real(clone, *rest)))
    made(tmp_path, held_out=HELD_OUT)
    assert len(read) == 8 - before < 7
    assert outcome(tmp_path / "straight") == outcome(tmp_path / "out")


def alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_command_line(tmp_path):
    """It prints what it has kept, and what it has left out and why."""
    world(tmp_path / "src")
    words = command(tmp_path, "--held-out", "0")
    done = subprocess.run([sys.executable, "-m", "srt_peft", *words], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Repositories: 1 created between the dates, 2 new, 2 old\n")
    assert re.search(r"^rows +8 +9$", done.stdout, re.MULTILINE)
    assert re.search(r"^  other language +2 +1$", done.stdout, re.MULTILINE)
    assert f"srt-peft plan {tmp_path}/out/recipe.yaml" in done.stdout


def test_what_cannot_be_is_told_in_words_and_nothing_is_begun(tmp_path, capsys, monkeypatch):
    world(tmp_path / "src")
    (tmp_path / "there").mkdir()
    for more, faults in (
        (["--old-before", "2025-01", "--per-repo", "0", "--licences", "MTI"], ["is after", "per-repo = 0", "'MTI'"]),
        (["--new-after", "2999-01-01"], ["is in the future"]),
        (["--repos", str(tmp_path / "there")], ["no git repository is in this folder"]),
        (["--out", str(tmp_path / "there")], ["it is there already"]),
        (["--workers", "0"], ["--workers = 0: expected 1 or more"]),
    ):  # fmt: skip
        assert main(command(tmp_path, *more)) == 2
        said = capsys.readouterr().err
        assert all(fault in said for fault in faults)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(command(tmp_path)) == 2
    assert "git is not installed" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["src", "there"]


def test_signatures_survive_being_written_down():
    for text in (python(1), "short"):
        signature = scanning.signature_of(text, numbers=False)
        assert scanning.unpacked(scanning.packed(signature)) == signature


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_repository_is_named_and_what_was_read_is_kept(tmp_path, workers):
    """Mended, the same command goes on."""
    world(tmp_path / "src")
    repo = tmp_path / "src/new-b"
    blob = git(repo, "rev-parse", "HEAD:src/module_40.py")
    lost = repo / ".git/objects" / blob[:2] / blob[2:]
    raw = lost.read_bytes()
    lost.unlink()
    with pytest.raises(DamagedError, match=r"new-b/\.git cannot be read .*git fsck"):
        made(tmp_path, workers=workers)
    assert list((tmp_path / "out.partial/.work/parts").glob("[!.]*"))
    lost.write_bytes(raw)
    assert made(tmp_path, workers=workers)["counts"]["rows"] == {"old": 8, "new": 9}


def test_names_of_any_bytes_are_repositories_too(tmp_path):
    """A folder's name may be no text; the corpus and its manifest are."""
    world(tmp_path / "src")
    odd = tmp_path / os.fsdecode(b"src/caf\xe9")
    commit(odd, "2025-01-01", modules(300, 2))
    (tmp_path / "list.txt").write_bytes(os.fsencode(odd) + b"\n" + os.fsencode(tmp_path / "src/old-a") + b"\n")
    made(tmp_path, repos="list.txt")
    assert ids(tmp_path, "new") == ["caf\ufffd/src/module_300.py", "caf\ufffd/src/module_301.py"]


def test_a_library_that_is_missing_is_told_before_anything_is_begun(tmp_path, monkeypatch, capsys):
    world(tmp_path / "src")
    monkeypatch.setitem(sys.modules, "ukkonen", None)
    assert main(command(tmp_path)) == 2
    assert "pip install 'srt-peft[corpora]'" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))
