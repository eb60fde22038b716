"""From text to pools: cutting, every kind of source, processes, the cache, hold-out, and every bad input's wording."""

import csv
import gzip
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import OptionError, StateError
from srt_peft.data import cutting, ingest, pool as pools, tokenise
from srt_peft.data.ingest import Report, ingest as run
from tests.data.helpers import Letters, byte_bpe, prose, spaced_bpe

LETTERS = Letters()
TOKENIZERS = {"bytes": byte_bpe, "spaced": spaced_bpe, "slow": lambda: LETTERS}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def made(tmp_path):
    """A maker of JSONL files."""

    def make(texts, name="corpus.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return tmp_path / name

    return make


def texts_of(pool):
    return [pool.text(i) for i in range(len(pool))]


def everything(found):
    return {text: row.tolist() for p in (found.train, found.held_out) for text, row in zip(texts_of(p), p, strict=True)}


def ink(text):
    return "".join(text.split())


def said(*args, **kwargs):
    with pytest.raises(OptionError) as error:
        run(*args, **kwargs)
    return str(error.value)


# --- cutting ------------------------------------------------------------------------------------------------

TEXT = st.text(st.sampled_from("aab .\n\t!。é日😀\u00a0\r\"'"), max_size=300) | st.text(max_size=80)


def encoder(name):
    plan = tokenise.Plan(TOKENIZERS[name](), chat=False, max_length=64)
    return plan.encode


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(text=TEXT, room=st.integers(10, 40))
def test_pieces_fit_and_nothing_is_lost(name, text, room):
    """Each piece is at most `room` tokens, has its own tokens, and together they are the text, but for white space."""
    text = text.encode(errors="ignore").decode()
    encode = encoder(name)
    (pieces,) = cutting.fitted([text], room, encode)
    assert ink("".join(piece for piece, _ in pieces)) == ink(text)
    at = 0
    for piece, ids in pieces:
        assert len(ids) <= room
        assert ids == encode([piece])[0].ids
        assert (at := text.index(piece, at) + len(piece)) <= len(text)  # verbatim, and in order


@settings(max_examples=150, deadline=None)
@given(text=TEXT, width=st.integers(1, 60))
def test_sections_lose_nothing(text, width):
    parts = list(cutting.sections(text, width))
    assert ink("".join(parts)) == ink(text)
    assert all(part.strip() and len(part) <= width for part in parts)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One two three.\n\nFour five six. Seven\neight", ["One two three.", "Four five six.", "Seven\neight"]),
        ("One two three\nfour. Five six seven", ["One two three", "four. Five six", "seven"]),
        ("One two. Three four five six", ["One two.", "Three four five", "six"]),
        ('He said "no." She said "yes, of course"', ['He said "no."', 'She said "yes,', 'of course"']),
        ("abcdefghijklmnopqrstuvwxyz", ["abcdefghijklmnop", "qrstuvwxyz"]),
        ("ab " + "c" * 20, ["ab", "c" * 16, "c" * 4]),
        ("def f():\n    return 1\n\n    # more", ["def f():", "    return 1", "    # more"]),
        ("一二三四。五六七八九十一二三四五六", ["一二三四。五六七八九十一二三四五", "六"]),
        ("一二三四五六七八九。十一二三四五六", ["一二三四五六七八九。", "十一二三四五六"]),
        ("\n\n  ab" + " " * 40 + "cd", ["  ab", "cd"]),
        ("ab\n" + " " * 40 + "cd", ["ab", "cd"]),
    ],
)
def test_where_a_text_is_cut(text, pieces):
    """At a paragraph, a line, a sentence, a word, and only then inside one; indentation stays. 16 characters fit."""

    def letters(texts):
        return [cutting.Coded(list(map(ord, t)), lambda t=t: list(range(len(t)))) for t in texts]

    assert [piece for piece, _ in cutting.fitted([text], 16, letters)[0]] == pieces


def test_a_piece_longer_alone_than_in_its_text_is_cut_again():
    """A tokenizer that takes three more tokens for whatever begins a text: everything fits all the same."""

    def greedy(texts):
        return [cutting.Coded([0, 0, 0, *map(ord, t)], lambda t=t: [0, 0, 0, *range(len(t))]) for t in texts]

    text = " ".join(f"w{i}" for i in range(200))
    (pieces,) = cutting.fitted([text], 16, greedy)
    assert ink("".join(p for p, _ in pieces)) == ink(text)
    assert all(len(ids) <= 16 for _, ids in pieces)
    assert min(len(p) for p, _ in pieces[:-1]) >= 4


