"""Means of scores, and how far chance could have moved them: NumPy only, and the same for the same seed.

A sample holds what one split's n questions scored, a row a training (a seed of the same condition), a column a
question. Its mean is resampled as the paper does it: n questions drawn with replacement, 10,000 times; the standard
deviation of the resampled means is the spread over questions. Several samples (old and new) are resampled each by
itself, and the mean of their means is taken: what the paper's tables call combined. (Some of the deviations printed
there are those of one pool of old and new together, which adds the chance of how many of each come up. A set of
questions has as many of each as it was made with.)

Several trainings are the second level. Their means are resampled as well, k of k, and the deviations added:

    m* = (mean of n resampled questions) + sqrt(k / (k − 1)) · (mean of k resampled deviations of trainings)

where the root undoes what resampling k things does to their variance, (k − 1) / k. Resampling rows and columns of one
table at once would count each answer's own chance three times; this counts it twice, at most. Few trainings say little
of their own spread: where trainings differ much more than questions explain, an interval from two or three holds less
often than it says.

Intervals are percentiles of the resampled means. BCa would correct bias and skewness; a mean is unbiased, the mean of
some hundred bounded scores has hardly any skewness left, and where answers are 1 or 0 the correction would be taken
from ties. What percentiles get wrong is small samples, where they are too narrow: `verdict` widens them there.

Items that share a passage cluster. The paper resamples questions, and so do we.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

RESAMPLES = 10_000
LEVEL = 0.95
_CHUNK = 1 << 20
"""How many random numbers are held at a time: 8 MiB of them, about a processor's cache."""
_PATTERNS = 1 << 20
"""Up to how many patterns of signs a test counts all of them, rather than a sample."""
_MANY = 1 << 15
"""From how many values on the mean's own distribution may be used: resampling a million of them takes minutes."""
_WORK_OF_A_BINOMIAL = 32
"""A binomial count costs about as much as this many draws of an index."""


