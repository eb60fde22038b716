"""Who takes part in a contest: schedulers as overrides of one recipe, and seeds.

    cpt            new text alone, in shuffled epochs
    uniform        ρ of old, whoever comes: with replacement between draws
    uniform-epoch  the same in shuffled epochs: what is hard to beat
    ppl            the hardest first, by the last perplexity seen
    leitner        boxes in place of SM-2, and else as paper
    paper          the schedule, exactly as the paper writes it
    auto           the schedule as the preset `auto` has it for these texts
    auto-quiz      the same with a quiz before study: `retention: high`
    srt            the schedule with the recipe's own options
    match          what is left of a schedule without its choice of whom: a uniform draw with its counts of old and new;
                   that of the first of paper, auto, srt, auto-quiz that takes part

What an entry does not override is the recipe's own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.review.kinds import SCHEDULERS
from srt_peft.review.options import Options
from srt_peft.training.keys import Recipe
from srt_peft.training.preset import resolve
from srt_peft.training.recipe import load_recipe


@dataclass(frozen=True)
class Entry:
    """One scheduler that takes part, as overrides of the recipe."""

    name: str
    overrides: tuple[str, ...]


# No draw of theirs depends on what a review scores: so no pass for nothing, and no thresholds of another recall.
_UNSCHEDULED = ("review.recall=null", "review.reference=null", "review.thresholds=null", "review.alpha=1.0")
_EPOCHS = ("review.old.order=epoch", "review.new.order=epoch", *_UNSCHEDULED)
_PRESETS = ("recall", "reference", "underfull", "stagger", "decks", "old.order", "new.order", "old.quiz")
_PAPERS = ("thresholds", "alpha", "max_interval", "initial_ease", "min_ease")  # no preset moves what the paper sets
_AS_PRESET = (
    *(f"review.{key}=null" for key in _PRESETS),
    *(f"review.{key}={'null' if (value := getattr(Options, key)) is None else value}" for key in _PAPERS),
)
_REPLACED = ("review.old.order=uniform", "review.new.order=uniform", *_UNSCHEDULED)

ENTRIES: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("cpt", ("review.scheduler=cpt", *_EPOCHS)),  # as training usually goes through a text
        Entry("uniform", ("review.scheduler=uniform", *_REPLACED)),
        Entry("uniform-epoch", ("review.scheduler=uniform", *_EPOCHS)),
        Entry("ppl", ("review.scheduler=ppl",)),
        Entry("leitner", ("review.scheduler=leitner", "review.preset=paper", *_AS_PRESET)),
        Entry("paper", ("review.scheduler=srt", "review.preset=paper", *_AS_PRESET)),
        Entry("auto", ("review.scheduler=srt", "review.preset=auto", "review.retention=normal", *_AS_PRESET)),
        Entry("auto-quiz", ("review.scheduler=srt", "review.preset=auto", "review.retention=high", *_AS_PRESET)),
        Entry("srt", ("review.scheduler=srt",)),
        Entry("match", ("review.scheduler=match", *_REPLACED)),  # another's counts, step by step, of the same seed
    )
}
_MATCHED = ("paper", "auto", "srt", "auto-quiz")  # auto draws as many old ones as uniform does, which tells nothing
_NAMED = ", ".join(_MATCHED)
MOST = 1_000
"""So many trainings of each entry at most: a larger number was meant as a seed."""


def matched(entries: Sequence[str], folder: Path | None = None) -> str | None:
    """Whose counts `match` takes: those that its runs in this folder have, else those of the first schedule here."""
    for recipe in sorted((folder / "match").glob("seed-*/recipe.yaml")) if folder is not None else ():
        named = Path(load_recipe(recipe).review.counts or "").parts  # …/NAME/seed-K/review/log
        if named[-4:-3] and named[-4] in _MATCHED:
            return named[-4]
    return next((name for name in _MATCHED if name in entries), None)


def seeds_of(text: str, entries: Sequence[str] | None = None) -> list[int]:
    """The seeds that a command line names: `3` is a count, 0 to 2; `0,5` is these; `7,` is one.

    Where the entries are given, whatever is wrong with them is told together with what is wrong with the seeds.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    fault = ""
    if not words or not all(word.isdecimal() for word in words):
        fault = f"--seeds = {text!r}: expected how many, such as 3, or which, such as 0,1,2"
    elif "," not in text and (len(text.strip()) > len(str(MOST)) or int(text) > MOST):
        fault = f"--seeds = {words[0]}: expected at most {MOST:,} trainings of each; that seed alone is '{words[0]},'"
    if fault:
        raise OptionError("the comparison", [*([] if entries is None else _faults(entries)), fault])
    found = [int(word) for word in words] if "," in text else list(range(int(text)))
    if entries is not None:
        check(entries, found)
    return found


