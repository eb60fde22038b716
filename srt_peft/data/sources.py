"""Where text comes from: what a source is, which files it has, and the documents read from them.

Documents come from text and Markdown files (one file is one document), JSONL, JSON, CSV, Parquet, folders of these,
what `datasets` saved to disk, or the hub. `datasets` and the hub are made to keep their caches under our own, so that
all that was derived from a text can be found, and erased.

A fault names the file and the line or row that it is in: whoever brings a large corpus must be able to mend it.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from srt_peft.errors import OptionError, did_you_mean

PLACE = "the corpus"
"""What a fault in a source is said to be in."""

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """One place that documents come from: files, or rows that `datasets` holds."""

    name: str
    limit: int | None
    files: tuple[Path, ...]
    rows: Any
    content: str
    """A hash of all its bytes."""


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
        if _looks_like_a_path(given, path) and not path.exists() and not path.is_symlink():
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
        return Source(name, limit, (), rows, f"hub {rows._fingerprint}")  # noqa: SLF001 - a hash of all it came from
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
        if _kind(path) not in _READERS:
            near = did_you_mean(path.suffix, _READERS)
            fail(f"{given} is of an unknown kind{near}: expected {_KINDS}, perhaps with .gz. Rename or convert it")
        if path.exists() and not path.is_file():  # to read from a pipe is to wait for ever, or to read it once
            fail(f"{given} is neither a file nor a folder: expected one of them. Write what it gives to a file")
    for file in files:
        if format == "chat" and _kind(file) in {".txt", ".md", ".csv"}:
            fail(f"{file} cannot hold chats: format 'chat' expects rows with messages, as JSONL and Parquet have them")
    content = [f"{_kind(file)} {_digest(file)}" for file in hashed]
    return Source(name, limit, tuple(files), rows, "\n".join(content))


def _looks_like_a_path(given: str, path: Path) -> bool:
    """Hub names are `name` or `org/name`, and no data file's extension ends them."""
    return _kind(path) in _READERS or given.startswith((".", "/", "~")) or given.count("/") > 1 or "\\" in given


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _readable_of(folder: Path, files: Sequence[Path]) -> list[Path]:
    readable = [file for file in files if _kind(file) in _READERS]
    if not readable:
        what = f"only {files[0].name} and the like" if files else "nothing"
        fail(f"{folder} holds {what}: expected a folder with files in it of the kinds {_KINDS}")
    if len(readable) < len(files):
        _log.warning("%d files in %s are of unknown kinds, and left out", len(files) - len(readable), folder)
    return readable


def _kind(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def _digest(path: Path) -> str:
    with _reading(path), path.open("rb") as file:
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


# --- reading ------------------------------------------------------------------------------------------------


class Document(NamedTuple):
    """A text, or the messages of a chat, and where it was found."""

    source: int
    content: Any
    where: str


def documents_of(sources: Sequence[Source], column: str, format: str) -> Iterator[Document]:  # noqa: A002
    """All documents, in order, each checked to be what the format expects."""
    index = {name: i for i, name in enumerate(dict.fromkeys(s.name for s in sources))}
    for source in sources:
        if source.rows is not None:
            found: Iterator[tuple[Any, str]] = _rows(source, column)
        else:
            found = chain.from_iterable(_read(path, column) for path in source.files)
        for value, where in islice(found, source.limit):
            yield Document(index[source.name], CHECKS[format](value, column, where), where)


def fail(fault: str) -> None:
    """Refuse the corpus."""
    raise OptionError(PLACE, [fault])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Have a file that cannot be read told by name, and apart from one of ours that cannot be written."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            PLACE, [f"{path} cannot be read ({reason}): expected a whole file that you may read"]
        ) from error


