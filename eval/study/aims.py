"""What the study set out to reach, and whether it did: a line each, with the figures, for each world and tuning.

The reference is the better uniform of that world and tuning, by *both*. A miss is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from eval.study.figures import UNITS, Against, Block, Line, against

NEW_WITHIN = 5.0
"""Thousandths of a nat."""
FACTS = {
    "weighted": ("all of old", 3.0),
    "combined": ("new and all of old", 1.0),
    "mean": ("mean of sources", 3.0),
    "both": ("new and mean of sources", 1.0),
}
"""Points, by measure."""
QUIZZES = ("auto-quiz", "decks: off, quiz")
"""The rows that ask at every step."""


def told(found: Sequence[Block]) -> Iterator[str]:
    """The aims that something is known of, under their headings."""
    for title, check in AIMS.items():
        lines = [line for block in found for line in check(block, found)]
        if lines:
            yield f"\n**{title}**\n"
            yield from (f"- {line}" for line in lines)


Lines = Iterator[str]


def _mixed(block: Block, _: Sequence[Block]) -> Lines:
    """Worst at least 20 % lower, mean at least 10 %, new within 5 thousandths."""
    auto, reference = _pair(block, "auto")
    if not (auto and reference) or block.world.kind != "text" or len(sources_of(auto)) < 2 or _wrong(block):
        return
    for measure, least in (("worst", 20.0), ("mean", 10.0)):
        mine, theirs = auto.mean(measure), reference.mean(measure)
        lower = 100 * (theirs - mine) / theirs if theirs > 0 else float("nan")
        what = f"{measure} {_n(mine)} against {_n(theirs)}: {_n(lower, digits=0)} % lower, aim {least:.0f} %"
        yield _said(lower >= least, block, what, against(auto, reference, measure))
    new = against(auto, reference, "new")
    yield _said(new is not None and new.mean >= -NEW_WITHIN, block, f"new, aim −{NEW_WITHIN:.0f} or better", new)


def _equal_compute(block: Block, _: Sequence[Block]) -> Lines:
    auto, other = block.lines.get("auto"), block.lines.get("uniform-epoch, compute of auto")
    if auto and other and block.world.kind == "text" and len(sources_of(auto)) > 1 and not _wrong(block):
        found = against(auto, other, "mean")
        yield _said(found is not None and found.mean > 0, block, "mean of sources, auto against as much compute", found)


def _quiz(block: Block, _: Sequence[Block]) -> Lines:
    """Weighted lower than the better uniform's; cheaper forms under 10 % of a step with most of the gain."""
    if block.better is None or block.world.kind != "text" or _wrong(block):
        return
    for name in (name for name in QUIZZES if name in block.lines):
        found = against(block.lines[name], block.better, "weighted")
        yield _said(found is not None and found.mean > 0, block, f"all of old, {name}", found)
    quiz, auto = block.lines.get("auto-quiz"), block.lines.get("auto")
    if quiz is None or auto is None:
        return
    whole = auto.mean("mean") - quiz.mean("mean")
    for name in block.lines:
        if name.startswith("quiz,"):
            line = block.lines[name]
            extra = 100 * (block.compute(line) / block.compute(auto) - 1)
            kept = 100 * (auto.mean("mean") - line.mean("mean")) / whole if whole > 0 else float("nan")
            what = (
                f"{name}: {_n(extra)} % more compute than auto, {_n(kept, digits=0)} % of the quiz's gain in the mean"
            )
            yield _said(extra < 10 and kept > 50, block, what, None)


def _one(block: Block, _: Sequence[Block]) -> Lines:
    """Within noise of the better uniform, or ahead."""
    auto, reference = _pair(block, "auto")
    if auto and reference and block.world.kind == "text" and len(sources_of(auto)) == 1:
        for measure in ("mean", "new"):
            found = against(auto, reference, measure)
            yield _said(_no_worse(found), block, measure, found)


