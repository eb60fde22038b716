"""A run's folder, read: the numbers behind the pictures, small however long the run was.

Metrics are averaged over windows of steps, the log is read a part at a time, and the state's columns are counted where
they are mapped. What is missing or torn is left out, and told in `notes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]
from numpy.typing import NDArray

from srt_peft.data.pool import Pool
from srt_peft.errors import OptionError, StateError
from srt_peft.report.journal import Counts, Floats, Journal, Windows, read_journal
from srt_peft.review import ReviewState, files

POOLS = ("old", "new")
HARDEST = 12
"""How many of each pool are shown."""
_LONGEST = 2_000  # characters of an example's text


@dataclass(frozen=True)
class Course:
    """What metrics.jsonl says. Arrays have a value a window; `measured` has what was measured now and then."""

    windows: Windows
    loss: Floats
    """The token mean; NaN where nothing was drawn."""
    drawn: Counts
    """[window, pool]."""
    due: Floats
    """[window, pool]: the mean backlog before the draw."""
    empty: int
    """Steps without a draw."""
    tokens: int
    seconds: float
    measured: dict[str, tuple[list[int], list[float]]]
    """`held_out_old_nll`, `score/…` -> after how many steps, and what."""


@dataclass(frozen=True)
class Hard:
    """One of the examples with the highest last signal."""

    pool: str
    id: int
    signal: float
    visits: int
    lapses: int
    ease: float
    interval: int
    text: str | None


@dataclass(frozen=True)
class Census:
    """The review state, counted."""

    step: int
    examples: tuple[int, int]
    seen: tuple[int, int]
    suspended: int
    interval: Counts
    """[pool, k]: seen examples whose interval is 2**k to 2**(k+1) - 1."""
    visits: Counts
    """[pool, k]: 0 none, then examples with 2**(k-1) to 2**k - 1 reviews."""
    ease: Counts
    """[pool, k]: seen examples with an ease from k·ease_width on."""
    ease_width: float


@dataclass
class Run:
    """One update: what it was asked to do, and what it did."""

    folder: Path
    recipe: Mapping[str, Any]
    course: Course | None
    journal: Journal | None
    census: Census
    hardest: list[Hard]
    notes: list[str] = field(default_factory=list)

    def asked(self, *path: str) -> Any:
        """A value of the recipe, or None."""
        value: Any = self.recipe
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_run(folder: Path, *, text: bool = True) -> Run:
    """Read a run's folder; without `text`, no example's text is looked at."""
    if not (folder / "recipe.yaml").is_file() or not (folder / "review" / "state" / files.MANIFEST).is_file():
        fault = f"{folder}: expected the folder of a run or of a comparison, as `srt-peft train` and `compare` make it"
        raise OptionError("the report", [fault])
    notes: list[str] = []
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    course = read_course(folder / "metrics.jsonl", notes)
    state = ReviewState.open(folder / "review" / "state", live=True)
    journal = None
    if (folder / "review" / "log").is_file():
        journal = read_journal(folder / "review" / "log", state.n)
    else:
        notes.append("There is no review log: what it would show is left out.")
    census = count(state)
    return Run(folder, recipe, course, journal, census, _hardest(folder, state, journal, notes, text=text), notes)


# --- metrics.jsonl --------------------------------------------------------------------------------------------------

_COLUMNS = ("step", "loss", "tokens", "seconds", "old", "new", "due_old", "due_new")


def read_course(path: Path, notes: list[str]) -> Course | None:
    """The metrics, averaged over windows; None where there are none yet."""
    rows: list[tuple[float, ...]] = []
    measured: dict[str, tuple[list[int], list[float]]] = {}
    torn = 0
    for line in _lines(path):
        try:
            said = json.loads(line)
            if "loss" in said:
                rows.append(tuple(map(float, (said[name] for name in _COLUMNS))))
                continue
            step, values = int(said.pop("step")), {name: float(value) for name, value in said.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            torn += 1
            continue
        for name, value in values.items():
            steps, seen = measured.setdefault(name, ([], []))
            steps.append(step + 1)  # as many as were done then: a base is measured at "step" −1
            seen.append(value)
    if torn:
        notes.append(f"{torn:,} torn lines of metrics.jsonl are left out.")
    return _course(np.array(rows), measured) if rows else None


def _lines(path: Path) -> Iterator[bytes]:
    if path.is_file():
        with path.open("rb") as file:
            yield from file


def _course(table: Floats, measured: dict[str, tuple[list[int], list[float]]]) -> Course:
    steps, loss, tokens, seconds, *rest = table.T
    windows = Windows(int(steps.min()), int(steps.max()))
    at = windows.of(steps)

    def total(values: Floats) -> Floats:
        return np.bincount(at, values, windows.count).astype(np.float64)

    old, new, due_old, due_new = rest
    with np.errstate(invalid="ignore"):
        mean_loss = total(loss * tokens) / total(tokens)
        due = np.stack([total(due_old), total(due_new)], axis=1) / np.bincount(at, minlength=windows.count)[:, None]
    return Course(
        windows=windows,
        loss=mean_loss,
        drawn=np.stack([total(old), total(new)], axis=1).astype(np.int64),
        due=due,
        empty=int(np.count_nonzero(old + new == 0)),
        tokens=int(tokens.sum()),
        seconds=float(seconds.sum()),
        measured=measured,
    )


# --- the review state -----------------------------------------------------------------------------------------------


def count(state: ReviewState) -> Census:
    """One pass over the columns, a part at a time."""
    columns, n_old = state.columns, state.n_old
    widest = max((int(columns["ease"][part].max(initial=0)) for part in files.chunks(state.n)), default=0)
    width = next(w for w in (10, 20, 50, 100, 200, 500, 1000) if widest // w < 40)
    interval, visits, ease = (np.zeros((2, size), dtype=np.int64) for size in (32, 17, widest // width + 1))
    seen, suspended = [0, 0], 0
    for pool, begin, end in ((0, 0, n_old), (1, n_old, state.n)):
        for part in files.chunks(end - begin):
            rows = slice(begin + part.start, begin + part.stop)
            often = columns["visits"][rows].astype(np.int64)
            looked = often > 0
            seen[pool] += int(looked.sum())
            suspended += int(np.count_nonzero(columns["suspended"][rows]))
            visits[pool] += np.bincount(_power(often) + 1, minlength=17)
            interval[pool] += np.bincount(_power(columns["interval"][rows][looked]), minlength=32)
            ease[pool] += np.bincount(columns["ease"][rows][looked] // width, minlength=ease.shape[1])
    step = max(state.step, 0)  # below 0 where a review was interrupted
    examples = (n_old, state.n_new)
    return Census(step, examples, (seen[0], seen[1]), suspended, interval, visits, ease, width / 100)


def _power(values: NDArray[Any]) -> Counts:
    """⌊log2⌋, and −1 of 0."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1


