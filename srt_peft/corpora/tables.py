"""The paper's table of a corpus: rows, median words, median sentence differences; as numbers and as it is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from srt_peft.corpora.documents import Document
from srt_peft.corpora.rows import Rows


@dataclass
class Tally:
    """What is counted while a corpus is made: `add` each pair of documents, then the rows that were kept."""

    documents: Counter[str] = field(default_factory=Counter)
    """In both, only in old, only in new, unchanged, held out."""
    sentences: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    words: dict[str, list[int]] = field(default_factory=lambda: {"old": [], "new": []})
    """Of each document that is in both."""
    differences: list[int] = field(default_factory=list)
    """Sentences, of each document that is in both."""

    def add(self, old: Document | None, new: Document | None, rows: Rows) -> None:
        """Count a pair."""
        if old is None or new is None:
            self.documents["only in old" if new is None else "only in new"] += 1
            return
        count = rows.inserted + rows.deleted + rows.modified
        self.documents["in both"] += 1
        self.documents["of these unchanged"] += not count
        for name, document in (("old", old), ("new", new)):
            self.words[name].append(len(document.text.split()))
        self.differences.append(count)
        for name in ("inserted", "deleted", "modified"):
            self.sentences[name] += getattr(rows, name)

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add what another one counted, as `vars` has it."""
        for name in ("documents", "sentences", "rows"):
            getattr(self, name).update(other[name])
        for name in self.words:
            self.words[name] += other["words"][name]
        self.differences += other["differences"]

    def figures(self) -> dict[str, Any]:
        """All of it, as `statistics.json` has it."""
        medians: dict[str, Sequence[int]] = {**self.words, "sentence differences": self.differences}
        return {
            "documents": dict(self.documents),
            "sentences": dict(self.sentences),
            "rows": dict(self.rows),
            "median words": {name: median(medians[name]) if medians[name] else None for name in ("old", "new")},
            "median sentence differences": median(self.differences) if self.differences else None,
        }


def told(figures: dict[str, Any]) -> str:
    """The table, and what it is made of."""
    words = figures["median words"]
    head = ("old rows", "new rows", "superseded", "old median words", "new median words", "median sent. diff")
    rows = figures["rows"]
    cells = [rows.get("old", 0), rows.get("new", 0), rows.get("superseded", 0), words["old"], words["new"]]
    line = [number(value) for value in (*cells, figures["median sentence differences"])]
    widths = [max(len(a), len(b)) for a, b in zip(head, line, strict=True)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, line)]
    return "\n".join([*table, *_counts(figures, ("documents", "sentences"))])


def _counts(figures: dict[str, Any], names: Iterable[str]) -> list[str]:
    return [f"{name}: " + ", ".join(f"{number(n)} {what}" for what, n in figures[name].items()) for name in names]


def number(value: float | None) -> str:
    """A figure as a table has it."""
    return "--" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
