"""One condition against another, training by training: the same seed of both, the same questions.

    d_s = mean over questions of (entry − reference), both trained with seed s; positive is better, whatever the metric

Two intervals stand beside the mean of d. Over seeds, Student's: mean ± t·sd/√k with k − 1 degrees of freedom, which
says how far other trainings would land. Over questions, the bootstrap's, of the mean over these very trainings, which
says how far other questions would. The bootstrap knows no more than the questions that were asked: three that are all
better have an interval without any width, and yet would all be better by chance one time in four. So the paired test
has its say as well: a difference counts as one when neither interval has 0 in it and p < 1 − level. One seed has no
spread, and then the questions alone decide, which is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from srt_peft.evaluation.bootstrap import LEVEL, Sample, estimate, paired_p
from srt_peft.evaluation.compare import _answers, _conditions, _views
from srt_peft.evaluation.verdict import METRICS, number

Trainings = Mapping[int, Iterable[Mapping[str, Any]]]
"""The records of each seed's training."""


@dataclass(frozen=True)
class Difference:
    """An entry less the reference on one split, in the records' own unit, and positive where the entry is better."""

    label: str
    split: str
    seeds: tuple[int, ...]
    runs: tuple[float, ...]
    """Each seed's mean."""
    mean: float
    between: float | None
    """The standard deviation over seeds; None with one, as the interval over seeds is."""
    low: float | None
    high: float | None
    question_low: float
    question_high: float
    n: int
    p: float

    @property
    def sign(self) -> int:
        """+1 where it is better by more than chance explains, −1 where worse, 0 where either could be."""
        return sign_of(self.p, (self.low, self.question_low), (self.high, self.question_high))


def sign_of(p: float, lows: Iterable[float | None], highs: Iterable[float | None]) -> int:
    """The sign of a difference that counts, 0 of one that does not: by all its intervals, and by the paired test."""
    if p >= 1 - LEVEL:
        return 0
    low, high = min(x for x in lows if x is not None), max(x for x in highs if x is not None)
    return int(low > 0) - int(high < 0)


@dataclass(frozen=True)
class Differences:
    """One view of a suite: every other condition against the reference."""

    title: str
    metric: str
    unit: str
    reference: str
    level: float
    rows: tuple[Difference, ...]


def differences(title: str, metric: str, conditions: Mapping[str, Trainings], reference: str) -> Differences:
    """Every condition against the reference, over the seeds that both have."""
    rows = [
        row
        for label, trainings in conditions.items()
        if label != reference
        for row in _against(label, metric, trainings, conditions[reference])
    ]
    return Differences(title, metric, METRICS[metric].unit, reference, LEVEL, tuple(rows))


def _against(label: str, metric: str, trainings: Trainings, reference: Trainings) -> list[Difference]:
    seeds = [seed for seed in trainings if seed in reference]
    if not seeds:
        return []
    measure, both = METRICS[metric], {"entry": trainings, "reference": reference}
    answers = [(name, _answers(f"{label}, seed {s}", each[s])) for name, each in both.items() for s in seeds]
    found = _conditions(answers, measure)
    mine, theirs = found["entry"], found["reference"]
    samples = {s: Sample(measure.sign * (mine[s].values - theirs[s].values), mine[s].weights) for s in mine}
    return [_difference(label, split, seeds, parts) for split, parts in _views(samples)]


def _difference(label: str, split: str, seeds: Sequence[int], parts: tuple[Sample, ...]) -> Difference:
    runs = np.mean([part.runs for part in parts], axis=0)
    questions = estimate(*(Sample(part.items, part.weights) for part in parts))
    low, high = student(runs.tolist())
    return Difference(
        label=label,
        split=split,
        seeds=tuple(seeds),
        runs=tuple(runs.tolist()),
        mean=float(runs.mean()),
        between=float(runs.std(ddof=1)) if len(runs) > 1 else None,
        low=low,
        high=high,
        question_low=questions.low,
        question_high=questions.high,
        n=questions.n,
        p=paired_p(*parts),
    )


# --- Student's interval -------------------------------------------------------------------------------------------


def student(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | tuple[None, None]:
    """The t-interval of the mean of these values; none of a single one."""
    if len(values) < 2:
        return None, None
    half = t_quantile(level, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


def t_quantile(level: float, freedom: int) -> float:
    """The t with P(|T| < t) = level, by bisection: P rises from 0 to 1."""
    low, high = 0.0, 1.0
    while t_within(high, freedom) < level:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if t_within(middle, freedom) < level else (low, middle)
    return high


def t_within(t: float, freedom: int) -> float:
    """P(|T| < t) for whole degrees of freedom, a finite series (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    term = total = (cosine if odd else 1.0) if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


# --- in words -----------------------------------------------------------------------------------------------------

_VERDICTS = {+1: "better on ", -1: "worse on ", 0: "no difference counts on "}


def in_words(found: Sequence[Differences]) -> list[str]:
    """Which differences count, and as plainly which do not; and what to think of so many."""
    lines = [_line(each, label) for each in found for label in dict.fromkeys(row.label for row in each.rows)]
    rows = [row for each in found for row in each.rows]
    if rows and max(len(row.seeds) for row in rows) == 1:
        lines.append("One seed: no spread between trainings is known, and the intervals are over questions alone.")
    if rows:
        lines.append(
            f"A difference counts where none of its intervals has 0 in it and p < {1 - LEVEL:.2g}. Of the {len(rows)} "
            f"looked at, chance alone would let about one in twenty through an interval of {100 * LEVEL:g} %."
        )
    return lines


def _line(found: Differences, label: str) -> str:
    metric = METRICS[found.metric]
    told: dict[int, list[str]] = {sign: [] for sign in _VERDICTS}
    for row in found.rows:
        if row.label == label:
            told[row.sign].append(f"{row.split} ({number(metric.factor * row.mean, found.unit, '+')})")
    parts = [_VERDICTS[sign] + _listed(splits) for sign, splits in told.items() if splits]
    return f"{label} against {found.reference}, {found.title}: {'; '.join(parts)}, in {found.unit}."


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
