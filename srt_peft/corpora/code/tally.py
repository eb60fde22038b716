"""What is counted of a corpus of code, and how it is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from srt_peft.corpora.code.clones import NEW, OLD
from srt_peft.corpora.rows import Row
from srt_peft.corpora.tables import number

POOLS = (OLD, NEW)


def _by_pool() -> dict[str, Counter[str]]:
    return {pool: Counter() for pool in POOLS}


@dataclass
class Tally:
    """Repositories by what they are to the corpus; all else is of files, by pool."""

    repositories: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    held_out: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, Counter[str]] = field(default_factory=_by_pool)
    languages: dict[str, Counter[str]] = field(default_factory=_by_pool)
    licences: dict[str, Counter[str]] = field(default_factory=_by_pool)
    words: dict[str, list[int]] = field(default_factory=lambda: {pool: [] for pool in POOLS})

    def repository(self, about: dict[str, Any]) -> None:
        """Count a repository, and what its scan has left out."""
        self.repositories[about["kind"]] += 1
        if about["kind"] in POOLS:
            self.left_out[about["kind"]].update(about["reasons"])

    def row(self, pool: str, row: Row, *, held_out: bool) -> None:
        """Count a file that is kept."""
        if held_out:
            self.held_out[pool] += 1
            return
        self.rows[pool] += 1
        self.languages[pool][row["source"]] += 1
        self.licences[pool][row["licence"]] += 1
        self.words[pool].append(len(row["text"].split()))

    def figures(self) -> dict[str, Any]:
        """All of it, as `statistics.json` has it."""
        return {
            "repositories": dict(sorted((+self.repositories).items())),
            "rows": {pool: self.rows[pool] for pool in POOLS},
            "held out": {pool: self.held_out[pool] for pool in POOLS},
            "median words": {pool: median(words) if words else None for pool, words in self.words.items()},
            "languages": _sorted(self.languages),
            "licences": _sorted(self.licences),
            "left out": _sorted(self.left_out),
        }


def _sorted(counts: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """The most first; of as many, by name."""
    return {
        pool: dict(sorted((+count).items(), key=lambda item: (-item[1], item[0]))) for pool, count in counts.items()
    }


def told(figures: dict[str, Any]) -> str:
    """The figures as a person reads them: two columns, old and new."""
    lines = ["Repositories: " + ", ".join(f"{count:,} {kind}" for kind, count in figures["repositories"].items()), ""]
    table: list[tuple[str, ...]] = [("", *POOLS)]
    for name in ("rows", "held out", "median words"):
        table += [(name, *(number(figures[name][pool]) for pool in POOLS))]
    for name in ("languages", "licences", "left out"):
        table += [(f"{name}:", "", "")]
        kinds = dict.fromkeys(kind for pool in POOLS for kind in figures[name][pool])
        table += [(f"  {kind}", *(number(figures[name][pool].get(kind, 0)) for pool in POOLS)) for kind in kinds]
    widths = [max(len(row[i]) for row in table) for i in range(3)]
    lines += [f"{a:{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in table]
    return "\n".join(lines)
