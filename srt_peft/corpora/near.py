"""Near-duplicates: texts that say what an earlier one has said, but for a word or two.

Two texts are as near as the share of three-word sequences that they have in common, estimated by MinHash; the few that
may be near enough are found by LSH, so that each text costs the same however many there were before. It is about 4 kB
of memory a text.

Two facts of one form differ in a number and nothing else: where `numbers` counts, texts whose numbers differ are never
duplicates. Nor can little be said of a short text's likeness: below `SHORT` words only the same text counts.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from srt_peft.corpora.documents import library
from srt_peft.corpora.sentences import apart, normalised

NEAR = 0.9
"""The share of sequences from which on two texts are the same."""
SHORT = 20
_PERMUTATIONS = 128
BANDS = (12, 10)
"""So many bands of so many values: of two texts that are 0.9 alike, 99.4 % share a band; whoever does is looked at."""
_NUMBER = re.compile(r"\d+")


@cache
def _blank() -> Any:
    """A sketch of nothing: to draw the permutations anew for each text takes longer than to use them."""
    return library("datasketch").MinHash(num_perm=_PERMUTATIONS)


class Signature(NamedTuple):
    """What is remembered of a text; made apart from where it is looked up, so that other processes can."""

    exact: bytes
    numbers: bytes
    sketch: bytes
    """Empty for a short text."""


def signature_of(text: str, *, numbers: bool = True) -> Signature:
    """What a text is known by."""
    plain = normalised(text).casefold()
    words = apart(plain.split())
    told = _digest(" ".join(_NUMBER.findall(plain))) if numbers else b""
    if len(words) < SHORT:
        return Signature(_digest(plain), told, b"")
    sketch = _blank().copy()
    sketch.update_batch([" ".join(words[i : i + 3]).encode() for i in range(len(words) - 2)])
    return Signature(_digest(plain), told, sketch.hashvalues.astype("<u4").tobytes())


class NearDuplicates:
    """All texts that were let through."""

    def __init__(self, near: float = NEAR, bands: tuple[int, int] = BANDS) -> None:
        self._near = near
        self._index = library("datasketch").MinHashLSH(num_perm=_PERMUTATIONS, params=bands)
        self._exact: set[bytes] = set()
        self._kept: list[Signature] = []

    def seen(self, signature: Signature) -> bool:
        """Whether such a text was let through before; it is now, if none was."""
        if self.has(signature):
            return True
        if signature.sketch:
            self._index.insert(len(self._kept), self._sketch_of(signature), check_duplication=False)
            self._kept.append(signature)
        self._exact.add(signature.exact)
        return False

    def has(self, signature: Signature) -> bool:
        """Whether such a text was let through before."""
        if signature.exact in self._exact:
            return True
        near = self._index.query(self._sketch_of(signature)) if signature.sketch else ()
        return any(self._same(signature, self._kept[i]) for i in near)

    def _sketch_of(self, signature: Signature) -> Any:
        sketch = _blank().copy()
        sketch.hashvalues = np.frombuffer(signature.sketch, "<u4").astype(sketch.hashvalues.dtype)
        return sketch

    def _same(self, signature: Signature, other: Signature) -> bool:
        values, theirs = (np.frombuffer(one.sketch, "<u4") for one in (signature, other))
        return signature.numbers == other.numbers and float(np.mean(values == theirs)) >= self._near


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
