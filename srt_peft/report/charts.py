"""The pictures of a run: each answers one question, says how it is read, and has its figures in a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from srt_peft.report.drawing import (
    GREY,
    HUES,
    NEW,
    OLD,
    SYMBOLS,
    Chart,
    Rows,
    Section,
    chart,
    line,
    perplexity_axis,
    picked,
    plain,
    rows_of,
    span,
    thin,
    thinned,
)  # fmt: skip
from srt_peft.report.read import POOLS, Run
from srt_peft.report.words import number, percent, perplexity, whole
from srt_peft.review.journal import Counts, Floats

_QUALITY = ("#a63603", "#e6550d", "#fdae6b", "#9ecae1", "#4292c6", "#1f66ad")


def of_run(run: Run) -> list[Section]:
    """All that can be drawn of a run; what was not recorded is left out."""
    sections = {
        "What it learned": (_loss, _perplexity, _scores),
        "What was drawn": (_share, _backlog, _coverage, _visits),
        "Decks and quiz": (_slots, _lost, _quiz),
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
        "loss", "Training loss", reading + thinned(windows), chart([trace], "step", "nats a token"),
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
            steps, nll = thin(*found)
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
    shown = chart(traces, "step", "perplexity", yaxis=perplexity_axis(y for trace in traces for y in trace.y))
    reading += thinned(run.journal.windows) if run.journal else ""
    return Chart("perplexity", "Perplexity of old and new", reading, shown, head, rows)


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
        trace = line(name, *thin(steps, values), i, "%{y:.4g}")
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
    return Chart("share", "Old examples in the draws", reading + thinned(windows), shown, ["step", *POOLS], rows)


def _backlog(run: Run) -> Chart | None:
    if run.course is None:
        return None
    windows, due = run.course.windows, run.course.due
    traces = [line(f"{pool}, due", windows.middle, due[:, i], i, "%{y:,.0f}") for i, pool in enumerate(POOLS)]
    reading = "How many examples were due before each draw: a backlog that grows is more than the batches can review."
    rows = rows_of(windows.middle, [due[:, 0], due[:, 1]], whole)
    shown = chart(traces, "step", "examples due", yaxis={"rangemode": "tozero"})
    return Chart("backlog", "Due, and waiting", reading + thinned(windows), shown, ["step", *POOLS], rows)


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
        for ends, at in zip(rows_of(windows.middle, shares, percent), picked(windows.count), strict=True)
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
    rows = [[whole(windows.middle[i]), *map(percent, shares[i])] for i in picked(windows.count)]
    head = ["step", *(f"q {q}" for q in range(6))]
    return Chart("quality", "Quality of the reviews", reading + thinned(windows), shown, head, rows)


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
    return Chart("lapses", "Lapses", reading + thinned(windows), shown, ["step", *POOLS], rows)


# --- decks and quiz -------------------------------------------------------------------------------------------------

_SHOWN = len(HUES)  # of more decks the largest are shown
_POINTS = 20  # a batch has few slots, which chance rounds: a point is the mean of several steps


def _slots(run: Run) -> Chart | None:
    decks = None if run.course is None else run.course.decks
    if run.course is None or decks is None or decks.drawn.size < 2:
        return None
    x, slots = _coarse(run.course.windows.middle, decks.slots)
    shares = slots / np.maximum(slots.sum(axis=1, keepdims=True), 1)
    shown, total = decks.largest(_SHOWN), decks.sizes[decks.drawn].sum()
    names = [decks.names[g] + (f" ({percent(decks.sizes[g] / total)} of old)" if total else "") for g in shown]
    traces = [line(name, x, shares[:, g], i, "%{y:.1%}") for i, (g, name) in enumerate(zip(shown, names, strict=True))]
    reading = (
        "Which decks the old slots went to, each point over several steps; in brackets each deck's share of the old "
        f"text. A deck above it was found to forget more than the others.{decks.left_out(_SHOWN)}"
    )
    figure = chart(traces, "step", "share of the old slots", yaxis={"tickformat": ".0%", "rangemode": "tozero"})
    rows = rows_of(x, [shares[:, g] for g in shown], percent)
    return Chart("slots", "Old slots by deck", reading, figure, ["step", *names], rows)


def _lost(run: Run) -> Chart | None:
    decks = None if run.course is None else run.course.decks
    if run.course is None or decks is None or decks.drawn.size < 2:
        return None
    x, shown = run.course.windows.middle, decks.largest(_SHOWN)
    traces = [line(decks.names[g], x, decks.forgetting[:, g], i, "%{y:.3f}") for i, g in enumerate(shown)]
    reading = (
        "The log of each deck's perplexity now over that of the base, a running mean over its reviews, by which slots "
        f"are shared out: a line that falls is memory that comes back.{decks.left_out(_SHOWN)}"
    )
    figure = chart(traces, "step", "lost, nats a token", yaxis={"rangemode": "tozero"})
    rows = rows_of(x, [decks.forgetting[:, g] for g in shown], number)
    names = ["step", *(decks.names[g] for g in shown)]
    return Chart("lost", "What each deck has lost", reading + thinned(run.course.windows), figure, names, rows)


def _quiz(run: Run) -> Chart | None:
    quiz = None if run.course is None else run.course.quiz
    if run.course is None or quiz is None:
        return None
    x, counts = _coarse(run.course.windows.middle, quiz)
    steps = _coarse(run.course.windows.middle, run.course.windows.steps[:, None])[1]
    asked, passed = (counts / steps).T
    traces = [
        line("asked", x, asked, 0, "%{y:.3g} a step"),
        line("passed, and not studied", x, passed, 2, "%{y:.3g} a step"),
    ]
    reading = (
        "How many old examples were asked before a step, forward only, and how many of them were still known and so "
        "were put off without being studied: where nearly all are, there is little to find."
    )
    figure = chart(traces, "step", "examples a step", yaxis={"rangemode": "tozero"})
    head = ["step", "asked a step", "passed a step"]
    return Chart("quiz", "Quiz: asked and passed", reading, figure, head, rows_of(x, [asked, passed], number))


def _coarse(x: Floats, table: NDArray[np.integer]) -> tuple[Floats, Floats]:
    """The same in few windows: the middle of each, and its sums."""
    starts = np.unique(np.linspace(0, len(x), min(len(x), _POINTS), endpoint=False).astype(np.int64))
    ends = np.append(starts[1:], len(x)) - 1
    return (x[starts] + x[ends]) / 2, np.add.reduceat(table, starts, axis=0).astype(np.float64)


# --- distributions ----------------------------------------------------------------------------------------------------


def _visits(run: Run) -> Chart | None:
    counts = run.census.visits
    names = ["none", *(span(k) for k in range(counts.shape[1] - 1))]
    reading = "How often the examples of each pool were reviewed in all, as a share of the pool."
    return _distribution("visits", "Reviews of an example", reading, "reviews", names, counts)


def _intervals(run: Run) -> Chart | None:
    counts = run.census.interval
    reading = "After how many steps the seen examples return: mass to the right is what the schedule takes to be known."
    names = [span(k) for k in range(counts.shape[1])]
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
        "The mean signal at a review, by how long ago the review before was, with 95\u202f% intervals, as if "
        "reviews were independent, which those of one example are not: they are wider in truth. What is known "
        "well is asked after longer, so a curve may fall though each example is being forgotten."
    )
    return _by_lag(run, "forgetting", "Signal by steps since the last review", reading, 0, "signal, nats a token")


def _change(run: Run) -> Chart | None:
    reading = (
        "What became of each example's signal since its last review, with 95\u202f% intervals, as if reviews were "
        "independent: below 0 the model has got better at it meanwhile, above 0 it has forgotten."
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
    names = [span(k) for k in bins]
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
    rows = [[span(k), *(told for i in (0, 1) for told in (number(mean[i, k]), whole(count[i, k])))] for k in bins]
    return Chart(name, title, reading, shown, head, rows)
