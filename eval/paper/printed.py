"""One table of the paper with ours beside it, for a terminal, in Markdown, in LaTeX, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from eval.paper.figures import Figure, Paper, Sources
from srt_peft.evaluation.tables import grid

_WIDE = 6
"""With more columns of figures than this, each metric has a table of its own."""
_HEADS = {"terminal": "== {}", "markdown": "## {}", "latex": "% {}"}
_LINES = {"terminal": "{}", "markdown": "{}\n", "latex": "% {}"}


@dataclass(frozen=True)
class Outcome:
    """What came of one table here."""

    table: str
    title: str
    scale: str
    ours: Sources
    paper: Paper
    sentences: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def told(outcome: Outcome, style: str) -> str:
    """The tables, what they mean in words, and where the paper's own figures disagree."""
    paper = outcome.paper
    lines = [
        f"The paper: {paper.unit}. Here ± is over questions, by bootstrap; in brackets it is over trainings."
        if any(figure.sd is not None for figure in _figures(outcome.ours))
        else f"The paper: {paper.unit}.",
        *outcome.sentences,
        *(f"Of the paper's own figures, {slip.where}: {slip.note}." for slip in paper.slips),
    ]
    head = _HEADS[style].format(f"{outcome.title} ({paper.label}), {outcome.scale} scale")
    said = "\n".join(_LINES[style].format(line) for line in lines).rstrip()
    return "\n\n".join([head, *(grid(style, rows) for rows in _tables(outcome)), said]) + "\n"


def _figures(sources: Sources) -> Iterator[Figure]:
    return (figure for panel in sources.values() for row in panel.values() for figure in row.values())


def _tables(outcome: Outcome) -> Iterator[list[list[str]]]:
    """A column for each metric and source; too many of them come apart by metric."""
    paper, metrics = outcome.paper, outcome.paper.metrics
    theirs = {name: f"paper: {name}" if name else "paper" for name in paper.panels}
    names = {**{name: name for name in outcome.ours}, **theirs}
    groups = [metrics] if len(metrics) * len(names) <= _WIDE else [(metric,) for metric in metrics]
    sources = {**outcome.ours, **paper.panels}
    rows = list(dict.fromkeys(row for panel in [*paper.panels.values(), *sources.values()] for row in panel))
    show = _SHOWN.get(outcome.table, _share)
    for group in groups:
        head = [
            " ".join(group) if len(group) == 1 else "",
            *(_head(m, names[s], group) for m in group for s in sources),
        ]
        body = [[row, *(_cell(sources[s], row, m, show) for m in group for s in sources)] for row in rows]
        yield [head, *body]


def _head(metric: str, source: str, group: tuple[str, ...]) -> str:
    return source if len(group) == 1 else f"{metric}, {source}"


def _cell(panel: Any, row: str, metric: str, show: Callable[[float, str], str]) -> str:
    figure = panel.get(row, {}).get(metric)
    if figure is None:
        return "–"
    sd = "" if figure.sd is None else f" ± {show(figure.sd, row)}"
    return show(figure.value, row) + sd + ("" if figure.between is None else f" (± {show(figure.between, row)})")


# --- how many decimals ----------------------------------------------------------------------------------------------


def _share(value: float, _row: str) -> str:
    return f"{value:.1f}"


def _perplexity(value: float, _row: str) -> str:
    return f"{value:,.{0 if value >= 100 else 1}f}"


def _cost(value: float, row: str) -> str:
    if row.startswith("%"):
        return f"{value:+.1f}".replace("-", "−")
    return f"{value:,.0f}" if row == "tokens a step" else f"{value:,.2f}"


_SHOWN: dict[str, Callable[[float, str], str]] = {"temporalwiki": _perplexity, "overhead": _cost}
