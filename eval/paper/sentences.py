"""What a table says here and in the paper, in sentences that are made of its numbers; nulls as plainly as wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from eval.paper.costs import NOISE
from eval.paper.figures import Figure, Panel, Paper, Sources
from eval.speed.overhead import interval
from srt_peft.evaluation.compare import COMBINED
from srt_peft.evaluation.paired import Difference, student
from srt_peft.evaluation.rivals import BASE, Contest
from srt_peft.evaluation.verdict import METRICS, number

_SIGNS = {-1: "worse", 0: "level", 1: "better"}


def _signed(value: float) -> str:
    return number(value, "points", "+")


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


# --- conditions: temporal QA, broad benchmarks, TemporalWiki ----------------------------------------------------------


def of_conditions(found: Contest, ours: Sources, paper: Paper) -> Iterator[str]:
    """SRT against uniform replay, which shares its budget; then what an update without replay costs."""
    for differences in found.differences:
        metric, rows = METRICS[differences.metric], [row for row in differences.rows if row.label == "srt"]
        told = [
            f"{_SIGNS[row.sign]} on {row.split} ({number(metric.factor * row.mean, differences.unit, '+')})"
            for row in rows
        ]
        yield (
            f"SRT against uniform here, {differences.title}, in {differences.unit}, more being better: {_listed(told)}"
            f"{_level(rows)}."
        )
    yield _drawn({"": found})
    held = [panel for panel in paper.panels.values() if "uniform" in panel]
    if held:
        told = [f"{_apart(held, 'srt', 'uniform', metric)} on {metric}" for metric in paper.metrics]
        yield f"In the paper ({'; '.join(paper.panels)}): {'; '.join(told)}."
    apart = _times if paper.unit.startswith("perplexity") else _apart
    for where, panels in (("here", ours), ("in the paper", paper.panels)):
        told = [f"{apart(list(panels.values()), 'cpt', BASE, metric)} on {metric}" for metric in paper.metrics]
        yield f"CPT against the base {where}: {'; '.join(told)}."


def _level(rows: Sequence[Difference]) -> str:
    """What level means, where something is."""
    return "" if all(row.sign for row in rows) else "; level is what chance explains, of seeds or of questions"


def _apart(panels: Sequence[Panel], one: str, other: str, metric: str) -> str:
    """How far two conditions lie apart, panel by panel."""
    return _listed([_signed(panel[one][metric].value - panel[other][metric].value) for panel in panels])


def _times(panels: Sequence[Panel], one: str, other: str, metric: str) -> str:
    """How many times as large, or as small."""
    ratios = [panel[one][metric].value / panel[other][metric].value for panel in panels]
    return _listed([f"× {ratio:,.1f}" if ratio >= 1 else f"÷ {1 / ratio:,.1f}" for ratio in ratios])


# --- sweeps ---------------------------------------------------------------------------------------------------------


def of_sweep(symbol: str, default: str, by_row: Mapping[str, Contest], ours: Sources, paper: Paper) -> Iterator[str]:
    """Which value is best, and whether that is more than chance; then what uniform replay makes of the same budgets."""
    mine = {row: cells[COMBINED] for row, cells in ours["srt here"].items()}
    theirs = {row: cells[COMBINED].value for row, cells in paper.panels[paper.first].items()}
    best, printed = max(mine, key=lambda row: mine[row].value), max(theirs, key=lambda row: theirs[row])
    here, there = _range([figure.value for figure in mine.values()]), _range(list(theirs.values()))
    yield (
        f"{symbol}: the best combined here is {best} ({mine[best].value:.1f}), the paper's is {printed} "
        f"({theirs[printed]:.1f}). From worst to best it is {here:.1f} points here, and {there:.1f} in the paper."
    )
    if best != default:
        yield f"{best} against the paper's {default} here: {_paired(mine[best], mine[default])}."
    yield _drawn(by_row)
    held = [row for row in by_row if "uniform" in by_row[row].entries]
    rows = {row: next(d for d in by_row[row].differences[0].rows if (d.label, d.split) == ("srt", COMBINED))
            for row in held}  # fmt: skip
    told = [f"{_SIGNS[d.sign]} at {row} ({_signed(100 * d.mean)})" for row, d in rows.items()]
    yield f"SRT against uniform with the same {symbol}, combined: {_listed(told)}{_level(list(rows.values()))}."


def _drawn(by_row: Mapping[str, Contest]) -> str:
    """What share of old each training of SRT drew, beside what it was to draw: a pool that is not due leaves slots."""
    told = []
    for row, found in by_row.items():
        share = found.exposure["srt"]["realised_old_share"]["mean"]
        told.append(
            f"{100 * (share or 0):.0f} for {100 * found.recipe.review.old_fraction:g}{f' at {row}' if row else ''}"
        )
    return f"Old examples among those that SRT drew, in %: {_listed(told)}. Uniform draws what it is told to."


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _paired(one: Figure, other: Figure) -> str:
    """Two values' trainings, seed by seed."""
    apart = [a - b for a, b in zip(one.runs, other.runs, strict=True)]
    mean, (low, high) = sum(apart) / len(apart), student(apart)
    if low is None or high is None:
        return f"{_signed(mean)} points, with one seed"
    word = "a difference" if low > 0 or high < 0 else "no more than seeds explain"
    return f"{_signed(mean)} points, 95 % over {len(apart)} seeds {_signed(low)} to {_signed(high)}: {word}"


# --- overhead -------------------------------------------------------------------------------------------------------


def of_overhead(ours: Sources, paper: Paper) -> Iterator[str]:
    """SRT's steps beside the others', with what the measurement itself is worth."""
    here, there = ours["here"], paper.panels[paper.first]
    for row, other in (("% over cpt", "CPT"), ("% over uniform", "uniform")):
        low, high = interval(np.array(here[row]["srt"].runs))
        word = "a difference" if low > 0 or high < 0 else "no difference that the rounds show"
        yield (
            f"A step with SRT against one with {other} here: {_signed(here[row]['srt'].value)} %, 95 % interval "
            f"{_signed(low)} to {_signed(high)}: {word}. The paper's wall-clock: {_signed(there[row]['srt'].value)} %."
        )
    low, high = interval(np.array(here[NOISE]["cpt"].runs))
    yield (
        f"CPT against itself with another seed: {_signed(here[NOISE]['cpt'].value)} %, {_signed(low)} to "
        f"{_signed(high)}, which is what this measurement is worth on this machine."
    )
