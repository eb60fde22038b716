"""What documents and sources are called: ids, sources by column or by file, decks, and what a cache keeps of them."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import OptionError
from srt_peft.data import Corpus, Pool, corpus as corpora, pool as pools, register
from srt_peft.data.ingest import ingest as run
from srt_peft.data.reading import word_of
from tests.data.helpers import byte_bpe, prose


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


ROWS = [
    {"text": f"story number {i}", "topic": topic, "id": name}
    for i, (topic, name) in enumerate(
        [("sea", "a"), ("land", 7), (None, "c"), ("sea", None), (3, 2.0), (3.5, "f"), ("", ""), ("land", "a")]
    )
]
TOPICS = ["sea", "land", "OWN", "sea", "3", "3.5", "OWN", "land"]
IDS = ["a", "7", "c", None, "2", "f", None, "a"]


def jsonl(folder, rows):
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "c.jsonl"


def sparse_gz(folder, rows):
    """Rows that leave out what they have not."""
    lines = (json.dumps({key: value for key, value in row.items() if value is not None}) + "\n" for row in rows)
    (folder / "c.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return folder / "c.jsonl.gz"


def as_json(folder, rows):
    (folder / "c.json").write_text(json.dumps(rows))
    return folder / "c.json"


def as_csv(folder, rows):
    import csv

    with (folder / "c.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["id", "topic", "text"])
        table.writeheader()
        table.writerows({**row, "id": "2" if row["id"] == 2.0 else row["id"]} for row in rows)
    return folder / "c.csv"


def table_of(rows):
    def column(name):
        return [None if row[name] is None else str(row[name]).replace("2.0", "2") for row in rows]

    return {name: column(name) for name in ("topic", "text", "id")}


def parquet(folder, rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(table_of(rows)), folder / "c.parquet", row_group_size=3)
    return folder / "c.parquet"


def on_disk(folder, rows):
    import datasets

    datasets.Dataset.from_dict(table_of(rows)).save_to_disk(folder / "c")
    return folder / "c"


def keys(names):
    return [pools.key_of(name) for name in names]


def keys_of(pool):
    return [row.tobytes() for row in pool.key]


def said(*args, **kwargs):
    with pytest.raises(OptionError) as error:
        run(*args, **kwargs)
    return str(error.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of datasets
@pytest.mark.parametrize("kind", [jsonl, sparse_gz, as_json, as_csv, parquet, on_disk], ids=lambda kind: kind.__name__)
def test_a_column_says_the_source_and_another_the_id(kind, tmp_path):
    """In every kind of file: text or a number; where there is neither, the source's own name, and no id."""
    path = kind(tmp_path, ROWS)
    pool = run(str(path), byte_bpe(), source_column="topic", holdout=0).train
    assert [pool.sources[i] for i in pool.source] == [path.name if topic == "OWN" else topic for topic in TOPICS]
    assert pool.sources == list(dict.fromkeys(pool.sources[i] for i in pool.source))
    assert keys_of(pool) == keys(IDS)
    assert pool.key[3].tolist() == [0] * 16
    assert pool.manifest["about"]["ids"] == sorted({name for name in IDS if name})


@pytest.mark.parametrize(
    ("value", "word"),
    [(None, None), ("", None), (float("nan"), None), (3, "3"), (-2.0, "-2"), (0.5, "0.5"), (2**70, str(2**70))],
)
def test_a_number_is_called_as_it_is_written(value, word):
    """A column of whole numbers that has nulls may come as one of floats."""
    assert word_of(value) == word


@pytest.mark.parametrize("value", [True, ["a"], {"a": 1}, "\ud800"])
def test_what_names_nothing_is_refused_by_line(value, tmp_path):
    for column, option in (("topic", {"source_column": "topic"}), ("id", {})):
        path = jsonl(tmp_path, [ROWS[0], {**ROWS[1], column: value}])
        assert (
            f"c.jsonl, line 2: {column!r} is {value!r}, a {type(value).__name__}: expected text, a number or null"
            in (said(path, byte_bpe(), **option))
        )


def test_another_column_of_ids(tmp_path):
    pool = run(jsonl(tmp_path, ROWS), byte_bpe(), id_column="topic", holdout=0).train
    assert keys_of(pool) == keys([None if topic == "OWN" else topic for topic in TOPICS])
    assert not run(jsonl(tmp_path, ROWS), byte_bpe(), id_column="none", holdout=0).train.key.any()


@pytest.fixture
def tree(tmp_path):
    for name, sentences in (("a.txt", 30), ("deep/b.md", 2), ("deep/c.txt.gz", 2)):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = prose(sentences, sentences + len(name)).encode()
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    (tmp_path / "tree" / "rows.jsonl").write_text(json.dumps({"text": "one row", "id": 9, "topic": "sea"}) + "\n")
    return tmp_path / "tree"


