"""A run's review state and its log, read: what is due, what lapses, who is hardest, and one example's whole history.

What is looked at is what a resume or the next update would go on from: the newest whole checkpoint. Of a run that is
being trained at this moment it is the live state; before the first checkpoint, too. The log is read up to the state's
step, since a resume drops what came later.

A *leech* is an example that lapses again and again: at least LAPSES reviews of it had q < 3. Such are often noise, or
contradict what newer text says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.data import history as past
from srt_peft.data.corpus import Corpus
from srt_peft.data.pool import key_of
from srt_peft.errors import LockedError, OptionError
from srt_peft.lifecycle.links import corpus_of
from srt_peft.lifecycle.which import Checkpoint, checkpoint_of
from srt_peft.review import ReviewLog, ReviewState, files, sm2
from srt_peft.review.census import count
from srt_peft.review.journal import Journal, read_journal
from srt_peft.review.kinds import SCHEDULERS
from srt_peft.review.options import Options, hundredths, plain
from srt_peft.review.rows import MAX_VISITS
from srt_peft.training import checkpoint
from srt_peft.training.folder import RECIPE, REVIEW
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe

LAPSES = 4
"""From how many lapses on an example is a leech."""
POOLS = ("old", "new")
WHAT = "the inspection"

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Look:
    """A run at one moment."""

    name: str
    where: Path
    """The folder of the state."""
    home: Path | None
    state: ReviewState
    step: int
    recipe: Recipe
    journal: Journal | None
    corpus: Corpus | None

    @property
    def logs(self) -> list[Path]:
        """The review log, where it still lies beside, and before it that of earlier updates."""
        if self.home is None or not (self.home / REVIEW / "log").is_file():
            return []
        before = self.home / past.FOLDER / past.LOG
        return [*([before] if before.is_file() else []), self.home / REVIEW / "log"]

    @property
    def options(self) -> Options:
        """The scheduler's options; `counts` are another run's, and are not read."""
        size = {"batch_size": self.recipe.training.batch_size}
        return Options(**plain({**size, **self.recipe.scheduler_options()}))

    @property
    def lapses(self) -> Ids:
        """Of each example; without a log, none is known."""
        return np.zeros(self.state.n, np.int64) if self.journal is None else self.journal.lapses.astype(np.int64)


def look(name: str | Path, at: int | None = None) -> Look:
    """What lies in a run's or a checkpoint's folder; `at` is the step of one of the run's checkpoints."""
    path = Path(name)
    live = path / REVIEW / "state"
    if at is not None:
        path = _kept(path, at)
    elif (live / files.MANIFEST).is_file() and (running(path) or not checkpoint.all_of(path)):
        return _made(str(name), live, path, load_recipe(path / RECIPE))
    chosen = checkpoint_of(path, WHAT)
    return at_checkpoint(str(name), chosen)


def at_checkpoint(name: str, chosen: Checkpoint) -> Look:
    """A run as one of its checkpoints has it."""
    return _made(name, chosen.folder / "srt_state", chosen.home, chosen.recipe)


def _made(name: str, where: Path, home: Path | None, recipe: Recipe) -> Look:
    state = ReviewState.open(where, live=True)
    step = state.step
    step = step if step >= 0 else -1 - step  # in the middle of a review, or interrupted in one
    bare = Look(name, where, home, state, step, recipe, None, corpus_of(home))
    if bare.corpus is not None and not np.array_equal(bare.corpus.identity, state.columns.get("identity", 0)):
        bare = Look(name, where, home, state, step, recipe, None, None)  # the links lead to other texts by now
    if not bare.logs:
        return bare
    journal = read_journal(*bare.logs, examples=state.n, before=step)
    return Look(name, where, home, state, step, recipe, journal, bare.corpus)


def running(run: Path) -> bool:
    """Whether the run is being trained: its review state is locked as long as it is."""
    lock = run / REVIEW / "state" / "lock"
    try:
        if lock.is_file():
            files.Lock(lock, str(run)).release()
    except LockedError:
        return True
    except OSError:  # it may not be written to, so it is not locked by us either
        pass
    return False


def _kept(run: Path, step: int) -> Path:
    found = run / "checkpoints" / checkpoint.name_of(max(step, 0))
    if not found.is_dir():
        kept = ", ".join(str(checkpoint.step_of(path)) for path in checkpoint.all_of(run)) or "none"
        raise OptionError(WHAT, [f"--at = {step}: {run} keeps no checkpoint of that step: expected one of {kept}"])
    return found


