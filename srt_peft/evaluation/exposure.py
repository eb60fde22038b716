"""What a run drew, by its review log, and what it cost, by its metrics: NumPy only.

    realised old share   old draws / all draws, to be held against ρ; what was asked and not trained on is no draw
    coverage             the share of a pool's examples that were drawn at all
    repeats              the share of a pool's draws that went to an example that had been drawn before
    empty steps          steps at which nothing was due, so that nothing was learned

    tokens trained       those of every draw, forward and backward
    forward-only tokens  those of passes from which nothing is learned: a first look (`ppl` scores every example once to
                         begin with), a reference pass (the base scores old examples), and quizzes, which ask some old
                         ones before a step. An evaluation is no part of a run, and does not count.

What cannot be said is None: the coverage of a pool that has no examples, repeats where nothing was drawn. A log that
lacks steps tells of the others alone, and that is said (`lacking`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from srt_peft.errors import DamagedError, StateError
from srt_peft.evaluation.entries import matched
from srt_peft.review import ReviewLog
from srt_peft.review.log import NOBODY

POOLS = ("old", "new")
PASSES = {"first look": "a first look", "reference": "a reference pass", "quiz": "quizzes"}
"""What is scored and not learned from, and how it is called in a sentence."""
Figures = dict[str, float | None]
Spread = dict[str, float | None]
"""{"mean": …, "sd": …}: over seeds; sd is None where there is one."""
_APART = 0.02
"""From how much on two shares of old are told to differ."""


def exposure_of(log: Path, sizes: Sequence[int]) -> Figures:
    """What was drawn from the pools, old and new, of these sizes."""
    with ReviewLog(log) as opened:
        opened.check_valid()
        records = opened.records()
    drawn = records[(records["id"] != NOBODY) & (records["untrained"] == 0)]
    ids = [drawn["id"][drawn["pool"] == pool] for pool in range(len(POOLS))]
    distinct = [np.unique(part).size for part in ids]
    figures: Figures = {"realised_old_share": _share(ids[0].size, drawn.size)}
    figures |= {f"coverage_{name}": _share(distinct[i], sizes[i]) for i, name in enumerate(POOLS)}
    figures |= {f"repeats_{name}": _share(ids[i].size - distinct[i], ids[i].size) for i, name in enumerate(POOLS)}
    return figures | {"empty_steps": np.unique(records["step"]).size - np.unique(drawn["step"]).size}


def lacking(log: Path, metrics: Path) -> str | None:
    """What the log lacks of the steps that metrics.jsonl has, in words: a log may be cut, or set aside as damaged."""
    taken = np.array([line["step"] for line in _lines(metrics) if "tokens" in line], dtype=np.int64)
    with ReviewLog(log) as opened:
        gone = np.setdiff1d(taken, opened.records()["step"])
    if not gone.size:
        return None
    return (
        f"its review log lacks {gone.size:,} of {taken.size:,} steps, from {gone[0]:,} to {gone[-1]:,}: what it drew "
        "is told of the others alone"
    )


def compute_of(metrics: Path) -> Figures:
    """What the steps cost, and what was scored before and beside them, in all and of each kind."""
    lines = _lines(metrics)
    steps = [line for line in lines if "tokens" in line]
    beside = dict.fromkeys(PASSES, 0)
    for line in lines:
        beside[line.get("pass", "quiz")] += line.get("forward_only_tokens", 0)
    return {
        "steps": len(steps),
        "tokens_trained": sum(line["tokens"] for line in steps),
        "forward_only_tokens": sum(beside.values()),
        **{_key(kind): tokens for kind, tokens in beside.items()},
        "seconds": round(sum(line.get("seconds", 0.0) for line in lines), 3),
    }


def _key(kind: str) -> str:
    return f"{kind.replace(' ', '_')}_tokens"


_NUMBERS = ("step", "tokens", "forward_only_tokens", "seconds")


def _lines(metrics: Path) -> list[dict[str, Any]]:
    """All of metrics.jsonl; a line that is torn would be missed in every sum."""
    try:
        text = metrics.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{metrics} cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            said = json.loads(line)
            whole = all(isinstance(said.get(name, 0), int | float) for name in _NUMBERS) and "step" in said
        except (ValueError, AttributeError):
            whole = False
        if not whole or said.get("pass", "quiz") not in PASSES:
            raise DamagedError(f"{metrics} is damaged: its line {number:,} is not as a run writes it.")
        found.append(said)
    return found


def over_seeds(runs: Sequence[Mapping[str, float | None]]) -> dict[str, Spread]:
    """The mean and standard deviation of each figure; None where no run has it."""
    return {name: _spread([run[name] for run in runs]) for name in runs[0]} if runs else {}


def _spread(figures: Sequence[float | None]) -> Spread:
    known = [float(figure) for figure in figures if figure is not None]
    return {"mean": fmean(known) if known else None, "sd": stdev(known) if len(known) > 1 else None}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# --- in words -------------------------------------------------------------------------------------------------------


def unequal(
    exposure: Mapping[str, dict[str, Spread]], compute: Mapping[str, dict[str, Spread]], rho: float
) -> Iterator[str]:
    """What was not equal between the entries of a contest, although their steps are, a sentence each."""
    yield from _shares(exposure, rho)
    tokens = {name: of["tokens_trained"]["mean"] or 0.0 for name, of in compute.items()}
    least, most = (pick(tokens, key=lambda name: tokens[name]) for pick in (min, max))
    if tokens[most] > 1.01 * tokens[least]:
        yield (
            f"Tokens trained on are not equal: {tokens[least]:,.0f} with {least}, {tokens[most]:,.0f} with {most}. "
            "Draws are of equally many examples where so many are due, and examples differ in length."
        )
    beside = [f"{name} {told}" for name, of in compute.items() if (told := _passes(of))]
    if beside:
        rest = "" if len(beside) == len(compute) else " The others scored nothing beside."
        yield (
            f"Scored beside what was trained on, forward only, in % of the tokens trained: {'; '.join(beside)}.{rest}"
        )


def _shares(exposure: Mapping[str, dict[str, Spread]], rho: float) -> Iterator[str]:
    """Whether all entries but `cpt`, which draws no old by design, drew as many old ones; and whether that is ρ."""
    known = {name: of["realised_old_share"]["mean"] for name, of in exposure.items() if name != "cpt"}
    shares = {name: share for name, share in known.items() if share is not None}
    if not shares:
        return
    least, most = (pick(shares, key=lambda name: shares[name]) for pick in (min, max))
    if shares[most] - shares[least] > _APART:
        schedule = matched(tuple(exposure))
        plain = shares.get("uniform-epoch", shares.get("uniform", rho))
        tells = schedule in shares and "match" not in exposure and abs(shares[str(schedule)] - plain) > _APART
        yield (
            f"The share of old is not equal: {100 * shares[least]:.1f} % with {least}, {100 * shares[most]:.1f} % with "
            f"{most}. A difference may come of the share itself, and not of which examples were drawn."
            + (f" `match` would tell: it draws {schedule}'s counts without a schedule." if tells else "")
        )
    off = [f"{name} {100 * share:.1f} %" for name, share in shares.items() if abs(share - rho) > _APART]
    if off:
        yield f"The share of old is not ρ = {100 * rho:g} % with {', '.join(off)}."


def _passes(compute: Mapping[str, Spread]) -> str:
    """What one entry has scored and not learned from."""
    trained = compute["tokens_trained"]["mean"] or 0.0
    tokens = {words: compute[_key(kind)]["mean"] or 0.0 for kind, words in PASSES.items()}
    return " and ".join(
        f"{words} ({100 * count / trained:.1f} %)" if trained else f"{words} ({count:,.0f} tokens)"
        for words, count in tokens.items()
        if count
    )
