"""What a person has said of each question: QUESTIONS.decisions.jsonl, a line a decision, never written over.

    {"id": "9f…", "of": "3c…", "decision": "accept", "at": "2026-03-01T12:00:00+00:00"}
    {"id": "9f…", "of": "3c…", "decision": "edit", "question": …, "choices": […], "answer": "B", …}
    {"id": "9f…", "of": "3c…", "decision": "undo", …}        takes the last one of this question back

A line is on the disk before the page is told so. The last decision of a question that was not taken back holds. `of`
is a hash of the question as it was shown: decisions on another file's questions are refused, and never applied to
these.

What was accepted is exported as a set of its own, with its letters dealt anew, since those of the rejected ones are
gone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from srt_peft.corpora.folder import line_of
from srt_peft.corpora.qa.checks import FORM, SUPPORT, Draft, Grounds, faults_of
from srt_peft.corpora.qa.chosen import LETTERS, Balance, lettered
from srt_peft.errors import DamagedError, LockedError, OptionError
from srt_peft.review.files import Lock

ACCEPT, EDIT, REJECT, UNDO = "accept", "edit", "reject", "undo"
KINDS = (ACCEPT, EDIT, REJECT, UNDO)
_ASKED = ("question", "choices", "answer")
Row = dict[str, Any]


def load(path: Path) -> list[Row]:
    """The questions of a file, as `srt-peft corpus qa` has made it."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        whole = all(_is_ours(row) for row in rows) and len({row["id"] for row in rows}) == len(rows) > 0
    except FileNotFoundError:
        raise OptionError(
            "corpus review", [f"{path} does not exist: expected a file of `srt-peft corpus qa`"]
        ) from None
    except OSError as error:
        raise OptionError("corpus review", [f"{path} cannot be read ({error.strerror})"]) from None
    except ValueError:
        whole = False
    if not whole:
        fault = f"{path} is no file of `srt-peft corpus qa`: expected questions with id, passage and support, each once"
        raise OptionError("corpus review", [fault])
    return rows


def _is_ours(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), str) for name in ("id", "question", "passage", "split", "title"))
        and isinstance(row.get("choices"), list) and len(row["choices"]) == len(LETTERS)
        and all(isinstance(choice, str) for choice in row["choices"])
        and isinstance(row.get("answer"), str) and len(row["answer"]) == 1 and row["answer"] in LETTERS
        and isinstance(row.get("support"), list) and len(row["support"]) == 2
        and all(type(place) is int for place in row["support"])
    )  # fmt: skip


def digest(row: Mapping[str, Any]) -> str:
    """What a decision was made on."""
    asked = json.dumps([row[name] for name in _ASKED])
    return hashlib.blake2b(asked.encode(), digest_size=8).hexdigest()


def as_asked(row: Mapping[str, Any], said: Mapping[str, Any] | None) -> Row:
    """A question as it is asked now: as it was edited, or as it was made."""
    now = said if said is not None and said["decision"] == EDIT else row
    return {name: now[name] for name in _ASKED}


def decisions_of(questions: Path) -> Path:
    """Where the decisions on a file's questions stand."""
    return questions.with_suffix(".decisions.jsonl")


