"""A run becomes history: its new examples are old from now on, and each keeps the review state that it has.

State follows identity. The examples of the history stand in the order of the run's state, whatever order the texts
have; text that the state does not know comes after them, and was never reviewed. What is kept is the recipe's:

    all          everything
    n            a reservoir: the n examples with the lowest hashes, a uniform choice that the next one agrees with
    unmastered   all but those whose interval is longer than the horizon: they would not come due in a whole update

Whoever is set aside (superseded, or by request) is kept in any case, and not counted. What is let go is remembered by
its hash: it is not new when it returns.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.data import history, pool as pools, supersedes
from srt_peft.data.ingest import Report
from srt_peft.data.pool import NO_DATE, Pool, among
from srt_peft.data.register import FEW_IDS
from srt_peft.data.supersedes import Pair
from srt_peft.errors import OptionError
from srt_peft.review import ReviewState, log
from srt_peft.review.carried import promoted
from srt_peft.review.files import Columns, sync, sync_all
from srt_peft.review.rows import IDENTITY_BYTES, ROW, extras_of

Rows = NDArray[np.int64]
Hashes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a run leaves: its state, its texts, and what is known about them."""

    run: str
    state: ReviewState
    train: Sequence[Pool]
    held_out: Sequence[Pool]
    decks: Sequence[str]
    """What the decks of the state are called, by number."""
    pairs: Sequence[Pair]
    """What replaces what, as these texts and those of earlier updates have said."""
    records: NDArray[Any]
    """The reviews of all updates so far, with the ids of the state."""
    updates: int = 0
    """How many updates there were before this one."""
    let_go: Hashes = field(default_factory=lambda: np.zeros((0, IDENTITY_BYTES), np.uint8))


@dataclass(frozen=True)
class Made:
    """What became of a run's examples."""

    kept: int
    let_go: int
    fresh: int
    """Old text that the state did not know."""
    lost: int
    """Examples of the state whose text is not there any more."""
    updates: int
    step: int


