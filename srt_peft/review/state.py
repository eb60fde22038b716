"""The review state: the columns of all examples, their two pools, the clock, and where they live.

Rows 0..old-1 are the old pool, the rest are the new one. A live state is writable, in memory or memory-mapped
from a folder; a snapshot is the same folder, whole and closed. `rows` says what a row holds, `files` how it lies
on disk.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import DamagedError, OptionError, ProtocolError, StateError
from srt_peft.review import files, rows, sm2
from srt_peft.review.carried import carry
from srt_peft.review.decks import deck_of
from srt_peft.review.files import Columns, Layout
from srt_peft.review.options import check


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
        self._closed = folder is not None and writer is None
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
        deck: ArrayLike | None = None,
        extras: rows.Extras = MappingProxyType({}),
        past: ReviewState | None = None,
    ) -> ReviewState:
        """A state in which nothing was reviewed yet; first due times are spread over the first `stagger` steps.

        `deck` is the group that each example is scheduled with; `extras` are the optional columns, as in `rows`.
        `past` is an earlier update's state, whose examples are the first of the old ones: the clock goes on from there.
        """
        check("ReviewState.create", old=old, new=new, initial_ease=initial_ease, stagger=stagger)
        old, new = int(old), int(new)
        hashes = None if identity is None else rows.identities(identity, old + new)
        groups = None if deck is None else deck_of(deck, old + new)
        if groups is not None:
            extras = {**extras, "decks": int(groups.max(initial=0)) + 1}
        if past is not None:
            _check_past(past, old, hashes)
            extras = {**extras, "before": 1}
            if groups is not None:
                extras["decks"] = max(extras["decks"], rows.extras_of(past.columns).get("decks", 0))
        if folder is not None and _is_vouched(Path(folder)):
            raise StateError(
                f"{folder} holds a review state already, and creating one there would lose it. Open it with "
                "ReviewState.open(folder, 'r+'), or name another folder."
            )

        def fill(columns: Columns) -> None:
            columns["clock"][0] = 0 if past is None else past.step
            rows.begin(columns, slice(0, old), initial_ease, stagger)
            rows.begin(columns, slice(old, old + new), initial_ease, stagger)
            rows.begin_extras(columns)
            if hashes is not None:
                columns["identity"][:] = hashes
            if groups is not None:
                columns["deck"][:] = groups
            if past is not None:
                carry(columns, past.columns)

        return cls._made(rows.layout(old + new, identity=hashes is not None, extras=extras), old, folder, fill)

    @classmethod
    def open(cls, folder: str | Path, mode: Literal["r", "r+"] = "r", *, live: bool = False) -> ReviewState:
        """Map a state that lies in a folder: `r` to read, `r+` to write (one process at a time).

        A state that is being written cannot vouch for its content. `live=True` reads it all the same.
        """
        folder = Path(folder)
        if mode not in ("r", "r+"):
            raise OptionError("ReviewState.open", [f"mode = {mode!r}: expected 'r' to read or 'r+' to write"])
        manifest = files.read_manifest(folder)
        if mode == "r":
            while True:
                try:
                    return cls(
                        cls._verified(folder, manifest, mode, live=live), manifest["old"], folder=folder, writer=None
                    )
                except (StateError, OSError):
                    before, manifest = manifest, files.read_manifest(folder)
                    if manifest == before:  # else it was replaced by a newer one while we looked
                        raise
        writer = files.Writer(folder)
        try:
            manifest = files.read_manifest(folder)
            columns = cls._verified(folder, manifest, mode, live=False)
            writer.take_over(manifest, columns)
        except BaseException:
            writer.lock.release()
            raise
        return cls(columns, manifest["old"], folder=folder, writer=writer)

    @staticmethod
    def _verified(folder: Path, manifest: dict[str, Any], mode: str, *, live: bool) -> Columns:
        if manifest["checksums"] is None and not live:
            raise StateError(
                f"The review state in {folder} is being written now, or its writer was killed before it could close "
                "it. To look at it as it changes, open it with live=True; to go on from the newest snapshot, "
                "ReviewState.restore(snapshot, folder) or load_scheduler(snapshot, folder=folder); if there is none "
                "yet, delete the folder and begin anew."
            )
        path = folder / manifest["file"]
        n = manifest["old"] + manifest["new"]
        table = rows.layout(n, identity=manifest["identity"], extras=manifest["extras"])
        columns = files.map_columns(path, table, mode)
        if manifest["checksums"] is not None:
            files.verify(path, columns, manifest["checksums"])
            if columns["clock"][0] < 0:
                raise DamagedError(
                    f"The review state in {folder} was closed in the middle of a review, which was interrupted: some "
                    "of its examples have that review and others have not. Restore it from a snapshot."
                )
        return columns

    @classmethod
    def restore(cls, snapshot: str | Path, folder: str | Path | None = None) -> ReviewState:
        """A writable copy of a snapshot, in memory or memory-mapped in `folder`, whatever state lay there before."""
        if folder is not None and Path(folder).resolve() == Path(snapshot).resolve():
            raise StateError(
                f"{folder} is the snapshot itself, which stays as it is. Name another folder for the copy."
            )
        source = cls.open(snapshot)
        table = {name: (column.dtype, column.shape) for name, column in source.columns.items()}

        def fill(columns: Columns) -> None:
            for name, column in source.columns.items():
                columns[name][:] = column

        return cls._made(table, source.n_old, folder, fill)

    @classmethod
    def _made(cls, table: Layout, old: int, folder: str | Path | None, fill: Callable[[Columns], None]) -> ReviewState:
        """New columns, filled; in a folder they take the place of what was there only once they are."""
        if folder is None:
            columns = rows.zeros(table)
            fill(columns)
            return cls(columns, old, folder=None, writer=None)
        writer = files.Writer(Path(folder))
        try:
            columns = _put_in_place(writer, table, old, fill)
        except BaseException:
            writer.lock.release()
            raise
        return cls(columns, old, folder=Path(folder), writer=writer)

    # --- what a person reads, in the paper's units ----------------------------------------------------------

    @property
    def step(self) -> int:
        """t: the step whose draw comes next."""
        return int(self.columns["clock"][0])

    @step.setter
    def step(self, value: int) -> None:
        self.columns["clock"][0] = value
        self.revision += 1

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
        """Which are set aside and never due, by request or superseded, a copy."""
        return self.columns["suspended"].astype(bool)

    @property
    def superseded(self) -> NDArray[np.bool_]:
        """Which are set aside because another example replaces them, a copy."""
        return (self.columns["suspended"] & rows.SUPERSEDED) > 0

    @property
    def reference(self) -> NDArray[np.float32] | None:
        """The NLL that the signal of each is held against, a copy, where the state keeps it; NaN where none is."""
        column = self.columns.get("reference")
        return None if column is None else column.copy()

    @property
    def deck(self) -> NDArray[np.int64] | None:
        """The deck of each, a copy, where there are decks."""
        column = self.columns.get("deck")
        return None if column is None else column.astype(np.int64)

    @property
    def forgetting(self) -> NDArray[np.float64] | None:
        """f: what each deck has lost, in nats a token, a copy, where there are decks."""
        column = self.columns.get("forgetting")
        return None if column is None else column.copy()

    @property
    def identity(self) -> NDArray[np.uint8] | None:
        """The content hash of each, a copy, where the state keeps them."""
        column = self.columns.get("identity")
        return None if column is None else column.copy()

    # --- changes --------------------------------------------------------------------------------------------

    def suspend(self, ids: ArrayLike) -> None:
        """Set examples aside: they keep their state, and are never due until revived."""
        column, rows_ = self._named(ids)
        column[rows_] |= rows.BY_REQUEST
        self.revision += 1

    def revive(self, ids: ArrayLike) -> None:
        """Let suspended examples fall due again, as their state says; those that are superseded stay aside."""
        column, rows_ = self._named(ids)
        column[rows_] &= ~np.uint8(rows.BY_REQUEST)
        self.revision += 1

    def supersede(self, ids: ArrayLike) -> None:
        """Say which examples others replace, all of them: these are set aside, and whoever was before is revived."""
        column, rows_ = self._named(ids)
        column &= ~np.uint8(rows.SUPERSEDED)
        column[rows_] |= rows.SUPERSEDED
        self.revision += 1

    def _named(self, ids: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The column of who is suspended, to write to, and the rows that these ids name."""
        given = np.atleast_1d(np.asarray(ids))
        if given.size and given.dtype.kind not in "iu":
            raise ProtocolError(f"ids of dtype {given.dtype} name no examples: expected whole numbers.")
        beyond = given[(given < 0) | (given >= self.n)]
        if beyond.size:
            raise ProtocolError(f"id {beyond[0]} is no example of this state: ids run from 0 to {self.n - 1}.")
        return self.writable().columns["suspended"], given.astype(np.int64)

    def grow(
        self,
        *,
        old: int = 0,
        new: int = 0,
        initial_ease: float = 2.5,
        stagger: int = 5,
        identity: ArrayLike | None = None,
        deck: ArrayLike | None = None,
    ) -> None:
        """Add fresh examples at the end of each pool. Growing old shifts the ids of new: old stays in front.

        Ease and stagger are those given here; a scheduler's own are in its `options`. Who is asked is asked no more.
        """
        check("ReviewState.grow", old=old, new=new, initial_ease=initial_ease, stagger=stagger)
        old, new = int(old), int(new)
        before, n_old, n = self.writable().columns, self.n_old, self.n
        for name, given, what in (("identity", identity, "content hashes"), ("deck", deck, "decks")):
            if (name in before) != (given is not None):
                keeps = "keeps" if name in before else "keeps no"
                raise OptionError("ReviewState.grow", [f"{name}: this state {keeps} {what}; give them accordingly"])
        hashes = None if identity is None else rows.identities(identity, old + new)
        groups = None if deck is None else deck_of(deck, old + new)
        extras = rows.extras_of(before)
        if groups is not None:
            extras["decks"] = max(extras["decks"], int(groups.max(initial=0)) + 1)

        def fill(columns: Columns) -> None:
            columns["clock"][:] = before["clock"]
            rows.begin_extras(columns)
            for name in before.keys() & {"reviews", "forgetting", "known"}:
                columns[name][: before[name].size] = before[name]
            for name in (name for name, column in before.items() if len(column) == n and name not in rows.ONCE):
                columns[name][:n_old] = before[name][:n_old]
                columns[name][n_old + old : n + old] = before[name][n_old:]
            rows.begin(columns, slice(n_old, n_old + old), initial_ease, stagger)
            rows.begin(columns, slice(n + old, n + old + new), initial_ease, stagger)
            if hashes is not None:
                columns["identity"][n_old : n_old + old] = hashes[:old]
                columns["identity"][n + old :] = hashes[old:]
            if groups is not None:
                columns["deck"][n_old : n_old + old] = groups[:old]
                columns["deck"][n + old :] = groups[old:]

        table = rows.layout(n + old + new, identity=hashes is not None, extras=extras)
        if self._writer is None:
            columns = rows.zeros(table)
            fill(columns)
        else:
            columns = _put_in_place(self._writer, table, n_old + old, fill)
        self.columns, self.n_old = columns, n_old + old
        self.revision += 1

    def writable(self) -> ReviewState:
        """The state, if it may be changed; an error that says why not, else."""
        if self._closed:
            raise StateError(f"The review state in {self.folder} is open to read only, or closed: open it with 'r+'.")
        return self.whole()

    def whole(self) -> ReviewState:
        """The state, unless a review of it was interrupted half-way."""
        if self.step < 0:
            raise StateError(
                "A review of this state was interrupted: some examples have it and others have not. Restore the state "
                "from a snapshot, or load a state_dict."
            )
        return self

    # --- the disk -------------------------------------------------------------------------------------------

    def snapshot(self, folder: str | Path, *, scheduler: dict[str, Any] | None = None) -> None:
        """Write a whole, closed copy to a folder; a snapshot that lay there before is replaced in one step."""
        folder = Path(folder)
        lock = files.Lock(folder / "lock", f"The review state in {folder}")
        try:
            if (folder / files.MANIFEST).exists() and not _is_vouched(folder):
                raise StateError(
                    f"{folder} holds a live review state, which a snapshot would overwrite. Name another folder for it."
                )
            name = files.next_name(folder)
            sums = files.write_columns(folder / name, self.whole().columns)
            manifest = _described(name, self.columns, self.n_old, checksums=sums, scheduler=scheduler)
            files.write_manifest(folder, manifest)
            files.sweep(folder, name)
        finally:
            (folder / "lock").unlink()
            lock.release()

    def close(self) -> None:
        """Close a live state in a folder: its checksums are written, its lock is let go. Harmless twice."""
        if self._close is not None:
            self._close()
            self.columns = {name: _read_only(column) for name, column in self.columns.items()}
            self._writer, self._closed = None, True

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
        for part in files.chunks(self.n):
            for rule, wrong in rows.broken({name: self.columns[name][part] for name in rows.ROW}, self.step).items():
                if wrong.any():
                    count, first = broken.get(rule, (0, part.start + int(np.argmax(wrong))))
                    broken[rule] = (count + int(wrong.sum()), first)
        if "deck" in self.columns and self.n and self.columns["deck"].max() >= self.columns["reviews"].size:
            broken["a deck is one of those that are counted"] = (1, int(np.argmax(self.columns["deck"])))
        if not 0 <= self.step <= sm2.MAX_STEP:
            broken[f"the clock lies between 0 and {sm2.MAX_STEP}"] = (1, self.step)
        if broken:
            lines = [f"{rule}: broken by {count}, first by {first}" for rule, (count, first) in broken.items()]
            raise StateError("\n  ".join(["The review state breaks its own rules:", *lines]))


