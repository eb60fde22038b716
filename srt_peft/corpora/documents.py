"""What a document is, and the libraries that what is made of it needs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from srt_peft.errors import OptionError

PLACE = "the snapshots"
"""What a fault in one is said to be in."""


class MendableError(OptionError):
    """A fault that is met in the middle, and not one of what was asked: what was finished of other files is kept."""


class Document(NamedTuple):
    """A text of a snapshot: `key` is what it is known by in both, as its path, its id or its title."""

    key: str
    title: str
    text: str
    source: str = ""
    about: Mapping[str, Any] = {}
    """Further columns of its rows, such as its date and its licence."""


def library(name: str) -> Any:
    """A library of the extra `corpora`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        remedy = "pip install 'srt-peft[corpora]'"
        raise MendableError(
            "this installation", [f"{name} = not installed: corpora are made with it; {remedy}"]
        ) from None
