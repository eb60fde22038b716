"""The contest: one recipe under several schedulers, with several seeds, run by run.

    equal        base, texts, steps, batch size, learning rate; for equal seeds, initial weights and the draws' seed
    different    the scheduler; between seeds, `training.seed`

Each run is an ordinary one, in FOLDER/NAME/seed-K, and goes on where it was stopped; so does the contest. After each
run FOLDER/contest.json and table.md are written (see `outcome`). Finished runs that an earlier call has left there stay
in both, whatever is asked for now. A run that diverges is told of, and the others go on. Means and differences are in
the records' own unit (shares of 1, nats a token); a difference is positive where the entry is better than the reference
(see `paired`). Exposure is as `exposure` defines it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from srt_peft.errors import DamagedError, DivergedError, OptionError, StateError
from srt_peft.evaluation import suites
from srt_peft.evaluation.by_source import by_source
from srt_peft.evaluation.compare import compare
from srt_peft.evaluation.entries import ENTRIES, Entry, check, matched, place_of, recipe_of, recipes_of, seeds_of
from srt_peft.evaluation.evaluate import Result
from srt_peft.evaluation.exposure import compute_of, exposure_of, lacking, unequal
from srt_peft.evaluation.outcome import BASE, Contest, Failed, Run, check_place, held, runs_in, told, write
from srt_peft.evaluation.paired import differences, in_words
from srt_peft.evaluation.suites import Asked, Model, Options, View, ask
from srt_peft.evaluation.targets import Target, target_of
from srt_peft.training import checkpoint, folder as folders
from srt_peft.training.base import adapter_fingerprint, adapter_folder, check_base, fingerprint, load_tokenizer
from srt_peft.training.contested import FILE
from srt_peft.training.keys import Recipe
from srt_peft.training.loop import train
from srt_peft.training.preset import resolve
from srt_peft.training.recipe import changed, load_recipe
from srt_peft.training.schedule import steps_of, warmup_note
from srt_peft.training.texts import CALLED, Texts, check_there, notes, read

__all__ = ["BASE", "ENTRIES", "Contest", "Entry", "Failed", "Run", "check", "contest", "no_bars", "seeds_of", "told"]

Say = Callable[[str], None]
Key = tuple[str, int]
"""A run: its entry and its seed."""
Views = dict[Key, list[View]]
_NO_OLD = (
    "There is no old text (data.old): nothing can be forgotten or reviewed, and the entries differ in nothing but the "
    "order in which new text comes."
)


@dataclass(frozen=True)
class _Stage:
    """What all runs have in common."""

    asked: Sequence[Asked]
    options: Options
    base: Target
    precision: str
    texts: Texts
    identity: Mapping[str, Any]
    notes: Sequence[str]


def contest(
    recipe: Recipe,
    *,
    entries: Sequence[str],
    seeds: Sequence[int],
    asked: Sequence[Asked],
    folder: Path,
    say: Say,
    options: Options | None = None,
) -> Contest:
    """Run what is not yet run, ask every result, and write it all down; interrupted, the same call goes on."""
    check(entries, seeds)
    check_place(folder)
    schedule = _schedule(entries, folder)
    last = sorted(entries, key=lambda name: name == "match")  # after the run whose counts it takes
    runs = recipes_of(recipe, [(name, seed) for seed in seeds for name in last], folder, schedule)
    stage = _set(recipe, asked, options or Options())
    found = Contest(folder, recipe, stage.identity, tuple(entries), tuple(seeds))
    views: Views = {}
    taken: list[float] = []
    with held(found, say), contextlib.ExitStack() as shown:
        kept = _kept(found, stage, runs, schedule)
        found = _planned(found, runs, kept)
        if not (folder / FILE).exists():
            write(found)
        say("\n".join([*stage.notes, *_told(kept), f"The base is asked first: {recipe.model.base}."]))
        of_base = ask(Model(stage.base, stage.precision), asked, stage.options, folder / BASE)
        shown.enter_context(no_bars())  # how long it takes to load the base was seen now
        for key in kept:
            found, views[key] = _with(found, stage, key)
        for number, (key, mine) in enumerate(runs.items()):
            left = _left(taken, len(runs) - number)
            which = f"Run {number + 1} of {len(runs)}: {key[0]}, seed {key[1]}"
            begun, failed, trained = time.monotonic(), _follows(found, key, schedule), True
            try:
                trained = not failed and _train(mine, stage, say, which, left)
            except DivergedError as error:
                failed = error.fact
            if failed:
                say(f"{which} has failed. {failed}")
                found = replace(found, failed=(*found.failed, Failed(*key, failed)))
            else:
                found, views[key] = _with(found, stage, key)
            if trained or number + 1 == len(runs):  # what was there already was written then
                found = _judged(found, stage, of_base, views)
                write(found)
            taken += [time.monotonic() - begun] if trained else []
    return found


def _schedule(entries: Sequence[str], folder: Path) -> str | None:
    """Whose counts `match` takes, which must take part."""
    found = matched(entries, folder)
    if "match" in entries and found not in entries:
        fault = f"'match' follows {found!r} in {folder}: expected {found!r} as well, or another --output"
        raise OptionError("the comparison", [fault])
    return found


def _kept(found: Contest, stage: _Stage, runs: Mapping[Key, Recipe], schedule: str | None) -> list[Key]:
    """The finished runs that nobody has asked for now; where no contest.json vouches for them, all are looked at."""
    vouched, kept, faults = (found.folder / FILE).exists(), [], []
    for key in runs_in(found.folder):
        if vouched and key in runs:  # which is looked at when its turn comes
            continue
        mine = runs.get(key) or recipe_of(found.recipe, *key, found.folder, schedule)
        newest, _ = checkpoint.newest(Path(mine.output))
        differing = [] if newest is None else _differing(newest, mine, stage)
        faults += [f"{key[0]}/seed-{key[1]}: {fault}" for fault in differing]
        if newest is not None and not differing and key not in runs and _is_finished(newest, mine, stage):
            kept.append(key)
    if faults and not vouched:
        what = f"the comparison's folder {found.folder}, which has no {FILE} and runs of another comparison"
        raise OptionError(what, faults, most=6)
    return kept


def _planned(found: Contest, runs: Mapping[Key, Recipe], kept: Sequence[Key]) -> Contest:
    """The contest over what is asked for, and then over what is there beside."""
    entries = dict.fromkeys([*found.entries, *(name for name, _ in kept)])
    seeds = dict.fromkeys([*found.seeds, *sorted(seed for _, seed in kept)])
    planned = tuple(key for name in entries for seed in seeds if (key := (name, seed)) in runs or key in kept)
    return replace(found, entries=tuple(entries), seeds=tuple(seeds), planned=planned)


def _told(kept: Sequence[Key]) -> Iterator[str]:
    if kept:
        by = {name: ", ".join(str(seed) for entry, seed in kept if entry == name) for name, _ in kept}
        listed = "; ".join(f"{name}, seed {seeds}" for name, seeds in by.items())
        yield f"Finished before, and shown with what is asked for now: {listed}."


def _follows(found: Contest, key: Key, schedule: str | None) -> str:
    """Why a run cannot begin: `match` follows another, of the same seed, which may have failed."""
    name, seed = key
    failed = any((one.entry, one.seed) == (schedule, seed) for one in found.failed)
    return f"It follows {schedule}, seed {seed}, which has failed." if name == "match" and failed else ""


def _set(recipe: Recipe, asked: Sequence[Asked], options: Options) -> _Stage:
    """Read texts and questions, so that what is wrong with them is told before anything is trained."""
    model = recipe.model
    check_there(recipe)
    check_base(model.base, model.revision, model.adapter, recipe.data.max_length)
    adapter = None if model.adapter is None else adapter_folder(model.adapter)
    at = Path(model.base)
    base = Target(BASE, model.base, model.revision, adapter, at if at.is_dir() else None, recipe)
    texts = read(recipe, load_tokenizer(model.base, model.revision))
    settings = [[one.name, suites.SUITES[one.name].prepare(one.source, base, options).settings] for one in asked]
    weights = {"base": fingerprint(model.base, model.revision)}
    if model.adapter is not None:
        weights["adapter"] = adapter_fingerprint(model.adapter)
    identity = {**weights, **texts.identity, "suites": settings}
    precision = base.precision(None, gpu=torch.cuda.is_available())
    warm = warmup_note(recipe, steps_of(recipe, len(texts.corpus.new)))
    common = [*notes(recipe, texts), *([warm] if warm else []), *([] if texts.corpus.n_old else [_NO_OLD])]
    return _Stage(asked, options, base, precision, texts, json.loads(json.dumps(identity)), common)


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """No bars for the loading of weights, which every run of a contest would show twice."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


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
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # how one run is loaded, or gone on with by itself
            train(mine, resume=bool(newest or faults), evaluate=evaluate, terse=True, interrupts=True)
    finally:
        gc.collect()  # a model is held by cycles, and the next is as large
    return True


