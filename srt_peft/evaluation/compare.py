"""Several models on the same questions: what each scored, what it forgot, and what it learned.

    forgetting = base − target   on old, and on any other split that is not new
    transfer   = target − base   on new and changed
    combined   = the mean of old and new (or changed and unchanged), and its change, target − base

In perplexity suites, where lower is better, the signs turn: forgetting is for the worse, transfer for the better.
Every difference is taken question by question, so questions that both find easy, or both hard, say nothing.

Targets with equal labels are the trainings of one condition, which differ in their seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.evaluation.bootstrap import LEVEL, RESAMPLES, Array, Estimate, Sample, estimate, paired_p
from srt_peft.evaluation.verdict import METRICS, Metric, Verdict, verdict

COMBINED = "combined"
_LEARNED = ("new", "changed")
_PAIRS = (("old", "new"), ("changed", "unchanged"))
_Question = tuple[str, str]  # split and key
_Answers = dict[_Question, tuple[float, float]]  # value and weight


@dataclass(frozen=True)
class Effect:
    """A paired difference from the base on one split: its mean and interval, and a paired test's p."""

    kind: str
    """forgetting, transfer or change."""
    difference: Estimate
    p: float


@dataclass(frozen=True)
class Standing:
    """One condition: its scores by split, and, but for the base, what became of the base's."""

    label: str
    trainings: int
    scores: dict[str, Estimate]
    effects: dict[str, Effect]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Comparison:
    """One suite's comparison: means and differences are in the records' own unit, verdicts in `unit`."""

    suite: str
    metric: str
    unit: str
    base: str | None
    splits: tuple[str, ...]
    level: float
    resamples: int
    seed: int
    standings: tuple[Standing, ...]


