"""Who takes part in a contest: schedulers as overrides of one recipe, and seeds.

    cpt            new text alone, in shuffled epochs
    uniform        ρ of old, whoever comes: with replacement between draws
    uniform-epoch  the same in shuffled epochs: what is hard to beat
    ppl            the hardest first, by the last perplexity seen
    leitner        boxes in place of SM-2
    srt            the schedule
    match          what is left of it without its choice of whom: a uniform draw with srt's own counts of old and new

What an entry does not override is the recipe's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.review.kinds import SCHEDULERS
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe


@dataclass(frozen=True)
class Entry:
    """One scheduler that takes part, as overrides of the recipe."""

    name: str
    overrides: tuple[str, ...]


_EPOCHS = ("review.old.order=epoch", "review.new.order=epoch")
_REPLACED = ("review.old.order=uniform", "review.new.order=uniform")

ENTRIES: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("cpt", ("review.scheduler=cpt", *_EPOCHS)),  # as training usually goes through a text
        Entry("uniform", ("review.scheduler=uniform", *_REPLACED)),
        Entry("uniform-epoch", ("review.scheduler=uniform", *_EPOCHS)),
        Entry("ppl", ("review.scheduler=ppl",)),
        Entry("leitner", ("review.scheduler=leitner",)),
        Entry("srt", ("review.scheduler=srt",)),
        Entry("match", ("review.scheduler=match", *_REPLACED)),  # srt's own counts, step by step, of the same seed
    )
}
_MATCHED = "srt"


def seeds_of(text: str) -> list[int]:
    """The seeds that a command line names: `3` is a count, 0 to 2; `0,5` is these; `7,` is one."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        fault = f"--seeds = {text!r}: expected how many, such as 3, or which, such as 0,1,2"
        raise OptionError("compare", [fault])
    return [int(word) for word in words] if "," in text else list(range(int(text)))


def check(entries: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse what cannot take part, all of it at once."""
    faults = [
        f"{name!r} is no scheduler{did_you_mean(name, ENTRIES)}; known are {', '.join(ENTRIES)}"
        for name in entries
        if name not in ENTRIES
    ]
    for what, given in (("schedulers", entries), ("seeds", seeds)):
        twice = [str(each) for each in dict.fromkeys(given) if list(given).count(each) > 1]
        faults += [f"{what}: {', '.join(twice)} is there more than once: expected each once"] if twice else []
        faults += [] if given else [f"{what}: expected one or more"]
    if "match" in entries and _MATCHED not in entries:
        faults.append(f"'match' draws as many old and new examples as {_MATCHED!r} does: expected {_MATCHED!r} as well")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        faults.append("the runs follow each other in one process: expected no launcher of several")
    if faults:
        raise OptionError("the contest", faults)


def recipe_of(recipe: Recipe, name: str, seed: int, folder: Path) -> Recipe:
    """The recipe of one run. An order that its scheduler does not know is `uniform`, which all know."""
    entry, given = ENTRIES[name], recipe.as_dict()
    scheduler = entry.overrides[0].partition("=")[2]
    for pool in ("old", "new"):
        if given["review"][pool]["order"] not in SCHEDULERS[scheduler].agendas:
            given["review"][pool]["order"] = "uniform"
    given["review"]["counts"] = str(place_of(folder, _MATCHED, seed) / "review" / "log") if name == "match" else None
    given["training"]["seed"], given["output"] = seed, str(place_of(folder, name, seed))
    return load_recipe(given, entry.overrides)


def place_of(folder: Path, name: str, seed: int) -> Path:
    """The folder of one run."""
    return folder / name / f"seed-{seed}"
