"""Which page became which: both snapshots' indexes in SQLite, on disk, so that memory does not grow with the dump.

In this order, and each page at most once:

    same       one id and one title
    moved      one id, and another title: a page keeps its id when it is renamed
    recreated  one title, and another id: deleted and written again, or of a source whose ids are not the wiki's
    redirected the old title now redirects to a page that was not there before: moved by copying
    merged     the old title now redirects to a page that has a past of its own: the old page is gone
    gone       in the old snapshot only
    created    in the new one only

Ids that say nothing (row numbers, in a table that somebody made) would pair strangers. They are believed where nine in
ten of those that both snapshots have stand beside the same title, and else passed over.
"""

# ruff: noqa: S608 - the queries are put together from names that stand in this file

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.corpora.wikipedia.spool import Place, entries
from srt_peft.review.files import sync

BELIEVED = 0.9
HOPS = 5
"""How long a chain of redirects is followed."""
KINDS = ("same", "moved", "recreated", "redirected", "merged", "gone", "created")
_COLUMNS = "n INTEGER PRIMARY KEY, id TEXT, title TEXT, target TEXT, spool TEXT, start, length, size, line, bytes"


class Pair(NamedTuple):
    """A page in two snapshots, or in one."""

    keys: tuple[str, str]
    """What it is known by in each; a page that was written again is known next month by what it is now."""
    kind: str
    bytes: int
    """Of both, as they were spooled."""
    old: Place | None
    new: Place | None


class Aligned(NamedTuple):
    """How many pages of each kind there are, what was left out, and whether ids were believed."""

    kinds: dict[str, int]
    left_out: dict[str, int]
    believed: bool
    bytes: int


def align(folder: Path, spools: Mapping[str, Sequence[str]]) -> Aligned:
    """Make `pairs.sqlite` in the folder; a few minutes for a large wiki."""
    path = folder / "pairs.sqlite"
    path.unlink(missing_ok=True)
    left_out: dict[str, int] = {}
    with closing(_opened(path)) as base:
        for name, parts in spools.items():
            base.execute(f"CREATE TABLE {name} ({_COLUMNS}, mate INTEGER)")
            rows = chain.from_iterable(_rows(folder, part) for part in parts)
            base.executemany(f"INSERT INTO {name} VALUES (NULL,?,?,?,?,?,?,?,?,?,NULL)", rows)
            base.execute(f"CREATE INDEX {name}_title ON {name} (title)")
            base.execute(f"CREATE INDEX {name}_id ON {name} (id)")
        believed = _believed(base)
        for name in spools:
            twice = sum(_drop_doubles(base, name, column) for column in ("title", *(["id"] if believed else [])))
            if twice:
                left_out[f"{name}: pages that were there twice"] = twice
            redirects = base.execute(f"SELECT count(*) FROM {name} WHERE target IS NOT NULL").fetchone()[0]
            if redirects:
                left_out[f"{name}: redirects"] = redirects
        base.execute("CREATE TABLE pair (old INTEGER, new INTEGER, kind TEXT)")
        _pair(base, believed=believed)
        base.execute("CREATE TABLE ordered AS " + _ORDERED)
        kinds = dict(base.execute("SELECT kind, count(*) FROM pair GROUP BY kind"))
        total = base.execute("SELECT coalesce(sum(bytes), 0) FROM ordered").fetchone()[0]
        base.commit()
    sync(path)
    return Aligned({kind: kinds.get(kind, 0) for kind in KINDS}, left_out, believed, total)


def batches(folder: Path, size: int, *, believed: bool) -> Iterator[list[Pair]]:
    """All pairs in the order of the old snapshot, then those of the new one only, in heaps of so many bytes."""
    heap: list[Pair] = []
    held = 0
    with closing(_opened(folder / "pairs.sqlite")) as base:
        for row in base.execute("SELECT * FROM ordered ORDER BY rowid"):
            old_id, old_title, new_id, new_title, kind, bytes_, *places = row
            was, now = ((believed and id_) or title for id_, title in ((old_id, old_title), (new_id, new_title)))
            keys = (was or now, now or was)
            old, new = (Place(*p) if p[0] is not None else None for p in (places[:5], places[5:]))
            heap.append(Pair(keys, kind, bytes_, old, new))
            held += bytes_
            if held >= size:
                yield heap
                heap, held = [], 0
    if heap:
        yield heap


