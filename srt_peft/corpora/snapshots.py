"""A snapshot as documents: a folder of text files, a table with a key, or a commit of a git repository.

What a text file is called is its path from the folder on; its title is its first heading. A row of a table is called by
its key, which both tables have. A commit is read from the repository's objects: nothing is checked out, and what is
changed in the work tree makes no difference.

A text file that is no UTF-8, or whose name is none, is left out and counted, since one of an old commit can no longer
be mended; a table that is damaged is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from srt_peft.corpora.documents import PLACE, Document
from srt_peft.corpora.folder import input_of
from srt_peft.corpora.writing import shown
from srt_peft.data.reading import PLAIN, READERS, Absent, Column, kind_of, lacks, rows_of, word_of
from srt_peft.data.sources import CHECKS
from srt_peft.errors import OptionError, did_you_mean

INCLUDE = ("*.md", "*.markdown", "*.rst", "*.txt", "*.adoc", "*.org")
"""Which files of a folder or a repository are text, unless that is said."""
KEYS = ("id", "key", "path", "url", "title")
"""What may be a table's key, where none is named: the first that both have."""
SIDES = ("--old", "--new")
MOST = 10
"""Faults that are told in full."""
TABLES = [kind for kind in READERS if kind not in PLAIN]

_HEADING = re.compile(
    r"\s*(?:#+\s+(?P<hash>[^\n]+?)[\s#]*|=+\s+(?P<equals>[^\n]+)|(?P<ruled>\S[^\n]*)\n\s*([=\-~*^])\4{2,})\s*(\n|$)"
)
_FRONT = re.compile(r"\A---\n(?P<front>.*?)\n---\n", re.DOTALL)
_TITLE = re.compile(r"^title:\s*[\"']?(?P<title>[^\n\"']+)", re.MULTILINE)


class Columns(NamedTuple):
    """The columns of a table, by what they are for."""

    text: str = "text"
    title: str = "title"
    key: str | None = None
    source: str | None = None


@dataclass
class Snapshot:
    """All documents of a snapshot, by their keys, in order."""

    name: str
    documents: dict[str, Document]
    about: dict[str, Any]
    """What the manifest says of it."""
    left_out: Counter[str] = field(default_factory=Counter)


def both(paths: Sequence[Path], columns: Columns, include: Sequence[str] | None) -> list[Snapshot]:
    """Two folders, or two tables; all that is wrong with either is told at once."""
    faults, files = [], []
    for side, path in zip(SIDES, paths, strict=True):
        try:
            files.append(_files(path, include))
        except OptionError as error:
            faults += [f"{side} = {fault}" for fault in error.faults]
    if faults:
        raise OptionError("the arguments", faults)
    kinds = [bool(found) and kind_of(found[0]) in TABLES for found in files]
    if kinds[0] != kinds[1]:
        what = " and ".join(
            f"{path} of {'tables' if kind else 'text files'}" for path, kind in zip(paths, kinds, strict=True)
        )
        raise OptionError("the arguments", [f"--old and --new = {what}: expected two of one kind"])
    if not kinds[0]:
        return [_of_files(path, found) for path, found in zip(paths, files, strict=True)]
    asked, snapshots = columns._replace(key=_key(paths, files, columns.key)), []
    for path, found in zip(paths, files, strict=True):
        try:
            snapshots.append(_of_tables(path, found, asked))
        except OptionError as error:
            faults += error.faults
    if faults:
        raise OptionError(PLACE, faults, most=MOST)
    return snapshots


def title_of(text: str, name: str) -> str:
    """A text's first heading; where it has none, what its file is called."""
    front = _FRONT.match(text)
    named = _TITLE.search(front["front"]) if front else None
    found = None if named else _HEADING.match(text, front.end() if front else 0)
    title = named["title"] if named else next(filter(None, found.group("hash", "equals", "ruled")), "") if found else ""
    return " ".join(title.split()) or PurePosixPath(name).stem


def included(path: str, include: Iterable[str]) -> bool:
    """Whether a file is among those that are meant: by its path, or by its name alone."""
    return any(fnmatch(path, pattern) or fnmatch(PurePosixPath(path).name, pattern) for pattern in include)


def none_included(where: str, wanted: Iterable[str]) -> str:
    """The fault of a folder or a commit without text files."""
    return f"{where}: no file of it is of {', '.join(wanted)}; --include PATTERN says which are text"


def text_of(raw: bytes) -> tuple[str, str | None]:
    """A file's text; or why it has none."""
    try:
        text = raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        return "", "no UTF-8"
    if "\0" in text:
        return "", "binary"
    if text.startswith("version https://git-lfs"):
        return "", "a pointer of git-lfs"
    return text, None if text.strip() else "empty"


