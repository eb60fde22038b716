"""Documents are cut at the borders that a reader would see: paragraphs, else lines, else sentences, else words.

A document's sections are what processes share, and where they end depends on the text alone: so the bytes of a pool
do not depend on how many processes there were. A section is then cut into pieces that fit an example. Each piece is
encoded on its own, since its tokens may differ from those that its text has in a larger one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from srt_peft.errors import OptionError

_BORDERS = [
    re.compile(r"\n[^\S\n]*\n"),  # a paragraph's
    re.compile(r"\n"),  # a line's
    re.compile(r"\s(?:(?<=[.!?…]\s)|(?<=[.!?…][\"'”’»)\]]\s))|(?<=[。！？])"),  # a sentence's
    re.compile(r"\s"),  # a word's
]
_WORD = _BORDERS[-1]
_INK = re.compile(r"\S")
_SLACK = 2
"""By how many tokens, at most times, a piece alone is longer than within its text: a leading space, a split word."""


def _past_space(text: str, at: int) -> int:
    ink = _INK.search(text, at)
    return ink.start() if ink else len(text)


def border(text: str, at: int, limit: int) -> int:
    """Where to end a piece of text[at:limit]: the last paragraph, else line, else sentence, in its latter half.

    If there is none, between words; inside a word only where the piece would be one long word.
    """
    first = _past_space(text, at) + 1
    half = max(at + (limit - at) // 2, first)
    for pattern in _BORDERS:
        stop = 0
        for found in pattern.finditer(text, half, limit + 64):  # a blank line may end a little further on
            if found.start() > limit:
                break
            stop = found.start()
        if stop:
            return stop
    return max((found.start() for found in _WORD.finditer(text, first, half)), default=limit)


def beginning(text: str, at: int) -> int:
    """Where the next piece begins: past the white space, but for the indentation of its first line."""
    end = _past_space(text, at)
    line = text.rfind("\n", at, end) + 1
    return line or (end if at else 0)


def sections(text: str, width: int) -> Iterator[str]:
    """A document in parts that processes share; where they end depends on the text alone."""
    stop, at = len(text.rstrip()), beginning(text, 0)
    while stop - at > width:
        end = border(text, at, at + width)
        if part := text[at:end].rstrip():
            yield part
        at = beginning(text, end)
    if at < stop:
        yield text[at:stop]


def cut(text: str, room: int, starts: Sequence[int]) -> Iterator[str]:
    """Pieces of about `room` tokens, each shorter than the text; nothing is lost but white space between them.

    `starts` has the character at which each token of the text begins, of which there are more than `room`.
    """
    end, at = len(text.rstrip()), beginning(text, 0)
    while at < end:
        first = bisect_left(starts, at)
        beyond = first + max(1, room - min(_SLACK, room // 32))
        if beyond >= len(starts) and at:
            yield text[at:end]
            return
        limit = starts[min(beyond, len(starts) - 1)]
        if limit <= at:  # one character of many tokens, or a tokenizer that will not say where its tokens begin
            limit = at + max(1, len(text) * room // len(starts))
        ink = _past_space(text, at)
        if min(limit, len(text) - 1) <= ink and ink > at:  # an indentation that fills an example: space at a cut
            at = ink
            continue
        stop = border(text, at, max(at + 1, min(limit, len(text) - 1)))
        yield text[at:stop].rstrip()
        at = beginning(text, stop)


class Coded(NamedTuple):
    """A text's token ids, and a way to ask for the character at which each begins."""

    ids: list[int]
    starts: Callable[[], Sequence[int]]


def fitted(
    texts: Sequence[str], room: int, encode: Callable[[Sequence[str]], Sequence[Coded]], aim: int | None = None
) -> list[list[tuple[str, list[int]]]]:
    """Each text as pieces of at most `room` tokens, with their ids.

    Every piece is encoded on its own, since its tokens may differ from those that its text has in a larger one. The
    few that turn out too long are cut again, at three quarters, so that no crumb is left over.
    """
    coded, aim = encode(texts), room if aim is None else max(1, aim * 3 // 4)
    over = {i: list(cut(texts[i], aim, c.starts())) for i, c in enumerate(coded) if len(c.ids) > room}
    for i, pieces in over.items():
        if pieces == [texts[i]]:
            need = len(coded[i].ids)
            fault = f"max_length is too short: {texts[i]!r} alone takes {need} tokens, and {room} fit. Raise it"
            raise OptionError("the corpus", [fault])
    again = iter(fitted(list(chain.from_iterable(over.values())), room, encode, aim) if over else [])
    return [
        list(chain.from_iterable(next(again) for _ in over[i])) if i in over else [(texts[i], c.ids)]
        for i, c in enumerate(coded)
    ]
