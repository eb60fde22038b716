"""One repository becomes a file of rows: what of it is wanted, what existed before, and why all else is left out.

    {"path", "language", "licence", "text", "signature"}    a file to learn from, in the order of paths
    {"before": signature}                                   one that only says what existed before
    {"kind", "first", "date", "reasons"}                    the last line: what it is, and how much was left out

A repository that is not new tells what existed before the second date: the files of which rows are made, and, where
they are others by then, those that it had at that date. Nothing new may be like them.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.corpora import git
from srt_peft.corpora.code import credentials, headers, languages, licences, unwanted
from srt_peft.corpora.code.clones import NEW, Clone, era
from srt_peft.corpora.folder import line_of
from srt_peft.corpora.git import Blobs, Entry
from srt_peft.corpora.near import Signature, signature_of

_SUBMODULE, _LINK, _EXECUTABLE = "160000", "120000", "100755"
_SAID = {"linguist-vendored": "vendored", "linguist-generated": "generated"}
"""What a repository says of its own files in `.gitattributes`."""
_WORD = re.compile(r"\w+")
_LAST = 1 << 16
"""More bytes than the last line has."""

Reasons = Counter[str]


class Candidate(NamedTuple):
    """A file that is wanted, as far as its name tells."""

    path: str
    promised: str
    blob: str


class File(NamedTuple):
    """A file that is wanted."""

    path: str
    language: str
    text: str
    signature: Signature


def scan(clone: Clone, old_before: int, new_after: int, to: Path) -> None:
    """Write a repository's rows, as they are found: a large one's would not fit into memory."""
    found = era(clone, old_before, new_after)
    about: dict[str, Any] = {"kind": found.kind, "first": day(clone.when) if clone.root else None}
    reasons: Reasons = Counter()
    known: set[str] = set()
    with to.open("w", encoding="utf-8") as out, git.blobs(clone.git) as blobs:
        if found.read:
            entries = git.tree(clone.git, found.read.id)
            candidates = _candidates(clone, found.read.id, entries, reasons)
            folders = licences.of_folders(_licence_texts(entries, blobs))
            for file in _files(candidates, blobs, reasons):
                licence = licences.licence_of(file.path, file.text, folders)
                row = {**file._asdict(), "licence": licence, "signature": packed(file.signature)}
                out.write(line_of(row))
            known = {file.blob for file in candidates}
            about["date"] = day(found.read.committed)
        if found.kind != NEW and found.before and found.before != found.read:
            every = _candidates(clone, found.before.id, git.tree(clone.git, found.before.id), Counter())
            for file in _files([file for file in every if file.blob not in known], blobs, Counter()):
                out.write(line_of({"before": packed(file.signature)}))
        out.write(line_of({**about, "reasons": dict(sorted(reasons.items()))}))


def about_of(path: Path) -> dict[str, Any]:
    """The last line of what `scan` has written."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST))
        found: dict[str, Any] = json.loads(file.read().splitlines()[-1])
    return found


def day(moment: int) -> str:
    """A moment as the day that it is in, in UTC."""
    return datetime.fromtimestamp(moment, UTC).date().isoformat()


def _candidates(clone: Clone, commit: str, entries: Sequence[Entry], reasons: Reasons) -> list[Candidate]:
    """The files of a commit that may be wanted; the others are counted."""
    said: Mapping[bytes, set[str]] = {}
    if any(entry.path.rpartition(b"/")[2] == b".gitattributes" for entry in entries):
        said = git.attributes(clone.git, commit, [entry.path for entry in entries], list(_SAID))
    found = []
    for entry in entries:
        candidate = _candidate(entry, said.get(entry.path, set()))
        if isinstance(candidate, Candidate):
            found.append(candidate)
        else:
            reasons[candidate] += 1
    return found


def _candidate(entry: Entry, said: set[str]) -> Candidate | str:
    """A file, or why it is none of ours."""
    for mode, reason in ((_SUBMODULE, "submodule"), (_LINK, "symbolic link")):
        if entry.mode == mode:
            return reason
    try:
        path = entry.path.decode()
    except UnicodeDecodeError:
        return "name not UTF-8"
    promised = languages.by_name(path, executable=entry.mode == _EXECUTABLE)
    if promised is None:
        return "other language"
    if left := next((_SAID[name] for name in sorted(said)), None) or unwanted.by_path(path):
        return left
    return "oversized" if entry.size > unwanted.MOST_BYTES else Candidate(path, promised, entry.blob)


def _files(candidates: Sequence[Candidate], blobs: Blobs, reasons: Reasons) -> Iterator[File]:
    """Those of them that are wanted; the others are counted."""
    beside = languages.beside(candidate.promised for candidate in candidates)
    for candidate in candidates:
        file = _file(candidate, blobs.read(candidate.blob), beside)
        if isinstance(file, File):
            yield file
        else:
            reasons[file] += 1


def _file(candidate: Candidate, raw: bytes, beside: str) -> File | str:
    """A file as it is learned from, or why it is not."""
    if left := unwanted.by_bytes(raw):
        return left
    text = raw.decode().removeprefix("\ufeff").replace("\r\n", "\n")
    language = languages.by_text(candidate.promised, candidate.path, text, beside)
    if language is None:
        return "other language"
    body = headers.without_licence(text)
    if not body:
        return "nothing in it"
    if left := unwanted.by_text(text):
        return left
    if credentials.secret_in(text):
        return "secret"
    # A file is what its words are: how it is set, and its brackets, make no other file of it.
    words = " ".join(_WORD.findall(body)) or body
    return File(candidate.path, language, text, signature_of(words, numbers=False))


def _licence_texts(entries: Sequence[Entry], blobs: Blobs) -> dict[str, str]:
    found = {}
    for entry in entries:
        path = entry.path.decode(errors="replace")
        regular = entry.mode not in (_SUBMODULE, _LINK)
        if regular and licences.is_licence_file(path) and entry.size <= unwanted.MOST_BYTES:
            found[path] = blobs.read(entry.blob).decode(errors="replace")
    return found


def packed(signature: Signature) -> list[str]:
    """A signature as JSON holds it."""
    return [base64.b85encode(part).decode() for part in signature]


def unpacked(parts: Sequence[str]) -> Signature:
    """What `packed` was given."""
    return Signature(*(base64.b85decode(part) for part in parts))