def test_what_fits_nowhere_is_an_error(made):
    """One character of more tokens than an example has: nothing is thrown away in silence."""
    message = said(made(["😀"]), byte_bpe(), max_length=4)
    assert "max_length is too short: '😀' alone takes 4 tokens, and 3 fit" in message


def test_a_long_document_ends_once(made):
    """BOS opens each example, EOS ends only the last of a document, and all fill their room well."""
    tokenizer = spaced_bpe()
    text = prose(300)
    found = run(made([text]), tokenizer, max_length=64, holdout=0)
    pool = found.train
    assert all(row[0] == tokenizer.bos_token_id for row in pool)
    assert [int(row[-1] == tokenizer.eos_token_id) for row in pool] == [0] * (len(pool) - 1) + [1]
    assert pool.lengths.max() <= 64
    assert pool.lengths.mean() > 40
    assert ink("".join(texts_of(pool))) == ink(text)
    assert found.report == Report(1, len(pool), int(pool.lengths.sum()), 0, 0, 1, 0)
    for i, row in enumerate(pool):
        assert (
            tokenizer(pool.text(i), add_special_tokens=False)["input_ids"]
            == row[1 : len(row) - (row[-1] == 2)].tolist()
        )


# --- sources ------------------------------------------------------------------------------------------------

STORIES = [prose(4, seed) for seed in range(24)] + ['Kurz: äöü 日本, "quoted"\nand two lines', "x" * 200]


def jsonl(folder, texts):
    path = folder / "c.jsonl"
    path.write_text("\n".join(json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)) + "\n\n")
    return path


def bare_jsonl_gz(folder, texts):
    path = folder / "c.ndjson.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps({"text": t}, ensure_ascii=False) for t in texts).encode()))
    return path


def as_json(folder, texts):
    path = folder / "c.json"
    path.write_text(json.dumps([{"text": text} for text in texts], indent=1))
    return path


