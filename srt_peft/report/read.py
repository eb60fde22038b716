"""A run's folder, read: the numbers behind the pictures, small however long the run was.

Metrics are averaged over windows of steps, the log is read a part at a time, and the state's columns are counted where
they are mapped. What is missing or torn is left out, and told in `notes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]

from srt_peft.data.pool import Pool
from srt_peft.errors import DamagedError, OptionError, StateError, VersionError
from srt_peft.review import ReviewLog, ReviewState, files
from srt_peft.review.census import Census, count
from srt_peft.review.journal import Counts, Floats, Journal, Windows, read_journal

POOLS = ("old", "new")
HARDEST = 12
"""How many of each pool are shown."""
_LONGEST = 2_000  # characters of an example's text


@dataclass(frozen=True)
class Decks:
    """How the old slots were shared. Arrays of windows have a column a deck."""

    names: list[str]
    sizes: Counts
    """Old examples of each."""
    slots: Counts
    """[window, deck]."""
    forgetting: Floats
    """[window, deck]: the mean of what it was found to have lost."""

    @property
    def drawn(self) -> Counts:
        """Those that slots went to, the most first; a source of new text alone has none."""
        total = self.slots.sum(axis=0)
        order = np.argsort(-total, kind="stable")
        drawn: Counts = order[total[order] > 0]
        return drawn

    def largest(self, most: int) -> list[int]:
        """The decks to be shown, in their own order: those with the most slots."""
        return sorted(self.drawn[:most].tolist())

    def left_out(self, most: int) -> str:
        """What is not shown."""
        more = self.drawn.size - most
        return f" The {most} decks with the most slots are shown, and {more:,} are not." if more > 0 else ""


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
    forward_only: int = 0
    """Tokens of passes from which nothing is learned."""
    passes: tuple[Mapping[str, Any], ...] = ()
    """Those before the first step."""
    decks: Decks | None = None
    quiz: Counts | None = None
    """[window, (asked, passed)]: old examples before the steps."""


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
    recipe = _recipe(folder / "recipe.yaml")
    course = read_course(folder / "metrics.jsonl", notes)
    state = ReviewState.open(folder / "review" / "state", live=True)
    journal = None
    if (folder / "review" / "log").is_file():
        journal = _journal(folder / "review" / "log", state.n, course, notes)
    else:
        notes.append("There is no review log: what it would show is left out.")
    census = count(state)
    return Run(folder, recipe, course, journal, census, _hardest(folder, state, journal, notes, text=text), notes)


def _recipe(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise DamagedError(f"{path} is damaged ({reason}): expected the recipe as the run has resolved it.") from None


def _journal(path: Path, examples: int, course: Course | None, notes: list[str]) -> Journal | None:
    """The review log, and what it lacks of the steps that metrics.jsonl has: it may have been cut, or begun anew."""
    try:
        with ReviewLog(path) as log:
            log.check_valid()
            if course is not None:
                first, last = course.windows.first, course.windows.last
                logged = np.zeros(last - first + 1, dtype=np.bool_)
                for part in log.parts():
                    steps = part["step"][(part["step"] >= first) & (part["step"] <= last)]
                    logged[steps - first] = True
                if gone := int(np.count_nonzero(~logged)):
                    told = f"The review log lacks {gone:,} of {logged.size:,} steps: its pictures show the others."
                    notes.append(f"{told} One that was set aside as damaged lies beside it, as log.damaged-STEP.")
        return read_journal(path, examples=examples)
    except DamagedError as error:
        raise DamagedError(f"{error} Move it elsewhere, and the page is drawn without it.") from None


# --- metrics.jsonl --------------------------------------------------------------------------------------------------

DECKS = "decks.json"
_LISTS = ("slots", "forgetting", "asked", "passed", "forward_only_tokens")
_COLUMNS = ("step", "loss", "tokens", "seconds", "old", "new", "due_old", "due_new")


def read_course(path: Path, notes: list[str]) -> Course | None:
    """The metrics, averaged over windows; None where there are none yet."""
    rows: list[tuple[float, ...]] = []
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
    passes: dict[str, Mapping[str, Any]] = {}
    measured: dict[str, tuple[list[int], list[float]]] = {}
    torn = 0
    for line in _lines(path):
        try:
            said = json.loads(line)
            if "loss" in said:
                rows.append(tuple(map(float, (said[name] for name in _COLUMNS))))
                for name, column in lists.items():
                    column.append(said.get(name))
                continue
            if "pass" in said:
                passes[said["pass"]] = {name: int(said[name]) for name in ("examples", "forward_only_tokens")}
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
    if not rows:
        return None
    made = _course(np.array(rows), measured)
    return replace(made, **_beside(made.windows, [int(row[0]) for row in rows], lists, passes, path.with_name(DECKS)))


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


def _beside(
    windows: Windows, steps: list[int], lists: Mapping[str, list[Any]], passes: Mapping[str, Any], names: Path
) -> dict[str, Any]:
    """What only some runs have: passes, decks and a quiz."""
    at = windows.of(np.array(steps))

    def total(name: str) -> Floats | None:
        values = lists[name]
        if any(value is None for value in values) or len({np.size(value) for value in values}) != 1:
            return None
        table = np.array(values, dtype=np.float64).reshape(len(values), -1)
        into = np.zeros((windows.count, table.shape[1]))
        np.add.at(into, at, table)
        return into

    slots, forgetting, asked, passed = map(total, ("slots", "forgetting", "asked", "passed"))
    forward = sum(value or 0 for value in lists["forward_only_tokens"])
    found: dict[str, Any] = {
        "forward_only": forward + sum(one["forward_only_tokens"] for one in passes.values()),
        "passes": tuple({"name": name, **one} for name, one in passes.items()),
    }
    if slots is not None and forgetting is not None and slots.shape == forgetting.shape:
        counted = np.bincount(at, minlength=windows.count)[:, None]
        told = _named(names, slots.shape[1])
        with np.errstate(invalid="ignore"):
            found["decks"] = Decks(*told, slots.astype(np.int64), forgetting / counted)
    if asked is not None and passed is not None and asked.any():
        found["quiz"] = np.hstack([asked, passed]).astype(np.int64)
    return found


def _named(path: Path, count: int) -> tuple[list[str], Counts]:
    """The decks' names and sizes, where the run has told them; clusters are named by what tells them apart."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        names = [", ".join(deck.get("words") or [])[:40] or str(deck["name"]) for deck in told]
        sizes = np.array([int(deck["old"]) for deck in told], dtype=np.int64)
        if len(told) == count:
            return names, sizes
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return [f"deck {g + 1}" for g in range(count)], np.zeros(count, dtype=np.int64)


# --- the review state -----------------------------------------------------------------------------------------------


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
    except (StateError, OSError, IndexError) as error:
        name = folder.parent.name
        gone = f"pools/{name} leads to no pool. Its cache may be cleared."
        notes.append(f"The texts of {name} are not shown: {error if isinstance(error, VersionError) else gone}")
        return [None] * rows.size
    return [t if len(t) <= _LONGEST else f"{t[:_LONGEST]}… ({len(t):,} characters in all)" for t in texts]