def make(left: Left, folder: Path, *, keep: str | int, horizon: int) -> Made:
    """Write the history to a folder: whole, or not at all."""
    texts = _Joined(left.train)
    state_rows, text_rows, fresh = _aligned(left.state, texts)
    chosen = _kept(left.state, state_rows, keep, horizon)
    let_go = np.concatenate([left.let_go, left.state.columns["identity"][state_rows[~chosen]]])
    lost = left.state.n - state_rows.size
    state_rows, text_rows = state_rows[chosen], text_rows[chosen]
    if not state_rows.size + fresh.size:
        raise OptionError("the history", [f"next.keep = {keep!r} leaves none of {left.state.n:,} examples: keep more"])
    place = np.full(left.state.n, -1, np.int64)
    place[state_rows] = np.arange(state_rows.size)
    staged = folder.with_name(f".{folder.name}.staged-{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    updates = left.updates + 1
    try:
        rows = np.concatenate([text_rows, fresh])
        _write_texts(staged, left, texts, rows)
        _write_state(left, staged / history.STATE, state_rows, texts.columns["identity"][fresh])
        log.write(staged / history.LOG, log.renumbered(left.records, place))
        decks, step = list(left.decks), left.state.step
        history.describe(staged, let_go, run=left.run, updates=updates, step=step, decks=decks)
        sync_all(staged)
        if folder.exists():
            shutil.rmtree(folder)
        staged.rename(folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    return Made(state_rows.size, int((~chosen).sum()), fresh.size, lost, updates, step)


class _Joined:
    """Several pools as one table of columns, each example once: the first to have a text has it."""

    def __init__(self, parts: Sequence[Pool]) -> None:
        sources = dict.fromkeys(name for part in parts for name in part.sources)
        self.sources = list(sources)
        number = {name: i for i, name in enumerate(self.sources)}
        columns: Columns = {
            name: np.concatenate([part.columns[name] for part in parts])
            for name in ("tokens", "text", "identity", "key")
        }
        for name in ("offsets", "text_offsets"):
            lengths = np.concatenate([np.diff(part.columns[name]) for part in parts])
            columns[name] = np.append(np.int64(0), np.cumsum(lengths))
        starts = np.cumsum([0, *(int(part.document.max(initial=-1)) + 1 for part in parts)])
        columns["document"] = np.concatenate([part.document + s for part, s in zip(parts, starts[:-1], strict=True)])
        columns["source"] = np.concatenate(
            [np.asarray([number[name] for name in part.sources], np.int32)[part.source] for part in parts]
        )
        columns["known"] = np.zeros((0, IDENTITY_BYTES), np.uint8)
        dates = [part.date for part in parts]
        if any(date is not None for date in dates):
            columns["date"] = np.concatenate(
                [np.full(len(p), NO_DATE, np.int64) if d is None else d for p, d in zip(parts, dates, strict=True)]
            )
        self.columns = columns
        _, first = np.unique(_words(columns["identity"]), return_index=True)
        self.distinct: Rows = np.sort(first)


def _words(hashes: Hashes) -> NDArray[Any]:
    """Each hash as one value, to sort and to search by."""
    return np.ascontiguousarray(hashes).view("V16").ravel() if len(hashes) else np.zeros(0, "V16")


def _aligned(state: ReviewState, texts: _Joined) -> tuple[Rows, Rows, Rows]:
    """(rows of the state, the rows of the texts that are the same examples, rows that the state does not know)."""
    mine, theirs = _words(state.columns["identity"]), _words(texts.columns["identity"])[texts.distinct]
    _, first = np.unique(mine, return_index=True)  # one that was old and new in the run goes by its state as old
    own, here, there = np.intersect1d(mine[np.sort(first)], theirs, assume_unique=True, return_indices=True)
    rows, found = np.sort(first)[here], texts.distinct[there]
    order = np.argsort(rows)
    return rows[order], found[order], texts.distinct[~np.isin(theirs, own)]


def _kept(state: ReviewState, rows: Rows, keep: str | int, horizon: int) -> NDArray[np.bool_]:
    """Which of these rows of the state stay; whoever is set aside does in any case."""
    column = {name: state.columns[name][rows] for name in ("suspended", "visits", "interval")}
    live = column["suspended"] == 0
    if keep == "all":
        return np.ones(rows.size, bool)
    if keep == "unmastered":
        mastered: NDArray[np.bool_] = live & (column["visits"] > 0) & (column["interval"] > horizon)
        return ~mastered
    there = np.flatnonzero(live)
    lowest = np.argsort(_words(state.columns["identity"][rows[there]]), kind="stable")
    stays: NDArray[np.bool_] = ~live
    stays[there[lowest[: int(keep)]]] = True
    return stays


# --- what is written ------------------------------------------------------------------------------------------------


def _write_texts(staged: Path, left: Left, texts: _Joined, rows: Rows) -> None:
    """The two pools, and what replaces what."""
    away = _Joined(left.held_out)
    apart = away.distinct[~among(away.columns["identity"][away.distinct], texts.columns["identity"][rows])]
    known = _others(left, texts, rows)
    names = {row.tobytes() for row in (*texts.columns["key"][rows], *known)}
    gone = {pools.key_of(name) for pair in left.pairs for name in (pair.new, *pair.old) if name is not None} - names
    raw = supersedes.dumped(dict.fromkeys(supersedes.kept(left.pairs, gone)))
    about: dict[str, Any] = {
        "key": "history",
        "report": asdict(_report(texts, rows, apart.size)),
        "ids": _ids(left, names),
        "supersedes": {"hash": supersedes.digest(raw), "seen": True, "lacking": None},
    }
    for name, joined, chosen in (("train", texts, rows), ("held_out", away, apart)):
        pools.write(staged / name, {**joined.columns, "known": known}, chosen, joined.sources, about)
    (staged / supersedes.FILE).write_bytes(raw)


def _others(left: Left, texts: _Joined, rows: Rows) -> Hashes:
    """The keys of the documents that have no example here: held out, empty, or let go. What they replaced stays so."""
    every = np.concatenate([texts.columns["key"], *(pool.known for pool in left.train)])
    keys = np.unique(every[every.any(axis=1)], axis=0)
    return keys[~np.isin(_words(keys), _words(texts.columns["key"][rows]))]


def _ids(left: Left, names: set[bytes]) -> list[str] | None:
    """What the documents are called, where they are few enough to have been listed so far."""
    listed = [pool.manifest["about"].get("ids") for pool in left.train]
    if any(ids is None for ids in listed):
        return None
    words = {word for ids in listed for word in ids if pools.key_of(word) in names}
    return sorted(words) if len(words) <= FEW_IDS else None


def _report(texts: _Joined, rows: Rows, held_out: int) -> Report:
    document = np.unique(texts.columns["document"][rows], return_counts=True)[1]
    tokens = int(np.diff(texts.columns["offsets"])[rows].sum())
    return Report(document.size, rows.size + held_out, tokens, 0, 0, int((document > 1).sum()), held_out)


def _write_state(left: Left, folder: Path, rows: Rows, fresh: Hashes) -> None:
    """The state of these rows, in order, and after them that of examples which nobody has ever seen."""
    theirs = left.state.columns
    extras = {name: count for name, count in extras_of(theirs).items() if name == "prefix"} | {"reference": 1}
    deck = None
    if "deck" in theirs:
        deck = np.concatenate([theirs["deck"][rows], np.zeros(len(fresh), np.uint16)])
    n = rows.size + len(fresh)
    identity = np.concatenate([theirs["identity"][rows], fresh])
    state = ReviewState.create(n, 0, identity=identity, deck=deck, extras=extras)
    columns = state.columns
    references = {**theirs, "reference": promoted(theirs, left.state.n_old)}
    for name in (*ROW, "reference", "prefix"):
        if name in columns:
            columns[name][: rows.size] = references[name][rows]
    for name in columns.keys() & {"reviews", "forgetting", "known"}:
        columns[name][: theirs[name].size] = theirs[name][: columns[name].size]
    columns["due"][rows.size :] += left.state.step
    columns["clock"][0] = left.state.step
    state.snapshot(folder)
