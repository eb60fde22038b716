"""Where text comes from: what a source is, which files it has, and the documents that its rows are.

Documents come from text and Markdown files (one file is one document), JSONL, JSON, CSV, Parquet, folders of these,
what `datasets` saved to disk, or the hub. `datasets` and the hub are made to keep their caches under our own, so that
all that was derived from a text can be found, and erased. What is in a file is read in `reading`.

A document is called by its row's id, or, where it is a text file, by that file's path from its source's folder on.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.data.pool import NO_DATE
from srt_peft.data.reading import (
    DATES,
    KINDS,
    PLACE,
    PLAIN,
    READERS,
    Absent,
    Column,
    fail,
    kind_of,
    lacks,
    reading,
    rows_held,
    rows_of,
    seconds_of,
    word_of,
)
from srt_peft.errors import OptionError, did_you_mean

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """One place that documents come from: files, or rows that `datasets` holds."""

    name: str
    limit: int | None
    files: tuple[Path, ...]
    rows: Any
    content: str
    """The hashes of all its bytes, and what its files are called."""
    folder: Path
    """What its files are called from."""


def sources_of(source: Any, root: Path, format: str) -> list[Source]:  # noqa: A002
    """Every source that was given, found and hashed."""
    listed = isinstance(source, Sequence) and not isinstance(source, str)
    entries: list[tuple[str, str | None, int | None]] = []
    faults = []
    for item in source if listed else [source]:
        if isinstance(item, (str, Path)):
            entries.append((str(item), None, None))
            continue
        given = dict(item) if isinstance(item, Mapping) else {k: getattr(item, k, None) for k in _ENTRY}
        faults += [f"{k!r} is no key of a source{did_you_mean(k, _ENTRY)}: {_EXPECTED}" for k in given.keys() - _ENTRY]
        path, name, limit = given.get("path"), given.get("source"), given.get("limit")
        if not isinstance(path, (str, Path)) or not str(path):
            faults.append(f"path = {path!r}: {_EXPECTED}")
        elif limit is not None and (type(limit) is not int or limit < 1):
            faults.append(f"limit = {limit!r} of {path}: expected a whole number of documents, 1 or more, or null")
        else:
            entries.append((str(path), name, limit))
    if faults:
        raise OptionError("the sources", faults)
    return [_source(*entry, root, format) for entry in entries]


def absent(paths: Iterable[str]) -> list[str]:
    """A line for each that is a path by its looks and is not here: told together, and before anything is read."""
    found = []
    for given in dict.fromkeys(paths):
        path = Path(given).expanduser()
        if looks_like_a_path(given, path) and not path.exists() and not path.is_symlink():
            near = did_you_mean(path.name, (p.name for p in path.parent.iterdir())) if path.parent.is_dir() else ""
            found.append(f"{given} does not exist{near}: expected a file, a folder, or a dataset's name on the hub")
    return found


_ENTRY = {"path", "source", "limit"}
_EXPECTED = "expected a path, a hub name, or {path: …, source: NAME, limit: null}"


def _source(given: str, name: str | None, limit: int | None, root: Path, format: str) -> Source:  # noqa: A002
    path = Path(given).expanduser()
    name = name or path.name or given
    if not path.exists() and not path.is_symlink():
        for fault in absent([given]):
            fail(fault)
        rows = _from_hub(given, root)
        content = f"hub {rows._fingerprint}"  # noqa: SLF001 - a hash of all it came from
        return Source(name, limit, (), rows, content, path)
    rows = None
    if path.is_dir():
        # A link that leads nowhere is kept, to be told when it is read: its text would be missing without a word.
        there = (p for p in path.rglob("*") if (p.is_file() or not p.exists()) and not _hidden(p, path))
        files = sorted(there, key=lambda p: p.parts)
        if (path / "dataset_dict.json").is_file() or {"state.json", "dataset_info.json"} <= {p.name for p in files}:
            rows = _from_disk(path)
            hashed, files = files, []
        else:
            hashed = files = _readable_of(path, files)
    else:
        hashed = files = [path]
        if kind_of(path) not in READERS:
            near = did_you_mean(path.suffix, READERS)
            fail(f"{given} is of an unknown kind{near}: expected {KINDS}, perhaps with .gz. Rename or convert it")
        if path.exists() and not path.is_file():  # to read from a pipe is to wait for ever, or to read it once
            fail(f"{given} is neither a file nor a folder: expected one of them. Write what it gives to a file")
    for file in files:
        if format == "chat" and kind_of(file) in {".txt", ".md", ".csv"}:
            fail(f"{file} cannot hold chats: format 'chat' expects rows with messages, as JSONL and Parquet have them")
    folder = path if path.is_dir() else path.parent
    content = "\n".join(f"{kind_of(file)} {_digest(file)} {_called(file, folder)}" for file in hashed)
    return Source(name, limit, tuple(files), rows, content, folder)


def looks_like_a_path(given: str, path: Path) -> bool:
    """Hub names are `name` or `org/name`, and no data file's extension ends them."""
    return kind_of(path) in READERS or given.startswith((".", "/", "~")) or given.count("/") > 1 or "\\" in given


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _readable_of(folder: Path, files: Sequence[Path]) -> list[Path]:
    readable = [file for file in files if kind_of(file) in READERS]
    if not readable:
        what = f"only {files[0].name} and the like" if files else "nothing"
        fail(f"{folder} holds {what}: expected a folder with files in it of the kinds {KINDS}")
    if len(readable) < len(files):
        _log.warning("%d files in %s are of unknown kinds, and left out", len(files) - len(readable), folder)
    return readable


