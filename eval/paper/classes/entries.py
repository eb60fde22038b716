"""Who takes part: the entries of `srt-peft compare` over the bare-loop face, and what the paper has beside them.

base             the network before the update
cpt              new examples alone, in shuffled epochs
ewc λ            cpt with the penalty of elastic weight consolidation, at each λ of a sweep: none is chosen
uniform          ρ of old, whoever comes: with replacement between draws
uniform-epoch    the same in shuffled epochs
hardest          the hardest first, by the last signal; it begins with a pass of the base over everything
paper            the schedule as the paper writes it, recalled by the probability of the correct class
match            a draw without a schedule, with the counts of old and new that `paper` had, step by step
auto             the house's preset
auto-class       the same with the old classes as decks, which takes a pass of the base over old
auto-quiz        the preset with `retention: high`: asks before it studies
auto-quiz-class  both
uniform-compute  uniform-epoch, for as many steps more as auto-quiz has cost, its pass before the first included
joint            a new network on all classes from the beginning, for as many steps as base and update together
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.paper.classes.splits import Data
from eval.paper.classes.worlds import World
from srt_peft.evaluation.entries import ENTRIES
from srt_peft.review import Scheduler, make_scheduler
from srt_peft.training.preset import resolve
from srt_peft.training.recipe import load_recipe

SWEEP = (1e2, 1e3, 1e4, 1e5, 1e6)
"""λ: from hardly any penalty to a network that hardly moves."""
MATCHED, COSTED = "paper", "auto-quiz"
FORWARD = 1 / 3
"""What an example costs that is forwarded alone, of one that is trained on."""
Counts = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    name: str
    like: str
    """Which entry of `srt-peft compare`."""
    overrides: tuple[str, ...] = ()
    by_class: bool = False
    """Whether old classes are sources of their own."""
    primes: str = ""
    """Of whom the base's signals are noted before the first draw: old, all, or nobody."""
    strength: float = 0.0
    """λ of elastic weight consolidation."""
    afresh: bool = False
    """A new network, and everything new to it."""
    trains: bool = True
    after: str = ""
    """Whose cell must be there first: it draws its counts, or spends what it has cost."""


ROWS = {
    entry.name: entry
    for entry in (
        Entry("base", "cpt", trains=False),
        Entry("cpt", "cpt"),
        *(Entry(f"ewc {strength:.0e}".replace("e+0", "e"), "cpt", strength=strength) for strength in SWEEP),
        Entry("uniform", "uniform"),
        Entry("uniform-epoch", "uniform-epoch"),
        Entry("hardest", "ppl", primes="all"),
        Entry("paper", "paper", overrides=("review.recall=confidence",)),
        Entry("match", "uniform", after=MATCHED),
        Entry("auto", "auto"),
        Entry("auto-class", "auto", by_class=True, primes="old"),
        Entry("auto-quiz", "auto-quiz", primes="old"),
        Entry("auto-quiz-class", "auto-quiz", by_class=True, primes="old"),
        Entry("uniform-compute", "uniform-epoch", after=COSTED),
        Entry("joint", "cpt", afresh=True),
    )
}
UNIFORMS = ("uniform", "uniform-epoch")


def options_of(entry: Entry, world: World, seed: int) -> tuple[str, dict[str, Any]]:
    """A scheduler's name and options, as a recipe with this entry resolves them."""
    given = {
        "model": {"base": "the network that is given"},
        "data": {"old": None, "new": "the examples that are given"},
        "review": {"old_fraction": world.old_fraction},
        "training": {"batch_size": world.batch_size, "seed": seed},
    }
    recipe = load_recipe(given, [*ENTRIES[entry.like].overrides, *entry.overrides])
    found = resolve(recipe, len(world.old) if entry.by_class else 1)
    return found.review.scheduler, found.scheduler_options()


def scheduler_of(entry: Entry, world: World, data: Data, seed: int, counts: Counts | None = None) -> Scheduler:
    """The scheduler of one row; `counts` are those that `match` draws."""
    name, options = options_of(entry, world, seed)
    old = 0 if entry.afresh else data.n_old
    given: dict[str, Any] = {"old": old, "new": len(data.labels) - old, "batch_size": world.batch_size, "seed": seed}
    if counts is not None:
        name, options = "match", options | {"counts": counts}
    deck = data.labels.numpy() if entry.by_class else None
    return make_scheduler(name, **given, **options, deck=deck)
