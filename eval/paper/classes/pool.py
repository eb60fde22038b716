"""Cells over processes: bases first, then all rows but those that go by another row, then these.

A cell that is there is skipped; one that fails is told at the end, and tried again by the next call. A worker loads a
data set once, has one thread, and ends with its parent.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path

import torch
from tqdm import tqdm

from eval.paper.classes import cells
from eval.paper.classes.cells import Cell
from eval.paper.classes.entries import ROWS
from eval.paper.classes.sources import Source, load
from eval.paper.classes.splits import digest
from eval.paper.classes.worlds import World


@dataclass(frozen=True)
class Place:
    """Where a data set is read from."""

    source: str
    data: Path | None
    named: str | None


@lru_cache(maxsize=2)  # as many as differ in one world after the other
def _loaded(place: Place) -> Source | None:
    return load(place.source, place.data, place.named)


def digest_of(place: Place) -> int | None:
    """The data's; None where there are none."""
    source = _loaded(place)
    return None if source is None else digest(source)


def cells_of(
    worlds: Iterable[World], seeds: Sequence[int], digests: Mapping[str, int | None], rows: Iterable[str] = tuple(ROWS)
) -> list[Cell]:
    """All of them, those that lack no data."""
    return [
        Cell(world, found, row, seed)
        for world in worlds
        if (found := digests[world.source]) is not None
        for seed in seeds
        for row in rows
    ]


def run(
    wanted: Sequence[Cell], places: Mapping[str, Place], output: Path, jobs: int, say: Callable[[str], None]
) -> list[str]:
    """Do what is not there; what failed, and why."""
    left = [cell for cell in wanted if cells.held(cell, output) is None]
    bases = list({cell.base: cell for cell in left if not cells.has_base(cell, output)}.values())
    first, last = ([cell for cell in left if bool(ROWS[cell.row].after) is after] for after in (False, True))
    say(f"{len(wanted):,} cells, {len(left):,} of them to do, and {len(bases)} bases, in {jobs} processes.")
    if not left:
        return []
    failed: list[str] = []
    started, done, total = time.monotonic(), 0, len(left) + len(bases)
    executor = ProcessPoolExecutor(jobs, get_context("spawn"), _begun)
    with tqdm(total=total, unit="cell", smoothing=0.1, dynamic_ncols=True, disable=None) as bar:
        try:
            for stage, base in ((bases, True), (first, False), (last, False)):
                going = {executor.submit(_done, c, places[c.world.source], output, base=base): c for c in stage}
                for future in as_completed(going):
                    cell, done = going[future], done + 1
                    name = f"{cell.world.name}, {'base' if base else cell.row}, seed {cell.seed}"
                    failed += _reason(name, future)
                    bar.set_description_str(name[:40])
                    bar.update()
                    if bar.disable:  # where there is no terminal, a line each
                        rest = (time.monotonic() - started) / done * (total - done) / 60
                        say(f"{done}/{total} {name}; about {rest:.0f} minutes left")
        finally:  # also where it is interrupted: what was begun is finished, and the rest is left
            executor.shutdown(cancel_futures=True)
    return failed


def _reason(name: str, future: Future[None]) -> list[str]:
    error = future.exception()
    return [] if error is None else [f"{name}: {type(error).__name__}: {error}"]


# --- the worker's side ------------------------------------------------------------------------------------------------


def _begun() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a worker is spawned"
    wait([parent.sentinel])
    os._exit(1)


def _done(cell: Cell, place: Place, output: Path, *, base: bool) -> None:
    source = _loaded(place)
    assert source is not None, "only what is there is asked for"
    (cells.make_base if base else cells.run)(cell, source, output)
