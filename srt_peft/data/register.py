"""What the documents of an ingest are called, as they pass by on their way to the processes that tokenise.

A process gets a document's text and its number, and nothing else of it; its source, its key and what it supersedes
stay here, a row a document.
"""

from __future__ import annotations

import posixpath
from array import array
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from srt_peft.data.corpus import MOST_SOURCES, too_many_sources
from srt_peft.data.pool import key_of
from srt_peft.data.reading import PLACE, Absent, fail, lacks
from srt_peft.data.sources import Document
from srt_peft.data.supersedes import NAME_COLUMN, Pair, pair_of
from srt_peft.errors import OptionError
from srt_peft.review.rows import IDENTITY_BYTES

FEW_IDS = 2_000
"""Up to so many, a pool's manifest lists what its documents are called: enough to say which one was meant."""


class Register:
    """The names of an ingest's documents and sources."""

    def __init__(self, sources: Iterable[str], supersedes: str | None, *, dated: bool = False) -> None:
        self.dated = dated
        self.pairs: list[Pair] = []
        self.lacking: str | None = None
        """The fault of the first document that has no column of what it supersedes; `seen`: whether any has it."""
        self.seen = False
        self.supersedes = supersedes
        self._names = {name: i for i, name in enumerate(dict.fromkeys(sources))}
        self._source = array("i")
        self._key = bytearray()
        self._date = array("q")
        self._ids: set[str] = set()

    def watch(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents as they come, each entered; what is wrong with what they supersede is told at their end."""
        faults: list[str] = []
        for document in documents:
            self._source.append(self._names.setdefault(document.source, len(self._names)))
            self._key += key_of(document.id)
            self._date.append(document.date)
            if document.id is not None and len(self._ids) <= FEW_IDS:
                self._ids.add(document.id)
            if self.supersedes is not None:
                self._enter(document, self.supersedes, faults)
            yield document
        if faults:
            raise OptionError(PLACE, faults, most=10)
        if len(self._names) > MOST_SOURCES:
            fail(too_many_sources(len(self._names)))

    def _enter(self, document: Document, column: str, faults: list[str]) -> None:
        found, where = document.supersedes, posixpath.basename(document.where)
        if isinstance(found, Absent):
            if self.lacking is None:
                self.lacking = lacks(where, column, found.known, NAME_COLUMN)
            return
        self.seen = True
        pair = pair_of(document.id, found, where, column, faults)
        if pair.old:
            self.pairs.append(pair)

    @property
    def names(self) -> list[str]:
        """What the sources are called."""
        return list(self._names)

    @property
    def source(self) -> NDArray[np.int32]:
        """Which of the names each document's source has."""
        return np.asarray(self._source, dtype=np.int32)

    @property
    def key(self) -> NDArray[np.uint8]:
        """The key of each document."""
        return np.frombuffer(bytes(self._key), np.uint8).reshape(-1, IDENTITY_BYTES)

    @property
    def date(self) -> NDArray[np.int64]:
        """When each document is from."""
        return np.asarray(self._date, dtype=np.int64)

    @property
    def ids(self) -> list[str] | None:
        """What the documents are called, where they are few."""
        return sorted(self._ids) if len(self._ids) <= FEW_IDS else None


def others(key: NDArray[np.uint8], kept: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The keys of all documents but these: sorted, each once, and none for what is called nothing."""
    rest = np.ones(len(key), dtype=bool)
    rest[kept] = False
    return np.unique(key[rest & key.any(axis=1)], axis=0)
