"""Files, written anew without some examples: each as a whole, beside its place, and then in it.

A folder cannot be renamed over another: the one that was there steps aside, and is removed once the new one is in its
place. Whatever is done here is known by what the files hold, so that it may be done again: what holds nobody of those
who leave stays as it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from srt_peft.data import history, pool as pools, supersedes, tombstones
from srt_peft.data.pool import Pool, among, key_of
from srt_peft.data.tombstones import Tombstones
from srt_peft.errors import LockedError, SRTError, StateError
from srt_peft.review import ReviewLog, ReviewState, files, log
from srt_peft.review.leaving import places, without
from srt_peft.review.log import _HEAD_BYTES
from srt_peft.training import checkpoint
from srt_peft.training.folder import POOLS

PARTS = ("train", "held_out")
Hashes = NDArray[np.uint8]


@dataclass(frozen=True)
class Leaving:
    """Who is to be forgotten: the identities of examples, and the keys of documents of which nothing is left."""

    identities: frozenset[bytes]
    names: frozenset[bytes]
    stones: Tombstones

    def of(self, identity: Hashes) -> NDArray[np.bool_]:
        """Which of these rows are theirs."""
        found = np.zeros(len(identity), dtype=bool)
        if self.identities and len(identity):
            mine = np.frombuffer(b"".join(sorted(self.identities)), np.uint8).reshape(-1, 16)
            for i in np.flatnonzero(among(identity, mine)).tolist():
                found[i] = identity[i].tobytes() in self.identities
        return found


# --- folders --------------------------------------------------------------------------------------------------------


def beside(path: Path) -> tuple[Path, Path]:
    """Where a folder is written, and where the one that was there steps aside."""
    return path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.before")


def mend(path: Path) -> None:
    """Put back, or remove, what a kill has left beside a folder."""
    part, aside = beside(path)
    if aside.exists() and not path.exists():
        aside.rename(path)
    for left in (part, aside):
        if left.exists():
            shutil.rmtree(left)


def anew(path: Path, build: Callable[[Path], None]) -> None:
    """Have a folder built anew in the place of the one that is there."""
    mend(path)
    part, aside = beside(path)
    part.mkdir()
    build(part)
    files.sync_all(part)
    path.rename(aside)
    part.rename(path)
    files.sync(path.parent)
    shutil.rmtree(aside)


def sweep(home: Path, runs: list[Path]) -> None:
    """Put back or remove whatever a kill has left half-done, in the cache and in these runs."""
    for link in (run / POOLS / name for run in runs for name in ("old", "new")):
        if link.is_symlink():
            mend(link.resolve())
    caches = [home / "pools", home / "clusters"]
    inside = [run / name for run in runs for name in ("checkpoints", POOLS)]
    for folder in (*caches, *runs, *inside):
        for left in (*folder.glob(".*.part"), *folder.glob(".*.before")):
            mend(folder / left.name[1:].removesuffix(".part").removesuffix(".before"))
        for left in folder.glob(".*.staged-*"):
            shutil.rmtree(left, ignore_errors=True)
    for left in (path for folder in caches for path in folder.glob(".staged-*/lock")):
        files.Lock(left, f"{left.parent}, where text is being tokenised,").release()
        shutil.rmtree(left.parent, ignore_errors=True)
    new = (".*.new", ".*.new-*", "review/.*.new", "review/state/*.new", "forgotten/.*.new-*")
    for left in (path for run in runs for pattern in new for path in run.glob(pattern)):
        left.unlink(missing_ok=True)
    for left in home.glob("references/.*"):
        left.unlink(missing_ok=True)
    for left in (home / "fetched", *(run / ".push" for run in runs)):  # states, on their way from a hub or to one
        shutil.rmtree(left, ignore_errors=True)


def groups_of(home: Path) -> list[Path]:
    """All that are cached."""
    there = sorted((home / "pools").glob("*")) if (home / "pools").is_dir() else []
    return [path for path in there if not path.name.startswith(".") and path.is_dir()]


# --- texts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Two pools, and what becomes of them."""

    folder: Path
    pools: tuple[Pool, Pool]
    away: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    names: frozenset[bytes]
    """The keys of documents of which nothing is left."""
    pairs: bytes | None
    """What is said beside them, where that is not as it was."""

    @property
    def touched(self) -> bool:
        """Whether they hold somebody."""
        return any(rows.any() for rows in self.away) or self.pairs is not None or any(map(self._known, self.pools))

    def _known(self, pool: Pool) -> bool:
        return any(row.tobytes() in self.names for row in pool.known) if self.names else False


