r"""The contest: one recipe under several schedulers, with several seeds, and what came of it.

    equal        base, texts, steps, batch size, learning rate; for equal seeds, initial weights and the draws' seed
    different    the scheduler; between seeds, `training.seed`

Each run is an ordinary one, in FOLDER/NAME/seed-K, and goes on where it was stopped; so does the contest. After each
run FOLDER/contest.json and table.md are written:

    {"format": "srt_peft contest", "version": 1, "complete": true,
     "recipe": {…}, "identity": {"base": …, "corpus": …, "suites": [[name, settings], …]},
     "entries": ["cpt", "srt"], "seeds": [0, 1],
     "runs": [{"entry": "srt", "seed": 0, "folder": "srt/seed-0", "exposure": {…: number | null}, "compute": {…}}],
     "results": [{"title": …, "baselines": {…}, … a comparison against "base", as `tables` describes it}],
     "differences": [{"title": …, "metric": …, "unit": …, "reference": "uniform-epoch", "level": 0.95, "rows": [
        {"label": "srt", "split": "old" | "combined" | …, "seeds": [0, 1], "runs": [a seed's mean, …], "mean": …,
         "between": sd over seeds | null, "low": …, "high": …          a t-interval over seeds; null with one seed
         "question_low": …, "question_high": …, "n": questions, "p": …}]}],
     "exposure": {"srt": {"realised_old_share" | "coverage_old" | "coverage_new" | "repeats_old" | "repeats_new" |
                          "empty_steps": {"mean": number | null, "sd": number | null}}},
     "compute": {"srt": {"steps" | "tokens_trained" | "forward_only_tokens" | "seconds": {"mean": …, "sd": …}}},
     "sentences": ["…"]}

Means and differences are in the records' own unit (shares of 1, nats a token); a difference is positive where the
entry is better than the reference (see `paired`). Exposure is as `exposure` defines it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from srt_peft.data.pool import Corpus
from srt_peft.errors import DamagedError, OptionError, VersionError
from srt_peft.evaluation import scoreboard, suites
from srt_peft.evaluation.compare import compare
from srt_peft.evaluation.entries import ENTRIES, Entry, check, place_of, recipe_of, seeds_of
from srt_peft.evaluation.evaluate import Result, as_json
from srt_peft.evaluation.exposure import Figures, Spread, compute_of, exposure_of, over_seeds, unequal
from srt_peft.evaluation.paired import Differences, differences, in_words
from srt_peft.evaluation.suites import Asked, Model, Options, View, ask
from srt_peft.evaluation.tables import _finite
from srt_peft.evaluation.targets import Target, target_of
from srt_peft.review.files import Lock
from srt_peft.training import checkpoint, folder as folders
from srt_peft.training.base import adapter_folder, fingerprint, load_tokenizer
from srt_peft.training.keys import Recipe
from srt_peft.training.loop import train
from srt_peft.training.recipe import changed, load_recipe
from srt_peft.training.run import _check_inputs, corpora
from srt_peft.training.schedule import steps_of

__all__ = ["ENTRIES", "Contest", "Entry", "Run", "check", "contest", "seeds_of", "told"]

BASE, FILE, TABLE = "base", "contest.json", "table.md"
FORMAT, VERSION = "srt_peft contest", 1


_REFERENCES = ("uniform-epoch", "uniform")


@dataclass(frozen=True)
class Run:
    """One run that is done: where it lies, what it drew, and what it cost."""

    entry: str
    seed: int
    folder: str
    exposure: Figures
    compute: Figures


@dataclass(frozen=True)
class Contest:
    """What came of it, as contest.json has it."""

    folder: Path
    recipe: Recipe
    identity: Mapping[str, Any]
    entries: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[Run, ...] = ()
    results: tuple[Result, ...] = ()
    """One for each view of a suite: a comparison with the base."""
    differences: tuple[Differences, ...] = ()
    """One for each view as well: the entries against the reference, paired by seed."""
    sentences: tuple[str, ...] = ()
    base: str = BASE

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return len(self.runs) == len(self.entries) * len(self.seeds)

    @property
    def reference(self) -> str:
        """The entry that the others are held against: replay without a schedule, where it takes part."""
        return next((name for name in _REFERENCES if name in self.entries), self.entries[0])

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
            "runs": [asdict(run) for run in self.runs],
            "results": [as_json(result) for result in self.results],
            "differences": [asdict(found) for found in self.differences],
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
        contest.exposure,
        contest.compute,
        contest.sentences,
        contest.recipe.review.old_fraction,
    )


# --- the contest --------------------------------------------------------------------------------------------------

Say = Callable[[str], None]
Views = dict[tuple[str, int], list[View]]


@dataclass(frozen=True)
class _Stage:
    """What all runs have in common."""

    asked: Sequence[Asked]
    base: Target
    precision: str
    corpus: Corpus
    identity: Mapping[str, Any]


def contest(
    recipe: Recipe,
    *,
    entries: Sequence[str],
    seeds: Sequence[int],
    asked: Sequence[Asked],
    folder: Path,
    say: Say,
) -> Contest:
    """Run what is not yet run, ask every result, and write it all down; interrupted, the same call goes on."""
    check(entries, seeds)
    runs = {
        (name, seed): recipe_of(recipe, name, seed, folder)
        for seed in seeds
        for name in sorted(entries, key=lambda name: name == "match")  # after the run whose counts it takes
    }
    stage = _set(recipe, asked)
    found = Contest(folder, recipe, stage.identity, tuple(entries), tuple(seeds))
    views: Views = {}
    taken: list[float] = []
    with _held(found, say):
        if not (folder / FILE).exists():
            _write(found)
        say(f"The base is asked first: {recipe.model.base}.")
        of_base = ask(Model(stage.base, stage.precision), asked, Options(), folder / BASE)
        for number, ((name, seed), mine) in enumerate(runs.items()):
            left = _left(taken, len(runs) - number)
            which = f"Run {number + 1} of {len(runs)}: {name}, seed {seed}"
            begun, trained = time.monotonic(), _train(mine, stage, say, which, left)
            views[name, seed] = _ask(stage, Path(mine.output))
            found = replace(found, runs=(*found.runs, _done(stage, folder, name, seed)))
            if trained or number + 1 == len(runs):  # what was there already was written then
                found = _judged(found, of_base, views)
                _write(found)
            taken += [time.monotonic() - begun] if trained else []
    return found


def _set(recipe: Recipe, asked: Sequence[Asked]) -> _Stage:
    """Read texts and questions, so that what is wrong with them is told before anything is trained."""
    _check_inputs(recipe, None)
    model = recipe.model
    adapter = None if model.adapter is None else adapter_folder(model.adapter)
    at = Path(model.base)
    base = Target(BASE, model.base, model.revision, adapter, at if at.is_dir() else None, recipe)
    corpus, _ = corpora(recipe, load_tokenizer(model.base, model.revision))
    settings = [[one.name, suites.SUITES[one.name].prepare(one.source, base, Options()).settings] for one in asked]
    identity = {"base": fingerprint(model.base, model.revision), "corpus": corpus.fingerprint, "suites": settings}
    precision = base.precision(None, gpu=torch.cuda.is_available())
    return _Stage(asked, base, precision, corpus, json.loads(json.dumps(identity)))


def _left(taken: Sequence[float], runs: int) -> str:
    """About how long it will be, by what the runs before have taken."""
    if not taken:
        return ""
    seconds = sum(taken) / len(taken) * runs
    return f"; about {f'{seconds / 60:.0f} minutes' if seconds >= 100 else f'{seconds:.0f} seconds'} left"


def _train(mine: Recipe, stage: _Stage, say: Say, which: str, left: str) -> bool:
    """Train one run, or go on with it; whether there was anything to do."""
    newest, faults = checkpoint.newest(Path(mine.output))
    if newest is not None and _is_finished(newest, mine, stage):
        say(f"{which} is there already.")
        return False
    say(f"{which}{left}.")
    words = suites.parse(mine.evaluation.suites)
    evaluate = partial(suites.in_training, words) if words else None
    with contextlib.redirect_stdout(io.StringIO()):  # how one run is loaded, or gone on with by itself
        code = train(mine, resume=bool(newest or faults), evaluate=evaluate)
    gc.collect()  # a model is held by cycles, and the next is as large
    if code:
        raise KeyboardInterrupt
    return True


def _is_finished(newest: Path, mine: Recipe, stage: _Stage) -> bool:
    """Whether this is the end of this very run. Where it is another's, `train` tells what differs."""
    saved = json.loads((newest / "trainer" / "trainer.json").read_text(encoding="utf-8"))
    same = all(saved["identity"].get(name) == stage.identity[name] for name in ("base", "corpus"))
    done = saved["step"] >= steps_of(mine, len(stage.corpus.new))
    return bool(same and done and not changed(load_recipe(saved["recipe"]), mine))


