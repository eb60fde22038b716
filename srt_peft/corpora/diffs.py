"""What changed between two texts, sentence by sentence: inserted, deleted, modified.

A sentence is new if it stands nowhere in the old text, and gone if it stands nowhere in the new one; one that has only
moved, or whose paragraph was wrapped anew, is neither. To stand is to be there word for word, in a row: so nothing that
is learned as new could have been read in the old text.

The rest is which new sentence took the place of which that is gone. A label says so where a text has it once: what
`Population:` said is replaced by what it says now. Elsewhere it is those between the same two unchanged sentences,
paired in order, such that they are as alike as can be in all: in the words they share, numbers apart, which change; and
two fields in the words of their labels. Those that are not alike are a deletion and an insertion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from srt_peft.corpora.sentences import Sentence, apart

ALIKE = 0.5
"""How large a share of their words two sentences must have in common for one to be the other's new version."""

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+")


class Changes(NamedTuple):
    """What changed, by the numbers of sentences."""

    inserted: list[int]
    """New sentences that replace nothing."""
    deleted: list[int]
    """Old sentences that nothing replaces."""
    modified: list[tuple[int, int]]
    """Old sentences, each with the new one that replaces it."""


def changes_of(old: Sequence[Sentence], new: Sequence[Sentence]) -> Changes:
    """What changed from one text to the other."""
    gone, fresh = absent_of(old, new), absent_of(new, old)
    pairs = _by_label(old, new, gone, fresh)
    matcher = SequenceMatcher(None, [s.words for s in old], [s.words for s in new], autojunk=False)
    taken, used = set(pairs), set(pairs.values())
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "replace":
            left = [i for i in range(first, last) if i in gone and i not in taken]
            right = [j for j in range(begin, end) if j in fresh and j not in used]
            alike = likeness([old[i] for i in left], [new[j] for j in right])
            pairs.update((left[i], right[j]) for i, j in in_order(alike))
    replacing = set(pairs.values())
    return Changes(
        [j for j in sorted(fresh) if j not in replacing],
        [i for i in sorted(gone) if i not in pairs],
        sorted(pairs.items()),
    )


def absent_of(these: Sequence[Sentence], others: Sequence[Sentence]) -> set[int]:
    """Those that stand nowhere in the other text."""
    known = {sentence.words for sentence in others}
    whole = " " + " ".join(sentence.words for sentence in others) + " "
    return {i for i, s in enumerate(these) if s.words not in known and f" {s.words} " not in whole}


def _by_label(old: Sequence[Sentence], new: Sequence[Sentence], gone: set[int], fresh: set[int]) -> dict[int, int]:
    """The lines that changed under a label which each text has once."""
    before, after = ({s.label: i for i, s in enumerate(text) if s.opens} for text in (old, new))
    once = [{k for k, n in Counter(s.label for s in text if s.opens).items() if n == 1} for text in (old, new)]
    found = ((before[label], after[label]) for label in (once[0] & once[1]) - {None})
    return {i: j for i, j in found if i in gone and j in fresh}


def likeness(old: Sequence[Sentence], new: Sequence[Sentence]) -> NDArray[np.float64]:
    """How alike they are, each with each: Dice's share of common words; 0 for what cannot be the same thing.

    Fields are as alike as their labels; those with the same label come before all others.
    """
    left, right = [_Said.of(s) for s in old], [_Said.of(s) for s in new]
    table = np.zeros((len(left), len(right)))
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            table[i, j] = one.like(other)
    return table


class _Said(NamedTuple):
    """What is compared of a sentence."""

    words: frozenset[str]
    label: frozenset[str]
    numbers: tuple[str, ...]
    """Of the label."""

    @classmethod
    def of(cls, sentence: Sentence) -> _Said:
        label = (sentence.label or "") if sentence.opens else ""
        return cls(_words(_NUMBER.sub("0", sentence.words)), _words(label), tuple(_NUMBER.findall(label)))

    def like(self, other: _Said) -> float:
        alike = _share(self.words, other.words)
        if alike < ALIKE or self.numbers != other.numbers:  # the field of another year, the item of another number
            return 0.0
        if not self.label or not other.label:
            return alike
        # Values of one form are alike whatever they are of: between two fields it is the labels that tell.
        labels = _share(self.label, other.label)
        return 1 + alike if labels == 1 else labels if labels >= ALIKE else 0.0


def _words(text: str) -> frozenset[str]:
    return frozenset(apart(_WORD.findall(text.casefold())))


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / max(1, len(one) + len(other))


def in_order(alike: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs that cross nowhere, and whose likeness is as large as can be in all; of equals, the earlier ones."""
    rows, columns = alike.shape
    best = np.zeros((rows + 1, columns + 1))
    for i in range(rows):
        best[i + 1, 1:] = np.maximum(best[i, 1:], best[i, :-1] + alike[i])
        best[i + 1] = np.maximum.accumulate(best[i + 1])
    pairs, i, j = [], rows, columns
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]
