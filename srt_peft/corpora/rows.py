"""The rows of a document that changed: what to retain of it, what to learn, and which of the old no longer holds.

The old text is cut where it was replaced: each sentence that has a successor is a row of its own, and all that stands
between two of them is one. So `supersedes` suspends what was replaced, and nothing else; what was deleted without a
successor goes on being reviewed, since nobody has said that it is wrong. The spans of a document's rows tile its text.

What is new is a row for each sentence that replaces one, and for each run of sentences that replace none. A sentence
alone may not say what it is about: `context` puts the document's title before it, and the label of its line; or so many
of the sentences that precede it as well.

A row is called by its document and a hash of what it says, so that a name never means one statement this month and
another the next: what is new now has the same name when it is old, and is replaced.

A document is held out by a hash of its key, in both snapshots: questions may be asked of it that no row gives away.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from srt_peft.corpora.diffs import Changes, changes_of
from srt_peft.corpora.documents import Document
from srt_peft.corpora.sentences import Sentence, normalised, sentences_of

Row = dict[str, Any]
Context = str | int
"""`title`, `none`, or how many preceding sentences stand between the title and the statement."""


class Rows(NamedTuple):
    """What becomes of a pair of documents."""

    old: list[Row]
    new: list[Row]
    inserted: int
    """Sentences, as are the next two."""
    deleted: int
    modified: int


class _Text(NamedTuple):
    document: Document
    sentences: list[Sentence]

    def says(self, first: int, last: int) -> str:
        """The text from one sentence to before another."""
        return self.document.text[self.sentences[first].start : self.sentences[last - 1].end].strip()

    def name(self, first: int, last: int, seen: Counter[str]) -> str:
        """What such a row is called: by its document and by what it says."""
        words = " ".join(sentence.words for sentence in self.sentences[first:last])
        name = f"{self.document.key}#{hashlib.blake2b(words.encode(), digest_size=6).hexdigest()}"
        seen[name] += 1
        return name if seen[name] == 1 else f"{name}-{seen[name]}"


def rows_of_pair(
    old: Document | None, new: Document | None, *, context: Context = "title", language: str = "en"
) -> Rows:
    """The rows of a document in two snapshots; None where it is not in one of them."""
    if old is None or new is None:
        kept, learned = (_alone(document, context, language) for document in (old, new))
        return Rows(kept, [{**row, "supersedes": []} for row in learned], 0, 0, 0)
    before, after, changes = _compared(old, new, language)
    ids, rows, seen = {}, [], Counter[str]()
    for first, last in _runs(len(before.sentences), {i for i, _ in changes.modified}):
        name = before.name(first, last, seen) if changes.modified else old.key
        ids.update(dict.fromkeys(range(first, last), name))
        rows.append(_row(before, name, first, last, context=_of_old(context)))
    replaced = {j: i for i, j in changes.modified}
    found = [(j, j + 1) for j in replaced] + list(_adjacent(changes.inserted))
    learned = []
    for first, last in sorted(found):
        row = _row(after, after.name(first, last, seen), first, last, context=context)
        learned.append({**row, "supersedes": [ids[replaced[first]]] if first in replaced else []})
    return Rows(rows, learned, len(changes.inserted), len(changes.deleted), len(changes.modified))


def held_out_of(old: Document | None, new: Document | None, *, language: str = "en") -> Row:
    """A document that is kept for questions: both its texts, and what changed."""
    document = new or old
    assert document is not None
    changes: list[dict[str, str]] = []
    if old is not None and new is not None:
        before, after, found = _compared(old, new, language)
        told = [(j, "modified", before.says(i, i + 1), after.says(j, j + 1)) for i, j in found.modified]
        told += [(j, "inserted", "", after.says(j, j + 1)) for j in found.inserted]
        changes = [{"kind": kind, "old": was, "new": now} for _, kind, was, now in sorted(told)]
        changes += [{"kind": "deleted", "old": before.says(i, i + 1), "new": ""} for i in found.deleted]
    texts = {"old": old.text if old else None, "new": new.text if new else None}
    return {**_about(document, document.key), **texts, "changes": changes}


def is_held_out(key: str, share: float) -> bool:
    """Whether a document is kept for questions: the same in every snapshot, on every machine."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") < int(share * 2**64)


def _compared(old: Document, new: Document, language: str) -> tuple[_Text, _Text, Changes]:
    before, after = (_Text(document, sentences_of(document.text, language)) for document in (old, new))
    return before, after, changes_of(before.sentences, after.sentences)


def _runs(count: int, alone: set[int]) -> Iterator[tuple[int, int]]:
    """All sentences, in runs; those that are to be alone are."""
    begun = 0
    for i in range(count):
        if i in alone:
            if begun < i:
                yield begun, i
            yield i, i + 1
            begun = i + 1
    if begun < count:
        yield begun, count


def _adjacent(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Numbers in order, as the runs that they make."""
    begun = 0
    for k in range(1, len(numbers) + 1):
        if k == len(numbers) or numbers[k] != numbers[k - 1] + 1:
            yield numbers[begun], numbers[k - 1] + 1
            begun = k


def _row(text: _Text, name: str, first: int, last: int, *, context: Context) -> Row:
    says = text.says(first, last)
    lines = []
    if context != "none":
        opening = text.sentences[first]
        if not normalised(says).lstrip("#=* ").startswith(normalised(text.document.title)):
            lines.append(text.document.title)
        before = first - int(context) if isinstance(context, int) else first
        if before < first:
            lines.append(text.says(max(0, before), first) if first else "")
        elif opening.label and not opening.opens:
            lines.append(f"{opening.label}:")
    span = [text.sentences[first].start, text.sentences[last - 1].end]
    return {**_about(text.document, name), "text": "\n".join([*filter(None, lines), says]), "span": span}


def _alone(document: Document | None, context: Context, language: str) -> list[Row]:
    """The one row of a document that is in one snapshot only."""
    if document is None:
        return []
    text = _Text(document, sentences_of(document.text, language))
    count = len(text.sentences)
    return [_row(text, document.key, 0, count, context=_of_old(context))] if count else []


def _of_old(context: Context) -> Context:
    """What precedes a statement in the old text is a row of its own."""
    return "title" if isinstance(context, int) else context


def _about(document: Document, name: str) -> Row:
    return {"id": name, "document": document.key, "title": document.title, "source": document.source, **document.about}
