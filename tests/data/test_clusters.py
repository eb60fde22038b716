"""Decks from words alone: planted topics are found, the same every time, and kept."""

import logging
import random
import sys

import numpy as np
import pytest

from srt_peft import OptionError, StateError
from srt_peft.data import Corpus, Pool, clusters as module
from srt_peft.data.clusters import clusters_of
from tests.data.helpers import WORDS

TOPICS = [
    "boat sail wind harbour anchor mast wave tide".split(),  # noqa: SIM905 - lists read worse
    "oven flour sugar butter recipe dough spoon cake".split(),  # noqa: SIM905
    "planet orbit star comet telescope moon gravity sun".split(),  # noqa: SIM905
]
SIZES = (60, 40, 20)


def text_of(topic, seed):
    rng = random.Random(f"{topic} {seed}")
    return " ".join(rng.choices(TOPICS[topic], k=12) + rng.choices(WORDS, k=6))


def pool_of(folder, texts):
    return Pool.create(folder, [[1]] * len(texts), texts)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def planted(tmp_path):
    """Old and new texts of three topics, and which each is of."""
    old = [topic for topic, size in enumerate(SIZES) for _ in range(size)]
    random.Random(0).shuffle(old)
    new = [2, 1, 0]
    pools = (
        pool_of(tmp_path / name, [text_of(topic, f"{name} {i}") for i, topic in enumerate(topics)])
        for name, topics in (("old", old), ("new", new))
    )
    return Corpus(*pools), old + new


def test_planted_topics_are_found(planted):
    """Each is a cluster, the largest first, new texts among them, and its words are the topic's own."""
    corpus, topics = planted
    found = clusters_of(corpus, 3)
    assert (found.deck.dtype, found.names) == (np.uint16, ["cluster-0", "cluster-1", "cluster-2"])
    assert found.deck.tolist() == topics  # the topics are planted in the order of their sizes
    for topic, words in zip(TOPICS, found.words, strict=True):
        assert len(words) == 5
        assert set(words) <= set(topic)


def test_they_are_the_same_every_time(planted, tmp_path, monkeypatch):
    """Made anew elsewhere, in small chunks or large; only part of the texts is needed to find them."""
    corpus, topics = planted
    first = clusters_of(corpus, 3)
    monkeypatch.setattr(module, "CHUNK", 7)
    again = clusters_of(corpus, 3, cache=tmp_path / "elsewhere", progress=False)
    assert again.names == first.names
    assert (again.deck.tolist(), again.words) == (first.deck.tolist(), first.words)
    monkeypatch.setattr(module, "SAMPLE", 50)
    assert clusters_of(corpus, 3, cache=tmp_path / "third").deck.tolist() == topics


def test_they_are_kept(planted, home, monkeypatch, caplog):
    """By corpus and k; what is damaged is made anew."""
    corpus, _ = planted
    first = clusters_of(corpus, 3)
    made, real = [], module._made
    monkeypatch.setattr(module, "_made", lambda *args, **kwargs: made.append(args[1]) or real(*args, **kwargs))
    again = clusters_of(corpus, 3)
    assert made == []
    assert (again.deck.tolist(), again.names, again.words) == (first.deck.tolist(), first.names, first.words)
    [folder] = (home / "clusters").iterdir()
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for broken in (whole[:-1], whole[:-9] + b"X" + whole[-8:], b"", b"[]"):
            file.write_bytes(broken)
            with caplog.at_level(logging.WARNING):
                caplog.clear()
                assert clusters_of(corpus, 3).deck.tolist() == first.deck.tolist()
            assert "cannot be used, and are made anew" in caplog.text
            assert file.read_bytes() == whole
    assert set(made) == {3}
    clusters_of(corpus, 2)
    clusters_of(Corpus(corpus.new, corpus.old), 3)
    assert made[-2:] == [2, 3]
    assert len(list((home / "clusters").iterdir())) == 3


def test_fewer_kinds_of_text_than_clusters(tmp_path):
    """Those that stay empty have no name; texts without a word are a cluster without words."""
    corpus = Corpus(pool_of(tmp_path / "a", ["sail boat"] * 9 + ["flour oven"] * 4), pool_of(tmp_path / "b", ["!"]))
    found = clusters_of(corpus, 5)
    assert found.deck[:13].tolist() == [0] * 9 + [1] * 4
    assert found.names[:2] == ["cluster-0", "cluster-1"]
    assert len(found.names) == len(found.words) == int(found.deck.max()) + 1 <= 5
    assert set(found.words[0]) == {"sail", "boat"}
    silent = Corpus(pool_of(tmp_path / "c", ["!", "?", "…"]), pool_of(tmp_path / "d", ["!"]))
    assert set(map(tuple, clusters_of(silent, 2).words)) == {()}


def test_more_clusters_than_old_texts(planted):
    corpus, _ = planted
    with pytest.raises(OptionError, match=r"data\.clusters = 5 of 3 old examples: expected at most as many as there"):
        clusters_of(Corpus(corpus.new, corpus.old), 5)


def test_without_scikit_learn(planted, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.exceptions", None)
    with pytest.raises(OptionError, match=r"= 3 needs scikit-learn.*: pip install 'srt-peft\[clusters\]', or set it"):
        clusters_of(planted[0], 3)


def test_where_nothing_can_be_kept(planted, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"Clusters could not be kept in .*Free some space, or set SRT_PEFT_HOME"):
        clusters_of(planted[0], 3, cache=tmp_path / "file")
