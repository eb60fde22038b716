"""review=dict(…), as a recipe's `review` section has it, as a scheduler: names, presets and faults are the recipe's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from srt_peft.errors import OptionError
from srt_peft.review import Scheduler, make_scheduler
from srt_peft.review.options import Options
from srt_peft.training.preset import resolve
from srt_peft.training.recipe import load_recipe
from srt_peft.training.schedule import one_pass


def scheduler_of(review: Mapping[str, Any] | None, *, old: int, new: int, batch_size: int, seed: int) -> Scheduler:
    """The scheduler that `srt-peft train` would have, over one source of old text."""
    asked = load_recipe(
        {
            "model": {"base": "the model that is given"},
            "data": {"old": None, "new": "the dataset that is given"},
            "review": dict(review or {}),
            "training": {"batch_size": batch_size, "seed": seed},
        }
    )
    recipe = resolve(asked, 1)
    options = recipe.scheduler_options()
    found = _needing_passes(recipe.review.scheduler, options)
    if recipe.review.counts is not None:
        found.append(f"review.counts = {recipe.review.counts!r}: expected null; `srt-peft train` reads logs")
    if found:
        raise OptionError("review", found)
    return make_scheduler(recipe.review.scheduler, old=old, new=new, batch_size=batch_size, seed=seed, **options)


def _needing_passes(name: str, options: Mapping[str, Any]) -> list[str]:
    """What needs forward passes beside the training's own, or more than one source."""
    base = options.get("reference") == "base" and Options(batch_size=1, **options).refers
    wrong = {
        f"review.scheduler = {name!r} begins with a pass over all examples": name == "ppl",
        f"review.old.quiz = {options.get('quiz')!r} asks before it draws, a pass": bool(options.get("quiz")),
        "review.reference = 'base' begins with a pass over old": base,
    }
    told = "which a Trainer's loop does not make. Leave it out, or take `srt-peft train`, which does"
    found = [f"{what}, {told}" for what, is_so in wrong.items() if is_so]
    if options.get("decks", "off") != "off":
        found.append(
            f"review.decks = {options['decks']!r}: expected 'off', since one dataset is one source; `srt-peft train` "
            "has decks"
        )
    return found


def steps_of_a_pass(options: Options, new: int) -> int:
    """The steps of an epoch, which is one pass over new text, as in the paper; one at least."""
    return 1 if options.old_fraction == 1 else max(1, one_pass(options.old_fraction, options.batch_size, new))