def lines_called_json(folder, texts):
    path = folder / "c.json"
    path.write_text("\ufeff" + "\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return path


def as_csv(folder, texts):
    path = folder / "c.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["text", "n"], *([text, i] for i, text in enumerate(texts))])
    return path


def parquet(folder, texts):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": range(len(texts)), "text": texts}), folder / "c.parquet", row_group_size=7)
    return folder / "c.parquet"


def on_disk(folder, texts):
    import datasets

    datasets.Dataset.from_dict({"text": texts}).save_to_disk(folder / "disk")
    return folder / "disk"


def on_disk_with_splits(folder, texts):
    import datasets

    train, test = (datasets.Dataset.from_dict({"text": t}) for t in (texts, ["other"]))
    datasets.DatasetDict(train=train, test=test).save_to_disk(folder / "splits")
    return folder / "splits"


def text_folder(folder, texts):
    (folder / "texts" / "deeper").mkdir(parents=True)
    for i, text in enumerate(texts):
        name = f"deeper/{i:03}.md" if i % 3 else f"{i:03}.txt"
        (folder / "texts" / name).write_bytes((text + "\n").encode())
    (folder / "texts" / ".hidden.txt").write_text("not this")
    return folder / "texts"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datasets
@pytest.mark.parametrize(
    "kind",
    [bare_jsonl_gz, as_json, lines_called_json, as_csv, parquet, on_disk, on_disk_with_splits, text_folder],
    ids=lambda kind: kind.__name__,
)
def test_every_kind_of_source_gives_the_same_examples(kind, tmp_path):
    """The same documents, however they lie on disk, become the same tokens, texts, identities and hold-out."""
    expected = run(jsonl(tmp_path, STORIES), byte_bpe(), max_length=64)
    found = run(str(kind(tmp_path, STORIES)), byte_bpe(), max_length=64)
    assert everything(found) == everything(expected)
    assert set(texts_of(found.held_out)) == set(texts_of(expected.held_out))
    assert found.report == expected.report
    if kind is not text_folder:  # there the names order them
        assert found.train.fingerprint == expected.train.fingerprint


def test_a_text_file_is_one_document(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text("\n\n".join(STORIES[:-1]))
    found = run(path, byte_bpe(), max_length=64, holdout=0)
    assert (found.report.documents, found.report.cut) == (1, 1)
    assert ink("".join(texts_of(found.train))) == ink("".join(STORIES[:-1]))
    assert found.train.sources == ["stories.txt"]


def test_a_list_of_sources(tmp_path, made):
    """Names, limits, and one name for two; entries may be mappings, paths, or what a recipe holds."""
    a, b = made(STORIES[:8], "a.jsonl"), made(STORIES[8:16], "b.jsonl")
    c = SimpleNamespace(path=str(made(STORIES[16:20], "c.jsonl")), source="letters", limit=None)
    entries = [{"path": str(a), "source": "letters", "limit": 3}, b, c]
    pool = run(entries, byte_bpe(), max_length=400).train
    assert texts_of(pool) == STORIES[:3] + STORIES[8:20]
    assert pool.sources == ["letters", "b.jsonl"]
    assert pool.source.tolist() == [0] * 3 + [1] * 8 + [0] * 4


def test_no_sources_give_empty_pools():
    """A recipe's `old: null` is an update without replay."""
    found = run([], byte_bpe())
    assert (len(found.train), len(found.held_out), found.report) == (0, 0, Report(0, 0, 0, 0, 0, 0, 0))


def test_the_hub_is_asked_within_our_cache(monkeypatch, home):
    """`datasets` is handed our folders, for what it prepares and for what it downloads."""
    import datasets
    from huggingface_hub import constants

    before, asked = constants.HF_HUB_CACHE, []

    def load(*args, **kwargs):
        asked.append((args, kwargs, constants.HF_HUB_CACHE))
        return datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": STORIES}))

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = run("org/name:config", byte_bpe(), max_length=64)
    assert asked == [(("org/name", "config"), {"cache_dir": str(home / "datasets")}, str(home / "hub"))]
    assert before == constants.HF_HUB_CACHE
    assert found.report.documents == len(STORIES)
    assert found.train.sources == ["name:config"]


def test_a_chat_is_written_by_the_template(tmp_path):
    """Its own marks, and none of ours; what is too long is cut as text is."""
    chats = [
        [{"role": "user", "content": f"Hello {i}"}, {"role": "assistant", "content": prose(2, i)}] for i in range(5)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in [*chats, [], None]))
    tokenizer = spaced_bpe()
    found = run(path, tokenizer, format="chat", max_length=400)
    rendered = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
    assert texts_of(found.train) == rendered
    assert [row.tolist() for row in found.train] == tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert found.report.empty == 2
    short = run(path, tokenizer, format="chat", max_length=20)
    assert short.train.lengths.max() <= 20
    assert ink("".join(texts_of(short.train))) == ink("".join(rendered))


# --- what is kept -------------------------------------------------------------------------------------------


def test_empty_and_double_examples_are_dropped_and_counted(made):
    """White space is empty; the first of several with the same text stays, also between documents cut up."""
    texts = ["one", " ", "two", "", "one", "one ", "three", "\n\ntwo\n"]
    found = run(made(texts), byte_bpe())
    assert texts_of(found.train) == ["one", "two", "three"]
    assert found.train.document.tolist() == [0, 2, 6]
    assert found.report == Report(8, 3, int(found.train.lengths.sum()), 2, 3, 0, 0)


def test_identity_does_not_depend_on_the_order_of_rows(made):
    a = run(made(STORIES, "a.jsonl"), byte_bpe(), max_length=64)
    b = run(made(STORIES[::-1], "b.jsonl"), byte_bpe(), max_length=64)
    for one, other in ((a.train, b.train), (a.held_out, b.held_out)):
        assert {row.tobytes() for row in one.identity} == {row.tobytes() for row in other.identity}
    assert a.train.identity[0].tobytes() == pools.identity_of(a.train.text(0))


def test_whole_documents_are_held_out_and_stay_so_as_the_corpus_grows(made):
    """By a hash of their content: what was held out of a smaller corpus is held out of a larger one."""
    texts = [prose(6, seed) for seed in range(300)]
    small, large = (
        run(made(t, f"{len(t)}.jsonl"), byte_bpe(), max_length=64, holdout=0.1) for t in (texts[:150], texts)
    )
    documents = set(small.held_out.document.tolist())
    assert documents.isdisjoint(small.train.document.tolist())
    assert set(texts_of(small.held_out)) <= set(texts_of(large.held_out))
    assert 10 <= len(set(large.held_out.document.tolist())) <= 55
    assert small.report.held_out == len(small.held_out)
    assert len(small.train) + len(small.held_out) == small.report.examples


def test_how_little_is_held_out(made, tmp_path):
    """At least one document of 20; of fewer documents, at least one example of 20; of fewer, or with 0, nothing."""
    texts = [f"text number {i}" for i in range(20)]
    assert len(run(made(texts), byte_bpe(), holdout=1e-9).held_out) == 1
    assert len(run(made(texts), byte_bpe(), holdout=0).held_out) == 0
    assert len(run(made(texts[:19]), byte_bpe(), holdout=0.5).held_out) == 0
    (tmp_path / "long.txt").write_text(prose(300))
    found = run(tmp_path / "long.txt", byte_bpe(), max_length=64, holdout=0.1)
    assert 1 <= len(found.held_out) < len(found.train) / 3


@pytest.mark.parametrize("name", ["bytes", "slow"])
def test_several_processes_give_the_same_bytes_as_one(made, tmp_path, name):
    """And say nothing on the way: no warning, no line of the tokenizers'."""
    texts = [prose(30, seed) for seed in range(200)] + [prose(2000, 999)]
    path = made(texts)
    tokenizer = TOKENIZERS[name]()
    found = [run(path, tokenizer, max_length=64, cache=tmp_path / str(n), workers=n) for n in (1, 3)]
    for which in ("train", "held_out"):
        one, three = (getattr(f, which).folder for f in found)
        for file in ("pool.json", "examples.safetensors"):
            assert (one / file).read_bytes() == (three / file).read_bytes()
    assert "TOKENIZERS_PARALLELISM" not in os.environ


# --- the cache ----------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    calls = []
    monkeypatch.setattr(
        tokenise, "tokenise", lambda plan, batch, real=tokenise.tokenise: calls.append(1) or real(plan, batch)
    )
    return calls


def test_a_second_run_tokenises_nothing(made, counted, home, tmp_path):
    """The same bytes under the same name, wherever they lie, however the tokenizer was last called."""
    path, tokenizer = made(STORIES), byte_bpe()
    first = run(path, tokenizer, max_length=64, workers=1)
    assert (len(counted), [p.name for p in home.iterdir()]) == (1, ["pools"])
    (tmp_path / "moved").mkdir()
    path = path.rename(tmp_path / "moved" / path.name)
    tokenizer(["a", "b c"], truncation=True, max_length=1, padding=False)
    again = run(path, tokenizer, max_length=64, workers=1)
    assert len(counted) == 1
    assert again.report == first.report
    assert again.train.fingerprint == first.train.fingerprint
    assert again.train.folder == first.train.folder


def test_whatever_matters_misses_the_cache(made, counted):
    """A changed file, each option, another tokenizer, another name or limit."""
    path = made(STORIES)
    base = {"max_length": 64, "workers": 1}
    run(path, byte_bpe(), **base)
    path2 = made([*STORIES[:-1], "changed"])
    misses = [
        (path2, byte_bpe(), base),
        (path2, byte_bpe(), base | {"max_length": 65}),
        (path2, byte_bpe(), base | {"holdout": 0.2}),
        (path2, spaced_bpe(), base),
        ([{"path": path2, "source": "other"}], byte_bpe(), base),
        ([{"path": path2, "limit": 5}], byte_bpe(), base),
    ]
    for n, (source, tokenizer, options) in enumerate(misses, 2):
        run(source, tokenizer, **options)
        assert len(counted) == n
    run(path2, byte_bpe(), **base)
    assert len(counted) == len(misses) + 1


def test_a_damaged_cache_is_made_anew(made, counted, caplog):
    path = made(STORIES)
    first = run(path, byte_bpe(), workers=1)
    file = first.train.folder / "examples.safetensors"
    file.chmod(0o644)
    whole = file.read_bytes()
    fingerprint = first.train.fingerprint
    del first
    file.write_bytes(whole[:-1])
    assert run(path, byte_bpe(), workers=1).train.fingerprint == fingerprint
    assert len(counted) == 2
    assert file.read_bytes() == whole
    assert "cannot be used, and is made anew" in caplog.text


def test_what_a_killed_run_left_is_swept(made, home):
    """Its staged folder holds text, and must not lie about; one that is being written stays."""
    dead, live = home / "pools" / ".staged-dead", home / "pools" / ".staged-live"
    for folder in (dead, live):
        folder.mkdir(parents=True)
        (folder / "text").write_text("secret")
        os.utime(folder, (1, 1))
    lock = ingest.Lock(live / "lock", "live")
    os.utime(live, (1, 1))
    run(made(STORIES), byte_bpe())
    assert (dead.exists(), live.exists()) == (False, True)
    lock.release()


def test_a_failed_run_leaves_nothing(made, home, monkeypatch):
    """Bad input half-way, and a full disk: told by name, and no half of a pool stays."""
    path = made(STORIES)
    path.write_text(path.read_text() + "{broken\n")
    assert "line 27 is not JSON" in said(path, byte_bpe())
    assert list((home / "pools").iterdir()) == []

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StateError, match=r"could not be written in .*home \(No space left on device\); nothing was left"
    ):
        run(made(STORIES), byte_bpe())
    assert list((home / "pools").iterdir()) == []


