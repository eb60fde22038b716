"""What is carried from one update to the next: the state of the examples that there were, in its place in a new one.

All examples of the past are old by now. Whoever was waited for, asked and not yet drawn, is asked no more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srt_peft.review import decks
from srt_peft.review.files import Columns
from srt_peft.review.rows import ROW


def carry(columns: Columns, past: Columns) -> None:
    """Make the first rows what they were, set the clock, and keep what was measured of the decks."""
    n = past["due"].size
    columns["clock"][0] = past["clock"][0]
    for name in columns.keys() & past.keys() & {*ROW, "reference", "prefix"}:
        columns[name][:n] = past[name]
    columns["before"][:n] = past["visits"]
    for name in columns.keys() & past.keys() & {"reviews", "forgetting"}:
        columns[name][: past[name].size] = past[name]
    if "known" in columns and "reference" in columns:
        columns["known"][:] = decks.means(columns["deck"][:n], columns["reference"][:n], columns["known"].size)


def promoted(columns: Columns, n_old: int) -> NDArray[np.float32]:
    """The reference of each example once all are old: of those that were new, what they were known by at the end.

    The base had not learned them, so against it they would never be seen to be forgotten.
    """
    signal = np.where(np.isfinite(columns["signal"]), columns["signal"], np.float32(np.nan)).astype(np.float32)
    reference = columns["reference"].copy() if "reference" in columns else np.full_like(signal, np.nan)
    reference[n_old:] = np.fmin(reference[n_old:], signal[n_old:])
    return reference
