"""A run's folder: taken for a new run or an old one, and mended where a power cut or a full disk has left it torn.

Nothing in it that is not a run's is ever removed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from srt_peft.data import tombstones
from srt_peft.data.ingest import home
from srt_peft.data.pool import MANIFEST, Pool
from srt_peft.data.tombstones import FORGOTTEN
from srt_peft.errors import DamagedError, OptionError, StateError
from srt_peft.review import ReviewLog, ReviewState
from srt_peft.review.files import Lock
from srt_peft.review.log import _HEAD_BYTES, RECORD
from srt_peft.training import checkpoint

RECIPE, METRICS, REVIEW, POOLS = "recipe.yaml", "metrics.jsonl", "review", "pools"
DECKS, SUMMARY = "decks.json", "summary.json"
PENDING, RUNS = "pending.json", "runs"
"""What `forget` has begun, in RUN/forgotten; and the runs that a home knows of, a line each."""


def claim(folder: Path, *, resume: bool) -> Path | None:
    """The checkpoint to go on from, or None for a fresh start in a folder that is cleared of unfinished attempts."""
    check_idle(folder)
    newest, faults = checkpoint.newest(folder)
    for fault in faults:
        _tell(f"passed over: {fault}")
    if resume and newest is not None:
        _tell(f"Going on from {newest}.")
        return newest
    if newest is not None:
        raise _refused(folder, "a run lies there already; give --resume to go on, or name another output")
    if faults:
        raise DamagedError(
            f"output = {folder}: none of the {len(faults)} checkpoints there is whole. Restore one from a copy and go "
            "on with --resume, or name another output to begin anew."
        )
    if resume:
        _tell(f"There is no checkpoint in {folder}: starting afresh.")
    try:
        _clear(folder)
    except OSError as error:
        reason = f"{error.strerror}: expected a folder, or a path where one can be made"
        raise _refused(folder, f"{reason}; name another output") from error
    return None


def check_run(folder: Path, what: str) -> None:
    """Refuse what is no run's folder; `what` is the command that asks, for its error."""
    if not (folder / RECIPE).is_file():
        raise OptionError(what, [f"RUN = {folder} holds no run: expected a folder that `srt-peft train` has written"])


def check_idle(folder: Path) -> None:
    """Refuse a folder in which a run is going on: its review state is locked as long as it is."""
    check_whole(folder)
    lock = folder / REVIEW / "state" / "lock"
    if lock.is_file():
        with suppress(PermissionError):  # which is told in its place
            Lock(lock, f"The run in {folder}").release()


def check_whole(folder: Path) -> None:
    """Refuse a folder in which something is half forgotten."""
    if (folder / FORGOTTEN / PENDING).is_file():
        raise StateError(
            f"{folder}: `forget` was interrupted there, and some of what it forgets is there still. Complete it: "
            f"`srt-peft forget {folder}`."
        )


def check_remembered(start: Path, folder: Path) -> None:
    """Refuse a checkpoint whose state follows what was forgotten in other runs."""
    identity, stones = ReviewState.open(start / "srt_state").identity, tombstones.load(home())
    if identity is not None and (count := int(stones.of("examples", identity).sum())):
        raise StateError(
            f"{count:,} examples of {folder} were forgotten in other runs: its texts do not have them any more, and "
            f"its review state has. Have this run forget them, too: `srt-peft forget {folder}`."
        )


def _clear(folder: Path) -> None:
    """Remove what an attempt left that came to no checkpoint; what cannot be a run's own is refused instead."""
    folder.mkdir(parents=True, exist_ok=True)
    review, metrics = folder / REVIEW, folder / METRICS
    strange = review.exists() and not (
        review.is_dir() and {p.name.partition(".")[0] for p in review.iterdir()} <= {"state", "log"}
    )
    if strange or (metrics.exists() and not (folder / RECIPE).exists()):
        name = REVIEW if strange else METRICS
        raise _refused(folder, f"{name} there was not made by a run, and would be overwritten; name another output")
    shutil.rmtree(review, ignore_errors=True)
    metrics.unlink(missing_ok=True)


def _refused(folder: Path, fault: str) -> OptionError:
    return OptionError("the recipe", [f"output = {folder}: {fault}"])


def replace(path: Path, text: str) -> None:
    """Put a text file in place in one step: a full disk or a kill leaves the one that was there."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    beside.replace(path)


def link_pools(folder: Path, pools: Mapping[str, Pool]) -> None:
    """Show where the run's texts lie: a link for each pool to its folder in the cache."""
    home = folder / POOLS
    home.mkdir(exist_ok=True)
    for name, pool in pools.items():
        link = home / name
        if (link / "train" / MANIFEST).is_file() and not link.is_symlink():
            shutil.rmtree(link)  # a copy: the run was copied with what its links led to
        elif link.exists() and not link.is_symlink():
            raise _refused(folder, f"{POOLS}/{name} there was not made by a run; name another output")
        link.unlink(missing_ok=True)
        link.symlink_to(pool.folder.parent.resolve(), target_is_directory=True)
    register(folder)


def register(folder: Path) -> None:
    """Note in our cache where a run lies: whoever forgets an example must know who else has it."""
    with suppress(OSError):
        path, line = home() / RUNS, f"{json.dumps(str(folder.resolve()))}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            file.seek(0)
            if line not in file.readlines():
                file.write(line)


def rewind_metrics(folder: Path, step: int) -> None:
    """Keep the lines of the steps before this one; what a power cut tore is no line, and is told."""
    path = folder / METRICS
    if not path.exists():
        return
    kept, torn = [], 0
    for line in path.read_bytes().splitlines():
        try:
            before = json.loads(line)["step"] < step
        except (ValueError, TypeError, KeyError):
            torn += 1
        else:
            kept += [line.decode()] if before else []
    if torn:
        _tell(f"{path}: {torn} torn lines are left out.")
    replace(path, "".join(f"{line}\n" for line in kept))


def check_log(folder: Path, step: int, first: int = 0) -> None:
    """Make sure that the review log can be gone on with: a damaged one is set aside, and what it lacks is told."""
    path = folder / REVIEW / "log"
    last = first - 1
    if path.exists():
        try:
            with ReviewLog(path) as log:
                # A power cut leaves zeros at the end, and no record is all zeros: a signal of 0 has quality 5.
                filled = log.records().view(np.uint8).reshape(-1, RECORD.itemsize).any(axis=1)
                os.truncate(path, _HEAD_BYTES + (np.flatnonzero(filled).max(initial=-1) + 1) * RECORD.itemsize)
                log.check_valid()
                steps = log.records()["step"]
        except DamagedError as error:
            _set_aside(path, step, str(error))
            return
        last = int(steps[steps < step].max(initial=last))
    if last < step - 1:
        _tell(f"{path} lacks the reviews of steps {last + 1} to {step - 1}; the review state has them.")


def _set_aside(path: Path, step: int, fault: str) -> None:
    aside = path.with_name(f"log.damaged-{step}")
    path.rename(aside)
    _tell(f"{fault} It is set aside as {aside}, and a new log goes on from step {step}.")


def _tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - what a person reads at the beginning