def _digest(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _from_disk(folder: Path) -> Any:
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415 - a second

    try:
        return _one_split(datasets.load_from_disk(str(folder)), str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise OptionError(PLACE, [f"{folder} is no whole dataset as `save_to_disk` writes it: {error}"]) from error


def _from_hub(given: str, root: Path) -> Any:
    import datasets  # noqa: PLC0415
    from huggingface_hub import constants  # noqa: PLC0415

    name, _, config = given.partition(":")
    # load_dataset's cache_dir is not what it downloads to: that is the hub's cache, which has no argument.
    theirs, constants.HF_HUB_CACHE = constants.HF_HUB_CACHE, str(root / "hub")
    try:
        found = datasets.load_dataset(name, config or None, cache_dir=str(root / "datasets"))
    except Exception as error:
        raise OptionError(
            PLACE,
            [f"{given} is no file or folder here, and could not be loaded from the hub ({error}): {_CHECK_HUB}"],
        ) from error
    finally:
        constants.HF_HUB_CACHE = theirs
    return _one_split(found, given)


_CHECK_HUB = "check the name and the connection; a gated dataset needs `hf auth login`"


def _one_split(found: Any, what: str) -> Any:
    if not isinstance(found, dict):
        return found
    if "train" not in found and len(found) != 1:
        fail(f"{what} has the splits {', '.join(found)}: expected 'train', or only one. Save the one to use by itself")
    return found["train"] if "train" in found else next(iter(found.values()))


# --- documents ----------------------------------------------------------------------------------------------

BY_FILE = "__file__"
"""Instead of a column: every file is a source of its own, called by its path from its source's folder on."""


class Wanted(NamedTuple):
    """The columns that are read, by what they are for."""

    text: str
    source: str | None = None
    id: str | None = None
    supersedes: str | None = None
    grouped: bool = True
    """Whether some row of each source must have the column of what it is from."""
    date: str | None = None

    def columns(self) -> dict[str, Column]:
        """What is asked for of each row; which source it is from may be left out, by a row and not by all of them."""
        asked = {"text": Column(self.text, "Name the column with text_column")}
        if self.source not in (None, BY_FILE):
            asked["source"] = Column(str(self.source), _NAME_SOURCE if self.grouped else None, sparse=True)
        for name in ("id", "supersedes", "date"):
            if (column := getattr(self, name)) is not None:
                asked[name] = Column(column)
        return asked


_NAME_SOURCE = "Name the column with source_column, or set that to null: each path is a source then"


class Document(NamedTuple):
    """A text, or the messages of a chat, where it was found, and what it is called."""

    source: str
    content: Any
    where: str
    id: str | None = None
    supersedes: Any = None
    """What stood in that column: `Absent` where there is none."""
    date: int = NO_DATE


def documents_of(sources: Sequence[Source], wanted: Wanted, format: str) -> Iterator[Document]:  # noqa: A002
    """All documents, in order, each checked to be what the format expects."""
    columns = wanted.columns()
    for source in sources:
        lacking, somewhere = "", False
        for values, where, file in islice(_rows(source, list(columns.values())), source.limit):
            cells = dict(zip(columns, values, strict=True))
            content = CHECKS[format](cells["text"], wanted.text, where)
            found = cells.get("source")
            if not isinstance(found, Absent):
                somewhere = True
            elif not lacking and found.known:
                lacking = lacks(where, str(wanted.source), found.known, _NAME_SOURCE)
            own = file if file is not None and wanted.source == BY_FILE else source.name
            deck = _word(cells, "source", wanted.source, where) or own
            name = file if file is not None and kind_of(Path(file)) in PLAIN else _word(cells, "id", wanted.id, where)
            date = _date(cells.get("date"), wanted.date, where)
            yield Document(deck, content, where, name, cells.get("supersedes"), date)
        if wanted.grouped and lacking and not somewhere:
            fail(lacking)


def _rows(source: Source, columns: Sequence[Column]) -> Iterator[tuple[list[Any], str, str | None]]:
    """The rows of a source, and the name of the file that each is in, from the source's folder on."""
    if source.rows is not None:
        for values, where in rows_held(source.rows, source.name, columns):
            yield values, where, None
    for path in source.files:
        name = _called(path, source.folder)
        for values, where in rows_of(path, columns):
            yield values, where, name


def _called(path: Path, folder: Path) -> str:
    """A file's name from the folder on, the same on every system and whatever its bytes."""
    return os.fsencode(path.relative_to(folder).as_posix()).decode(errors="replace")


def _word(cells: Mapping[str, Any], role: str, column: str | None, where: str) -> str | None:
    value = cells.get(role)
    if isinstance(value, Absent):
        return None
    try:
        return word_of(value)
    except (TypeError, ValueError):
        fault = f"{where}: {column!r} is {value!r:.60}, a {type(value).__name__}: expected text, a number or null"
        raise OptionError(PLACE, [fault]) from None


def _date(value: Any, column: str | None, where: str) -> int:
    if value is None or isinstance(value, Absent) or value == "":
        return NO_DATE
    found = seconds_of(value)
    if found is None:
        fail(f"{where}: {column!r} is {value!r:.60}: expected a date as {DATES}, or null")
    assert found is not None
    return found


def _plain(value: Any, column: str, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        fail(f"{where}: {column!r} is {value!r:.60}, a {type(value).__name__}: expected text. Convert the column")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        fail(f"{where}: {column!r} holds half a character ({error.object[error.start]!r}): expected whole Unicode text")
    return str(value)


def _messages(value: Any, column: str, where: str) -> list[dict[str, Any]]:
    right = isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)
    # A template writes nothing where there is no content: the model would learn who speaks, and not what is said.
    right = right and all("content" in m or "tool_calls" in m for m in value)
    if value is not None and not right:
        fail(f"{where}: {column!r} is {value!r:.60}: expected a list of {{role: …, content: …}}")
    return value or []


CHECKS = {"text": _plain, "chat": _messages}
"""The formats, and what makes sure that a value is of one."""
