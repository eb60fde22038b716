"""The paper's review rule: SM-2, exact, for whole arrays of examples at once.

    Δ(q) = 0.1 − (5 − q)(0.08 + 0.02(5 − q))
    E    ← max(1.3, E + Δ(q))
    n    ← n + 1,  or 0 where q < 3
    I    ← 1 (n = 1),  6 (n = 2),  ⌈I·E⌉ (n > 2),  or 1 where q < 3
    d    ← t + I

Ease is held in hundredths, in integers. Every Δ(q) is a whole number of hundredths, so nothing is ever
rounded, and ⌈I·E⌉ is taken in integers too: ⌈10·2.7⌉ is 27, where floats say 28. ⌈I·E⌉ takes the interval
from before this review and the ease from after it: an example that is always recalled walks 1, 6, 17, 50, …

Nothing wraps. Ease, repetitions and interval stop at the bounds below, which fit the columns that hold them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

INITIAL_EASE = 250
MIN_EASE = 130
MAX_EASE = 2**15 - 1
MAX_REPETITIONS = 2**15 - 1
# Half of what a due step can hold: a clock below MAX_STEP plus an interval never exceeds MAX_DUE, so the
# order in which examples fall due is never lost to saturation.
MAX_INTERVAL = 2**30
MAX_STEP = 2**30 - 1
MAX_DUE = 2**31 - 1

PASSING = 3
DELTA = np.array([-80, -54, -32, -14, 0, 10], dtype=np.int64)

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def review(
    ease: ArrayLike,
    repetitions: ArrayLike,
    interval: ArrayLike,
    quality: ArrayLike,
    *,
    min_ease: int = MIN_EASE,
    max_interval: int | None = None,
) -> Columns:
    """(ease, repetitions, interval) after a review of the given quality; ease in hundredths."""
    q = np.asarray(quality, dtype=np.int64)
    passed = q >= PASSING
    e = np.clip(np.asarray(ease, dtype=np.int64) + DELTA[q], min_ease, MAX_EASE)
    n = np.where(passed, np.minimum(np.asarray(repetitions, dtype=np.int64) + 1, MAX_REPETITIONS), 0)
    grown = (np.asarray(interval, dtype=np.int64) * e + 99) // 100
    i = np.where(n > 2, grown, np.where(n == 2, 6, 1))
    return e, n, np.minimum(i, longest(max_interval))


def due(step: int, interval: ArrayLike) -> NDArray[np.int64]:
    """d = t + I, the step at which an example reviewed at `step` falls due."""
    return np.minimum(step + np.asarray(interval, dtype=np.int64), MAX_DUE)


def longest(max_interval: int | None) -> int:
    """The longest interval that is handed out: the caller's cap, or where ours saturates."""
    return MAX_INTERVAL if max_interval is None else min(max_interval, MAX_INTERVAL)
