r"""What came of a contest, and the folder that holds it: contest.json, table.md, and a folder for each run.

    {"format": "srt_peft contest", "version": 1, "complete": true,
     "recipe": {…}, "identity": {"base": …, "corpus": …, "suites": [[name, settings], …]},
     "entries": ["cpt", "srt"], "seeds": [0, 1], "planned": [["cpt", 0], …]      what was asked for, now or before
     "runs": [{"entry": "srt", "seed": 0, "folder": "srt/seed-0", "exposure": {…: number | null}, "compute": {…},
               "note": "what cannot be told of it" | null}],
     "failed": [{"entry": "srt", "seed": 1, "reason": "…"}],
     "results": [{"title": …, "baselines": {…}, … a comparison against "base", as `tables` describes it}],
     "differences": [{"title": …, "metric": …, "unit": …, "reference": "uniform-epoch", "level": 0.95, "rows": [
        {"label": "srt", "split": "old" | "combined" | …, "seeds": [0, 1], "runs": [a seed's mean, …], "mean": …,
         "between": sd over seeds | null, "low": …, "high": …          a t-interval over seeds; null with one seed
         "question_low": …, "question_high": …, "n": questions, "p": …}]}],
                     the same once more with "reference": "match" and the rows of the schedule that it follows
     "sources": [{"title": …, "metric": …, "unit": …, "questions": {source: number},
        "rows": [{"label": "srt", "sources": {source: {"mean": …, "sd": …}}, "mean": {…}, "worst": source}]}],
     "exposure": {"srt": {"realised_old_share" | "coverage_old" | "coverage_new" | "repeats_old" | "repeats_new" |
                          "empty_steps": {"mean": number | null, "sd": number | null}}},
     "compute": {"srt": {"steps" | "tokens_trained" | "forward_only_tokens" | "first_look_tokens" | "reference_tokens" |
                         "quiz_tokens" | "seconds": {"mean": …, "sd": …}}},
     "sentences": ["…"]}

Means and differences are in the records' own unit (shares of 1, nats a token); a difference is positive where the
entry is better than the reference (see `paired`). Exposure is as `exposure` defines it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from srt_peft.errors import LockedError, OptionError
from srt_peft.evaluation import scoreboard
from srt_peft.evaluation.by_source import BySource
from srt_peft.evaluation.entries import ENTRIES, place_of
from srt_peft.evaluation.evaluate import Result, as_json
from srt_peft.evaluation.exposure import Figures, Spread, over_seeds
from srt_peft.evaluation.paired import Differences
from srt_peft.evaluation.tables import _finite
from srt_peft.review.files import Lock
from srt_peft.training import contested, folder as folders
from srt_peft.training.contested import FILE, FORMAT, VERSION
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import changed, load_recipe
from srt_peft.training.run import _CHANGED
from srt_peft.training.texts import CALLED

BASE, TABLE, LOCK = "base", "table.md", "lock"
_OURS = {BASE, FILE, TABLE, LOCK, "report.html"}
_REFERENCES = ("uniform-epoch", "uniform")


@dataclass(frozen=True)
class Run:
    """One run that is done: where it lies, what it drew, and what it cost."""

    entry: str
    seed: int
    folder: str
    exposure: Figures
    compute: Figures
    note: str | None = None
    """What cannot be told of it."""


@dataclass(frozen=True)
class Failed:
    """One run that came to nothing, and why."""

    entry: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Contest:
    """What came of it, as contest.json has it."""

    folder: Path
    recipe: Recipe
    identity: Mapping[str, Any]
    entries: tuple[str, ...]
    seeds: tuple[int, ...]
    planned: tuple[tuple[str, int], ...] = ()
    """The runs that were asked for, now or before."""
    runs: tuple[Run, ...] = ()
    failed: tuple[Failed, ...] = ()
    results: tuple[Result, ...] = ()
    """One for each view of a suite: a comparison with the base."""
    differences: tuple[Differences, ...] = ()
    """One for each view and reference: the entries against it, paired by seed; and a schedule against `match`."""
    sentences: tuple[str, ...] = ()
    base: str = BASE
    sources: tuple[BySource, ...] = ()
    """What each source of old has lost, for each view whose questions have several (see `by_source`)."""

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return {(run.entry, run.seed) for run in self.runs} >= set(self.planned)

    @property
    def references(self) -> tuple[str, ...]:
        """Who the others are held against: replay without a schedule in either form, where it takes part."""
        return tuple(name for name in _REFERENCES if name in self.entries) or self.entries[:1]

    @property
    def reference(self) -> str:
        """The first of them."""
        return self.references[0]

    @property
    def exposure(self) -> dict[str, dict[str, Spread]]:
        """What each entry drew, over seeds."""
        return {name: over_seeds([run.exposure for run in self.runs if run.entry == name]) for name in self._ran()}

    @property
    def compute(self) -> dict[str, dict[str, Spread]]:
        """What each entry cost, over seeds."""
        return {name: over_seeds([run.compute for run in self.runs if run.entry == name]) for name in self._ran()}

    def _ran(self) -> list[str]:
        return [name for name in self.entries if any(run.entry == name for run in self.runs)]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as contest.json has them."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "complete": self.complete,
            "recipe": self.recipe.as_dict(),
            "identity": self.identity,
            "entries": self.entries,
            "seeds": self.seeds,
            "planned": self.planned,
            "runs": [asdict(run) for run in self.runs],
            "failed": [asdict(one) for one in self.failed],
            "results": [as_json(result) for result in self.results],
            "differences": [asdict(found) for found in self.differences],
            "sources": [asdict(found) for found in self.sources],
            "exposure": self.exposure,
            "compute": self.compute,
            "sentences": self.sentences,
        }
        plain: dict[str, Any] = json.loads(json.dumps(_finite(document)))
        return plain


def told(contest: Contest, style: str) -> str:
    """The contest as tables for a terminal, Markdown or LaTeX, or as contest.json has it."""
    if style == "json":
        return json.dumps(contest.as_dict(), indent=1, ensure_ascii=False) + "\n"
    return scoreboard.written(
        style,
        contest.results,
        contest.differences,
        contest.sources,
        contest.exposure,
        contest.compute,
        contest.sentences,
        contest.recipe.review.old_fraction,
    )


# --- its folder -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def held(found: Contest, say: Callable[[str], None]) -> Iterator[None]:
    """The folder is this contest's and this process's; an interruption tells how to go on."""
    folder = found.folder
    check_place(folder)
    _check_same(found)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(folder / LOCK, "")
    except LockedError:
        raise LockedError(
            f"The comparison in {folder} is being written by another process, or is still open in this one. Wait until "
            "that has ended, and the same command shows what came of it; or name another --output."
        ) from None
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nInterrupted. What was done is kept in {folder}: the same command goes on from there.")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        (folder / LOCK).unlink(missing_ok=True)  # each run has a lock of its own, whoever comes at this moment
        lock.release()


def check_place(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, or that holds what is no comparison; nothing is left of it."""
    what = f"the comparison's folder {folder}"
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = _strange(folder)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise OptionError(what, [f"{error.strerror}: expected a folder, or a path where one can be made"]) from None
    finally:
        for path in new:
            with contextlib.suppress(OSError):
                path.rmdir()
    if (folder / FILE).exists():
        contested.read(folder / FILE)
    elif strange:
        raise OptionError(what, [f"it holds {strange} and no {FILE}: expected a new or empty one"])
    if not writable:
        raise OptionError(what, ["it may not be written: expected one that is yours; name another --output"])