def test_files_are_called_by_their_paths(tree):
    """From their source's folder on; all examples of a document have its key, and rows keep their own."""
    pool = run(tree, byte_bpe(), source_column="__file__", max_length=64, holdout=0).train
    names = ["a.txt", "deep/b.md", "deep/c.txt.gz", "rows.jsonl"]
    assert pool.sources == names
    assert [pool.sources[i] for i in pool.source] == [names[d] for d in pool.document]
    assert keys_of(pool) == keys([[*names[:3], "9"][d] for d in pool.document])
    assert np.bincount(pool.document)[0] > 1
    one = run([{"path": str(tree / "deep" / "b.md"), "source": "mine"}], byte_bpe(), source_column="__file__").train
    assert (one.sources, keys_of(one)) == (["b.md"], keys(["b.md"]))


def test_text_files_among_rows_are_of_their_own_source(tree):
    """They have no column, and that is no fault."""
    pool = run(tree, byte_bpe(), source_column="topic", max_length=64, holdout=0).train
    assert pool.sources == ["tree", "sea"]
    assert [pool.sources[i] for i in pool.source][-2:] == ["tree", "sea"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [jsonl, as_json, as_csv, parquet, on_disk], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("limit", [None, 2])
def test_a_source_column_that_no_row_has(kind, limit, tmp_path):
    source = [{"path": str(kind(tmp_path, ROWS)), "limit": limit}]
    message = said(source, byte_bpe(), source_column="topci")
    assert "has no column 'topci' (did you mean 'topic'?): it has " in message
    assert "Name the column with source_column" in message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [jsonl, as_json, as_csv, parquet, on_disk], ids=lambda kind: kind.__name__)
def test_a_source_column_that_only_old_has(kind, tmp_path):
    """It is enough: the decks are those of old, and new is a source of its own; old without it is refused as ever."""
    from srt_peft.training.recipe import load_recipe
    from srt_peft.training.texts import read

    old, new = tmp_path / "old.jsonl", kind(tmp_path, ROWS)
    old.write_text("".join(json.dumps({"text": f"old {i}", "theme": "ab"[i % 2]}) + "\n" for i in range(4)))
    given = {"model": {"base": "b"}, "data": {"old": str(old), "new": str(new), "source_column": "theme"}}
    for _ in range(2):  # made, and then from the cache
        assert read(load_recipe(given), byte_bpe()).decks == ["a", "b", new.name]
    with pytest.raises(OptionError, match=r"has no column 'theme'.*: it has .*\. Name the column with source_column"):
        read(load_recipe(given, [f"data.old={new}", f"data.new={old}"]), byte_bpe())


def test_several_processes_give_the_same_bytes_as_one(tmp_path):
    """Names, keys, sources and what is superseded among them."""
    rows = [
        {
            "text": prose(30, i),
            "id": i if i % 3 else None,
            "topic": f"t{i % 17}",
            "gone": [str(i), "x"] if i % 5 else [],
        }
        for i in range(150)
    ]
    path = jsonl(tmp_path, rows)
    options = {"source_column": "topic", "supersedes_column": "gone", "max_length": 64, "holdout": 0.1}
    found = [run(path, byte_bpe(), **options, cache=tmp_path / str(n), workers=n) for n in (1, 2)]
    names = [f"{part}/{file}" for part in ("train", "held_out") for file in ("pool.json", "examples.safetensors")]
    for name in [*names, "supersedes.jsonl"]:
        one, two = ((f.train.folder.parent / name).read_bytes() for f in found)
        assert one == two, name
    pool = found[0].train
    assert keys_of(pool) == keys([rows[d]["id"] and str(rows[d]["id"]) for d in pool.document])
    assert [pool.sources[i] for i in pool.source] == [rows[d]["topic"] for d in pool.document]


def test_what_is_not_in_a_pool_is_known_to_it(tmp_path):
    """Held out, double and empty documents: their keys, each once, sorted; and none of those that are there."""
    rows = [{"text": f"number {i} of many", "id": f"n{i}"} for i in range(40)]
    rows += [{"text": "number 3 of many", "id": "double"}, {"text": " ", "id": "empty"}, {"text": "", "id": None}]
    found = run(jsonl(tmp_path, rows), byte_bpe(), holdout=0.2)
    for pool in (found.train, found.held_out):
        here = set(keys_of(pool))
        known = [row.tobytes() for row in pool.known]
        assert known == sorted(set(keys(row["id"] for row in rows if row["id"])) - here)
        assert len(here) + len(known) == 42
    assert len(found.held_out) > 0
    assert pools.key_of("double") in {row.tobytes() for row in found.train.known}


def test_names_are_not_in_the_fingerprint_and_are_in_the_cache(tmp_path):
    """Another column of sources or ids is another pool of the same training; a renamed file is, too."""
    path = jsonl(tmp_path, ROWS)
    found = [
        run(path, byte_bpe(), holdout=0, **options).train
        for options in ({}, {"source_column": "topic"}, {"id_column": "topic"}, {"supersedes_column": "topic"})
    ]
    assert len({pool.folder for pool in found}) == 4
    assert len({pool.fingerprint for pool in found}) == 1
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("words")
    before = run(tmp_path / "d", byte_bpe()).train
    (tmp_path / "d" / "a.txt").rename(tmp_path / "d" / "b.txt")
    after = run(tmp_path / "d", byte_bpe()).train
    assert (keys_of(before), keys_of(after)) == (keys(["a.txt"]), keys(["b.txt"]))


