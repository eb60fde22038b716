"""May it ship? The loss against an allowance, in words that a person acts on.

    FORGOT     the whole interval of the loss lies beyond the allowance      exit code 3
    KEPT       the whole interval lies within it                                       0
    UNDECIDED  it has the allowance inside: more questions are needed                  0

The interval is the bootstrap's (over questions, and over trainings where there are several), widened where there are
few questions. Five questions answered alike before and after have no spread at all, and yet prove little: of answers
that are right or wrong, each share's own interval (Wilson's, for the lost and for the gained) bounds their difference
(Newcombe's), and the verdict's interval reaches as far as the wider of the two.

How many questions would decide. Let L be the loss, A the allowance, s² the variance of the paired differences, k the
trainings, τ² their own variance beyond what questions explain. If the loss is what it looks like, N questions decide
four times in five, where N solves

    |L − A| = z·√(τ²/k + S²/N) + z_80·s/√N

with z the interval's normal quantile, z_80 = 0.84, and S² what the interval sees: s² with one training; more where the
variance were larger if the loss were A, since few losses vary less than the allowance that they must be told from; and
with several trainings a share of what is each answer's own. Where z·τ/√k alone is too much, no number of questions
decides, and more trainings are needed. L, s and τ are measured, so N is a rough number, and named with two digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from srt_peft.errors import OptionError
from srt_peft.evaluation.bootstrap import LEVEL, RESAMPLES, Array, Sample, estimate

FORGOT, KEPT, UNDECIDED = "forgot", "kept", "undecided"
EXIT_CODES = {KEPT: 0, UNDECIDED: 0, FORGOT: 3}
_OFTEN = 0.80
_TOO_MANY = 1_000_000


@dataclass(frozen=True)
class Metric:
    """What is averaged, which way is better, and how means and differences are shown."""

    unit: str
    """What differences are in, when shown; an allowance too."""
    factor: float
    """What a difference is multiplied by to be in that unit."""
    sign: int
    """+1 where a higher value is better."""
    show: Callable[[float], float]
    """From a mean to what the tables show."""
    slope: Callable[[float], float]
    """How much of a small change of the mean is seen there."""
    take: Callable[[Array], Array] = np.positive
    """From the records' values to what is averaged."""
    shares: bool = False
    """Whether values are answers right or wrong."""


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric("points", 100.0, +1, lambda mean: 100.0 * mean, lambda _: 100.0, shares=True),
    "nll": Metric("nats a token", 1.0, -1, math.exp, math.exp),  # shown as perplexity, exp(mean NLL)
    "perplexity": Metric("PPL", 1.0, -1, lambda mean: mean, lambda _: 1.0, np.exp),  # the mean of each item's own
}


@dataclass(frozen=True)
class Verdict:
    """The outcome for one split, the numbers that it rests on (in the metric's unit), and the sentence."""

    split: str
    outcome: str
    loss: float
    low: float
    high: float
    level: float
    allowance: float
    unit: str
    questions: int
    more_questions: int | None
    """How many more would decide, where it is undecided; None also where no number does."""
    trainings: int
    between: float | None
    sentence: str


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """3 if anything was forgotten beyond the allowance."""
    return max((EXIT_CODES[verdict.outcome] for verdict in verdicts), default=0)


