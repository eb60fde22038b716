"""A corpus: an old pool and a new one as one id space, and what the two have in common.

Ids 0..n_old-1 are old, the rest are new. A *deck* is what all examples of one source's name make, in both pools.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from srt_peft.data.pool import Pool, among
from srt_peft.errors import OptionError

MOST_SOURCES = 2**16 - 1
"""Distinct names of sources, in a pool and in a corpus: a deck is kept as two bytes an example."""


class Corpus:
    """An old pool and a new one as one id space: ids 0..n_old-1 are old, the rest are new."""

    def __init__(self, old: Pool, new: Pool) -> None:
        self.old, self.new = old, new
        self.n_old = len(old)
        self.lengths: NDArray[np.int64] = np.concatenate([old.lengths, new.lengths])
        """How many tokens each example has: in memory, as every draw asks for them."""

    def __len__(self) -> int:
        return len(self.old) + len(self.new)

    def __getitem__(self, i: int) -> NDArray[np.int32]:
        pool, row = self._place(i)
        return pool[row]

    def text(self, i: int) -> str:
        """The text that example i was tokenised from."""
        pool, row = self._place(i)
        return pool.text(row)

    def _place(self, i: int) -> tuple[Pool, int]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"example {i} is not in the corpus of {self.n_old} old and {len(self.new)} new examples")
        row = int(i) % len(self)
        return (self.old, row) if row < self.n_old else (self.new, row - self.n_old)

    @property
    def identity(self) -> NDArray[np.uint8]:
        """What each example is known by, as the review state keeps it; a copy."""
        return np.concatenate([self.old.identity, self.new.identity])

    @property
    def decks(self) -> tuple[NDArray[np.uint16], list[str]]:
        """Which deck each example is of, and what the decks are called, in the order of their first examples.

        Examples whose sources have the same name are of one deck, whichever pool they are in.
        """
        place: dict[str, int] = {}
        merged = []
        for pool in (self.old, self.new):
            table = np.asarray([place.setdefault(name, len(place)) for name in pool.sources], np.int64)
            merged.append(table[pool.source])
        used, first, deck = np.unique(np.concatenate(merged), return_index=True, return_inverse=True)
        if used.size > MOST_SOURCES:
            raise OptionError("the corpus", [too_many_sources(used.size)])
        order = np.argsort(first)
        rank = np.empty(order.size, np.uint16)
        rank[order] = np.arange(order.size)
        names = list(place)
        return rank[deck], [names[i] for i in used[order]]

    def shared(self) -> int:
        """How many new examples have the same text as an old one."""
        return int(among(self.new.identity, self.old.identity).sum())

    def unseen(self, held_out: Pool) -> Pool:
        """Those of a held-out pool that neither pool trains on, word for word.

        Documents are held out by their content. One that was revised between two snapshots is held out of the one,
        and trained on in the other; most of its examples may be the same.
        """
        seen = among(held_out.identity, self.old.identity) | among(held_out.identity, self.new.identity)
        return held_out.only(np.flatnonzero(~seen)) if seen.any() else held_out

    @property
    def fingerprint(self) -> str:
        """A hash over both pools, in order."""
        return blake2b(f"{self.old.fingerprint} {self.new.fingerprint}".encode(), digest_size=16).hexdigest()


def too_many_sources(count: int) -> str:
    """The fault of a corpus with so many."""
    return (
        f"there are {count:,} sources: expected at most {MOST_SOURCES:,}. Group them, by a column (data.source_column) "
        "with fewer values, or by giving several of them one name"
    )