def test_a_file_whose_name_is_not_unicode(tmp_path):
    (tmp_path / "d").mkdir()
    with open(os.fsencode(tmp_path / "d") + b"/caf\xe9.txt", "w") as file:  # noqa: PTH123 - Path takes no bytes
        file.write("words")
    pool = run(tmp_path / "d", byte_bpe(), source_column="__file__").train
    assert (pool.sources, keys_of(pool)) == (["caf\ufffd.txt"], keys(["caf\ufffd.txt"]))


def test_a_pool_of_the_version_before_is_made_anew(tmp_path, caplog):
    """Where a cache holds one, such as from a copy; elsewhere it is refused (tests/data/test_pool.py)."""
    path = jsonl(tmp_path, ROWS)
    found = run(path, byte_bpe()).train
    file = found.folder / "pool.json"
    whole = file.read_bytes()
    manifest = json.loads(whole) | {"version": 1}
    file.write_bytes(pools.files.vouched(manifest))
    assert run(path, byte_bpe()).train.fingerprint == found.fingerprint
    assert file.read_bytes() == whole
    assert "is of format version 1; this srt-peft reads version 2" in caplog.text


def test_a_recipe_asks_for_them(tmp_path):
    """Its keys reach the pools of both texts."""
    from srt_peft.training.recipe import load_recipe
    from srt_peft.training.texts import corpora as read

    path = jsonl(tmp_path, [{"text": row["text"], "name": row["id"], "topic": row["topic"]} for row in ROWS])
    data = {"old": str(path), "new": str(path), "source_column": "topic", "id_column": "name", "supersedes": "name"}
    corpus, _ = read(load_recipe({"model": {"base": "b"}, "data": data}), byte_bpe())
    assert corpus.decks[1] == ["sea", "land", "c.jsonl", "3", "3.5"]
    assert keys_of(corpus.old) == keys_of(corpus.new) == keys(IDS)
    assert corpus.new.manifest["about"]["supersedes"]["seen"] is True


# --- decks --------------------------------------------------------------------------------------------------


def pool_of(folder, labels, names):
    texts = [f"{folder.name} {i}" for i in range(len(labels))]
    return Pool.create(folder, [[1]] * len(labels), texts, source=labels, sources=names)


def naive_decks(old, new):
    named = [pool.sources[i] for pool in (old, new) for i in pool.source]
    names = list(dict.fromkeys(named))
    return [names.index(name) for name in named], names


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_decks_are_the_names_of_both_pools(tmp_path_factory, data):
    """As a list and a dictionary find them; two sources of one name in one pool are one deck, and so across pools."""
    base = tmp_path_factory.mktemp("decks")
    made = []
    for which in ("old", "new"):
        names = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6))
        labels = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=12))
        made.append(pool_of(base / which, labels, names))
    deck, names = Corpus(*made).decks
    assert deck.dtype == np.uint16
    assert (deck.tolist(), names) == naive_decks(*made)


def test_tens_of_thousands_of_sources(tmp_path):
    """A row each: as many names, in order; one more than can be is refused, in one pool and over both."""
    count = 30_000
    rows = [{"text": f"t {i}", "topic": f"s{i}"} for i in range(count)]
    pool = run(jsonl(tmp_path, rows), byte_bpe(), source_column="topic", holdout=0, workers=1).train
    assert pool.sources == [f"s{i}" for i in range(count)]
    deck, names = Corpus(pool, pool_of(tmp_path / "new", [0, 1], ["s29999", "other"])).decks
    assert (deck[-3:].tolist(), len(names), names[-1]) == ([count - 1, count - 1, count], count + 1, "other")


def test_more_sources_than_there_may_be(tmp_path, monkeypatch):
    for module in (corpora, register):
        monkeypatch.setattr(module, "MOST_SOURCES", 3)
    message = said(jsonl(tmp_path, ROWS), byte_bpe(), source_column="topic")
    assert "there are 5 sources: expected at most 3. Group them, by a column (data.source_column) with fewer" in message
    old, new = pool_of(tmp_path / "o", [0, 1, 2], "abc"), pool_of(tmp_path / "n", [0, 1], "ad")
    with pytest.raises(OptionError, match="there are 4 sources: expected at most 3"):
        Corpus(old, new).decks  # noqa: B018
    assert len(Corpus(old, pool_of(tmp_path / "m", [0], "a")).decks[1]) == 3


def test_importing_the_room_is_cheap():
    heavy = ["torch", "transformers", "datasets", "pyarrow", "sklearn", "scipy"]
    modules = "srt_peft.data.clusters, srt_peft.data.supersedes"
    code = f"import sys, {modules}; print(*[m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