def _strange(folder: Path) -> str | None:
    """The first thing in a folder that no comparison has left there."""
    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    found += [path for entry in found if entry.name in ENTRIES and entry.is_dir() for path in entry.iterdir()]
    ours = {folder / name for name in _OURS | ENTRIES.keys()} | {place_of(folder, *key) for key in runs_in(folder)}
    return min((path.relative_to(folder).as_posix() for path in found if path not in ours), default=None)


def runs_in(folder: Path) -> Iterator[tuple[str, int]]:
    """The runs that lie there, finished or not: their entry and seed."""
    for name in ENTRIES:
        seeds = (path.name.removeprefix("seed-") for path in (folder / name).glob("seed-*") if path.is_dir())
        yield from ((name, seed) for seed in sorted(int(seed) for seed in seeds if re.fullmatch(r"0|[1-9]\d*", seed)))


def _check_same(found: Contest) -> None:
    """Refuse the folder of another comparison."""
    path = found.folder / FILE
    faults = _differing(found, contested.read(path)) if path.exists() else []
    if faults:
        remedy = "name another --output, or remove this one; `srt-peft eval --compare` asks its runs other questions"
        what = f"the comparison's folder {found.folder}, which holds another comparison ({remedy})"
        raise OptionError(what, faults)


def _differing(found: Contest, saved: Mapping[str, Any]) -> list[str]:
    """A line for each thing without which the runs there could not be held against those that are asked for."""
    here, there = found.identity, saved["identity"]
    theirs, ours = load_recipe(saved["recipe"]), found.recipe
    told = changed(
        theirs,
        replace(  # these two are not the recipe's to say here
            ours,
            review=replace(ours.review, scheduler=theirs.review.scheduler),
            training=replace(ours.training, seed=theirs.training.seed),
        ),
        "there",
    )
    told += [
        f"review.{name} is {mine} here and {old} there"  # a run's own options are compared where it is gone on with
        for name in ("preset", "retention")
        if (mine := getattr(ours.review, name)) != (old := getattr(theirs.review, name))
    ]
    told += [
        f"the {CALLED.get(name, name)} is {here.get(name)} here and {there.get(name)} there ({why})"
        for name, why in _CHANGED.items()
        if here.get(name) != there.get(name)
    ]
    names = [", ".join(name for name, _ in each["suites"]) for each in (here, there)]
    if names[0] != names[1]:
        return [*told, f"the suites are {names[0]} here and {names[1]} there"]
    return told + [
        f"what {name} asks is {_brief(mine)} here and {_brief(old)} there (its file was changed, or is another)"
        for (name, mine), (_, old) in zip(here["suites"], there["suites"], strict=True)
        if mine != old
    ]


def _brief(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {str(value)[:16]}" for name, value in settings.items())


def write(found: Contest) -> None:
    """Whole or not at all."""
    folders.replace(found.folder / FILE, told(found, "json"))
    if found.runs:
        folders.replace(found.folder / TABLE, told(found, "markdown"))
