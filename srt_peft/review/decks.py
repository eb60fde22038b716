"""Decks: examples of one source (a file, a topic, a corpus) as a group, and how the old slots are shared among them.

    share of deck g    (1 − floor)·f̂_g / Σf̂ + floor·n_g / Σn         auto: by what each was found to have lost
                       √n_g / Σ√n,   1 / G                           sqrt, equal: static, without any measurement

    f_g    a running mean of log(PPL_now / PPL_reference) over the deck's own reviews: the plain mean of its first 20,
           after which each review counts for a twentieth
    f̂_g    f_g, drawn towards the mean f of all decks as if that were PRIOR reviews more; 0.001 at least, so that
           nothing is ever divided by nothing

What a few reviews have said may be of the first steps, when nothing was lost yet. Taken as it is, such a deck would
hardly be drawn again, and so never be seen to forget: a measurement that decides who is measured must not trust itself.

It asks for no forward pass: the reviews are those of the training batches, or of the quiz, where there is one. What it
makes small is the forgetting of the mean and of the worst deck, and not of the mean example: a large deck that holds
gets less than its size.

A tiny deck that goes on forgetting would be drilled to death. So, while others have examples to give, none gets more
than `MOST` times its share of the pool, nor more than lets its examples rest for `REST` steps between visits; its
share of the pool it always gets. What a deck cannot use goes to the others, in proportion.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import OptionError

FEW, WEIGHT = 20, 0.05
LEAST = 1e-3
PRIOR, MEMORY = 10.0, 40
"""How many reviews the mean of all decks counts for in each, and how many of its own at most: f forgets older ones."""
MOST, REST = 10.0, 8
LIMIT = 2**16

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def deck_of(given: ArrayLike, rows: int) -> NDArray[np.uint16]:
    """The deck of each example as it is stored, or an OptionError."""
    array = np.asarray(given)
    fits = (array.dtype.kind in "iu" or not rows) and array.shape == (rows,)
    if not fits or (rows and not (array.min() >= 0 and array.max() < LIMIT)):
        what = f"{array.dtype} of shape {array.shape}"
        held = f"{what}, from {array.min()} to {array.max()}" if fits else what
        fault = f"deck is {held}: expected a whole number from 0 to {LIMIT - 1} for each of the {rows} examples"
        raise OptionError("the review state", [fault])
    return array.astype(np.uint16)


# --- what each deck has lost ----------------------------------------------------------------------------------------


def measured(reviews: Counts, forgetting: Floats, deck: NDArray[np.integer], lost: Floats) -> tuple[Counts, Floats]:
    """(reviews, forgetting) of each deck after one step's reviews, in whatever order these are given."""
    told = np.isfinite(lost)
    deck, lost = deck[told], lost[told]
    new = np.bincount(deck, minlength=reviews.size)
    total = np.bincount(deck, weights=lost, minlength=reviews.size)
    weight = np.where(reviews < FEW, new / np.maximum(reviews + new, 1), 1 - (1 - WEIGHT) ** new)
    mean = total / np.maximum(new, 1)
    return reviews + new, np.where(new > 0, forgetting + weight * (mean - forgetting), forgetting)


def means(deck: NDArray[np.integer], reference: NDArray[np.floating], count: int) -> Floats:
    """The mean reference of each deck; NaN where none of its examples has one."""
    told = np.isfinite(reference)
    number = np.bincount(deck[told], minlength=count)
    total = np.bincount(deck[told], weights=reference[told], minlength=count)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


# --- how the slots are shared ---------------------------------------------------------------------------------------


def believed(reviews: Counts, forgetting: Floats) -> Floats:
    """f̂ of each deck: the fewer of its reviews have told, the more it is what all decks have lost."""
    weight = np.minimum(reviews, MEMORY).astype(np.float64)
    mean = (weight * forgetting).sum() / max(weight.sum(), 1.0)
    found: Floats = (weight * forgetting + PRIOR * mean) / (weight + PRIOR)
    return found


def shares(kind: str, reviews: Counts, forgetting: Floats, sizes: Counts, floor: float) -> Floats:
    """The share of each deck: they add up to 1, and an empty deck has none."""
    there = sizes > 0
    if kind == "sqrt":
        weight = np.sqrt(sizes)
    elif kind == "equal":
        weight = there.astype(np.float64)
    else:
        lost = np.where(there, np.maximum(believed(reviews, forgetting), LEAST), 0.0)
        return (1 - floor) * _part(lost) + floor * _part(sizes.astype(np.float64))
    return _part(weight)


def wanted(k: int, share: Floats, sizes: Counts) -> Floats:
    """How many of k slots each deck is to have in the mean, once none has more than is good for it."""
    even = k * _part(sizes.astype(np.float64))
    return _poured(float(k), share, np.maximum(even, np.minimum(MOST * even, sizes / REST)))


def slots(k: int, wish: Floats, available: Counts, chance: float) -> Counts:
    """k slots in whole numbers, or as many as there are examples: each deck its wish, rounded up or down by chance.

    One number from 0 to 1 rounds for all decks, so that they add up; over many steps each deck gets its wish.
    """
    room = available.astype(np.float64)
    mean = _poured(float(min(k, available.sum())), wish + 1e-12 * room, room)
    ends = np.floor(np.cumsum(mean) + chance + 1e-9).astype(np.int64)
    given = np.minimum(np.diff(ends, prepend=np.int64(np.floor(chance + 1e-9))), available)
    for g in np.argsort(given - mean, kind="stable"):  # rounding leaves one slot or so to whoever is the furthest below
        more = min(k, int(available.sum())) - int(given.sum())
        if more == 0:
            break
        given[g] = np.clip(given[g] + more, 0, available[g])
    return given


def _poured(total: float, share: Floats, most: Floats) -> Floats:
    """`total` shared out in proportion, none getting more than its most; what that leaves goes to the others."""
    got, open_ = np.zeros(share.size), share > 0
    for _ in range(share.size):
        left = total - got.sum()
        if left <= 1e-12 or not open_.any():
            break
        more = np.where(open_, left * _part(np.where(open_, share, 0.0)), 0.0)
        full = open_ & (got + more >= most)
        if not full.any():
            return got + more
        got = np.where(full, most, got)
        open_ &= ~full
    return got


def _part(weight: NDArray[np.floating]) -> Floats:
    total = weight.sum()
    return weight / total if total > 0 else np.zeros(weight.size)
