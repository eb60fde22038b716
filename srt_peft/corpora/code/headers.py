"""What a file opens with: the comments before its first line of code.

There it says under which licence it is, and whether a program wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LEGAL = re.compile(r"(?i)copyright|licen[cs]e|\bSPDX-|all rights reserved|©|\(c\)\s*\d{4}")
_OPENING = re.compile(r"(?:\s|#![^\n]*\n|<\?php\b|#[^\n]*coding[:=][^\n]*\n|[\"']use strict[\"'];?)*")
_COMMENT = re.compile(
    r"""/\*.*?\*/                                       # of C and its kin
    |(?:[ \t]*//[^\n]*(?:\n|\Z))+
    |(?:[ \t]*\#(?!\[|[ \t]*(?:include|define|ifn?def|if|pragma|import|undef|error|region)\b)[^\n]*(?:\n|\Z))+
    |[rRuU]?\"{3}.*?\"{3}|[rRuU]?'{3}.*?'{3}           # of Python
    |=begin\b.*?^=end[^\n]*                           # of Ruby""",
    re.DOTALL | re.VERBOSE | re.MULTILINE,
)


def comments(text: str) -> Iterator[tuple[str, int]]:
    """The comments that a file opens with, and where each ends."""
    end = 0
    while True:
        opening = _OPENING.match(text, end)
        found = _COMMENT.match(text, opening.end() if opening else end)
        if not found:
            return
        end = found.end()
        yield found[0], end


def without_licence(text: str) -> str:
    """A file's text without its opening comments as far as its licence, so that two are not alike by that."""
    ends = [end for comment, end in comments(text) if _LEGAL.search(comment)]
    return text[ends[-1] if ends else 0 :].strip()
