"""The evaluations that a run has: what its newest checkpoint was asked, and its base beside it where that was, too.

Nothing is loaded and nothing is asked. `srt-peft eval --compare RUN` is what puts them there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.data.ingest import home
from srt_peft.errors import OptionError, SRTError
from srt_peft.evaluation.compare import Comparison, compare
from srt_peft.evaluation.records import Record, key_of
from srt_peft.evaluation.suites import ACCURACY
from srt_peft.evaluation.tables import markdown
from srt_peft.evaluation.targets import base_of, target_of

_LOGGER = logging.getLogger("srt_peft")
BASE, UPDATE = "base", "this update"


class Kept(NamedTuple):
    """One evaluation: a comparison with the base, or the scores alone."""

    title: str
    table: str
    comparison: Comparison


class _File(NamedTuple):
    header: Mapping[str, Any]
    records: list[Record]


def kept(run: Path, checkpoint: Path) -> list[Kept]:
    """What is there of this checkpoint, each suite once for all its settings and views."""
    mine = list(_files(run / "evaluation" / checkpoint.name))
    theirs = list(_files(_of_base(checkpoint))) if mine else []
    found = []
    for file in mine:
        beside = next((base for base in theirs if _same(file, base)), None)
        for title, metric, mode in _views(file):
            told = [(UPDATE, _only(file, mode)), *([(BASE, _only(beside, mode))] if beside else [])][::-1]
            try:
                made = compare(title, told, metric=metric, base=BASE if beside else None)
            except SRTError as error:
                _LOGGER.warning("%s of %s is left out of the card: %s", title, checkpoint, error)
                continue
            found.append(Kept(title, markdown(made), made))
    return found


def _files(folder: Path) -> Iterator[_File]:
    """The evaluations in a folder that have come to their end."""
    for path in sorted(folder.glob("*-*.jsonl")):
        try:
            header, *records = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
            done = records.pop()["end"] == len(records)
        except (ValueError, KeyError, TypeError, IndexError):
            continue  # one that is going on, or the answers that belong to one
        if done and records and header.get("suite"):
            yield _File(header, records)


def _of_base(checkpoint: Path) -> Path:
    """Where the base's answers are kept, as `evaluate` keeps them."""
    try:
        key = key_of(base_of(target_of(str(checkpoint))).fingerprint())
    except (OptionError, OSError):
        return Path("nowhere")
    return home() / "evaluation" / key


def _same(file: _File, base: _File) -> bool:
    """Whether the same was asked, in the same precision."""
    said = [(f.header["suite"], f.header["settings"], f.header["of"].get("precision")) for f in (file, base)]
    return said[0] == said[1]


def _views(file: _File) -> Iterator[tuple[str, str, str | None]]:
    """Title, metric, and the mode of the records that are meant."""
    suite = file.header["suite"]
    modes = list(dict.fromkeys(r["mode"] for r in file.records if not r.get("mode", "-blind").endswith("-blind")))
    if modes:
        yield from ((f"{suite}, by {mode}", "accuracy", mode) for mode in modes)
    elif suite == "temporalwiki":
        yield "temporalwiki, the perplexity of the objects' mean NLL", "nll", None
    elif suite == "perplexity":
        yield "perplexity of held-out text", "nll", None
    elif suite in ACCURACY:
        yield suite, "accuracy", None


def _only(file: _File, mode: str | None) -> list[Record]:
    return [record for record in file.records if mode is None or record.get("mode") == mode]
