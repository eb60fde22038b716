"""The study in pictures: a world each, what every row kept and learned beyond the better uniform, with intervals.

An SVG of our own, which needs nothing to be drawn. Right of the line is better than that uniform, left of it worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from eval.study.figures import UNITS, Against, Block, against, blocks
from eval.study.plan import Plan

COLOURS = {"worst": "#d55e00", "mean": "#0072b2", "weighted": "#009e73", "new": "#888888"}
NAMES = {"worst": "worst source", "mean": "mean of sources", "weighted": "all of old", "new": "new"}
FAR = ("cpt", "ppl")
"""Whom the tables tell and the pictures leave out: so far off that nothing could be told of the others."""
WIDTH, LEFT, RIGHT, TOP, ROW = 760, 250, 20, 66, 46


def draw(plan: Plan, output: Path, folder: Path) -> list[Path]:
    """A file for each world and tuning that there are two rows of."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for block in blocks(plan, output):
        svg = picture(block)
        if svg:
            made.append(folder / f"{block.world.name}-{block.tuning}.svg")
            made[-1].write_text(svg, encoding="utf-8")
    return made


def picture(block: Block) -> str:
    """One world's; nothing where there is no uniform to be held against, or nobody else."""
    reference = block.better
    if reference is None:
        return ""
    found = {
        line.name: {m: against(line, reference, m) for m in COLOURS}
        for line in block.lines.values()
        if line is not reference and line.name not in FAR
    }
    told = {name: {m: a for m, a in of.items() if a is not None} for name, of in found.items()}
    told = {name: of for name, of in told.items() if of}
    if not told:
        return ""
    ends = [end for of in told.values() for a in of.values() for end in _ends(a)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    seeds = max(a.seeds for of in told.values() for a in of.values())
    title = f"{block.world.name}, {block.tuning}: against {reference.name}, {UNITS[block.metric][0]}, {seeds} seeds"
    height = TOP + ROW * len(told) + 40
    parts = [_text(12, 22, title, weight="bold", size=14), *_legend()]

    def x(value: float) -> float:
        return LEFT + (value - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

    for i, (name, of) in enumerate(told.items()):
        top = TOP + ROW * i
        parts.append(_text(LEFT - 12, top + ROW / 2 + 2, name, anchor="end"))
        parts += _row(of, top, x)
    foot = TOP + ROW * len(told)
    parts.append(f'<path d="M{x(0):.1f},{TOP - 6} V{foot}" stroke="#000000" stroke-width="1"/>')
    parts += [_text(x(end), foot + 18, f"{end:+.0f}", anchor="middle") for end in {low, high} - {0.0}]
    parts += [_text(x(0), foot + 18, "0", anchor="middle"), _text(WIDTH - RIGHT, foot + 34, "better →", anchor="end")]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img">\n<title>{escape(title)}</title>\n<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
        f"{body}\n</svg>\n"
    )


def _ends(found: Against) -> list[float]:
    return [found.mean] if found.low is None or found.high is None else [found.low, found.high]


def _row(of: dict[str, Against], top: float, x: Callable[[float], float]) -> Iterator[str]:
    for i, (measure, found) in enumerate(of.items()):
        y, colour = top + 9 + 9 * i, COLOURS[measure]
        first, last = x(_ends(found)[0]), x(_ends(found)[-1])
        yield f'<path d="M{first:.1f},{y:.1f} H{last:.1f}" stroke="{colour}" stroke-width="2"/>'
        yield f'<circle cx="{x(found.mean):.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'


def _legend() -> Iterator[str]:
    at = 12.0
    for measure, colour in COLOURS.items():
        yield f'<circle cx="{at:.0f}" cy="40" r="4" fill="{colour}"/>'
        yield _text(at + 9, 44, NAMES[measure])
        at += 30 + 7.0 * len(NAMES[measure])


def _text(x: float, y: float, told: str, *, anchor: str = "start", weight: str = "normal", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(told)}</text>'
    )
