"""The columns of a review state on disk: one safetensors file, and one JSON file that vouches for it.

    FOLDER/
      state.json               what this is, how large, which file holds the columns, and their checksums
      columns-0.safetensors    the columns, back to back; any safetensors reader opens it
      lock                     held by the one process that writes, while it lives

`state.json` is the commit point. Columns are never written over in place by a save: they go to the next free
number, are flushed, and only then does `state.json`, replaced in one rename, name them. Whoever has the older
file mapped keeps it.

A reader trusts nothing. `state.json` must be, byte for byte, what we would write for its own content, and carry
the right check. The header of the columns file must be the very bytes that we would write for a state of that
size. Each column must have its checksum. So no damage is ever read as if it were right.

While a process writes through a mapping, `state.json` says so (its checksums are null) until `close` puts them
back: a state whose writer was killed is told from a whole one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.errors import DamagedError, LockedError, StateError, VersionError

FORMAT = "srt_peft review state"
VERSION = 1
MANIFEST = "state.json"

Array = NDArray[Any]
Columns = dict[str, Array]
Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""What a columns file must hold: name -> (dtype, shape), in the order of the file."""

_SAFETENSORS = {"i8": "I64", "i4": "I32", "i2": "I16", "u2": "U16", "u1": "U8", "f8": "F64", "f4": "F32"}
_ALIGN = 64
_CHUNK = 1 << 24


def header(layout: Layout) -> bytes:
    """The head of a safetensors file for this layout, padded so that the columns start on a cache line."""
    entries, offset = {}, 0
    for name, (dtype, shape) in layout.items():
        end = offset + dtype.itemsize * int(np.prod(shape))
        entries[name] = {"dtype": _SAFETENSORS[dtype.str[1:]], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def size(layout: Layout) -> int:
    """How many bytes a columns file of this layout has, its header included."""
    return len(header(layout)) + sum(d.itemsize * int(np.prod(shape)) for d, shape in layout.values())


def checksum(column: Array) -> int:
    """CRC-32 of a column's bytes."""
    flat = column.reshape(-1).view(np.uint8)
    value = 0
    for start in range(0, flat.size, _CHUNK):
        value = zlib.crc32(flat[start : start + _CHUNK].data, value)
    return value


def checksums(columns: Mapping[str, Array]) -> dict[str, int]:
    """The checksum of every column."""
    return {name: checksum(column) for name, column in columns.items()}


# --- state.json ---------------------------------------------------------------------------------------------


def _dump(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()


def vouched(manifest: Mapping[str, Any]) -> bytes:
    """A manifest's one and only form, with a check of itself in it."""
    body = {key: value for key, value in manifest.items() if key != "check"}
    return _dump({**body, "check": zlib.crc32(_dump(body))})


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Put `state.json` in place in one step; what it says is on the disk before its name is."""
    beside = folder / f"{MANIFEST}.new"
    with beside.open("wb") as file:
        file.write(vouched(manifest))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / MANIFEST)
    sync(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `state.json` says, once it is known to be ours, whole, and of this version."""
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(
            f"{folder} holds no review state: expected a folder with a {MANIFEST} in it, such as "
            "checkpoints/step-00000100/srt_state of a run."
        ) from None
    try:
        manifest: dict[str, Any] | None = json.loads(raw)
        whole = isinstance(manifest, dict) and vouched(manifest) == raw
    except (ValueError, RecursionError):
        manifest, whole = None, False
    if not whole:
        raise DamagedError(f"{path} is damaged, or is not ours: its content does not match its own check. {_RESTORE}")
    assert manifest is not None
    if manifest.get("format") != FORMAT:
        raise DamagedError(
            f"{path} describes {manifest.get('format')!r}, not {FORMAT!r}. Give the folder of a review state."
        )
    if manifest.get("version") != VERSION:
        raise VersionError(
            f"{path} is of format version {manifest.get('version')!r}; this srt-peft reads version {VERSION}. "
            "Read it with the srt-peft that wrote it, or upgrade: pip install --upgrade srt-peft."
        )
    manifest = {"extras": {}, **manifest}  # there was none before there were decks
    if not all(right(manifest.get(key)) for key, right in _FIELDS.items()):
        raise DamagedError(f"{path} is damaged: what it says of its columns cannot be. {_RESTORE}")
    return manifest


_NAME = re.compile(r"columns-\d+\.safetensors")
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "file": lambda v: isinstance(v, str) and _NAME.fullmatch(v) is not None,
    "old": lambda v: type(v) is int and v >= 0,
    "new": lambda v: type(v) is int and v >= 0,
    "identity": lambda v: type(v) is bool,
    "extras": lambda v: isinstance(v, dict) and all(type(n) is int and n >= 0 for n in v.values()),
    "checksums": lambda v: v is None or isinstance(v, dict),
    "scheduler": lambda v: v is None or (isinstance(v, dict) and v.keys() == {"name", "options"}),
}
_RESTORE = "Restore the state from a snapshot that is whole, such as the newest checkpoint's."


# --- the columns file ---------------------------------------------------------------------------------------


def next_name(folder: Path) -> str:
    """A columns file's name that no earlier save in this folder has used."""
    return f"columns-{max(map(_number, _columns_files(folder)), default=-1) + 1}.safetensors"


def _columns_files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("columns-*.safetensors") if _NAME.fullmatch(path.name)]


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("columns-"))