def check(entries: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse what cannot take part, all of it at once."""
    faults = [*_faults(entries), *_twice("seeds", seeds)]
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        faults.append("the runs follow each other in one process: expected no launcher of several")
    if faults:
        raise OptionError("the comparison", faults)


def _faults(entries: Sequence[str]) -> list[str]:
    """What is wrong with the entries."""
    faults = [
        f"{name!r} is no scheduler{did_you_mean(name, ENTRIES)}; known are {', '.join(ENTRIES)}"
        for name in entries
        if name not in ENTRIES
    ]
    faults += _twice("schedulers", entries)
    if "match" in entries and matched(entries) is None:
        faults.append(
            f"'match' draws as many old and new examples as a schedule does: expected one of {_NAMED} as well"
        )
    return faults


def _twice(what: str, given: Sequence[object]) -> list[str]:
    twice = [str(each) for each, count in Counter(given).items() if count > 1]
    faults = [f"{what}: {', '.join(twice)} is there more than once: expected each once"] if twice else []
    return faults if given else [f"{what}: expected one or more"]


def recipe_of(recipe: Recipe, name: str, seed: int, folder: Path, schedule: str | None = None) -> Recipe:
    """The recipe of one run; `schedule` is whose counts `match` takes. What a scheduler does not know is left out."""
    entry, given = ENTRIES[name], recipe.as_dict()
    scheduler = entry.overrides[0].partition("=")[2]
    kind, review = SCHEDULERS[scheduler], given["review"]
    for pool in ("old", "new"):
        if review[pool]["order"] not in kind.agendas:
            review[pool]["order"] = None
    review["decks"] = review["decks"] if "decks" in kind.extras else None
    review["old"]["quiz"] = review["old"]["quiz"] if "quiz" in kind.extras else None
    counts = place_of(folder, schedule or _MATCHED[0], seed) / "review" / "log"
    review["counts"] = str(counts) if name == "match" else None
    given["training"]["seed"], given["output"] = seed, str(place_of(folder, name, seed))
    tokens, review["old"]["quiz_tokens"] = review["old"]["quiz_tokens"], None
    made = load_recipe(given, entry.overrides)
    if not resolve(made, 1).review.old.quiz:  # which hangs on no number of sources
        return made
    return replace(made, review=replace(made.review, old=replace(made.review.old, quiz_tokens=tokens)))


def recipes_of(
    recipe: Recipe, keys: Sequence[tuple[str, int]], folder: Path, schedule: str | None
) -> dict[tuple[str, int], Recipe]:
    """The recipe of each of these runs, by entry and seed; or what is wrong with any of them, all in one error."""
    made, faults = {}, dict[str, list[str]]()
    for name, seed in keys:
        try:
            made[name, seed] = recipe_of(recipe, name, seed, folder, schedule)
        except OptionError as error:
            for fault in error.faults:
                faults.setdefault(fault, []).append(name)
    if faults:
        told = [f"{', '.join(dict.fromkeys(names))}: {fault}" for fault, names in faults.items()]
        raise OptionError("the comparison", told)
    return made


def place_of(folder: Path, name: str, seed: int) -> Path:
    """The folder of one run."""
    return folder / name / f"seed-{seed}"