def _is_utf8(name: str) -> bool:
    """Whether a name can be written: one that came of other bytes has halves of characters in it."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


def add_file(snapshot: Snapshot, name: str, raw: bytes) -> None:
    """A text file's document, or the reason that there is none; `name` is as the file system's bytes are decoded."""
    text, reason = text_of(raw) if _is_utf8(name) else ("", "name not UTF-8")
    if reason is None:
        snapshot.documents[name] = Document(name, title_of(text, name), text)
    else:
        snapshot.left_out[reason] += 1


# --- folders ------------------------------------------------------------------------------------------------


def _files(path: Path, include: Sequence[str] | None) -> list[Path]:
    """The files of a path: the text files of a folder, or its tables where it has no text files; or the table."""
    if not path.exists():
        near = did_you_mean(path.name, (p.name for p in path.parent.iterdir())) if path.parent.is_dir() else ""
        raise OptionError(PLACE, [f"{path}: does not exist{near}; expected a folder of text files, or a table"])
    if path.is_file():
        if kind_of(path) in TABLES:
            return [path]
        known = ", ".join(TABLES)
        raise OptionError(PLACE, [f"{path}: of an unknown kind; expected a folder, or a table ({known}; perhaps .gz)"])
    there = sorted((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.parts)
    there = [p for p in there if not any(part.startswith(".") for part in p.relative_to(path).parts)]
    text = [p for p in there if included(p.relative_to(path).as_posix(), include or INCLUDE)]
    found = text or ([] if include else [p for p in there if kind_of(p) in TABLES])
    if not found:
        raise OptionError(PLACE, [none_included(str(path), include or (*INCLUDE, *TABLES))])
    return found


def _of_files(path: Path, files: Sequence[Path]) -> Snapshot:
    snapshot = Snapshot(str(path), {}, input_of(path, files))
    for file in shown(files, "reading", "file", len(files)):
        add_file(snapshot, file.relative_to(path).as_posix(), file.read_bytes())
    return snapshot


# --- tables -------------------------------------------------------------------------------------------------


def _known(files: Sequence[Path]) -> tuple[str, ...] | None:
    """The columns of the first row; None where there is none."""
    rows = chain.from_iterable(rows_of(file, [Column("\0", sparse=True)]) for file in files)
    return next((cell.known for (cell,), _ in rows if isinstance(cell, Absent)), None)


def _key(paths: Sequence[Path], files: Sequence[Sequence[Path]], given: str | None) -> str:
    """What rows are known by in both: the column that is given, or the first usual one that both have."""
    known = [_known(found) for found in files]
    sides = zip(SIDES, paths, known, strict=True)
    empty = [
        f"{side} = {path}: has no row; expected a document a row" for side, path, columns in sides if columns is None
    ]
    if empty:
        raise OptionError("the arguments", empty)
    if given:
        return given
    has = [columns or () for columns in known]
    for name in KEYS:
        if all(name in columns for columns in has):
            return name
    told = "; ".join(map(", ".join, has))
    wanted = ", ".join(KEYS)
    raise OptionError("the arguments", [f"--key = not given: no column of {wanted} is in both ({told}); name the key"])


def _of_tables(path: Path, files: Sequence[Path], columns: Columns) -> Snapshot:
    about = input_of(path) if path.is_file() else input_of(path, files)
    snapshot, faults, places = Snapshot(str(path), {}, about), list[str](), dict[str, str]()
    asked = {
        "key": Column(str(columns.key), "Name the key with --key"),
        "text": Column(columns.text, "Name the column with --text-column"),
        "title": Column(columns.title),
    }
    for role, name in (("title", columns.title), ("source", columns.source)):
        if name is not None and name != Columns._field_defaults[role]:
            asked[role] = Column(name, f"Name the column with --{role}-column", sparse=True)
    lacking: dict[str, tuple[str, ...]] = {role: () for role, column in asked.items() if column.sparse}
    for file in files:
        for values, where in shown(rows_of(file, list(asked.values())), "reading", "row"):
            cells = dict(zip(asked, values, strict=True))
            lacking = {role: cells[role].known for role in lacking if isinstance(cells[role], Absent)}
            text = str(CHECKS["text"](cells["text"], columns.text, where))
            words = {name: _word(cells.get(name), where, asked, name, faults) for name in ("key", "title", "source")}
            key = words["key"]
            if key is None:
                faults.append(f"{where}: {columns.key!r} is empty: expected what the document is known by")
            elif key in places:
                faults.append(f"{where}: {columns.key!r} is {key!r}, as of {places[key]}: expected one row a document")
            elif not text.strip():
                snapshot.left_out["empty"] += 1
            else:
                places[key] = where
                snapshot.documents[key] = Document(key, words["title"] or key, text, words["source"] or "")
    faults += [lacks(str(path), asked[role].name, known, str(asked[role].remedy)) for role, known in lacking.items()]
    if faults:
        raise OptionError(PLACE, faults, most=MOST)
    return snapshot


def _word(cell: Any, where: str, asked: Mapping[str, Column], role: str, faults: list[str]) -> str | None:
    if isinstance(cell, Absent):
        return None
    try:
        return word_of(cell)
    except (TypeError, ValueError):
        faults.append(f"{where}: {asked[role].name!r} is {cell!r:.60}: expected text or a number")
        return None
