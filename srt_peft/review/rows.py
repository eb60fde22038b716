"""What is known about an example: the columns of a row, a fresh row, and the rules that each row keeps.

column        bytes  meaning
due             4    d: the step from which the example may be drawn again
interval        4    I: steps between its last review and d
signal          4    its last mean NLL in nats (float); NaN until there is one
ease            2    E in hundredths
repetitions     2    n: reviews recalled in a row
visits          2    reviews in all, saturating
suspended       1    in the state, but never due: 1 by request, 2 superseded by another example, 3 both
identity       16    optional: a hash of the example's content, so that state can follow it elsewhere
reference       4    optional: the NLL that its signal is held against (float); NaN until there is one
prefix          4    optional: the same of its first tokens, where a quiz asks only these
deck            2    optional: the group that it is scheduled with
before          2    optional: its visits in the updates before this one

and once, not an example:

clock           8    t, the step whose draw comes next
reviews         8    a deck's measured reviews in all
forgetting      8    f: what a deck has lost, in nats (float)
known           8    a deck's mean reference, for those of its examples that have none (float); NaN without any
asked           8    the ids that were asked and wait to be drawn; -1 where there is none
lost            8    what each of these was found to have lost, in nats (float)
"""

from __future__ import annotations

from collections.abc import Mapping

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
NOBODY = -1
BY_REQUEST, SUPERSEDED = 1, 2


_EXTRAS: dict[str, dict[str, str]] = {
    "reference": {"reference": "<f4"},
    "prefix": {"prefix": "<f4"},
    "before": {"before": "<i2"},
    "decks": {"deck": "<u2", "reviews": "<i8", "forgetting": "<f8", "known": "<f8"},
    "asked": {"asked": "<i8", "lost": "<f8"},
}
"""What a state may hold besides, each with its columns. Those of a row are `_A_ROW`; of the others there are as many
as the extra says: `decks` how many, `asked` how many at most."""
_A_ROW = ("reference", "prefix", "deck", "before")
ONCE = ("clock", "reviews", "forgetting", "known", "asked", "lost")
Extras = Mapping[str, int]


def layout(rows: int, *, identity: bool, extras: Extras) -> Layout:
    """The columns file of a state with so many rows. Wide columns come first, so that each is aligned."""
    table: Layout = {"clock": (np.dtype("<i8"), (1,))}
    if identity:
        table["identity"] = (np.dtype("<u1"), (rows, IDENTITY_BYTES))
    more = {
        name: (np.dtype(code), (rows if name in _A_ROW else extras[extra],))
        for extra, columns in _EXTRAS.items()
        if extras.get(extra)
        for name, code in columns.items()
    }
    own = {name: (np.dtype(code), (rows,)) for name, code in ROW.items()}
    wide = {name: kind for name, kind in more.items() if name not in _A_ROW}
    return table | wide | own | {name: kind for name, kind in more.items() if name in _A_ROW}


def extras_of(columns: Columns) -> dict[str, int]:
    """What these columns hold besides."""
    found = {name: 1 for name in ("reference", "prefix", "before") if name in columns}
    counted = {"decks": "reviews", "asked": "asked"}
    return found | {extra: int(columns[name].size) for extra, name in counted.items() if name in columns}


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
        for name in columns.keys() & {"reference", "prefix"}:
            columns[name][at] = np.nan


def begin_extras(columns: Columns) -> None:
    """Nothing was measured of any deck, and nobody is asked."""
    for name in columns.keys() & {"known", "lost"}:
        columns[name][:] = np.nan
    if "asked" in columns:
        columns["asked"][:] = NOBODY


def waits(columns: Columns) -> NDArray[np.bool_]:
    """Which places of `asked` hold somebody who waits to be drawn, and was not set aside since."""
    asked = columns.get("asked", np.empty(0, dtype=np.int64))
    there = asked >= 0
    there[there] = columns["suspended"][asked[there]] == 0
    return there


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
        "suspended is 0 to 3": c["suspended"] > (BY_REQUEST | SUPERSEDED),
    }
