"""Where the statements of a text stand: its lines, and the sentences of each."""

from __future__ import annotations

import re


def spans_of(text: str) -> list[tuple[int, int]]:
    """From where to where each statement goes, without the spaces around it."""
    found = []
    for line in re.finditer(r"[^\n]+", text):
        start = line.start()
        for match in re.finditer(r"(?<=[a-z0-9)\"'][.!?]) +(?=[A-Z\"'(])", line[0]):
            found.append((start, line.start() + match.start()))
            start = line.start() + match.end()
        found.append((start, line.end()))
    return [(a + len(text[a:b]) - len(text[a:b].lstrip()), b) for a, b in found if text[a:b].strip()]
