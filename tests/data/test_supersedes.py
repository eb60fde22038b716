"""What a new text replaces: by a column or a map, over chains, and every fault of either, told at once."""

import csv
import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import OptionError, StateError
from srt_peft.data import Corpus, Pool, pool as pools, supersedes
from srt_peft.data.ingest import ingest
from srt_peft.data.supersedes import Pair, Supersedes, column_of, read, superseded
from tests.data.helpers import byte_bpe, prose


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def pool_of(folder, ids, known=()):
    """A pool of one example for each of these ids, in that order; the same id again is the same document."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(ids))}
    document = [numbers[name] if name else 1000 + i for i, name in enumerate(ids)]
    texts = [f"{folder.name} {i}" for i in range(len(ids))]
    pool = Pool.create(folder, [[1]] * len(ids), texts, document=document, ids=ids)
    pool.columns["known"] = np.frombuffer(b"".join(map(pools.key_of, known)), np.uint8).reshape(-1, 16)
    return pool


@pytest.fixture
def corpus(tmp_path):
    old = pool_of(tmp_path / "old", ["a", "b", "b", None, "c", "d"], known=["held"])
    return Corpus(old, pool_of(tmp_path / "new", ["x", "a", None], known=["empty"]))


def pairs(*said):
    return [Pair(new, tuple(old.split()), f"map.jsonl, line {i}") for i, (new, old) in enumerate(said, 1)]


def faults_of(corpus, *said):
    with pytest.raises(OptionError) as error:
        superseded(corpus, pairs(*said))
    return list(error.value.faults)


# --- what is suspended --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ([], []),
        ([("x", "b")], [1, 2]),  # all examples of a document
        ([("x", "a c"), (None, "d")], [0, 4, 5]),  # several at once, and by a row without an id
        ([("a", "a")], [0]),  # a page's new text has its old one's id
        ([("c", "b"), ("x", "c")], [1, 2, 4]),  # a chain over updates: x replaces c, and c had replaced b
        ([("c", "b"), ("b", "a")], [0, 1, 2]),  # all of it before this update
        ([("a", "c"), ("c", "a")], [0, 4]),  # no circle: the a that replaces c is the new one
        ([("x", "held"), ("held", "a"), ("empty", "b")], [0, 1, 2]),  # known, though it is not trained on
        ([("x", "a"), ("x", "a"), ("a", "a c")], [0, 4]),  # said twice
    ],
)
def test_what_is_suspended(corpus, said, gone):
    found = superseded(corpus, pairs(*said)).ids
    assert (found.dtype, found.tolist()) == (np.int64, gone)


def naive(old, new, said):
    """The ids that are suspended, or None where something is wrong: by lists, and by walking on for ever."""
    links = [(n, o) for n, olds in said for o in olds.split()]
    mine = [(n, o) for n, o in links if n is None or n not in old or n in new]  # what the promoted named may be gone
    if any(o not in old for _, o in mine) or any(n and n not in old and n not in new for n, o in links):
        return None
    within = [(n, o) for n, o in links if n and n not in new]
    reached = set(within)
    for _ in within:
        reached |= {(a, d) for a, b in reached for c, d in within if b == c}
    if any(a == b for a, b in reached):
        return None
    return [i for i, name in enumerate(old) if any(o == name for _, o in links)]


NAME = st.sampled_from("abcdefgh")
SAID = st.lists(st.tuples(st.none() | NAME, st.lists(NAME, min_size=1, max_size=3).map(" ".join)), max_size=8)


@settings(max_examples=150, deadline=None)
@given(st.lists(NAME | st.none(), max_size=12), st.lists(NAME, max_size=3), SAID)
def test_it_is_what_a_naive_walk_finds(tmp_path_factory, old, new, said):
    """The same rows; and an error just where an id is unknown or the walk comes back to where it was."""
    base = tmp_path_factory.mktemp("naive")
    made = Corpus(pool_of(base / "old", old), pool_of(base / "new", new))
    expected = naive(old, new, said)
    if expected is None:
        assert faults_of(made, *said)
    else:
        assert superseded(made, pairs(*said)).ids.tolist() == expected


def test_half_a_key_does_not_suspend(corpus):
    """Rows are looked for by eight bytes, and taken by sixteen."""
    key = np.array(corpus.old.key)
    key[3] = key[0]
    key[3, 12] ^= 1
    corpus.old.columns["key"] = key
    assert superseded(corpus, pairs(("x", "a"))).ids.tolist() == [0]


def test_a_name_without_an_example_is_told(tmp_path):
    """The text stood there before under another name: nothing can be set aside for this one."""
    old = Pool.create(tmp_path / "o", [[1]] * 2, list("pq"), ids=["a", "b"])
    old.columns["known"] = np.frombuffer(pools.key_of("renamed"), np.uint8).reshape(1, 16)
    found = superseded(Corpus(old, pool_of(tmp_path / "n", ["x"])), pairs(("x", "renamed a")))
    assert (found.ids.tolist(), found.nowhere) == ([0], ["renamed"])


def test_two_documents_of_one_name_are_both_meant(tmp_path):
    old = Pool.create(tmp_path / "o", [[1]] * 4, list("pqrs"), document=[0, 0, 1, 2], ids=["a", "a", "a", "b"])
    corpus = Corpus(old, pool_of(tmp_path / "n", ["x"]))
    said = pairs(("x", "a b"))
    found = superseded(corpus, said)
    assert (found.ids.tolist(), found.ambiguous) == ([0, 1, 2, 3], {"a": 2})


def test_a_chain_of_a_hundred_thousand_links(tmp_path):
    """No recursion, and no square of it."""
    count = 100_000
    names = [f"v{i}" for i in range(count)]
    key = np.frombuffer(b"".join(map(pools.key_of, names)), np.uint8).reshape(-1, 16)
    old = pool_of(tmp_path / "o", ["v0"])
    old.columns |= {"key": key, "document": np.arange(count)}
    corpus = Corpus(old, pool_of(tmp_path / "n", ["x"]))
    said = [(names[i + 1], names[i]) for i in range(count - 1)]
    assert superseded(corpus, pairs(*said)).ids.tolist() == list(range(count - 1))
    [fault] = faults_of(corpus, *said, (names[0], names[-1]))
    assert "goes round in a circle" in fault


# --- faults of what is said -----------------------------------------------------------------------------------


def test_all_faults_are_told_at_once(corpus):
    """Unknown ids on either side with what was meant, a circle by its names, and one that replaces itself."""
    listed = corpus.old.manifest["about"]
    listed["ids"] = ["apple-pie", "b"]
    said = [("x", "aple-pie"), ("nobody", "a"), ("d", "d"), ("c", "b"), ("b", "c"), ("x", "aple-pie")]
    assert faults_of(corpus, *said) == [
        (
            "map.jsonl, line 1: 'aple-pie' is no document of data.old (did you mean 'apple-pie'?): expected the id of "
            "one"
        ),
        "map.jsonl, line 2: 'nobody' is no document of data.new or data.old: expected the id of one",
        "map.jsonl, line 3: 'd' of data.old supersedes itself: remove that, or bring its new text",
        (
            "map.jsonl, line 5: this goes round in a circle: 'c' supersedes 'b' supersedes 'c'. Remove the link that "
            "is wrong"
        ),
    ]


def test_many_faults_are_counted(corpus):
    with pytest.raises(OptionError) as error:
        superseded(corpus, pairs(*(("x", f"no{i}") for i in range(35))))
    lines = str(error.value).splitlines()
    assert (lines[0], len(lines), lines[-1].strip()) == ("35 faults in data.supersedes:", 12, "and 25 more")


def test_an_old_corpus_without_ids(tmp_path):
    corpus = Corpus(pool_of(tmp_path / "o", [None]), pool_of(tmp_path / "n", ["x"]))
    [fault] = faults_of(corpus, ("x", "a"))
    assert fault.endswith("expected the id of one. No document there has an id: name their column with data.id_column")


# --- maps -----------------------------------------------------------------------------------------------------

MAP = [("x", ["a"]), ("7", ["b", "8"]), ("y", []), ("z", ["c"])]


def jsonl(path):
    lines = ['{"new": "x", "old": "a"}', '{"new": 7, "old": ["b", 8.0]}', '{"new": "y", "old": null}']
    path.write_text("\n".join([*lines, '{"new": "z", "old": ["c", null], "why": "moved"}']))


def zipped(path):
    jsonl(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def as_json(path):
    path.write_text(json.dumps([{"new": new, "old": old} for new, old in MAP]))


def as_csv(path):
    with path.open("w", newline="") as file:
        rows = [("new", "old"), *((new, one) for new, old in MAP for one in old or [""])]
        csv.writer(file).writerows(rows)


def parquet(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"old": [old for _, old in MAP], "new": [new for new, _ in MAP]}), path)


@pytest.mark.parametrize(
    ("write", "name"),
    [(jsonl, "m.jsonl"), (zipped, "m.ndjson.gz"), (as_json, "m.json"), (as_csv, "m.csv"), (parquet, "m.parquet")],
)
def test_a_map_of_every_kind(write, name, tmp_path, corpus):
    """They say the same, and have the same fingerprint; one that says less has another."""
    write(tmp_path / name)
    found = read(name, corpus)
    assert {(pair.new, old) for pair in found.pairs for old in pair.old} == {(n, o) for n, olds in MAP for o in olds}
    assert found.fingerprint == Supersedes(tuple(Pair(n, tuple(o), "") for n, o in MAP[::-1])).fingerprint
    assert found.fingerprint != Supersedes(found.pairs[:-1]).fingerprint


def told(given, corpus):
    with pytest.raises(OptionError) as error:
        read(given, corpus)
    return list(error.value.faults)


def test_maps_that_cannot_be(tmp_path, corpus):
    """Every row with its line: no id, a column that is missing, values that name nothing."""
    (tmp_path / "m.jsonl").write_text(
        '{"new": "x", "old": {"a": 1}}\n{"new": null, "old": "a"}\n{"nwe": "x", "old": "a"}\n\n'
        '{"new": ["x"], "old": [["a"]]}\n{"new": "x", "old": true}\n'
    )
    assert told("m.jsonl", corpus) == [
        "m.jsonl, line 1: 'old' is {'a': 1}: expected an id, a list of ids, or null",
        "m.jsonl, line 2: 'new' is None: expected an id",
        (
            "m.jsonl, line 3 has no column 'new' (did you mean 'nwe'?): it has nwe, old. Expected rows of "
            "{new: ID, old: ID or [IDs]}"
        ),
        "m.jsonl, line 5: 'new' is ['x']: expected an id",
        "m.jsonl, line 5: 'old' is [['a']]: expected an id, a list of ids, or null",
        "m.jsonl, line 6: 'old' is True: expected an id, a list of ids, or null",
    ]
    (tmp_path / "m.csv").write_text("newer,old\nx,a\n")
    assert (
        "m.csv has no column 'new' (did you mean 'newer'?): it has newer, old. Expected rows of"
        in (told("m.csv", corpus)[0])
    )
    (tmp_path / "m.json").write_text('["x"]')
    assert "m.json, item 1 is a str: expected a JSON object" in told("m.json", corpus)[0]
    for name in ("m.txt", "m.jsonll"):
        (tmp_path / name).write_text("x a")
        assert (
            f"{name} is no map: expected a file of the kinds .jsonl, .ndjson, .json, .csv, .parquet"
            in (told(f"./{name}", corpus)[0])
        )
    assert "nap.jsonl does not exist (did you mean 'm.jsonl'?)" in told("nap.jsonl", corpus)[0]
    assert "is no map" in told(str(tmp_path), corpus)[0]


@pytest.mark.parametrize(
    ("given", "column"),
    [(None, None), ("replaces", "replaces"), ("m.jsonl", None), ("./m", None), ("~/m", None), ("here", None)],
)
def test_a_path_or_a_column(given, column, tmp_path):
    """A path by its looks, or by a file that is there; a column else."""
    (tmp_path / "here").write_text("")
    assert column_of(given) == column


# --- columns, through ingest and its cache ----------------------------------------------------------------------


def rows_of(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def texts(tmp_path):
    """Old: thirty documents, of which some are held out; new: what replaces five of them and an older replacement."""
    old = [{"id": f"o{i}", "text": prose(6, i)} for i in range(30)] + [{"id": "o30", "text": prose(6, 30), "was": "o1"}]
    new = [{"id": 1, "text": prose(6, 101), "was": "o3"}, {"id": 2, "text": prose(6, 102), "was": ["o4", "o5"]}]
    new += [{"id": None, "text": prose(6, 103), "was": "o30"}, {"id": 3, "text": prose(6, 104), "was": None}]
    return rows_of(tmp_path / "old.jsonl", old), rows_of(tmp_path / "new.jsonl", new)


def corpus_of(*paths, column="was", **options):
    found = [ingest(path, byte_bpe(), supersedes_column=column, max_length=32, **options).train for path in paths]
    return Corpus(*found)


def test_a_column_suspends_what_it_names(texts):
    """The new rows' and the old rows', which were new once; each document whole; held-out ones are no fault."""
    for _ in range(2):  # made, and then from the cache
        corpus = corpus_of(*texts, holdout=0.2)
        said = read("was", corpus)
        assert [(pair.new, pair.old, pair.where) for pair in said.pairs] == [
            ("o30", ("o1",), "old.jsonl, line 31"),
            ("1", ("o3",), "new.jsonl, line 1"),
            ("2", ("o4", "o5"), "new.jsonl, line 2"),
            (None, ("o30",), "new.jsonl, line 3"),
        ]
        gone = superseded(corpus, said.pairs).ids
        documents = set(corpus.old.document[gone].tolist())
        assert documents == {1, 3, 4, 5, 30} & set(corpus.old.document.tolist())
        assert gone.tolist() == np.flatnonzero(np.isin(corpus.old.document, list(documents))).tolist()


def test_what_is_withdrawn_is_revived(texts):
    """The set is worked out anew: without the row, or its word, the example is back; the run's identity knows."""
    old, new = texts
    before = read("was", corpus_of(old, new))
    rows = [json.loads(line) for line in new.read_text().splitlines()]
    rows_of(new, [{**rows[0], "was": None}, rows[1]])
    corpus = corpus_of(old, new, holdout=0)
    after = read("was", corpus)
    assert set(corpus.old.document[superseded(corpus, after.pairs).ids].tolist()) == {1, 4, 5}
    assert before.fingerprint != after.fingerprint != Supersedes().fingerprint


