"""Scored things, and the files they are kept in: a line each, so that an evaluation that was killed goes on.

    FOLDER/qa-1f0c22d81b7a5e90.jsonl
      {"format": "srt_peft records", "version": 1, "suite": "qa", "of": {…}, "settings": {…}}      the header
      {"key": "…", "split": "old", "value": 1.0, "weight": 1.0, …}                                 one a scored thing
      {"end": 1000}                                                                                once all are there

A record is a plain JSON object. `key` is a hash of what was asked, so that two models pair on the same question;
`value` is what is averaged, with `weight`: 1 or 0 where accuracy is measured, nats a token where perplexity is.

The file's name holds a hash of its header: the weights that were asked, and the settings. So another model, or another
setting, never goes on with a file that is not its own; and asked again, an evaluation that is done costs nothing.
One process at a time adds to a file, beside which a lock lies; who only reads changes nothing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from srt_peft.errors import DamagedError, LockedError, SRTError
from srt_peft.review.files import Lock

FORMAT, VERSION = "srt_peft records", 1
Record = dict[str, Any]


def key_of(*asked: Any) -> str:
    """A hash of what was asked: the same for every model, whatever its tokenizer."""
    return blake2b(json.dumps(asked, ensure_ascii=False).encode(), digest_size=8).hexdigest()


class Records:
    """The records of one suite on one model, on disk: those that are there, and a place to add more."""

    def __init__(self, folder: Path, suite: str, of: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """What the file of this model and these settings has, if there is one."""
        header = {"format": FORMAT, "version": VERSION, "suite": suite, "of": of, "settings": settings}
        self.header: dict[str, Any] = json.loads(json.dumps(header))
        self.path = folder / f"{suite}-{key_of(self.header)}.jsonl"
        self.done = False
        """Whether all that is asked is there."""
        self.known: dict[str, Record] = {}
        self._read()

    def _read(self) -> int:
        """Know what is there, but for a last line that a kill has torn; how many bytes that is."""
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole == 0:
            return 0
        lines = content[:whole].decode("utf-8").split("\n")[:-1]
        try:
            header, *records = map(json.loads, lines)
            if records and "end" in records[-1]:
                self.done = records.pop()["end"] == len(records)
            known = {record["key"]: record for record in records}
        except (ValueError, TypeError, KeyError):
            raise DamagedError(f"{self.path} is damaged: a line in it is no record. Delete it to ask again.") from None
        if header != self.header:
            raise DamagedError(f"{self.path} is not what its name says. Delete it to ask again.")
        self.known |= known
        return whole

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Be the one that writes, and know what another has written since; the file has a header and ends whole."""
        try:
            lock = Lock(self.path.with_suffix(".lock"), str(self.path))
        except LockedError:
            raise LockedError(
                f"{self.path} is being written by another evaluation that asks the same. Wait until that has ended: "
                "then its answers are there for this one. Or give this one a folder of its own with --out."
            ) from None
        except OSError as error:
            raise SRTError(
                f"{self.path} cannot be written ({error.strerror}). Have answers kept elsewhere, with --out."
            ) from error
        try:
            if whole := self._read():
                os.truncate(self.path, whole)
            else:
                self.path.write_text(_line(self.header), encoding="utf-8")
            yield
        finally:
            lock.release()

    def add(self, scored: Iterable[Record]) -> Iterator[Record]:
        """Write each record as it comes, and hand it on."""
        with self._held(), self.path.open("a", encoding="utf-8") as file:
            for record in scored:
                if not math.isfinite(record["value"]):
                    raise SRTError(
                        f"The model gave no finite score for {record['key']} ({self.header['suite']}): its weights "
                        "are damaged, or its precision is too low for it. Check the checkpoint, or choose another one."
                    )
                file.write(_line(record))
                file.flush()
                self.known[record["key"]] = record
                yield record

    def close(self) -> None:
        """Say that all is there."""
        with self._held():
            if not self.done:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(_line({"end": len(self.known)}))
        self.done = True


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
