"""What a run drew, by its review log, and what it cost, by its metrics: NumPy only.

    realised old share   old draws / all draws, to be held against ρ
    coverage             the share of a pool's examples that were drawn at all
    repeats              the share of a pool's draws that went to an example that had been drawn before
    empty steps          steps at which nothing was due, so that nothing was learned

    tokens trained       those of every draw, forward and backward
    forward-only tokens  those of passes from which nothing is learned: `ppl` scores every example once, to begin
                         with. An evaluation is no part of a run, and does not count.

What cannot be said is None: the coverage of a pool that has no examples, repeats where nothing was drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from srt_peft.review import ReviewLog
from srt_peft.review.log import NOBODY

POOLS = ("old", "new")
Figures = dict[str, float | None]
Spread = dict[str, float | None]
"""{"mean": …, "sd": …}: over seeds; sd is None where there is one."""


def exposure_of(log: Path, sizes: Sequence[int]) -> Figures:
    """What was drawn from the pools, old and new, of these sizes."""
    with ReviewLog(log) as opened:
        records = opened.records()
    drawn = records[records["id"] != NOBODY]
    ids = [drawn["id"][drawn["pool"] == pool] for pool in range(len(POOLS))]
    distinct = [np.unique(part).size for part in ids]
    figures: Figures = {"realised_old_share": _share(ids[0].size, drawn.size)}
    figures |= {f"coverage_{name}": _share(distinct[i], sizes[i]) for i, name in enumerate(POOLS)}
    figures |= {f"repeats_{name}": _share(ids[i].size - distinct[i], ids[i].size) for i, name in enumerate(POOLS)}
    return figures | {"empty_steps": records.size - drawn.size}


def compute_of(metrics: Path, *, forward_only: int) -> Figures:
    """What the steps cost; `forward_only` is what was scored beside them."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "tokens" in line]
    return {
        "steps": len(steps),
        "tokens_trained": sum(line["tokens"] for line in steps),
        "forward_only_tokens": forward_only,
        "seconds": round(sum(line["seconds"] for line in steps), 3),
    }


def over_seeds(runs: Sequence[Mapping[str, float | None]]) -> dict[str, Spread]:
    """The mean and standard deviation of each figure; None where no run has it."""
    return {name: _spread([run[name] for run in runs]) for name in runs[0]} if runs else {}


def _spread(figures: Sequence[float | None]) -> Spread:
    known = [float(figure) for figure in figures if figure is not None]
    return {"mean": fmean(known) if known else None, "sd": stdev(known) if len(known) > 1 else None}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def unequal(
    exposure: Mapping[str, dict[str, Spread]], compute: Mapping[str, dict[str, Spread]], rho: float
) -> Iterator[str]:
    """What was not equal between the entries of a contest, although their steps are, a sentence each."""
    shares = {name: of["realised_old_share"]["mean"] for name, of in exposure.items() if name != "cpt"}
    off = [f"{name} {100 * share:.1f} %" for name, share in shares.items() if share and abs(share - rho) > 0.02]
    if off:
        control = "" if "match" in exposure else " `match` would tell: it draws srt's counts without a schedule."
        yield (
            f"The share of old is not ρ = {100 * rho:g} %, but with {', '.join(off)}: a difference may come of the "
            f"share itself, and not of which examples were drawn.{control}"
        )
    tokens = {name: of["tokens_trained"]["mean"] or 0.0 for name, of in compute.items()}
    least, most = (pick(tokens, key=lambda name: tokens[name]) for pick in (min, max))
    if tokens[most] > 1.01 * tokens[least]:
        yield (
            f"Tokens trained on are not equal: {tokens[least]:,.0f} with {least}, {tokens[most]:,.0f} with {most}. "
            "Draws are of equally many examples where so many are due, and examples differ in length."
        )
    beside = [name for name, of in compute.items() if of["forward_only_tokens"]["mean"]]
    if beside:
        yield f"Beside what it trained on, {', '.join(beside)} scored every example once, which the others did not."
