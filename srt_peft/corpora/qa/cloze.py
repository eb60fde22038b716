"""Questions from the diffs, without a model: a statement with a gap, and what may fill it.

    Algeria | People and Society: what belongs in the gap of “Population: ____ (2024 est.)”?
      A. 46,704,338     another document's value for this year
      B. 47,022,473     the right one
      C. 44,700,000     another document's value of before
      D. 43,576,691     what the old text had in the gap

In a statement that was updated the gap is where old and new differ, and the old value is a wrong choice: whoever has
not learned the update takes it. Old and new value lie close to each other, so that a guesser would look for the pair;
the other two choices are then such a pair of another document, where there is one. Elsewhere wrong choices are values
of the same kind from all over the corpus, the likest first: those with the same label or word before them, written
alike, and of numbers those near in magnitude, of which a number, by lot, is smaller than the right one. Dates are of
one time, or the century alone would tell the right one. A value that was only written otherwise was not updated.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import product

from srt_peft.corpora.qa.checks import Draft, Grounds, faults_of
from srt_peft.corpora.qa.items import Corpus, Item
from srt_peft.corpora.qa.statements import statements_of
from srt_peft.corpora.qa.values import Value, values_of
from srt_peft.corpora.qa.words import EMPTY, plain, stands_in, words
from srt_peft.corpora.writing import shown

STOCK = 5_000_000
"""Characters of each training file whose values may serve as wrong choices."""
GAP = "____"
NEAR, FAR = 3.0, 5.0
"""By which factor a wrong number may differ from the right one; the second where there are not enough others."""
ROUNDED = 0.005
"""The share by which two numbers must differ at least, to be two."""
RESPELT = 0.8
"""The share of letters in common from which on a name is the one of before, in another spelling."""
_MOST = 400
"""Values that are kept under one key: choosing among more takes time, and brings nothing."""

_MARKUP = re.compile(r"https?://|``|>>>|::|[{}=\\]|<\S+>|-{4,}|:\w+:`|`_|\w\(\)")
"""What stands in code, links and reStructuredText, and in no sentence."""
_ORDER = ("number", "name", "date", "year")


class Stock:
    """The values of a corpus, by what they are like; and the pairs of an old value and a new one."""

    def __init__(self, corpus: Corpus) -> None:
        self._values: dict[tuple[str, ...], dict[str, Value]] = defaultdict(dict)
        self._pairs: dict[tuple[str, ...], dict[tuple[str, str], tuple[Value, Value]]] = defaultdict(dict)
        texts = [text for d in corpus.documents for text in (d.old, d.new) if text]
        texts += corpus.texts
        for text in shown(texts, "values of the corpus", "text", len(texts)):
            for said in statements_of(text):
                self._add(text[said.start : said.end])
        changed = [(c.get("old") or "", c.get("new") or "") for d in corpus.documents for c in d.changes]
        for old, new in (*changed, *corpus.pairs):
            for was, now in replaced(old, new):
                for key in _keys(now):
                    self._pairs[key].setdefault((was.text, now.text), (was, now))

    def _add(self, statement: str) -> None:
        for value in values_of(statement):
            for key in _keys(value):
                kept = self._values[key]
                if len(kept) < _MOST:
                    kept.setdefault(plain(value.text), value)

    def like(self, value: Value) -> Iterator[list[Value]]:
        """Values that may stand for this one: the likest first, in groups of equal likeness."""
        for key in _keys(value):
            yield list(self._values.get(key, {}).values())

    def pairs_like(self, value: Value) -> Iterator[list[tuple[Value, Value]]]:
        """Pairs of an old and a new value, likewise."""
        for key in _keys(value)[:2]:
            yield list(self._pairs.get(key, {}).values())


def _keys(value: Value) -> list[tuple[str, ...]]:
    """From the likest on: the same label and words before it, the same label, the same words, the same kind.

    What a name names (a place, a party, a person) only the words before it tell, or the label that it follows.
    """
    kind = (value.kind, value.shape)
    exact, ahead = (*kind, value.label, value.before), (*kind, "", value.before)
    if value.kind == "name":
        return [exact, ahead] if set(words(value.before)) - EMPTY else []
    return [exact, *([(*kind, value.label)] if value.label else []), ahead, kind]


def replaced(old: str, new: str) -> Iterator[tuple[Value, Value]]:
    """Values that an update has put in another's place: written alike, in the same order, and not in both."""
    before, after = values_of(old), values_of(new)
    gone = [v for v in before if not stands_in(v.text, new)]
    come = [v for v in after if not stands_in(v.text, old)]
    for kind in _ORDER:
        was, now = ([v for v in side if v.kind == kind] for side in (gone, come))
        if len(was) == len(now):
            yield from zip(was, now, strict=True)


# --- a question -----------------------------------------------------------------------------------------------------


def draft(item: Item, stock: Stock) -> Draft | str:
    """A question on this statement; or why there is none."""
    statement, olds = item.statement, {}
    if _MARKUP.search(statement):
        return "code, markup or a link, not prose"
    values = [v for v in values_of(statement) if not (v.kind == "name" and _named_after(item.title, v.text))]
    if item.was is not None:
        pairs = list(replaced(item.was, statement))
        same = {now.text for was, now in pairs if _is_respelt(was, now)}
        olds = {now.text: was for was, now in pairs if now.text not in same}
        values = [v for v in values if v.text not in same]
        values = [v for v in values if v.text in olds] or [v for v in values if not stands_in(v.text, item.was)]
    values.sort(key=lambda v: (v.text not in olds, _ORDER.index(v.kind), _lot(item.id, v.text)))
    if not values:
        return "no number, date or name to ask for" if item.was is None else "no number, date or name was updated"
    reason = ""
    for value in values:
        made = _asked(item, value, olds.get(value.text), stock)
        if not isinstance(made, str):
            return made
        reason = reason or made
    return reason


