"""What questions are made of: a statement of a held-out document, the passage around it, and the split it belongs to.

    new    an inserted or updated statement of the new text; of an updated one, what the old text had in its place
    old    a statement of the old text that still stands in the new one, or whose document has no new text

So an old question asks for what still holds, and no update has reason to forget it. A corpus whose training rows hold a
document that was held out is refused: its questions would ask for what was read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from tqdm import tqdm

from srt_peft.corpora.qa.words import plain
from srt_peft.corpora.qa.statements import spans_of
from srt_peft.data.reading import Column, rows_of
from srt_peft.errors import OptionError

HELD_OUT, MANIFEST = "held-out.jsonl", "MANIFEST.json"
TRAINED = ("old.jsonl", "new.jsonl")
SPLITS = ("old", "new")
PASSAGE = 1200
"""Characters of a passage, beyond its statement: as much as a person reads beside a question."""
STATEMENT = (20, 600)
"""Characters of a statement: less says nothing, more is not one."""
_GRAM = 8
"""Words that must follow each other for a training text to have a statement; shorter ones are commonplace."""
_COPY = 50
"""Words from which on a text that two documents share makes them one; less is a phrase that many use."""
_TOLD = 10


@dataclass(frozen=True, slots=True)
class Document:
    """A document that was held out, in both snapshots."""

    id: str
    title: str
    source: str | None
    old: str | None
    new: str | None
    changes: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A statement to ask of."""

    id: str
    document: str
    title: str
    source: str | None
    split: str
    passage: str
    start: int
    end: int
    was: str | None = None
    """What the old text had in its place, if it was updated."""

    @property
    def statement(self) -> str:
        """Where it stands in the passage."""
        return self.passage[self.start : self.end]


@dataclass
class Corpus:
    """A folder's held-out documents, and what is known of the rest of it."""

    folder: Path
    documents: list[Document]
    files: dict[str, dict[str, Any]]
    """Sizes and hashes of the files that were read."""
    texts: list[str] = field(default_factory=list)
    """Training texts, from which distractors come."""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """Old and new statements, of which the second replaces the first."""


# --- reading --------------------------------------------------------------------------------------------------------


def read(folder: Path) -> Corpus:
    """The corpus in a folder; or what keeps it from being asked of."""
    faults = [
        f"{folder / name} is not there: expected a whole folder, as `srt-peft corpus text` writes it. {remedy}"
        for name, remedy in _REMEDIES.items()
        if not (folder / name).is_file()
    ]
    if faults:
        raise OptionError(f"--from {folder}", faults)
    columns = [Column(name, "Make the corpus anew") for name in ("id", "title", "source", "old", "new", "changes")]
    documents = []
    for values, where in rows_of(folder / HELD_OUT, columns):
        key, title, source, old, new, changes = values
        texts = all(text is None or isinstance(text, str) for text in (old, new))
        if not (isinstance(key, str) and texts and isinstance(changes, list) and all(map(_is_change, changes))):
            fault = f"{where} is no held-out document: expected id, title, source, old, new and changes"
            raise OptionError(f"--from {folder}", [f"{fault}. Make the corpus anew"])
        documents.append(Document(key, str(title or key), source, old, new, tuple(changes)))
    if not documents:
        fault = f"{folder / HELD_OUT} is empty: no document was held out, and questions are asked of no other"
        raise OptionError(f"--from {folder}", [f"{fault}. Make the corpus with a larger --held-out"])
    return Corpus(folder, documents, {name: _hashed(folder / name) for name in (HELD_OUT, *TRAINED)})


_REMEDIES = {
    MANIFEST: "It is written last, so what makes the corpus has not ended: run that again",
    HELD_OUT: "Questions are asked of documents that were held out",
    TRAINED[0]: "Held-out documents are checked against it",
    TRAINED[1]: "Held-out documents are checked against it",
}


def _is_change(change: Any) -> bool:
    return isinstance(change, dict) and all(isinstance(change.get(k) or "", str) for k in ("kind", "old", "new"))


def _hashed(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


# --- what is asked of -----------------------------------------------------------------------------------------------


def items_of(corpus: Corpus, seed: int) -> tuple[dict[str, list[Item]], Counter[str]]:
    """The items of each split, the documents taking turns, in an order that the seed decides; and what was left out."""
    left: Counter[str] = Counter()
    found: dict[str, list[Item]] = {}
    for split, of_document in (("old", _old), ("new", _new)):
        turns = [sorted(of_document(d, left), key=lambda item: _chance(seed, item.id)) for d in corpus.documents]
        turns.sort(key=lambda items: _chance(seed, items[0].id) if items else "")
        found[split] = [item for item in chain.from_iterable(zip_longest(*turns)) if item is not None]
    return found, left


def _chance(seed: int, key: str) -> str:
    return hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).hexdigest()


def _new(document: Document, left: Counter[str]) -> list[Item]:
    if document.new is None:
        return []
    spans, seen, items = spans_of(document.new), set(), []
    for change in document.changes:
        said = change.get("new") or ""
        if change["kind"] not in ("inserted", "modified") or not said.strip():
            continue
        place = _place(document.new, said)
        if place is None:
            left["a change that is not found in its document"] += 1
            continue
        inner = [place] if place[1] - place[0] <= STATEMENT[1] else [s for s in spans if _within(s, place)]
        was = (change.get("old") or None) if change["kind"] == "modified" else None
        for span in inner:
            if span not in seen:
                seen.add(span)
                items += _item(document, "new", document.new, spans, span, was, left)
    return items