def group(folder: Path, leaving: Leaving, *, own: bool) -> Group:
    """What becomes of two pools; `own` are those of the run, of whose documents it is known that nothing is left."""
    both = tuple(Pool.open(folder / part) for part in PARTS)
    away = tuple(leaving.of(pool.identity) for pool in both)
    names = set(leaving.names) if own else set[bytes]()
    if any(rows.any() for rows in away):
        before, after = set[bytes](), set[bytes]()
        for pool, rows in zip(both, away, strict=True):
            before |= {row.tobytes() for row in pool.key[rows]}
            after |= {row.tobytes() for row in pool.key[~rows]}
        names |= before - after
    names.discard(bytes(16))
    raw, changed = supersedes.check(both[0]), None
    if raw and names:
        kept = supersedes.dumped(supersedes.kept(supersedes.undumped(raw), names))
        changed = kept if kept != raw else None
    return Group(folder, (both[0], both[1]), (away[0], away[1]), frozenset(names), changed)


def write_group(found: Group, to: Path) -> None:
    """The same pools without those who leave, into another folder."""
    lost = np.unique(np.concatenate([p.document[rows] for p, rows in zip(found.pools, found.away, strict=True)]))
    kept = np.concatenate([p.document[~rows] for p, rows in zip(found.pools, found.away, strict=True)])
    gone, left = np.setdiff1d(lost, kept).size, sum(int((~rows).sum()) for rows in found.away)
    for part, pool, rows in zip(PARTS, found.pools, found.away, strict=True):
        about = dict(pool.manifest["about"])
        old = about["report"]
        tokens = sum(int(p.lengths[~r].sum()) for p, r in zip(found.pools, found.away, strict=True))
        about["report"] = old | {
            "documents": old["documents"] - gone, "examples": left, "tokens": tokens,
            "held_out": int((~found.away[1]).sum()), "forgotten": old.get("forgotten", 0) + old["examples"] - left,
        }  # fmt: skip
        if about.get("ids") is not None:
            about["ids"] = [name for name in about["ids"] if key_of(name) not in found.names]
        if found.pairs is not None:
            about["supersedes"] = about["supersedes"] | {"hash": supersedes.digest(found.pairs)}
        elsewhere = np.isin(pool.document, pool.document[~rows], invert=True)  # has an example in the other, at most
        known = {row.tobytes() for row in (*pool.known, *pool.key[elsewhere])} - found.names - {bytes(16)}
        columns = {**pool.columns, "known": np.frombuffer(b"".join(sorted(known)), np.uint8).reshape(-1, 16)}
        pools.write(to / part, columns, np.flatnonzero(~rows), pool.sources, about)
    raw = found.folder / supersedes.FILE
    if raw.is_file():
        (to / supersedes.FILE).write_bytes(raw.read_bytes() if found.pairs is None else found.pairs)


def cached(home: Path, folder: Path, leaving: Leaving, *, own: bool) -> None:
    """Two pools of the cache; if they are damaged, or would hold nothing, they are only a cache, and go."""
    try:
        found = group(folder, leaving, own=own)
    except (SRTError, OSError):
        if own:
            raise
        shutil.rmtree(folder)
        return
    if found.touched:
        drop_references(home, found.pools[0])
        if found.away[0].all() and not own:
            shutil.rmtree(folder)
        else:
            anew(folder, lambda to: write_group(found, to))


def drop_references(home: Path, old: Pool) -> None:
    """What a base was found to make of these texts, a number each: it is made anew of those that are left."""
    for path in (home / "references").glob("*.safetensors"):
        try:
            with safe_open(path, "np") as file:
                of = json.loads(file.metadata()["of"])["text"]
        except (SafetensorError, OSError, KeyError, TypeError, ValueError):
            of = old.fingerprint  # it cannot be used, so it need not be there
        if of == old.fingerprint:
            path.unlink()