class Sample:
    """What the questions of one split scored: a row a training, a column a question; and the questions' weights."""

    def __init__(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        """One training's scores may come as a plain list; no weights means equal ones."""
        self.values: Array = np.atleast_2d(np.asarray(values, dtype=np.float64))
        weighing = np.ones(self.n) if weights is None else np.asarray(weights, dtype=np.float64)
        assert self.values.size, "a sample has at least one question"
        assert weighing.shape == (self.n,), "a weight a question"
        assert np.all(weighing > 0), "weights are positive"
        self.weights: Array = weighing / weighing.mean()

    @property
    def n(self) -> int:
        """How many questions there are."""
        return int(self.values.shape[1])

    @property
    def runs(self) -> Array:
        """The weighted mean of each training."""
        means: Array = (self.values * self.weights).mean(1)
        return means

    @property
    def items(self) -> Array:
        """Each question's score, in the mean over trainings."""
        means: Array = self.values.mean(0)
        return means

    def influence(self) -> Array:
        """Numbers, a row a training, whose plain means and variances are the weighted ones: w·(x − m) + m."""
        runs = self.runs[:, None]
        numbers: Array = self.weights * (self.values - runs) + runs
        return numbers


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard deviation and interval under resampling, and the trainings that it is made of."""

    mean: float
    sd: float
    low: float
    high: float
    n: int
    runs: tuple[float, ...]
    between: float | None
    """The standard deviation between trainings; None where there is one, and so nothing is known of it."""


def estimate(*samples: Sample, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The mean of these samples' means: `sd` is the spread over questions, the interval has that of trainings too."""
    random = Generator(Philox(seed))
    runs = np.mean([sample.runs for sample in samples], axis=0)
    draws = np.mean([resampled(s.items, s.weights, random, resamples) for s in samples], axis=0)
    sd = float(draws.std())
    k = len(runs)
    if k > 1:
        deviations = (runs - runs.mean()) * np.sqrt(k / (k - 1))
        draws = draws + random.multinomial(k, np.full(k, 1 / k), size=resamples) @ deviations / k
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(
        mean=float(runs.mean()),
        sd=sd,
        low=float(low),
        high=float(high),
        n=sum(sample.n for sample in samples),
        runs=tuple(runs.tolist()),
        between=float(runs.std(ddof=1)) if k > 1 else None,
    )


def resampled(values: Array, weights: Array, random: Generator, resamples: int) -> Array:
    """The means of so many resamples of these values.

    Where few values differ, as 1 and 0 do, how often each comes up is drawn: a binomial, or a multinomial. Else
    indices are, so many at a time that memory stays bounded; and of very many values, the normal that they tend to.
    """
    n = values.size
    means: Array = np.empty(resamples)
    distinct, counts = np.unique(values, return_counts=True)
    if distinct.size == 1:
        return np.full(resamples, distinct[0])
    if np.all(weights == weights[0]) and distinct.size <= max(3, n // _WORK_OF_A_BINOMIAL):
        for rows in _chunks(resamples, distinct.size):
            means[rows] = random.multinomial(n, counts / n, size=rows.stop - rows.start) @ distinct / n
        return means
    if limit := _normal(values, weights):
        return random.normal(*limit, size=resamples)
    weighed = weights * values
    for rows in _chunks(resamples, n):
        at = random.integers(0, n, size=(rows.stop - rows.start, n), dtype=np.int32)
        means[rows] = weighed[at].sum(1) / weights[at].sum(1)
    return means


def _normal(values: Array, weights: Array) -> tuple[float, float] | None:
    """The mean and deviation of resampled means where these are normal, closer than 10,000 resamples could show.

    Skewness γ of the values leaves γ/√n in the mean. At 0.01 the ends of the interval are off by 0.005 deviations,
    where chance in the resampling itself is worth 0.03.
    """
    n, mean = values.size, float(np.average(values, weights=weights))
    influence = weights * (values - mean) / weights.mean()
    sd = float(influence.std())
    skewness = float(np.mean((influence / sd) ** 3))
    return (mean, sd / math.sqrt(n)) if n >= _MANY and abs(skewness) < 0.01 * math.sqrt(n) else None


def paired_p(*differences: Sample, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """How often differences as large, either way, come up if each could as well have had the other sign.

    Were two models alike, a question's difference would be as likely d as −d. Equal questions say nothing. Equal
    magnitudes together are a binomial, so with 1 and 0 this is McNemar's test, by the binomial itself: exact. The
    mid-p variant has a little more power and now and then a higher level than it says; a test that holds its level
    is worth more here. Up to a million patterns of signs are counted one and all; of more, a sample of m is drawn,
    and p = (k + 1) / (m + 1), which holds the level as well.

    With several trainings the mean difference of each question is tested. p then speaks of these trainings, and not
    of others that could have been made; the interval does.
    """
    shares = np.concatenate([d.items * d.weights / d.n for d in differences])
    magnitudes, counts = np.unique(np.abs(shares[shares != 0]), return_counts=True)
    observed = abs(shares.sum()) - 1e-9 * np.abs(shares).sum()  # sums that are equal may differ in the last bit
    if np.log2(counts + 1.0).sum() <= np.log2(_PATTERNS):
        sums, chances = _every_sum(magnitudes, counts)
        return min(1.0, float(chances[np.abs(sums) >= observed].sum()))
    squares = magnitudes**2 * counts
    if magnitudes.size >= _MANY and squares @ magnitudes**2 < 1e-3 * squares.sum() ** 2:  # hardly any kurtosis: normal
        return math.erfc(max(observed, 0.0) / math.sqrt(2 * squares.sum()))
    random = Generator(Philox(seed))
    as_large = sum(int((np.abs(sums) >= observed).sum()) for sums in _flipped(magnitudes, counts, random, resamples))
    return (as_large + 1) / (resamples + 1)


def _every_sum(magnitudes: Array, counts: NDArray[np.int64]) -> tuple[Array, Array]:
    """All sums of signed magnitudes, and the chance of each."""
    sums, chances = np.zeros(1), np.ones(1)
    for magnitude, count in zip(magnitudes, counts.tolist(), strict=True):
        positive = np.arange(count + 1)
        sums = np.add.outer(sums, magnitude * (2.0 * positive - count)).ravel()
        chances = np.multiply.outer(chances, fair_binomial(count)).ravel()
    return sums, chances


def fair_binomial(n: int) -> Array:
    """P(X = 0), …, P(X = n) for n throws of a fair coin."""
    k = np.arange(1, n + 1)
    logarithms = np.concatenate([[0.0], np.cumsum(np.log((n + 1 - k) / k))])
    weights = np.exp(logarithms - n * np.log(2.0))
    chances: Array = weights / weights.sum()
    return chances


def _flipped(magnitudes: Array, counts: NDArray[np.int64], random: Generator, resamples: int) -> Iterator[Array]:
    """Sums of magnitudes whose signs are thrown, so many at a time that memory stays bounded."""
    if magnitudes.size * _WORK_OF_A_BINOMIAL <= counts.sum():
        for rows in _chunks(resamples, magnitudes.size):
            positive = random.binomial(counts, 0.5, size=(rows.stop - rows.start, counts.size))
            yield (2.0 * positive - counts) @ magnitudes
        return
    each = np.repeat(magnitudes, counts)
    for rows in _chunks(resamples, each.size):
        size = rows.stop - rows.start
        throws = np.frombuffer(random.bytes(size * -(-each.size // 8)), dtype=np.uint8).reshape(size, -1)
        positive = np.unpackbits(throws, axis=1, count=each.size).astype(np.float64)
        yield 2.0 * (positive @ each) - each.sum()


def _chunks(rows: int, width: int) -> Iterator[slice]:
    """So many rows of this width at a time as may be held."""
    step = max(1, _CHUNK // width)
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))