def _old(document: Document, left: Counter[str]) -> list[Item]:
    """Statements of the old text that the new one leaves as they are."""
    if document.old is None:
        return []
    still = None if document.new is None else {plain(document.new[a:b]) for a, b in spans_of(document.new)}
    spans = spans_of(document.old)
    items = []
    for span in spans:
        if still is None or plain(document.old[slice(*span)]) in still:
            items += _item(document, "old", document.old, spans, span, None, left)
    return items


def _place(text: str, said: str) -> tuple[int, int] | None:
    """Where in a text something is said, whatever its spaces."""
    match = re.search(r"\s+".join(map(re.escape, said.split())), text)
    return match and match.span()


def _within(span: tuple[int, int], place: tuple[int, int]) -> bool:
    return place[0] <= span[0] and span[1] <= place[1]


def _item(
    document: Document,
    split: str,
    text: str,
    spans: Sequence[tuple[int, int]],
    span: tuple[int, int],
    was: str | None,
    left: Counter[str],
) -> Iterator[Item]:
    """The item of a statement, if it is one."""
    length = span[1] - span[0]
    if not STATEMENT[0] <= length <= STATEMENT[1]:
        left["too short to say anything" if length < STATEMENT[0] else "too long for one statement"] += 1
        return
    start, end = _around(spans, span)
    key = hashlib.blake2b(
        json.dumps([document.id, split, span[0], text[slice(*span)]]).encode(), digest_size=8
    ).hexdigest()
    yield Item(
        key, document.id, document.title, document.source, split, text[start:end], span[0] - start, span[1] - start, was
    )


def _around(spans: Sequence[tuple[int, int]], span: tuple[int, int]) -> tuple[int, int]:
    """From which statement to which a passage goes: one more before and one more after, while there is room."""
    start, end = span
    before = [s for s in spans if s[1] <= start]
    after = [s for s in reversed(spans) if s[0] >= end]
    while before or after:
        if before and end - before[-1][0] <= PASSAGE:
            start = before.pop()[0]
        else:
            before = []
        if after and after[-1][1] - start <= PASSAGE:
            end = after.pop()[1]
        else:
            after = []
    return start, end


# --- held against the training rows ---------------------------------------------------------------------------------


def hold_apart(corpus: Corpus, items: Iterable[Item], stock: int) -> set[str]:
    """Refuse a corpus that trains on a held-out document; the ids of items whose statement a training row has.

    Of the training rows, the first so many are kept for distractors, and so are the pairs that supersede each other.
    """
    names = {document.id for document in corpus.documents}
    texts = ((plain(text), d.id) for d in corpus.documents for text in (d.old, d.new) if text)
    whole = {text: key for text, key in texts if text.count(" ") >= _COPY}
    grams: dict[str, list[tuple[str, str]]] = {}
    for item in items:
        words = plain(item.statement).split()
        if len(words) >= _GRAM:
            grams.setdefault(" ".join(words[:_GRAM]), []).append((" ".join(words), item.id))
    faults: list[str] = []
    read: set[str] = set()
    olds: dict[str, str] = {}
    for name in TRAINED:
        columns = [Column("id", "Make the corpus anew"), Column("text", "Make the corpus anew"), Column("supersedes")]
        rows = rows_of(corpus.folder / name, columns)
        for kept, ((key, text, replaced), where) in enumerate(
            tqdm(rows, desc=f"held out of {name}", unit="row", delay=2, disable=None, leave=False)
        ):
            faults += _overlaps(str(key), text, where, names, whole)
            read |= set(_said(plain(text).split(), grams))
            if kept < stock:
                corpus.texts.append(text)
                if name == TRAINED[0]:
                    olds[str(key)] = text
                elif isinstance(replaced, list):
                    corpus.pairs += [(olds[old], text) for old in replaced if old in olds]
    if faults:
        raise OptionError(f"--from {corpus.folder}", faults, most=_TOLD)
    return read


def _overlaps(key: str, text: str, where: str, names: set[str], whole: dict[str, str]) -> Iterator[str]:
    own = key if key in names else re.sub(r"#[a-z]*\d+(?:-\d+)?$", "", key)
    remedy = "expected held-out documents to be in no training row. Make the corpus anew"
    if own in names:
        yield f"{where}: {key!r} is of {own!r}, which is held out: {remedy}"
        return
    body = plain(text)
    same = whole.get(body) or whole.get(plain(text.partition("\n")[2]))
    if body and same is not None:
        yield f"{where}: {key!r} has the text of {same!r}, which is held out: {remedy}"


def _said(words: Sequence[str], grams: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    """The items whose statement stands among these words."""
    for i in range(len(words) - _GRAM + 1):
        for statement, item in grams.get(" ".join(words[i : i + _GRAM]), ()):
            if " ".join(words[i : i + statement.count(" ") + 1]) == statement:
                yield item
