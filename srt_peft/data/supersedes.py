"""What no longer holds: which old examples a new one replaces.

    {"id": "page-7b", "text": …, "supersedes": "page-7"}    a column of the rows themselves: an id, a list of ids, null
    {"new": "page-7b", "old": ["page-7", "page-8"]}         or a map, a file of its own: JSON, JSONL, CSV or Parquet

Documents are named as their pool has them: by a row's id (`data.id_column`), a text file by its path from its source's
folder on. `old` is always one of data.old. `new` is one of data.new; or, where that has none of this name, one of
data.old, since 2 may have replaced 1 before 3 replaced 2. A document that was held out, double or empty is known all
the same. All examples of an old document that is named are suspended; of two that are called the same, both documents'.
Where the same text stood in two documents, its example is the first one's, and goes or stays with that.

What was new once brings its word along when it is promoted to old, and what it named may be gone from there by then:
that is told, and no fault. An id that new names must be there.

Nothing of this is kept as state: the set is worked out anew at each start, from the map and the texts as they are then.
So an example is revived when its replacement is withdrawn: when the row, or the map's line, is gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srt_peft.data.corpus import Corpus
from srt_peft.data.pool import Pool, key_of
from srt_peft.data.reading import PLAIN, READERS, Absent, Column, kind_of, lacks, rows_of, word_of
from srt_peft.data.sources import absent, looks_like_a_path
from srt_peft.data.tombstones import Tombstones
from srt_peft.errors import DamagedError, OptionError, did_you_mean

FILE = "supersedes.jsonl"
"""Beside a pool: what its rows' column said, so that a cached pool knows it, too."""

NAME_COLUMN = "Name the column, or the path of a map, with supersedes"
MOST = 10
"""Faults that are told in full; the rest are counted."""

_WHAT = "data.supersedes"
_ROWS = "rows of {new: ID, old: ID or [IDs]}"
_KINDS = [kind for kind in READERS if kind not in PLAIN]


class Pair(NamedTuple):
    """A document, the old ones that it replaces, and where that is said."""

    new: str | None
    """None for a row without an id: it replaces others, and nothing can replace it by name."""
    old: tuple[str, ...]
    where: str
    promoted: bool = False
    """Whether a row of data.old says so: it was new once."""


