"""A contest between schedulers, read from its contest.json, and drawn.

The plane has what was learned across and what was kept upwards, both so that better is to the right and up: a scheduler
that is higher has forgotten less, one that is further right has learned more. Its axes turn where lower is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from srt_peft.report.drawing import GREY, HUES, SYMBOLS, Chart, Rows, Section, chart, line, perplexity_axis, rows_of
from srt_peft.report.read import Course, read_course
from srt_peft.report.words import ABSENT, count, duration, number, perplexity, share, tenths, whole
from srt_peft.review.journal import Floats
from srt_peft.training import contested

_PAIRS = (("old", "new"), ("unchanged", "changed"))


@dataclass(frozen=True)
class Metric:
    """How a mean is shown, in what, and whether more of it is better."""

    show: Callable[[float], float]
    axis: str
    more: bool
    told: Callable[[float | None], str]
    spread: Callable[[float], str]
    factor: float
    unit: str
    digits: int
    """Of a difference, in `unit`, which is `factor` times the records' own."""
    most: float = math.inf
    """What no mean can exceed: trainings that differ may take the end of an interval further, as they may below 0."""


METRICS = {
    "accuracy": Metric(lambda mean: 100 * mean, "accuracy, %", True, share, tenths, 100.0, "points", 1, 1.0),
    "nll": Metric(
        lambda mean: math.exp(min(mean, 700.0)), "perplexity", False, perplexity, number, 1.0, "nats a token", 3
    ),
    "perplexity": Metric(lambda mean: mean, "perplexity", False, number, number, 1.0, "perplexity", 2),
}


@dataclass
class Contest:
    """What contest.json says, and what its runs went through."""

    folder: Path
    said: Mapping[str, Any]
    courses: dict[str, list[Course]]
    notes: list[str]

    @property
    def entries(self) -> list[str]:
        """The schedulers, in the order in which they were asked for."""
        return list(self.said["entries"])


def read_contest(folder: Path) -> Contest:
    """Read contest.json, and the metrics of the runs that it names."""
    said, notes = contested.read(folder / contested.FILE), list[str]()
    courses: dict[str, list[Course]] = {name: [] for name in said["entries"]}
    for run in said["runs"]:
        course = read_course(folder / run["folder"] / "metrics.jsonl", notes)
        courses[run["entry"]] += [course] if course else []
    if not said["complete"]:
        done, asked = len(said["runs"]), len(said["planned"])
        notes.append(f"The comparison is not finished: {done} of {asked} runs are done, and only these are shown.")
    return Contest(folder, said, courses, notes)


def of_contest(contest: Contest) -> list[Section]:
    """The planes, the tables, and how old and new went on the way."""
    results = contest.said["results"]
    planes = [made for i, result in enumerate(results) if (made := _plane(contest, result, i))]
    sections = [
        Section("Stability and plasticity", planes),
        Section("On the way", [made for pool in ("old", "new") if (made := _on_the_way(contest, pool))]),
    ]
    return [section for section in sections if section.charts]


def _style(contest: Contest, label: str) -> int:
    """The base has the last symbol; a scheduler has the same colour and symbol in every picture of the page."""
    return contest.entries.index(label) if label in contest.entries else len(SYMBOLS) - 1


def _plane(contest: Contest, result: Mapping[str, Any], i: int) -> Chart | None:
    metric = METRICS[result["metric"]]
    pair = next((p for p in _PAIRS if set(p) <= set(result["splits"])), None)
    if pair is None:
        return None
    traces, rows = [], []
    for standing in result["standings"]:
        label, kept, learned = standing["label"], *(standing["scores"][split] for split in pair)
        style = _style(contest, label)
        color = GREY if label == result["base"] else HUES[style % len(HUES)]
        x, y = (_bars(score, metric) for score in (learned, kept))
        traces.append(
            go.Scatter(
                x=[x.pop("value")], y=[y.pop("value")], name=label, mode="markers",
                error_x=x | {"color": _faint(color)}, error_y=y | {"color": _faint(color)},
                marker={"symbol": SYMBOLS[style % len(SYMBOLS)], "size": 12, "color": color},
                hovertemplate=f"{pair[1]} %{{x:.4g}}<br>{pair[0]} %{{y:.4g}}",
            )
        )  # fmt: skip
        rows.append([label, *(_between(score, metric) for score in (kept, learned)), whole(standing["trainings"])])
    better = "" if metric.more else " Both axes are turned, as lower is better."
    up, right = (f"{split}: {metric.axis}" for split in pair)
    axes: dict[str, Any] = {}
    if not metric.more:
        xs, ys = ([trace[axis][0] for trace in traces] for axis in ("x", "y"))
        axes = {
            "xaxis": {**perplexity_axis(xs, right), "autorange": "reversed"},
            "yaxis": {**perplexity_axis(ys, up), "autorange": "reversed"},
        }
    shown = chart(traces, right, up, hovermode="closest", **axes)
    reading = (
        f"Higher has kept more of {pair[0]}, further right has learned more of {pair[1]}; the bars are "
        f"{percent_of(result['level'])} intervals.{better}"
    )
    head = ["", *pair, "trainings"]
    return Chart(f"plane-{i}", str(result["title"]), reading, shown, head, rows, tall=True)


