"""What is known about an example: the columns of a row, a fresh row, and the rules that each row keeps.

column        bytes  meaning
due             4    d: the step from which the example may be drawn again
interval        4    I: steps between its last review and d
signal          4    its last mean NLL in nats (float); NaN until there is one
ease            2    E in hundredths
repetitions     2    n: reviews recalled in a row
visits          2    reviews in all, saturating
suspended       1    1: in the state, but never due
identity       16    optional: a hash of the example's content, so that state can follow it elsewhere
clock           8    once, not an example: t, the step whose draw comes next
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import OptionError
from srt_peft.review import files, sm2
from srt_peft.review.files import Columns, Layout
from srt_peft.review.options import hundredths

ROW = {
    "due": "<i4",
    "interval": "<i4",
    "signal": "<f4",
    "ease": "<i2",
    "repetitions": "<i2",
    "visits": "<i2",
    "suspended": "<u1",
}
IDENTITY_BYTES = 16
MAX_VISITS = 2**15 - 1


def layout(rows: int, *, identity: bool) -> Layout:
    """The columns file of a state with so many rows. Wide columns come first, so that each is aligned."""
    table: Layout = {"clock": (np.dtype("<i8"), (1,))}
    if identity:
        table["identity"] = (np.dtype("<u1"), (rows, IDENTITY_BYTES))
    return table | {name: (np.dtype(code), (rows,)) for name, code in ROW.items()}


def zeros(table: Layout) -> Columns:
    """Columns in memory, all zeros."""
    return {name: np.zeros(shape, dtype) for name, (dtype, shape) in table.items()}


def begin(columns: Columns, rows: slice, initial_ease: float, stagger: int) -> None:
    """Make fresh rows: never seen, first due within the next `stagger` steps, dealt out in turn."""
    for part in files.chunks(rows.stop - rows.start):
        at = slice(rows.start + part.start, rows.start + part.stop)
        columns["due"][at] = columns["clock"][0] + np.arange(part.start, part.stop) % stagger
        columns["interval"][at] = 1
        columns["signal"][at] = np.nan
        columns["ease"][at] = hundredths(initial_ease)
        for name in ("repetitions", "visits", "suspended"):
            columns[name][at] = 0


def identities(hashes: ArrayLike, rows: int) -> NDArray[np.uint8]:
    """Content hashes as they are stored, or an OptionError."""
    array = np.asarray(hashes)
    if array.dtype != np.uint8 or array.shape != (rows, IDENTITY_BYTES):
        fault = f"identity is {array.dtype} of shape {array.shape}: expected uint8 of shape ({rows}, {IDENTITY_BYTES})"
        raise OptionError("the review state", [fault])
    return array


def broken(c: Columns, step: int) -> dict[str, NDArray[np.bool_]]:
    """For each rule, which rows break it."""
    due, interval, visits = (c[name].astype(np.int64) for name in ("due", "interval", "visits"))
    return {
        "ease is at least 1.00": c["ease"] < 100,
        "the interval lies between 1 and 2**30": (interval < 1) | (interval > sm2.MAX_INTERVAL),
        "repetitions lie between 0 and the visits": (c["repetitions"] < 0) | (c["repetitions"] > visits),
        "visits are not negative": visits < 0,
        "due is not negative": due < 0,
        "what was reviewed is due one interval after a step that has passed": (visits > 0) & (due - interval >= step),
        "what was reviewed has a signal": (visits > 0) & np.isnan(c["signal"]),
        "suspended is 0 or 1": c["suspended"] > 1,
    }