def _opened(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(path)
    base.executescript(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-16384; PRAGMA temp_store=FILE;"
    )
    return base


def _rows(folder: Path, spool: str) -> Iterator[tuple[Any, ...]]:
    for e in entries(folder / spool):
        yield e.id, e.title, e.target, spool, e.start, e.length, e.size, e.line, e.bytes


def _drop_doubles(base: sqlite3.Connection, name: str, column: str) -> int:
    """Of pages with one title, or one id, the first is kept: files may overlap, or be given twice."""
    first = f"SELECT min(n) FROM {name} GROUP BY {column}"
    return base.execute(f"DELETE FROM {name} WHERE {column} != '' AND n NOT IN ({first})").rowcount


_FREE = "o.mate IS NULL AND o.target IS NULL AND w.mate IS NULL AND w.target IS NULL"
_BOTH = "SELECT {{}} FROM old o JOIN new w ON {on} WHERE " + _FREE
_SAME = _BOTH.format(on="o.id = w.id AND o.title = w.title AND o.id != ''")
_MOVED = _BOTH.format(on="o.id = w.id AND o.id != ''")
_RECREATED = _BOTH.format(on="o.title = w.title")
_ORDERED = """
    SELECT o.id AS old_id, o.title AS old_title, w.id AS new_id, w.title AS new_title, p.kind,
           coalesce(o.bytes, 0) + coalesce(w.bytes, 0) AS bytes,
           o.spool, o.start, o.length, o.size, o.line, w.spool, w.start, w.length, w.size, w.line
    FROM pair p LEFT JOIN old o ON o.n = p.old LEFT JOIN new w ON w.n = p.new
    ORDER BY p.old IS NULL, p.old, p.new"""


def _believed(base: sqlite3.Connection) -> bool:
    """Whether ids are those of pages."""
    alike, every = (base.execute(query.format("count(*)")).fetchone()[0] for query in (_SAME, _MOVED))
    return bool(every and alike >= BELIEVED * every)


def _pair(base: sqlite3.Connection, *, believed: bool) -> None:
    """Fill `pair`."""
    if believed:
        _take(base, "same", base.execute(_SAME.format("o.n, w.n")))
        _take(base, "moved", base.execute(_MOVED.format("o.n, w.n")))
    kind = "recreated" if believed else "same"
    _take(base, kind, base.execute(_RECREATED.format("o.n, w.n")))
    _follow(base)
    for name, columns in {"gone": "n, NULL, 'gone'", "created": "NULL, n, 'created'"}.items():
        table = "old" if name == "gone" else "new"
        base.execute(f"INSERT INTO pair SELECT {columns} FROM {table} WHERE mate IS NULL AND target IS NULL")


def _take(base: sqlite3.Connection, kind: str, found: Iterable[tuple[int, int]]) -> None:
    """Pair these, none of them twice: an id that stands twice in a snapshot pairs once."""
    base.execute("CREATE TEMP TABLE found (old INTEGER, new INTEGER)")
    base.executemany("INSERT INTO found VALUES (?,?)", found)
    base.execute("DELETE FROM found WHERE rowid NOT IN (SELECT min(rowid) FROM found GROUP BY old)")
    base.execute("DELETE FROM found WHERE rowid NOT IN (SELECT min(rowid) FROM found GROUP BY new)")
    base.execute("CREATE INDEX temp.found_old ON found (old)")
    base.execute("CREATE INDEX temp.found_new ON found (new)")
    for table, other in (("old", "new"), ("new", "old")):
        base.execute(
            f"UPDATE {table} SET mate = (SELECT {other} FROM found WHERE {table} = n)"
            f" WHERE n IN (SELECT {table} FROM found)"
        )
    base.execute(f"INSERT INTO pair SELECT old, new, '{kind}' FROM found ORDER BY old")
    base.execute("DROP TABLE found")


def _follow(base: sqlite3.Connection) -> None:
    """What became of the old pages whose title is a redirect now."""
    redirected, merged = {}, []
    for number, title in base.execute("SELECT n, title FROM old WHERE mate IS NULL AND target IS NULL ORDER BY n"):
        found = _end_of(base, title)
        if found is None:
            continue
        new, mate = found
        if mate is None and new not in redirected:
            redirected[new] = number
        else:
            merged.append((number,))
    _take(base, "redirected", [(old, new) for new, old in redirected.items()])
    base.executemany("INSERT INTO pair VALUES (?, NULL, 'merged')", merged)
    base.executemany("UPDATE old SET mate = -1 WHERE n = ?", merged)


def _end_of(base: sqlite3.Connection, title: str) -> tuple[int, int | None] | None:
    """The page that a title leads to in the new snapshot, and what it is paired with."""
    for _ in range(HOPS):
        row = base.execute("SELECT n, target, mate FROM new WHERE title = ?", (title,)).fetchone()
        if row is None or row[1] is None:
            return None if row is None else (row[0], row[2])
        title = row[1]
    return None