def _read(path: Path, column: str) -> Iterator[tuple[Any, str]]:
    with _reading(path):
        yield from _READERS[_kind(path)](path, column)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _decode(raw: bytes, path: Path, offset: int = 0) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        where = f"byte 0x{raw[error.start]:02x} at offset {offset + error.start}"
        theirs = "UTF-16" if offset == 0 and raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "LATIN1"
        fault = f"{path} is not UTF-8: {where}. Convert it, such as with iconv -f {theirs} -t UTF-8"
        raise OptionError(PLACE, [fault]) from None
    if "\0" in text:  # a file that a crash left unwritten is all zeros; a binary one and UTF-16 have many
        at = offset + raw.index(b"\0")
        fail(f"{path} is no text: byte 0x00 at offset {at}. Bring it again, or convert it, if it is UTF-16 or binary")
    return text if offset else text.removeprefix("\ufeff")


def _text(path: Path, column: str) -> Iterator[tuple[Any, str]]:  # noqa: ARG001 - one face for all readers
    with _opened(path) as file:
        yield _decode(file.read(), path), str(path)


def _json_lines(path: Path, column: str) -> Iterator[tuple[Any, str]]:
    offset = 0
    with _opened(path) as file:
        for number, raw in enumerate(file, 1):
            line, where = _decode(raw, path, offset), f"{path}, line {number}"
            offset += len(raw)
            if line.strip():
                yield _cell(_parsed(line, where, "a JSON object on each line"), column, where), where


def _json(path: Path, column: str) -> Iterator[tuple[Any, str]]:
    """A list of objects; or JSON lines, which often go by this name."""
    with _opened(path) as file:
        raw = file.read()
    if not raw.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        yield from _json_lines(path, column)
        return
    for number, row in enumerate(_parsed(_decode(raw, path), str(path), "a list of JSON objects"), 1):
        where = f"{path}, item {number}"
        yield _cell(row, column, where), where


def _parsed(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(PLACE, [f"{where} is not JSON ({error}): expected {expected}"]) from None


def _cell(row: Any, column: str, where: str) -> Any:
    if not isinstance(row, dict):
        fail(f"{where} is a {type(row).__name__}: expected a JSON object with a column {column!r}")
    _has_column(column, row, where)
    return row[column]


def _has_column(column: str, columns: Iterable[str], where: str) -> None:
    known = list(columns)
    if column not in known:
        fail(
            f"{where} has no column {column!r}{did_you_mean(column, known)}: it has {', '.join(known) or 'none'}. "
            "Name the column with text_column"
        )


def _csv(path: Path, column: str) -> Iterator[tuple[Any, str]]:
    offset = 0

    def lines() -> Iterator[str]:
        nonlocal offset
        with _opened(path) as file:
            for raw in file:
                yield _decode(raw, path, offset)
                offset += len(raw)

    limit = csv.field_size_limit(2**31 - 1)  # a document may be longer than the 128 KiB that csv allows a cell
    try:
        rows = csv.reader(lines(), strict=True)
        names = next(rows, [])
        _has_column(column, names, str(path))
        at = names.index(column)
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if row and len(row) <= at:
                fail(f"{where} has {len(row)} cells, and the header {len(names)}: expected a cell for {column!r}")
            if row:
                yield row[at], where
    except csv.Error as error:
        raise OptionError(PLACE, [f"{path}, line {rows.line_num} is not CSV ({error}): quote what needs it"]) from error
    finally:
        csv.field_size_limit(limit)


def _parquet(path: Path, column: str) -> Iterator[tuple[Any, str]]:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - 0.2 s
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        with pq.ParquetFile(path) as file:
            _has_column(column, file.schema_arrow.names, str(path))
            row = 0
            for batch in file.iter_batches(columns=[column], batch_size=1024):
                for value in batch.column(0).to_pylist():
                    yield value, f"{path}, row {row}"
                    row += 1
    except pa.ArrowException as error:
        raise OptionError(PLACE, [f"{path} is not a whole Parquet file ({error}): write it again"]) from error


def _rows(source: Source, column: str) -> Iterator[tuple[Any, str]]:
    _has_column(column, source.rows.column_names, source.name)
    row = 0
    for table in source.rows.select_columns([column]).with_format("arrow").iter(1024):
        for value in table.column(0).to_pylist():
            yield value, f"{source.name}, row {row}"
            row += 1


_READERS = {
    ".txt": _text,
    ".md": _text,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
_KINDS = ", ".join(_READERS)


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
