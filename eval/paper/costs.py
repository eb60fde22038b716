"""Overhead: the steps of `eval.speed.overhead`, of runs that advance in turn, in the paper's terms.

Not wall-clock times of separate trainings, which differ by what else the machine did: each step of a run is held
against the step of another in the same round, and the overhead is the median of these. `cpt again`, which differs from
cpt in its seed alone, says what such a median is worth.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from eval.paper.figures import HERE, Figure
from eval.paper.materials import Say
from eval.speed import overhead
from srt_peft.errors import OptionError
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe

RUNS = ("cpt", "uniform", "srt", "cpt again")
ROUNDS = 24
EXAMPLES = 10_000
Steps = Mapping[str, Sequence[float]]
"""Seconds of each step, by run; a step a round."""


def measured(
    folder: Path, scale: str, overrides: Sequence[str], say: Say, *, quick: bool
) -> dict[str, dict[str, dict[str, Figure]]]:
    """The paper's rows: by what is measured, and by scheduler."""
    recipe = load_recipe(HERE / "overhead" / f"{scale}.yaml", overrides)
    rounds = 3 if quick else ROUNDS
    asked, path = {"recipe": recipe.as_dict(), "rounds": rounds}, folder / "steps.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["asked"] != asked:
            raise OptionError("overhead", [f"{path} is of another recipe: name another --output, or remove it"])
        say(f"The steps are measured already: {path}.")
    else:
        say(f"{rounds} rounds, a step of each run in turn:")
        found = {"asked": asked, "steps": _steps(recipe, scale, rounds)}
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found), encoding="utf-8")
    return {"here": _rows(found["steps"], recipe.training.batch_size * recipe.data.max_length)}


def _steps(recipe: Recipe, scale: str, rounds: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        if scale == "demo":
            base = overhead.made(folder / "base", overhead.SIZES["tiny"])
            recipe = replace(recipe, model=replace(recipe.model, base=base))
        setup = overhead.setup_of(folder, recipe, recipe.data.max_length, EXAMPLES)
        times, _ = overhead.measure(setup, folder, rounds)
    return {name: times[name].wall for name in RUNS}


def _rows(steps: Steps, tokens: int) -> dict[str, dict[str, Figure]]:
    """A row a measure, a column a scheduler."""
    runs = [name for name in RUNS if name != "cpt again"]
    middle = {name: float(np.median(steps[name])) for name in runs}
    return {
        "wall-clock, s": {name: Figure(sum(steps[name])) for name in runs},
        "s a step": {name: Figure(middle[name]) for name in runs},
        "tokens a second": {name: Figure(tokens / middle[name]) for name in runs},
        "tokens a step": {name: Figure(tokens) for name in runs},
        "% over cpt": {name: _over(steps, name, "cpt") for name in ("uniform", "srt")},
        "% over uniform": {"srt": _over(steps, "srt", "uniform")},
        NOISE: {"cpt": _over(steps, "cpt again", "cpt")},
    }


NOISE = "% of cpt again over cpt"


def _over(steps: Steps, mine: str, theirs: str) -> Figure:
    """How much longer a step takes than another's of the same round, in percent: the median, and all the rounds."""
    ratios = (np.array(steps[mine]) / np.array(steps[theirs]) - 1) * 100
    return Figure(float(np.median(ratios)), runs=tuple(ratios.tolist()))
