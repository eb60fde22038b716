r"""A comparison as tables for a terminal, Markdown and LaTeX (booktabs, as in the paper), and as JSON.

Scores are mean ± the bootstrap's standard deviation over questions, in brackets the standard deviation between
trainings where there are several. The best update in a column is bold; the base competes with nobody.

JSON, a Comparison as it is, with "format" and "version" first. Of numbers that are not finite it has null:

    {"format": "srt_peft comparison", "version": 1,
     "suite": "qa", "metric": "accuracy" | "nll" | "perplexity", "unit": "points",
     "base": label | null, "splits": ["old", "new"], "level": 0.95, "resamples": 10000, "seed": 0,
     "standings": [{
        "label": "srt", "trainings": 3,
        "scores": {split | "combined": ESTIMATE},
        "effects": {split | "combined": {"kind": "forgetting" | "transfer" | "change",
                                         "difference": ESTIMATE, "p": 0.01}},
        "verdicts": [{"split": "old", "outcome": "forgot" | "kept" | "undecided", "loss": 1.2, "low": …, "high": …,
                      "level": 0.95, "allowance": 2.0, "unit": "points", "questions": 500, "more_questions": 790 | null,
                      "trainings": 3, "between": 0.4 | null, "sentence": "…"}]}]}

    ESTIMATE: {"mean": 0.49, "sd": 0.02, "low": 0.45, "high": 0.53, "n": 500, "runs": [a training's mean, …],
               "between": 0.01 | null}

Estimates are in the records' own unit, shares of 1 or nats a token (perplexity is exp(mean)); verdicts are in "unit".
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from srt_peft.evaluation.bootstrap import Estimate
from srt_peft.evaluation.compare import COMBINED, Comparison, Effect, Standing
from srt_peft.evaluation.verdict import METRICS, number

_WIDE = 6
"""With more columns than this, splits stand in rows."""


@dataclass(frozen=True)
class _Cell:
    """Words, or a number with what stands beside it."""

    words: str = ""
    number: str = ""
    sd: str = ""
    between: str = ""
    bold: bool = False


_Rows = list[list[_Cell]]


def terminal(comparison: Comparison) -> str:
    """Aligned columns, notes, and the verdicts."""
    parts = [_aligned(rows) for rows in _tables(comparison)]
    return "\n\n".join([*parts, "\n".join([_note(comparison), *_verdicts(comparison)])]) + "\n"


def markdown(comparison: Comparison) -> str:
    """Tables as GitHub shows them."""
    parts = [_piped(rows) for rows in _tables(comparison)]
    notes = [_escaped(note, _MARKDOWN) for note in (_note(comparison), *_verdicts(comparison))]
    return "\n\n".join([*parts, *notes]) + "\n"


def latex(comparison: Comparison) -> str:
    """Tabulars with booktabs' rules, and the note as a comment."""
    parts = [_tabular(rows) for rows in _tables(comparison)]
    return "\n\n".join([f"% {_plain(_note(comparison))}", *parts]) + "\n"


def to_json(comparison: Comparison) -> str:
    """The comparison as the schema above has it."""
    document = {"format": "srt_peft comparison", "version": 1, **asdict(comparison)}
    return json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "latex": latex,
    "json": to_json,
}


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- what stands in the tables ----------------------------------------------------------------------------------------


def _tables(comparison: Comparison) -> list[_Rows]:
    """The scores; and what became of the base's, where there is a base."""
    scores = _scores(comparison)
    if len(scores[0]) - 1 > _WIDE:
        scores = [list(column) for column in zip(*scores, strict=True)]
    changed = [standing for standing in comparison.standings if standing.effects]
    return [scores, _effects(comparison, changed)] if changed else [scores]


def _scores(comparison: Comparison) -> _Rows:
    """A row a condition, a column a split."""
    names = list(comparison.standings[0].scores)
    rows = [[_Cell(standing.label)] for standing in comparison.standings]
    for name in names:
        column = [_score(comparison.metric, standing.scores[name]) for standing in comparison.standings]
        for row, cell in zip(rows, _best_in_bold(comparison, column), strict=True):
            row.append(cell)
    return [[_Cell(comparison.suite), *(_Cell(_title(name)) for name in names)], *rows]


def _score(metric: str, score: Estimate) -> _Cell:
    show, slope = METRICS[metric].show(score.mean), METRICS[metric].slope(score.mean)
    between = "" if score.between is None else _digits(slope * score.between, metric)
    return _Cell(number=_digits(show, metric), sd=_digits(slope * score.sd, metric), between=between)


def _best_in_bold(comparison: Comparison, column: Sequence[_Cell]) -> list[_Cell]:
    """The updates that look best, where there are two or more; equal to the printed digit is equal."""
    sign = METRICS[comparison.metric].sign
    rivals = [
        sign * float(cell.number)
        for cell, standing in zip(column, comparison.standings, strict=True)
        if standing.label != comparison.base
    ]
    return [
        replace(
            cell,
            bold=len(rivals) > 1 and standing.label != comparison.base and sign * float(cell.number) == max(rivals),
        )
        for cell, standing in zip(column, comparison.standings, strict=True)
    ]


