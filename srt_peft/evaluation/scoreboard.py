"""A contest as a person reads it: what was kept and learned, who differs from whom, what was drawn, what it cost.

The first tables are those of a comparison with the base. Each is written for a terminal, in Markdown, or in LaTeX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from srt_peft.evaluation.by_source import BySource
from srt_peft.evaluation.evaluate import Result, told as results_told
from srt_peft.evaluation.exposure import Spread
from srt_peft.evaluation.paired import Difference, Differences
from srt_peft.evaluation.tables import _MARKDOWN, _aligned, _Cell, _escaped, _piped, _plain, _Rows, _tabular, _title
from srt_peft.evaluation.verdict import METRICS, number

_WRITERS: Mapping[str, Callable[[_Rows], str]] = {"terminal": _aligned, "markdown": _piped, "latex": _tabular}
_HEADS = {"terminal": "== {}", "markdown": "### {}", "latex": "% {}"}
Figures = Mapping[str, Mapping[str, Spread]]


def written(
    style: str,
    results: Sequence[Result],
    differences: Sequence[Differences],
    sources: Sequence[BySource],
    exposure: Figures,
    compute: Figures,
    sentences: Sequence[str],
    old_fraction: float,
) -> str:
    """All of it in one of the styles."""
    parts = [results_told(results, style).rstrip()] if results else []
    for found in differences:
        if found.rows:
            head = f"{found.title}: against {found.reference}, paired by seed and question"
            parts += _part(style, head, _differences(found))
    for each in sources:
        parts += _part(style, f"{each.title}: what each source of old has lost, in {each.unit}", _sources(each))
    if exposure:
        parts += _part(style, f"what was drawn (ρ = {old_fraction:g})", _figures(exposure, _EXPOSURE))
        parts.append(cost(style, compute))
    if sentences:
        parts += [_HEADS[style].format("in words"), "\n".join(_said(style, line) for line in sentences)]
    return "\n\n".join(parts) + "\n"


def cost(style: str, compute: Figures) -> str:
    """What each entry cost, as a table with its head."""
    return "\n\n".join(_part(style, "what it cost; an evaluation does not count", _figures(compute, _COMPUTE)))


def _part(style: str, head: str, rows: _Rows) -> list[str]:
    return [_HEADS[style].format(head), _WRITERS[style](rows)]


def _said(style: str, line: str) -> str:
    return {"markdown": f"- {_escaped(line, _MARKDOWN)}", "latex": f"% {_plain(line)}"}.get(style, line)


# --- differences --------------------------------------------------------------------------------------------------


def _differences(found: Differences) -> _Rows:
    """A row an entry and split; positive is better; in bold what counts (see `paired`)."""
    level = f"{100 * found.level:g} % over"
    head = [f"against {found.reference}", "on", found.unit, f"{level} seeds", f"{level} questions", "p", "seeds"]
    return [[*map(_Cell, head)], *(_row(found, row) for row in found.rows)]


def _row(found: Differences, row: Difference) -> list[_Cell]:
    factor, unit = METRICS[found.metric].factor, found.unit

    def span(low: float | None, high: float | None) -> str:
        if low is None or high is None:
            return "one seed: no spread"
        return f"{number(factor * low, unit, '+')} to {number(factor * high, unit, '+')}"

    between = "" if row.between is None else number(factor * row.between, unit)
    return [
        _Cell(row.label),
        _Cell(_title(row.split)),
        _Cell(number=number(factor * row.mean, unit, "+"), between=between, bold=row.sign != 0),
        _Cell(span(row.low, row.high)),
        _Cell(span(row.question_low, row.question_high)),
        _Cell("< 0.001" if row.p < 0.001 else f"{row.p:.3f}"),
        _Cell(str(len(row.seeds))),
    ]


# --- what each source has lost --------------------------------------------------------------------------------------


def _sources(found: BySource) -> _Rows:
    """A row an entry, a column a source: positive is lost; the mean counts each source once."""
    factor, unit = METRICS[found.metric].factor, found.unit

    def lost(spread: Spread) -> _Cell:
        mean, sd = spread["mean"] or 0.0, spread["sd"]
        return _Cell(number=number(factor * mean, unit), between="" if sd is None else number(factor * sd, unit))

    head = ["", *(f"{name} ({count})" for name, count in found.questions.items()), "mean", "worst", "which"]
    return [
        [*map(_Cell, head)],
        *(
            [_Cell(row.label), *map(lost, (*row.sources.values(), row.mean, row.sources[row.worst])), _Cell(row.worst)]
            for row in found.rows
        ),
    ]


# --- what was drawn, and what it cost -------------------------------------------------------------------------------

Column = tuple[str, Callable[[float], str]]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:,.1f}"


_EXPOSURE: Mapping[str, Column] = {
    "realised_old_share": ("old share, %", _percent),
    "coverage_old": ("old covered, %", _percent),
    "coverage_new": ("new covered, %", _percent),
    "repeats_old": ("old repeats, %", _percent),
    "repeats_new": ("new repeats, %", _percent),
    "empty_steps": ("empty steps", _count),
}
_COMPUTE: Mapping[str, Column] = {
    "steps": ("steps", _count),
    "tokens_trained": ("tokens trained", _count),
    "forward_only_tokens": ("forward-only tokens", _count),
    "seconds": ("seconds", lambda value: f"{value:,.1f}"),
}


def _figures(figures: Figures, columns: Mapping[str, Column]) -> _Rows:
    """A row an entry, a column a figure: the mean over seeds, and the standard deviation where it has one."""
    head = [_Cell("mean over seeds"), *(_Cell(title) for title, _ in columns.values())]
    return [
        head,
        *([_Cell(name), *(_figure(of[key], *columns[key]) for key in columns)] for name, of in figures.items()),
    ]


def _figure(spread: Spread, _title: str, show: Callable[[float], str]) -> _Cell:
    mean, sd = spread["mean"], spread["sd"]
    if mean is None:
        return _Cell("–")
    return _Cell(number=show(mean), sd=show(sd) if sd else "")
