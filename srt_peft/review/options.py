"""What may be set, what each setting must be, and all faults told at once."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.review import recall as quality, sm2

ORDERS = ("uniform", "overdue", "epoch", "rounds", "intake")
DECKS = ("off", "auto", "sqrt", "equal")
POOLS = ("old", "new")
MAX_EXAMPLES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Options:
    """A scheduler's settings. The defaults are the paper's, for ever: presets live in the recipes."""

    batch_size: int
    old_fraction: float = 0.2
    seed: int = 0
    stagger: int = 5
    initial_ease: float = 2.5
    min_ease: float = 1.3
    recall: str = "absolute"
    reference: str = "best"
    thresholds: tuple[float, ...] | None = None
    alpha: float = 1.0
    max_interval: int | None = None
    underfull: str = "short"
    order: str | Mapping[str, str] = "uniform"
    decks: str = "off"
    deck_floor: float = 0.2
    quiz: int = 0
    quiz_every: int = 1
    quiz_tokens: int | None = None
    explore: float = 0.1
    counts: tuple[tuple[int, int], ...] | None = None

    @property
    def old_slots(self) -> int:
        """⌊ρB⌋, with ρ read as the decimal that was written: ⌊0.29·100⌋ is 29, where floats say 28."""
        return int(Decimal(str(self.old_fraction)) * self.batch_size)

    @property
    def orders(self) -> tuple[str, str]:
        """The order within the old pool, and within the new one."""
        old, new = (self.order if isinstance(self.order, str) else self.order.get(p, "uniform") for p in POOLS)
        return old, new

    @property
    def refers(self) -> bool:
        """Whether each example's signal is held against a reference of its own."""
        return self.recall in ("relative", "quantile") or self.decks == "auto" or self.quiz > 0

    @property
    def asked(self) -> int:
        """The most examples that are asked and wait to be drawn when a step has ended."""
        return self.quiz * self.old_slots if self.quiz_every > 1 else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, which JSON gives back as they are but for tuples, and `plain` mends those."""
        return asdict(self)


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Checked settings as Python's own numbers, strings and tuples, whatever they came as."""
    return {name: _plain(value) for name, value in settings.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.floating):
        return float(str(value))  # the decimal that was written: float32(0.2) is 0.2
    return int(value) if isinstance(value, np.integer) else value


def hundredths(ease: float) -> int:
    """An ease in the integers that the state keeps."""
    return int(Decimal(str(ease)) * 100)


# --- the table of rules ---------------------------------------------------------------------------------------


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return number and -sys.float_info.max <= value <= sys.float_info.max


