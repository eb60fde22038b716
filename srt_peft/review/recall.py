"""How well an example was recalled: a signal from the model -> a quality 0..5.

    q = max(0, 5 − Σₖ 1[PPL ≥ τₖ])         the paper, over its five thresholds τ5 < τ4 < … < τ1

    absolute    of PPL itself
    relative    of log(PPL / PPL_reference), the same example's: what it has lost, whatever its length and its words
    quantile    of PPL, the thresholds being quantiles of the references of the old pool
    confidence  of the correct class's probability, for classifiers

The signal is always the example's mean negative log-likelihood in nats: a token's for a language model, the
correct class's (its cross-entropy) for a classifier. Perplexity is exp(NLL), the probability of the correct
class is exp(−NLL). A signal that is not a finite number is no recall at all: q = 0.

A reference is the example's own signal at a time when it was known: before the update, or at its best so far.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The paper gives τ5 = 50 and τ1 = 5000 only; between them the steps are geometric: 158.1, 500, 1581.1.
PERPLEXITY = tuple(50.0 * 100.0 ** (k / 4) for k in range(5))
# The paper names no thresholds for classifiers. Ours are odds of 1:9, 1:3, 1:1, 3:1 and 9:1 for the correct
# class, evenly spaced in log-odds. A pass (q ≥ 3) then means p ≥ ½: whatever the number of classes, no other
# class can be likelier.
CONFIDENCE = (0.1, 0.25, 0.5, 0.75, 0.9)
# Of log(PPL / PPL_reference), in nats a token: an example passes (q ≥ 3) until its perplexity has risen by 17 %.
CHANGE = (0.03, 0.08, 0.16, 0.30, 0.50)
# Half of the old pool is as well known as can be, and nine in ten pass, as the reference knew them.
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)

Quality = NDArray[np.int64]


def from_perplexity(ppl: ArrayLike, thresholds: Sequence[float] = PERPLEXITY, alpha: float = 1.0) -> Quality:
    """The paper's q: one point lost for each threshold, scaled by α, that the perplexity reaches."""
    values = np.asarray(ppl, dtype=np.float64)
    reached = np.searchsorted(alpha * np.asarray(thresholds, dtype=np.float64), values, side="right")
    return np.where(np.isfinite(values), 5 - reached, 0)


def from_nll(nll: ArrayLike, thresholds: Sequence[float] = PERPLEXITY, alpha: float = 1.0) -> Quality:
    """The paper's q from mean NLL in nats a token."""
    values = np.asarray(nll, dtype=np.float64)
    with np.errstate(over="ignore"):  # beyond e^709 perplexity is infinite, and so q is 0
        quality = from_perplexity(np.exp(values), thresholds, alpha)
    return np.where(np.isfinite(values), quality, 0)


def from_confidence(probability: ArrayLike, thresholds: Sequence[float] = CONFIDENCE) -> Quality:
    """q for a classifier: one point won for each threshold that the correct class's probability reaches."""
    values = np.asarray(probability, dtype=np.float64)
    reached = np.searchsorted(np.asarray(thresholds, dtype=np.float64), values, side="right")
    return np.where(np.isfinite(values), reached, 0)


def from_class_nll(nll: ArrayLike, thresholds: Sequence[float] = CONFIDENCE) -> Quality:
    """q for a classifier from its cross-entropy, −log p."""
    values = np.asarray(nll, dtype=np.float64)
    with np.errstate(over="ignore"):
        quality = from_confidence(np.exp(-values), thresholds)
    return np.where(np.isfinite(values), quality, 0)


def from_change(nll: ArrayLike, reference: ArrayLike, thresholds: Sequence[float] = CHANGE) -> Quality:
    """q of what was lost against a reference; who has none (NaN) is read by its perplexity, as the paper does."""
    values, before = np.asarray(nll, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # infinite less infinite is nothing that was recalled
        lost = values - before
    quality = 5 - np.searchsorted(np.asarray(thresholds, dtype=np.float64), lost, side="right")
    quality = np.where(np.isfinite(before), quality, from_nll(values))
    return np.where(np.isfinite(values), quality, 0)


def at_quantiles(reference: ArrayLike) -> tuple[float, ...]:
    """Thresholds of perplexity at the quantiles of these references; the paper's where there is none."""
    known = np.asarray(reference, dtype=np.float64)
    known = known[np.isfinite(known)]
    return tuple(np.exp(np.quantile(known, QUANTILES)).tolist()) if known.size else PERPLEXITY


THRESHOLDS = {"absolute": PERPLEXITY, "confidence": CONFIDENCE, "relative": CHANGE, "quantile": None}
"""The ways to read a signal, by the name that the option `recall` takes, and the thresholds of each."""


def read(
    recall: str, nll: ArrayLike, reference: ArrayLike, thresholds: Sequence[float] | None, alpha: float = 1.0
) -> Quality:
    """q of each signal, in the way that is asked for."""
    if recall == "relative":
        return from_change(nll, reference, thresholds or CHANGE)
    if recall == "confidence":
        return from_class_nll(nll, thresholds or CONFIDENCE)
    return from_nll(nll, thresholds or PERPLEXITY, alpha)
