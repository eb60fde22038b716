"""Licences: what a repository's and a file's are, as SPDX says it, and which ones are wanted.

A file is under what its own `SPDX-License-Identifier` says, else under the licence files of the nearest folder above
it that has some, else `unknown`. Several in one folder are joined by AND: whichever of them may bind, all do.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from srt_peft.corpora.documents import library
from srt_peft.errors import OptionError, did_you_mean

UNKNOWN = "unknown"
PERMISSIVE = frozenset(
    [
        "0BSD",
        "AFL-3.0",
        "Apache-2.0",
        "Artistic-2.0",
        "BlueOak-1.0.0",
        "BSD-1-Clause",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSD-3-Clause-Clear",
        "BSD-4-Clause",
        "BSL-1.0",
        "CC-BY-4.0",
        "CC0-1.0",
        "curl",
        "ECL-2.0",
        "HPND",
        "ICU",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MS-PL",
        "NCSA",
        "OpenSSL",
        "PHP-3.01",
        "PostgreSQL",
        "PSF-2.0",
        "Python-2.0",
        "Ruby",
        "Unicode-3.0",
        "Unicode-DFS-2016",
        "Unlicense",
        "UPL-1.0",
        "Vim",
        "W3C",
        "WTFPL",
        "X11",
        "Zlib",
        "ZPL-2.1",
    ]
)
"""Those that ask for no more than that they be named."""

_FILE = re.compile(r"(?:un)?licen[cs]e(?:[-._][\w.-]+)?|copying(?:[-._][\w.-]+)?", re.IGNORECASE)
_NO_LICENCE = re.compile(r"(?i)\.(?!md$|txt$|rst$)[a-z]{1,5}$")  # license.py is a program; LICENSE.MIT is no suffix
_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([^\n*]*?)[ \t]*(?:\*/|-->|$)", re.MULTILINE)
_FEW_WORDS = 50
"""In fewer, a file says where the licence is; the shortest one has more."""
_HEAD = 4096
"""Characters in which a file says what its licence is."""


def is_licence_file(path: str) -> bool:
    """Whether a path is that of a licence's text, by its name."""
    name = PurePosixPath(path).name
    return bool(_FILE.fullmatch(name)) and (not _NO_LICENCE.search(name) or name.split(".")[-1].isupper())


def of_folders(texts: Mapping[str, str]) -> dict[str, str]:
    """What holds in each folder that has licence files: path of a licence file -> its text, in; expressions, out."""
    found: dict[str, set[str]] = {}
    for path, text in texts.items():
        if len(text.split()) >= _FEW_WORDS:
            found.setdefault(str(PurePosixPath(path).parent), set()).add(identified(text))
    return {folder: " AND ".join(sorted(names)) for folder, names in found.items()}


def licence_of(path: str, text: str, folders: Mapping[str, str]) -> str:
    """What a file is under."""
    said = _SPDX.search(text[:_HEAD])
    if said and (expression := _normal(said[1])):
        return expression
    return next((folders[str(up)] for up in PurePosixPath(path).parents if str(up) in folders), UNKNOWN)


@cache
def identified(text: str) -> str:
    """The SPDX identifier of a licence's text, as `identify` knows it: word for word, or within one edit of twenty."""
    with tempfile.TemporaryDirectory() as folder:  # it reads files only
        path = Path(folder, "LICENSE")
        path.write_text(text, encoding="utf-8")
        name = library("identify.identify").license_id(str(path))
    return (_normal(name) if name else None) or UNKNOWN


def wanted(given: str) -> Callable[[str], bool]:
    """What `--licences` stands for: any, permissive, or a list of SPDX identifiers; told by an expression's truth."""
    if given == "any":
        return lambda _: True
    if given == "permissive":
        return lambda licence: _holds(licence, PERMISSIVE)
    names = [name.strip() for name in given.split(",") if name.strip()]
    known = {name: _normal(name) for name in names}
    if not names or None in known.values():
        unknown = ", ".join(f"{n!r}{did_you_mean(n, PERMISSIVE)}" for n, found in known.items() if not found)
        what = f"{unknown} is no SPDX identifier" if names else "an empty list"
        raise OptionError(
            "the arguments", [f"--licences = {given!r}: {what}. Expected permissive, any, or a list as MIT,ISC"]
        )
    chosen = frozenset(str(name) for name in known.values())
    return lambda licence: _holds(licence, chosen)


@cache
def _spdx() -> Any:
    return library("license_expression").get_spdx_licensing()


@cache
def _parsed(expression: str) -> Any:
    known = library("license_expression")
    try:
        return _spdx().parse(expression, validate=True)
    except (known.ExpressionError, known.ExpressionParseError):
        return None


def _normal(expression: str) -> str | None:
    """An expression as SPDX writes it today (GPL-2.0 is GPL-2.0-only); None if it is none."""
    found = _parsed(expression.strip())
    return str(found) if found is not None else None


@cache
def _holds(licence: str, chosen: frozenset[str]) -> bool:
    """Whether an expression lets one choose: every side of an AND, or one of an OR. What is unknown lets nobody."""
    known = library("license_expression")

    def holds(part: Any) -> bool:
        if isinstance(part, (known.AND, known.OR)):
            return (all if isinstance(part, known.AND) else any)(map(holds, part.args))
        return str(part).partition(" WITH ")[0] in chosen  # an exception only ever permits more

    if UNKNOWN in licence.split(" AND "):
        return False
    return holds(_parsed(licence))
