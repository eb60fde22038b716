"""Pools: written once and whole, read back as they were, and never read when they are damaged."""

import json
import os
import zlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file

from srt_peft import DamagedError, OptionError, StateError, VersionError
from srt_peft.data import Corpus, Pool, pool as pools

TOKENS = [[5, 6, 7], [1], [9, 9, 8, 2**31 - 1]]
TEXTS = ["a b c", "ü", "four words, 日本"]


@pytest.fixture
def pool(tmp_path):
    return Pool.create(tmp_path / "p", TOKENS, TEXTS, document=[0, 0, 4], source=[1, 0, 1], sources=["wiki", "mail"])


def test_what_was_written_is_read(pool, tmp_path):
    """Tokens, lengths, texts, identities, documents and sources, from the same process and from the folder."""
    for p in (pool, Pool.open(tmp_path / "p")):
        assert [row.tolist() for row in p] == TOKENS
        assert [p.text(i) for i in range(3)] == TEXTS
        assert p.lengths.tolist() == [3, 1, 4]
        assert (p[0].dtype, p.lengths.dtype, p.identity.shape) == (np.int32, np.int64, (3, 16))
        assert (p.document.tolist(), p.source.tolist(), p.sources) == ([0, 0, 4], [1, 0, 1], ["wiki", "mail"])
        assert (len(p), p.manifest["tokens"], p.manifest["documents"]) == (3, 8, 2)
        assert p[-1].tolist() == TOKENS[-1]
        assert p[np.int64(1)].tolist() == [1]
        assert p.identity[1].tobytes() == pools.identity_of("ü")
        p.check_valid()
        for beyond in (3, -4):
            with pytest.raises(IndexError, match=rf"example {beyond} is not in the pool of 3 examples"):
                p[beyond]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 2**31 - 1), max_size=9), st.text(max_size=9)), max_size=12))
def test_any_examples_come_back(tmp_path_factory, rows):
    """No examples, empty ones, any token, any text."""
    folder = tmp_path_factory.mktemp("any") / "p"
    rows = [(tokens, text.encode(errors="ignore").decode()) for tokens, text in rows]
    Pool.create(folder, [tokens for tokens, _ in rows], [text for _, text in rows])
    p = Pool.open(folder)
    assert [(p[i].tolist(), p.text(i)) for i in range(len(p))] == rows


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 29), max_size=40))
def test_any_rows_of_a_pool_make_another(tmp_path_factory, rows):
    """In any order, with gaps and repeats: each row keeps all that belongs to it."""
    base = tmp_path_factory.mktemp("rows")
    p = Pool.create(base / "a", [[i] * (i % 4) for i in range(30)], [f"é{i}" for i in range(30)], source=[0] * 30)
    q = pools.write(base / "b", p.columns, np.asarray(rows, dtype=np.int64), p.sources)
    assert [(q[i].tolist(), q.text(i), q.document[i]) for i in range(len(q))] == [
        (p[r].tolist(), p.text(r), r) for r in rows
    ]
    Pool.open(base / "b")


def test_pools_are_read_only(pool):
    with pytest.raises(ValueError, match="read-only"):
        pool[0][0] = 1


def test_the_fingerprint_is_of_content_and_order(pool, tmp_path):
    """The same examples have it, whatever they are called; others, or in another order, do not."""
    same = Pool.create(tmp_path / "same", TOKENS, TEXTS)
    assert same.fingerprint == pool.fingerprint
    for i, (tokens, texts) in enumerate(
        [
            (TOKENS[::-1], TEXTS[::-1]),
            ([[5, 6, 7], [1], [9, 9, 8, 4]], TEXTS),
            ([[5, 6], [7, 1], TOKENS[2]], TEXTS),
            (TOKENS, ["a b c", "u", TEXTS[2]]),
        ]
    ):
        assert Pool.create(tmp_path / str(i), tokens, texts).fingerprint != pool.fingerprint


def test_identity_follows_the_text_and_not_the_row_or_the_tokens(pool, tmp_path):
    turned = Pool.create(tmp_path / "turned", [[1, 2], [3], [4]], TEXTS[::-1])
    assert np.array_equal(turned.identity[::-1], pool.identity)


def test_other_tools_read_the_columns(pool):
    theirs = load_file(pool.folder / "examples.safetensors")
    assert all(np.array_equal(theirs[name], column) for name, column in pool.columns.items())
    assert theirs.keys() == pool.columns.keys()


