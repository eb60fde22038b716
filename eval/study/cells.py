"""One cell: a contest of one entry and one seed, as `srt-peft compare` runs it, and what is kept of it.

    {"asked": {…}, "seconds": …, "steps": …, "tokens_trained": …, "forward_only_tokens": …, "old_share": …,
     "groups": {"old": {source: {"n": …, "weight": …, "base": …, "after": …}}, "new": {…}}, "metric": "nll"}

`base` and `after` are weighted means in the records' own unit. Trained weights go; the file is written whole.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eval.study import worlds
from eval.study.controls import spoiled
from eval.study.plan import Cell
from srt_peft.errors import SRTError
from srt_peft.evaluation import suites
from srt_peft.evaluation.rivals import contest
from srt_peft.evaluation.targets import target_of
from srt_peft.training.folder import replace
from srt_peft.training.recipe import load_recipe

FORWARD = {"full": 1 / 3, "lora": 1 / 2}
"""What a token costs that is forwarded alone, in tokens trained: a step is a forward pass and two more of its size for
the gradients of activations and of weights, and the latter an adapter nearly saves."""


def held(cell: Cell, output: Path) -> dict[str, Any] | None:
    """What is kept of this very cell, if anything."""
    try:
        found: dict[str, Any] = json.loads((output / cell.place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if found.get("asked") == json.loads(json.dumps(cell.asked)) else None


def cost(found: Mapping[str, Any], tuning: str) -> float:
    """A cell's compute, in tokens trained."""
    return float(found["tokens_trained"] + FORWARD[tuning] * found["forward_only_tokens"])


def run(cell: Cell, output: Path) -> None:
    """Train, ask, and write down what came of it."""
    made = worlds.read(worlds.place_of(cell.world, cell.seed, output))
    scratch = output / "scratch" / f"{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(made.base, scratch / "base", ignore=shutil.ignore_patterns("*.lock"))
    started = time.monotonic()
    try:
        found = _updated(cell, made, scratch, _steps(cell, output))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    found |= {"asked": cell.asked, "metric": made.metric, "seconds": round(time.monotonic() - started, 1)}
    path = output / cell.place
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, json.dumps(found))


def _steps(cell: Cell, output: Path) -> int:
    """The world's; or as many as cost what another cell has cost, once its own passes before the first are paid."""
    if not cell.after:
        return cell.world.steps
    other, own = (json.loads((output / place).read_text(encoding="utf-8")) for place in cell.after)
    before = FORWARD[cell.tuning] * own["forward_only_tokens"]
    steps: float = (cost(other, cell.tuning) - before) / own["tokens_trained"] * own["steps"]
    return round(steps)


def _updated(cell: Cell, made: worlds.Made, scratch: Path, steps: int) -> dict[str, Any]:
    row = cell.row
    recipe = load_recipe(made.recipe, [
        f"model.tuning={cell.tuning}", f"training.learning_rate={worlds.rate_of(cell.world, cell.tuning)}",
        f"training.steps={steps}", *row.overrides,
    ])  # fmt: skip
    entries = [*([row.with_] if row.with_ else []), row.entry]
    asked = suites.parse([made.suite])
    with spoiled(row.control), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = contest(recipe, entries=entries, seeds=[cell.seed], asked=asked, folder=scratch, say=_quietly)
        if found.failed:
            raise SRTError(found.failed[0].reason)
        run = next(run for run in found.runs if run.entry == row.entry)
        target = target_of(str(scratch / run.folder))
        assert target.folder is not None, "a run's newest checkpoint is a folder"
        where = scratch / run.folder / "evaluation" / target.folder.name
        records = suites.ask(suites.Model(target, "float32"), asked, suites.Options(), where)[0].records
    taken = {name: run.compute[name] for name in ("steps", "tokens_trained", "forward_only_tokens")}
    return taken | {"old_share": run.exposure["realised_old_share"], "groups": grouped(made.asked, records)}


def _quietly(_: str) -> None:
    """What a contest tells of its progress: a bar over all cells does."""


def grouped(asked: Mapping[str, Mapping[str, Any]], records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of each group before and after, by split: every thing that was asked of the base, and no other."""
    after = {record["key"]: record["value"] for record in records}
    if after.keys() != asked.keys():
        raise SRTError(f"{len(after.keys() ^ asked.keys())} of {len(asked)} things were not asked of base and update.")
    parts: dict[str, dict[str, list[str]]] = {}
    for key, about in asked.items():
        parts.setdefault(about["split"], {}).setdefault(about["group"], []).append(key)
    return {
        split: {group: _means([asked[key] for key in keys], [after[key] for key in keys]) for group, keys in of.items()}
        for split, of in parts.items()
    }


def _means(before: list[Mapping[str, Any]], after: list[float]) -> dict[str, float]:
    weights = np.array([about["weight"] for about in before])
    base = float(np.average([about["base"] for about in before], weights=weights))
    return {
        "n": len(before), "weight": float(weights.sum()), "base": base,
        "after": float(np.average(after, weights=weights)),
    }  # fmt: skip