def _hardest(folder: Path, state: ReviewState, journal: Journal | None, notes: list[str], *, text: bool) -> list[Hard]:
    """Of each pool, those with the highest last signal, hardest first."""
    found, c = [], state.columns
    for pool, begin, end in ((0, 0, state.n_old), (1, state.n_old, state.n)):
        best = np.zeros(0, dtype=np.int64)
        for part in files.chunks(end - begin):
            rows = slice(begin + part.start, begin + part.stop)
            mine = np.flatnonzero((c["visits"][rows] > 0) & (c["suspended"][rows] == 0)) + rows.start
            mine = np.concatenate([best, mine])
            signal = np.nan_to_num(c["signal"][mine], nan=np.inf)
            best = mine[np.argsort(-signal, kind="stable")[:HARDEST]] if mine.size else mine
        texts = _texts(folder / "pools" / POOLS[pool] / "train", best - begin, notes) if text else [None] * best.size
        for i, told in zip(best.tolist(), texts, strict=True):
            lapses = int(journal.lapses[i]) if journal is not None else 0
            numbers = (float(c["signal"][i]), int(c["visits"][i]), lapses, c["ease"][i] / 100, int(c["interval"][i]))
            found.append(Hard(POOLS[pool], i - begin, *numbers, told))
    return found


def _texts(folder: Path, rows: Counts, notes: list[str]) -> list[str | None]:
    """What the examples say; a link to a cache that was cleared since is no reason to show nothing else."""
    if not rows.size:
        return []
    try:
        pool = Pool.open(folder, verify=False)
        texts = [pool.text(i) for i in rows.tolist()]
    except (StateError, OSError, IndexError):
        name = folder.parent.name
        notes.append(f"The texts of {name} are not shown: pools/{name} leads to no pool. Its cache may be cleared.")
        return [None] * rows.size
    return [t if len(t) <= _LONGEST else f"{t[:_LONGEST]}… ({len(t):,} characters in all)" for t in texts]