def test_a_corpus_is_one_id_space(pool, tmp_path):
    """Old first, then new; its fingerprint tells which is which."""
    new = Pool.create(tmp_path / "new", [[3, 3], [4]], ["x", "y"])
    c = Corpus(pool, new)
    assert (len(c), c.n_old) == (5, 3)
    assert [c[i].tolist() for i in range(5)] == [*TOKENS, [3, 3], [4]]
    assert [c.text(i) for i in range(5)] == [*TEXTS, "x", "y"]
    assert c.lengths.tolist() == [3, 1, 4, 2, 1]
    assert np.array_equal(c.identity, np.concatenate([pool.identity, new.identity]))
    assert c[-1].tolist() == [4]
    assert c.fingerprint == Corpus(pool, new).fingerprint != Corpus(new, pool).fingerprint
    with pytest.raises(IndexError, match="example 5 is not in the corpus of 3 old and 2 new examples"):
        c[5]


def test_an_empty_pool_is_a_pool(pool, tmp_path):
    none = Pool.create(tmp_path / "none", [], [])
    assert (len(Pool.open(tmp_path / "none")), none.lengths.size) == (0, 0)
    assert (Corpus(none, pool).n_old, len(Corpus(none, pool)), Corpus(none, pool)[0].tolist()) == (0, 3, [5, 6, 7])


def test_a_pool_is_never_written_over(pool, tmp_path):
    with pytest.raises(StateError, match="exists already, and a pool is written once"):
        Pool.create(tmp_path / "p", TOKENS, TEXTS)
    with pytest.raises(OptionError, match="2 texts for 3 examples"):
        Pool.create(tmp_path / "q", TOKENS, TEXTS[:2])


def test_what_could_not_be_finished_is_not_there(tmp_path, monkeypatch):
    """A full disk leaves neither a pool nor a staged half of one."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Pool.create(tmp_path / "full", TOKENS, TEXTS)
    assert list(tmp_path.iterdir()) == []


# --- damage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["pool.json", "examples.safetensors"])
def test_every_truncation_and_extension_is_refused(pool, file):
    path = pool.folder / file
    whole = path.read_bytes()
    for content in [whole[:n] for n in range(0, len(whole), 3)] + [whole + b"\0", whole + whole]:
        path.write_bytes(content)
        with pytest.raises(DamagedError, match=r"damaged|truncated|not that pool's"):
            Pool.open(pool.folder)


@pytest.mark.parametrize("file", ["pool.json", "examples.safetensors"])
def test_every_changed_byte_is_refused(pool, file):
    path = pool.folder / file
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StateError, match=r"damaged|is of format version"):
            Pool.open(pool.folder)


def forged(folder, **changes):
    manifest = json.loads((folder / "pool.json").read_text()) | changes
    del manifest["check"]
    body = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    (folder / "pool.json").write_text(
        json.dumps(manifest | {"check": zlib.crc32(body)}, indent=1, sort_keys=True) + "\n"
    )


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"version": 1}, VersionError, r"format version 1; this srt-peft reads version 2\. Ingest the text again"),
        ({"format": "srt_peft review state"}, DamagedError, "describes 'srt_peft review state', not 'srt_peft pool'"),
        ({"examples": 2}, DamagedError, "it is not that pool's"),
        ({"tokens": 9}, DamagedError, "it is truncated"),
        ({"tokens": -1}, DamagedError, "what it says of its columns cannot be"),
        ({"sources": [3]}, DamagedError, "what it says of its columns cannot be"),
        ({"sources": ["one"]}, DamagedError, "source cannot be"),
        ({"checksums": {}}, DamagedError, "do not have their checksums"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(pool, change, error, said):
    """Even where its own check is right."""
    forged(pool.folder, **change)
    with pytest.raises(error, match=said):
        Pool.open(pool.folder)


def test_foreign_folders_are_refused(pool, tmp_path):
    """None, an empty one, a file, other JSON, and a pool without its columns."""
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "missing", tmp_path / "empty", pool.folder / "pool.json"):
        with pytest.raises(StateError, match=r"holds no pool: expected a folder with a pool\.json"):
            Pool.open(nothing)
    (tmp_path / "empty" / "pool.json").write_text("{}")
    with pytest.raises(DamagedError, match="is damaged, or is not ours"):
        Pool.open(tmp_path / "empty")
    (pool.folder / "examples.safetensors").unlink()
    with pytest.raises(
        DamagedError, match=r"is missing, and its pool\.json describes it\. Delete the folder and ingest"
    ):
        Pool.open(pool.folder)
