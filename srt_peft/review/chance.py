"""Chance as a pure function: of the seed, the step and the pool, and of nothing that happened before.

Random numbers are the raw 64-bit outputs of Philox, a counter-based generator whose stream NumPy promises to
keep; nothing here goes through NumPy's `Generator`, whose methods may change between releases.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def bits(seed: int, step: int, pool: int, part: int = 0) -> Philox:
    """The random bits of one pool's part of one step's draw; a pool may have parts of its own."""
    return Philox(key=np.array([seed, step], dtype=np.uint64), counter=[0, 0, part, pool])


def uniform(count: int, random: Philox) -> NDArray[np.float64]:
    """Numbers from 0 to below 1."""
    return np.asarray((random.random_raw(count) >> np.uint64(11)) * 2.0**-53)


def shuffled(n: int, random: Philox) -> Ids:
    """0..n-1 in random order."""
    order: Ids = np.argsort(random.random_raw(n), kind="stable")
    return order


def walk(n: int, random: Philox, block: int) -> Iterator[Ids]:
    """0..n-1 in random order without end in sight: blocks of numbers that did not come before.

    For taking few of many; it never ends by itself, and grows slow as the last numbers are sought.
    """
    seen = np.empty(0, dtype=np.int64)
    while True:
        numbers = (uniform(block, random) * n).astype(np.int64)
        everything = np.concatenate([seen, numbers])
        if not _distinct(everything):
            everything = everything[np.sort(np.unique(everything, return_index=True)[1])]
        numbers, seen = everything[seen.size :], everything
        yield numbers


def _distinct(numbers: Ids) -> bool:
    ordered = np.sort(numbers)
    return bool(np.all(ordered[1:] != ordered[:-1]))


# --- a fixed shuffle of ids ---------------------------------------------------------------------------------

_MULTIPLY = (0x7FEB352D, 0x846CA68B)
_UNDO = tuple(pow(m, -1, 2**32) for m in _MULTIPLY)


def tag(ids: Ids, seed: int) -> NDArray[np.uint64]:
    """A 32-bit tag for each id, by which ties are broken: random to the eye, and no two ids share one."""
    x = (ids.astype(np.uint32) + np.uint32(seed & 0xFFFFFFFF)) ^ np.uint32(seed >> 32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(_MULTIPLY[0])
    x = (x ^ (x >> np.uint32(15))) * np.uint32(_MULTIPLY[1])
    return (x ^ (x >> np.uint32(16))).astype(np.uint64)


def untag(tags: NDArray[np.uint64], seed: int) -> Ids:
    """The ids behind tags: each step of `tag` can be undone, so tags can be sorted and turned back."""
    x = tags.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(_UNDO[1])
    x = (x ^ (x >> np.uint32(15)) ^ (x >> np.uint32(30))) * np.uint32(_UNDO[0])
    x = x ^ (x >> np.uint32(16))
    ids: NDArray[np.uint32] = (x ^ np.uint32(seed >> 32)) - np.uint32(seed & 0xFFFFFFFF)
    return ids.astype(np.int64)


def by_due(ids: Ids, due: NDArray[np.integer], seed: int) -> NDArray[np.uint64]:
    """Numbers that sort as (due, tag) does, from which `untag` finds the ids again: a sort without an argsort."""
    return (due[ids].astype(np.uint64) << np.uint64(32)) | tag(ids, seed)
