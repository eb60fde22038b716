"""Who is to be forgotten: a run's examples, trained on and held out, by what a person has of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.data import history, supersedes
from srt_peft.data.corpus import Corpus
from srt_peft.data.history import History, open_history
from srt_peft.data.pool import NO_DATE, Pool, key_of
from srt_peft.data.reading import DATES, seconds_of
from srt_peft.data.tombstones import Tombstones
from srt_peft.errors import OptionError, StateError, did_you_mean
from srt_peft.lifecycle.erasing import PARTS, Leaving
from srt_peft.review import ReviewState, files
from srt_peft.training import checkpoint
from srt_peft.training.folder import DECKS, POOLS, RECIPE, REVIEW
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe

WHAT = "what to forget"
MOST = 10
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Chosen:
    """The identities of examples, the keys of documents that were named, and how they were chosen."""

    how: str
    identities: frozenset[bytes]
    documents: frozenset[bytes]
    before: bool = False
    """Whether some that are asked for were forgotten before."""


@dataclass(frozen=True)
class Holder:
    """A run, as far as it holds examples."""

    run: Path
    recipe: Recipe
    folders: dict[str, Path]
    pools: list[tuple[str, str, Pool]]
    """(old or new, train or held_out, its pool)."""
    state: ReviewState | None
    past: History | None

    @cached_property
    def corpus(self) -> Corpus:
        """What is trained on."""
        found = {name: pool for name, part, pool in self.pools if part == "train"}
        return Corpus(found["old"], found.get("new") or found["old"].only(np.zeros(0, np.int64)))

    @cached_property
    def state_identity(self) -> NDArray[np.uint8]:
        """Of each row of the state; without a state, of the texts."""
        found = None if self.state is None else self.state.identity
        return self.corpus.identity if found is None else found

    @cached_property
    def identities(self) -> NDArray[np.uint8]:
        """All that it knows."""
        more = [] if self.past is None else [self.past.seen]
        return np.concatenate([self.state_identity, *(pool.identity for _, _, pool in self.pools), *more])

    @property
    def decks(self) -> list[str]:
        """What its decks are called, by number."""
        path = self.run / DECKS
        return [one["name"] for one in json.loads(path.read_text())] if path.is_file() else self.corpus.decks[1]

    @property
    def n_old(self) -> int:
        """How many rows are old."""
        return self.corpus.n_old if self.state is None else self.state.n_old

    def live(self) -> Iterator[tuple[str, Mask]]:
        """Of each pool, which rows can be drawn."""
        n = len(self.state_identity)
        there = np.ones(n, bool) if self.state is None else self.state.columns["suspended"] == 0
        old = np.arange(n) < self.n_old
        yield from (("old", there & old), ("new", there & ~old))

    def names(self, leaving: Leaving) -> set[bytes]:
        """The keys of documents of which nothing is left."""
        lost, kept = set[bytes](), set[bytes]()
        for _, _, pool in self.pools:
            away = leaving.of(pool.identity)
            lost |= {row.tobytes() for row in pool.key[away]}
            kept |= {row.tobytes() for row in np.unique(pool.key[~away], axis=0)} if lost else set()
        for _, _, pool in self.pools:  # whoever came before the first loss
            kept |= lost & {row.tobytes() for row in pool.key[~leaving.of(pool.identity)]}
        return lost - kept - {bytes(16)}

    def buried(self, stones: Tombstones) -> set[bytes]:
        """The keys of documents that `supersedes` has named here, and that other runs have forgotten."""
        path = self.run / supersedes.FILE
        said = supersedes.undumped(path.read_bytes()) if path.is_file() else ()
        named = {name for pair in said for name in (pair.new, *pair.old) if name is not None}
        there = (
            {row.tobytes() for _, _, p in self.pools for rows in (p.key, p.known) for row in rows} if named else set()
        )
        return {key_of(name) for name in named if stones.names(name)} - there

    def report(self, leaving: Leaving, gone: Mask) -> dict[str, Any]:
        """How many leave, by pool and source."""
        pools: dict[str, Any] = {}
        tokens = held_out = 0
        for name, part, pool in self.pools:
            away = leaving.of(pool.identity)
            told = pools.setdefault(name, {"trained": 0, "held_out": 0, "tokens": 0, "sources": {}})
            if part == "held_out":
                told["held_out"] = int(away.sum())
                held_out += told["held_out"]
            told["tokens"] += int(pool.lengths[away].sum())
            tokens += int(pool.lengths[away].sum())
            for source, count in zip(*np.unique(pool.source[away], return_counts=True), strict=True):
                word = pool.sources[int(source)]
                told["sources"][word] = told["sources"].get(word, 0) + int(count)
        pools.setdefault("new", {"trained": 0, "held_out": 0, "tokens": 0, "sources": {}})
        pools["old"]["trained"] = int(gone[: self.n_old].sum())
        pools["new"]["trained"] = int(gone[self.n_old :].sum())
        let_go = 0 if self.past is None else int(leaving.of(self.past.let_go).sum())
        return {"examples": int(gone.sum()) + held_out + let_go, "tokens": tokens, "pools": pools, "let_go": let_go}


def look(run: Path) -> Holder:
    """What a run holds; its texts must be there, as what is left is to be gone on with."""
    recipe, folders, pools = load_recipe(run / RECIPE), {}, []
    begun = (run / POOLS).is_dir() or not (run / history.FOLDER / history.FILE).is_file()
    try:
        for name in ("old", "new") if begun else ():
            folders[name] = (run / POOLS / name).resolve()
            pools += [(name, part, Pool.open(folders[name] / part)) for part in PARTS]
    except StateError as error:
        raise StateError(
            f"{error}\nThe tokenised texts of {run} must be there to forget some of them. Make them again from their "
            f"sources: `srt-peft train {run / RECIPE} --resume`."
        ) from error
    past = open_history(run / history.FOLDER) if (run / history.FOLDER / history.FILE).is_file() else None
    if past is not None and not begun:
        pools = [("old", part, pool) for part, pool in zip(PARTS, (past.train, past.held_out), strict=True)]
    return Holder(run, recipe, folders, pools, _state(run), past)


def _state(run: Path) -> ReviewState | None:
    newest, _ = checkpoint.newest(run)
    live = run / REVIEW / "state"
    if newest is not None:
        return ReviewState.open(newest / "srt_state")
    return ReviewState.open(live, live=True) if (live / files.MANIFEST).is_file() else None


# --- by what they are chosen ----------------------------------------------------------------------------------------


def by_match(pattern: str) -> Callable[[Sequence[Holder], Tombstones], Chosen]:
    """Whose text has a match."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        fault = f"--match = {pattern!r}: {error}: expected a regular expression, as Python's `re` has them"
        raise OptionError(WHAT, [fault]) from None
    return _rows(
        "--match", lambda pool: np.fromiter((bool(wanted.search(pool.text(i))) for i in range(len(pool))), bool)
    )


