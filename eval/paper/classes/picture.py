"""The tables as one SVG that needs nothing to be drawn: a column a data set, a line an entry, at its longest update.

A dot is a mean over seeds, a stroke its standard deviation to either side, a diamond what the paper has over all.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from eval.paper.classes.entries import ROWS
from eval.paper.classes.table import MEASURES, Found, Rows
from eval.paper.classes.worlds import World
from eval.paper.figures import paper_of

COLOURS = {"old": "#d55e00", "new": "#888888", "overall": "#0072b2"}
LEFT, TOP, LINE, WIDTH, GAP = 150, 84, 30, 230, 42


def picture(found: Found) -> str:
    """All data sets that there are figures of."""
    present = {name for lengths in found.values() for rows in lengths.values() for name in rows}
    names = [name for name in ROWS if name in present]
    width, height = LEFT + (WIDTH + GAP) * len(found) + 10, TOP + LINE * len(names) + 40
    parts = [
        _text(12, 24, "Accuracy in % on old classes, new classes, and over all", size=15, weight="bold"),
        *_legend(),
    ]
    parts += [_text(12, _middle(i) + 4, name) for i, name in enumerate(names)]
    for column, (world, lengths) in enumerate(found.items()):
        length = max(lengths)
        parts += _panel(LEFT + column * (WIDTH + GAP), world, length, lengths[length], names)
    title = "Accuracy on old classes, new classes, and over all"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img">\n<title>{escape(title)}</title>\n<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f"{body}\n</svg>\n"
    )


def _middle(line: int) -> float:
    return TOP + LINE * (line + 0.5)


def _panel(left: float, world: World, length: int, rows: Rows, names: list[str]) -> Iterator[str]:
    yield _text(left, TOP - 10, f"{world.name}, {length} steps", weight="bold")
    foot = TOP + LINE * len(names)
    for share in (0, 25, 50, 75, 100):
        x = left + share / 100 * WIDTH
        yield f'<path d="M{x:.1f},{TOP} V{foot}" stroke="#dddddd" stroke-width="1"/>'
        yield _text(x, foot + 18, str(share), anchor="middle", size=11)
    paper = paper_of("classes").panels.get(world.panel, {})
    for i, name in enumerate(names):
        if name in rows:
            for offset, measure in zip((-8, 0, 8), MEASURES, strict=True):
                figure = rows[name].figure(measure)
                assert figure is not None, "all of them are measured"
                yield from _dot(left, _middle(i) + offset, figure.value, figure.sd or 0.0, COLOURS[measure])
        if name in paper:
            x, y = left + paper[name]["overall"].value / 100 * WIDTH, _middle(i) + 8
            yield _diamond(x, y)


def _dot(left: float, y: float, value: float, sd: float, colour: str) -> Iterator[str]:
    low, high = (left + min(max(end, 0.0), 100.0) / 100 * WIDTH for end in (value - sd, value + sd))
    yield f'<path d="M{low:.1f},{y:.1f} H{high:.1f}" stroke="{colour}" stroke-width="2"/>'
    yield f'<circle cx="{left + value / 100 * WIDTH:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'


def _diamond(x: float, y: float) -> str:
    return f'<path d="M{x - 6:.1f},{y:.1f} l6,-6 l6,6 l-6,6 z" fill="none" stroke="#000000" stroke-width="1.5"/>'


def _legend() -> Iterator[str]:
    at = 20.0
    for measure, colour in COLOURS.items():
        yield f'<circle cx="{at:.0f}" cy="46" r="4" fill="{colour}"/>'
        yield _text(at + 9, 50, measure)
        at += 80
    yield _diamond(at + 4, 46)
    yield _text(at + 16, 50, "the paper, over all")


def _text(x: float, y: float, told: str, *, anchor: str = "start", weight: str = "normal", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(told)}</text>'
    )