@dataclass(frozen=True)
class Supersedes:
    """All that is said to be replaced."""

    pairs: tuple[Pair, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A hash of who replaces whom, wherever and in whatever order that is said."""
        said = sorted({(pair.new or "", old) for pair in self.pairs for old in pair.old})
        return hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()


def column_of(given: str | None) -> str | None:
    """The column that `data.supersedes` names: what looks like a path, or is there, is none."""
    if given is None:
        return None
    path = Path(given).expanduser()
    return None if looks_like_a_path(given, path) or path.is_file() else given


def read(given: str | None, corpus: Corpus, *, past: bool = False) -> Supersedes:
    """What `data.supersedes` says; a column has been read by `ingest`, in both pools: old was new once.

    `past` is whether old is a history, which knows what was said in earlier updates.
    """
    before = tuple(stored(corpus.old)) if past else ()
    if given is None:
        return Supersedes(before)
    if column_of(given) is None:
        return Supersedes((*before, *_mapped(Path(given).expanduser())))
    pools = [pool for pool in (corpus.old, corpus.new) if "supersedes" in pool.manifest["about"]]
    said = [pool.manifest["about"]["supersedes"] for pool in pools]
    lacking = [about["lacking"] for about in reversed(said) if about["lacking"]]
    if lacking and not any(about["seen"] for about in said):
        raise OptionError(_WHAT, lacking[:1])
    return Supersedes(tuple(pair._replace(promoted=pool is corpus.old) for pool in pools for pair in stored(pool)))


# --- reading ------------------------------------------------------------------------------------------------


def pair_of(new: str | None, old: Any, where: str, column: str, faults: list[str]) -> Pair:
    """What a cell says that a document replaces; where it cannot be, that is told, and nothing is replaced."""
    try:
        words = [word_of(item) for item in (old if isinstance(old, (list, tuple)) else [old])]
    except (TypeError, ValueError):
        faults.append(f"{where}: {column!r} is {old!r:.60}: expected an id, a list of ids, or null")
        words = []
    return Pair(new, tuple(dict.fromkeys(word for word in words if word is not None)), where)


def _mapped(path: Path) -> list[Pair]:
    """The pairs of a map."""
    gone = absent([str(path)])
    if not gone and (kind_of(path) not in _KINDS or not path.is_file()):
        gone = [f"{path} is no map: expected a file of the kinds {', '.join(_KINDS)}, perhaps with .gz, with {_ROWS}"]
    if gone:
        raise OptionError(_WHAT, gone)
    faults: list[str] = []
    pairs = []
    remedy = f"Expected {_ROWS}"
    for (new, old), where in rows_of(path, [Column(name, remedy, sparse=True) for name in ("new", "old")]):
        missing = [name for name, value in (("new", new), ("old", old)) if isinstance(value, Absent)]
        if missing:
            known = next(value.known for value in (new, old) if isinstance(value, Absent))
            faults += [lacks(where, name, known, remedy) for name in missing]
            continue
        try:
            word = word_of(new)
        except (TypeError, ValueError):
            word = None
        if word is None:
            faults.append(f"{where}: 'new' is {new!r:.60}: expected an id")
        pair = pair_of(word, old, where, "old", faults)
        if pair.old:
            pairs.append(pair)
    if faults:
        raise OptionError(_WHAT, faults, most=MOST)
    return pairs


def stored(pool: Pool) -> Iterator[Pair]:
    """What the rows of a pool said, as `ingest` has put it beside the pool."""
    yield from undumped(check(pool))


def check(pool: Pool) -> bytes:
    """The file beside a pool, once it is known to be what the pool says of it; nothing where it says nothing."""
    about, path = pool.manifest["about"].get("supersedes"), pool.folder.resolve().parent / FILE
    raw = path.read_bytes() if about and path.is_file() else b""
    if about and digest(raw) != about["hash"]:
        raise DamagedError(
            f"{path} is damaged, or gone: its pool says otherwise. Delete {path.parent} and begin again."
        )
    return raw


def dumped(pairs: Iterable[Pair]) -> bytes:
    """Pairs as they are stored."""
    return "".join(json.dumps([pair.new, pair.old, pair.where]) + "\n" for pair in pairs).encode()


def undumped(raw: bytes) -> Iterator[Pair]:
    """Pairs as they were."""
    for line in raw.splitlines():
        new, old, where = json.loads(line)
        yield Pair(new, tuple(old), where)


def kept(pairs: Iterable[Pair], gone: Collection[bytes]) -> Iterator[Pair]:
    """What is said of documents whose keys are not among these: nothing of those is left."""
    for pair in pairs:
        old = tuple(name for name in pair.old if key_of(name) not in gone)
        if old and (pair.new is None or key_of(pair.new) not in gone):
            yield pair._replace(old=old)


def without(said: Supersedes, corpus: Corpus, stones: Tombstones) -> Supersedes:
    """What is said, but for documents that were forgotten: they are no unknown names, and replace nobody.

    A document that came later and is called the same is there, and is meant.
    """
    names = {name for pair in said.pairs for name in (pair.new, *pair.old) if name is not None}
    buried = {name for name in names if stones.names(name)} if stones else set()
    in_old, in_new = _Places(corpus.old, buried), _Places(corpus.new, buried)
    gone = {key_of(name) for name in buried if name not in in_old and name not in in_new}
    return Supersedes(tuple(kept(said.pairs, gone))) if gone else said


def digest(raw: bytes) -> str:
    """What a pool's manifest says of the file beside it."""
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


# --- what is suspended --------------------------------------------------------------------------------------


class Replaced(NamedTuple):
    """What pairs come to."""

    ids: NDArray[np.int64]
    """The old examples that are suspended, in order."""
    gone: list[str]
    """What rows of data.old, or a map's lines of them, name and what is not there any more."""
    ambiguous: dict[str, int]
    """Each name that several documents of data.old share, and how many do: all of them are meant."""
    nowhere: list[str]
    """Names that are known, and have no example: held out, empty, or the text stands under another name."""


def superseded(corpus: Corpus, pairs: Sequence[Pair]) -> Replaced:
    """What is suspended; or all that is wrong with the pairs, in one error."""
    names = {name for pair in pairs for name in (pair.new, *pair.old) if name is not None}
    in_old, in_new = _Places(corpus.old, names), _Places(corpus.new, names)
    gone = sorted({old for pair in pairs if _promoted(pair, in_old, in_new) for old in pair.old if old not in in_old})
    faults = list(_unknown(pairs, in_old, in_new, corpus))
    graph: dict[str, dict[str, str]] = {}
    for pair in pairs:
        # Nothing replaces what is new, so no circle goes through it.
        if pair.new is not None and pair.new not in in_new:
            graph.setdefault(pair.new, {}).update(dict.fromkeys(pair.old, pair.where))
    for circle in _circles(graph):
        where = graph[circle[-1]][circle[0]]
        if len(circle) == 1:
            faults.append(f"{where}: {circle[0]!r} of data.old supersedes itself: remove that, or bring its new text")
        else:
            told = " supersedes ".join(map(repr, (*circle, circle[0])))
            faults.append(f"{where}: this goes round in a circle: {told}. Remove the link that is wrong")
    if faults:
        raise OptionError(_WHAT, faults, most=MOST)
    rows = {name: in_old.rows(name) for name in sorted({name for pair in pairs for name in pair.old})}
    ids = np.unique(np.concatenate([np.zeros(0, np.int64), *rows.values()]))
    counts = {name: np.unique(corpus.old.document[found]).size for name, found in rows.items() if found.size > 1}
    nowhere = [name for name, found in rows.items() if not found.size and name not in gone]
    return Replaced(ids, gone, {name: count for name, count in counts.items() if count > 1}, nowhere)


def still(held_out: Pool, pairs: Iterable[Pair]) -> Pool:
    """Those of the old text that is held out which nothing replaces: what no longer holds is not asked for, either."""
    names = {name for pair in pairs for name in pair.old}
    places = _Places(held_out, names)
    rows = np.concatenate([np.zeros(0, np.int64), *map(places.rows, names)])
    return held_out.only(np.setdiff1d(np.arange(len(held_out)), rows)) if rows.size else held_out


def _promoted(pair: Pair, in_old: _Places, in_new: _Places) -> bool:
    """Whether what replaces is old itself by now."""
    return pair.promoted or (pair.new is not None and pair.new in in_old and pair.new not in in_new)


class _Places:
    """Where in a pool the documents of these names are: the few rows that may be theirs are found by half a key."""

    def __init__(self, pool: Pool, names: Iterable[str]) -> None:
        self._keys = {name: key_of(name) for name in names}
        self._rows: dict[bytes, list[int]] = {key: [] for key in self._keys.values()}
        wanted = _halves(np.frombuffer(b"".join(self._rows), np.uint8).reshape(-1, 16))
        for i in np.flatnonzero(np.isin(_halves(pool.key), wanted)).tolist():
            key = pool.key[i].tobytes()
            if key in self._rows:
                self._rows[key].append(i)
        elsewhere = pool.known[np.isin(_halves(pool.known), wanted)]
        self._known = {row.tobytes() for row in elsewhere}

    def __contains__(self, name: str) -> bool:
        key = self._keys[name]
        return bool(self._rows[key]) or key in self._known

    def rows(self, name: str) -> NDArray[np.int64]:
        return np.asarray(self._rows[self._keys[name]], np.int64)


def _halves(keys: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(keys[:, :8]).view("<u8").ravel()


def _unknown(pairs: Iterable[Pair], in_old: _Places, in_new: _Places, corpus: Corpus) -> Iterator[str]:
    meant: dict[str, Callable[[str], bool]] = {
        "data.old": lambda name: name in in_old,
        "data.new or data.old": lambda name: name in in_new or name in in_old,
    }
    told = set()
    for pair in pairs:
        olds = () if _promoted(pair, in_old, in_new) else pair.old
        for name, home in ((pair.new, "data.new or data.old"), *((old, "data.old") for old in olds)):
            if name is not None and (name, home) not in told and not meant[home](name):
                told.add((name, home))
                pools = [corpus.old] if home == "data.old" else [corpus.new, corpus.old]
                listed = [about.manifest["about"].get("ids") or () for about in pools]
                near = did_you_mean(name, (word for ids in listed for word in ids)) if len(told) <= MOST else ""
                nameless = "" if any(p.key.any() or len(p.known) for p in pools) else _NAMELESS
                yield f"{pair.where}: {name!r} is no document of {home}{near}: expected the id of one{nameless}"


_NAMELESS = ". No document there has an id: name their column with data.id_column"


def _circles(graph: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """The circles that a walk through all links comes upon, each as the names on it; empty if there is none."""
    done: set[str] = set()
    for start in graph:
        path: dict[str, Iterator[str]] = {} if start in done else {start: iter(graph[start])}
        while path:
            here = next(reversed(path))
            for there in path[here]:
                if there in path:
                    walked = list(path)
                    yield walked[walked.index(there) :]
                elif there in graph and there not in done:
                    path[there] = iter(graph[there])
                    break
            else:
                done.add(here)
                del path[here]