# --- all of it ------------------------------------------------------------------------------------------------------


def facts(seen: Look) -> dict[str, Any]:
    """The figures, as plain values; what is not known is None."""
    census, options, journal = count(seen.state), seen.options, seen.journal
    slots = (options.old_slots, options.batch_size - options.old_slots)
    reviews = (None, None) if journal is None else journal.reviews.sum(axis=0).tolist()
    halves = (slice(0, seen.state.n_old), slice(seen.state.n_old, None))
    pools = {
        name: {
            "examples": census.examples[p],
            "seen": census.seen[p],
            "never_seen": census.examples[p] - census.seen[p],
            "due": census.due[p],
            "slots": slots[p],
            "backlog": round(census.due[p] / slots[p], 2) if slots[p] else None,
            "reviews": reviews[p],
            "lapses": None if journal is None else int(seen.lapses[halves[p]].sum()),
            "suspended": census.by_request[p],
            "superseded": 0 if p else census.superseded,
        }
        for p, name in enumerate(POOLS)
    }
    return {
        "run": seen.name,
        "state": str(seen.where),
        "step": seen.step,
        "scheduler": seen.recipe.review.scheduler,
        "pools": pools,
        "intervals": _histogram(census.interval, lambda k: [2**k, 2 ** (k + 1) - 1]),
        "eases": _histogram(
            census.ease, lambda k: [round(k * census.ease_width, 2), round((k + 1) * census.ease_width - 0.01, 2)]
        ),
    }


def _histogram(table: NDArray[np.int64], ends: Callable[[int], list[Any]]) -> list[dict[str, Any]]:
    """Each bin that somebody is in: from, to, and how many of each pool."""
    used = np.flatnonzero(table.any(axis=0)).tolist()
    return [{"from": ends(k)[0], "to": ends(k)[1], "old": int(table[0, k]), "new": int(table[1, k])} for k in used]


# --- the hardest, and the leeches -----------------------------------------------------------------------------------


def hardest(seen: Look, most: int) -> tuple[str, list[dict[str, Any]]]:
    """(by what, the hardest): by how far the last NLL lies above its reference; where none is kept, by lapses.

    A reference that is the best so far is the last NLL itself of whoever was reviewed once: then the NLL decides.
    """
    reference = seen.state.columns.get("reference")
    relative = reference is not None and bool(np.isfinite(reference).any())
    c, lapses, best = seen.state.columns, seen.lapses, np.zeros(0, np.int64)
    for part in files.chunks(seen.state.n):
        mine = np.flatnonzero((c["visits"][part] > 0) & (c["suspended"][part] == 0)) + part.start
        mine = np.concatenate([best, mine])
        if relative:
            assert reference is not None
            mine = mine[np.isfinite(reference[mine])]
        signal = np.nan_to_num(c["signal"][mine].astype(np.float64), nan=np.inf)
        first = signal - reference[mine] if reference is not None and relative else lapses[mine]
        best = mine[np.lexsort((-signal, -first))[:most]]
    by = "NLL above its reference, then NLL, in nats a token" if relative else "lapses, then NLL"
    return by, [row(seen, i) for i in best.tolist()]


def leeches(seen: Look, threshold: int) -> list[dict[str, Any]]:
    """The examples with so many lapses or more, the most first; those that are set aside are named, too."""
    if seen.journal is None:
        raise OptionError(WHAT, [f"{seen.name} has no review log, by which leeches are told: expected RUN/review/log"])
    lapses = seen.lapses
    found = np.flatnonzero(lapses >= threshold)
    return [row(seen, i) for i in found[np.argsort(-lapses[found], kind="stable")].tolist()]


def row(seen: Look, i: int) -> dict[str, Any]:
    """What is known about one example now."""
    c = seen.state.columns
    identity, reference = c.get("identity"), c.get("reference")
    return {
        "id": i,
        "pool": POOLS[i >= seen.state.n_old],
        "identity": None if identity is None else identity[i].tobytes().hex(),
        "source": _source(seen.corpus, i),
        "nll": _number(c["signal"][i]),
        "reference": None if reference is None else _number(reference[i]),
        "visits": int(c["visits"][i]),
        "lapses": None if seen.journal is None else int(seen.lapses[i]),
        "ease": int(c["ease"][i]) / 100,
        "repetitions": int(c["repetitions"][i]),
        "interval": int(c["interval"][i]),
        "due": int(c["due"][i]),
        "set_aside": ("", "by request", "superseded", "by request, superseded")[int(c["suspended"][i])],
        "text": None if seen.corpus is None else seen.corpus.text(i),
    }


