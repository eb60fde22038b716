"""What each source of the old text has lost: updates that lose as much in all may lose it in one place, or in many.

lost of source g   base − update, the mean over g's questions; positive is worse, whatever the metric
mean               over sources, each counted once: what decks make small, and not the mean over questions
worst              the source that has lost the most in the mean over seeds
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from srt_peft.evaluation.exposure import Spread, _spread
from srt_peft.evaluation.verdict import METRICS

MOST = 12
"""Of more sources than this a table would be wider than any page: there is none then."""

Records = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Losses:
    """What one condition has lost, over its seeds, in the records' own unit."""

    label: str
    sources: dict[str, Spread]
    mean: Spread
    worst: str


@dataclass(frozen=True)
class BySource:
    """One view of a suite, split by the sources of its old questions, and how many each has."""

    title: str
    metric: str
    unit: str
    questions: dict[str, int]
    rows: tuple[Losses, ...]


def by_source(
    title: str, metric: str, base: Records, conditions: Mapping[str, Sequence[Records]], split: str = "old"
) -> BySource | None:
    """What each condition's trainings have lost of each source; None where there are no sources to tell apart."""
    known = {record["key"]: record for record in base if record["split"] == split}
    names = sorted({str(r["source"]) for r in known.values() if r.get("source")}, key=str)
    if not 1 < len(names) <= MOST or any(not r.get("source") for r in known.values()):
        return None
    counts = {name: sum(r["source"] == name for r in known.values()) for name in names}
    order = sorted(names, key=lambda name: -counts[name])
    rows = [_losses(label, metric, known, trainings, order) for label, trainings in conditions.items()]
    return BySource(title, metric, METRICS[metric].unit, {name: counts[name] for name in order}, tuple(rows))


def _losses(
    label: str, metric: str, base: Mapping[str, Mapping[str, Any]], trainings: Sequence[Records], names: Sequence[str]
) -> Losses:
    lost = np.array([_lost(metric, base, records, names) for records in trainings])
    sources = {name: _spread(lost[:, i].tolist()) for i, name in enumerate(names)}
    worst = names[int(lost.mean(axis=0).argmax())]
    return Losses(label, sources, _spread(lost.mean(axis=1).tolist()), worst)


def _lost(metric: str, base: Mapping[str, Mapping[str, Any]], records: Records, names: Sequence[str]) -> list[float]:
    """Of each source, one training's loss: the weighted mean over its questions."""
    measure = METRICS[metric]
    pairs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for record in records:
        before = base.get(record["key"])
        if before is not None:
            pairs[before["source"]].append((before["value"], record["value"], before["weight"]))
    found = []
    for name in names:
        was, now, weight = np.array(pairs[name], dtype=np.float64).T
        found.append(float(np.average(measure.sign * (measure.take(was) - measure.take(now)), weights=weight)))
    return found
