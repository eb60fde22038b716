"""The pictures of a run: each answers one question, says how it is read, and has its figures in a table.

Old is blue and drawn through, new is vermilion and dashed, in every picture: colours that all eyes tell apart, on a
light page and on a dark one. What the page's theme decides (ink, grid) is left to the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from srt_peft.report.journal import Counts, Floats, Windows
from srt_peft.report.read import POOLS, Run
from srt_peft.report.words import number, percent, perplexity, whole

OLD, NEW, GREY = "#0072b2", "#d55e00", "#808080"
HUES = (OLD, NEW, "#009e73", "#b5589a", "#a07800", "#5a6fd6", "#8c5a2b", "#b03a2e")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
_QUALITY = ("#a63603", "#e6550d", "#fdae6b", "#9ecae1", "#4292c6", "#1f66ad")
_ROWS = 10  # of a table of a curve

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


def of_run(run: Run) -> list[Section]:
    """All that can be drawn of a run; what was not recorded is left out."""
    sections = {
        "What it learned": (_loss, _perplexity, _scores),
        "What was drawn": (_share, _backlog, _coverage, _visits),
        "How well it was recalled": (_quality, _lapses),
        "The schedule": (_intervals, _ease),
        "Forgetting curves": (_forgetting, _change),
    }
    drawn = {title: [chart for draw in charts if (chart := draw(run))] for title, charts in sections.items()}
    return [Section(title, charts) for title, charts in drawn.items() if charts]


# --- over the steps -------------------------------------------------------------------------------------------------


def _loss(run: Run) -> Chart | None:
    if run.course is None:
        return None
    windows = run.course.windows
    trace = line("loss", windows.middle, run.course.loss, 0, "%{y:.4g} nats a token")
    reading = "The loss of each step's batch, old and new together: lower is better, and it moves with what is drawn."
    rows = rows_of(windows.middle, [run.course.loss], number)
    return Chart(
        "loss", "Training loss", reading + _thinned(windows), chart([trace], "step", "nats a token"),
        ["step", "loss"], rows,
    )  # fmt: skip


def _perplexity(run: Run) -> Chart | None:
    traces, head, x = [], ["step"], None
    columns: list[Floats] = []
    held = {pool: run.course.measured.get(f"held_out_{pool}_nll") for pool in POOLS} if run.course else {}
    if run.journal is not None:
        windows = run.journal.windows
        for i, pool in enumerate(POOLS):
            values = np.exp(run.journal.nll[:, i])
            if not np.isfinite(values).any():
                continue
            trace = line(f"{pool}, as drawn", windows.middle, values, i, "%{y:.4g}")
            traces.append(trace.update(opacity=0.55, line_width=1.5) if any(held.values()) else trace)
            head, columns, x = [*head, f"{pool}, as drawn"], [*columns, run.journal.nll[:, i]], windows.middle
    for i, pool in enumerate(POOLS):
        if found := held.get(pool):
            steps, nll = _thin(*found)
            trace = line(f"{pool}, held out", steps, np.exp(nll), i, "%{y:.4g}")
            traces.append(trace.update(mode="lines+markers", marker_symbol=SYMBOLS[i], marker_size=7))
    if not traces:
        return None
    rows = rows_of(x, columns, perplexity) if x is not None else []
    if any(held.values()):
        head, rows = _held_out_rows(held)
    reading = (
        "Lower is better. As drawn: the model's perplexity on what it is about to train on. Held out: on text that it "
        "never trains on, where a rise of old is forgetting."
    )
    shown = chart(traces, "step", "perplexity", yaxis=perplexity_axis(traces))
    thinned = _thinned(run.journal.windows) if run.journal else ""
    return Chart("perplexity", "Perplexity of old and new", reading + thinned, shown, head, rows)


def _held_out_rows(held: dict[str, tuple[list[int], list[float]] | None]) -> tuple[list[str], Rows]:
    found = {pool: values for pool, values in held.items() if values}
    steps = next(iter(found.values()))[0]
    columns = [np.asarray(nll) for _, nll in found.values()]
    return ["step", *(f"{pool}, held out" for pool in found)], rows_of(np.asarray(steps), columns, perplexity)


def _scores(run: Run) -> Chart | None:
    scores = {} if run.course is None else run.course.measured
    scores = {name.removeprefix("score/"): v for name, v in scores.items() if name.startswith("score/")}
    if not scores:
        return None
    traces = []
    for i, (name, (steps, values)) in enumerate(scores.items()):
        trace = line(name, *_thin(steps, values), i, "%{y:.4g}")
        traces.append(trace.update(mode="lines+markers", marker_symbol=SYMBOLS[i % len(SYMBOLS)]))
    steps = next(iter(scores.values()))[0]
    same = {name: np.asarray(values) for name, (at, values) in scores.items() if at == steps}
    reading = "What the recipe's suites found on the way: accuracies are shares of 1, losses are in nats a token."
    rows = rows_of(np.asarray(steps), list(same.values()), number)
    return Chart("scores", "Scores on the way", reading, chart(traces, "step", "score"), ["step", *same], rows)


def _share(run: Run) -> Chart | None:
    if run.course is None:
        return None
    windows, drawn = run.course.windows, run.course.drawn
    with np.errstate(invalid="ignore"):
        share = drawn[:, 0] / drawn.sum(axis=1)
    traces = [line("old, realised", windows.middle, share, 0, "%{y:.1%}")]
    rho = run.asked("review", "old_fraction")
    if rho is not None and run.asked("review", "scheduler") not in ("cpt", "match"):
        ends = [windows.first, windows.last]
        target = line(f"ρ = {rho:g}", ends, [rho, rho], 0, "%{y:.1%}")
        traces.append(target.update(line={"color": GREY, "dash": "dash", "width": 1.5}))
    reading = "The old examples' share of what was drawn, beside its target ρ: it is above where new had too few due."
    top = max(0.3, float(np.nanmax(share, initial=0)) * 1.1, float(rho or 0) * 1.2)
    axis = {"tickformat": ".0%", "range": [-0.01, min(top, 1.02)]}
    rows = rows_of(windows.middle, [drawn[:, 0], drawn[:, 1]], whole)
    shown = chart(traces, "step", "share of the draw", yaxis=axis)
    return Chart("share", "Old examples in the draws", reading + _thinned(windows), shown, ["step", *POOLS], rows)


def _backlog(run: Run) -> Chart | None:
    if run.course is None:
        return None
    windows, due = run.course.windows, run.course.due
    traces = [line(f"{pool}, due", windows.middle, due[:, i], i, "%{y:,.0f}") for i, pool in enumerate(POOLS)]
    reading = "How many examples were due before each draw: a backlog that grows is more than the batches can review."
    rows = rows_of(windows.middle, [due[:, 0], due[:, 1]], whole)
    shown = chart(traces, "step", "examples due", yaxis={"rangemode": "tozero"})
    return Chart("backlog", "Due, and waiting", reading + _thinned(windows), shown, ["step", *POOLS], rows)


def _coverage(run: Run) -> Chart | None:
    if run.journal is None:
        return None
    windows, first = run.journal.windows, run.journal.first
    sizes = run.census.examples
    shares = [np.cumsum(first[:, i]) / sizes[i] if sizes[i] else np.zeros(windows.count) for i in (0, 1)]
    reviews = np.cumsum(run.journal.reviews, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        repeats = reviews / np.cumsum(first, axis=0)
    traces = []
    for i, pool in enumerate(POOLS):
        told = "%{y:.1%}, each %{customdata:.2f} times"
        traces.append(line(f"{pool}, seen", windows.middle, shares[i], i, told).update(customdata=plain(repeats[:, i])))
    reading = "The share of each pool that was reviewed at least once so far; pointing shows how often, on average."
    head = ["step", "old seen", "new seen", "reviews of a seen old", "reviews of a seen new"]
    rows = [
        [*ends, *map(number, repeats[at])]
        for ends, at in zip(rows_of(windows.middle, shares, percent), _picked(windows.count), strict=True)
    ]
    axis = {"tickformat": ".0%", "range": [-0.01, 1.02]}
    shown = chart(traces, "step", "share of the pool", yaxis=axis)
    return Chart("coverage", "Coverage", reading, shown, head, rows)


def _quality(run: Run) -> Chart | None:
    if run.journal is None:
        return None
    windows, counts = run.journal.windows, run.journal.quality.sum(axis=1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = ("q 0, forgotten", "q 1", "q 2", "q 3, recalled", "q 4", "q 5")
    x = plain(windows.middle)
    traces = [
        go.Scatter(
            x=x, y=plain(shares[:, q]), name=names[q], mode="lines", stackgroup="q", fillcolor=_QUALITY[q],
            line={"width": 0, "color": _QUALITY[q]}, hovertemplate="%{y:.1%}",
        )
        for q in range(6)
    ]  # fmt: skip
    reading = "How the reviews were graded: orange are lapses (q\u00a0<\u00a03), blue is what was recalled."
    axis = {"tickformat": ".0%", "range": [0, 1]}
    shown = chart(traces, "step", "share of the reviews", yaxis=axis, legend_traceorder="normal")
    rows = [[whole(windows.middle[i]), *map(percent, shares[i])] for i in _picked(windows.count)]
    head = ["step", *(f"q {q}" for q in range(6))]
    return Chart("quality", "Quality of the reviews", reading + _thinned(windows), shown, head, rows)


def _lapses(run: Run) -> Chart | None:
    if run.journal is None:
        return None
    windows, quality = run.journal.windows, run.journal.quality
    with np.errstate(invalid="ignore"):
        rate = quality[:, :, :3].sum(axis=2) / quality.sum(axis=2)
    traces = [
        line(pool, windows.middle, rate[:, i], i, "%{y:.1%}")
        for i, pool in enumerate(POOLS) if np.isfinite(rate[:, i]).any()
    ]  # fmt: skip
    reading = "The share of each pool's reviews that were lapses (q\u00a0<\u00a03): each sets an interval back to 1."
    rows = rows_of(windows.middle, [rate[:, 0], rate[:, 1]], percent)
    axis = {"tickformat": ".3~%", "rangemode": "tozero"}
    shown = chart(traces, "step", "share of the reviews", yaxis=axis)
    return Chart("lapses", "Lapses", reading + _thinned(windows), shown, ["step", *POOLS], rows)


# --- distributions ----------------------------------------------------------------------------------------------------


def _visits(run: Run) -> Chart | None:
    counts = run.census.visits
    names = ["none", *(_span(k) for k in range(counts.shape[1] - 1))]
    reading = "How often the examples of each pool were reviewed in all, as a share of the pool."
    return _distribution("visits", "Reviews of an example", reading, "reviews", names, counts)


def _intervals(run: Run) -> Chart | None:
    counts = run.census.interval
    reading = "After how many steps the seen examples return: mass to the right is what the schedule takes to be known."
    names = [_span(k) for k in range(counts.shape[1])]
    return _distribution("intervals", "Intervals", reading, "interval in steps", names, counts)


def _ease(run: Run) -> Chart | None:
    counts, width = run.census.ease, run.census.ease_width
    names = [f"{k * width:.1f}" for k in range(counts.shape[1])]
    reading = (
        f"The ease of the seen examples, from the value shown on, {width:g} wide: low ones lapse, and return often."
    )
    return _distribution("ease", "Ease", reading, "ease", names, counts)


def _distribution(name: str, title: str, reading: str, axis: str, names: Sequence[str], counts: Counts) -> Chart | None:
    used = np.flatnonzero(counts.sum(axis=0))
    if not used.size:
        return None
    bins = range(int(used[0]), int(used[-1]) + 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    traces = [
        go.Bar(
            x=[names[k] for k in bins], y=plain(shares[i, bins]), customdata=counts[i, bins].tolist(), name=pool,
            marker={"color": (OLD, NEW)[i]}, hovertemplate="%{y:.1%}, %{customdata:,} examples",
        )
        for i, pool in enumerate(POOLS) if counts[i].any()
    ]  # fmt: skip
    shown = chart(
        traces, axis, "share of the pool", barmode="group", xaxis={"type": "category"}, yaxis={"tickformat": ".0%"}
    )
    rows = [[names[k], *(f"{whole(counts[i, k])} ({percent(shares[i, k])})" for i in (0, 1))] for k in bins]
    return Chart(name, title, reading, shown, [axis, *POOLS], rows)


# --- forgetting curves ----------------------------------------------------------------------------------------------


def _forgetting(run: Run) -> Chart | None:
    reading = (
        "The mean signal at a review, by how long ago the review before was, with 95\u202f% intervals. What is known "
        "well is asked after longer, so a curve may fall though each example is being forgotten."
    )
    return _by_lag(run, "forgetting", "Signal by steps since the last review", reading, 0, "signal, nats a token")


def _change(run: Run) -> Chart | None:
    reading = (
        "What became of each example's signal since its last review, with 95\u202f% intervals: below 0 the model has "
        "got better at it meanwhile, above 0 it has forgotten."
    )
    return _by_lag(run, "change", "Change since the last review", reading, 1, "change, nats a token")


def _by_lag(run: Run, name: str, title: str, reading: str, which: int, axis: str) -> Chart | None:
    if run.journal is None:
        return None
    mean, error = (run.journal.signal, run.journal.change)[which]
    count = run.journal.lag
    used = np.flatnonzero(count.sum(axis=0))
    if not used.size:
        return None
    bins = range(int(used[0]), int(used[-1]) + 1)
    names = [_span(k) for k in bins]
    traces = []
    for i, pool in enumerate(POOLS):
        if count[i].any():
            trace = line(pool, names, mean[i, bins], i, "%{y:.4g}, %{customdata:,} reviews")
            bars = {"array": plain(1.96 * error[i, bins]), "thickness": 1.5, "width": 4}
            trace.update(
                mode="lines+markers", marker_symbol=SYMBOLS[i], marker_size=8, error_y=bars,
                customdata=count[i, bins].tolist(),
            )  # fmt: skip
            traces.append(trace)
    shown = chart(traces, "steps since the last review", axis, xaxis={"type": "category"})
    if which:
        shown.add_hline(y=0, line={"color": GREY, "width": 1, "dash": "dot"})
    head = ["steps", "old", "reviews of old", "new", "reviews of new"]
    rows = [[_span(k), *(told for i in (0, 1) for told in (number(mean[i, k]), whole(count[i, k])))] for k in bins]
    return Chart(name, title, reading, shown, head, rows)


# --- what they share ------------------------------------------------------------------------------------------------


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


def perplexity_axis(traces: Sequence[go.Scatter]) -> dict[str, Any]:
    """Logarithmic with round ticks, the fewer the more powers of ten there are; as it is, within a factor of two."""
    values = [y for trace in traces for y in trace.y if y is not None and y > 0] or [1.0]
    low, high = np.log10(min(values)), np.log10(max(values))
    if high - low < 0.3:
        return {"title": {"text": "perplexity"}}
    heads = (1, 2, 3, 4, 5, 7) if high - low <= 1 else (1, 2, 5) if high - low <= 3 else (1,)
    ticks = [head * 10.0**power for power in np.arange(np.floor(low), np.ceil(high) + 1) for head in heads]
    title = {"text": "perplexity (log scale)"}
    return {"type": "log", "title": title, "tickvals": ticks, "ticktext": [f"{tick:,.6g}" for tick in ticks]}


def plain(values: Any) -> list[Any]:
    """Values as JSON has them, to five digits, null where there is none: a page has no use for more."""
    return [
        v if isinstance(v, str) else float(f"{v:.5g}") if np.isfinite(v) else None for v in np.asarray(values).tolist()
    ]


def _thin(steps: Sequence[int], values: Sequence[float]) -> tuple[Floats, Floats]:
    """At most so many of the measurements, the first and the last among them."""
    at = _picked(len(steps), 400)
    return np.asarray(steps, dtype=float)[at], np.asarray(values)[at]


def _picked(count: int, most: int = _ROWS) -> Counts:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def rows_of(x: NDArray[Any], columns: Sequence[NDArray[Any]], say: Callable[[float], str]) -> Rows:
    """A table of some points of these curves."""
    return [[whole(x[i]), *(say(column[i]) for column in columns)] for i in _picked(len(x))]


def _thinned(windows: Windows) -> str:
    return f" Each point is the mean of {windows.width:,} steps." if windows.width > 1 else ""


def _span(k: int) -> str:
    """2**k to 2**(k+1) − 1, in thousands or millions where they are many."""
    low, high = 2**k, 2 ** (k + 1) - 1
    for unit, name in ((10**6, "M"), (10**3, "k")):
        if low >= unit:
            return f"{low / unit:.0f}{name}–{2 * low / unit:.0f}{name}"
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