def _is_respelt(was: Value, now: Value) -> bool:
    """Whether an update has only written it otherwise: April 6, 1506 as 6 April 1506, Judea as Judaea."""
    if now.kind == "name" and not any(c.isdigit() for c in was.text + now.text):
        return SequenceMatcher(None, plain(was.text), plain(now.text), autojunk=False).ratio() > RESPELT
    return now.kind == "date" and sorted(words(was.text)) == sorted(words(now.text))


def _named_after(title: str, name: str) -> bool:
    """Whether a title gives a name away: Bhutan the Bhutanese, Syria what is Syria's."""
    stems = [word[:5] for word in words(title) if len(word) > 3 and word not in EMPTY]
    return any(word.startswith(stem) for word in words(name) for stem in stems)


def _asked(item: Item, value: Value, was: Value | None, stock: Stock) -> Draft | str:
    statement = item.statement
    blank = " ".join(f"{statement[: value.start]}{GAP}{statement[value.end :]}".split())
    if item.label is not None:
        blank = f"{item.label}: {blank}"
    question = f"{item.title}: what belongs in the gap of “{blank}”?"
    wrong = _wrong(item, value, was, stock)
    if not wrong:
        return "fewer than three values of the same kind elsewhere"
    made = Draft(question, value.text, tuple(wrong), value.kind)
    return next(faults_of(made, Grounds(item.title, item.passage)), made)


def _wrong(item: Item, value: Value, was: Value | None, stock: Stock) -> list[str]:
    """Wrong choices for a value: what it was before, and another pair or the likest values."""
    chosen: list[Value] = []
    if was is not None and was.shape == value.shape and _fits(was, value, chosen, item):
        chosen.append(was)
        for pairs in stock.pairs_like(value):
            for pair in sorted(pairs, key=lambda pair: _lot(item.id, pair[1].text)):
                if _is_near(pair[1], value) and _is_pair(pair) and all(_fits(v, value, chosen, item) for v in pair):
                    return [one.text for one in (*chosen, *pair)]
    below = int(_lot(item.id, "below"), 16) % 4 - sum(_size(one) < _size(value) for one in chosen)
    for factor, group in product((NEAR, FAR), list(stock.like(value))):
        for other in _ordered(item, value, [one for one in group if _is_near(one, value, factor)], below):
            if _fits(other, value, chosen, item):
                chosen.append(other)
            if len(chosen) == 3:
                return [one.text for one in chosen]
    return []


def _fits(other: Value, value: Value, chosen: Sequence[Value], item: Item) -> bool:
    """Whether a value can be a wrong choice beside the right one and those that are chosen already."""
    beside = (value, *chosen)
    apart = not any(stands_in(other.text, one.text) or stands_in(one.text, other.text) for one in beside)
    return apart and not any(_is_same(other, one) for one in beside) and not stands_in(other.text, item.passage)


def _is_same(one: Value, other: Value) -> bool:
    """Whether two numbers may be one, of which less or more was rounded: 461.888 billion and 461.89 billion."""
    a, b = one.size, other.size
    if a is None or b is None or a == b or one.kind == "year":
        return a is not None and a == b
    return abs(a - b) <= ROUNDED * max(abs(a), abs(b))


def _is_pair(pair: tuple[Value, Value]) -> bool:
    """Whether old and new value can both be choices."""
    old, new = pair
    same = stands_in(old.text, new.text) or stands_in(new.text, old.text) or _is_same(old, new)
    return old.shape == new.shape and not same


def _ordered(item: Item, value: Value, group: Sequence[Value], below: int) -> list[Value]:
    """Who is taken first: of numbers so many smaller ones as the lot says; otherwise by lot."""
    by_lot = sorted(group, key=lambda other: _lot(item.id, other.text))
    if value.size is None:
        return by_lot
    smaller = [other for other in by_lot if _size(other) < _size(value)]
    larger = [other for other in by_lot if _size(other) > _size(value)]
    above = max(3 - max(below, 0), 0)
    return [*smaller[: max(below, 0)], *larger[:above], *smaller[max(below, 0) :], *larger[above:]]


def _is_near(other: Value, value: Value, factor: float = NEAR) -> bool:
    """Whether two numbers are of one magnitude, two years or dates of one time, two names of about one length."""
    a, b = (one.year if value.kind == "date" else one.size for one in (other, value))
    if a is None or b is None:
        return value.kind != "name" or abs(len(other.text) - len(value.text)) <= 3 * factor
    if value.kind in ("year", "date"):
        return abs(a - b) <= 3 * factor
    return a * b > 0 and abs(math.log(a / b)) <= math.log(factor)


def _size(value: Value) -> float:
    return value.size if value.size is not None else 0.0


def _lot(item: str, text: str) -> str:
    """Chance that is the same each time."""
    return hashlib.blake2b(f"{item} {text}".encode(), digest_size=8).hexdigest()


class Cloze:
    """Makes questions of a corpus from what stands in it."""

    name, keeps = "cloze", False

    def __init__(self, corpus: Corpus) -> None:
        self._stock = Stock(corpus)

    def about(self) -> dict[str, str]:
        """Nothing but the corpus decides."""
        return {"maker": self.name}

    def drafts(self, items: Sequence[Item]) -> Generator[tuple[Item, Draft | str]]:
        """A question of each item, or why there is none."""
        for item in items:
            yield item, draft(item, self._stock)
