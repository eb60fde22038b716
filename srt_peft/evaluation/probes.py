"""TemporalWiki's probes: how well a fact's object is predicted from its subject and relation.

    subject + " " + relation  ->  " " + object        value: the object's mean NLL, in nats a token

Facts that changed between two snapshots are one split, facts that did not are the other. Read are the release's files
(`0801-0901_changed.csv`, `0801-0901_unchanged.csv`: subject, relation, object), one file or a folder of them, and
tables that say both in one (object_old, object_new, status): what is asked for then is the newer object.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from srt_peft.errors import OptionError
from srt_peft.evaluation.likelihood import Asked, encode, log_likelihoods
from srt_peft.evaluation.questions import TOLD
from srt_peft.evaluation.records import Record, key_of

SPLITS = ("changed", "unchanged")
_FILE = re.compile(r"(.*[_-])?(unchanged|changed)\.csv(\.gz)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Probe:
    """A fact, and where it stands."""

    where: str
    subject: str
    relation: str
    object: str
    split: str

    @property
    def key(self) -> str:
        """The same for every model."""
        return key_of("temporalwiki", self.subject, self.relation, self.object, self.split)


# --- the files ----------------------------------------------------------------------------------------------------


def load_probes(path: str | Path) -> list[Probe]:
    """The probes of a file, or of a folder's files; or all that is wrong with them, by line. Doubles are left out."""
    path = Path(path)
    files = sorted(p for p in path.iterdir() if _FILE.fullmatch(p.name)) if path.is_dir() else [path]
    if not files:
        raise OptionError("the probes", [f"{path} holds no …_changed.csv and no …_unchanged.csv: expected either"])
    faults: list[str] = []
    found: dict[str, Probe] = {}
    for file in files:
        for probe in _read(file, faults):
            found.setdefault(probe.key, probe)
    if not faults and not found:
        faults = [f"{path} holds no probe: expected a row a fact"]
    if faults:
        raise OptionError("the probes", faults, most=TOLD)
    return list(found.values())


def _read(file: Path, faults: list[str]) -> Iterator[Probe]:
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        faults.append(f"{file} is not UTF-8 text (byte {error.start}): convert it, such as with iconv -t UTF-8")
        return
    except (OSError, EOFError) as error:
        faults.append(f"{file} cannot be read ({getattr(error, 'strerror', None) or error}): expected a CSV file")
        return
    rows = csv.DictReader(io.StringIO(text, newline=""))
    named = _FILE.fullmatch(file.name)
    columns = ["subject", "relation", *(["object"] if named else ["object_new", "status"])]
    lacking = [name for name in columns if name not in (rows.fieldnames or [])]
    if lacking:
        kinds = "…_changed.csv with subject, relation, object; or any name, with object_new and status"
        faults.append(f"{file} has no column {', '.join(lacking)}: expected {kinds}")
        return
    for row in rows:
        where = f"{file.name}, line {rows.line_num}"
        subject, relation, thing = values = [(row[name] or "").strip() for name in columns[:3]]
        split = named[2].lower() if named else (row["status"] or "").strip().lower()
        empty = [name for name, value in zip(columns, values, strict=False) if not value]
        if empty:
            faults.append(f"{where}: {', '.join(empty)} is empty: expected a text")
        elif split not in SPLITS:
            faults.append(f"{where}: status = {split!r}: expected 'changed' or 'unchanged'")
        else:
            yield Probe(where, subject, relation, thing, split)


# --- scores -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def score(
    model: nn.Module, tokenizer: Any, probes: Sequence[Probe], *, budget: int, done: Collection[str] = ()
) -> Iterator[Record]:
    """A record for each probe that is not done yet, longest first."""
    skip = {i for i, probe in enumerate(probes) if probe.key in done}
    if len(skip) == len(probes):
        return
    asked = [Asked(p.where, f"{p.subject} {p.relation}", (f" {p.object}",)) for p in probes]
    encoded = encode(model, tokenizer, asked)
    with tqdm(
        total=len(probes), initial=len(skip), desc="temporalwiki", unit="probe", delay=2, disable=None, leave=False
    ) as bar:
        for i, (found,) in log_likelihoods(model, encoded, budget=budget, skip=skip):
            n, probe = len(encoded.asked[i][0].tokens), probes[i]
            yield {"key": probe.key, "split": probe.split, "value": -found / n, "weight": 1.0, "tokens": n}
            bar.update()
