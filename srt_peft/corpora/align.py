"""Which document of the old snapshot became which of the new: by key, then by title, then by what they say.

Those that have no counterpart of the same key are paired where they alone have a title, and share enough of their
words: `README` in two folders is not one document. What is left may have been renamed: those that are near-identical
are paired, the most alike first, as `git` finds renames. The rest came, or went.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from srt_peft.corpora.documents import Document, library
from srt_peft.corpora.sentences import apart, normalised
from srt_peft.corpora.writing import shown

TITLED = 0.3
"""The share of words that two documents of one title have in common at least."""
RENAMED = 0.5
"""The share of three-word sequences that a renamed document still has."""
FEW = 20
"""With fewer words only the same text is a rename."""
_BANDS = (40, 3)
"""Of two documents that are 0.5 alike, 99.5 % share a band; whichever do are held against each other."""


class Aligned(NamedTuple):
    """Documents with what became of them; one side is None for those that went, or came."""

    pairs: list[tuple[Document | None, Document | None]]
    by: Counter[str]
    """How many were found by their key, their title, their content."""


def align(old: Mapping[str, Document], new: Mapping[str, Document]) -> Aligned:
    """All documents of both, in the order of old, and then those that came in the order of new."""
    found = {key: (key, "key") for key in old if key in new}
    for how, finder in (("title", _by_title), ("content", _by_content)):
        taken = {key for key, _ in found.values()}
        left = [document for key, document in old.items() if key not in found]
        right = [document for key, document in new.items() if key not in taken]
        found.update((was, (now, how)) for was, now in finder(left, right))
    pairs: list[tuple[Document | None, Document | None]] = [
        (document, new[found[key][0]] if key in found else None) for key, document in old.items()
    ]
    taken = {key for key, _ in found.values()}
    pairs += [(None, document) for key, document in new.items() if key not in taken]
    return Aligned(pairs, Counter(how for _, how in found.values()))


def _by_title(old: Sequence[Document], new: Sequence[Document]) -> Iterator[tuple[str, str]]:
    named = [_once(documents) for documents in (old, new)]
    for title, was in named[0].items():
        now = named[1].get(title)
        if now is not None:
            words = [set(apart(normalised(document.text).casefold().split())) for document in (was, now)]
            if _share(*words) >= TITLED:
                yield was.key, now.key


def _once(documents: Sequence[Document]) -> dict[str, Document]:
    """The documents whose title no other has."""
    titles = [normalised(document.title.replace("_", " ")).casefold() for document in documents]
    counts = Counter(titles)
    return {title: document for title, document in zip(titles, documents, strict=True) if counts[title] == 1}


def _by_content(old: Sequence[Document], new: Sequence[Document]) -> Iterator[tuple[str, str]]:
    """The most alike first; of equals, the earlier."""
    if not old or not new:
        return
    left, right = ([_sequences(document.text) for document in documents] for documents in (old, new))
    near = library("datasketch")
    index = near.MinHashLSH(num_perm=_BANDS[0] * _BANDS[1], params=_BANDS)
    for i, sketch in enumerate(shown(_sketches(left), "looking for renames", "document", len(left))):
        index.insert(i, sketch)
    near_to = enumerate(shown(_sketches(right), "looking for renames", "document", len(right)))
    found = [(-_share(left[i], right[j]), i, j) for j, sketch in near_to for i in index.query(sketch)]
    were, are = set[int](), set[int]()
    for share, i, j in sorted(found):
        if -share >= RENAMED and i not in were and j not in are:
            were.add(i)
            are.add(j)
            yield old[i].key, new[j].key


def _sequences(text: str) -> set[str]:
    words = apart(normalised(text).split())
    return {" ".join(words[i : i + 3]) for i in range(len(words) - 2)} if len(words) >= FEW else {" ".join(words)}


def _sketches(sets: Sequence[set[str]]) -> Iterator[object]:
    raw = ([sequence.encode() for sequence in sequences] for sequences in sets)
    yield from library("datasketch").MinHash.generator(raw, num_perm=_BANDS[0] * _BANDS[1])


def _share(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))