# --- bad input ----------------------------------------------------------------------------------------------


def test_missing_files(tmp_path, made):
    made(STORIES, "letters.jsonl")
    assert "leters.jsonl does not exist (did you mean 'letters.jsonl'?)" in said(tmp_path / "leters.jsonl", byte_bpe())
    assert "does not exist: expected a file, a folder, or a dataset's name" in said("no/where/x.txt", byte_bpe())
    assert "does not exist" in said("./nothing", byte_bpe())


def test_a_name_that_the_hub_does_not_give(monkeypatch):
    import datasets

    def load(*_, **__):
        raise ConnectionError("Couldn't reach 'nobody/nothing' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load)
    message = said("nobody/nothing", byte_bpe())
    assert "nobody/nothing is no file or folder here, and could not be loaded from the hub (Couldn't reach" in message
    assert "check the name and the connection" in message


def test_folders_and_extensions(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty holds nothing: expected a folder with files in it of the kinds .txt, .md" in said(
        tmp_path / "empty", byte_bpe()
    )
    (tmp_path / "empty" / "a.pdf").write_text("x")
    assert "holds only a.pdf and the like" in said(tmp_path / "empty", byte_bpe())
    for name, near in (("a.pdf", ""), ("a.jsonll", " (did you mean '.jsonl'?)")):
        (tmp_path / name).write_text("x")
        assert f"{name} is of an unknown kind{near}: expected .txt, .md, .jsonl" in said(tmp_path / name, byte_bpe())


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl", "a.json", "a.csv", "a.txt.gz"])
def test_another_encoding_is_told_with_its_byte(tmp_path, name):
    """The offset is that of the byte in the file, a byte order mark and earlier lines included."""
    raw = b"\xef\xbb\xbf" + b'{"text": "fine"}\n{"text": "caf\xe9"}\n'
    if name == "a.json":
        raw = raw.replace(b'{"', b'[{"', 1)
    elif name == "a.csv":
        raw = b'text,n\n"two\nlines",2\ncaf\xe9,3\n'
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    message = said(tmp_path / name, byte_bpe())
    at = raw.index(b"\xe9")
    assert f"{name} is not UTF-8: byte 0xe9 at offset {at}. Convert it, such as with iconv" in message


@pytest.mark.parametrize("kind", [jsonl, as_json, as_csv, parquet, on_disk], ids=lambda kind: kind.__name__)
def test_a_column_that_is_not_there(kind, tmp_path):
    message = said(str(kind(tmp_path, ["a"])), byte_bpe(), text_column="txt")
    assert "has no column 'txt' (did you mean 'text'?): it has " in message
    assert "Name the column with text_column" in message


def test_rows_that_cannot_be(tmp_path):
    """Each by file and line, with what was expected."""
    path = tmp_path / "c.jsonl"
    for line, fault in {
        '{"text": 3}': "c.jsonl, line 2: 'text' is 3, a int: expected text",
        '{"text": ["a"]}': "c.jsonl, line 2: 'text' is ['a'], a list: expected text",
        '{"other": "x"}': "c.jsonl, line 2 has no column 'text': it has other",
        '{"text": "x"': "c.jsonl, line 2 is not JSON (Expecting ',' delimiter",
        "[1]": "c.jsonl, line 2 is a list: expected a JSON object with a column 'text'",
        '{"text": "\\ud800"}': "c.jsonl, line 2: 'text' holds half a character ('\\ud800')",
    }.items():
        path.write_text('{"text": "fine"}\n' + line + "\n")
        assert fault in said(path, byte_bpe())
    (tmp_path / "c.csv").write_text("n,text\n1,a\n2\n")
    assert "c.csv, line 3 has 1 cells, and the header 2" in said(tmp_path / "c.csv", byte_bpe())
    (tmp_path / "c.csv").write_text('n,text\n1,"a"b\n')
    assert "c.csv, line 2 is not CSV" in said(tmp_path / "c.csv", byte_bpe())


def test_parquet_that_cannot_be(tmp_path):
    path = parquet(tmp_path, [1, 2])
    assert "c.parquet, row 0: 'text' is 1, a int: expected text" in said(path, byte_bpe())
    path.write_bytes(path.read_bytes()[:-9])
    assert "c.parquet is not a whole Parquet file" in said(path, byte_bpe())


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"hello world" * 99)[:-9])
    assert "c.txt.gz cannot be read" in said(tmp_path / "c.txt.gz", byte_bpe())
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nothing")
    assert "gone.txt cannot be read (No such file or directory)" in said(tmp_path / "gone.txt", byte_bpe())


