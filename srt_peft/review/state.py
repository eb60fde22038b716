"""The review state: what is known about each example, a column a quantity, a row an example.

    column        bytes  meaning
    due             4    d: the step from which the example may be drawn again
    interval        4    I: steps between its last review and d
    signal          4    its last mean NLL in nats (float); NaN until there is one
    ease            2    E in hundredths
    repetitions     2    n: reviews recalled in a row
    visits          2    reviews in all, saturating
    suspended       1    1: in the state, but never due
    identity       16    optional: a hash of the example's content, so that state can follow it elsewhere
    clock           8    once, not an example: t, the step whose draw comes next

Rows 0..old-1 are the old pool, the rest are the new one. A live state is writable, in memory or memory-mapped
from a folder; a snapshot is the same folder, whole and closed. `files` says how it lies on disk.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import OptionError, ProtocolError, StateError
from srt_peft.review import files, sm2
from srt_peft.review.files import Columns, Layout
from srt_peft.review.options import check, hundredths

ROW = {
    "due": "<i4",
    "interval": "<i4",
    "signal": "<f4",
    "ease": "<i2",
    "repetitions": "<i2",
    "visits": "<i2",
    "suspended": "<u1",
}
IDENTITY_BYTES = 16
MAX_VISITS = 2**15 - 1


def layout(rows: int, *, identity: bool) -> Layout:
    """The columns file of a state with so many rows. Wide columns come first, so that each is aligned."""
    table: Layout = {"clock": (np.dtype("<i8"), (1,))}
    if identity:
        table["identity"] = (np.dtype("<u1"), (rows, IDENTITY_BYTES))
    return table | {name: (np.dtype(code), (rows,)) for name, code in ROW.items()}


class ReviewState:
    """The columns, their two pools, and where they live."""

    def __init__(self, columns: Columns, n_old: int, *, folder: Path | None, writer: files.Writer | None) -> None:
        """For the constructors below; use `create`, `open` or `restore`."""
        self.columns = columns
        self.n_old = n_old
        self.folder = folder
        self.revision = 0
        """Counts what changes which examples there are or may be drawn; whoever indexes the state watches it."""
        self._writer = writer
        # However the last reference to a live state goes, its folder is left closed and whole.
        self._close = weakref.finalize(self, writer.close) if writer else None

    # --- constructors -----------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        old: int,
        new: int,
        *,
        folder: str | Path | None = None,
        initial_ease: float = 2.5,
        stagger: int = 5,
        identity: ArrayLike | None = None,
    ) -> ReviewState:
        """A state in which nothing was reviewed yet; first due times are spread over the first `stagger` steps."""
        check("ReviewState.create", old=old, new=new, initial_ease=initial_ease, stagger=stagger)
        hashes = None if identity is None else _identity(identity, old + new)
        if folder is not None and (Path(folder) / files.MANIFEST).exists():
            raise StateError(
                f"{folder} holds a review state already, and creating one there would lose it. Open it with "
                "ReviewState.open(folder, 'r+'), or name an empty folder."
            )
        state = cls._allocate(layout(old + new, identity=hashes is not None), old, new, folder)
        if hashes is not None:
            state.columns["identity"][:] = hashes
        _begin(state.columns, slice(0, old), initial_ease, stagger)
        _begin(state.columns, slice(old, old + new), initial_ease, stagger)
        return state

    @classmethod
    def open(cls, folder: str | Path, mode: Literal["r", "r+"] = "r", *, live: bool = False) -> ReviewState:
        """Map a state that lies in a folder: `r` to read, `r+` to write (one process at a time).

        A state that is being written cannot vouch for its content. `live=True` reads it all the same.
        """
        folder = Path(folder)
        if mode not in ("r", "r+"):
            raise OptionError("ReviewState.open", [f"mode = {mode!r}: expected 'r' to read or 'r+' to write"])
        manifest = files.read_manifest(folder)
        writer = files.Writer(folder) if mode == "r+" else None
        try:
            if writer:  # what was read before the lock was ours may have changed since
                manifest = files.read_manifest(folder)
            columns = cls._verified(folder, manifest, mode, live=live)
        except BaseException:
            if writer:
                writer.close()
            raise
        if writer:
            writer.take_over(manifest, columns)
        return cls(columns, manifest["old"], folder=folder, writer=writer)

    @staticmethod
    def _verified(folder: Path, manifest: dict[str, Any], mode: str, *, live: bool) -> Columns:
        if manifest["checksums"] is None and not (live and mode == "r"):
            raise StateError(
                f"The review state in {folder} is being written now, or its writer was killed before it could close "
                "it. To look at it as it changes, open it with live=True; to go on from it, restore the newest "
                "snapshot: ReviewState.restore(snapshot, folder)."
            )
        path = folder / manifest["file"]
        table = layout(manifest["old"] + manifest["new"], identity=manifest["identity"])
        columns = files.map_columns(path, table, mode)
        if manifest["checksums"] is not None:
            files.verify(path, columns, manifest["checksums"])
        return columns

    @classmethod
    def restore(cls, snapshot: str | Path, folder: str | Path | None = None) -> ReviewState:
        """A writable copy of a snapshot, in memory or memory-mapped in `folder`, whatever state lay there before."""
        source = cls.open(snapshot)
        table = {name: (column.dtype, column.shape) for name, column in source.columns.items()}
        state = cls._allocate(table, source.n_old, source.n_new, folder)
        for name, column in source.columns.items():
            state.columns[name][:] = column
        return state

    @classmethod
    def _allocate(cls, table: Layout, old: int, new: int, folder: str | Path | None) -> ReviewState:
        if folder is None:
            return cls(_zeros(table), old, folder=None, writer=None)
        writer = files.Writer(Path(folder))
        return cls(writer.allocate(table, old, new), old, folder=Path(folder), writer=writer)

    # --- what a person reads, in the paper's units ----------------------------------------------------------

    @property
    def step(self) -> int:
        """t: the step whose draw comes next."""
        return int(self.columns["clock"][0])

    @step.setter
    def step(self, value: int) -> None:
        self.columns["clock"][0] = value

    @property
    def n(self) -> int:
        """How many examples there are, in both pools."""
        return int(self.columns["due"].size)

    @property
    def n_new(self) -> int:
        """How many examples the new pool has."""
        return self.n - self.n_old

    @property
    def ease(self) -> NDArray[np.float64]:
        """E, a copy, in the paper's units."""
        return self.columns["ease"] / 100.0

    @property
    def repetitions(self) -> NDArray[np.int64]:
        """n, a copy."""
        return self.columns["repetitions"].astype(np.int64)

    @property
    def interval(self) -> NDArray[np.int64]:
        """I in steps, a copy."""
        return self.columns["interval"].astype(np.int64)

    @property
    def due(self) -> NDArray[np.int64]:
        """d, the step from which each may be drawn, a copy."""
        return self.columns["due"].astype(np.int64)

    @property
    def signal(self) -> NDArray[np.float32]:
        """The last mean NLL of each in nats, a copy; NaN where there was none."""
        return self.columns["signal"].copy()

    @property
    def visits(self) -> NDArray[np.int64]:
        """How often each was reviewed, a copy."""
        return self.columns["visits"].astype(np.int64)

    @property
    def suspended(self) -> NDArray[np.bool_]:
        """Which are set aside and never due, a copy."""
        return self.columns["suspended"].astype(bool)

    @property
    def identity(self) -> NDArray[np.uint8] | None:
        """The content hash of each, a copy, where the state keeps them."""
        column = self.columns.get("identity")
        return None if column is None else column.copy()

    # --- changes --------------------------------------------------------------------------------------------

    def suspend(self, ids: ArrayLike) -> None:
        """Set examples aside: they keep their state, and are never due until revived."""
        self._set_suspended(ids, 1)

    def revive(self, ids: ArrayLike) -> None:
        """Let suspended examples fall due again, as their state says."""
        self._set_suspended(ids, 0)

    def _set_suspended(self, ids: ArrayLike, value: int) -> None:
        rows = np.atleast_1d(np.asarray(ids, dtype=np.int64))
        beyond = rows[(rows < 0) | (rows >= self.n)]
        if beyond.size:
            raise ProtocolError(f"id {beyond[0]} is no example of this state: ids run from 0 to {self.n - 1}.")
        self._writable().columns["suspended"][rows] = value
        self.revision += 1

    def grow(
        self,
        *,
        old: int = 0,
        new: int = 0,
        initial_ease: float = 2.5,
        stagger: int = 5,
        identity: ArrayLike | None = None,
    ) -> None:
        """Add fresh examples at the end of each pool. Growing old shifts the ids of new: old stays in front."""
        check("ReviewState.grow", old=old, new=new, initial_ease=initial_ease, stagger=stagger)
        before, n_old, n = self._writable().columns, self.n_old, self.n
        if ("identity" in before) != (identity is not None):
            keeps = "keeps" if "identity" in before else "keeps no"
            raise OptionError(
                "ReviewState.grow", [f"identity: this state {keeps} content hashes; give them accordingly"]
            )
        hashes = None if identity is None else _identity(identity, old + new)
        table = layout(n + old + new, identity=hashes is not None)
        self.n_old = n_old + old
        self.columns = self._writer.allocate(table, self.n_old, n - n_old + new) if self._writer else _zeros(table)
        self.step = int(before["clock"][0])
        for name in before.keys() - {"clock"}:
            self.columns[name][:n_old] = before[name][:n_old]
            self.columns[name][self.n_old : n + old] = before[name][n_old:]
        _begin(self.columns, slice(n_old, self.n_old), initial_ease, stagger)
        _begin(self.columns, slice(n + old, self.n), initial_ease, stagger)
        if hashes is not None:
            self.columns["identity"][n_old : self.n_old] = hashes[:old]
            self.columns["identity"][n + old :] = hashes[old:]
        self.revision += 1

    def _writable(self) -> ReviewState:
        if self.folder is not None and self._writer is None:
            raise StateError(f"The review state in {self.folder} is open to read only; open it with 'r+' to change it.")
        return self

    # --- the disk -------------------------------------------------------------------------------------------

    def snapshot(self, folder: str | Path, *, scheduler: dict[str, Any] | None = None) -> None:
        """Write a whole, closed copy to a folder; a snapshot that lay there before is replaced in one step."""
        folder = Path(folder)
        if (folder / files.MANIFEST).exists() and files.read_manifest(folder)["checksums"] is None:
            raise StateError(
                f"{folder} holds a live review state, which a snapshot would overwrite. Name another folder for it."
            )
        folder.mkdir(parents=True, exist_ok=True)
        name = files.next_name(folder)
        sums = files.write_columns(folder / name, self.columns)
        manifest = files.describe(
            name, self.n_old, self.n_new, identity="identity" in self.columns, checksums=sums, scheduler=scheduler
        )
        files.write_manifest(folder, manifest)
        files.sweep(folder, name)

    def close(self) -> None:
        """Close a live state in a folder: its checksums are written, its lock is let go. Harmless twice."""
        if self._close is not None:
            self._close()
            self.columns = {name: _read_only(column) for name, column in self.columns.items()}
            self._writer = None

    def __enter__(self) -> ReviewState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else f"in {self.folder}"
        return f"<ReviewState of {self.n_old:,} old and {self.n_new:,} new examples at step {self.step}, {where}>"

    # --- what must hold -------------------------------------------------------------------------------------

    def check_valid(self) -> None:
        """Raise a StateError that lists every rule that some example breaks; one pass over the columns."""
        broken: dict[str, tuple[int, int]] = {}
        for rows in files.chunks(self.n):
            for rule, wrong in _wrong({name: self.columns[name][rows] for name in ROW}, self.step).items():
                if wrong.any():
                    count, first = broken.get(rule, (0, rows.start + int(np.argmax(wrong))))
                    broken[rule] = (count + int(wrong.sum()), first)
        if not 0 <= self.step <= sm2.MAX_STEP:
            broken[f"the clock lies between 0 and {sm2.MAX_STEP}"] = (1, self.step)
        if broken:
            lines = [f"{rule}: broken by {count}, first by {first}" for rule, (count, first) in broken.items()]
            raise StateError("\n  ".join(["The review state breaks its own rules:", *lines]))


