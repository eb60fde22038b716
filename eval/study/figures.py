"""What the cells of one world and tuning come to: losses, gains, costs, and differences seed by seed.

    lost of source g   base − update where more is better, update − base where less is: positive is worse
    mean, worst        over sources, each counted once; the source that has lost the most in the mean over seeds
    weighted           over all that is asked of old: questions, or tokens
    new                what was gained on all that is asked of new; changed, the part of it that was told anew
    combined           (new − weighted) / 2: the change of the mean of old and new
    both               (new − mean) / 2: what orders rows, and which of two uniforms is the better one

A difference is the row less the reference at the same seed, positive where the row is better, with Student's interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from eval.study import cells
from eval.study.plan import Plan, World
from srt_peft.evaluation.paired import student

UNITS = {"accuracy": ("points", 100.0, 1.0), "nll": ("thousandths of a nat a token", 1000.0, -1.0)}
"""What a metric is told in, by how much it is multiplied for that, and whether more of it is better."""
UNIFORMS = ("uniform", "uniform-epoch")
MEASURES = ("worst", "mean", "weighted", "new", "both")
_WORSE = {"worst", "mean", "weighted"}
"""The measures of which less is better."""


@dataclass(frozen=True)
class One:
    """One cell's figures, in the unit that is told."""

    sources: dict[str, float]
    mean: float
    weighted: float
    new: float
    changed: float | None
    share: float
    compute: float
    """In tokens trained, forward passes counted as `cells.FORWARD` says."""

    @property
    def both(self) -> float:
        """What was gained and kept, as one figure."""
        return (self.new - self.mean) / 2

    @property
    def combined(self) -> float:
        """The same with all of old."""
        return (self.new - self.weighted) / 2


def one(found: Mapping[str, Any], tuning: str) -> One:
    """A cell's figures from what was kept of it."""
    _, factor, sign = UNITS[found["metric"]]
    old, new = found["groups"]["old"], found["groups"]["new"]
    lost = {name: factor * sign * (of["base"] - of["after"]) for name, of in old.items()}
    return One(
        sources=lost,
        mean=fmean(lost.values()),
        weighted=_weighted(old, lost),
        new=-_weighted(new, {name: factor * sign * (of["base"] - of["after"]) for name, of in new.items()}),
        changed=factor * sign * (new["changed"]["after"] - new["changed"]["base"]) if "changed" in new else None,
        share=found["old_share"] or 0.0,
        compute=cells.cost(found, tuning),
    )


def _weighted(groups: Mapping[str, Mapping[str, float]], of: Mapping[str, float]) -> float:
    weights = [group["weight"] for group in groups.values()]
    return sum(of[name] * weight for name, weight in zip(groups, weights, strict=True)) / sum(weights)


@dataclass(frozen=True)
class Line:
    """A row of one world and tuning: its cells' figures, by seed."""

    name: str
    by_seed: Mapping[int, One]

    @property
    def worst(self) -> str:
        """The source that has lost the most in the mean over seeds."""
        some = next(iter(self.by_seed.values())).sources
        return max(some, key=lambda name: fmean(each.sources[name] for each in self.by_seed.values()))

    def values(self, measure: str, seeds: Sequence[int] | None = None) -> list[float]:
        """One measure, seed by seed; that of `worst` is its source's."""
        mine = [self.by_seed[seed] for seed in (self.by_seed if seeds is None else seeds)]
        if measure == "worst":
            name = self.worst
            return [each.sources[name] for each in mine]
        found = [getattr(each, measure) for each in mine]
        return [value for value in found if value is not None]

    def mean(self, measure: str) -> float:
        return fmean(self.values(measure))


@dataclass(frozen=True)
class Against:
    """A difference over the seeds that both rows have: its mean and its interval, where there are two seeds."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def against(line: Line, reference: Line, measure: str) -> Against | None:
    """The row less the reference, positive where the row is better; None where they have no seed in common."""
    seeds = [seed for seed in line.by_seed if seed in reference.by_seed]
    if not seeds:
        return None
    sign = -1 if measure in _WORSE else 1
    pairs = zip(line.values(measure, seeds), reference.values(measure, seeds), strict=True)
    found = [sign * (mine - theirs) for mine, theirs in pairs]
    if not found:
        return None
    low, high = student(found)
    return Against(fmean(found), low, high, len(found))


@dataclass(frozen=True)
class Block:
    """All rows of one world and tuning."""

    world: World
    tuning: str
    metric: str
    asked: Mapping[str, int]
    lines: Mapping[str, Line]

    @property
    def better(self) -> Line | None:
        """The better form of uniform replay here."""
        there = [self.lines[name] for name in UNIFORMS if name in self.lines]
        return max(there, key=lambda line: line.mean("both"), default=None)

    def compute(self, line: Line) -> float:
        """Compute, in that of cpt at the same seeds; of all its steps where there is no cpt."""
        cpt = self.lines.get("cpt")
        pairs = [(each.compute, cpt.by_seed[s].compute) for s, each in line.by_seed.items() if cpt and s in cpt.by_seed]
        return fmean(mine / theirs for mine, theirs in pairs) if pairs else float("nan")


def blocks(plan: Plan, output: Path) -> list[Block]:
    """What is there of the grid, world by world and tuning by tuning."""
    kept: dict[tuple[str, str], dict[str, dict[int, Mapping[str, Any]]]] = {}
    for cell in sorted(plan.cells(), key=lambda cell: cell.seed):
        found = cells.held(cell, output)
        if found is not None:
            mine = kept.setdefault((cell.world.name, cell.tuning), {})
            mine.setdefault(cell.row.name, {})[cell.seed] = found
    made = []
    for world in plan.worlds:
        for tuning in plan.tunings_of(world):
            rows = kept.get((world.name, tuning), {})
            if rows:
                some = next(iter(next(iter(rows.values())).values()))
                asked = {name: int(of["n"]) for split in ("old", "new") for name, of in some["groups"][split].items()}
                order = [row.name for row in plan.rows if row.name in rows]
                lines = {n: Line(n, {seed: one(found, tuning) for seed, found in rows[n].items()}) for n in order}
                made.append(Block(world, tuning, some["metric"], asked, lines))
    return made


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation."""
    return fmean(values), stdev(values) if len(values) > 1 else None
