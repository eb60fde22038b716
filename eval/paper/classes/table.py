"""The paper's figures beside ours, a table a data set and length, and differences from uniform replay seed by seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from eval.paper.classes.cells import Cell, kept
from eval.paper.classes.entries import COSTED, MATCHED, ROWS, UNIFORMS
from eval.paper.classes.sources import Files
from eval.paper.classes.worlds import World
from eval.paper.figures import Figure, paper_of
from srt_peft.evaluation.paired import student
from srt_peft.evaluation.tables import grid

MEASURES = ("old", "new", "overall")
PAIRS = ((MATCHED, "match"), (COSTED, "uniform-compute"))
"""Rows that are held against another than the better uniform as well."""
_HEADS = {"terminal": "== {}", "markdown": "## {}"}


@dataclass(frozen=True)
class Row:
    """One entry at one length: what was measured, by seed."""

    name: str
    by_seed: Mapping[int, Mapping[str, float | None]]

    def values(self, measure: str) -> list[float]:
        """One measure, seed by seed, where it has a value."""
        return [value for found in self.by_seed.values() if (value := found[measure]) is not None]

    def mean(self, measure: str) -> float:
        return fmean(self.values(measure))

    def figure(self, measure: str) -> Figure | None:
        """Mean and standard deviation over seeds."""
        found = self.values(measure)
        return Figure(fmean(found), stdev(found) if len(found) > 1 else None, None, tuple(found)) if found else None


Rows = Mapping[str, Row]
Found = Mapping[World, Mapping[int, Rows]]
"""By data set, length and entry."""


@dataclass(frozen=True)
class Against:
    """The mean of the differences over the seeds that both have, with Student's 95 % interval."""

    mean: float
    low: float | None
    high: float | None


def gathered(cells: Sequence[Cell], output: Path) -> Found:
    """What is there of these cells; the base stands at every length."""
    found: dict[World, dict[int, dict[str, dict[int, Any]]]] = {}
    for cell in cells:
        measured = (kept(cell, output) or {"at": {}})["at"]
        for length in cell.world.lengths:
            at = measured.get(str(length), measured.get("0"))
            if at is not None:
                found.setdefault(cell.world, {}).setdefault(length, {}).setdefault(cell.row, {})[cell.seed] = at
    return {
        world: {
            length: {name: Row(name, by_seed) for name, by_seed in rows.items()} for length, rows in lengths.items()
        }
        for world, lengths in found.items()
    }


def against(row: Row, reference: Row, measure: str) -> Against | None:
    """Positive where the row is better; None where they have no seed in common."""
    pairs = [
        (mine[measure], reference.by_seed[s][measure]) for s, mine in row.by_seed.items() if s in reference.by_seed
    ]
    found = [a - b for a, b in pairs if a is not None and b is not None]
    return Against(fmean(found), *student(found)) if found else None


def better(rows: Rows) -> Row | None:
    """The better form of uniform replay, by what it got right over all."""
    return max((rows[name] for name in UNIFORMS if name in rows), key=lambda row: row.mean("overall"), default=None)


# --- in words and columns ---------------------------------------------------------------------------------------------


def told(found: Found, missing: Mapping[str, Files], style: str, head: str) -> str:
    """All tables, and what the paper's own figures say of each other."""
    parts = [head, _NOTE]
    for world, lengths in found.items():
        parts.append(_HEADS[style].format(world.title))
        for length, rows in lengths.items():
            parts.append(f"{length} steps of {world.batch_size}; {_seeds(rows)} seeds.")
            parts.append(grid(style, list(_figures(world, rows))))
        parts += _differences(world, lengths, style)
    parts += [
        f"{title}: not measured. Expected, in {files.folder}/ of --data: {files.expected}."
        for title, files in missing.items()
    ]
    paper = paper_of("classes")
    parts += [f"Of the paper's own figures, {slip.where}: {slip.note}." for slip in paper.slips]
    return "\n\n".join(parts)


_NOTE = (
    "Accuracy in %, mean ± standard deviation over seeds, on what was held out; an answer is one of all classes. Old "
    "share is that of all examples drawn, filled the part of the slots that was used, forward the examples forwarded "
    "without being trained on, for each slot. The paper names no length, and its EWC no λ: all of ours are printed, "
    "none is chosen."
)


