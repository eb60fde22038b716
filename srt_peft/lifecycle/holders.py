"""Who else has what is forgotten: adapters that were trained on it, and other runs that hold it.

Weights cannot be wound back, so each adapter is told, with the steps at which it was trained on which of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.data import history
from srt_peft.errors import LockedError, SRTError
from srt_peft.lifecycle.choosing import Holder, look
from srt_peft.lifecycle.erasing import Leaving
from srt_peft.lifecycle.inspect import running
from srt_peft.review import ReviewLog, ReviewState
from srt_peft.training import checkpoint
from srt_peft.training.folder import RECIPE, REVIEW, RUNS
from srt_peft.training.recipe import load_recipe


def holding(root: Path, holder: Holder, leaving: Leaving, given: Sequence[Path]) -> list[Path]:
    """The other runs that we know of and that hold some of them; one that is being trained is not to be disturbed."""
    mine, found = {run.resolve() for run in given}, []
    for run in _known(root, holder):
        if run in mine:
            continue
        if _holds(run, leaving):
            if running(run):
                raise LockedError(
                    f"{run} has some of these examples, and is being trained at this moment. Nothing was changed: wait "
                    "until it has ended, and try again."
                )
            found.append(run)
    return found


def _holds(run: Path, leaving: Leaving) -> bool:
    """Whether a run has some of them, in its texts, its history or its state: as much of it as can be read."""
    parts: list[Callable[[], Any]] = [lambda: look(run).identities]
    if (run / history.FOLDER).is_dir():
        parts.append(lambda: history.open_history(run / history.FOLDER).seen)
    parts += [lambda p=p: ReviewState.open(p / "srt_state").identity for p in checkpoint.all_of(run)[-1:]]  # type: ignore[misc]
    for part in parts:
        with suppress(SRTError, OSError):
            identity = part()
            if identity is not None and leaving.of(identity).any():
                return True
    return False


def _known(root: Path, holder: Holder) -> list[Path]:
    """Runs that have used this cache, those beside the run, and those that it follows."""
    found = []
    if (root / RUNS).is_file():
        for line in (root / RUNS).read_text(encoding="utf-8").splitlines():
            try:
                found.append(Path(json.loads(line)))
            except ValueError:  # torn by a kill
                continue
    found += [path.parent for path in holder.run.resolve().parent.glob(f"*/{RECIPE}")]
    past = holder.past
    while past is not None and Path(past.about["run"]).resolve() not in found[-1:]:
        found.append(Path(past.about["run"]).resolve())
        try:
            past = history.open_history(found[-1] / history.FOLDER)
        except (SRTError, OSError):
            past = None
    return [run for run in dict.fromkeys(run.resolve() for run in found) if (run / RECIPE).is_file()]


def adapters(holder: Holder, leaving: Leaving, gone: NDArray[np.bool_], others: Sequence[Path]) -> list[dict[str, Any]]:
    """Every adapter that was trained on them, as far as the folders tell, and at which steps."""
    steps = list(_trained(holder, leaving, gone))
    found: list[dict[str, Any]] = []
    for path in checkpoint.all_of(holder.run):
        mine = sorted(step for step, _ in steps if step < checkpoint.step_of(path))
        if mine:
            who = {row for step, row in steps if step < checkpoint.step_of(path)}
            told = {"path": str(path), "reviews": len(mine), "examples": len(who), "steps": sorted(set(mine))}
            found += [told, *({**told, "path": str(m)} for m in _merged(holder.run, path))]
    for other in others:
        model = load_recipe(other / RECIPE).model
        of = model.adapter or model.base
        begun = [one for one in found if Path(one["path"]).resolve() == Path(of).expanduser().resolve()]
        found += [{**begun[0], "path": str(path)} for path in checkpoint.all_of(other)] if begun else []
    return found


def _trained(holder: Holder, leaving: Leaving, gone: NDArray[np.bool_]) -> Iterator[tuple[int, bytes]]:
    """(step, who) of each time that one of them was trained on, in this update and in those before."""
    logs = [(holder.run / REVIEW / "log", holder.state_identity, gone)]
    if holder.past is not None:
        identity = holder.past.train.identity
        logs.append((holder.past.folder / history.LOG, identity, leaving.of(identity)))
    for path, identity, mine in logs:
        if path.is_file():
            with ReviewLog(path) as log:
                for part in log.parts():
                    told = part[(part["id"] >= 0) & (part["untrained"] == 0)]
                    for record in told[mine[told["id"]]]:
                        yield int(record["step"]), identity[record["id"]].tobytes()


def _merged(run: Path, path: Path) -> Iterator[Path]:
    for about in (run / "merged").glob("*/merge.json"):
        try:
            step = json.loads(about.read_text(encoding="utf-8"))["checkpoint"]["step"]
        except (ValueError, KeyError, TypeError):
            continue
        if step == checkpoint.step_of(path):
            yield about.parent