def _wrong(c: Columns, step: int) -> dict[str, NDArray[np.bool_]]:
    """For each rule, which rows break it."""
    due, interval, visits = (c[name].astype(np.int64) for name in ("due", "interval", "visits"))
    return {
        "ease is at least 1.00": c["ease"] < 100,
        "the interval lies between 1 and 2**30": (interval < 1) | (interval > sm2.MAX_INTERVAL),
        "repetitions lie between 0 and the visits": (c["repetitions"] < 0) | (c["repetitions"] > visits),
        "visits are not negative": visits < 0,
        "due is not negative": due < 0,
        "what was reviewed is due one interval after a step that has passed": (visits > 0) & (due - interval >= step),
        "what was reviewed has a signal": (visits > 0) & np.isnan(c["signal"]),
        "suspended is 0 or 1": c["suspended"] > 1,
    }


def _begin(columns: Columns, rows: slice, initial_ease: float, stagger: int) -> None:
    """Make fresh rows: never seen, first due within the next `stagger` steps, dealt out in turn."""
    for part in files.chunks(rows.stop - rows.start):
        at = slice(rows.start + part.start, rows.start + part.stop)
        columns["due"][at] = columns["clock"][0] + np.arange(part.start, part.stop) % stagger
        columns["interval"][at] = 1
        columns["signal"][at] = np.nan
        columns["ease"][at] = hundredths(initial_ease)
        for name in ("repetitions", "visits", "suspended"):
            columns[name][at] = 0


def _zeros(table: Layout) -> Columns:
    return {name: np.zeros(shape, dtype) for name, (dtype, shape) in table.items()}


def _read_only(column: files.Array) -> files.Array:
    view = column.view()
    view.flags.writeable = False
    return view


def _identity(hashes: ArrayLike, rows: int) -> NDArray[np.uint8]:
    array = np.asarray(hashes)
    if array.dtype != np.uint8 or array.shape != (rows, IDENTITY_BYTES):
        fault = f"identity is {array.dtype} of shape {array.shape}: expected uint8 of shape ({rows}, {IDENTITY_BYTES})"
        raise OptionError("the review state", [fault])
    return array