def _ask(stage: _Stage, run: Path) -> list[View]:
    target = target_of(str(run))
    assert target.folder is not None, "a run's newest checkpoint is a folder"
    views = ask(Model(target, stage.precision), stage.asked, Options(), run / "evaluation" / target.folder.name)
    gc.collect()
    return views


def _done(stage: _Stage, folder: Path, name: str, seed: int) -> Run:
    """What the run that is there drew and cost."""
    corpus, place = stage.corpus, place_of(folder, name, seed)
    scored = int(corpus.old.lengths.sum() + corpus.new.lengths.sum()) if name == "ppl" else 0
    return Run(
        name,
        seed,
        place.relative_to(folder).as_posix(),
        exposure_of(place / folders.REVIEW / "log", (len(corpus.old), len(corpus.new))),
        compute_of(place / folders.METRICS, forward_only=scored),
    )


def _judged(found: Contest, of_base: Sequence[View], views: Views) -> Contest:
    """The contest with what is to be said of the runs so far, in the order that was asked for."""
    order = [(name, seed) for name in found.entries for seed in found.seeds if (name, seed) in views]
    runs = {(run.entry, run.seed): run for run in found.runs}
    results, paired = [], []
    for i, base in enumerate(of_base):
        records = {key: views[key][i].records for key in order}
        targets = [(BASE, base.records), *((name, records[name, seed]) for name, seed in order)]
        compared = compare(base.title, targets, metric=base.metric, base=BASE)
        results.append(Result(base.title, compared, views[order[-1]][i].baselines))
        conditions = {name: {s: records[n, s] for n, s in order if n == name} for name, _ in order}
        if found.reference in conditions:
            paired.append(differences(base.title, base.metric, conditions, found.reference))
    made = replace(found, runs=tuple(runs[key] for key in order), results=tuple(results), differences=tuple(paired))
    rho = made.recipe.review.old_fraction
    return replace(made, sentences=(*in_words(paired), *unequal(made.exposure, made.compute, rho)))