def _effects(comparison: Comparison, changed: Sequence[Standing]) -> _Rows:
    """A row a condition and split: the paired difference from the base, its interval, and p."""
    head = ["against " + str(comparison.base), "on", "", comparison.unit, f"{100 * comparison.level:g} % interval", "p"]
    body = []
    for standing in changed:
        for name, effect in standing.effects.items():
            words = [standing.label, _title(name), effect.kind]
            body.append([*map(_Cell, words), *_effect(comparison.metric, effect)])
    return [[*map(_Cell, head)], *body]


def _effect(metric: str, effect: Effect) -> list[_Cell]:
    factor, found = METRICS[metric].factor, effect.difference
    unit = METRICS[metric].unit
    mean, low, high = (number(factor * x, unit, "+") for x in (found.mean, found.low, found.high))
    between = "" if found.between is None else number(factor * found.between, unit)
    p = "< 0.001" if effect.p < 0.001 else f"{effect.p:.3f}"
    return [_Cell(number=mean, between=between), _Cell(f"{low} to {high}"), _Cell(p)]


def _note(comparison: Comparison) -> str:
    shown = {"accuracy": "Accuracy in %", "nll": "Perplexity, exp(mean NLL)", "perplexity": "Mean perplexity"}
    counts = ", ".join(f"{comparison.standings[0].scores[s].n:,} {s}" for s in comparison.splits)
    several = [f"{s.label} {s.trainings}" for s in comparison.standings if s.trainings > 1]
    spread = f"; in brackets, standard deviation between trainings ({', '.join(several)})" if several else ""
    tested = ", of the mean over these trainings" if several else ""
    paired = f" Differences are paired by question; p is that of a sign-flip test{tested}." if comparison.base else ""
    return (
        f"{shown[comparison.metric]} ± bootstrap standard deviation over questions, {comparison.resamples:,} resamples"
        f"{spread}. Questions: {counts}.{paired}"
    )


def _verdicts(comparison: Comparison) -> list[str]:
    return [f"{standing.label}: {one.sentence}" for standing in comparison.standings for one in standing.verdicts]


def _title(name: str) -> str:
    return name.capitalize() if name in {"old", "new", "changed", "unchanged", COMBINED} else name


def _digits(value: float, metric: str) -> str:
    """As in the paper: accuracy with one decimal, a large perplexity with none."""
    if metric == "accuracy":
        return f"{value:.1f}"
    return f"{value:.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


# --- how it is written ------------------------------------------------------------------------------------------------

_MARKDOWN = str.maketrans({character: "\\" + character for character in "\\`*_{}[]<>#|~$&"})
_LATEX = str.maketrans(
    {
        **{character: "\\" + character for character in "{}$&#_%"},
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        "−": "$-$",
        "±": r"$\pm$",
    }
)


def _escaped(text: str, table: dict[int, str]) -> str:
    return _plain(text).translate(table)


def _plain(text: str) -> str:
    """Without line breaks and other control characters, which a label may have brought along."""
    return re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text)).strip()


def _text(cell: _Cell) -> str:
    """For a terminal."""
    between = f" (± {cell.between})" if cell.between else ""
    return _plain(cell.words) or cell.number + (f" ± {cell.sd}" if cell.sd else "") + between


def _marked(cell: _Cell) -> str:
    """For Markdown."""
    text = _escaped(_text(cell), _MARKDOWN)
    return f"**{text}**" if cell.bold else text


def _typeset(cell: _Cell) -> str:
    r"""For LaTeX: $54.3\pm2.1$, bold as in the paper's tables."""
    if not cell.number:
        return _escaped(cell.words, _LATEX)
    number = cell.number.replace("−", "-") + (rf"\pm{cell.sd}" if cell.sd else "")
    text = f"${number}" + (rf"\;(\pm{cell.between})$" if cell.between else "$")
    return rf"\textbf{{\boldmath {text}}}" if cell.bold else text


def grid(style: str, rows: Sequence[Sequence[str]]) -> str:
    """Any table of texts, the first row of which is its head, in one of the styles."""
    writers = {"terminal": _aligned, "markdown": _piped, "latex": _tabular}
    return writers[style]([[_Cell(text) for text in row] for row in rows])


def _aligned(rows: _Rows) -> str:
    """Words to the left in the first column, everything else to the right, a rule under the head."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*texts, strict=True)]
    lines = []
    for row in texts:
        pads = [" " * (width - _width(text)) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0] + pads[0], *(p + t for p, t in zip(pads[1:], row[1:], strict=True))]).rstrip())
    return "\n".join([lines[0], "─" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])


def _piped(rows: _Rows) -> str:
    """A table as GitHub shows it."""
    head, *body = [[_marked(cell) for cell in row] for row in rows]
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *body])


def _tabular(rows: _Rows) -> str:
    """A table with booktabs' rules."""
    head, *body = [" & ".join(map(_typeset, row)) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    begun = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*begun, *body, r"\bottomrule", r"\end{tabular}"])


def _width(text: str) -> int:
    """How many columns of a terminal it takes: wide characters two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