def test_an_empty_corpus(made, tmp_path):
    assert "there is no text in corpus.jsonl: 2 documents, all of them empty" in said(made(["", " \n"]), byte_bpe())
    assert "there is no text in corpus.jsonl: no documents" in said(made([]), byte_bpe())
    (tmp_path / "e.txt").write_text("")
    assert "there is no text in e.txt: 1 documents" in said(tmp_path / "e.txt", byte_bpe())
    message = said(made([f"t{i}" for i in range(20)]), byte_bpe(), holdout=0.999999)
    assert "leaves nothing of corpus.jsonl to train on" in message


def test_all_faults_of_the_options_are_told_at_once(made):
    bare = byte_bpe().__class__(tokenizer_object=byte_bpe().backend_tokenizer)
    message = said(made(STORIES), bare, max_length=3, holdout=1, workers=0)
    assert message.startswith("4 faults in ingest:")
    for part in ("max_length = 3", "holdout = 1", "workers = 0", "has no eos token, which ends a document: set"):
        assert part in message
    assert "format = 'chats' (did you mean 'chat'?): expected 'text' or 'chat'" in said("x", bare, format="chats")
    message = said([{"path": "a", "limt": 3}, {"limit": 2}, {"path": "b", "limit": 0}], byte_bpe())
    for part in (
        "3 faults in the sources",
        "'limt' is no key of a source (did you mean 'limit'?)",
        "path = None",
        "limit = 0 of b",
    ):
        assert part in message


