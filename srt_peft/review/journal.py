"""The review log in one pass and in bounded memory: what was recalled, how often, and after how long.

A log of 1e8 reviews is larger than most memories, so it is read a part at a time. What a part needs to know of the
parts before it is a few numbers for each example: when it was last reviewed, and what it scored then.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.errors import DamagedError
from srt_peft.review import ReviewLog
from srt_peft.review.log import NOBODY

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MOST_WINDOWS = 240
"""Points of a curve over the steps: a page is 1,000 pixels wide, and a thumb 400."""
_BINS = 32  # of 2**k to 2**(k+1) - 1 steps; a step is less than 2**31


@dataclass(frozen=True)
class Windows:
    """Steps in windows of equal width, so that a run of any length is a curve of at most MOST_WINDOWS points."""

    first: int
    last: int

    @property
    def width(self) -> int:
        """Steps of one window."""
        return -(-(self.last - self.first + 1) // MOST_WINDOWS)

    @property
    def count(self) -> int:
        """How many there are; the last may be cut short."""
        return (self.last - self.first) // self.width + 1

    @property
    def middle(self) -> Floats:
        """The step in the middle of each."""
        start = self.first + self.width * np.arange(self.count)
        return (start + np.minimum(start + self.width - 1, self.last)) / 2

    @property
    def steps(self) -> Counts:
        """How many steps are in each."""
        start = self.first + self.width * np.arange(self.count)
        return np.minimum(start + self.width, self.last + 1) - start

    def of(self, steps: NDArray[Any]) -> Counts:
        """Which window each step is in."""
        index: Counts = (np.asarray(steps, dtype=np.int64) - self.first) // self.width
        return index


@dataclass(frozen=True)
class Journal:
    """What the log says. Arrays have a row a window, and a column a pool (0 old, 1 new)."""

    windows: Windows
    quality: Counts
    """[window, pool, q]: reviews of that quality."""
    nll: Floats
    """[window, pool]: the mean signal of what was trained on, NaN where nothing was."""
    first: Counts
    """[window, pool]: examples that were reviewed for the first time."""
    lag: Counts
    """[pool, k]: reviews that came 2**k to 2**(k+1) - 1 steps after the one before."""
    signal: Floats
    """[2, pool, k]: the mean of their signals, and its standard error."""
    change: Floats
    """[2, pool, k]: the same of what changed since the review before."""
    lapses: NDArray[np.int32]
    """Of each example."""
    untrained: int
    """Reviews of a quiz: asked, passed, and not trained on."""

    @property
    def reviews(self) -> Counts:
        """[window, pool]."""
        total: Counts = self.quality.sum(axis=2)
        return total


def read_journal(*paths: Path, examples: int, before: int | None = None, most: int = 1 << 20) -> Journal | None:
    """The log of a run over so many examples, `most` reviews at a time, or None where nothing was reviewed yet.

    Of several logs each goes on where the one before ended. `before` leaves out the reviews of that step and of later
    ones, which a state of that step does not have.
    """
    with ExitStack() as stack:
        logs = [log for log in (stack.enter_context(ReviewLog(path)) for path in paths) if len(log)]
        if not logs:
            return None
        first, last = (int(next(log.parts(at))["step"][0]) for log, at in ((logs[0], 0), (logs[-1], len(logs[-1]) - 1)))
        if before is not None:
            last = min(last, before - 1)
        if last < first:
            return None
        pass_ = _Pass(Windows(first, last), examples)
        for log in logs:
            for part in log.parts(most=most):
                pass_.enter(part, log.path)
        return pass_.result()


class _Pass:
    """The sums so far, and what is known of each example."""

    def __init__(self, windows: Windows, examples: int) -> None:
        self.windows = windows
        self.quality = np.zeros((windows.count, 2, 6), dtype=np.int64)
        self.nll = np.zeros((2, windows.count, 2))  # how many are finite, and their sum
        self.first = np.zeros((windows.count, 2), dtype=np.int64)
        self.curves = np.zeros((2, 3, 2, _BINS))  # of signal and change: count, sum and sum of squares
        self.seen = np.full(examples, -1, dtype=np.int32)
        self.before = np.full(examples, np.nan, dtype=np.float32)
        self.lapses = np.zeros(examples, dtype=np.int32)
        self.untrained = 0

    def enter(self, part: NDArray[Any], path: Path) -> None:
        """Add a part of the log, once its reviews can be those of these examples."""
        drawn = part[part["id"] != NOBODY]
        if drawn.size and (
            drawn["id"].max() >= self.seen.size
            or drawn["id"].min() < 0
            or drawn["quality"].max() > 5
            or drawn["pool"].max() > 1
            or self.windows.of(drawn["step"][[0, -1]]).min() < 0
        ):
            raise DamagedError(f"{path} is no log of this run: it has reviews that none of its examples can have.")
        drawn = drawn[drawn["step"] <= self.windows.last]  # what a running run has added meanwhile can wait
        if drawn.size:
            self.take(drawn)

    def take(self, part: NDArray[Any]) -> None:
        """Add a part of the log, whose steps follow those of the parts before."""
        window, pool = self.windows.of(part["step"]), part["pool"].astype(np.int64)
        np.add.at(self.quality, (window, pool, part["quality"]), 1)
        self.untrained += int(np.count_nonzero(part["untrained"]))
        told = np.isfinite(part["signal"]) & (part["untrained"] == 0)  # those of a quiz would all be low
        for sums, weights in zip(self.nll, (told, np.where(told, part["signal"], 0.0)), strict=True):
            np.add.at(sums, (window, pool), weights)
        np.add.at(self.lapses, part["id"][part["quality"] < 3], 1)

        order = np.argsort(part["id"], kind="stable")
        ids, steps, signals = part["id"][order], part["step"][order], part["signal"][order]
        head = np.append(True, ids[1:] != ids[:-1])
        last, before = np.roll(steps, 1), np.roll(signals, 1)
        last[head], before[head] = self.seen[ids[head]], self.before[ids[head]]
        again = last >= 0
        np.add.at(self.first, (window[order][~again], pool[order][~again]), 1)
        tail = np.append(head[1:], True)
        self.seen[ids[tail]], self.before[ids[tail]] = steps[tail], signals[tail]

        lag = np.maximum(steps[again].astype(np.int64) - last[again], 1)
        place = (pool[order][again], np.log2(lag).astype(np.int64))
        now = signals[again].astype(np.float64)
        with np.errstate(invalid="ignore"):  # ∞ − ∞, of a signal that was not finite twice
            change = now - before[again]
        for sums, values in zip(self.curves, (now, change), strict=True):
            good = np.isfinite(values)
            where = tuple(index[good] for index in place)
            for power, into in enumerate(sums):
                np.add.at(into, where, values[good] ** power)

    def result(self) -> Journal:
        """The means."""
        count, total = self.nll
        with np.errstate(invalid="ignore"):
            nll = total / count
        signal, change = (_mean_and_error(*sums) for sums in self.curves)
        lag = self.curves[0, 0].astype(np.int64)
        return Journal(self.windows, self.quality, nll, self.first, lag, signal, change, self.lapses, self.untrained)


def _mean_and_error(count: Floats, total: Floats, squares: Floats) -> Floats:
    """The mean and its standard error, NaN where there are too few."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
        variance = np.maximum(squares / count - mean**2, 0) * count / (count - 1)
        return np.stack([mean, np.sqrt(variance / count)])
