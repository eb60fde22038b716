"""Still pictures: what a card shows of a run."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from srt_peft.report import still

SVG = "{http://www.w3.org/2000/svg}"


def drawn(svg):
    """The picture, and the texts in it."""
    root = ET.fromstring(svg)
    return root, [each.text for each in root.iter(f"{SVG}text")]


def test_a_curve_lies_where_its_numbers_are():
    """From the first step to the last, from 0 to a round number; what is no number is no point."""
    root, told = drawn(still.curves("T", "step", "u", [("old", [10, 20, 30], [0.0, float("nan"), 150.0])]))
    [line] = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    left, right, bottom = still.LEFT, still.WIDTH - still.RIGHT, still.HEIGHT - still.BOTTOM
    assert points[0] == (left, bottom)
    assert points[1] == pytest.approx((right, bottom - 0.75 * (bottom - still.TOP)))
    assert len(points) == 2
    assert {"10", "30", "0", "100", "200"} <= set(told)


def test_bars_are_as_tall_as_they_count():
    root, told = drawn(still.bars("T", "steps", np.array([[4, 0, 2], [0, 8, 0]])))
    heights = [float(bar.get("height")) for bar in root.iter(f"{SVG}rect") if bar.get("fill") != "#ffffff"]
    full = still.HEIGHT - still.BOTTOM - still.TOP
    assert heights == pytest.approx([full * n / 8 for n in (4, 0, 0, 8, 2, 0)], abs=0.1)
    assert {"1", "2", "4", "8"} <= set(told)


@pytest.mark.parametrize(("value", "ceiling"), [(0.3, 0.4), (1, 1), (8.1, 10), (93, 100), (1234, 2000), (1e-9, 1e-9)])
def test_axes_end_at_round_numbers(value, ceiling):
    assert still._round(value) == pytest.approx(ceiling)


def test_nothing_is_loaded_or_run_by_a_picture():
    svg = still.curves("T", "step", "u", [("new", [0, 1], [1.0, 2.0])])
    assert not re.search(r"script|href|url\(|@import|on\w+=", svg)
