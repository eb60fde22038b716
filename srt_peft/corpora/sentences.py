"""Where the sentences of a text are, and when two of them say the same.

Sentences tile their text: each ends where the next begins, the space between two belongs to the former, and joined they
are the text, byte for byte. A line ends a sentence as well, so that fields, lists, tables and code are cut at each
entry; but not where it ends only because its width was used up: such lines are one paragraph, as it was written.

Two sentences are the same if their words are: how they are wrapped, what kind of quotes and dashes they have, and how
long the rule under a heading is makes no difference.

A line such as `Population: 43,576,691` or `| Population | 43,576,691 |` has a label, which says what it is about, even
where all else in it has changed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from srt_peft.corpora.documents import library

NARROW, WIDE = 40, 120
"""Between these widths lines may have been wrapped: what is longer is not, and what is shorter is a list or a verse."""
PROSE = 4
"""A line of fewer words may be code, or an item."""
MOST_WORDS = 20
"""Of a label."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_OPENS = re.compile(r"\s*([-*+•·>|#]|:[\w -]+:(?!\S)|\.\.\s|\(?\w{1,3}[.)]\s|```|~~~|<)")
_LABEL = re.compile(
    r"\s*(?:[-*+•·]\s+|\|\s*)?[*_]{0,2}(?P<label>[^\s|:][^\n|:]{0,119}?)[*_]{0,2}\s*(?:\||:[*_]{0,2}(?=\s))"
)
_LETTER = re.compile(r"[^\W_]")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"
)
"""Of scripts that put no space between words: Thai, Lao, Burmese, Khmer, kana and Han."""
_SPOKEN = re.compile(r"\w")
_RULE = re.compile(r"(?<!\S)([-=~^\"'`#*+_])\1{2,}(?!\S)")
_QUOTED, _DASH = re.compile("''+"), re.compile(r"(?<!\S)--(?!\S)")
_ENDS = re.compile(r"[.!?:;][\"'”’)\]]*$")
_SAME = str.maketrans({
    **dict.fromkeys("‘’‚‛′`´", "'"), **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—−", "-"), **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"),
})  # fmt: skip


class Sentence(NamedTuple):
    """A sentence: from where to where it stands, with the space after it, and what it says."""

    start: int
    end: int
    words: str
    """As it is compared."""
    label: str | None = None
    """What its line is about."""
    opens: bool = False
    """Whether it is the first of its line: the one in which the label stands."""


def normalised(text: str) -> str:
    """A text as it is compared: one space between words, one kind of quotes and dashes."""
    plain = unicodedata.normalize("NFC", text).translate(_SAME)
    return " ".join(_QUOTED.sub("'", _DASH.sub("-", _RULE.sub(" ", plain))).split())


def apart(words: Iterable[str]) -> list[str]:
    """Words as likeness is told by them: of what has no spaces between its words, each two characters in a row."""
    found: list[str] = []
    for word in words:
        if word.isascii() or len(word) < 3 or not _UNSPACED.search(word):
            found.append(word)
        else:
            found += [word[i : i + 2] for i in range(len(word) - 1)]
    return found


def sentences_of(text: str, language: str = "en") -> list[Sentence]:
    """The sentences of a text, which tile it; none where it says nothing."""
    segment = library("sentencex").segment
    found: list[Sentence] = []
    for first, last in _paragraphs(text):
        label, at, opens = _label(text[first:last]), first, True
        for piece in segment(language, text[first:last].replace("\n", " ")):
            end = at + len(piece)
            words = normalised(text[at:end])
            if _SPOKEN.search(words):
                found.append(Sentence(at, end, words, label, opens))
                opens = False
            elif found:  # a rule, a fence, an empty line
                found[-1] = _longer(found[-1], text, end)
            at = end
        assert at == last, "sentencex has left something out"
    if found:
        found[0] = _longer(found[0]._replace(start=0), text, found[0].end)
    return found


def _longer(sentence: Sentence, text: str, end: int) -> Sentence:
    return sentence._replace(end=end, words=normalised(text[sentence.start : end]))


def _label(line: str) -> str | None:
    found = _LABEL.match(line)
    label = normalised(found["label"]) if found else ""
    return label if _SPOKEN.search(label) and len(label.split()) <= MOST_WORDS else None


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """From where to where each line is, those that were wrapped put together; they tile the text."""
    block: list[tuple[int, int]] = []
    for match in _LINE.finditer(text):
        block.append(match.span())
        if not match[0].strip():
            yield from _unwrapped(text, block)
            block = []
    yield from _unwrapped(text, block)


def _unwrapped(text: str, block: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    lines = [text[start:end].rstrip() for start, end in block]
    width = max(map(len, lines), default=0)
    begun = 0
    for i in range(1, len(block) + 1):
        if i == len(block) or not _was_wrapped(lines[i - 1], lines[i], width):
            yield block[begun][0], block[i - 1][1]
            begun = i


def _was_wrapped(line: str, following: str, width: int) -> bool:
    """Whether a line ends since the next word had no room in it.

    Few people fill their lines to the last, and a line that was edited is rarely filled anew: where the next goes on in
    lower case, half of it may have been left.
    """
    if not NARROW <= width <= WIDE or not line or not following or _OPENS.match(following) or _RULE.fullmatch(line):
        return False
    word, room = following.split(maxsplit=1)[0], width - len(line)
    if (_LETTER.search(word) or [""])[0].islower():
        return room <= max(len(word), width / (2 if len(line.split()) >= PROSE else 4))
    fields = _label(line) is not None and _label(following) is not None
    return room <= max(len(word), width / 8) and not fields and not _ENDS.search(line)
