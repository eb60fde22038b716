"""Numbers as a person reads them."""

from __future__ import annotations

import math

ABSENT = "–"


def whole(value: float) -> str:
    """1,234; a half is kept, as the middle of two steps may be one."""
    if not math.isfinite(value):
        return ABSENT
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def number(value: float | None) -> str:
    """Three or four digits that count, without an exponent where none is needed."""
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        return f"{value:.2e}".replace("-", "−")
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}".replace("-", "−")


def percent(value: float | None) -> str:
    """20.1 %, with a space that never breaks."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{100 * value:.1f}".removesuffix(".0").replace("-", "−") + "\u202f%"


def share(value: float | None) -> str:
    """20.0 %: as `percent`, with a digit that never goes, so that a column of them can be read down."""
    return ABSENT if value is None or not math.isfinite(value) else f"{tenths(100 * value)}\u202f%"


def tenths(value: float) -> str:
    """3.0."""
    return f"{value:.1f}".replace("-", "−")


def count(value: float) -> str:
    """A mean of counts: of hundreds and more, nobody reads the tenths."""
    return whole(round(value) if abs(value) >= 100 else round(value, 1))


def perplexity(nll: float | None) -> str:
    """Of nats a token; what no float can hold is no number that anybody compares."""
    if nll is None or math.isnan(nll):
        return ABSENT
    return number(math.exp(nll) if nll < 700 else math.inf)


def duration(seconds: float) -> str:
    """1 h 5 min, 3 min 20 s, 12.5 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"