def _among(names: Iterable[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


def _between(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: _whole(value) and low <= value <= high


def _ease(value: Any) -> bool:
    return _real(value) and 1 <= value <= sm2.MAX_EASE / 100 and Decimal(str(value)) * 100 % 1 == 0


def _thresholds(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, (tuple, list)) or len(value) != 5 or not all(_real(v) and v > 0 for v in value):
        return False
    return all(a < b for a, b in pairwise(value))


def _order(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and set(value) <= set(POOLS) and all(_among(ORDERS)(v) for v in value.values())
    return _among(ORDERS)(value)


def _counts(value: Any) -> bool:
    whole = _between(0, MAX_EXAMPLES)
    return value is None or (
        isinstance(value, (tuple, list))
        and len(value) > 0
        and all(isinstance(pair, (tuple, list)) and len(pair) == 2 and all(map(whole, pair)) for pair in value)
    )


_EASE = "a number from 1.00 to 327.67 in whole hundredths"

RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "old": (_between(0, MAX_EXAMPLES), "how many old examples there are, a whole number, 0 or more"),
    "new": (_between(0, MAX_EXAMPLES), "how many new examples there are, a whole number, 0 or more"),
    "batch_size": (_between(1, MAX_EXAMPLES), "the examples of one optimiser step, a whole number, 1 or more"),
    "old_fraction": (lambda v: _real(v) and 0 <= v <= 1, "the share of old examples in a draw, from 0 to 1"),
    "seed": (_between(0, 2**64 - 1), "a whole number from 0 to 2**64 - 1"),
    "stagger": (_between(1, sm2.MAX_STEP), "over how many steps first visits are spread, a whole number, 1 or more"),
    "initial_ease": (_ease, _EASE),
    "min_ease": (_ease, _EASE),
    "recall": (_among(quality.THRESHOLDS), "one of " + ", ".join(map(repr, quality.THRESHOLDS))),
    "reference": (
        _among(("best", "base")),
        "'best' (an old example's best signal so far) or 'base' (what a scoring pass before the update gave it)",
    ),
    "thresholds": (_thresholds, "five positive numbers, each larger than the one before, or None for the default"),
    "alpha": (lambda v: _real(v) and v > 0, "a number above 0, by which the perplexity thresholds are multiplied"),
    "max_interval": (
        lambda v: v is None or _between(1, sm2.MAX_INTERVAL)(v),
        "a whole number from 1 to 2**30, or None",
    ),
    "underfull": (
        _among(("short", "ahead")),
        "'short' (a batch may be smaller, as in the paper) or 'ahead' (it is filled with the soonest due)",
    ),
    "order": (
        _order,
        "'uniform', 'overdue', 'epoch', 'rounds' or 'intake', or one for each pool: {'old': …, 'new': …}",
    ),
    "decks": (_among(DECKS), "one of " + ", ".join(map(repr, DECKS))),
    "deck_floor": (
        lambda v: _real(v) and 0 <= v <= 1,
        "the part of the old slots that is shared by the decks' sizes, from 0 to 1",
    ),
    "quiz": (_between(0, 64), "how many old examples are asked for each that is studied, from 0 (no quiz) to 64"),
    "quiz_every": (_between(1, sm2.MAX_STEP), "how many steps lie between two quizzes, a whole number, 1 or more"),
    "quiz_tokens": (
        lambda v: v is None or _between(2, MAX_EXAMPLES)(v),
        "how many tokens of each example are asked, a whole number, 2 or more, or None for all",
    ),
    "explore": (lambda v: _real(v) and 0 <= v <= 1, "the share of the studied that is drawn evenly, from 0 to 1"),
    "counts": (_counts, "a pair (old, new) of whole numbers a step, or None"),
}


def faults(**settings: Any) -> list[str]:
    """A line for each setting that is unknown or not what it must be; if none is, for each pair that clashes."""
    lines = []
    for name, value in settings.items():
        if name not in RULES:
            lines.append(f"{name}: no such option{did_you_mean(name, RULES)}; known are {', '.join(RULES)}")
        elif not RULES[name][0](value):
            lines.append(f"{name} = {reprlib.repr(value)}: expected {RULES[name][1]}")
    return lines or _clashes(settings)


def _clashes(settings: Mapping[str, Any]) -> list[str]:
    lines = []
    if settings.get("old", 0) + settings.get("new", 0) > MAX_EXAMPLES:
        lines.append(f"old and new together are more than the {MAX_EXAMPLES} examples that a state can hold")
    most = max((sum(pair) for pair in settings.get("counts") or ()), default=0)
    if most > settings.get("batch_size", most):
        lines.append(f"counts ask for {most} examples at a step, and batch_size is {settings['batch_size']}")
    ease, least = (settings.get(name, getattr(Options, name)) for name in ("initial_ease", "min_ease"))
    if ease < least:
        lines.append(f"initial_ease = {ease!r} lies below min_ease = {least!r}: expected it to be at least that")
    recall = settings.get("recall", "absolute")
    if recall in ("relative", "quantile", "confidence") and settings.get("alpha", 1.0) != 1.0:
        lines.append(f"alpha = {settings['alpha']!r} scales perplexities; with recall = {recall!r} set thresholds")
    if recall == "quantile" and settings.get("thresholds") is not None:
        lines.append(f"thresholds = {settings['thresholds']!r}: with recall = 'quantile' they are quantiles, not given")
    order = settings.get("order", "uniform")
    if (order if isinstance(order, str) else order.get("old")) == "intake":
        lines.append("order = 'intake' is for first visits, and so for new: expected another for old")
    if settings.get("quiz_tokens") is not None and not settings.get("quiz"):
        lines.append(f"quiz_tokens = {settings['quiz_tokens']!r} without a quiz: expected quiz = 1 or more")
    if recall == "confidence" and max(settings.get("thresholds") or (0,)) > 1:
        lines.append(f"thresholds = {settings['thresholds']!r}: with recall = 'confidence' they are probabilities")
    if recall == "quantile" and settings.get("reference", "best") != "base":
        lines.append("recall = 'quantile' takes its thresholds from a pass of the base: expected reference = 'base'")
    return lines


def check(what: str, **settings: Any) -> None:
    """Raise one OptionError that tells every fault of the settings."""
    found = faults(**settings)
    if found:
        raise OptionError(what, found)
