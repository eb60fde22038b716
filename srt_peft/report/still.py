"""Still pictures of a run, for a model card: small SVGs that need nothing to be drawn and nothing to be seen.

Old is blue and drawn through, new is vermilion and dashed, as on the page. No text of an example is in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from srt_peft.report.read import POOLS, Run, read_run
from srt_peft.report.words import whole

OLD, NEW, INK = "#0072b2", "#d55e00", "#444444"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 300, 64, 16, 44, 48
Line = tuple[str, Sequence[float], Sequence[float]]
"""A name, where, and how much."""


def drawn(folder: Path) -> dict[str, str]:
    """The pictures of a run by their files' names; those that it has the numbers for."""
    run = read_run(folder, text=False)
    return {f"{name}.svg": svg for name, svg in _pictures(run)}


def _pictures(run: Run) -> Iterator[tuple[str, str]]:
    course = run.course
    if course is not None:
        steps = course.windows.middle.tolist()
        share = course.drawn / np.maximum(course.drawn.sum(axis=1, keepdims=True), 1)
        lines = [(name, steps, (100 * share[:, i]).tolist()) for i, name in enumerate(POOLS)]
        yield "drawn", curves("What was drawn", "step", "% of the batch", lines, top=100)
        measured = [
            (name, *course.measured[key]) for name in POOLS if (key := f"held_out_{name}_nll") in course.measured
        ]
        if any(len(steps) > 1 for _, steps, _ in measured):
            lines = [(name, steps, np.exp(np.minimum(nll, 700)).tolist()) for name, steps, nll in measured]
            yield "held_out", curves("Perplexity of held-out text", "steps done", "perplexity", lines)
    table = run.census.interval
    if table.any():
        yield "intervals", bars("Intervals of the examples that were seen", "steps, from", table)


def curves(title: str, across: str, up: str, lines: Sequence[Line], *, top: float | None = None) -> str:
    """Lines over a common axis; where a value is no number there is none."""
    xs = [x for _, steps, _ in lines for x in steps]
    ys = [y for _, _, values in lines for y in values if np.isfinite(y)]
    low, high = min(xs), max(*xs, min(xs) + 1)
    ceiling = top or _round(max([*ys, 1e-9]))

    def place(x: float, y: float) -> str:
        return f"{_across((x - low) / (high - low)):.1f},{_up(y / ceiling):.1f}"

    parts = [*_frame(title, across, up), *_ticks([low, high], ceiling)]
    for name, steps, values in lines:
        points = [place(x, y) for x, y in zip(steps, values, strict=True) if np.isfinite(y)]
        dash = "" if name == "old" else ' stroke-dasharray="7 4"'
        colour = OLD if name == "old" else NEW
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dash} points="{" ".join(points)}"/>')
        parts += [
            f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="2.5" fill="{colour}"/>' for p in points[:40]
        ]
    return _svg(title, parts)


def bars(title: str, across: str, table: NDArray[np.int64]) -> str:
    """[pool, k]: how many examples lie between 2**k and the next power, old and new side by side."""
    last = int(np.flatnonzero(table.sum(axis=0)).max())
    counts = table[:, : last + 1]
    ceiling, slot = _round(float(counts.max())), 1 / (last + 1)
    parts = [*_frame(title, across, "examples"), *_ticks([], ceiling)]
    for k in range(last + 1):
        middle = _across((k + 0.5) * slot)
        parts.append(_text(middle, HEIGHT - BOTTOM + 18, f"{2**k:,}", anchor="middle"))
        for i, colour in enumerate((OLD, NEW)):
            x, y = _across((k + 0.12 + 0.38 * i) * slot), _up(counts[i, k] / ceiling)
            wide = 0.36 * slot * (WIDTH - LEFT - RIGHT)
            tall = HEIGHT - BOTTOM - y
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="{colour}"/>')
    return _svg(title, parts)


def _round(value: float) -> float:
    """The next number, up, whose half is read as easily."""
    ten = 10.0 ** math.floor(math.log10(value))
    return next(step * ten for step in (1, 2, 4, 6, 8, 10) if step * ten >= value)


def _across(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _up(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _frame(title: str, across: str, up: str) -> Iterator[str]:
    """Background, axes, and which colour is which pool."""
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    yield _text(LEFT, 22, title, weight="bold", size=15)
    yield f'<path d="M{LEFT},{TOP} V{HEIGHT - BOTTOM} H{WIDTH - RIGHT}" fill="none" stroke="{INK}"/>'
    yield _text(_across(0.5), HEIGHT - 10, across, anchor="middle")
    yield _text(LEFT, TOP - 8, up)
    for i, (name, colour) in enumerate((("old", OLD), ("new", NEW))):
        x = WIDTH - RIGHT - 110 + 58 * i
        dash = "" if name == "old" else ' stroke-dasharray="7 4"'
        yield f'<path d="M{x},18 h20" stroke="{colour}" stroke-width="3"{dash}/>'
        yield _text(x + 24, 22, name)


def _ticks(across: Sequence[float], ceiling: float) -> Iterator[str]:
    for i, value in enumerate(across):
        yield _text(_across(i), HEIGHT - BOTTOM + 18, whole(value), anchor=("start", "end")[i])
    for share in (0.0, 0.5, 1.0):
        y = _up(share)
        yield f'<path d="M{LEFT},{y:.1f} H{WIDTH - RIGHT}" stroke="{INK}" stroke-opacity="0.15"/>'
        yield _text(LEFT - 6, y + 4, f"{share * ceiling:,.10g}", anchor="end")


def _text(x: float, y: float, told: str, *, anchor: str = "start", weight: str = "normal", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="{size}" font-weight="{weight}" '
        f'fill="{INK}" text-anchor="{anchor}">{told}</text>'
    )


def _svg(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img">\n<title>{title}</title>\n{body}\n</svg>\n'
    )
