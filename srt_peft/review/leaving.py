"""The review state without some of its examples: all others keep theirs, under the ids that they have then."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.files import Columns
from srt_peft.review.rows import NOBODY, ONCE
from srt_peft.review.state import ReviewState


def places(gone: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The id that each example has without those who leave, and -1 for these."""
    place = np.cumsum(~gone) - 1
    return np.where(gone, NOBODY, place).astype(np.int64)


def without(state: ReviewState, gone: NDArray[np.bool_], decks: NDArray[np.int64] | None = None) -> ReviewState:
    """The state without them, in memory. `decks` is the number that each deck has then, -1 where nobody is left."""
    place, theirs = places(gone), state.columns
    columns: Columns = {name: c.copy() if name in ONCE else c[~gone] for name, c in theirs.items()}
    if "asked" in columns:
        waiting = columns["asked"] >= 0
        columns["asked"][waiting] = place[columns["asked"][waiting]]
        columns["lost"][columns["asked"] < 0] = np.nan
    if "deck" in columns and decks is not None:
        columns["deck"] = decks[columns["deck"].astype(np.int64)].astype(columns["deck"].dtype)
        count = max(int(decks.max(initial=-1)) + 1, 1)
        there = decks[: theirs["reviews"].size] >= 0
        for name in ("reviews", "forgetting", "known"):
            moved = np.zeros(count, columns[name].dtype)
            moved[decks[: there.size][there]] = theirs[name][: there.size][there]
            columns[name] = moved
    return ReviewState(columns, int((~gone[: state.n_old]).sum()), folder=None, writer=None)