def _source(corpus: Corpus | None, i: int) -> str | None:
    if corpus is None:
        return None
    pool, at = (corpus.old, i) if i < corpus.n_old else (corpus.new, i - corpus.n_old)
    return str(pool.sources[pool.source[at]])


def _number(value: Any) -> float | None:
    """A float that JSON has, or None."""
    return round(float(value), 5) if np.isfinite(value) else None


# --- one example ----------------------------------------------------------------------------------------------------


def named(seen: Look, name: str) -> Ids:
    """The examples that a person means: a row, an identity of 32 hex digits, or what their document is called."""
    state, found = seen.state, np.zeros(0, np.int64)
    identity, hashed = state.columns.get("identity"), re.fullmatch(r"[0-9a-fA-F]{32}", name)
    if not hashed and name.isascii() and name.isdigit() and int(name) < state.n:
        return np.array([int(name)])
    if hashed and identity is not None:
        found = np.flatnonzero((identity == np.frombuffer(bytes.fromhex(name), np.uint8)).all(axis=1))
    if not found.size and seen.corpus is not None and name:
        key = np.frombuffer(key_of(name), np.uint8)
        pools = (seen.corpus.old, seen.corpus.new)
        found = np.concatenate(
            [np.flatnonzero((p.key == key).all(axis=1)) + n for p, n in zip(pools, (0, state.n_old), strict=True)]
        )
    if not found.size:
        fault = (
            f"--example = {name!r} is nobody here: expected an id from 0 to {state.n - 1}, the 32 hex digits of an "
            "identity, or what a document is called (its id in the rows, or a text file's path)"
        )
        raise OptionError(WHAT, [fault])
    return found


def history(seen: Look, i: int) -> dict[str, Any]:
    """An example, and each of its reviews, with the state after it.

    The state after a review is worked out from the qualities by the scheduler's rule. Where the log lacks some of the
    reviews, as after an update whose log is gone, only the last state is known.
    """
    reviews = list(_reviews(seen, i))
    ends = _replayed(seen, [review["quality"] for review in reviews])
    c = seen.state.columns
    now = (int(c["ease"][i]), int(c["repetitions"][i]), int(c["interval"][i]))
    visits = int(c["visits"][i])
    whole = (len(reviews) == visits or visits >= MAX_VISITS) and (not ends or ends[-1] == now)
    if not whole:
        ends = [None] * len(reviews)
        if reviews and reviews[-1]["step"] + now[2] == int(c["due"][i]):
            ends[-1] = now
    for review, end in zip(reviews, ends, strict=True):
        ease, repetitions, interval = end or (None, None, None)
        review["ease"] = None if ease is None else ease / 100
        review["repetitions"], review["interval"] = repetitions, interval
        review["due"] = None if interval is None else int(sm2.due(review["step"], interval))
    return {**row(seen, i), "whole": whole, "reviews": reviews}


def _reviews(seen: Look, i: int) -> Iterator[dict[str, Any]]:
    for path in seen.logs:
        with ReviewLog(path) as log:
            for part in log.parts():
                for record in part[(part["id"] == i) & (part["step"] < seen.step)]:
                    yield {
                        "step": int(record["step"]),
                        "nll": _number(record["signal"]),
                        "quality": int(record["quality"]),
                        "trained": not record["untrained"],
                    }


def _replayed(seen: Look, qualities: list[int]) -> list[tuple[int, int, int] | None]:
    """(ease in hundredths, repetitions, interval) after each of these reviews of a fresh example."""
    options, rule = seen.options, SCHEDULERS[seen.recipe.review.scheduler].rule
    bounds = {"min_ease": hundredths(options.min_ease), "max_interval": options.max_interval}
    after, ends = (hundredths(options.initial_ease), 0, 1), list[tuple[int, int, int] | None]()
    for quality in qualities:
        ease, repetitions, interval = rule(*after, quality, **bounds)
        after = (int(ease), int(repetitions), int(interval))
        ends.append(after)
    return ends


def checked(threshold: int | None, most: int | None) -> None:
    """Refuse numbers that name nobody."""
    given = {"--leeches": threshold, "--hardest": most}
    faults = [
        f"{flag} = {n}: expected a whole number, 1 or more" for flag, n in given.items() if n is not None and n < 1
    ]
    if faults:
        raise OptionError(WHAT, faults)
