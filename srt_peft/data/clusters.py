"""Decks for a corpus whose sources say nothing: examples whose words are alike, by a cheap method that is kept.

Words are hashed into a bag of them (HashingVectorizer), rare ones weigh more (TfidfTransformer), the bag is pressed
into 2k numbers, a hundred at most (TruncatedSVD), and those, at length 1, into k heaps (MiniBatchKMeans). All of it is
fitted on the old texts, 50,000 of them at most, on one thread and with one seed; then each example, old and new, goes
to its nearest heap.

Clusters are kept under SRT_PEFT_HOME by the corpus they are of: a run that is resumed finds them as they were.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srt_peft.data.corpus import Corpus
from srt_peft.data.ingest import home, workplace
from srt_peft.errors import DamagedError, OptionError, StateError
from srt_peft.review import files

VERSION = 1
"""Of the method: a change to it raises it, and so misses what is kept."""

SAMPLE = 50_000
CHUNK = BATCH = 4_096
FEATURES = 2**16
DIMENSIONS = 100
SEED = 0
TELLING = 5

_MANIFEST, _COLUMN = "clusters.json", "clusters.safetensors"
_log = logging.getLogger(__name__)


class Clusters(NamedTuple):
    """Which cluster each example of a corpus is in, what they are called, and their most telling words."""

    deck: NDArray[np.uint16]
    names: list[str]
    words: list[list[str]]


def clusters_of(corpus: Corpus, k: int, *, cache: str | Path | None = None, progress: bool = True) -> Clusters:
    """At most k clusters, the largest first; fewer where the old texts are of fewer kinds."""
    if corpus.n_old < k:
        fault = f"data.clusters = {k} of {corpus.n_old} old examples: expected at most as many as there are"
        raise OptionError(_WHAT, [f"{fault}, since clusters are made of the old ones"])
    target = _place(k, corpus.fingerprint, cache)
    found = _kept(target, len(corpus))
    if found is None:
        found = _made(corpus, k, progress=progress)
        _keep(target, found)
    return found


def carry(corpus: Corpus, k: int, deck: NDArray[np.uint16], names: list[str], before: str) -> list[list[str]]:
    """Keep for a corpus what is left of its clusters, none of them made anew, and drop those of what it was before.

    The words that tell them apart are those of the examples that are left; without scikit-learn there are none.
    """
    shutil.rmtree(_place(k, before), ignore_errors=True)
    try:
        words = _telling(corpus, np.arange(len(corpus))[:SAMPLE], deck[:SAMPLE], len(names), lambda _: None)
    except ModuleNotFoundError:
        words = [[] for _ in names]
    _keep(_place(k, corpus.fingerprint), Clusters(deck, names, words))
    return words


def _place(k: int, fingerprint: str, cache: str | Path | None = None) -> Path:
    told = f"{VERSION} {k} {fingerprint}"
    return home(cache) / "clusters" / hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


_WHAT = "data.clusters"


# --- the method ---------------------------------------------------------------------------------------------


def _made(corpus: Corpus, k: int, *, progress: bool) -> Clusters:
    try:
        from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]  # noqa: PLC0415 - a second
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with it
    except ModuleNotFoundError:
        remedy = "pip install 'srt-peft[clusters]', or set it to null"
        raise OptionError(_WHAT, [f"data.clusters = {k} needs scikit-learn, which is not here: {remedy}"]) from None
    rng = np.random.default_rng(SEED)
    sample = np.sort(rng.permutation(corpus.n_old)[:SAMPLE])
    with (
        threadpool_limits(1),  # sums on several threads differ in their last bits, and so may an example's cluster
        _bar(2 * sample.size + len(corpus), progress=progress) as advance,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer kinds of text than k: clusters that stay empty
        place = _fitted(corpus, sample, k, advance)
        deck = np.concatenate([place(rows) for rows in _chunks(np.arange(len(corpus)), advance)])
    used, counts = np.unique(deck, return_counts=True)
    order = used[np.argsort(-counts, kind="stable")]
    rank = np.zeros(k, np.uint16)
    rank[order] = np.arange(order.size)
    deck = rank[deck]
    with _bar(sample.size, progress=progress) as advance:
        words = _telling(corpus, sample, deck[sample], order.size, advance)
    return Clusters(deck, [f"cluster-{i}" for i in range(order.size)], words)


def _fitted(
    corpus: Corpus, sample: NDArray[np.int64], k: int, advance: Callable[[int], Any]
) -> Callable[[NDArray[np.int64]], NDArray[np.int32]]:
    """What finds the nearest of k clusters for some examples."""
    from scipy.sparse import vstack  # type: ignore[import-untyped]  # noqa: PLC0415
    from sklearn.cluster import MiniBatchKMeans  # type: ignore[import-untyped]  # noqa: PLC0415
    from sklearn.decomposition import TruncatedSVD  # type: ignore[import-untyped]  # noqa: PLC0415
    from sklearn.feature_extraction.text import (  # type: ignore[import-untyped]  # noqa: PLC0415
        HashingVectorizer,
        TfidfTransformer,
    )
    from sklearn.preprocessing import normalize  # type: ignore[import-untyped]  # noqa: PLC0415

    hashing = HashingVectorizer(n_features=FEATURES, alternate_sign=False, norm=None, dtype=np.float32)
    counted = vstack([hashing.transform(_texts(corpus, rows)) for rows in _chunks(sample, advance)])
    weigh = TfidfTransformer(sublinear_tf=True).fit(counted)
    press = TruncatedSVD(max(1, min(DIMENSIONS, 2 * k, sample.size - 1)), random_state=SEED)
    heap = MiniBatchKMeans(k, random_state=SEED, n_init=3, batch_size=BATCH)
    with np.errstate(invalid="ignore", divide="ignore"):  # texts without a word have no variance to explain
        heap.fit(normalize(press.fit_transform(weigh.transform(counted))))
    advance(sample.size)

    def place(rows: NDArray[np.int64]) -> NDArray[np.int32]:
        bags = weigh.transform(hashing.transform(_texts(corpus, rows)))
        nearest: NDArray[np.int32] = heap.predict(normalize(press.transform(bags)))
        return nearest

    return place


def _telling(
    corpus: Corpus, sample: NDArray[np.int64], deck: NDArray[np.uint16], count: int, advance: Callable[[int], Any]
) -> list[list[str]]:
    """Of each cluster, the words that most of its examples have and few others: by p log(p / p everywhere)."""
    from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415

    def texts() -> Iterator[str]:
        for rows in _chunks(sample, advance):
            yield from _texts(corpus, rows)

    counter = CountVectorizer(binary=True, max_features=20_000, dtype=np.float64)
    try:
        has = counter.fit_transform(texts())
    except ValueError:  # there is no word in any of them
        return [[] for _ in range(count)]
    words = counter.get_feature_names_out()
    everywhere = np.asarray(has.mean(axis=0)).ravel()
    told = []
    for i in range(count):
        mine = np.flatnonzero(deck == i)
        share = np.asarray(has[mine].mean(axis=0)).ravel() if mine.size else np.zeros(len(words))
        score = share * np.log(np.where(share > 0, share, 1) / everywhere)
        best = np.argsort(-score, kind="stable")[:TELLING]
        told.append([str(words[w]) for w in best if score[w] > 0])
    return told


def _texts(corpus: Corpus, rows: NDArray[np.int64]) -> list[str]:
    return [corpus.text(i) for i in rows.tolist()]


def _chunks(rows: NDArray[np.int64], advance: Callable[[int], Any]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, rows.size, CHUNK):
        part = rows[start : start + CHUNK]
        yield part
        advance(part.size)


@contextmanager
def _bar(total: int, *, progress: bool) -> Iterator[Callable[[int], Any]]:
    from tqdm import tqdm  # noqa: PLC0415 - 0.1 s

    hidden = None if progress else True
    with tqdm(total=total, desc="clustering", unit="text", delay=2, disable=hidden, leave=False) as bar:
        yield bar.update


# --- keeping them -------------------------------------------------------------------------------------------


def _keep(target: Path, found: Clusters) -> None:
    try:
        with workplace(target.parent) as staged:
            whole = staged / "whole"
            whole.mkdir()
            sums = files.write_columns(whole / _COLUMN, {"deck": found.deck.astype("<i4")})
            manifest = {"version": VERSION, "names": found.names, "words": found.words, "checksums": sums}
            (whole / _MANIFEST).write_bytes(files.vouched(manifest))
            for path in (whole / _MANIFEST, whole):
                files.sync(path)
            if not target.exists():  # else another process was first, with the same
                whole.rename(target)
    except OSError as error:
        remedy = "Free some space, or set SRT_PEFT_HOME to a folder that can be written to and has room."
        raise StateError(
            f"Clusters could not be kept in {target.parent} ({error.strerror or error}). {remedy}"
        ) from error


def _kept(target: Path, examples: int) -> Clusters | None:
    """The clusters of an earlier run, or None; what is damaged is only a cache, and is made anew."""
    if not target.exists():
        return None
    try:
        raw = (target / _MANIFEST).read_bytes()
        manifest = json.loads(raw)
        if files.vouched(manifest) != raw:
            raise DamagedError(f"{target / _MANIFEST} does not match its own check.")
        columns = files.map_columns(target / _COLUMN, {"deck": (np.dtype("<i4"), (examples,))}, "r")
        files.verify(target / _COLUMN, columns, manifest["checksums"])
        return Clusters(columns["deck"].astype(np.uint16), manifest["names"], manifest["words"])
    except (StateError, OSError, ValueError, KeyError, AttributeError) as error:
        _log.warning("Clusters that were kept cannot be used, and are made anew: %s", error)
        shutil.rmtree(target, ignore_errors=True)
        return None