def percent_of(level: float) -> str:
    """95 %."""
    return f"{100 * level:g}\u202f%"


def _bars(score: Mapping[str, Any], metric: Metric) -> dict[str, Any]:
    """The value as shown, and how far its interval reaches to either side."""
    names = (("mean" if score[name] is None else name) for name in ("mean", "low", "high"))
    value, low, high = (metric.show(_possible(score[name], metric)) for name in names)
    return {
        "value": value, "type": "data", "symmetric": False, "array": [max(high - value, 0)],
        "arrayminus": [max(value - low, 0)], "thickness": 1.5, "width": 4,
    }  # fmt: skip


def _possible(mean: float, metric: Metric) -> float:
    """No share is below nothing or above all."""
    return min(max(mean, 0.0), metric.most)


def _faint(color: str) -> str:
    """For error bars, which lie over the points of others."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.55)"


def _between(score: Mapping[str, Any], metric: Metric) -> str:
    low, high = (None if score[name] is None else _possible(score[name], metric) for name in ("low", "high"))
    told = f"{metric.told(score['mean'])}\n{metric.told(low)} to {metric.told(high)}"
    spread = score["between"]
    if spread is None:
        return told
    slope = metric.show(score["mean"] + spread / 2) - metric.show(score["mean"] - spread / 2)
    return f"{told}\nseeds ± {metric.spread(abs(slope))}"


def _on_the_way(contest: Contest, pool: str) -> Chart | None:
    """Held-out perplexity over the steps, the mean over seeds, where the runs have measured it at the same steps."""
    traces, head = [], ["step"]
    columns: list[Floats] = []
    at: list[int] = []
    for name, courses in contest.courses.items():
        found = [c.measured[f"held_out_{pool}_nll"] for c in courses if f"held_out_{pool}_nll" in c.measured]
        if not found or any(steps != found[0][0] for steps, _ in found):
            continue
        steps, nll = found[0][0], np.mean([values for _, values in found], axis=0)
        style = _style(contest, name)
        trace = line(name, steps, np.exp(nll), style, "%{y:.4g}")
        traces.append(trace.update(mode="lines+markers", marker_symbol=SYMBOLS[style % len(SYMBOLS)]))
        if not at or steps == at:
            at, head, columns = steps, [*head, name], [*columns, nll]
    if not traces:
        return None
    happens = "a line that rises is forgetting" if pool == "old" else "a line that falls is learning"
    reading = f"Held-out text of {pool}, which no run trains on: {happens}. Each line is the mean over seeds."
    shown = chart(traces, "step", "perplexity", yaxis=perplexity_axis(y for trace in traces for y in trace.y))
    rows = rows_of(np.asarray(at), columns, perplexity)
    return Chart(f"way-{pool}", f"Perplexity of {pool}, held out", reading, shown, head, rows)


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A caption, a head, and rows of words."""

    caption: str
    head: list[str]
    rows: Rows


def tables(contest: Contest) -> list[Table]:
    """What each forgot and learned, the paired differences, what each was shown, and what it cost."""
    said = contest.said
    made = [_scores(result) for result in said["results"]]
    made += [_differences(one) for one in said["differences"] if one["rows"]]
    made += [_sources(one) for one in said.get("sources", [])]
    made += [
        Table(caption, ["", *columns.values()], [
            [name, *(_spread(values.get(key), _TELL.get(key, number)) for key in columns)]
            for name, values in said[which].items()
        ])
        for which, caption, columns in _SPREADS
    ]  # fmt: skip
    return [table for table in made if table.rows]