def test_what_a_promoted_row_names_may_be_gone(texts):
    """By its row or by a map's line: told, with the rest suspended; what new names must be there."""
    old, new = texts
    rows = [json.loads(line) for line in old.read_text().splitlines()]
    rows_of(old, [*rows[2:], {"text": prose(6, 99), "was": ["o0", "o2"]}])  # without o0 and o1, which o30 replaced
    corpus = corpus_of(old, new, holdout=0)
    found = superseded(corpus, read("was", corpus).pairs)
    assert found.gone == ["o0", "o1"]
    assert {json.loads(old.read_text().splitlines()[i])["id"] for i in corpus.old.document[found.ids]} == {
        "o2", "o3", "o4", "o5", "o30",
    }  # fmt: skip
    assert superseded(corpus, pairs(("o30", "o1"), ("1", "o3"))).gone == ["o1"]
    [fault] = faults_of(corpus, ("1", "o1"), ("o30", "o1"))
    assert fault.startswith("map.jsonl, line 1: 'o1' is no document of data.old")


def test_a_column_that_neither_pool_has(texts):
    corpus = corpus_of(*texts, column="wsa")
    [fault] = told("wsa", corpus)
    assert fault == (
        "new.jsonl, line 1 has no column 'wsa' (did you mean 'was'?): it has id, text, was. Name the column, or the "
        "path of a map, with supersedes"
    )


