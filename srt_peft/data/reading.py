"""Rows out of files: every kind of file as rows, with those of their columns that are asked for, and where each stands.

A text file is one row, of its text. A table has the same columns in every row, and its nulls; a row of JSON may leave a
column out, which is then `Absent`.

A fault names the file and the line or row that it is in: whoever brings a large corpus must be able to mend it.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from srt_peft.errors import OptionError, did_you_mean

PLACE = "the corpus"
"""What a fault in a source is said to be in."""


class Column(NamedTuple):
    """A column that is asked for."""

    name: str
    remedy: str | None = None
    """What to do where it is not there; None where nothing need be done."""
    sparse: bool = False
    """Whether a row of JSON may leave it out all the same."""


class Absent(NamedTuple):
    """What stands where a row has no such column: the columns that it does have."""

    known: tuple[str, ...]


Row = tuple[list[Any], str]
"""The values of the columns that were asked for, in their order, and where the row stands."""


def rows_of(path: Path, columns: Sequence[Column]) -> Iterator[Row]:
    """The rows of a file; that of a text file has the text for the first column, and no other."""
    with reading(path):
        yield from READERS[kind_of(path)](path, columns)


def rows_held(rows: Any, name: str, columns: Sequence[Column]) -> Iterator[Row]:
    """The rows that `datasets` holds."""
    known = tuple(rows.column_names)
    wanted = [column.name for column in columns if _has_column(column, known, name)]
    batches = rows.select_columns(list(dict.fromkeys(wanted))).with_format("arrow").iter(1024)
    for number, values in enumerate(_out_of(batches, columns, known)):
        yield values, f"{name}, row {number}"


def fail(fault: str) -> None:
    """Refuse the corpus."""
    raise OptionError(PLACE, [fault])


def lacks(where: str, column: str, known: Iterable[str], remedy: str) -> str:
    """The fault of a row or a table that has no such column."""
    known = list(known)
    has = ", ".join(known) or "none"
    return f"{where} has no column {column!r}{did_you_mean(column, known)}: it has {has}. {remedy}"


def word_of(value: Any) -> str | None:
    """A cell that names something, as text: numbers as they are written, None where there is nothing in it.

    A column of whole numbers with nulls in it often comes as one of floats, with NaN for null: 3.0 is called 3.
    """
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError
    word = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    word.encode()  # half a character is a ValueError
    return word


DATES = "2026-03-01, 2026-03-01T12:00:00+01:00, or the seconds since 1970"


def seconds_of(value: Any) -> int | None:
    """A cell that says when, in seconds since 1970; None where it does not. What names no time zone is in UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**53:
        return None
    return math.floor(value)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Have a file that cannot be read told by name, and apart from one of ours that cannot be written."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            PLACE, [f"{path} cannot be read ({reason}): expected a whole file that you may read"]
        ) from error


def kind_of(path: Path) -> str:
    """The extension that says how a file is read, whether or not it is compressed."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


# --- text and JSON ------------------------------------------------------------------------------------------


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


def _text(path: Path, columns: Sequence[Column]) -> Iterator[Row]:
    with _opened(path) as file:
        yield [_decode(file.read(), path), *(Absent(()) for _ in columns[1:])], str(path)


def _json_lines(path: Path, columns: Sequence[Column]) -> Iterator[Row]:
    offset = 0
    with _opened(path) as file:
        for number, raw in enumerate(file, 1):
            line, where = _decode(raw, path, offset), f"{path}, line {number}"
            offset += len(raw)
            if line.strip():
                yield _cells(_parsed(line, where, "a JSON object on each line"), columns, where), where


def _json(path: Path, columns: Sequence[Column]) -> Iterator[Row]:
    """A list of objects; or JSON lines, which often go by this name."""
    with _opened(path) as file:
        raw = file.read()
    if not raw.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        yield from _json_lines(path, columns)
        return
    for number, row in enumerate(_parsed(_decode(raw, path), str(path), "a list of JSON objects"), 1):
        where = f"{path}, item {number}"
        yield _cells(row, columns, where), where


def _parsed(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(PLACE, [f"{where} is not JSON ({error}): expected {expected}"]) from None


def _cells(row: Any, columns: Sequence[Column], where: str) -> list[Any]:
    if not isinstance(row, dict):
        fail(f"{where} is a {type(row).__name__}: expected a JSON object with a column {columns[0].name!r}")
    return [
        row[c.name] if c.name in row or (not c.sparse and _has_column(c, row, where)) else Absent(tuple(row))
        for c in columns
    ]


def _has_column(column: Column, known: Iterable[str], where: str) -> bool:
    """Whether it is there, where it may be missing."""
    there = column.name in known
    if not there and column.remedy is not None:
        fail(lacks(where, column.name, known, column.remedy))
    return there


# --- tables -------------------------------------------------------------------------------------------------


def _csv(path: Path, columns: Sequence[Column]) -> Iterator[Row]:
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
        absent = Absent(tuple(names))
        at = [names.index(c.name) if _has_column(c, names, str(path)) else None for c in columns]
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            for column, i in zip(columns, at, strict=True) if row else ():
                if i is not None and len(row) <= i:
                    has = f"{len(row)} cells, and the header {len(names)}"
                    fail(f"{where} has {has}: expected a cell for {column.name!r}")
            if row:
                yield [absent if i is None else row[i] for i in at], where
    except csv.Error as error:
        raise OptionError(PLACE, [f"{path}, line {rows.line_num} is not CSV ({error}): quote what needs it"]) from error
    finally:
        csv.field_size_limit(limit)


def _parquet(path: Path, columns: Sequence[Column]) -> Iterator[Row]:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - 0.2 s
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        with pq.ParquetFile(path) as file:
            known = tuple(file.schema_arrow.names)
            wanted = [column.name for column in columns if _has_column(column, known, str(path))]
            batches = file.iter_batches(columns=list(dict.fromkeys(wanted)), batch_size=1024)
            for number, values in enumerate(_out_of(batches, columns, known)):
                yield values, f"{path}, row {number}"
    except pa.ArrowException as error:
        raise OptionError(PLACE, [f"{path} is not a whole Parquet file ({error}): write it again"]) from error


def _out_of(batches: Iterable[Any], columns: Sequence[Column], known: tuple[str, ...]) -> Iterator[list[Any]]:
    """The rows of Arrow's batches, column by column as they were asked for."""
    absent = Absent(known)
    for batch in batches:
        names = batch.schema.names
        found = [
            batch.column(names.index(c.name)).to_pylist() if c.name in names else [absent] * batch.num_rows
            for c in columns
        ]
        yield from map(list, zip(*found, strict=True))


READERS: dict[str, Callable[[Path, Sequence[Column]], Iterator[Row]]] = {
    ".txt": _text,
    ".md": _text,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
KINDS = ", ".join(READERS)
PLAIN = {".txt", ".md"}
"""The kinds of which a file is one document."""