def by_source(name: str) -> Callable[[Sequence[Holder], Tombstones], Chosen]:
    """Who is of this source."""

    def choose(holders: Sequence[Holder], stones: Tombstones) -> Chosen:
        known = sorted({word for holder in holders for _, _, pool in holder.pools for word in pool.sources})
        if name not in known:
            few = ", ".join(known[:MOST])
            raise OptionError(WHAT, [f"--source = {name!r}{did_you_mean(name, known)}: expected one of {few}"])
        return _rows("--source", lambda p: np.array([word == name for word in p.sources] or [False])[p.source])(
            holders, stones
        )

    return choose


def by_date(given: str) -> Callable[[Sequence[Holder], Tombstones], Chosen]:
    """Whose document is from before a date; who has none stays."""
    before = seconds_of(given)
    if before is None:
        raise OptionError(WHAT, [f"--before = {given!r}: expected a date as {DATES}"])

    def choose(holders: Sequence[Holder], stones: Tombstones) -> Chosen:
        if all(pool.date is None for holder in holders for _, _, pool in holder.pools):
            fault = (
                f"--before = {given!r}: no date is kept with these texts. Name their column with data.date_column in "
                "the recipe, before they are trained on; or choose by --ids, --match or --source"
            )
            raise OptionError(WHAT, [fault])
        return _rows("--before", lambda p: np.zeros(len(p), bool) if p.date is None
                     else (p.date < before) & (p.date != NO_DATE))(holders, stones)  # fmt: skip

    return choose


