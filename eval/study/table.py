"""The study in Markdown: a table a world and tuning, differences against the better uniform, and the aims."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from eval.study import aims, worlds
from eval.study.figures import MEASURES, UNITS, Against, Block, Line, against, blocks, spread
from eval.study.plan import Plan

HEADS = {
    "mean": "old: mean of sources", "worst": "worst source", "weighted": "all of old", "new": "new: gained",
    "both": "both", "changed": "changed facts",
}  # fmt: skip


def told(plan: Plan, output: Path, given: Sequence[str]) -> str:
    """All tables of what is there, and how much of the grid that is."""
    found = blocks(plan, output)
    return "\n".join(_lines(plan, output, found, given))


def _lines(plan: Plan, output: Path, found: Sequence[Block], given: Sequence[str]) -> Iterator[str]:
    there = sum(len(line.by_seed) for block in found for line in block.lines.values())
    yield f"`python -m eval.study {' '.join(given)}`: {there:,} of {len(list(plan.cells())):,} cells. {_machine()}\n"
    yield from aims.told(found)
    for block in found:
        yield from _block(block, output)


def _block(block: Block, output: Path) -> Iterator[str]:
    unit = UNITS[block.metric][0]
    seeds = sorted({seed for line in block.lines.values() for seed in line.by_seed})
    yield f"\n## {block.world.name}, {block.tuning}\n"
    sizes = ", ".join(f"{name} {count}" for name, count in block.asked.items())
    yield (
        f"{block.world.steps} steps, seeds {', '.join(map(str, seeds))}; in {unit}, ± the deviation between seeds. Old "
        f"is what was lost: lower is better. Asked: {sizes}.{_gap(block, output)}\n"
    )
    measures = ["mean", "worst", "weighted", "new", "both"]
    if any(line.values("changed") for line in block.lines.values()):
        measures.append("changed")
    yield f"| | {' | '.join(HEADS[name] for name in measures)} | old share | compute |"
    yield f"| --- |{' ---: |' * (len(measures) + 2)}"
    for line in block.lines.values():
        cells = [_pm(*spread(line.values(name))) + (f" {line.worst}" if name == "worst" else "") for name in measures]
        yield f"| {line.name} | {' | '.join(cells)} | {100 * line.mean('share'):.0f} % | {_cost(block.compute(line))} |"
    reference = block.better
    if reference is None:
        return
    yield (
        f"\nAgainst {reference.name}, the better uniform here by *both*: seed by seed, 95 % intervals over seeds; "
        "positive is better.\n"
    )
    yield f"| | {' | '.join(HEADS[name] for name in MEASURES)} |"
    yield f"| --- |{' ---: |' * len(MEASURES)}"
    for line in block.lines.values():
        if line is not reference:
            yield f"| {line.name} | {' | '.join(_interval(against(line, reference, m)) for m in MEASURES)} |"


def _gap(block: Block, output: Path) -> str:
    """How much of what is replayed the base knows by heart."""
    seed = next(iter(_some(block).by_seed))
    try:
        gap = worlds.read(worlds.place_of(block.world, seed, output)).gap
    except OSError:
        return ""
    if not gap:
        return ""
    told = ", ".join(f"{name} {_signed(1000 * value, 0)}" for name, value in gap.items())
    return f" Base, held-out less replayed: {told}."


def _some(block: Block) -> Line:
    return next(iter(block.lines.values()))


def _cost(compute: float) -> str:
    return "" if compute != compute else f"{compute:.2f}"  # noqa: PLR0124 - of cpt, where that was not run


def _pm(mean: float, sd: float | None) -> str:
    told = f"{mean:.1f}".replace("-", "−")
    return told if sd is None else f"{told} ± {sd:.1f}"


def _interval(found: Against | None) -> str:
    if found is None:
        return ""
    told = _signed(found.mean)
    if found.low is None or found.high is None:
        return told
    mark = "**" if found.low > 0 or found.high < 0 else ""
    return f"{mark}{told}{mark} ({_signed(found.low)} to {_signed(found.high)})"


def _signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _machine() -> str:
    names = ", ".join(f"{name} {version(name)}" for name in ("srt-peft", "torch", "transformers", "peft"))
    cores = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"{datetime.now(tz=UTC):%Y-%m-%d}, {cores}, Python {platform.python_version()}, {names}."
