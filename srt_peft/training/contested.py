"""What contest.json must hold for a comparison to go on, and for its page to be drawn: damage is told by its place.

A shape is a type or several; a set of words; a list of one shape; a mapping of names to shapes, all of which must be
there; or `Each`, any names of one shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any

from srt_peft.errors import DamagedError, OptionError, VersionError
from srt_peft.training.recipe import load_recipe

FILE = "contest.json"
FORMAT, VERSION = "srt_peft contest", 1
METRICS = frozenset({"accuracy", "nll", "perplexity"})


@dataclass(frozen=True)
class Each:
    """A mapping whose values have one shape, whatever its names."""

    shape: Any


_NUMBER, _MAYBE = (int, float), (int, float, NoneType)
_ESTIMATE = {"mean": _NUMBER, "low": _MAYBE, "high": _MAYBE, "between": _MAYBE}
_RESULT = {
    "title": str, "metric": METRICS, "base": (str, NoneType), "splits": [str], "level": _NUMBER,
    "standings": [{
        "label": str, "trainings": int, "scores": Each(_ESTIMATE),
        "effects": Each({"kind": str, "difference": _ESTIMATE}),
    }],
}  # fmt: skip
_DIFFERENCES = {
    "title": str, "metric": METRICS, "reference": str, "level": _NUMBER,
    "rows": [{
        "label": str, "split": str, "seeds": [int], "mean": _NUMBER, "p": _MAYBE,
        **dict.fromkeys(("low", "high", "question_low", "question_high"), _MAYBE),
    }],
}  # fmt: skip
_SPREAD = {"mean": _MAYBE, "sd": _MAYBE}
_SOURCES = {
    "title": str, "metric": METRICS, "unit": str, "questions": Each(int),
    "rows": [{"label": str, "sources": Each(_SPREAD), "mean": _SPREAD, "worst": str}],
}  # fmt: skip
SHAPE = {
    "format": frozenset({FORMAT}), "version": frozenset({VERSION}), "complete": bool,
    "recipe": {"model": {"base": str}}, "identity": {"suites": [[(str, dict)]]},
    "entries": [str], "seeds": [int], "planned": [[(str, int)]],
    "runs": [{"entry": str, "seed": int, "folder": str}], "results": [_RESULT], "differences": [_DIFFERENCES],
    "exposure": Each(Each(_SPREAD)), "compute": Each(Each(_SPREAD)), "sentences": [str], "sources": [_SOURCES],
}  # fmt: skip


def read(path: Path) -> dict[str, Any]:
    """What the file says, once it is known to be whole."""
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = said.get("version") if isinstance(said, dict) and said.get("format") == FORMAT else VERSION
        if isinstance(version, int) and version != VERSION:
            raise VersionError(f"{path} is of version {version}; this srt-peft reads {VERSION}. Upgrade it.")
        fault = next(chain(misfits(said, SHAPE), _unnamed(said)), None)
        if fault is None:
            load_recipe(said["recipe"])
    except OptionError as error:
        fault = error.faults[0]
    except (OSError, ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise DamagedError(
            f"{path} is damaged ({fault}): expected what a comparison wrote. Remove it and run the same comparison "
            "again, which writes it anew, and keeps the runs that are finished."
        )
    return said


def _unnamed(said: dict[str, Any]) -> Iterator[str]:
    """What is named in one place and not there in another, of a file whose shape is right."""
    suites = said["identity"]["suites"]
    yield from (f"{str(suite)[:40]} is no suite" for suite in suites if list(map(type, suite)) != [str, dict])
    for run in said["runs"]:
        if run["entry"] not in said["entries"]:
            yield f"runs has {run['entry']!r}, which entries has not"
    for i, result in enumerate(said["results"]):
        for standing in result["standings"]:
            for split in set(result["splits"]) - standing["scores"].keys():
                yield f"results[{i}]: {standing['label']} has no {split}"
    for i, one in enumerate(said["sources"]):
        for row in one["rows"]:
            for source in one["questions"].keys() - row["sources"].keys():
                yield f"sources[{i}]: {row['label']} has no {source}"


def misfits(value: Any, shape: Any, at: str = "it") -> Iterator[str]:
    """Where a value is not of its shape."""
    if isinstance(shape, AbstractSet):
        if not isinstance(value, str | int) or value not in shape:
            yield f"{at} is {str(value)[:40]!r}"
        return
    kind = {Each: dict, dict: dict, list: list}.get(type(shape), shape)
    if not isinstance(value, kind):
        yield f"{at} is {str(value)[:40]!r}"
    elif kind is list:
        for i, each in enumerate(value):
            yield from misfits(each, shape[0], f"{at}[{i}]")
    elif kind is dict:
        for name, inner in (shape if isinstance(shape, dict) else dict.fromkeys(value, shape.shape)).items():
            if name in value:
                yield from misfits(value[name], inner, f"{at}.{name}")
            else:
                yield f"{at} has no {name}"
