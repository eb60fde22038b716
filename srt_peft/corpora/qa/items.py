"""What questions are made of: a statement of a held-out document, the passage around it, and the split it belongs to.

    new    an inserted or updated statement of the new text; of an updated one, what the old text had in its place
    old    a statement of the old text that still stands in the new one, or whose document has no new text

So an old question asks for what still holds, and no update has reason to forget it. A corpus whose training rows hold
a document that was held out is refused: its questions would ask for what was read.
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

from srt_peft.corpora.folder import MANIFEST, sha256
from srt_peft.corpora.qa.statements import Statement, statements_of
from srt_peft.corpora.qa.words import plain
from srt_peft.corpora.writing import shown
from srt_peft.data.reading import Column, rows_of
from srt_peft.errors import OptionError

HELD_OUT = "held-out.jsonl"
TRAINED = ("old.jsonl", "new.jsonl")
SPLITS = ("old", "new")
PASSAGE = 1200
"""Characters of a passage, beyond its statement: as much as a person reads beside a question."""
STATEMENT = (20, 400)
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
    label: str | None = None
    """What its line is about, where its own words do not say it."""

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
        documents.append(Document(key, str(title or key), source or None, old, new, tuple(changes)))
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
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


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
    """Inserted and updated statements of the new text; of a document that is new, all."""
    if document.new is None:
        return []
    whole = statements_of(document.new)
    places = {s[:2]: None for s in whole} if document.old is None else _updates(document, left)
    found: dict[Statement, str | None] = {}
    for place, was in places.items():
        found.update((s, was) for s in whole if s not in found and place[0] <= s.start and s.end <= place[1])
    return [item for s, was in found.items() for item in _item(document, "new", document.new, whole, s, was, left)]


def _updates(document: Document, left: Counter[str]) -> dict[tuple[int, int], str | None]:
    """From where to where the new text was inserted or updated, and what was there before an update."""
    places: dict[tuple[int, int], str | None] = {}
    for change in document.changes:
        said = change.get("new") or ""
        if change["kind"] not in ("inserted", "modified") or not said.strip():
            continue
        place = _place(document.new or "", said)
        if place is None:
            left["a change that is not found in its document"] += 1
        else:
            places.setdefault(place, change.get("old") or None)
    return places


def _old(document: Document, left: Counter[str]) -> list[Item]:
    """Statements of the old text that the new one leaves as they are."""
    if document.old is None:
        return []
    still = None
    if document.new is not None:
        still = {plain(document.new[s.start : s.end]) for s in statements_of(document.new)}
    whole = statements_of(document.old)
    return [
        item
        for s in whole
        if still is None or plain(document.old[s.start : s.end]) in still
        for item in _item(document, "old", document.old, whole, s, None, left)
    ]


def _place(text: str, said: str) -> tuple[int, int] | None:
    """Where in a text something is said, whatever its spaces."""
    match = re.search(r"\s+".join(map(re.escape, said.split())), text)
    return match and match.span()


def _item(
    document: Document,
    split: str,
    text: str,
    whole: Sequence[Statement],
    said: Statement,
    was: str | None,
    left: Counter[str],
) -> Iterator[Item]:
    """The item of a statement, if it is one."""
    length = said.end - said.start
    if not STATEMENT[0] <= length <= STATEMENT[1]:
        left["too short to say anything" if length < STATEMENT[0] else "too long for one statement"] += 1
        return
    start, end = _around(whole, said)
    made_of = [document.id, split, said.start, text[said.start : said.end]]
    yield Item(
        id=hashlib.blake2b(json.dumps(made_of).encode(), digest_size=8).hexdigest(),
        document=document.id,
        title=document.title,
        source=document.source,
        split=split,
        passage=text[start:end],
        start=said.start - start,
        end=said.end - start,
        was=was,
        label=said.label,
    )


def _around(whole: Sequence[Statement], said: Statement) -> tuple[int, int]:
    """From where to where a passage goes: one statement more before, one more after, while there is room."""
    first = last = whole.index(said)
    ahead = behind = True
    while ahead or behind:
        ahead = ahead and first > 0 and whole[last].end - whole[first - 1].start <= PASSAGE
        first -= ahead
        behind = behind and last + 1 < len(whole) and whole[last + 1].end - whole[first].start <= PASSAGE
        last += behind
    return whole[first].start, whole[last].end


# --- held against the training rows ---------------------------------------------------------------------------------


def hold_apart(corpus: Corpus, items: Iterable[Item], stock: int) -> set[str]:
    """Refuse a corpus that trains on a held-out document; the ids of items whose statement a training row has.

    Of each training file, the first so many characters are kept for distractors, and with them the pairs that supersede
    each other.
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
        needed = [Column(column, "Make the corpus anew") for column in ("id", "text")]
        columns = [*needed, Column("document"), Column("supersedes")]
        rows = shown(rows_of(corpus.folder / name, columns), f"held out of {name}", "row")
        kept = 0
        for (key, text, document, replaced), where in rows:
            own = document if isinstance(document, str) else str(key).rpartition("#")[0]
            faults += _overlaps(str(key), own, text, where, names, whole)
            read |= set(_said(plain(text).split(), grams))
            if kept < stock:
                kept += len(text)
                corpus.texts.append(text)
                if name == TRAINED[0]:
                    olds[str(key)] = text
                elif isinstance(replaced, list):
                    corpus.pairs += [(olds[old], text) for old in replaced if old in olds]
    if faults:
        raise OptionError(f"--from {corpus.folder}", faults, most=_TOLD)
    return read


def _overlaps(key: str, own: str, text: str, where: str, names: set[str], whole: dict[str, str]) -> Iterator[str]:
    """What makes a training row one of a held-out document: its name, or all of its text."""
    remedy = "expected held-out documents to be in no training row. Make the corpus anew"
    if (own := own if own in names else key) in names:
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
