"""Figures: the paper's, as each table's paper.json has them, and ours beside them.

    {"label": "tab:ratio", "unit": "…", "metrics": ["old", "new", "combined"],
     "panels": {"TinyLlama, Wikipedia": {"5/95": {"old": [23.6, 1.8], …}, …}},
     "slips": [{"panel": …, "row": …, "metric": …, "note": "the mean of 49.6 and 20.0 is 34.8"}]}

A figure is [value] or [value, ±], as printed. Slips are figures that contradict others of the paper; they stand as they
were printed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from srt_peft.evaluation.compare import Comparison
from srt_peft.evaluation.verdict import METRICS

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """A value as a table shows it, what chance does to it, and what each training made of it."""

    value: float
    sd: float | None = None
    """The bootstrap's, over questions."""
    between: float | None = None
    """Over trainings."""
    runs: tuple[float, ...] = ()


Panel = Mapping[str, Mapping[str, Figure]]
"""By row and metric."""
Sources = Mapping[str, Panel]
"""Where figures come from: a model and domain of the paper, or a run of ours."""


@dataclass(frozen=True)
class Slip:
    """A figure of the paper that contradicts others of the paper."""

    panel: str
    row: str
    metric: str
    note: str

    @property
    def where(self) -> str:
        """Its place in the table."""
        return ", ".join(part for part in (self.panel, self.row, self.metric) if part)


@dataclass(frozen=True)
class Paper:
    """One table, as the paper prints it."""

    label: str
    unit: str
    metrics: tuple[str, ...]
    panels: Sources
    slips: tuple[Slip, ...]

    @property
    def first(self) -> str:
        """The panel that sentences are held against."""
        return next(iter(self.panels))


def paper_of(table: str) -> Paper:
    """The paper's figures of this table."""
    given = json.loads((HERE / table / "paper.json").read_text(encoding="utf-8"))
    panels = {
        panel: {row: {metric: Figure(*figure) for metric, figure in cells.items()} for row, cells in rows.items()}
        for panel, rows in given["panels"].items()
    }
    slips = tuple(Slip(**slip) for slip in given["slips"])
    return Paper(given["label"], given["unit"], tuple(given["metrics"]), panels, slips)


def panel_of(comparison: Comparison) -> dict[str, dict[str, Figure]]:
    """What a comparison scored, by condition and split, in what its tables show: % right, or perplexity."""
    metric = METRICS[comparison.metric]
    return {
        standing.label: {
            split: Figure(
                metric.show(score.mean),
                metric.slope(score.mean) * score.sd,
                None if score.between is None else metric.slope(score.mean) * score.between,
                tuple(metric.show(run) for run in score.runs),
            )
            for split, score in standing.scores.items()
        }
        for standing in comparison.standings
    }
