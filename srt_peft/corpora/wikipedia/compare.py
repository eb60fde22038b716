"""The reduce: pages in two snapshots become rows, and each pair says which topic and stratum it is of.

A heap of pairs becomes one file: for each pair a line of `Told`, then the bytes of its rows as they will stand in
old.jsonl, new.jsonl and held-out.jsonl. Who is taken is known only when all were compared; then the bytes are copied.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from srt_peft.corpora.documents import Document
from srt_peft.corpora.folder import line_of
from srt_peft.corpora.rows import Context, Rows, held_out_of, is_held_out, rows_of_pair
from srt_peft.corpora.sentences import sentences_of
from srt_peft.corpora.wikipedia.dump import Advance, Page
from srt_peft.corpora.wikipedia.pairs import Pair
from srt_peft.corpora.wikipedia.spool import Spools
from srt_peft.corpora.wikipedia.topics import stratum_of, topic_of
from srt_peft.corpora.wikipedia.wikitext import Names, categories, plain

OUTPUTS = ("old", "new", "held-out")


class How(NamedTuple):
    """What is the same for all pairs."""

    context: Context
    language: str
    held_out: float
    names: Names


class Heap(NamedTuple):
    """A task: the pairs of one file."""

    name: str
    pairs: list[Pair]
    how: How


class Told(NamedTuple):
    """What is known of a pair, its rows apart."""

    rank: int
    """By which pages of a stratum are taken: a hash of the key."""
    topic: str
    stratum: str
    held: bool
    words: tuple[int | None, int | None]
    sentences: tuple[int, int, int]
    """Inserted, deleted, modified."""
    rows: tuple[int, int, int]
    """Old, new, and new ones that supersede something."""
    left_out: dict[str, int]
    bytes: tuple[int, int, int]
    """Of each output."""


def compare(heap: Heap, target: Path, advance: Advance) -> None:
    """Write a heap's file, beside the spools."""
    spools = Spools(target.parent)
    with target.open("wb") as file:
        for pair in heap.pairs:
            told, blocks = _compared(pair, spools, heap.how)
            file.write(json.dumps(told, ensure_ascii=False).encode() + b"\n")
            for block in blocks:
                file.write(block)
            advance(pair.bytes)


def told_of(file: IO[bytes]) -> Iterator[Told]:
    """Each pair of a heap's file; the file then stands at its rows, and may be read from or not."""
    while line := file.readline():
        told = Told(*json.loads(line))
        after = file.tell() + sum(told.bytes)
        yield told
        file.seek(after)


def _compared(pair: Pair, spools: Spools, how: How) -> tuple[Told, list[bytes]]:
    pages = [spools.page(place) if place else None for place in (pair.old, pair.new)]
    left_out: Counter[str] = Counter()
    texts = _prose(pages, how.names, left_out)
    latest = next(page for page in reversed(pages) if page is not None)
    text = next((t for t in reversed(texts) if t), "")
    said = [] if latest.plain else categories(latest.text, how.names)
    topic = topic_of(latest.title, text, said)
    old, new = (_document(*known, topic) for known in zip(pair.keys, pages, texts, strict=True))
    held = is_held_out(pair.keys[0], how.held_out)
    rows = _rows(old, new, how)
    changed = rows.inserted + rows.deleted + 2 * rows.modified
    kind = pair.kind if old and new else "created" if new else "gone"
    whole = sum(len(sentences_of(t, how.language)) for t in texts if t) if changed else 0
    stratum = stratum_of(kind, changed, whole)
    blocks = _blocks(old, new, rows, how, held=held)
    told = Told(
        _rank(pair.keys[0]),
        topic,
        stratum,
        held,
        (_words(texts[0]), _words(texts[1])),
        (rows.inserted, rows.deleted, rows.modified),
        (0, 0, 0) if held else (len(rows.old), len(rows.new), sum(bool(row["supersedes"]) for row in rows.new)),
        dict(left_out),
        (len(blocks[0]), len(blocks[1]), len(blocks[2])),
    )
    return told, blocks


def _rows(old: Document | None, new: Document | None, how: How) -> Rows:
    """The rows of a pair; of one that says the same in both, as most do, nothing need be compared."""
    same = old is not None and new is not None and old.text == new.text
    return rows_of_pair(old, None if same else new, context=how.context, language=how.language)


def _prose(pages: list[Page | None], names: Names, left_out: Counter[str]) -> list[str | None]:
    """What both pages say; None where one is not there, or says nothing. What is the same is parsed once."""
    known: dict[tuple[str, bool], str] = {}
    texts: list[str | None] = []
    for page in pages:
        if page is None:
            texts.append(None)
            continue
        key = (page.text, page.plain)
        if key not in known:
            found = None if page.plain else plain(page.text, names)
            known[key] = page.text if found is None else found.text
            if found is not None and found.broken:
                left_out["lines of broken markup"] += found.broken
        if not known[key]:
            left_out["pages without prose"] += 1
        texts.append(known[key] or None)
    return texts


def _document(key: str, page: Page | None, text: str | None, topic: str) -> Document | None:
    if page is None or text is None:
        return None
    return Document(key, page.title, text, topic, {"date": page.timestamp} if page.timestamp else {})


def _blocks(old: Document | None, new: Document | None, rows: Rows, how: How, *, held: bool) -> list[bytes]:
    if not held:
        return ["".join(map(line_of, found)).encode(errors="replace") for found in (rows.old, rows.new)] + [b""]
    if old is None and new is None:
        return [b""] * 3
    return [b"", b"", line_of(held_out_of(old, new, language=how.language)).encode(errors="replace")]


def _rank(key: str) -> int:
    # Not the hash by which pages are held out, or the first of a stratum would all be.
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7, person=b"stratum").digest(), "big")


def _words(text: str | None) -> int | None:
    return None if text is None else len(text.split())