def _facts(block: Block, _: Sequence[Block]) -> Lines:
    """Old +3 points and both together +1 against epochs, by questions and by sources; both uniforms printed."""
    if block.world.kind != "facts" or block.world.superseded != "aside" or _wrong(block):
        return
    for quiz, name in product(QUIZZES, ("uniform-epoch", "uniform")):
        for measure, (what, least) in FACTS.items():
            if {quiz, name} <= block.lines.keys():
                found = against(block.lines[quiz], block.lines[name], measure)
                reached = found is not None and found.mean >= least
                yield _said(reached, block, f"{quiz}: {what} against {name}, aim +{least:.0f}", found)


def _aside(block: Block, blocks: Sequence[Block]) -> Lines:
    """Changed facts +10 points where superseded ones are set aside."""
    world = block.world
    if world.kind != "facts" or world.superseded != "aside":
        return
    for other in blocks:
        alike = (other.world.people, other.world.added, other.world.changed) == (
            world.people, world.added, world.changed,
        )  # fmt: skip
        if other.world.superseded == "replayed" and alike and other.tuning == block.tuning:
            for name in ("uniform-epoch", "auto", "auto-quiz"):
                if name in block.lines and name in other.lines:
                    found = against(block.lines[name], other.lines[name], "changed")
                    reached = found is not None and found.mean >= 10
                    yield _said(reached, block, f"changed facts, {name}, aside against replayed, aim +10", found)


def _shuffled(block: Block, _: Sequence[Block]) -> Lines:
    """No worse than uniform by more than noise."""
    auto, reference = _pair(block, "auto")
    if auto and reference and _wrong(block):
        for measure in ("mean", "weighted", "new"):
            found = against(auto, reference, measure)
            yield _said(_no_worse(found), block, f"{measure}, sources {block.world.sources}", found)


def _controls(block: Block, _: Sequence[Block]) -> Lines:
    """What is left of a schedule whose qualities were dealt out anew: less, if it has used them."""
    for name in ("auto", "auto-quiz"):
        spoiled, whole = block.lines.get(f"{name}, quality shuffled"), block.lines.get(name)
        if spoiled and whole:
            found = against(whole, spoiled, "mean")
            yield _said(found is not None and (found.low or 0) > 0, block, f"{name} above itself shuffled, mean", found)


AIMS: Mapping[str, Any] = {
    "Mixed old text, equal steps, auto": _mixed,
    "Mixed old text, equal compute, auto": _equal_compute,
    "Mixed old text, the quiz": _quiz,
    "One homogeneous old source, auto": _one,
    "Facts with the quiz": _facts,
    "Superseded facts set aside": _aside,
    "Wrong sources, auto": _shuffled,
    "Controls: does a schedule use what it measures?": _controls,
}


def sources_of(line: Line) -> list[str]:
    """The sources of old."""
    return list(next(iter(line.by_seed.values())).sources)


def _wrong(block: Block) -> bool:
    return block.world.sources == "shuffled"


def _pair(block: Block, name: str) -> tuple[Line | None, Line | None]:
    return block.lines.get(name), block.better


def _no_worse(found: Against | None) -> bool:
    return found is not None and (found.mean >= 0 if found.high is None else found.high >= 0)


def _said(reached: bool, block: Block, what: str, found: Against | None) -> str:  # noqa: FBT001 - a verdict
    told = f"{'reached' if reached else 'missed'}: {block.world.name}, {block.tuning}: {what}"
    if found is None:
        return told
    between = "" if found.low is None or found.high is None else f" ({_n(found.low, '+')} to {_n(found.high, '+')})"
    return f"{told}: {_n(found.mean, '+')}{between} {UNITS[block.metric][0]}, {found.seeds} seeds"


def _n(value: float, sign: str = "", digits: int = 1) -> str:
    return f"{value:{sign}.{digits}f}".replace("-", "−")
