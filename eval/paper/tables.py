"""The paper's tables: who takes part, what is varied, and what is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from srt_peft.errors import OptionError, did_you_mean


@dataclass(frozen=True)
class Table:
    """One table of the paper."""

    title: str
    asks: str
    """questions, benchmarks, probes, or nothing."""
    entries: tuple[str, ...] = ("srt",)
    corpus: str = "wiki"
    """What files are called at the paper's scale, unless they are named."""
    key: str = ""
    """The recipe's key that is varied, if any is."""
    symbol: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    """By the paper's name of the row."""
    default: str = ""
    control: Sequence[str] = ()
    """The rows where uniform replay takes part."""


_RATIOS = {"5/95": 0.05, "20/80": 0.2, "35/65": 0.35, "50/50": 0.5, "65/35": 0.65, "80/20": 0.8, "95/5": 0.95}
_ALPHAS = {"0.5": 0.5, "1.0": 1.0, "1.5": 1.5}
_EASES = {"1.5": 1.5, "2.5": 2.5, "3.5": 3.5}

TABLES = {
    "temporal_qa": Table("Temporal QA", "questions", ("cpt", "uniform", "ppl", "srt")),
    "broad": Table("Broad capabilities", "benchmarks", ("cpt", "uniform", "srt")),
    "overhead": Table("Overhead", ""),
    "ratio": Table(
        "Replay ratio ρ", "questions",
        key="review.old_fraction", symbol="ρ", values=_RATIOS, default="20/80", control=tuple(_RATIOS),
    ),
    "thresholds": Table(
        "Threshold scaling α", "questions", corpus="code",
        key="review.alpha", symbol="α", values=_ALPHAS, default="1.0", control=("1.0",),
    ),
    "ease": Table(
        "Initial ease E0", "questions", corpus="code",
        key="review.initial_ease", symbol="E0", values=_EASES, default="2.5", control=("2.5",),
    ),
    "temporalwiki": Table("TemporalWiki", "probes", ("cpt", "uniform", "srt")),
}  # fmt: skip
ALL = "all"


def chosen(name: str) -> list[str]:
    """The tables that a command line names."""
    if name != ALL and name not in TABLES:
        known = ", ".join([*TABLES, ALL])
        raise OptionError(
            "eval.paper", [f"{name!r} is no table{did_you_mean(name, [*TABLES, ALL])}; known are {known}"]
        )
    return list(TABLES) if name == ALL else [name]