def allocate(path: Path, layout: Layout) -> None:
    """A new columns file of the right size, all zeros, with its room on the disk taken now and not while training."""
    with path.open("xb") as file:
        file.write(header(layout))
        file.flush()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size(layout))
        else:
            file.truncate(size(layout))


def write_columns(path: Path, columns: Mapping[str, Array]) -> dict[str, int]:
    """Write the columns, flush them to the disk, and return their checksums."""
    layout = {name: (column.dtype, column.shape) for name, column in columns.items()}
    sums = {}
    with path.open("xb") as file:
        file.write(header(layout))
        for name, column in columns.items():
            sums[name] = _write_summed(file, column)
        file.flush()
        os.fsync(file.fileno())
    return sums


def _write_summed(file: IO[bytes], column: Array) -> int:
    flat = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
    value = 0
    for start in range(0, flat.size, _CHUNK):
        # A copy, so that what is summed is what is written even while the mapping goes on changing.
        chunk = flat[start : start + _CHUNK].tobytes()
        value = zlib.crc32(chunk, value)
        file.write(chunk)
    return value


def map_columns(path: Path, layout: Layout, mode: str) -> Columns:
    """The columns of a file, memory-mapped, once its size and header are what the layout asks for."""
    try:
        actual = path.stat().st_size
    except OSError:
        raise DamagedError(f"{path} is missing, and its {MANIFEST} names it. {_RESTORE}") from None
    if actual != size(layout):
        raise DamagedError(f"{path} has {actual} bytes, and must have {size(layout)}: it is truncated. {_RESTORE}")
    head = header(layout)
    with path.open("rb") as file:
        if file.read(len(head)) != head:
            raise DamagedError(f"{path} is damaged: its header is not that of a review state. {_RESTORE}")
    whole = np.memmap(path, dtype=np.uint8, mode="r+" if mode == "r+" else "r")
    columns, offset = {}, len(head)
    for name, (dtype, shape) in layout.items():
        end = offset + dtype.itemsize * int(np.prod(shape))
        columns[name] = np.asarray(whole[offset:end]).view(dtype).reshape(shape)
        offset = end
    return columns


def verify(path: Path, columns: Columns, expected: Mapping[str, int]) -> None:
    """Refuse columns whose checksums are not the expected ones, naming them."""
    wrong = [name for name, value in checksums(columns).items() if value != expected.get(name)]
    if wrong:
        raise DamagedError(f"{path} is damaged: {', '.join(wrong)} do not have their checksums. {_RESTORE}")


def sweep(folder: Path, keep: str) -> None:
    """Remove the columns files that `state.json` no longer names; a mapping that is still open keeps its own."""
    for path in _columns_files(folder):
        if path.name != keep:
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Have a folder and all that is in it on the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


# --- one writer ---------------------------------------------------------------------------------------------


class Lock:
    """The right to write a file or folder: held by one process at a time, and gone when that process is.

    `flock` belongs to an open file, which a forked child shares: a data-loading worker that outlived the
    writer would keep the lock. So a child lets go of its copy right after the fork.
    """

    def __init__(self, path: Path, what: str) -> None:
        import fcntl  # noqa: PLC0415 - POSIX has it; who only reads does without

        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise LockedError(
                f"{what} is being written by another process, or is still open in this one. Wait until that has "
                "ended, close it, or work on a copy of its newest checkpoint."
            ) from None
        except OSError:
            self.release()
            raise
        _held.add(self)

    def release(self) -> None:
        """Let go; harmless when nothing is held."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
        _held.discard(self)


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


class Writer:
    """A folder's one writer: it holds the lock, maps the columns, and vouches for them when it closes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = Lock(folder / "lock", f"The review state in {folder}")
        self.columns: Columns = {}
        self._manifest: dict[str, Any] = {}
        self._process = os.getpid()

    def take_over(self, manifest: Mapping[str, Any], columns: Columns) -> None:
        """Write through these columns from now on; until `close`, nobody vouches for them."""
        self.columns, self._manifest = columns, {**manifest, "checksums": None}
        write_manifest(self.folder, self._manifest)
        sweep(self.folder, manifest["file"])

    def allocate(self, layout: Layout) -> tuple[str, Columns]:
        """A new columns file beside the present one, and its mapped columns; `take_over` puts it in place."""
        name = next_name(self.folder)
        allocate(self.folder / name, layout)
        return name, map_columns(self.folder / name, layout, "r+")

    def close(self) -> None:
        """Vouch for the columns as they are now, and let go. Harmless twice, in a forked child, without a folder."""
        try:
            if self._process == os.getpid() and self.columns and self.folder.exists():
                with (self.folder / self._manifest["file"]).open("rb+") as file:
                    os.fsync(file.fileno())
                write_manifest(self.folder, {**self._manifest, "checksums": checksums(self.columns)})
        finally:
            self.columns = {}
            self.lock.release()


def describe(
    file: str,
    old: int,
    new: int,
    *,
    identity: bool,
    extras: Mapping[str, int],
    checksums: Mapping[str, int] | None,
    scheduler: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `state.json` says, its check apart."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "file": file,
        "old": old,
        "new": new,
        "identity": identity,
        "extras": {name: count for name, count in extras.items() if count},
        "checksums": checksums,
        "scheduler": scheduler,
    }


def chunks(total: int, width: int = 1 << 22) -> Iterator[slice]:
    """Slices that cover 0..total, so that a pass over a column of 1e8 rows needs no second column of memory."""
    for start in range(0, total, width):
        yield slice(start, min(start + width, total))
