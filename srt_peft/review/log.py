"""The review log: what was asked, when, and how well it was recalled. Append-only.

    bytes 0..63   a line of JSON that says what this is, padded with spaces, ended by a newline
    then          a record of 16 bytes for each review, little-endian:
                  step i4, id i4, signal f4 (NLL in nats), quality u1, pool u1 (0 old, 1 new), two zero bytes

A step in which nothing was drawn leaves one record with id -1, so that the log knows every step. A step's
records are written at once. A record cut short by a kill is not read, and the next writer drops it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import DamagedError, StateError, VersionError
from srt_peft.review.files import Lock

RECORD = np.dtype(
    [("step", "<i4"), ("id", "<i4"), ("signal", "<f4"), ("quality", "u1"), ("pool", "u1"), ("zero", "<u2")]
)
NOBODY = -1
_HEAD_BYTES = 64
_FORMAT, _VERSION = "srt_peft review log", 1
_HEAD = json.dumps({"format": _FORMAT, "version": _VERSION}).encode().ljust(_HEAD_BYTES - 1) + b"\n"


class ReviewLog:
    """A log file; many may read it while one appends."""

    def __init__(self, path: str | Path, mode: str = "r") -> None:
        """Open to read (`r`), or to append (`a`), which makes the file where there is none."""
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
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, _HEAD_BYTES + len(self) * RECORD.itemsize)

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

    def append(self, step: int, ids: ArrayLike, signal: ArrayLike, quality: ArrayLike, n_old: int) -> None:
        """Write one step's reviews, in one go."""
        ids = np.asarray(ids)
        rows = np.zeros(max(ids.size, 1), dtype=RECORD)
        rows["step"] = step
        if ids.size:
            rows["id"], rows["signal"], rows["quality"] = ids, signal, quality
            rows["pool"] = ids >= n_old
        else:
            rows["id"], rows["signal"] = NOBODY, np.nan
        view = memoryview(rows.tobytes())
        while view:
            view = view[os.write(self._writable(), view) :]

    def flush(self) -> None:
        """Have all that was appended on the disk."""
        os.fsync(self._writable())

    def truncate(self, step: int) -> int:
        """Drop what was logged at `step` and after, as a run that goes on from there will log it again; how much."""
        records = self.records()
        keep = int(np.searchsorted(records["step"], step, side="left"))
        dropped = records.size - keep
        del records
        if dropped:
            os.ftruncate(self._writable(), _HEAD_BYTES + keep * RECORD.itemsize)
        return dropped

    def records(self) -> NDArray[Any]:
        """Every whole record so far, memory-mapped: an array with the fields of RECORD."""
        count = len(self)
        if count == 0:
            return np.empty(0, dtype=RECORD)
        return np.memmap(self.path, dtype=RECORD, mode="r", offset=_HEAD_BYTES, shape=(count,))

    def counts(self) -> tuple[int, NDArray[np.int64]]:
        """(first step, how many old and new examples were reviewed at each step from there on)."""
        records = self.records()
        if records.size == 0:
            return 0, np.zeros((0, 2), dtype=np.int64)
        first, last = int(records["step"][0]), int(records["step"][-1])
        drawn = records[records["id"] != NOBODY]
        table = np.zeros((last - first + 1, 2), dtype=np.int64)
        np.add.at(table, (drawn["step"] - first, drawn["pool"]), 1)
        return first, table

    def check_valid(self) -> None:
        """Raise a StateError where steps go back, or a quality or pool cannot be."""
        records = self.records()
        if np.any(np.diff(records["step"]) < 0) or np.any(records["quality"] > 5) or np.any(records["pool"] > 1):
            raise DamagedError(f"{self.path} is damaged: its steps go back, or a quality or pool is out of range.")

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