def verdict(
    loss: Sample,
    allowance: float,
    *,
    metric: str = "accuracy",
    split: str = "old",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Verdict:
    """Whether this loss (of each question, positive where the update is worse) may be called within the allowance.

    The allowance is in the metric's unit: points of accuracy, or nats a token.
    """
    if not (math.isfinite(allowance) and allowance >= 0):
        what = f"max-forgetting = {allowance}: expected a number of {METRICS[metric].unit}, 0 or more, such as 2.0"
        raise OptionError("the allowance", [what])
    unit, factor, shares = METRICS[metric].unit, METRICS[metric].factor, METRICS[metric].shares
    found = estimate(loss, level=level, resamples=resamples, seed=seed)
    low, high = found.low, found.high
    if shares:
        widest = shares_interval(loss, level)
        low, high = min(low, widest[0]), max(high, widest[1])
    outcome = _outcome(factor * low, factor * high, allowance)
    needed = questions_needed(loss, allowance / factor, level=level, shares=shares) if outcome == UNDECIDED else None
    made = Verdict(
        split=split,
        outcome=outcome,
        loss=factor * found.mean,
        low=factor * low,
        high=factor * high,
        level=level,
        allowance=allowance,
        unit=unit,
        questions=loss.n,
        more_questions=None if needed is None else max(needed - loss.n, 1),
        trainings=len(found.runs),
        between=None if found.between is None else factor * found.between,
        sentence="",
    )
    return replace(made, sentence=_told(made))


def _outcome(low: float, high: float, allowance: float) -> str:
    if low > allowance:
        return FORGOT
    return KEPT if high <= allowance else UNDECIDED


# --- few questions ------------------------------------------------------------------------------------------------


def shares_interval(loss: Sample, level: float) -> tuple[float, float]:
    """Newcombe's interval of the share lost less the share gained, from Wilson's of each."""
    lost, gained, n = _shares(loss)
    z = _quantile(level)
    (lost_low, lost_high), (gained_low, gained_high) = _wilson(lost, n, z), _wilson(gained, n, z)
    low = lost - gained - math.hypot(lost - lost_low, gained_high - gained)
    return low, lost - gained + math.hypot(lost_high - lost, gained - gained_low)


def _shares(loss: Sample) -> tuple[float, float, float]:
    """The share of answers lost, the share gained, and of how many questions right or wrong they have the variance.

    With several trainings a question may be lost in a part of them. Means of several have less variance than single
    answers, so there are as many questions in them as would have that variance if each were right or wrong.
    """
    lost = float((np.maximum(loss.values, 0.0) * loss.weights).mean())
    gained = float((np.maximum(-loss.values, 0.0) * loss.weights).mean())
    single, variance = lost + gained - (lost - gained) ** 2, float(np.var(Sample(loss.items, loss.weights).influence()))
    return lost, gained, loss.n * min(single / variance, float(loss.runs.size)) if variance > 0 else float(loss.n)


def _wilson(share: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's interval of a share of n."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)


# --- how many more ------------------------------------------------------------------------------------------------


def questions_needed(loss: Sample, allowance: float, *, level: float = LEVEL, shares: bool = True) -> int | None:
    """How many questions in all decide four times in five, by the formula above; None if no number (to a million) does.

    The allowance is a share here, or nats a token.
    """
    z, often = _quantile(level), NormalDist().inv_cdf(_OFTEN)
    within, residual, own = _variances(loss)
    distance = abs(float(loss.runs.mean()) - allowance)
    seen = (max(within, _variance_at(loss, allowance, within)) if shares else within) + residual
    # distance = z·√(own/k + seen·u²) + often·√within·u, a quadratic in u = 1/√N
    linear = distance * often * math.sqrt(within)
    square, rest = z * z * seen - often**2 * within, distance**2 - z * z * own / loss.runs.size
    if square <= 0 or rest <= 0:
        return None
    u = (math.sqrt(linear**2 + square * rest) - linear) / square
    return math.ceil(u**-2) if u**-2 <= _TOO_MANY else None


def _variances(loss: Sample) -> tuple[float, float, float]:
    """The differences' variance, a share of what is each answer's own, and the trainings' own: N divides the first two.

    It is a two-way analysis of variance. Trainings' means differ by what is their own and by residual/n; with several
    trainings, so, the interval has that residual in both of its levels.
    """
    table = loss.influence()
    k, n = table.shape
    within = float(table.mean(0).var())
    if k == 1 or n == 1:
        return within, 0.0, 0.0
    rest = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    residual = float((rest**2).sum()) / ((k - 1) * (n - 1))
    return within, residual / k, max(0.0, float(loss.runs.var(ddof=1)) - residual / n)


def _variance_at(loss: Sample, allowance: float, within: float) -> float:
    """The variance were the loss the allowance, its gains being as they are."""
    lost, gained, _ = _shares(loss)
    at = allowance + 2 * gained - allowance**2
    now = lost + gained - (lost - gained) ** 2
    return at * within / now if now > 0 else at


# --- in words -----------------------------------------------------------------------------------------------------


def _told(made: Verdict) -> str:
    """The verdict as a sentence, and another about its trainings."""
    unit = made.unit
    found = (
        f"the loss on {made.split} is {number(made.loss, unit)} {unit} over {made.questions:,} questions "
        f"({100 * made.level:.4g} % interval {number(made.low, unit)} to {number(made.high, unit)})"
    )
    ending = {
        KEPT: f"Kept: {found}, all of it within the allowance of {made.allowance:g} {unit}.",
        FORGOT: f"Forgot too much: {found}, all of it beyond the allowance of {made.allowance:g} {unit}.",
        UNDECIDED: f"Undecided: {found}, with the allowance of {made.allowance:g} {unit} inside. {_remedy(made)}",
    }[made.outcome]
    if made.between is None:
        return f"{ending} It is one training: how far another seed would land is unknown."
    return (
        f"{ending} It is the mean of {made.trainings} trainings, with a standard deviation of "
        f"{number(made.between, unit)} {unit} between them; the interval has that spread in it, as far as "
        f"{made.trainings} can show it."
    )


def _remedy(made: Verdict) -> str:
    if made.more_questions is not None:
        return (
            f"More questions needed: about {_rounded(made.more_questions):,} more, if the loss is what it looks like."
        )
    if made.between is not None:
        return "More questions alone would not decide: the trainings differ too much. More of them (seeds) are needed."
    return "The loss is too near the allowance: even a million questions would not decide."


def number(value: float, unit: str, sign: str = "") -> str:
    """As many decimals as the unit bears, and a true minus; `sign` is + where a plus is to be seen."""
    decimals = 3 if unit == METRICS["nll"].unit else 0 if abs(value) >= 1000 else 1
    text = f"{value:{sign}.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def _rounded(count: int) -> int:
    """Up, to two digits."""
    step: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // step) * step
