"""One table of the paper, run: conditions are one contest, a sweep is a contest for each value of its key.

A sweep has uniform replay as a control where the value changes what uniform draws: ρ is a budget, and to spend it
otherwise needs no schedule. With α and E0 uniform is run once. Overhead is measured, not contested.

Whatever is there already is not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.paper import costs, materials, sentences
from eval.paper.figures import HERE, Figure, Panel, Sources, panel_of, paper_of
from eval.paper.materials import Brought, Say
from eval.paper.printed import Outcome
from eval.paper.tables import TABLES
from srt_peft.evaluation.rivals import Contest, contest
from srt_peft.training.recipe import load_recipe


def run(
    name: str, *, scale: str, seeds: Sequence[int], output: Path, brought: Brought, say: Say, quick: bool = False
) -> Outcome:
    """One table; interrupted, the same call goes on."""
    table, paper, folder = TABLES[name], paper_of(name), output / name
    ours: Sources
    if not table.asks:
        ours = costs.measured(folder, scale, brought.overrides, say, quick=quick)
        lines = sentences.of_overhead(ours, paper)
        return Outcome(name, table.title, scale, ours, paper, tuple(lines))
    given = (
        materials.demo(table.asks, folder / "asked", say, quick=quick)
        if scale == "demo"
        else materials.paper(name, brought)
    )
    overrides = [*given.overrides, *brought.overrides]
    recipe = HERE / name / f"{scale}.yaml"

    def compete(entries: Sequence[str], where: str, *more: str) -> Contest:
        mine = load_recipe(recipe, [*overrides, *more])
        return contest(
            mine, entries=entries, seeds=seeds, asked=given.asked, folder=folder / where, say=say, options=given.options
        )

    if not table.key:
        found = compete(table.entries, "contest")
        ours = _by_view(found)
        lines = sentences.of_conditions(found, ours, paper)
    else:
        by_row = {}
        for row, value in table.values.items():
            say(f"{table.symbol} = {row}:")
            entries = (*table.entries, *(["uniform"] if row in table.control else []))
            by_row[row] = compete(entries, row.replace("/", "-"), f"{table.key}={value}")
        ours = _by_entry(by_row)
        lines = sentences.of_sweep(table.symbol, table.default, by_row, ours, paper)
    return Outcome(name, table.title, scale, ours, paper, tuple(lines))


def _by_view(found: Contest) -> dict[str, Panel]:
    """A source for each way of asking, with a row a condition."""
    several = len(found.results) > 1
    return {
        f"here, {result.title.partition(', ')[2]}" if several else "here": panel_of(result.comparison)
        for result in found.results
    }


def _by_entry(by_row: Mapping[str, Contest]) -> Sources:
    """A source for each scheduler, with a row a value; of several ways of asking the first, the letter."""
    panels = {row: panel_of(found.results[0].comparison) for row, found in by_row.items()}
    entries = dict.fromkeys(entry for found in by_row.values() for entry in found.entries)
    made: dict[str, dict[str, Mapping[str, Figure]]] = {f"{entry} here": {} for entry in entries}
    for row, panel in panels.items():
        for entry in by_row[row].entries:
            made[f"{entry} here"][row] = panel[entry]
    return made
