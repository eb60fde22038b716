"""What a model has answered so far: FILE.drafts, a line a statement, on the disk before the next question is asked.

    {"made_from": {…}}                                                     whose answers, to which corpus
    {"item": "9f…", "question": …, "right": …, "wrong": […]}               a question
    {"item": "07…", "left": "no question in 3 replies of the model"}       none

A kill, an empty account or a dead network cost at most the answers that were under way. A line that a crash has torn
is no answer: it is cut off, and its statement asked about again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srt_peft.corpora.qa.checks import Draft
from srt_peft.errors import DamagedError, OptionError
from srt_peft.review.files import Lock


class Drafts:
    """The answers in a file, by statement."""

    def __init__(self, path: Path, made_from: Mapping[str, Any]) -> None:
        self.path = path
        self.by_item: dict[str, Draft | str] = {}
        self._lock = Lock(path, str(path))
        self._file = path.open("r+b")
        try:
            self._load(dict(made_from))
        except BaseException:
            self.close()
            raise

    def add(self, item: str, found: Draft | str) -> None:
        """Keep an answer, for good."""
        told = {"left": found} if isinstance(found, str) else _told(found)
        self._append({"item": item, **told})
        self.by_item[item] = found

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        self._lock.release()

    def _append(self, row: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(row) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _load(self, made_from: dict[str, Any]) -> None:
        whole, began = 0, made_from
        for number, raw in enumerate(self._file, 1):
            if not raw.endswith(b"\n"):
                break
            try:
                row = json.loads(raw)
                if number == 1:
                    began = dict(row["made_from"])
                else:
                    self.by_item[row["item"]] = row["left"] if "left" in row else _draft(row)
            except (ValueError, LookupError, TypeError):
                remedy = "Restore it, or remove it to ask for all of it again"
                raise DamagedError(f"{self.path}, line {number} is no answer of ours. {remedy}.") from None
            whole += len(raw)
        self._check(began, made_from)
        self._file.truncate(whole)
        self._file.seek(whole)
        if not whole:
            self._append({"made_from": made_from})

    def _check(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        if other := [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]:
            told = ", ".join(f"{name} {was.get(name)!r:.80}" for name in other)
            remedy = "name another --out, go on as it was begun, or delete it"
            raise OptionError("corpus qa", [f"{self.path} holds answers of another making ({told}): {remedy}"])


def _told(draft: Draft) -> dict[str, Any]:
    return {"question": draft.question, "right": draft.right, "wrong": list(draft.wrong)}


def _draft(row: Mapping[str, Any]) -> Draft:
    return Draft(str(row["question"]), str(row["right"]), tuple(map(str, row["wrong"])))