_SPREADS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("exposure", "What each was shown (mean ± deviation over seeds)", {
        "realised_old_share": "old in the draws", "coverage_old": "old seen", "coverage_new": "new seen",
        "repeats_old": "old draws that repeat", "repeats_new": "new draws that repeat", "empty_steps": "empty steps",
    }),
    ("compute", "What each cost (mean ± deviation over seeds)", {
        "steps": "steps", "tokens_trained": "tokens trained", "forward_only_tokens": "tokens forward only",
        "seconds": "time",
    }),
)  # fmt: skip
_TELL: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("realised_old_share", "coverage_old", "coverage_new", "repeats_old", "repeats_new"), share),
    **dict.fromkeys(("steps", "tokens_trained", "forward_only_tokens", "empty_steps"), count),
    "seconds": duration,
}


def _spread(value: Mapping[str, float | None] | None, tell: Callable[[float], str]) -> str:
    if value is None or value["mean"] is None:
        return ABSENT
    return tell(value["mean"]) + (f" ± {tell(value['sd'])}" if value["sd"] else "")


def _scores(result: Mapping[str, Any]) -> Table:
    metric = METRICS[result["metric"]]
    names = list(dict.fromkeys(name for standing in result["standings"] for name in standing["scores"]))
    kinds = {name: effect["kind"] for s in result["standings"] for name, effect in s["effects"].items()}
    head = ["", *names, *(f"{kind}, {name} ({metric.unit})" for name, kind in kinds.items())]
    rows = []
    for standing in result["standings"]:
        scores = [
            _between(standing["scores"][name], metric) if name in standing["scores"] else ABSENT for name in names
        ]
        effects = [standing["effects"].get(name) for name in kinds]
        rows.append([standing["label"], *scores, *(_effect(e and e["difference"], metric) for e in effects)])
    return Table(str(result["title"]), head, rows)


def _effect(estimate: Mapping[str, Any] | None, metric: Metric) -> str:
    if estimate is None:
        return ABSENT
    return f"{_signed(estimate['mean'], metric)}\n{_span(estimate['low'], estimate['high'], metric)}"


def _signed(value: float | None, metric: Metric) -> str:
    if value is None:
        return ABSENT
    told = f"{metric.factor * value:+.{metric.digits}f}".replace("-", "−")
    return told if float(told.replace("−", "-")) else told[1:]  # nothing has no sign


def _span(low: float | None, high: float | None, metric: Metric) -> str:
    return ABSENT if low is None or high is None else f"{_signed(low, metric)} to {_signed(high, metric)}"


def _chance(p: float | None) -> str:
    return ABSENT if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _differences(one: Mapping[str, Any]) -> Table:
    """A row an entry and split; above 0 is better, and `reads as` says whether it counts."""
    metric = METRICS[one["metric"]]
    rows = [
        [
            row["label"], row["split"], _signed(row["mean"], metric), _span(row["low"], row["high"], metric),
            _span(row["question_low"], row["question_high"], metric), _chance(row["p"]), whole(len(row["seeds"])),
            _reads(row, one["level"]),
        ]
        for row in one["rows"]
    ]  # fmt: skip
    level = percent_of(one["level"])
    head = ["", "split", metric.unit, f"{level} over seeds", f"{level} over questions", "p", "seeds", "reads as"]
    return Table(f"{one['title']}: against {one['reference']}; above 0 is better", head, rows)


def _sources(one: Mapping[str, Any]) -> Table:
    """A row an entry, a column a source of old; above 0 is lost."""
    metric = METRICS[one["metric"]]

    def lost(spread: Mapping[str, float | None]) -> str:
        return _signed(spread["mean"], metric) + (
            "" if spread["sd"] is None else f" ± {metric.factor * spread['sd']:.{metric.digits}f}"
        )

    rows = [
        [row["label"], *(lost(row["sources"][name]) for name in one["questions"]), lost(row["mean"]), row["worst"]]
        for row in one["rows"]
    ]
    head = ["", *(f"{name} ({count})" for name, count in one["questions"].items()), "mean of sources", "worst"]
    return Table(f"{one['title']}: what each source of old has lost ({metric.unit})", head, rows)


def _reads(row: Mapping[str, Any], level: float) -> str:
    """As the sentences have it: better or worse where all intervals and the paired test say so, else level."""
    if row["p"] is None or row["p"] >= 1 - level:
        return "level"
    bounds = [row[name] for name in ("low", "high", "question_low", "question_high") if row[name] is not None]
    return "better" if min(bounds, default=0) > 0 else "worse" if max(bounds, default=0) < 0 else "level"