class Decisions:
    """The decisions on a file's questions; with `writing`, this process is the one that adds to them."""

    def __init__(self, questions: Path, *, writing: bool = False) -> None:
        self.rows = load(questions)
        self.by_id = {row["id"]: row for row in self.rows}
        self.path = decisions_of(questions)
        self.history: list[Row] = []
        """Those that hold or may come to hold again, in the order in which they were made."""
        self._lock: Lock | None = None
        self._file: FileIO | None = None
        if writing:
            try:
                self._lock = Lock(self.path, str(self.path))
            except LockedError:
                raise LockedError(
                    f"{self.path} is open in another review of these questions: end that first."
                ) from None
        try:
            whole = self._load()
            if writing:
                self._file = self.path.open("r+b", buffering=0)  # what could not be written is not written later
                self._file.truncate(whole)  # a torn line was never confirmed
                self._file.seek(whole)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.release()

    def state(self) -> dict[str, Row]:
        """The decision that holds, of each question that has one."""
        return {row["id"]: row for row in self.history}

    def decide(self, row: Mapping[str, Any]) -> None:
        """Add a decision, and have it on the disk."""
        assert self._file is not None
        told = {**row, "of": digest(self.by_id[row["id"]]), "at": datetime.now(UTC).isoformat(timespec="seconds")}
        line, whole = line_of(told).encode(), self._file.tell()
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - told like any other
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(whole)
            self._file.seek(whole)
            raise
        self._take(told)

    def _take(self, row: Row) -> None:
        if row["decision"] != UNDO:
            self.history.append(row)
            return
        last = max((i for i, one in enumerate(self.history) if one["id"] == row["id"]), default=None)
        if last is not None:
            del self.history[last]

    def _load(self) -> int:
        """Read what was decided; how many bytes of the file are whole lines."""
        whole, others = 0, 0
        raw = self.path.read_bytes() if self.path.exists() else b""
        for number, line in enumerate(raw.splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                known = self.by_id.get(row["id"])
                if row["decision"] not in KINDS or not isinstance(row["of"], str):
                    raise ValueError  # noqa: TRY301 - it is told like any other damage
            except (ValueError, LookupError, TypeError):
                raise DamagedError(f"{self.path}, line {number} is no decision of ours. Mend or remove it.") from None
            if known is None or row["of"] != digest(known):
                others += 1
            else:
                self._take(row)
            whole += len(line)
        if others:
            remedy = "Name the file that they were made on, or move them away"
            fault = f"{self.path} holds {others:,} decisions on other questions than this file's. {remedy}"
            raise OptionError("corpus review", [fault])
        return whole


# --- what a person edits --------------------------------------------------------------------------------------------


def draft_of(row: Mapping[str, Any]) -> Draft:
    """A row as the checks take it."""
    right = LETTERS.index(row["answer"])
    choices = list(map(str, row["choices"]))
    wrong = tuple(choice for i, choice in enumerate(choices) if i != right)
    return Draft(str(row["question"]), choices[right], wrong, str(row.get("kind", "model")))


def edited(row: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[Row, list[str], list[str]]:
    """An edited question, cleaned; what is wrong with its form, and what its passage does not bear out."""
    question, choices, answer = (said.get(name) for name in _ASKED)
    if not (isinstance(question, str) and isinstance(choices, list) and all(isinstance(c, str) for c in choices)):
        return {}, ["expected a question and four choices"], []
    if len(choices) != len(LETTERS) or not (isinstance(answer, str) and answer in tuple(LETTERS)):
        return {}, ["expected four choices, and the letter of the right one"], []
    clean = {"question": _line(question), "choices": list(map(_line, choices)), "answer": answer}
    draft, grounds = draft_of({**row, **clean}), Grounds(row["title"], row["passage"])
    faults = list(faults_of(draft, grounds, FORM))
    return clean, faults, [] if faults else list(faults_of(draft, grounds, SUPPORT))


def _line(text: str) -> str:
    return " ".join(text.split())


# --- what comes of it -----------------------------------------------------------------------------------------------


def accepted(rows: Sequence[Row], state: Mapping[str, Row], seed: int = 0) -> list[Row]:
    """The questions that were accepted, as they are or as they were edited, with letters of their own."""
    kept = []
    for row in rows:
        said = state.get(row["id"])
        if said is not None and said["decision"] in (ACCEPT, EDIT):
            kept.append({**row, **as_asked(row, said), "reviewed": said["decision"]})
    dealt = lettered([draft_of(row) for row in kept], seed)
    return [{**row, "choices": choices, "answer": answer} for row, (choices, answer) in zip(kept, dealt, strict=True)]


def counts(rows: Sequence[Row], state: Mapping[str, Row]) -> dict[str, int]:
    """How many there are of each decision, and of none."""
    said = Counter(one["decision"] for one in state.values())
    return {"undecided": len(rows) - len(state), **{name: said[name] for name in (ACCEPT, EDIT, REJECT)}}


def given_away(rows: Sequence[Row]) -> bool:
    """Whether the lengths of the choices give the set away, as they may when many were rejected."""
    balance = Balance()
    for row in rows:
        balance.add(draft_of(row))
    return not balance.is_fair