def past(home: Path, folder: Path, leaving: Leaving) -> None:
    """A run's history: its texts, its state, its log, and what is known of those that were let go."""
    found, was = group(folder, leaving, own=True), history.open_history(folder)
    let_go, state = leaving.of(was.let_go), ReviewState.open(folder / history.STATE)
    gone = leaving.of(state.columns["identity"])
    if not found.touched and not let_go.any() and not gone.any():
        return

    def build(to: Path) -> None:
        write_group(found, to)
        without(state, gone).snapshot(to / history.STATE)
        with ReviewLog(folder / history.LOG) as reviews:
            log.write(to / history.LOG, log.renumbered(reviews.records(), places(gone)))
        buried = {row.tobytes() for row in was.seen if row.tobytes() in leaving.identities}
        key = next(iter(leaving.stones.sets))[0]
        (to / history.FORGOTTEN).write_bytes((was.forgotten | tombstones.made(key, examples=buried)).dumped())
        about = {name: was.about[name] for name in ("run", "updates", "step", "decks")}
        history.describe(to, was.let_go[~let_go], **about)

    drop_references(home, found.pools[0])
    anew(folder, build)


# --- states ---------------------------------------------------------------------------------------------------------


def saved(path: Path, leaving: Leaving, identity: Callable[[dict[str, str]], dict[str, str]], decks: Any) -> None:
    """A checkpoint: its review state, and what its run was made of."""
    place, said = path / "srt_state", path / "trainer" / "trainer.json"
    state, told = ReviewState.open(place), json.loads(said.read_text())
    gone = leaving.of(state.columns["identity"])
    now = identity(told["identity"])
    if not gone.any() and now == told["identity"]:
        return
    scheduler = files.read_manifest(place)["scheduler"]
    text = json.dumps({**told, "identity": now}, indent=1, sort_keys=True) + "\n"
    parts: dict[str, Callable[[Path], None]] = {"trainer/trainer.json": lambda to: _put(to, text)}
    if gone.any():
        parts["srt_state"] = lambda to: without(state, gone, decks).snapshot(to, scheduler=scheduler)
    checkpoint.revise(path, parts)


def _put(path: Path, text: str) -> None:
    path.write_text(text)


def live(folder: Path, leaving: Leaving, decks: Any) -> None:
    """The state that a run works on, at rest; where its writer was killed, nobody can go on from it, and it goes."""
    if not (folder / files.MANIFEST).is_file():
        for path in folder.glob("columns-*"):
            path.unlink()
        return
    manifest = files.read_manifest(folder)
    if manifest["checksums"] is None:
        (folder / files.MANIFEST).unlink()
        files.sweep(folder, "")
        return
    state = ReviewState.open(folder)
    gone = leaving.of(state.columns["identity"])
    if gone.any():
        left = without(state, gone, decks)
        name = files.next_name(folder)
        sums = files.write_columns(folder / name, left.columns)
        extras = manifest["extras"] | ({"decks": left.columns["reviews"].size} if "reviews" in left.columns else {})
        sizes = {"old": left.n_old, "new": left.n_new, "extras": extras}
        files.write_manifest(folder, {**manifest, **sizes, "file": name, "checksums": sums})
    files.sweep(folder, files.read_manifest(folder)["file"])


def reviews(path: Path, gone: NDArray[np.bool_]) -> bytes:
    """A review log without those who leave."""
    with ReviewLog(path) as found:
        return path.read_bytes()[:_HEAD_BYTES] + log.renumbered(found.records(), places(gone)).tobytes()


def redecked(path: Path, decks: NDArray[np.int64]) -> bytes:
    """The lines of a run's metrics, with what is told of each deck in the order that the decks have then."""
    order = np.argsort(decks, kind="stable")
    order = order[decks[order] >= 0]

    def lines() -> Iterator[str]:
        for raw in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                line = json.loads(raw)
                for name in ("slots", "forgetting"):
                    if name in line:
                        line[name] = [line[name][i] for i in order.tolist() if i < len(line[name])]
                yield json.dumps(line)

    return "".join(f"{line}\n" for line in lines()).encode()


def check_idle_cache(home: Path) -> None:
    """Refuse while text is being tokenised: what is forgotten may be in it."""
    for folder in (home / "pools", home / "clusters"):
        for left in folder.glob(".staged-*"):
            if (left / "lock").exists():
                try:
                    files.Lock(left / "lock", str(left)).release()
                except LockedError:
                    raise StateError(
                        f"Text is being tokenised in {folder} at this moment, perhaps what is to be forgotten. "
                        "Nothing was changed: try again once that has ended."
                    ) from None
