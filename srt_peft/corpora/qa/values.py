"""Numbers, dates and names in a statement: what a cloze question leaves out, and what may stand in its place.

    "Population: 43,576,691 (July 2021 est.)"      number  43,576,691     date  July 2021

Two values are of one kind where they are written alike: a number with its currency, scale, per cent sign and
thousands' commas; a date with its parts; a name with as many words in one script. What stands before a value (its
label, its last words) says more about what it is, so the likest distractors share that, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from srt_peft.corpora.qa.words import listed

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = re.compile(
    rf"(?<!\w)(?:\d{{1,2}} {_MONTH}(?: \d{{4}})?|{_MONTH} \d{{1,2}}, \d{{4}}|{_MONTH} \d{{4}}"
    r"|\d{4}-\d\d-\d\d|\d{1,2}-[A-Z][a-z]{2}-\d{4})(?!\w)"
)
_NUMBER = re.compile(
    r"(?<![\w.,/:#-])[-−]?(?:US)?[$€£¥]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
    r"(?: ?%| (?:thousand|million|billion|trillion)\b)?(?![\w/]|[,:-]\d|\.\w)"
)
_YEAR = re.compile(r"(?:1[0-9]|20)\d\d")
_WORD = re.compile(r"[^\W\d_][\w’'-]*")
_LINKS = listed("of the de da del di du von van der bin al and la le el")
_COMMON = listed(
    "A An The This That These Those It Its He His She Her They Their We Our You I In On At By For From To Of With As "
    "And Or But If When While After Before Since Until Although However There Here No Not Most Many Some All Both Each "
    "Other Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August "
    "September October November December Yes None Note Also est NA"
)
_AMONG = 8
"""A statement with more values of a kind than this is a list, of which any other item might be true as well."""


@dataclass(frozen=True, slots=True)
class Value:
    """What may be asked for, and where it stands."""

    text: str
    start: int
    end: int
    kind: str
    """number, year, date or name."""
    shape: str
    """How it is written: values of one shape can stand for each other."""
    label: str
    """What the line calls it ("Population"), or nothing."""
    before: str
    """What stands right before it: a word, or two before a name."""

    @property
    def size(self) -> float | None:
        """A number's magnitude, as it is written; None of what is no number."""
        return number_of(self.text) if self.kind in ("number", "year") else None

    @property
    def year(self) -> int | None:
        """A date's year; None where it has none."""
        found = re.search(r"\d{4}", self.text)
        return int(found[0]) if found is not None else None


@lru_cache(maxsize=1 << 17)
def number_of(text: str) -> float | None:
    """What a written number comes to; None where it is none."""
    digits = re.sub(r"[^\d.]", "", re.sub(r"[a-zA-Z%].*", "", text.replace("US$", "$")))
    scale = next((10.0**n for word, n in _SCALES.items() if text.endswith(word)), 1.0)
    try:
        value = float(digits) * scale
    except ValueError:
        return None
    return -value if text[:1] in "-−" else value


_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def values_of(statement: str) -> list[Value]:
    """The values of a statement, in its order; without those of lists, and without the dates of estimates."""
    found = sorted(_found(statement), key=lambda value: value.start)
    counts: dict[str, int] = {}
    for value in found:
        counts[value.kind] = counts.get(value.kind, 0) + 1
    return [value for value in found if counts[value.kind] <= _AMONG]


def _found(statement: str) -> Iterator[Value]:
    taken: list[tuple[int, int]] = []
    label, body = _labelled(statement)
    for pattern in (_DATE, _NUMBER):
        for match in pattern.finditer(statement, body):
            start, end = match.span()
            if any(start < b and a < end for a, b in taken) or _is_a_mark(statement, start, end):
                continue
            taken.append((start, end))
            kind = "date" if pattern is _DATE else "year" if _YEAR.fullmatch(match[0]) else "number"
            if not (kind != "number" and _of_an_estimate(statement, start, end)):
                yield Value(match[0], start, end, kind, _shape(match[0], kind), label, _before(statement, start))
    for start, end in _names(statement, body):
        text = statement[start:end]
        script = unicodedata.name(text[0], "unknown").split()[0]
        shape = f"{len(text.split())} {'caps' if text.isupper() else 'words'} {script}"
        yield Value(text, start, end, "name", shape, label, _before(statement, start, 2))


def _labelled(statement: str) -> tuple[str, int]:
    """What a line's value is called, and where the value begins: after the last colon of "label: part: value"."""
    match = re.match(r"(?:[^\n:.?!]{1,80}: )+", statement)
    return ("", 0) if match is None else (" ".join(match[0].casefold().split()).rstrip(": "), match.end())


def _of_an_estimate(statement: str, start: int, end: int) -> bool:
    """Whether a date stands in brackets: "(2021 est.)" says when a figure was taken, and is no fact to ask for."""
    opened = statement.rfind("(", 0, start)
    closes = statement.find(")", end)
    return opened >= 0 and ")" not in statement[opened:start] and 0 <= closes - opened <= 40


def _is_a_mark(statement: str, start: int, end: int) -> bool:
    """Whether a number stands alone in brackets, as notes and dialling codes do."""
    return statement[start - 1 : start] in ("(", "[") and statement[end : end + 1] in (")", "]")


def _before(statement: str, start: int, count: int = 1) -> str:
    return " ".join(statement[:start].casefold().split()[-count:])


def _shape(text: str, kind: str) -> str:
    """`$12.3 billion` is `$. billion`: all of it but the digits, of which only their grouping and a leading 0 count."""
    if kind == "date":
        return re.sub(r"\d+", lambda m: "9" * (4 if len(m[0]) == 4 else 1), re.sub(_MONTH, "M", text))
    digits = re.sub(r"\d+(?:,\d{3})+", ",", re.sub(r"^0(?=\d)", "o", text))
    return re.sub(r"\d+", "", digits).replace("−", "").lstrip("-").replace(" %", "%") or kind


def _names(statement: str, body: int) -> Iterator[tuple[int, int]]:
    """Runs of words with capitals, linked by "of" and its like; never what a sentence opens with."""
    run: list[re.Match[str]] = []
    for word in (*_WORD.finditer(statement, body), None):
        named = word is not None and word[0][0].isupper() and word[0] not in _COMMON
        if run and (word is None or not _follows(run[-1], word, statement) or not (named or word[0] in _LINKS)):
            while run[-1][0] in _LINKS:
                run.pop()
            if not _opens(statement, run[0].start(), body) and len(run[0][0]) > 1:
                yield run[0].start(), run[-1].end()
            run = []
        if word is not None and (named or run):
            run.append(word)


def _follows(last: re.Match[str], word: re.Match[str], statement: str) -> bool:
    between = statement[last.end() : word.start()]
    return between == " " or (between == ". " and len(last[0]) == 1)  # an initial


def _opens(statement: str, start: int, body: int) -> bool:
    """Whether a sentence begins here, where any word has a capital; the value of a labelled line begins none."""
    ahead = statement[:start].rstrip()
    return (not ahead and body == 0) or ahead.endswith((".", "!", "?", '"', "“", "*", "-", "•"))
