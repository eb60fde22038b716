"""The map: a part of a snapshot becomes a spool of pages, in frames, and an index that says what is in it and where.

A spool has its pages in the order in which they stood in the snapshot. Both snapshots are in the order of page ids, so
whoever reads pairs of pages in that order reads both spools from front to back, a frame at a time. That is why nothing
is shuffled: pages are found where they are, by the index.

Only the page's place goes on from here, so that what is compared later is small, wherever it is compared.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.corpora.wikipedia.dump import Advance, Page, Part, Site
from srt_peft.corpora.wikipedia.snapshot import read
from srt_peft.review.files import sync

FRAME = 1 << 20
"""Of text, that is compressed and read as one."""
_OPEN_FRAMES = 4
PAGES, INDEX = ".pages", ".index"


class Place(NamedTuple):
    """Where a page is: in which spool, at which byte its frame begins, how long that is, and which of its lines."""

    spool: str
    start: int
    length: int
    size: int
    line: int


class Spooled(NamedTuple):
    """What became of a part."""

    pages: int
    redirects: int
    newest: str
    """The latest time of a revision; empty where the snapshot has no times."""
    left_out: dict[str, int]


def normalised_title(title: str) -> str:
    """A title as MediaWiki knows it: spaces for underscores, one at a time, and a capital at the beginning."""
    plain = " ".join(unicodedata.normalize("NFC", title).replace("_", " ").split())
    first = plain[:1].upper()
    return first + plain[1:] if len(first) == 1 else plain  # ß stays what it is


def spool(part: Part, site: Site, target: Path, advance: Advance = lambda _: None) -> Spooled:
    """Read a part, and write its spool and index beside `target`, both on the disk before this returns."""
    left_out: dict[str, int] = {}
    pages, redirects, newest = 0, 0, ""
    beside = target.with_name(f".{target.name}-{os.getpid()}")  # a killed run's process may not have ended yet
    with _Writer(beside) as writer:
        for page in read(part, site, left_out, advance):
            newest = max(newest, page.timestamp)
            if not normalised_title(page.title):
                left_out["pages without a title"] = left_out.get("pages without a title", 0) + 1
            elif page.redirect is not None:
                redirects += 1
                writer.redirect(page)
            else:
                pages += 1
                writer.add(page)
    for suffix in (PAGES, INDEX):
        sync(beside.with_suffix(suffix))
        beside.with_suffix(suffix).replace(target.with_suffix(suffix))
    return Spooled(pages, redirects, newest, left_out)


class _Writer:
    """A spool and its index."""

    def __init__(self, target: Path) -> None:
        self._pages = target.with_suffix(PAGES).open("wb")
        self._index = target.with_suffix(INDEX).open("w", encoding="utf-8")
        self._frame: list[bytes] = []
        self._waiting: list[list[Any]] = []
        self._held = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._pages.close()
        self._index.close()

    def add(self, page: Page) -> None:
        raw = json.dumps(page, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        self._waiting.append([page.id, normalised_title(page.title), None, len(raw), len(self._frame)])
        self._frame.append(raw)
        self._held += len(raw) + 1
        if self._held >= FRAME:
            self._flush()

    def redirect(self, page: Page) -> None:
        target = normalised_title(page.redirect or "")
        self._waiting.append([page.id, normalised_title(page.title), target, 0, 0])
        if len(self._waiting) >= 1 << 14:  # a stretch of redirects only
            self._flush()

    def _flush(self) -> None:
        start, length, size = self._pages.tell(), 0, 0
        if self._frame:
            raw = b"\n".join(self._frame)
            packed = _codec().compress(raw, asbytes=True)
            length, size = len(packed), len(raw)
            self._pages.write(packed)
        for entry in self._waiting:
            self._index.write(json.dumps([*entry, start, length, size], ensure_ascii=False) + "\n")
        self._frame, self._waiting, self._held = [], [], 0


class Entry(NamedTuple):
    """A page in the index; one with a `target` is a redirect, and nothing else of it is kept."""

    id: str
    title: str
    target: str | None
    bytes: int
    line: int
    start: int
    length: int
    size: int


def entries(target: Path) -> Iterator[Entry]:
    """What a spool holds."""
    with target.with_suffix(INDEX).open(encoding="utf-8") as file:
        for line in file:
            yield Entry(*json.loads(line))


class Spools:
    """Pages by their places; the frames that were read last are kept open, since the next page is in one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames: OrderedDict[tuple[str, int], list[bytes]] = OrderedDict()

    def page(self, place: Place) -> Page:
        """The page that is there."""
        key = (place.spool, place.start)
        if key not in self._frames:
            with (self._folder / f"{place.spool}{PAGES}").open("rb") as file:
                file.seek(place.start)
                packed = file.read(place.length)
            raw = _codec().decompress(packed, decompressed_size=place.size, asbytes=True)
            self._frames[key] = raw.split(b"\n")
            while len(self._frames) > _OPEN_FRAMES:
                self._frames.popitem(last=False)
        self._frames.move_to_end(key)
        return Page(*json.loads(self._frames[key][place.line]))


def _codec() -> Any:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - 0.2 s

    return pa.Codec("zstd")
