"""The run's scheduler: made, or taken up from a checkpoint, with the recipe's options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from srt_peft.errors import OptionError
from srt_peft.review import ReviewLog, Scheduler, load_scheduler, make_scheduler
from srt_peft.review.options import Options, plain
from srt_peft.training import checkpoint
from srt_peft.training.folder import check_log
from srt_peft.training.keys import Recipe
from srt_peft.training.schedule import steps_of

if TYPE_CHECKING:
    from srt_peft.training.run import Setup


def scheduler_of(setup: Setup, start: Path | None) -> Scheduler:
    """Every rank has the same scheduler; only the main one maps its state into the run's folder and keeps the log."""
    review = setup.folder / "review"
    places: dict[str, Any] = {"folder": review / "state", "log": review / "log"} if setup.main else {}
    if start is not None:
        if setup.main:
            check_log(setup.folder, checkpoint.step_of(start), setup.texts.first)
        found = _as_asked(setup, load_scheduler(start / "srt_state", **places))
    else:
        found = _fresh(setup, places)
    found.state.supersede(setup.texts.superseded)  # as the texts say now, which may not be as they said then
    return found


def _fresh(setup: Setup, places: dict[str, Any]) -> Scheduler:
    past = setup.texts.past
    return make_scheduler(
        setup.recipe.review.scheduler,
        old=setup.corpus.n_old,
        new=len(setup.corpus) - setup.corpus.n_old,
        identity=setup.corpus.identity,
        deck=setup.texts.deck if len(setup.texts.decks) > 1 or setup.recipe.review.decks != "off" else None,
        past=None if past is None else past.state(setup.texts.decks),
        **_options(setup),
        **places,
    )


def options_of(recipe: Recipe, n_new: int, first: int) -> dict[str, Any]:
    """All options of the scheduler that a resolved recipe asks for; `first` is the step at which its update begins."""
    options = {"batch_size": recipe.training.batch_size, "seed": recipe.training.seed, **recipe.scheduler_options()}
    if recipe.review.counts is not None:
        counts = counts_of(recipe.review.counts, first, steps_of(recipe, n_new))
        options["counts"] = [[0, 0]] * first + counts
    return options


def _options(setup: Setup) -> dict[str, Any]:
    return options_of(setup.recipe, len(setup.corpus.new), setup.texts.first)


def counts_of(path: str, first: int, steps: int) -> list[list[int]]:
    """How many old and new examples another run drew at each of these steps, by its review log."""
    with ReviewLog(path) as log:
        begun, table = log.counts()
    if begun != first or len(table) < steps:
        held = f"the steps {begun} to {begun + len(table) - 1}" if len(table) else "no step"
        fault = f"review.counts = {path!r} has {held}: expected all of this run's, {first} to {first + steps - 1}"
        raise OptionError("the recipe", [f"{fault}; finish that run, or name the log of another"])
    counts: list[list[int]] = table[:steps].tolist()
    return counts


def _as_asked(setup: Setup, saved: Scheduler) -> Scheduler:
    """The scheduler that was saved, under the recipe's settings where `allow_changes` has let others through."""
    name, options = setup.recipe.review.scheduler, Options(**plain(_options(setup)))
    state, other = saved.state, None
    if not np.array_equal(state.identity, setup.corpus.identity):  # type: ignore[arg-type]
        other = ("cut into other examples", "follows them one by one")
    elif state.deck is not None and not np.array_equal(state.deck, setup.texts.deck):
        other = ("in other decks (sources, or clusters)", "holds what each of them has lost")
    if other is not None:
        saved.close()
        fault = (
            f"the texts are {other[0]} than those of the checkpoint's review state, which {other[1]}. Begin a new run "
            "with another output, and model.adapter set to the checkpoint"
        )
        raise OptionError("going on with this run", [fault])
    if (saved.name, saved.options) == (name, options):
        return saved
    return Scheduler(name, options, saved.state, saved.log)