def test_bad_chats(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"messages": [{"role": "ghost", "content": "boo"}]}\n')
    assert "format = 'chat': this TokenizersBackend has no chat template" in said(path, byte_bpe(), format="chat")
    for workers in (1, 2):
        message = said(path, spaced_bpe(), format="chat", workers=workers)
        assert "c.jsonl, line 1: the chat template refuses these messages (no ghosts)" in message
    path.write_text('{"messages": "hi"}\n')
    assert "line 1: 'messages' is 'hi': expected a list of {role: …, content: …}" in said(
        path, spaced_bpe(), format="chat"
    )
    (tmp_path / "c.txt").write_text("x")
    assert "c.txt cannot hold chats" in said(tmp_path / "c.txt", spaced_bpe(), format="chat")


def test_a_killed_process_is_told_and_leaves_nothing(made, home, monkeypatch):
    """As the kernel does it where memory is short: an error, and no waiting for ever."""
    monkeypatch.setattr(tokenise, "_tokenise_here", _die)
    with pytest.raises(StateError, match=r"One of 2 processes was killed.*fewer workers"):
        run(made(STORIES), byte_bpe(), workers=2)
    assert list((home / "pools").iterdir()) == []


def _die(_):
    os._exit(9)


def test_importing_the_room_is_cheap():
    heavy = ["torch", "transformers", "datasets", "pyarrow"]
    code = f"import sys, srt_peft.data.pool, srt_peft.data.ingest; print(*[m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


# --- real text ----------------------------------------------------------------------------------------------


def test_real_stories_with_a_real_tokenizer():
    """TinyStories through the tokenizer of the model that was trained on them."""
    data = os.environ.get("SRT_PEFT_DATA")
    if not data:
        pytest.skip("SRT_PEFT_DATA does not name a folder with stories260K/hf and tinystories")
    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(Path(data) / "stories260K" / "hf")
    path = Path(data) / "tinystories" / "tinystories_sample.txt"
    found = run(path, tokenizer, max_length=512, holdout=0)
    assert found.train.lengths.max() <= 512
    assert found.train.lengths.mean() > 350
    assert ink("".join(texts_of(found.train))) == ink(path.read_text())
    for i in range(0, len(found.train), 100):
        row = [t for t in found.train[i].tolist() if t not in (1, 2)]
        assert re.sub(r"\s", "", tokenizer.decode(row)) == ink(found.train.text(i))
    assert np.unique(found.train.document).tolist() == [0]