def _seeds(rows: Rows) -> int:
    return max(len(row.by_seed) for row in rows.values())


def _figures(world: World, rows: Rows) -> Iterator[list[str]]:
    paper = paper_of("classes").panels.get(world.panel, {})
    yield [
        "",
        *MEASURES,
        "steps",
        "old share",
        "filled",
        "forward",
        *([f"paper: {m}" for m in MEASURES] if paper else []),
    ]
    lines = [*rows, *(name for name in paper if name not in rows)]
    for name in sorted(lines, key=_place):
        ours = [_pm(rows[name].figure(m)) for m in MEASURES] if name in rows else ["–"] * 3
        drawn = _drawn(rows[name]) if name in rows else ["–"] * 4
        fewer = f", {count} seeds" if name in rows and (count := len(rows[name].by_seed)) < _seeds(rows) else ""
        yield [name + fewer, *ours, *drawn, *(_pm(paper.get(name, {}).get(m)) for m in (MEASURES if paper else ()))]


def _place(name: str) -> int:
    """Where a row stands; the paper's EWC, which names no λ, above ours."""
    order = list(ROWS)
    return order.index("cpt") * 2 + 1 if name == "ewc" else order.index(name) * 2


def _drawn(row: Row) -> list[str]:
    shares = [row.figure(name) for name in ("old_share", "filled")]
    told_shares = ["–" if share is None else f"{100 * share.value:.0f} %" for share in shares]
    return [f"{row.mean('steps'):.0f}", *told_shares, f"{row.mean('forward'):.1f}" if shares[1] is not None else "–"]


def _pm(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{figure.value:.1f}" + ("" if figure.sd is None else f" ± {figure.sd:.1f}")


def _differences(world: World, lengths: Mapping[int, Rows], style: str) -> Iterator[str]:
    references = {length: row for length, rows in lengths.items() if (row := better(rows)) is not None}
    if len(references) < len(lengths):
        return
    head = [f"{length} steps, less {row.name}" for length, row in references.items()]
    body = [
        [name, *(_less(rows.get(name), references[length]) for length, rows in lengths.items())]
        for name in ROWS
        if any(name in rows for rows in lengths.values()) and ROWS[name].trains
    ]
    for one, other in PAIRS:
        if any({one, other} <= rows.keys() for rows in lengths.values()):
            body.append([f"{one}, less {other}", *(_less(rows.get(one), rows.get(other)) for rows in lengths.values())])
    yield (
        f"{world.title}, overall, less the better uniform at that length: seed by seed, with 95 % intervals over "
        "seeds; those with an asterisk do not have 0 in them, as one in twenty does not by chance."
    )
    yield grid(style, [["overall", *head], *body])


def _less(row: Row | None, reference: Row | None) -> str:
    found = None if row is None or reference is None or row is reference else against(row, reference, "overall")
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return _signed(found.mean)
    mark = "*" if found.low > 0 or found.high < 0 else ""
    return f"{_signed(found.mean)}{mark} ({_signed(found.low)} to {_signed(found.high)})"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


# --- for programs -----------------------------------------------------------------------------------------------------


def document(found: Found, missing: Mapping[str, Files], command: str, machine: str) -> dict[str, Any]:
    """All of it as plain values."""
    measures = (*MEASURES, "steps", "old_share", "filled", "forward")
    worlds = {}
    for world, lengths in found.items():
        at = {}
        for length, rows in lengths.items():
            reference = better(rows)
            at[str(length)] = {
                name: {"by_seed": {str(seed): {m: one[m] for m in measures} for seed, one in row.by_seed.items()}}
                | {m: {"mean": f.value, "sd": f.sd} for m in MEASURES if (f := row.figure(m)) is not None}
                | {"less": reference.name if reference else None}
                | {"difference": _plain(against(row, reference, "overall")) if reference else None}
                for name, row in rows.items()
            }
        worlds[world.name] = {"title": world.title, "batch_size": world.batch_size, "at": at}
    paper = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
    return {
        "command": command, "machine": machine, "worlds": worlds, "paper": paper,
        "not_measured": {title: files.expected for title, files in missing.items()},
    }  # fmt: skip


def _plain(found: Against | None) -> dict[str, float | None] | None:
    return None if found is None else vars(found)