def _put_in_place(writer: files.Writer, table: Layout, old: int, fill: Callable[[Columns], None]) -> Columns:
    name, columns = writer.allocate(table)
    fill(columns)
    writer.take_over(_described(name, columns, old, checksums=None), columns)
    return columns


def _check_past(past: ReviewState, old: int, hashes: NDArray[np.uint8] | None) -> None:
    """Refuse a past whose examples are not the first of the old ones."""
    past.whole()
    if past.n > old:
        fault = f"past has {past.n} examples, and old = {old}: expected all of them among the old ones, and first"
        raise OptionError("ReviewState.create", [fault])
    theirs = past.columns.get("identity")
    if theirs is not None and hashes is not None and not np.array_equal(theirs, hashes[: past.n]):
        fault = f"past is of other examples than the first {past.n} old ones (their content hashes differ)"
        raise OptionError("ReviewState.create", [fault])


def _described(name: str, columns: Columns, old: int, **more: Any) -> dict[str, Any]:
    """What `state.json` says of these columns."""
    new, extras = columns["due"].size - old, rows.extras_of(columns)
    return files.describe(name, old, new, identity="identity" in columns, extras=extras, **more)


def _is_vouched(folder: Path) -> bool:
    """Whether a folder holds a state that somebody closed; what a killed writer left is nobody's loss."""
    return (folder / files.MANIFEST).exists() and files.read_manifest(folder)["checksums"] is not None


def _read_only(column: files.Array) -> files.Array:
    view = column.view()
    view.flags.writeable = False
    return view
