"""A run, held against its receipts: nothing that was forgotten is in it, and what is left is whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srt_peft.data import history, supersedes, tombstones
from srt_peft.data.ingest import home
from srt_peft.data.pool import Pool, key_of
from srt_peft.data.tombstones import FORGOTTEN, Tombstones
from srt_peft.errors import SRTError
from srt_peft.lifecycle import erasing
from srt_peft.review import ReviewState, files
from srt_peft.training import checkpoint
from srt_peft.training.folder import PENDING, POOLS, REVIEW, check_run


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    what: str
    fault: str
    """Empty where it is as it must be."""


def audit(run: Path) -> list[Check]:
    """All that was looked at, in order."""
    check_run(run, "the audit")
    root = home()
    stones = tombstones.load(root) | tombstones.read(run / FORGOTTEN / tombstones.FILE)
    return list(_checks(run, root, stones))


def _checks(run: Path, root: Path, stones: Tombstones) -> Iterator[Check]:
    begun = (run / FORGOTTEN / PENDING).is_file()
    yield Check("nothing is half forgotten", f"complete it: srt-peft forget {run}" if begun else "")
    for path in sorted((run / FORGOTTEN).glob("receipt-*.json")):
        yield _check(f"{FORGOTTEN}/{path.name}", lambda path=path: _receipt(path, stones))  # type: ignore[misc]
    prepared = (run / history.FOLDER).is_dir() and not (run / POOLS).is_dir()  # and not begun: it has no pools yet
    own = {} if prepared else {f"{POOLS}/{name}": run / POOLS / name for name in ("old", "new")}
    every = own | {f"cache {path.name}": path for path in erasing.groups_of(root)}
    if (run / history.FOLDER).is_dir():
        every[history.FOLDER] = run / history.FOLDER
        yield _check(f"{history.FOLDER}, state and what was let go", lambda: _past(run / history.FOLDER, stones))
    for name, folder in every.items():
        yield _check(name, lambda folder=folder: _group(folder, stones))  # type: ignore[misc]
    for path in checkpoint.all_of(run):
        yield _check(f"checkpoints/{path.name}", lambda path=path: _checkpoint(path, stones))  # type: ignore[misc]
    live = run / REVIEW / "state"
    if (live / files.MANIFEST).is_file():
        yield _check(f"{REVIEW}/state", lambda: _state(live, stones))
    if (run / supersedes.FILE).is_file():
        yield _check(supersedes.FILE, lambda: _pairs(run, stones))
    yield _check("nothing is left of what was interrupted", lambda: _leftovers(run, root))


def _check(what: str, look: Callable[[], str]) -> Check:
    try:
        return Check(what, look())
    except (SRTError, OSError) as error:
        return Check(what, str(error))


def _receipt(path: Path, stones: Tombstones) -> str:
    raw = path.read_bytes()
    try:
        said = json.loads(raw)
    except ValueError:
        said = None
    if not isinstance(said, dict) or files.vouched(said) != raw:
        return "it is damaged: its content does not match its own check"
    known = {row.hex() for (_, kind), rows in stones.sets.items() if kind == "examples" for row in rows}
    lost = len(set(said["tombstones"]) - known)
    return f"{lost:,} of its tombstones are lost: restore {FORGOTTEN}/{tombstones.FILE} from a copy" if lost else ""


def _told(count: int) -> str:
    return f"holds {count:,} examples that were forgotten" if count else ""


def _group(folder: Path, stones: Tombstones) -> str:
    both = [Pool.open(folder / part) for part in erasing.PARTS]
    supersedes.check(both[0])
    away = [stones.of("examples", pool.identity) | stones.of("documents", pool.key) for pool in both]
    return _told(int(np.concatenate(away).sum()))


def _past(folder: Path, stones: Tombstones) -> str:
    past, state = history.open_history(folder), ReviewState.open(folder / history.STATE)
    held = stones.of("examples", state.columns["identity"]).sum() + stones.of("examples", past.let_go).sum()
    return _told(int(held))


def _checkpoint(path: Path, stones: Tombstones) -> str:
    checkpoint.check(path)
    return _state(path / "srt_state", stones)


def _state(folder: Path, stones: Tombstones) -> str:
    identity = ReviewState.open(folder, live=True).identity
    return "" if identity is None else _told(int(stones.of("examples", identity).sum()))


def _pairs(run: Path, stones: Tombstones) -> str:
    pools = [Pool.open(run / POOLS / name / "train", verify=False) for name in ("old", "new")]
    there = {row.tobytes() for pool in pools for rows in (pool.key, pool.known) for row in rows}
    said = supersedes.undumped((run / supersedes.FILE).read_bytes())
    names = {name for pair in said for name in (pair.new, *pair.old) if name is not None and stones.names(name)}
    count = sum(key_of(name) not in there for name in names)
    return f"names {count:,} documents that were forgotten" if count else ""


def _leftovers(run: Path, root: Path) -> str:
    patterns = (".*.part", ".*.before", ".*.staged-*", ".staged-*")
    folders = (run, run / "checkpoints", run / POOLS, root / "pools", root / "clusters")
    left = [path for folder in folders for pattern in patterns for path in folder.glob(pattern)]
    return f"{left[0]} is: srt-peft forget {run} removes it" if left else ""
