"""What a snapshot may be: files of MediaWiki's XML, or the Parquet and JSONL that others have made of it.

`wikimedia/wikipedia` is Parquet with the columns id, url, title, text, and WikiExtractor writes the same as JSONL. Both
are prose already, in the main namespace and without redirects, and have no categories.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from srt_peft.corpora.documents import PLACE
from srt_peft.corpora.wikipedia import dump
from srt_peft.corpora.wikipedia.dump import Advance, Page, Part, Site, Survey, refused
from srt_peft.corpora.wikipedia.wikitext import Names
from srt_peft.data.reading import Absent, Column, kind_of, rows_of, word_of
from srt_peft.errors import OptionError

TABLES = {".parquet", ".jsonl", ".ndjson"}
XML = (".xml", ".bz2", ".gz")
_REMEDY = "A snapshot's rows have id, url, title and text, as wikimedia/wikipedia and WikiExtractor write them"
_COLUMNS = (Column("title", _REMEDY), Column("text", _REMEDY), Column("id", sparse=True), Column("url", sparse=True))


class Snapshot(NamedTuple):
    """The files of one date, and the wiki that they are of."""

    name: str
    files: tuple[Path, ...]
    surveys: tuple[Survey, ...]
    sites: tuple[Site, ...]

    @property
    def host(self) -> str | None:
        """The wiki, where its files say."""
        return next((site.host for site in self.sites if site.host), None)

    def parts(self) -> list[tuple[Part, Site]]:
        """What is read on its own."""
        cut = zip(self.files, self.surveys, self.sites, strict=True)
        return [
            (part, site)
            for path, found, site in cut
            for part in ([Part(path, 0, found.size)] if is_table(path) else dump.parts_of(path, found))
        ]


def is_table(path: Path) -> bool:
    """Whether a file has rows, and not XML."""
    return kind_of(path) in TABLES


def files_of(name: str, given: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files that were given, by name, by folder or by pattern, in the order of their names; and what is wrong."""
    found, faults = [], []
    for one in given:
        path = Path(one).expanduser()
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and readable(p))
        elif path.is_file():
            inside = [path]
            if not readable(path):
                faults.append(f"--{name} = {one}: expected .xml, .xml.bz2, .xml.gz, .parquet, .jsonl or .jsonl.gz")
        else:
            inside = [
                p
                for p in map(Path, sorted(glob.glob(str(path))))  # noqa: PTH207 - Path.glob takes no absolute ones
                if p.is_file() and readable(p)
            ]
        if not inside:
            faults.append(f"--{name} = {one}: there is no such file, nor one that matches: {dump.EXPECTED}")
        found += inside
    return list(dict.fromkeys(found)), faults


def readable(path: Path) -> bool:
    """Whether a file is one of a snapshot's; the list of streams that lies beside a multistream dump is none."""
    index = "-index" in path.name and path.name.endswith((".txt.bz2", ".txt", ".txt.gz"))
    return not index and (is_table(path) or path.suffix in XML)


def site_of(path: Path, wanted: frozenset[str]) -> Site:
    """The wiki that a file is of."""
    if not is_table(path):
        return dump.site_of(path, wanted)
    for row, _ in _rows(path):
        url = row[3]
        return Site(urlsplit(url).hostname if isinstance(url, str) else None, Names(), wanted)
    raise refused(path, "has no rows")


def read(part: Part, site: Site, left_out: dict[str, int], advance: Advance) -> Iterator[Page]:
    """The pages of a part."""
    if not is_table(part.path):
        yield from dump.pages_of(part, site, left_out, advance)
        return
    for (title, text, key, _), _where in _rows(part.path):
        name = None if isinstance(key, Absent) else word_of(key)
        if isinstance(title, str) and isinstance(text, str) and text.strip():
            yield Page(name or "", title, None, "", _without_title(title, text), plain=True)
        else:
            left_out["rows without a title or a text"] = left_out.get("rows without a title or a text", 0) + 1
    advance(part.end)


def _rows(path: Path) -> Iterator[tuple[list[Any], str]]:
    yield from rows_of(path, _COLUMNS)


def _without_title(title: str, text: str) -> str:
    """WikiExtractor writes the title above the text."""
    head, _, rest = text.partition("\n")
    return rest.lstrip("\n") if head.strip() == title.strip() else text


def check_one_wiki(snapshots: Iterable[Snapshot]) -> None:
    """Refuse two snapshots that are not of one wiki."""
    told: dict[str, list[str]] = {}
    for snapshot in snapshots:
        for path, site in zip(snapshot.files, snapshot.sites, strict=True):
            if site.host:
                told.setdefault(site.host, []).append(f"--{snapshot.name} {path}")
    if len(told) > 1:
        each = "; ".join(f"{host}: {paths[0]}" for host, paths in sorted(told.items()))
        raise OptionError(PLACE, [f"they are of {len(told)} wikis ({each}): expected two dates of one wiki"])


def surveyed(name: str, files: Sequence[Path], surveys: Sequence[Survey], wanted: frozenset[str]) -> Snapshot:
    """A snapshot, once its files were passed over."""
    return Snapshot(name, tuple(files), tuple(surveys), tuple(site_of(path, wanted) for path in files))