# --- its folder -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _held(found: Contest, say: Say) -> Iterator[None]:
    """The folder is this contest's and this process's; an interruption tells how to go on."""
    folder = found.folder
    _check_folder(found)
    lock = Lock(folder / "lock", f"The comparison in {folder}")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nInterrupted. What was done is kept in {folder}: the same command goes on from there.")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        lock.release()


def _check_folder(found: Contest) -> None:
    """Refuse a folder of anything else, another comparison above all."""
    folder, path = found.folder, found.folder / FILE
    what = f"the comparison's folder {folder}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = sorted(p.name for p in folder.iterdir() if p.name != "lock" and not p.name.startswith("."))
    except OSError as error:
        raise OptionError(what, [f"{error.strerror}: expected a folder, or a path where one can be made"]) from None
    if path.exists():
        faults = _differing(found, _read(path))
        remedy = "name another --output, or remove this one; `srt-peft eval --compare` asks its runs other questions"
        faults += [f"so it holds another comparison: {remedy}"] if faults else []
    else:
        faults = [f"it holds {strange[0]} and no {FILE}: expected a new or empty one"] if strange else []
    if faults:
        raise OptionError(what, faults)


def _read(path: Path) -> dict[str, Any]:
    try:
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = saved["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise DamagedError(f"{path} is damaged: expected what a comparison wrote. Remove it, or name another --output.")
    if saved["version"] != VERSION:
        raise VersionError(f"{path} is of version {saved['version']!r}; this srt-peft reads {VERSION}. Upgrade it.")
    return saved


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
        f"the {name} is {here[name]} here and {there[name]} there ({why})"
        for name, why in (("base", "other weights"), ("corpus", "other text, or another tokenizer"))
        if here[name] != there[name]
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


def _write(found: Contest) -> None:
    """Whole or not at all."""
    folders.replace(found.folder / FILE, told(found, "json"))
    if found.runs:
        folders.replace(found.folder / TABLE, told(found, "markdown"))