def compare(
    suite: str,
    targets: Iterable[tuple[str, Iterable[Mapping[str, Any]]]],
    *,
    metric: str = "accuracy",
    base: str | None = None,
    max_forgetting: float | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare labelled records of one suite; without a base there are scores alone.

    With several splits to forget on, each one's verdict has an interval of level 1 − (1 − level) / their number: else a
    false alarm would be the likelier the more of them are looked at.
    """
    answers = [(label, _answers(label, records)) for label, records in targets]
    measure = METRICS[metric]
    _check(suite, answers, measure, metric, base)
    conditions = _conditions(answers, measure)
    splits = tuple(next(iter(conditions.values())))
    kept = [split for split in splits if split not in _LEARNED]
    if max_forgetting is not None and not (base and kept):
        lacking = f"{suite} has nothing to forget on, but {', '.join(splits)}" if base else "there is no base"
        raise OptionError("the comparison", [f"max-forgetting = {max_forgetting:g}: {lacking}. Give one, or drop it."])
    chance = {"resamples": resamples, "seed": seed}

    def standing(label: str, samples: dict[str, Sample]) -> Standing:
        losses = {} if base in (None, label) else _losses(conditions[str(base)], samples, measure.sign)
        one_of = 1 - (1 - level) / max(1, len(kept))
        return Standing(
            label=label,
            trainings=next(iter(samples.values())).runs.size,
            scores={name: estimate(*parts, level=level, **chance) for name, parts in _views(samples)},
            effects={name: _effect(name, parts, level, **chance) for name, parts in _views(losses)},
            verdicts=()
            if max_forgetting is None or not losses
            else tuple(
                verdict(losses[split], max_forgetting, metric=metric, split=split, level=one_of, **chance)
                for split in kept
            ),
        )

    standings = tuple(standing(label, samples) for label, samples in conditions.items())
    return Comparison(suite, metric, measure.unit, base, splits, level, resamples, seed, standings)


def _views(samples: Mapping[str, Sample]) -> list[tuple[str, tuple[Sample, ...]]]:
    """Each split by itself, and old and new together."""
    alone: list[tuple[str, tuple[Sample, ...]]] = [(split, (sample,)) for split, sample in samples.items()]
    both = [(COMBINED, (samples[a], samples[b])) for a, b in _PAIRS if a in samples and b in samples]
    return alone + both[:1]


def _losses(base: Mapping[str, Sample], target: Mapping[str, Sample], sign: int) -> dict[str, Sample]:
    """By how much each question is worse than with the base."""
    return {s: Sample(sign * (base[s].values - target[s].values), base[s].weights) for s in base}


def _effect(name: str, losses: tuple[Sample, ...], level: float, *, resamples: int, seed: int) -> Effect:
    kind = "change" if name == COMBINED else "transfer" if name in _LEARNED else "forgetting"
    parts = losses if kind == "forgetting" else tuple(Sample(-loss.values, loss.weights) for loss in losses)
    return Effect(
        kind,
        estimate(*parts, level=level, resamples=resamples, seed=seed),
        paired_p(*parts, resamples=resamples, seed=seed),
    )


# --- the records, aligned ---------------------------------------------------------------------------------------------


def _answers(label: str, records: Iterable[Mapping[str, Any]]) -> _Answers:
    answers: _Answers = {}
    twice = 0
    for record in records:
        question = str(record["split"]), str(record["key"])
        twice += question in answers
        answers[question] = float(record["value"]), float(record["weight"])
    if twice:
        raise OptionError(
            "the comparison",
            [f"{label} answered {twice:,} questions more than once: expected one record a question. Evaluate it anew."],
        )
    return answers


def _check(suite: str, answers: Sequence[tuple[str, _Answers]], measure: Metric, metric: str, base: str | None) -> None:
    """Refuse what cannot be compared, all of it at once."""
    labels = [label for label, _ in answers]
    if not any(table for _, table in answers):
        raise OptionError(
            "the comparison", [f"{suite} has no records: expected one a question. Evaluate a model first."]
        )
    faults = []
    if base is not None and base not in labels:
        faults = [f"base = {base}: expected one of {', '.join(dict.fromkeys(labels))}{did_you_mean(base, labels)}"]
    elif base is not None and labels.count(base) > 1:
        faults = [f"base = {base}: {labels.count(base)} targets have this label, expected one. Give each its own."]
    reference_label, reference = next((a for a in answers if a[0] == base), answers[0])
    for number, (label, table) in enumerate(answers):
        name = label if labels.count(label) == 1 else f"{label} (training {labels[: number + 1].count(label)})"
        faults += _no_scores(name, table, measure, metric)
        faults += _unlike(suite, name, table, reference_label, reference)
    if faults:
        raise OptionError("the comparison", faults)


def _no_scores(name: str, table: _Answers, measure: Metric, metric: str) -> list[str]:
    """Values that cannot be averaged."""
    low, high = (0.0, 1.0) if measure.shares else (-math.inf, math.inf)
    wrong = [q for q, (v, w) in table.items() if not (math.isfinite(v) and low <= v <= high and 0 < w < math.inf)]
    if not wrong:
        return []
    split, key = first = wrong[0]
    return [
        (
            f"{name} has records that are no {metric}: {len(wrong):,} (first: {key} of {split}, "
            f"value = {table[first][0]:g}, weight = {table[first][1]:g}): expected "
            f"{'0 to 1' if measure.shares else 'a number'}, and a weight above 0. Evaluate it anew."
        )
    ]


def _unlike(suite: str, name: str, table: _Answers, reference_label: str, reference: _Answers) -> list[str]:
    """Questions that only one of two answered, or that their tokenizers cut differently."""
    missing, extra = reference.keys() - table.keys(), table.keys() - reference.keys()
    if missing or extra:
        split, key = min(missing or extra)
        return [
            (
                f"{name} lacks {len(missing):,} of the {len(reference):,} questions that {reference_label} answered, "
                f"and has {len(extra):,} that it did not (first: {key} of {split}): expected the same questions. "
                f"Evaluate both on the same files, with the same settings, to the end: srt-peft eval … --suite {suite}"
            )
        ]
    weighed = sum(reference[question][1] != weight for question, (_, weight) in table.items())
    if weighed:
        return [
            (
                f"{name} weighs {weighed:,} of {len(reference):,} questions otherwise than {reference_label}: expected "
                "the same tokens. Different tokenizers' perplexities do not compare; compare targets of one base model."
            )
        ]
    return []


def _conditions(answers: Sequence[tuple[str, _Answers]], measure: Metric) -> dict[str, dict[str, Sample]]:
    """Samples by label and split, questions by their keys: equal labels are one condition's trainings."""
    reference = answers[0][1]
    found = dict.fromkeys(split for split, _ in reference)
    splits = dict.fromkeys([*(split for pair in _PAIRS for split in pair if split in found), *found])
    questions: dict[str, list[_Question]] = {split: [] for split in splits}
    for question in sorted(reference):
        questions[question[0]].append(question)
    weights = {split: np.array([reference[q][1] for q in questions[split]]) for split in splits}

    def sample(label: str, split: str) -> Sample:
        runs: list[Array] = [np.array([t[q][0] for q in questions[split]]) for name, t in answers if name == label]
        return Sample(measure.take(np.stack(runs)), weights[split])

    return {label: {split: sample(label, split) for split in splits} for label, _ in answers}
