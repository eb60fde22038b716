"""A contest between schedulers, read from its contest.json, and drawn.

The plane has what was learned across and what was kept upwards, both so that better is to the right and up: a scheduler
that is higher has forgotten less, one that is further right has learned more. Its axes turn where lower is better.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from srt_peft.errors import DamagedError
from srt_peft.report.charts import GREY, HUES, SYMBOLS, Chart, Rows, Section, chart, line, perplexity_axis, rows_of
from srt_peft.report.journal import Floats
from srt_peft.report.read import Course, read_course
from srt_peft.report.words import duration, number, percent, perplexity, whole

CONTEST = "contest.json"
_PAIRS = (("old", "new"), ("unchanged", "changed"))


@dataclass(frozen=True)
class Metric:
    """How a mean is shown, in what, and whether more of it is better."""

    show: Callable[[float], float]
    axis: str
    more: bool
    told: Callable[[float | None], str]
    difference: tuple[float, str]


METRICS = {
    "accuracy": Metric(lambda mean: 100 * mean, "accuracy, %", True, percent, (100.0, "points")),
    "nll": Metric(lambda mean: math.exp(min(mean, 700.0)), "perplexity", False, perplexity, (1.0, "nats a token")),
    "perplexity": Metric(lambda mean: mean, "perplexity", False, number, (1.0, "perplexity")),
}  # fmt: skip


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
    path, notes = folder / CONTEST, list[str]()
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["format"] != "srt_peft contest" or said["version"] != 1:
            raise ValueError(f"format {said['format']!r}, version {said['version']!r}")  # noqa: TRY301
        courses: dict[str, list[Course]] = {name: [] for name in said["entries"]}
        for run in said["runs"]:
            course = read_course(folder / run["folder"] / "metrics.jsonl", notes)
            courses[run["entry"]] += [course] if course else []
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            f"{path} is no contest that this srt-peft knows ({error}). `srt-peft compare` writes it anew."
        ) from None
    if not said["complete"]:
        done, asked = len(said["runs"]), len(said["entries"]) * len(said["seeds"])
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
    axes = {} if metric.more else {"autorange": "reversed"}
    shown = chart(
        traces, f"{pair[1]}: {metric.axis}", f"{pair[0]}: {metric.axis}", hovermode="closest", xaxis=axes, yaxis=axes
    )
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
    value, low, high = (metric.show(score["mean" if score[name] is None else name]) for name in ("mean", "low", "high"))
    return {
        "value": value, "type": "data", "symmetric": False, "array": [max(high - value, 0)],
        "arrayminus": [max(value - low, 0)], "thickness": 1.5, "width": 4,
    }  # fmt: skip


def _faint(color: str) -> str:
    """For error bars, which lie over the points of others."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.55)"


def _between(score: Mapping[str, Any], metric: Metric) -> str:
    told = f"{metric.told(score['mean'])}\n{metric.told(score['low'])} to {metric.told(score['high'])}"
    spread = score["between"]
    if spread is None:
        return told
    slope = metric.show(score["mean"] + spread / 2) - metric.show(score["mean"] - spread / 2)
    return f"{told}\nseeds ± {number(abs(slope))}"


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
    shown = chart(traces, "step", "perplexity", yaxis=perplexity_axis(traces))
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
    "realised_old_share": percent, "coverage_old": percent, "coverage_new": percent, "repeats_old": percent,
    "repeats_new": percent, "steps": whole,
    "tokens_trained": whole, "forward_only_tokens": whole, "empty_steps": whole, "seconds": duration,
}  # fmt: skip


def _spread(value: Mapping[str, float | None] | None, tell: Callable[[float], str]) -> str:
    if value is None or value["mean"] is None:
        return "–"
    return tell(value["mean"]) + (f" ± {tell(value['sd'])}" if value["sd"] else "")


def _scores(result: Mapping[str, Any]) -> Table:
    metric = METRICS[result["metric"]]
    factor, unit = metric.difference
    names = list(dict.fromkeys(name for standing in result["standings"] for name in standing["scores"]))
    kinds = {name: effect["kind"] for s in result["standings"] for name, effect in s["effects"].items()}
    head = ["", *names, *(f"{kind}, {name} ({unit})" for name, kind in kinds.items())]
    rows = []
    for standing in result["standings"]:
        scores = [_between(standing["scores"][name], metric) if name in standing["scores"] else "–" for name in names]
        effects = [standing["effects"].get(name) for name in kinds]
        rows.append([standing["label"], *scores, *(_interval(e and e["difference"], factor) for e in effects)])
    return Table(str(result["title"]), head, rows)


def _interval(estimate: Mapping[str, Any] | None, factor: float) -> str:
    if estimate is None:
        return "–"
    mean, low, high = (None if estimate[k] is None else factor * estimate[k] for k in ("mean", "low", "high"))
    return number(mean) if low is None else f"{number(mean)}\n{number(low)} to {number(high)}"


def _chance(p: float | None) -> str:
    return number(p) if p is None or p >= 0.001 else "< 0.001"


def _differences(one: Mapping[str, Any]) -> Table:
    factor, unit = METRICS[one["metric"]].difference
    rows = [
        [
            row["label"], row["split"], _interval(row, factor), whole(len(row["seeds"])),
            _interval({"mean": row["mean"], "low": row["question_low"], "high": row["question_high"]}, factor),
            _chance(row["p"]),
        ]
        for row in one["rows"]
    ]  # fmt: skip
    head = ["", "split", "over seeds", "seeds", "over questions", "p"]
    return Table(f"{one['title']}: better than {one['reference']} by ({unit})", head, rows)
