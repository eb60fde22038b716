"""Texts compared: without regard to case, spaces and marks; by their words, and by those that mean something."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"\w+(?:[.,'’-]\w+)*")


def listed(text: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(text.split())


EMPTY = listed(
    "a an the this that these those it its he his she her they their we our you i in on at by for from to of with as "
    "and or but if is are was were be been being has have had do does did will would can could may might must should "
    "not no so than then there here what which who whom whose when where why how many much about into over under "
    "between during according following s"
)
"""Words that say nothing by themselves."""


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """A text as it compares: one form of each letter and quote, one space between words."""
    text = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    return " ".join(text.split()).casefold()


_QUOTES = str.maketrans("‘’“”−–—", "''\"\"---")


def words(text: str) -> list[str]:
    """Its words, as they compare; figures keep their points and commas."""
    return _WORD.findall(plain(text))


def telling(text: str) -> list[str]:
    """The words that mean something; where none does, all of them."""
    found = words(text)
    return [word for word in found if word not in EMPTY] or found


def stands_in(part: str, whole: str) -> bool:
    """Whether a text stands in another as whole words and figures: 5 does not stand in 1.5, nor in 5,000."""
    needle, hay = plain(part), plain(whole)
    if not needle or needle not in hay:  # most do not: a pattern is not made for them
        return False
    return re.search(rf"(?<!\w)(?<!\d[.,]){re.escape(needle)}(?!\w)(?![.,]\d)", hay) is not None