def test_a_column_that_only_one_pool_has(texts, tmp_path):
    """It is enough; plain text has none, and is no fault beside it."""
    (tmp_path / "t.txt").write_text(prose(3))
    assert [len(read("was", corpus_of(*paths)).pairs) for paths in ((tmp_path / "t.txt", texts[1]), texts[::-1])] == [
        3,
        4,
    ]
    assert "t.txt has no column 'was': it has none" in told("was", corpus_of(tmp_path / "t.txt", tmp_path / "t.txt"))[0]


def test_cells_that_name_nothing(tmp_path):
    """All of them, by line, before anything is kept."""
    path = rows_of(tmp_path / "n.jsonl", [{"text": f"t {i}", "was": {"a": i} if i < 12 else "o"} for i in range(14)])
    with pytest.raises(OptionError) as error:
        corpus_of(path)
    lines = str(error.value).splitlines()
    assert lines[1].strip() == "n.jsonl, line 1: 'was' is {'a': 0}: expected an id, a list of ids, or null"
    assert (len(error.value.faults), lines[-1].strip()) == (12, "and 2 more")


def test_a_damaged_file_beside_a_pool_is_made_anew(texts, caplog):
    """By ingest, as all of its cache; whoever reads it without, is told."""
    corpus = corpus_of(*texts)
    path = corpus.new.folder.parent / supersedes.FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(StateError, match=r"supersedes\.jsonl is damaged, or gone: its pool says otherwise"):
        read("was", corpus)
    assert len(read("was", corpus_of(*texts)).pairs) == 4
    assert path.read_bytes() == whole
    assert "is made anew" in caplog.text


def test_nothing_is_superseded_unless_asked(texts):
    corpus = Corpus(*(ingest(path, byte_bpe()).train for path in texts))
    assert read(None, corpus) == Supersedes()
    assert not (corpus.new.folder.parent / supersedes.FILE).exists()
