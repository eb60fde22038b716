"""The length of a run in steps, and its learning rate at each of them, as the recipe says."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from srt_peft.training.keys import Recipe


def steps_of(recipe: Recipe, n_new: int) -> int:
    """How many draws the run has."""
    if isinstance(recipe.training.steps, int):
        return recipe.training.steps
    return one_pass(recipe.review.old_fraction, recipe.training.batch_size, n_new)


def one_pass(old_fraction: float, batch_size: int, n_new: int) -> int:
    """⌈n_new / ((1 − ρ)·B)⌉, the steps of a pass over new text, with ρ < 1 the decimal that was written."""
    return math.ceil(n_new / ((1 - Fraction(Decimal(str(old_fraction)))) * batch_size))


def learning_rate_factor(schedule: str, warmup_steps: int, steps: int) -> Callable[[int], float]:
    """What the learning rate is multiplied by at step t = 0, 1, …: linear warm-up from 0, then the schedule's decay."""

    def factor(t: int) -> float:
        if t < warmup_steps:
            return t / warmup_steps
        return decay(max(0.0, steps - t) / max(1, steps - warmup_steps))

    decay = _DECAYS[schedule]
    return factor


_DECAYS: dict[str, Callable[[float], float]] = {  # of the share of the steps after warm-up that is still to go
    "linear": lambda left: left,
    "cosine": lambda left: 0.5 * (1.0 - math.cos(math.pi * left)),
    "constant": lambda _: 1.0,
}


def warmup_note(recipe: Recipe, steps: int) -> str | None:
    """What to tell where the run ends before the warm-up does: the learning rate that it reaches. Else nothing."""
    warmup, rate = recipe.training.warmup_steps, recipe.training.learning_rate
    if not 0 < steps < warmup:
        return None
    share = learning_rate_factor(recipe.training.schedule, warmup, steps)(steps - 1)
    return (
        f"training.warmup_steps = {warmup} is longer than the run of {steps} steps: the learning rate peaks at "
        f"{rate * share:.3g}, {100 * share:.3g} % of training.learning_rate"
    )
