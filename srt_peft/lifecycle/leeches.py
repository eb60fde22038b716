"""Examples set aside by request, and taken back, in the newest checkpoint of a run that is at rest.

The checkpoint's review state is written anew and its manifest with it (`checkpoint.revise`): resume and the next update
go on from there, and never draw whoever is set aside. The run is locked meanwhile, so that neither begins half-way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.errors import OptionError
from srt_peft.lifecycle import inspect
from srt_peft.lifecycle.inspect import Look
from srt_peft.lifecycle.which import checkpoint_of
from srt_peft.review import ReviewState, files
from srt_peft.review.rows import BY_REQUEST
from srt_peft.training import checkpoint
from srt_peft.training.folder import REVIEW, check_whole

Ids = NDArray[np.int64]


def suspend(run: Path, threshold: int) -> list[dict[str, Any]]:
    """Set the leeches aside that are not yet; who they are."""

    def choose(seen: Look) -> Ids:
        found = [one["id"] for one in inspect.leeches(seen, threshold)]
        aside = seen.state.columns["suspended"]
        ids = np.array([i for i in found if not aside[i] & BY_REQUEST], dtype=np.int64)
        _check_left(seen.state, ids, threshold)
        return ids

    return _changed(run, choose, ReviewState.suspend)


def revive(run: Path) -> list[dict[str, Any]]:
    """Take back all that are set aside by request; who they are. Those that are superseded stay aside."""

    def choose(seen: Look) -> Ids:
        return np.flatnonzero(seen.state.columns["suspended"] & BY_REQUEST)

    return _changed(run, choose, ReviewState.revive)


def _changed(
    run: Path, choose: Callable[[Look], Ids], change: Callable[[ReviewState, Ids], None]
) -> list[dict[str, Any]]:
    """Change the newest checkpoint's state for those that are chosen of it; who they are."""
    if not (run / "checkpoints").is_dir():
        fault = f"{run}: expected the folder of a run that has a checkpoint: its newest is what is changed"
        raise OptionError(inspect.WHAT, [fault])
    check_whole(run)
    lock = files.Lock(run / REVIEW / "state" / "lock", f"The run in {run}")
    try:
        chosen = checkpoint_of(run, inspect.WHAT)
        seen = inspect.at_checkpoint(str(run), chosen)
        ids = choose(seen)
        rows = [inspect.row(seen, i) for i in ids.tolist()]
        if ids.size:
            place = chosen.folder / "srt_state"
            state, scheduler = ReviewState.restore(place), files.read_manifest(place)["scheduler"]
            change(state, ids)
            checkpoint.revise(chosen.folder, {"srt_state": lambda to: state.snapshot(to, scheduler=scheduler)})
    finally:
        lock.release()
    return rows


def _check_left(state: ReviewState, ids: Ids, threshold: int) -> None:
    """Refuse to leave a pool without anybody to draw."""
    there = ~state.suspended
    before = (there[: state.n_old].any(), there[state.n_old :].any())
    there[ids] = False
    after = (there[: state.n_old].any(), there[state.n_old :].any())
    empty = [name for name, had, has in zip(inspect.POOLS, before, after, strict=True) if had and not has]
    if empty:
        fault = f"--leeches = {threshold}: that is every example of the {' and the '.join(empty)} pool"
        raise OptionError(inspect.WHAT, [f"{fault}, and nobody would be left to draw: expected a higher threshold"])
