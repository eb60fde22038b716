"""Which questions make a set: none asked twice, none given away by how long a choice is, letters that say nothing.

Whoever always takes the longest choice, or the shortest, must get no more right than by chance, and no fewer, within a
standard error. A question that would tip that waits, and is taken as soon as the set can bear it; who waits to the end
is left out. Letters come in blocks of four questions, each letter once in a block, in an order that the seed decides.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from srt_peft.corpora.qa.checks import Draft, meant
from srt_peft.corpora.qa.items import Item
from srt_peft.corpora.qa.words import telling

LETTERS = "ABCD"
ALIKE = 0.7
"""The share of common words from which on two questions with one answer are near-duplicates."""
TWICE, LENGTH = "near-duplicate of another question", "answerable by the length of its choices"


@dataclass(frozen=True, slots=True)
class Made:
    """A question that has passed the checks, and what it was made of."""

    item: Item
    draft: Draft
    maker: str


def choose(made: Sequence[Made], n: int) -> tuple[list[Made], Counter[str]]:
    """At most n of them, the first first; and how many of the others are left out for what reason."""
    left: Counter[str] = Counter()
    apart = unlike(made)
    left[TWICE] = len(made) - len(apart)
    balance, waiting = Balance(), list(apart)
    chosen: list[Made] = []
    while waiting and len(chosen) < n:
        still = []
        for one in waiting:
            if len(chosen) < n and balance.bears(one.draft):
                balance.add(one.draft)
                chosen.append(one)
            else:
                still.append(one)
        if len(still) == len(waiting):
            break
        waiting = still
    if len(chosen) < n:
        left[LENGTH] = len(waiting)
    return chosen, +left


# --- near-duplicates ------------------------------------------------------------------------------------------------


def unlike(made: Iterable[Made]) -> list[Made]:
    """Those that ask for what none before them asks for.

    Two questions ask for the same where they are the same words, or where they have one answer and most words in
    common; unless each has a name or a number that the other lacks: "… of Chad" and "… of Niger" may have one answer.
    """
    kept: list[Made] = []
    asked: set[frozenset[str]] = set()
    by_answer: dict[str, list[tuple[frozenset[str], frozenset[str]]]] = defaultdict(list)
    for one in made:
        told = frozenset(telling(one.draft.question))
        marks = frozenset(re.findall(r"\w*[A-Z0-9]\w*", one.draft.question))
        rivals = by_answer[meant(one.draft.right)]
        if told in asked or any(_alike(told, marks, *rival) for rival in rivals):
            continue
        asked.add(told)
        rivals.append((told, marks))
        kept.append(one)
    return kept


def _alike(told: frozenset[str], marks: frozenset[str], others: frozenset[str], theirs: frozenset[str]) -> bool:
    common = len(told & others) / len(told | others)
    return common >= ALIKE and not (marks - theirs and theirs - marks)


# --- lengths --------------------------------------------------------------------------------------------------------


class Balance:
    """What the two heuristics have got right so far."""

    def __init__(self) -> None:
        self.count = 0
        self.right = (0.0, 0.0)

    @property
    def is_fair(self) -> bool:
        """Whether both are within a standard error of chance."""
        return all(abs(off) <= math.sqrt(self.count * 3 / 16) for off in self._off())

    def bears(self, draft: Draft) -> bool:
        """Whether both are within chance with this one, or no farther from it than without."""
        with_it = Balance()
        with_it.count, with_it.right = self.count, self.right
        with_it.add(draft)
        slack = math.sqrt(with_it.count * 3 / 16)
        return all(
            abs(now) <= slack or abs(now) <= abs(was) for was, now in zip(self._off(), with_it._off(), strict=True)
        )

    def add(self, draft: Draft) -> None:
        """Take it in."""
        longest, shortest = by_length(draft)
        self.count += 1
        self.right = (self.right[0] + longest, self.right[1] + shortest)

    def _off(self) -> list[float]:
        return [right - self.count / 4 for right in self.right]


def by_length(draft: Draft) -> tuple[float, float]:
    """How much of this question is right by its longest choice, and by its shortest; of several, any of them."""
    lengths = [len(choice) for choice in draft.choices]
    longest, shortest = max(lengths), min(lengths)
    return (lengths[0] == longest) / lengths.count(longest), (lengths[0] == shortest) / lengths.count(shortest)


# --- letters and rows -----------------------------------------------------------------------------------------------


def lettered(drafts: Sequence[Draft], seed: int) -> list[tuple[list[str], str]]:
    """The choices of each in their order, and the letter of the right one: in each four, every letter once."""
    found = []
    chance = random.Random(f"letters {seed}")  # noqa: S311 - no secret
    block: list[int] = []
    for draft in drafts:
        block = block or chance.sample(range(4), 4)
        place = block.pop()
        choices = list(draft.wrong)
        chance.shuffle(choices)
        choices.insert(place, draft.right)
        found.append((choices, LETTERS[place]))
    return found


def rows_of_set(made: Sequence[Made], seed: int) -> list[dict[str, Any]]:
    """The lines of a questions file."""
    return [
        {
            "question": one.draft.question, "choices": choices, "answer": answer, "split": one.item.split,
            **({"source": one.item.source} if one.item.source else {}),
            "id": one.item.id, "document": one.item.document, "title": one.item.title, "kind": one.draft.kind,
            "maker": one.maker, **({"was": one.item.was} if one.item.was else {}),
            "passage": one.item.passage, "support": [one.item.start, one.item.end],
        }
        for one, (choices, answer) in zip(made, lettered([one.draft for one in made], seed), strict=True)
    ]  # fmt: skip
