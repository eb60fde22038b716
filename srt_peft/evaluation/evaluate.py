"""Ask models, compare what they scored, and say whether an update may be shipped.

Each target is asked every suite, one model in memory at a time. A comparison has the base beside the updates: what they
forgot of it and what they learned. Runs whose recipes differ in nothing but their seed are one condition, and the
spread between them is reported beside the spread over questions.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from srt_peft.data.ingest import home
from srt_peft.errors import OptionError
from srt_peft.evaluation.compare import Comparison, compare
from srt_peft.evaluation.records import key_of
from srt_peft.evaluation.suites import ACCURACY, Asked, Baselines, Model, Options, ask
from srt_peft.evaluation.tables import FORMATS, to_json
from srt_peft.evaluation.targets import Target, base_of, target_of
from srt_peft.evaluation.verdict import exit_code
from srt_peft.training.folder import RECIPE
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe


@dataclass(frozen=True)
class Result:
    """One view of one suite, over all targets."""

    title: str
    comparison: Comparison
    baselines: Baselines


def evaluate(
    names: Sequence[str],
    asked: Sequence[Asked],
    options: Options,
    *,
    base: str | None = None,
    against_base: bool = False,
    max_forgetting: float | None = None,
    out: Path | None = None,
    seed: int = 0,
) -> list[Result]:
    """What these targets score; against their base as well, where that is asked."""
    _check_allowance(asked, max_forgetting, against_base=against_base)
    targets = [target_of(name, base=base) for name in dict.fromkeys(names)]
    reference = _reference([base_of(target, base=base) for target in targets]) if against_base else None
    if reference is not None:  # which stands in the comparison as it is, whether a person names it or not
        targets = [target for target in targets if not (_untrained(target) and _place(target) == _place(reference))]
    everyone = [*([reference] if reference else []), *targets]
    precision = _precision(everyone, options)
    found = [ask(Model(target, precision), asked, options, _folder(target, out)) for target in everyone]
    labels = labels_of(everyone)
    return [
        Result(
            views[0].title,
            compare(
                views[0].title,
                [(label, view.records) for label, view in zip(labels, views, strict=True)],
                metric=views[0].metric,
                base=labels[0] if reference else None,
                max_forgetting=max_forgetting if views[0].metric == "accuracy" else None,
                seed=seed,
            ),
            views[-1].baselines,
        )
        for views in zip(*found, strict=True)
    ]


def _check_allowance(asked: Sequence[Asked], max_forgetting: float | None, *, against_base: bool) -> None:
    """An allowance is in points of accuracy, so something must be asked that has them, and a base to lose them from."""
    if max_forgetting is None:
        return
    if not (math.isfinite(max_forgetting) and max_forgetting >= 0):
        expected = "expected a number of points, 0 or more, such as 2.0"
        raise OptionError("eval", [f"--max-forgetting = {max_forgetting:g}: {expected}"])
    if not against_base:
        raise OptionError(
            "eval", [f"--max-forgetting = {max_forgetting:g}: expected --compare, which has the base beside"]
        )
    if not any(each.name in ACCURACY for each in asked):
        known = ", ".join(sorted(ACCURACY))
        raise OptionError(
            "eval", [f"--max-forgetting = {max_forgetting:g} points of accuracy: expected a suite of {known}"]
        )


def _reference(found: Sequence[Target]) -> Target:
    """The base that all targets have in common; the one that knows a recipe, where a person has named it as well."""
    bases = {_place(base): base for base in sorted(found, key=lambda base: base.recipe is not None)}
    if len(bases) > 1:
        names = ", ".join(base.base for base in bases.values())
        raise OptionError("the comparison", [f"the targets have {len(bases)} bases ({names}): expected one in common"])
    return next(iter(bases.values()))


def _place(target: Target) -> tuple[str, str | None]:
    """The same for two names of one folder."""
    here = Path(target.base)
    return str(here.resolve() if here.is_dir() else here), target.revision


def _untrained(target: Target) -> bool:
    return target.adapter is None and target.recipe is None


def _precision(targets: Sequence[Target], options: Options) -> str:
    """One for all, since a comparison across precisions would measure these."""
    gpu = torch.cuda.is_available()
    trained = [target for target in targets if target.recipe is not None] or targets
    found = {target.precision(options.precision, gpu=gpu): target.label for target in trained}
    if len(found) > 1:
        told = "; ".join(f"{label} in {precision}" for precision, label in found.items())
        raise OptionError(
            "the comparison", [f"the targets were trained in several precisions ({told}): give --precision"]
        )
    return next(iter(found))


def labels_of(targets: Sequence[Target]) -> list[str]:
    """A name for each; those that differ in nothing but their seed share one."""
    first: dict[str, str] = {}
    trained: set[tuple[str, int]] = set()
    labels = []
    for target in targets:
        label = target.label
        if target.recipe is not None and target.home is not None and target.folder is not None:
            seed = target.recipe.training.seed
            condition = key_of(_condition(target.recipe, target.home), target.folder.name)
            if (condition, seed) not in trained:
                trained.add((condition, seed))
                label = first.setdefault(condition, label)
        labels.append(label)
    return labels


def _condition(recipe: Recipe, home: Path) -> dict[str, Any]:
    """A run's recipe without what tells it from the other trainings of one condition.

    A run that draws by the counts of another's log (`match`) is of the condition of that other run, wherever the two
    have moved since. Where it is gone, the log's path has to do.
    """
    told = recipe.as_dict()
    del told["training"]["seed"], told["output"]
    counts = recipe.review.counts
    if counts is not None:
        for log in (home / os.path.relpath(counts, recipe.output), Path(counts)):
            run = log.parent.parent  # RUN/review/log
            if (run / RECIPE).is_file():
                told["review"]["counts"] = _condition(load_recipe(run / RECIPE), run)
                break
    return told


def _folder(target: Target, out: Path | None) -> Path:
    """Where its records are kept: with its run if one may write there, else in our cache, or where a person said."""
    name = key_of(target.fingerprint())
    if out is not None:
        return out / "records" / name
    run = target.home
    if run is not None and target.folder is not None and os.access(run, os.W_OK):
        return run / "evaluation" / target.folder.name
    return home() / "evaluation" / name


# --- what is told -------------------------------------------------------------------------------------------------


def told(results: Sequence[Result], style: str) -> str:
    """All results, as tables for a terminal, Markdown or LaTeX, or as one JSON document."""
    if style == "json":
        return json.dumps([as_json(result) for result in results], indent=1, ensure_ascii=False) + "\n"
    parts = []
    for i, result in enumerate(results):
        head = {"markdown": f"### {result.title}", "latex": f"% {result.title}"}.get(style, f"== {result.title}")
        parts += [head, FORMATS[style](result.comparison).rstrip()]
        following = results[i + 1 : i + 2]
        if result.baselines and style != "latex" and [r.baselines for r in following] != [result.baselines]:
            parts.append(_without(result.baselines))
    return "\n\n".join(parts) + "\n"


def _without(baselines: Baselines) -> str:
    """What scores without knowing, a line each."""
    width = max(map(len, baselines))
    lines = ["Without knowing, in %; questions that give themselves away score high here:"]
    for name, by in baselines.items():
        lines.append(f"  {name:{width}}  " + ", ".join(f"{split} {100 * mean:.1f}" for split, mean in by.items()))
    return "\n".join(lines)


def as_json(result: Result) -> dict[str, Any]:
    """A result as plain values."""
    return {"title": result.title, "baselines": result.baselines, **json.loads(to_json(result.comparison))}


def code_of(results: Sequence[Result]) -> int:
    """3 where more was forgotten than was allowed, in any suite; else 0."""
    return exit_code(v for result in results for standing in result.comparison.standings for v in standing.verdicts)