def _differing(newest: Path, mine: Recipe, stage: _Stage) -> list[str]:
    """What tells the run of this checkpoint from the one that is asked for."""
    saved = _saved(newest)
    told = changed(load_recipe(saved["recipe"]), resolve(mine, stage.texts.sources), "there")
    return told + [
        f"the {CALLED.get(name, name)} is {value} here and {saved['identity'].get(name)} there"
        for name, value in stage.identity.items()
        if name != "suites" and saved["identity"].get(name) != value
    ]


def _is_finished(newest: Path, mine: Recipe, stage: _Stage) -> bool:
    """Whether this is the end of this very run. Where it is another's, `train` tells what differs."""
    done = _saved(newest)["step"] >= stage.texts.first + steps_of(mine, len(stage.texts.corpus.new))
    return bool(done and not _differing(newest, mine, stage))


def _saved(newest: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads((newest / "trainer" / "trainer.json").read_text(encoding="utf-8"))
    return saved


def _with(found: Contest, stage: _Stage, key: Key) -> tuple[Contest, list[View]]:
    """The contest with a run that is there, and what that answers."""
    views = _ask(stage, place_of(found.folder, *key))
    return replace(found, runs=(*found.runs, _done(stage, found.folder, *key))), views


def _ask(stage: _Stage, run: Path) -> list[View]:
    target = target_of(str(run))
    assert target.folder is not None, "a run's newest checkpoint is a folder"
    views = ask(Model(target, stage.precision), stage.asked, stage.options, run / "evaluation" / target.folder.name)
    gc.collect()
    return views


def _done(stage: _Stage, folder: Path, name: str, seed: int) -> Run:
    """What the run that is there drew and cost."""
    corpus, place = stage.texts.corpus, place_of(folder, name, seed)
    log, metrics, recipe = place / folders.REVIEW / "log", place / folders.METRICS, place / folders.RECIPE
    try:
        if not recipe.is_file():
            raise StateError(f"{recipe} is missing.")  # noqa: TRY301 - one remedy for all that may be damaged
        return Run(
            name,
            seed,
            place.relative_to(folder).as_posix(),
            exposure_of(log, (corpus.n_old - stage.texts.superseded.size, len(corpus.new))),
            compute_of(metrics),
            lacking(log, metrics),
        )
    except StateError as error:
        remedy = f"The run is finished, but cannot be told of: remove {place}, and the same command trains it anew."
        raise DamagedError(f"{error} {remedy}") from error


def _judged(found: Contest, stage: _Stage, of_base: Sequence[View], views: Views) -> Contest:
    """The contest with what is to be said of the runs so far, in the order that was asked for."""
    order = [key for key in found.planned if key in views]
    runs = {(run.entry, run.seed): run for run in found.runs}
    results, paired, sources = [], [], []
    for i, base in enumerate(of_base if order else ()):
        records = {key: views[key][i].records for key in order}
        targets = [(BASE, base.records), *((name, records[name, seed]) for name, seed in order)]
        compared = compare(base.title, targets, metric=base.metric, base=BASE)
        trainings = {name: [records[key] for key in order if key[0] == name] for name, _ in order}
        sources.append(by_source(base.title, base.metric, base.records, trainings))
        results.append(Result(base.title, compared, views[order[-1]][i].baselines))
        conditions = {name: {s: records[n, s] for n, s in order if n == name} for name, _ in order}
        for reference, others in _pairs(found, list(conditions)):
            held_against = {name: conditions[name] for name in (*others, reference)}
            paired.append(differences(base.title, base.metric, held_against, reference))
    made = replace(found, runs=tuple(runs[key] for key in order), results=tuple(results), differences=tuple(paired))
    made = replace(made, sources=tuple(found for found in sources if found))
    return replace(made, sentences=tuple(_sentences(made, stage)))


def _pairs(found: Contest, ran: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Whom the others are held against, no two of them twice; and `match`, by the schedule whose counts it has."""
    references = [name for name in found.references if name in ran]
    for i, reference in enumerate(references):
        yield reference, [name for name in ran if name not in references[: i + 1]]
    schedule = matched(ran, found.folder)
    if schedule and {schedule, "match"} <= set(ran) and not {schedule, "match"} & set(references):
        yield "match", [schedule]


def _sentences(found: Contest, stage: _Stage) -> Iterator[str]:
    """What is to be said in words, what cannot be told above all."""
    for one in found.failed:
        yield (
            f"{one.entry}, seed {one.seed}, has failed and stands in no table: {one.reason} The same command tries it "
            "again from its newest checkpoint; a lower training.learning_rate for all is another comparison, with "
            "another --output."
        )
    yield from (f"{run.entry}, seed {run.seed}: {run.note}." for run in found.runs if run.note)
    if not stage.texts.corpus.n_old:
        yield _NO_OLD
    yield from in_words(found.differences)
    if found.runs:
        yield from unequal(found.exposure, found.compute, found.recipe.review.old_fraction)
