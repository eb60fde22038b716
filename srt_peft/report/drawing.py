"""What all pictures have in common: their colours and dashes, a figure without a theme, and tables of curves.

Old is blue and drawn through, new is vermilion and dashed, in every picture: colours that all eyes tell apart, on a
light page and on a dark one. What the page's theme decides (ink, grid) is left to the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from srt_peft.report.words import whole
from srt_peft.review.journal import Counts, Floats, Windows

OLD, NEW, GREY = "#0072b2", "#d55e00", "#808080"
HUES = (OLD, NEW, "#009e73", "#b5589a", "#a07800", "#5a6fd6", "#8c5a2b", "#b03a2e")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
ROWS = 10  # of a table of a curve

Rows = list[list[str]]


@dataclass(frozen=True)
class Chart:
    """A picture, its question, how it is read, and its figures."""

    name: str
    title: str
    reading: str
    figure: go.Figure
    head: list[str]
    rows: Rows
    tall: bool = False


@dataclass(frozen=True)
class Section:
    """Pictures that belong together."""

    title: str
    charts: list[Chart]


def chart(traces: Sequence[Any], x: str, y: str, **layout: Any) -> go.Figure:
    """A figure without the house's theme, which the page puts on."""
    made = go.Figure(
        data=traces,
        layout={
            "template": "none", "xaxis_title_text": x, "yaxis_title_text": y, "hovermode": "x unified",
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "margin": {"l": 56, "r": 12, "t": 30, "b": 46}, "xaxis": {"automargin": True, "zeroline": False},
            "yaxis": {"automargin": True, "zeroline": False}, "autosize": True, "showlegend": True,
        },
    )  # fmt: skip
    return made.update_layout(**layout)


def line(name: str, x: Any, y: Any, style: int, hover: str) -> go.Scatter:
    """A curve in the colour and the dashes of its style."""
    color = HUES[style % len(HUES)]
    return go.Scatter(
        x=plain(x), y=plain(y), name=name, mode="lines", marker={"color": color}, hovertemplate=hover, connectgaps=True,
        line={"color": color, "dash": DASHES[style % len(DASHES)], "width": 2},
    )  # fmt: skip


def perplexity_axis(shown: Iterable[float | None], title: str = "perplexity") -> dict[str, Any]:
    """Logarithmic with round ticks, the fewer the more powers of ten there are; as it is, within a factor of two."""
    values = [value for value in shown if value is not None and value > 0] or [1.0]
    low, high = np.log10(min(values)), np.log10(max(values))
    if high - low < 0.3:
        return {"title": {"text": title}}
    heads = (1, 2, 3, 4, 5, 7) if high - low <= 1 else (1, 2, 5) if high - low <= 3 else (1,)
    ticks = [head * 10.0**power for power in np.arange(np.floor(low), np.ceil(high) + 1) for head in heads]
    return {
        "type": "log",
        "title": {"text": f"{title} (log scale)"},
        "tickvals": ticks,
        "ticktext": [f"{tick:,.6g}" for tick in ticks],
    }


def plain(values: Any) -> list[Any]:
    """Values as JSON has them, to five digits, null where there is none: a page has no use for more."""
    return [
        v if isinstance(v, str) else float(f"{v:.5g}") if np.isfinite(v) else None for v in np.asarray(values).tolist()
    ]


def thin(steps: Sequence[int], values: Sequence[float]) -> tuple[Floats, Floats]:
    """At most so many of the measurements, the first and the last among them."""
    at = picked(len(steps), 400)
    return np.asarray(steps, dtype=float)[at], np.asarray(values)[at]


def picked(count: int, most: int = ROWS) -> Counts:
    """At most so many of `count` places, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def rows_of(x: NDArray[Any], columns: Sequence[NDArray[Any]], say: Callable[[float], str]) -> Rows:
    """A table of some points of these curves."""
    return [[whole(x[i]), *(say(column[i]) for column in columns)] for i in picked(len(x))]


def thinned(windows: Windows) -> str:
    """What a point is, where it is not a step."""
    return f" Each point is the mean of {windows.width:,} steps." if windows.width > 1 else ""


def span(k: int) -> str:
    """2**k to 2**(k+1) − 1, in thousands or millions where they are many."""
    low, high = 2**k, 2 ** (k + 1) - 1
    for unit, name in ((10**6, "M"), (10**3, "k")):
        if low >= unit:
            return f"{low / unit:.0f}{name}–{2 * low / unit:.0f}{name}"
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
