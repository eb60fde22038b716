"""A set of ids in which the r-th smallest is found at a cost that does not grow with the set.

One bit an id, and over the bits a few levels of counts, each 16 times coarser than the one below. To find the
r-th member, walk down, for all wanted ranks at once: which top, which child of it, … which word, which byte,
which bit.

    level       one number counts        for 1e8 ids
    tops        the bits of 4,096 words          382
    …           the bits of 256 words          6,112
    blocks      the bits of 16 words          97,792
    words       64 ids                     1,564,672

A set over 1e8 ids takes 12.9 MB.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from srt_peft.review.chance import Ids, shuffled, walk

_FAN = 16
_WORD = 64
_SHIFTS = (10, 14, 18)  # log2 of the ids under a number of each level, from blocks to tops
# Where in a byte its r-th set bit stands.
_BIT_OF_BYTE = np.array([([i for i in range(8) if byte >> i & 1] + [0] * 8)[:8] for byte in range(256)], dtype=np.int64)


class IdSet:
    """A set of ids below the size of `members`."""

    def __init__(self, members: NDArray[np.bool_]) -> None:
        """The ids at which `members` is true."""
        tops = max(1, -(-members.size >> _SHIFTS[-1]))
        packed = np.zeros(tops << (_SHIFTS[-1] - 3), dtype=np.uint8)
        packed[: -(-members.size >> 3)] = np.packbits(members, bitorder="little")
        self.words = packed.view("<u8")
        self.levels = _count_up(self.words)
        self.count = int(self.levels[-1].sum())

    def add(self, ids: Ids) -> None:
        """Add distinct ids that are not in the set."""
        self._flip(ids, 1)

    def discard(self, ids: Ids) -> None:
        """Take out distinct ids that are in the set."""
        self._flip(ids, -1)

    def _flip(self, ids: Ids, sign: int) -> None:
        np.bitwise_xor.at(self.words, ids // _WORD, np.uint64(1) << (ids % _WORD).astype(np.uint64))
        for level, shift in zip(self.levels, _SHIFTS, strict=True):
            np.add.at(level, ids >> shift, np.int32(sign))
        self.count += sign * ids.size

    def __contains__(self, i: int) -> bool:
        return bool(self.words[i // _WORD] >> np.uint64(i % _WORD) & np.uint64(1))

    def select(self, ranks: Ids) -> Ids:
        """The members at these ranks, 0 being the smallest; in the order of the ranks."""
        blocks, middles, tops = self.levels
        ends = np.cumsum(tops, dtype=np.int64)
        at = np.searchsorted(ends, ranks, side="right")
        rest = ranks - (ends[at] - tops[at])
        at, rest = _descend(at, rest, middles.reshape(-1, _FAN).take(at, axis=0))
        at, rest = _descend(at, rest, blocks.reshape(-1, _FAN).take(at, axis=0))
        at, rest = _descend(at, rest, np.bitwise_count(self.words.reshape(-1, _FAN).take(at, axis=0)))
        words = self.words[at].view(np.uint8).reshape(-1, 8)
        byte, rest = _descend(at, rest, np.bitwise_count(words))
        return byte * 8 + _BIT_OF_BYTE[words[np.arange(rest.size), byte % 8], rest]

    def sample(
        self,
        k: int,
        random: Philox,
        *,
        admit: Callable[[Ids], NDArray[np.bool_]] | None = None,
        among: int | None = None,
    ) -> Ids:
        """k distinct members in ascending order, each choice of k as likely as any other.

        With `admit`, only members that it accepts are drawn: `among` of them, of which k is at most all.
        """
        if k == 0:
            return np.empty(0, dtype=np.int64)
        among = self.count if among is None else among
        most = 4 * k >= among
        found = np.empty(0, dtype=np.int64)
        block = -(-(k + 32) * self.count // among)
        for ranks in [shuffled(self.count, random)] if most else walk(self.count, random, block):
            if admit is None:
                found = np.concatenate([found, ranks])
            else:
                ids = self.select(ranks)
                found = np.concatenate([found, ids[admit(ids)]])
            if found.size >= k:
                break
        found = np.sort(found[:k])
        return self.select(found) if admit is None else found

    def all(self) -> Ids:
        """Every member, in ascending order."""
        return self.select(np.arange(self.count))

    def mask(self, size: int) -> NDArray[np.bool_]:
        """Which of the ids below `size` are members."""
        return np.unpackbits(self.words.view(np.uint8), count=size, bitorder="little").view(np.bool_)

    def check_valid(self) -> None:
        """Assert that the counts agree with the bits."""
        for level, counted in zip(self.levels, _count_up(self.words), strict=True):
            assert np.array_equal(level, counted), "a level disagrees with the bits"
        assert self.levels[-1].sum() == self.count, "the count disagrees with the bits"


def _count_up(words: NDArray[np.uint64]) -> list[NDArray[np.int32]]:
    levels, below = [], np.bitwise_count(words)
    for _ in _SHIFTS:
        below = below.reshape(-1, _FAN).sum(1, dtype=np.int32)
        levels.append(below)
    return levels


def _descend(parent: Ids, rest: Ids, counts: NDArray[np.integer]) -> tuple[Ids, Ids]:
    """Among each parent's children, the one under which its rest-th member lies, and the rank there."""
    ends = np.cumsum(counts, axis=1, dtype=np.int32)
    child = np.argmin(ends <= rest[:, None], axis=1)
    row = np.arange(rest.size)
    return parent * counts.shape[1] + child, rest - (ends[row, child] - counts[row, child])
