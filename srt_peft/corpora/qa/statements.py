"""Where the statements of a text stand: its sentences, without the space around them."""

from __future__ import annotations

from typing import NamedTuple

from srt_peft.corpora.sentences import sentences_of


class Statement(NamedTuple):
    """A sentence or a line: from where to where it goes."""

    start: int
    end: int
    label: str | None
    """What its line is about, where that stands before another sentence of the line."""


def statements_of(text: str) -> list[Statement]:
    """The statements of a text, in order."""
    found = []
    for sentence in sentences_of(text):
        said = text[sentence.start : sentence.end]
        start, end = sentence.start + len(said) - len(said.lstrip()), sentence.start + len(said.rstrip())
        found.append(Statement(start, end, None if sentence.opens else sentence.label))
    return found
