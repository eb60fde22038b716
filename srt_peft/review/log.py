"""The review log: what was asked, when, and how well it was recalled. Append-only.

    bytes 0..63   a line of JSON that says what this is, padded with spaces, ended by a newline
    then          a record of 16 bytes for each review, little-endian:
                  step i4, id i4, signal f4 (NLL in nats), quality u1, pool u1 (0 old, 1 new),
                  untrained u1 (1: it was asked, passed, and not trained on), a zero byte

A step in which nothing was drawn leaves one record with id -1, so that the log knows every step. A step's
records are written at once. A record cut short by a kill is not read, and the next writer drops it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import DamagedError, OptionError, StateError, VersionError
from srt_peft.review.files import Lock

RECORD = np.dtype(
    [
        ("step", "<i4"),
        ("id", "<i4"),
        ("signal", "<f4"),
        ("quality", "u1"),
        ("pool", "u1"),
        ("untrained", "u1"),
        ("zero", "u1"),
    ]
)
NOBODY = -1
_HEAD_BYTES = 64
_FORMAT, _VERSION = "srt_peft review log", 1
_HEAD = json.dumps({"format": _FORMAT, "version": _VERSION}).encode().ljust(_HEAD_BYTES - 1) + b"\n"


def renumbered(records: NDArray[Any], place: NDArray[np.int64]) -> NDArray[Any]:
    """Records under other ids, `place[id]`; those of whoever is gone (-1) are left out, and no step is."""
    found = records.copy()
    told = found["id"] != NOBODY
    found["id"][told] = place[found["id"][told]]
    gone = told & (found["id"] == NOBODY)
    kept, dropped = found[~gone], found[gone]
    _, first = np.unique(dropped["step"], return_index=True)
    empty = dropped[first][~np.isin(dropped["step"][first], kept["step"])]
    empty["signal"], empty["quality"], empty["pool"], empty["untrained"] = np.nan, 0, 0, 0
    joined = np.concatenate([kept, empty])
    return joined[np.argsort(joined["step"], kind="stable")]


def write(path: Path, records: NDArray[Any]) -> None:
    """A log of these records, on the disk once this returns."""
    with path.open("wb") as file:
        file.write(_HEAD)
        file.write(records.tobytes())
        file.flush()
        os.fsync(file.fileno())


class ReviewLog:
    """A log file; many may read it while one appends."""

    def __init__(self, path: str | Path, mode: str = "r") -> None:
        """Open to read (`r`), or to append (`a`), which makes the file where there is none."""
        if mode not in ("r", "a"):
            raise OptionError("ReviewLog", [f"mode = {mode!r}: expected 'r' to read or 'a' to append"])
        self.path = Path(path)
        self._lock: Lock | None = None
        self._descriptor: int | None = None
        if mode == "a":
            self._lock = Lock(self.path, f"The review log {self.path}")
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND)
            if os.fstat(self._descriptor).st_size < _HEAD_BYTES and _HEAD.startswith(self.path.read_bytes()):
                os.ftruncate(self._descriptor, 0)
                os.write(self._descriptor, _HEAD)
        try:
            self._check_head()
        except StateError:
            self.close()
            raise
        count = len(self)
        self._last = int(next(self.parts(count - 1))["step"][-1]) if count else -1
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, _HEAD_BYTES + count * RECORD.itemsize)

    def _check_head(self) -> None:
        try:
            with self.path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
        except FileNotFoundError:
            raise StateError(f"{self.path} does not exist: expected a review log, such as that of a run.") from None
        if head == _HEAD:
            return
        try:
            said = json.loads(head)
            version = said["version"] if said["format"] == _FORMAT else None
        except (ValueError, TypeError, KeyError):
            version = None
        if version is None:
            raise DamagedError(f"{self.path} is no review log: its first {_HEAD_BYTES} bytes are not those of one.")
        raise VersionError(
            f"{self.path} is a review log of format version {version!r}; this srt-peft reads version {_VERSION}. "
            "Upgrade: pip install --upgrade srt-peft."
        )

    def __len__(self) -> int:
        return (self.path.stat().st_size - _HEAD_BYTES) // RECORD.itemsize

    def append(
        self, step: int, ids: ArrayLike, signal: ArrayLike, quality: ArrayLike, n_old: int, *, untrained: int = 0
    ) -> None:
        """Write one step's reviews: all of them, or none. A step that is logged again replaces what was there.

        The last `untrained` of them were asked, and not trained on.
        """
        ids = np.asarray(ids)
        rows = np.zeros(max(ids.size, 1), dtype=RECORD)
        rows["step"] = step
        if ids.size:
            rows["id"], rows["signal"], rows["quality"] = ids, signal, quality
            rows["pool"] = ids >= n_old
            rows["untrained"][ids.size - untrained :] = 1
        else:
            rows["id"], rows["signal"] = NOBODY, np.nan
        descriptor = self._writable()
        if step <= self._last:
            self.truncate(step)
        before = os.fstat(descriptor).st_size
        view = memoryview(rows.tobytes())
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except BaseException as error:
            os.ftruncate(descriptor, before)
            if isinstance(error, OSError):
                message = f"{self.path} could not be written ({error.strerror}); it is as it was before step {step}."
                raise StateError(message) from error
            raise
        self._last = step

    def flush(self) -> None:
        """Have all that was appended on the disk."""
        os.fsync(self._writable())

    def truncate(self, step: int) -> int:
        """Drop what was logged at `step` and after, as a run that goes on from there will log it again; how much."""
        steps = self.records()["step"]
        keep = int(np.searchsorted(steps, step, side="left"))
        if keep < steps.size:
            os.ftruncate(self._writable(), _HEAD_BYTES + keep * RECORD.itemsize)
            self._last = int(steps[keep - 1]) if keep else -1
        return int(steps.size) - keep

    def records(self) -> NDArray[Any]:
        """Every whole record so far: an array with the fields of RECORD, read into memory."""
        # Not mapped: a mapping of a file that its writer truncates would end this process.
        with self.path.open("rb") as file:
            file.seek(_HEAD_BYTES)
            return np.fromfile(file, dtype=RECORD)

    def parts(self, start: int = 0, most: int = 1 << 20) -> Iterator[NDArray[Any]]:
        """The whole records from `start` on, so many at a time: a log may be larger than the memory."""
        with self.path.open("rb") as file:
            file.seek(_HEAD_BYTES + start * RECORD.itemsize)
            while (part := np.fromfile(file, dtype=RECORD, count=most)).size:
                yield part

    def counts(self) -> tuple[int, NDArray[np.int64]]:
        """(first step, how many old and new examples were drawn at each step from there on)."""
        records = self.records()
        if records.size == 0:
            return 0, np.zeros((0, 2), dtype=np.int64)
        first, last = int(records["step"][0]), int(records["step"][-1])
        drawn = records[(records["id"] != NOBODY) & (records["untrained"] == 0)]
        table = np.zeros((last - first + 1, 2), dtype=np.int64)
        np.add.at(table, (drawn["step"] - first, drawn["pool"]), 1)
        return first, table

    def check_valid(self) -> None:
        """Raise a StateError where steps go back, or a quality or pool cannot be."""
        last = 0
        for part in self.parts():
            steps = part["step"]
            back = steps[0] < last or np.any(steps[1:] < steps[:-1])
            if back or np.any(part["quality"] > 5) or np.any(part["pool"] > 1):
                raise DamagedError(f"{self.path} is damaged: its steps go back, or a quality or pool is out of range.")
            last = int(steps[-1])

    def close(self) -> None:
        """Let go of the file; harmless twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._lock is not None:
            self._lock.release()

    def _writable(self) -> int:
        if self._descriptor is None:
            raise StateError(f"{self.path} is open for reading; open it with ReviewLog(path, 'a') to write.")
        return self._descriptor

    def __enter__(self) -> ReviewLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
