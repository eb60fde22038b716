"""What a signal means: how well the example is known, what it and its deck have lost, and what a review writes.

A signal is held against the example's reference: its best signal so far, or, of an old example with `reference: base`,
what that pass found. Whom the pass left out, as it was a sample or came too late, is read by perplexity at first, and
tells of its deck by the mean reference of it. Where there is no such mean, as of first tokens, its first signal becomes
its reference, of the same kind as what is held against it later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.review import decks, recall, sm2
from srt_peft.review.chance import Ids
from srt_peft.review.options import Options, hundredths
from srt_peft.review.rows import MAX_VISITS
from srt_peft.review.state import ReviewState

Signals = NDArray[np.float32]
Written = tuple[str, Ids | slice, NDArray[Any]]
"""A column, where it is written, and with what."""


class Reading:
    """The options' way to read a signal, beside the references that the state keeps."""

    def __init__(self, options: Options, state: ReviewState, rule: Callable[..., sm2.Columns]) -> None:
        self.options, self.state, self.rule = options, state, rule
        self.thresholds = options.thresholds
        if options.recall == "quantile":
            self.thresholds = recall.at_quantiles(state.columns["reference"][: state.n_old])
        self.primed = self._primed()
        """Whether references are there, where they are not learned on the way: a pass over all, and so made once."""

    def _primed(self) -> bool:
        options, columns, n_old = self.options, self.state.columns, self.state.n_old
        if not options.refers or options.reference == "best" or self.state.step > 0:
            return True
        there = columns["reference"][:n_old][columns["suspended"][:n_old] == 0]
        return not there.size or not bool(np.isnan(there).all())

    def quality(self, rows: Ids, signal: Signals, column: str = "reference") -> NDArray[np.int64]:
        """q of each."""
        reference = self._reference(rows, column)
        return recall.read(self.options.recall, signal, reference, self.thresholds, self.options.alpha)

    @property
    def asks(self) -> str:
        """The column that a quiz's signal is held against: where it asks first tokens only, theirs."""
        return "reference" if self.options.quiz_tokens is None else "prefix"

    def _reference(self, rows: Ids, column: str = "reference") -> Signals:
        """What each one's signal is held against; NaN where there is nothing."""
        columns = self.state.columns
        return columns[column][rows] if column in columns else np.full(rows.size, np.nan, dtype=np.float32)

    def lost(self, rows: Ids, signal: Signals, column: str = "reference") -> NDArray[np.float64]:
        """log(PPL_now / PPL_reference) of each, infinitely much of who could not be scored.

        Who has no reference is held against the mean of its deck's, and is NaN where there is none.
        """
        reference, signal = self._known(rows, column), signal.astype(np.float64)
        return np.where(np.isfinite(signal), signal - reference, np.inf)

    def _known(self, rows: Ids, column: str) -> NDArray[np.float64]:
        """The reference of each, or else the mean of its deck's; NaN where there is neither."""
        reference = self._reference(rows, column).astype(np.float64)
        if "known" in self.state.columns and column == "reference":
            known = self.state.columns["known"][self.state.columns["deck"][rows]]
            reference = np.where(np.isnan(reference), known, reference)
        return reference

    def after(self, step: int, rows: Ids, signal: Signals, quality: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The columns of these rows, once they are reviewed."""
        columns = self.state.columns
        ease, repetitions, interval = self.rule(
            columns["ease"][rows],
            columns["repetitions"][rows],
            columns["interval"][rows],
            quality,
            min_ease=hundredths(self.options.min_ease),
            max_interval=self.options.max_interval,
        )
        return {
            "ease": ease,
            "repetitions": repetitions,
            "interval": interval,
            "due": sm2.due(step, interval),
            "signal": np.where(np.isfinite(signal), signal, np.float32(np.inf)),
            "visits": np.minimum(columns["visits"][rows].astype(np.int64) + 1, MAX_VISITS),
        }

    def best(self, column: str, rows: Ids, signal: Signals) -> list[Written]:
        """The best so far, where that is what a signal is held against; old examples may have the base's instead.

        An old one that the base did not score is held against its first signal, unless its deck's mean serves.
        """
        if column not in self.state.columns:
            return []
        if self.options.reference == "base":
            own = (rows >= self.state.n_old) | self._alone(rows, column)
            rows, signal = rows[own], signal[own]
        best = np.fmin(self.state.columns[column][rows], np.where(np.isfinite(signal), signal, np.float32(np.nan)))
        return [(column, rows, best)]

    def _alone(self, rows: Ids, column: str) -> NDArray[np.bool_]:
        """Who has nothing to be held against. Quantiles are of what the base said: nothing is added to it."""
        if column == "reference" and self.options.recall == "quantile":
            return np.zeros(rows.size, dtype=bool)
        return np.isnan(self._known(rows, column))

    def measured(self, rows: Ids, lost: NDArray[np.float64]) -> list[Written]:
        """What each deck has lost, after these reviews of old examples."""
        columns = self.state.columns
        if "deck" not in columns:
            return []
        reviews, forgetting = decks.measured(columns["reviews"], columns["forgetting"], columns["deck"][rows], lost)
        return [("reviews", slice(None), reviews), ("forgetting", slice(None), forgetting)]

    def prime(self, rows: Ids, signal: Signals, prefix: Signals | None) -> None:
        """Write the signals of a scoring pass, as what was seen last and as references."""
        columns, n_old = self.state.columns, self.state.n_old
        columns["signal"][rows] = np.where(np.isfinite(signal), signal, np.float32(np.inf))
        for name, values in (("reference", signal), ("prefix", prefix)):
            if name in columns and values is not None:
                columns[name][rows] = np.where(np.isfinite(values), values, np.float32(np.nan))
        if "known" in columns and "reference" in columns:
            deck, reference = columns["deck"][:n_old], columns["reference"][:n_old]
            columns["known"][:] = decks.means(deck, reference, columns["known"].size)