def _rows(how: str, mask: Callable[[Pool], Mask]) -> Callable[[Sequence[Holder], Tombstones], Chosen]:
    def choose(holders: Sequence[Holder], _: Tombstones) -> Chosen:
        pools = [pool for holder in holders for _, _, pool in holder.pools if len(pool)]
        return Chosen(how, frozenset(row.tobytes() for pool in pools for row in pool.identity[mask(pool)]), frozenset())

    return choose


def by_ids(path: Path) -> Callable[[Sequence[Holder], Tombstones], Chosen]:
    """Who is named in a file: a document's name, an example's identity or its number, a line each."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(WHAT, [f"--ids = {path}: {reason}: expected a text file with an id a line"]) from None
    words = list(dict.fromkeys(line for line in lines if line))
    if not words:
        raise OptionError(WHAT, [f"--ids = {path} is empty: expected an id a line"])

    def choose(holders: Sequence[Holder], stones: Tombstones) -> Chosen:
        documents = _documents(holders, words)
        known = {row.tobytes() for holder in holders for row in holder.identities}
        found, named, unknown, before = set[bytes](), set[bytes](), [], False
        for word in words:
            rows = documents[key_of(word)]
            mine = rows or _one(holders, stones, word, known)
            found |= mine or set()
            named |= {key_of(word)} if rows else set()
            before |= mine is not None and not mine
            unknown += [f"{word!r} is nobody's"] if mine is None else []
        if unknown:
            raise OptionError(f"--ids = {path} ({_EXPECTED})", unknown, most=MOST)
        return Chosen("--ids", frozenset(found), frozenset(named), before)

    return choose


_EXPECTED = (
    "expected what a document is called (its id, or a text file's path), the 32 hex digits of an example's identity, "
    "or its number, as `srt-peft inspect` shows them; nothing was forgotten"
)


def _documents(holders: Sequence[Holder], words: Sequence[str]) -> dict[bytes, set[bytes]]:
    """The identities of each document that is named, by its key."""
    found: dict[bytes, set[bytes]] = {key_of(word): set() for word in words}
    for holder in holders:
        for _, _, pool in holder.pools:
            for key, row in zip(pool.key, pool.identity, strict=True):
                if key.tobytes() in found:
                    found[key.tobytes()].add(row.tobytes())
    return found


def _one(holders: Sequence[Holder], stones: Tombstones, word: str, known: set[bytes]) -> set[bytes] | None:
    """The example that is meant, if one is known; nobody where it was forgotten before; None where there is none."""
    hashed = bytes.fromhex(word) if re.fullmatch(r"[0-9a-fA-F]{32}", word) else b""
    if hashed in known:
        return {hashed}
    if _buried(stones, word, hashed):
        return set()
    if word.isascii() and word.isdigit() and any(int(word) < len(h.state_identity) for h in holders):
        _check_one(holders, word)
        return {holders[0].state_identity[int(word)].tobytes()}
    return None


def _buried(stones: Tombstones, word: str, hashed: bytes) -> bool:
    """Whether it was forgotten before."""
    row = np.frombuffer(hashed or bytes(16), np.uint8)[None]
    return stones.names(word) or bool(stones.of("examples", row)[0])


def _check_one(holders: Sequence[Holder], word: str) -> None:
    if len(holders) > 1:
        fault = f"{word!r} is a number, and each of {len(holders)} runs has one: expected one RUN, or identities"
        raise OptionError(WHAT, [fault])
