"""Who is taken of all pairs that were compared, and the corpus that they make.

Topics and strata are as unequal as the wiki is. `per_stratum` takes at most so many pages of each stratum of each
topic: those with the lowest hashes of their keys, so that the choice needs no seed, and hardly changes with the dump.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from srt_peft.corpora.wikipedia.compare import OUTPUTS, Told, told_of
from srt_peft.corpora.wikipedia.dump import Advance
from srt_peft.corpora.wikipedia.topics import NAMES, STRATA

Taken = Callable[[Told], str | None]
"""Why a pair is left out; None where it is taken."""


def taken_of(heaps: Sequence[Path], topics: Sequence[str], per_stratum: int | None) -> Taken:
    """Whom to take."""
    wanted = set(topics)
    lowest: dict[tuple[str, str], list[int]] = {}
    for told in _all(heaps) if per_stratum else ():
        if told.topic in wanted and _says(told):
            heap = lowest.setdefault((told.topic, told.stratum), [])
            (heapq.heappush if len(heap) < (per_stratum or 0) else heapq.heappushpop)(heap, -told.rank)

    def why(told: Told) -> str | None:
        if not _says(told):
            return "pages without prose in either snapshot"
        if told.topic not in wanted:
            return "pages of topics that were not asked for"
        if per_stratum and told.rank > -lowest[told.topic, told.stratum][0]:
            return "pages beyond --per-stratum"
        return None

    return why


def _says(told: Told) -> bool:
    """Whether either snapshot has prose of it."""
    return any(words is not None for words in told.words)


def _all(heaps: Sequence[Path]) -> Iterator[Told]:
    for path in heaps:
        with path.open("rb") as file:
            yield from told_of(file)


def write(heaps: Sequence[Path], target: Path, why: Taken, advance: Advance) -> tuple[dict[str, Any], Counter[str]]:
    """Copy the rows of those who are taken; the figures, and how many were left out by which reason."""
    tally, left_out = Tally(), Counter[str]()
    with ExitStack() as stack:
        outputs = [stack.enter_context((target / f"{name}.jsonl").open("wb")) for name in OUTPUTS]
        for path in heaps:
            with path.open("rb") as file:
                for told in told_of(file):
                    reason = why(told)
                    left_out.update({reason: 1} if reason else told.left_out)
                    if reason is None:
                        tally.add(told)
                        for output, size in zip(outputs, told.bytes, strict=True):
                            output.write(file.read(size))
            advance(1)
    return tally.figures(), left_out


class Tally:
    """What is counted of the pairs that are taken: by value, and not one by one, since there may be millions."""

    def __init__(self) -> None:
        self._documents: Counter[str] = Counter()
        self._sentences: Counter[str] = Counter(dict.fromkeys(("inserted", "deleted", "modified"), 0))
        self._rows: Counter[str] = Counter(dict.fromkeys(("old", "new", "superseded"), 0))
        self._words: dict[str, Counter[int]] = {"old": Counter(), "new": Counter()}
        self._differences: Counter[int] = Counter()
        self._strata: Counter[tuple[str, str]] = Counter()

    def add(self, told: Told) -> None:
        """Count a pair."""
        old, new = told.words
        self._strata[told.topic, told.stratum] += 1
        if told.held:
            self._documents["held out"] += 1
            return
        self._rows.update(dict(zip(("old", "new", "superseded"), told.rows, strict=True)))
        if old is None or new is None:
            self._documents["only in old" if new is None else "only in new"] += 1
            return
        self._documents["in both"] += 1
        self._documents["of these unchanged"] += told.stratum == "unchanged"
        self._words["old"][old] += 1
        self._words["new"][new] += 1
        self._differences[sum(told.sentences)] += 1
        self._sentences.update(dict(zip(("inserted", "deleted", "modified"), told.sentences, strict=True)))

    def figures(self) -> dict[str, Any]:
        """All of it, as `statistics.json` has it."""
        return {
            "documents": dict(self._documents),
            "sentences": dict(self._sentences),
            "rows": dict(self._rows),
            "median words": {name: median_of(counts) for name, counts in self._words.items()},
            "median sentence differences": median_of(self._differences),
            "documents by topic and change": {
                topic: {stratum: self._strata[topic, stratum] for stratum in STRATA} for topic in NAMES
            },
        }


def median_of(counts: Counter[int]) -> float | None:
    """The median of values by how often they are there."""
    total, seen = counts.total(), 0
    if not total:
        return None
    found: list[int] = []
    for value in sorted(counts):
        seen += counts[value]
        while len(found) < 2 and seen > (total - 1 + len(found)) // 2:
            found.append(value)
    return sum(found) / 2


def table_of(figures: dict[str, Any]) -> str:
    """Topics by strata, as it is printed."""
    rows = [("documents", *STRATA)]
    for topic, by in figures["documents by topic and change"].items():
        if any(by.values()):
            rows.append((topic, *(f"{by[stratum]:,}" for stratum in STRATA)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
