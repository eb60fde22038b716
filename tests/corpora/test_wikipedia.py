"""`srt-peft corpus wikipedia`: whole wikis in, a corpus out; killed, split, packed otherwise, always the same one."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from srt_peft import cli
from srt_peft.corpora.diffs import absent_of
from srt_peft.corpora.sentences import sentences_of
from srt_peft.corpora.wikipedia import build, dump
from srt_peft.corpora.wikipedia.build import Options, wikipedia
from srt_peft.corpora.wikipedia.wikitext import RESIDUE
from srt_peft.errors import OptionError
from tests.corpora.wikis import DATES, corpus_of, element, rows_in, world, written, xml

COUNT = 120
OLD, NEW = world(COUNT)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    return written(folder, "old", OLD, ".xml.bz2"), written(folder, "new", NEW, ".xml.bz2")


@pytest.fixture(scope="module")
def corpus(dumps, tmp_path_factory):
    """The command itself, in a process of its own."""
    out = tmp_path_factory.mktemp("corpus") / "wiki"
    done = command(*arguments(dumps, out))
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def arguments(dumps, out, *more):
    return ["corpus", "wikipedia", "--old", dumps[0], "--new", dumps[1], "--out", out, *more]


def command(*words, small=False, wait=True):
    """The command line; `small` makes parts so small that there are many."""
    sizes = "from srt_peft.corpora.wikipedia import build, dump; build.HEAP = 4096; dump.PART = 2000; "
    code = f"{sizes if small else ''}import sys; from srt_peft.cli import main; sys.exit(main(sys.argv[1:]))"
    line = [sys.executable, "-W", "error", "-c", code, *map(str, words)]
    if wait:
        return subprocess.run(line, capture_output=True, text=True, check=False)
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def outputs(out):
    return {name: (out / name).read_bytes() for name in ("old.jsonl", "new.jsonl", "held-out.jsonl", "statistics.json")}


def make(old, new, out, *, workers=1, **options):
    return wikipedia([str(old)], [str(new)], out, Options(**options), workers=workers, progress=False)


def test_the_corpus_is_what_its_definition_says(corpus):
    """Each row, against a reader and an aligner that hold whole wikis in memory."""
    expected = corpus_of(xml(OLD), xml(NEW))
    for name, rows in zip(("old", "new"), expected, strict=True):
        found = {row["id"]: row for row in rows_in(corpus[0] / f"{name}.jsonl")}
        assert found.keys() == rows.keys()
        for key, row in rows.items():
            assert {k: found[key][k] for k in row if k != "source"} == {k: v for k, v in row.items() if k != "source"}


def test_what_was_learned_of_a_page_has_the_same_name_when_it_is_replaced(tmp_path):
    """Written again under another id, moved, moved by copying: next month's supersedes name this month's new rows."""
    same = [element(100 + i, f"Same {i}", "It stands.") for i in range(20)]
    redirect = element(8, "Was", "", "Is", date=DATES[1])
    text = "The bridge is of stone. It was {} by the town in that year. Boats go below it."
    kinds = {
        "recreated": ([element(1, "A", text.format("built"))], [element(2, "A", text.format("mended"), date=DATES[1])]),
        "moved": ([element(1, "A", text.format("built"))], [element(1, "B", text.format("mended"), date=DATES[1])]),
        "redirected": (
            [element(1, "Was", text.format("built"))],
            [element(2, "Is", text.format("mended"), date=DATES[1]), redirect],
        ),
    }
    for kind, (old, new) in kinds.items():
        later = [page.replace("mended", "sold").replace(DATES[1], "2024-03-01T00:00:00Z") for page in new]
        months = [written(tmp_path, f"{kind}-{i}", same + pages) for i, pages in enumerate((old, new, later))]
        for i in (0, 1):
            figures = make(months[i], months[i + 1], tmp_path / f"{kind}-corpus-{i}", held_out=0)
            assert i or figures["pages"][kind] == 1
        (learned,), (replacing,) = (rows_in(tmp_path / f"{kind}-corpus-{i}" / "new.jsonl") for i in (0, 1))
        assert learned["supersedes"]
        assert replacing["supersedes"] == [learned["id"]]


def test_what_it_promises_of_rows(corpus):
    """No markup, nothing new that was there before, nothing superseded that is not there, nobody on both sides."""
    old, new, held = (rows_in(corpus[0] / f"{name}.jsonl") for name in ("old", "new", "held-out"))
    ids = {row["id"] for row in old}
    assert len(ids) == len(old)
    assert {name for row in new for name in row["supersedes"]} <= ids
    assert not {row["id"] for row in held} & {row["document"] for row in old + new}
    assert not [row["id"] for row in old + new if RESIDUE.search(row["text"])]
    texts = {}
    for row in old:
        texts[row["document"]] = texts.get(row["document"], "") + row["text"] + "\n\n"
    checked = 0
    for row in new:
        if row["document"] in texts:
            said = sentences_of(row["text"].partition("\n")[2] or row["text"])
            assert absent_of(said, sentences_of(texts[row["document"]]))
            checked += 1
    assert checked > 100
    assert {row["date"] for row in new} == {DATES[1]}


def test_what_it_says_and_what_the_manifest_holds(corpus):
    out, said = corpus
    manifest, figures = (json.loads((out / name).read_text()) for name in ("MANIFEST.json", "statistics.json"))
    assert [one["snapshot"] for one in manifest["inputs"]] == ["old", "new"]
    assert manifest["counts"] == figures
    assert figures["rows"]["old"] == len(rows_in(out / "old.jsonl"))
    assert figures["rows"]["superseded"] == sum(len(row["supersedes"]) for row in rows_in(out / "new.jsonl"))
    assert figures["pages"].keys() == {"same", "moved", "recreated", "redirected", "merged", "gone", "created"}
    assert figures["left out"]["new: redirects"] > 2
    assert f"pages, by id: {figures['pages']['same']:,} same" in said
    assert "srt-peft plan" in said


def test_the_recipe_reads_it(corpus):
    import yaml

    recipe = yaml.safe_load((corpus[0] / "recipe.yaml").read_text())
    assert recipe["data"]["supersedes"] == "supersedes"
    assert recipe["data"]["source_column"] == "source"
    assert Path(recipe["data"]["old"]).is_file()


@pytest.mark.parametrize("how", [".xml", ".xml.gz", ".one.xml.bz2"])
def test_however_it_is_packed_and_read_it_is_the_same(corpus, tmp_path, monkeypatch, how):
    """Parts of a page or two, two processes, another compression: the same bytes."""
    monkeypatch.setattr(build, "HEAP", 8192)
    monkeypatch.setattr(dump, "PART", 4096)
    old, new = written(tmp_path, "old", OLD, how), written(tmp_path, "new", NEW, how)
    make(old, new, tmp_path / "wiki", workers=2)
    assert outputs(tmp_path / "wiki") == outputs(corpus[0])


def test_a_dump_in_several_files_is_one(corpus, tmp_path):
    half = len(OLD) // 2
    for i, pages in enumerate((OLD[:half], OLD[half:])):
        written(tmp_path, f"old-p{i}", pages, ".xml.bz2")
    make(tmp_path / "old-*.bz2", written(tmp_path, "new", NEW), tmp_path / "wiki")
    assert outputs(tmp_path / "wiki") == outputs(corpus[0])


def test_killed_and_begun_again_it_is_the_same(dumps, corpus, tmp_path):
    """SIGKILL, to it while it reads, and to it and its workers while it compares; then to the end."""
    out = tmp_path / "wiki"
    parts = tmp_path / "wiki.partial" / ".work" / "parts"
    for pattern, many, end in (("of-*.json", 3, os.kill), ("heap-*", 3, os.killpg)):
        running = command(*arguments(dumps, out, "--workers", 2), small=True, wait=False)
        until = time.monotonic() + 60
        while len(list(parts.glob(pattern))) < many:
            assert running.poll() is None
            assert time.monotonic() < until
            time.sleep(0.002)
        end(running.pid, signal.SIGKILL)
        running.wait()
        assert not out.exists()
    done = command(*arguments(dumps, out, "--workers", 2), small=True)
    assert done.returncode == 0, done.stderr
    assert outputs(out) == outputs(corpus[0])
    assert not parts.exists()


def test_per_stratum_takes_as_many_of_each(dumps, corpus, tmp_path):
    figures = make(*dumps, tmp_path / "wiki", per_stratum=2, topics=("politics", "other"))
    whole = json.loads((corpus[0] / "statistics.json").read_text())["documents by topic and change"]
    for topic, by in figures["documents by topic and change"].items():
        taken = {
            stratum: min(count, 2) if topic in ("politics", "other") else 0 for stratum, count in whole[topic].items()
        }
        assert by == taken
    assert {row["source"] for row in rows_in(tmp_path / "wiki" / "new.jsonl")} == {"politics", "other"}


def test_namespaces_may_have_spaces_between_them(tmp_path):
    pages = [element(1, "A", "It was."), element(2, "Talk:A", "Was it?", space=1)]
    later = [page.replace("as", "ill be").replace(DATES[0], DATES[1]) for page in pages]
    said = [written(tmp_path, name, found) for name, found in (("old", pages), ("new", later))]
    assert cli.main(list(map(str, arguments(said, tmp_path / "wiki", "--namespaces", "0, 1", "--workers", 1)))) == 0
    assert [row["title"] for row in rows_in(tmp_path / "wiki" / "new.jsonl")] == ["A", "Talk:A"]


def test_pages_that_say_nothing_take_nobodys_place(tmp_path):
    """Of those that have prose as many are taken as were asked for, however many have none."""
    news = [element(i, f"News {i}", f"It rained {i} times.", date=DATES[1]) for i in range(1, 5)]
    empty = [element(i, f"Empty {i}", "{{infobox}}", date=DATES[1]) for i in range(10, 40)]
    old, new = (written(tmp_path, name, pages) for name, pages in (("old", OLD[:1]), ("new", [*news, *empty])))
    figures = make(old, new, tmp_path / "wiki", per_stratum=3, topics=("other",), held_out=0)
    assert figures["documents by topic and change"]["other"]["created"] == 3
    assert figures["left out"]["pages without prose in either snapshot"] == 30
    assert figures["left out"]["pages beyond --per-stratum"] == 1


def test_snapshots_that_cannot_be_a_before_and_an_after_are_refused(dumps, tmp_path):
    old, new = dumps
    pages = [page.replace("Page 1<", "Page one<") for page in OLD]
    german = written(tmp_path, "de", NEW, host="de.wikipedia.org")
    for two, said in {
        (old, old): "byte for byte",
        (new, old): "the wrong way round",
        (old, written(tmp_path, "again", pages)): "of one date",
        (old, german): "they are of 2 wikis",
        (old, written(tmp_path, "talk", [element(1, "Talk:A", "a", space=1, date=DATES[1])])): "nothing is new",
        (old, written(tmp_path, "same", [page.replace(DATES[0], DATES[1]) for page in OLD])): "nothing is new",
    }.items():
        with pytest.raises(OptionError, match=said):
            make(*two, tmp_path / "wiki")
        assert not list(tmp_path.glob("wiki*"))


def damaged(path, raw):
    """A dump with a byte in its middle that is another one: its end says nothing of it."""
    path.write_bytes(raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 255]) + raw[len(raw) // 2 + 1 :])
    return path


def test_damage_that_another_process_meets_is_told_by_the_files_name(dumps, tmp_path):
    path = damaged(tmp_path / "new.xml.bz2", dumps[1].read_bytes())
    done = command(*arguments((dumps[0], path), tmp_path / "wiki", "--workers", 2), small=True)
    assert done.returncode == 2
    assert f"{path} cannot be decompressed" in done.stderr


def test_what_was_read_of_whole_files_outlives_a_damaged_one(dumps, corpus, tmp_path, monkeypatch):
    """The damaged file is brought again, and is another input: the sound one is not read again, and all is right."""
    read, reads = build.spool, []
    monkeypatch.setattr(build, "spool", lambda part, *rest: (reads.append(part.path), read(part, *rest))[1])
    path = damaged(tmp_path / "new.xml.bz2", dumps[1].read_bytes())
    with pytest.raises(OptionError, match="cannot be decompressed"):
        make(dumps[0], path, tmp_path / "wiki")
    assert reads == [dumps[0], path]
    path.write_bytes(dumps[1].read_bytes())
    make(dumps[0], path, tmp_path / "wiki")
    assert reads == [dumps[0], path, path]
    assert outputs(tmp_path / "wiki") == outputs(corpus[0])


def test_an_engine_that_is_not_there_costs_nothing_that_was_finished(dumps, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(build, "compare", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(*dumps, tmp_path / "wiki")
    there = sorted(tmp_path.rglob("of-*"))
    assert there
    monkeypatch.setattr("srt_peft.corpora.wikipedia.engine.find_spec", lambda _: None)
    with pytest.raises(OptionError, match="ray: it is not installed"):
        wikipedia([str(dumps[0])], [str(dumps[1])], tmp_path / "wiki", Options(), engine="ray", progress=False)
    assert sorted(tmp_path.rglob("of-*")) == there


def test_all_faults_of_the_arguments_are_told_at_once(dumps, tmp_path):
    there = tmp_path / "wiki"
    words = [
        "--topics",
        "polities",
        "--namespaces",
        "main",
        "--per-stratum",
        "0",
        "--held-out",
        "2",
        "--context",
        "all",
    ]
    done = command(*arguments(dumps, there, *words))
    assert done.returncode == 2
    for said in ("(did you mean 'politics'?)", "--namespaces = 'main'", "--per-stratum = 0", "--held-out", "--context"):
        assert said in done.stderr
    broken = [dumps[0].with_name(f"cut-{i}.xml") for i in (1, 2)]
    for path in broken:
        path.write_bytes(xml(OLD)[:999])
    said = command("corpus", "wikipedia", "--old", *broken, "--new", dumps[1], "--out", there).stderr
    assert all(f"{path} is cut off" in said for path in broken)
    said = command(*arguments(dumps, "wiki", "--engine", "ray")).stderr
    assert "wiki = given with --engine ray: expected a path from /" in said
    there.mkdir()
    assert "it is there already" in command(*arguments(dumps, there)).stderr


def test_without_its_library_a_dump_is_refused_and_a_table_is_not(dumps, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    with pytest.raises(OptionError, match=r"pip install 'srt-peft\[corpora\]'"):
        make(*dumps, tmp_path / "wiki")
    for name, text in (("old", "It rains. It is cold."), ("new", "It rains. It is warm.")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": 1, "title": "Weather", "text": text}) + "\n")
    make(tmp_path / "old.jsonl", tmp_path / "new.jsonl", tmp_path / "wiki")
    (row,) = rows_in(tmp_path / "wiki" / "new.jsonl")
    assert (row["text"], len(row["supersedes"])) == ("Weather\nIt is warm.", 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_on_ray_it_is_the_same(dumps, corpus, tmp_path, monkeypatch):
    """The same map and reduce, as tasks of a cluster on this machine."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    monkeypatch.setattr(build, "HEAP", 16384)
    wikipedia([str(dumps[0])], [str(dumps[1])], tmp_path / "wiki", Options(), engine="ray", workers=2, progress=False)
    assert outputs(tmp_path / "wiki") == outputs(corpus[0])


@pytest.mark.slow
def test_the_benchmark_measures(dumps):
    """Its dumps are made of those pages, and its row has a figure in each column."""
    line = [sys.executable, "eval/speed/corpus_wikipedia.py", dumps[0], "--mib", "1"]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=True)
    *_, cells = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in done.stdout.splitlines())
    assert len(cells) == 7
    assert all(float(cell.replace(",", "")) > 0 for cell in cells)
