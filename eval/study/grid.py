"""Cells over processes: what is there is skipped, what fails is told at the end, and a kill loses no finished cell.

A worker does one task at a time, on one thread, and dies with its parent; the parent learns of a worker's death by the
end of its pipe, counts the task as failed, and starts another. Bases come before worlds, worlds before cells, and cells
before those that take their measure from them.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.study.plan import Cell, Plan


@dataclass(frozen=True)
class Task:
    """What a worker does: make a base or a world, or run a cell."""

    kind: str
    name: str
    cell: Cell
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A task that came to nothing, and why."""

    name: str
    reason: str


def tasks_of(plan: Plan, output: Path) -> list[Task]:
    """What is left to do, in an order in which it can be done."""
    from eval.study import cells, worlds  # noqa: PLC0415 - torch takes seconds

    bases: dict[str, Task] = {}
    places: dict[str, Task] = {}
    left: list[Task] = []
    todo = {cell.place for cell in plan.cells() if cells.held(cell, output) is None}
    for cell in plan.cells():
        if cell.place not in todo:
            continue
        base = f"base {worlds.base_key(cell.world, cell.seed)}"
        place = f"world {worlds.place_of(cell.world, cell.seed, Path())}"
        bases.setdefault(base, Task("base", base, cell))
        places.setdefault(place, Task("world", place, cell, (base,)))
        left.append(Task("cell", cell.place, cell, (place, *(one for one in cell.after if one in todo))))
    return [*bases.values(), *places.values(), *left]


def run(tasks: Sequence[Task], *, data: Path | None, output: Path, jobs: int) -> list[Failure]:
    """Do all of it; what failed, and whatever waited for that."""
    shutil.rmtree(output / "scratch", ignore_errors=True)
    left, done, failed = list(tasks), set[str](), list[Failure]()
    workers: dict[Any, _Worker] = {}
    cells, number = sum(task.kind == "cell" for task in tasks), 0
    started = time.monotonic()
    with tqdm(total=cells, unit="cell", smoothing=0.1, dynamic_ncols=True, disable=None) as bar:
        try:
            while left or any(worker.task for worker in workers.values()):
                left = _unblocked(left, failed, bar)
                for task in _ready(left, done, jobs - sum(worker.task is not None for worker in workers.values())):
                    left.remove(task)
                    _free(workers, data, output).begin(task)
                    bar.set_description_str(task.name.removesuffix(".json").removeprefix("cells/")[:50])
                busy = [worker for worker in workers.values() if worker.task]
                for pipe in wait([worker.pipe for worker in busy]) if busy else ():
                    worker = workers[pipe]
                    task, reason = worker.ended()
                    if worker.gone:
                        del workers[pipe]
                    if reason:
                        failed.append(Failure(task.name, reason))
                    done.add(task.name)
                    bar.update(task.kind == "cell")
                    number += task.kind == "cell"
                    if bar.disable and task.kind == "cell":
                        _line(number, cells, task, reason, started)
        finally:
            for worker in workers.values():
                worker.end()
            shutil.rmtree(output / "scratch", ignore_errors=True)
    return failed


def _line(number: int, cells: int, task: Task, reason: str, started: float) -> None:
    """Where there is no terminal: a line a cell."""
    rest = (time.monotonic() - started) / number * (cells - number) / 60
    how = "failed" if reason else "done"
    print(f"{number}/{cells} {task.name}: {how}; about {rest:.0f} minutes left", file=sys.stderr, flush=True)


def _unblocked(left: list[Task], failed: list[Failure], bar: Any) -> list[Task]:
    """Without those that wait for what has failed, which fail as well."""
    bad = {failure.name for failure in failed}
    kept = []
    for task in left:
        lacking = next((name for name in task.after if name in bad), None)
        if lacking is None:
            kept.append(task)
        else:
            bad.add(task.name)
            failed.append(Failure(task.name, f"It needs {lacking}, which has failed."))
            bar.update(task.kind == "cell")
    return kept


def _ready(left: Iterable[Task], done: set[str], free: int) -> list[Task]:
    """The next that wait for nothing, as many as there is room for."""
    return list(islice((task for task in left if done.issuperset(task.after)), free))


class _Worker:
    """A process, the pipe to it, and what it is at."""

    def __init__(self, data: Path | None, output: Path) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.task: Task | None = None
        self.gone = False
        self._process = context.Process(target=_work, args=(theirs, data, output, os.getpid()))
        self._process.start()
        theirs.close()

    def begin(self, task: Task) -> None:
        self.task = task
        self.pipe.send(task)

    def ended(self) -> tuple[Task, str]:
        """What was done, and why it failed, if it did."""
        task, self.task = self.task, None
        assert task is not None, "it is asked for when something came"
        try:
            return task, self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            self.gone = True
            return task, f"Its process has died (exit code {self._process.exitcode})."

    def end(self) -> None:
        """At once where it is at something, and else as it ends by itself."""
        self.pipe.close()
        if self.task is None:
            self._process.join(10)
        self._process.kill()
        self._process.join()


def _free(workers: dict[Any, _Worker], data: Path | None, output: Path) -> _Worker:
    for worker in workers.values():
        if worker.task is None:
            return worker
    made = _Worker(data, output)
    workers[made.pipe] = made
    return made


def _work(pipe: Connection, data: Path | None, output: Path, parent: int) -> None:
    """The worker's side: one task after another, until the pipe ends."""
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    import torch  # noqa: PLC0415 - takes seconds
    from transformers.utils import logging  # noqa: PLC0415 - takes seconds

    torch.set_num_threads(1)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # a passage is counted before it is cut
    while True:
        try:
            task: Task = pipe.recv()
            pipe.send(_reason(task, data, output))
        except (EOFError, BrokenPipeError):  # nobody is there to tell
            return


def _die_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _reason(task: Task, data: Path | None, output: Path) -> str:
    """Why the task failed; nothing if it did not. The whole of it lies in the study's folder."""
    try:
        perform(task, data, output)
    except KeyboardInterrupt:
        return "It was interrupted."
    except Exception as error:  # noqa: BLE001 - one failing cell does not stop the rest
        path = output / "failed" / f"{task.name.replace('/', '-').replace(' ', '-')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
        return f"{type(error).__name__}: {error} (all of it: {path})"
    return ""


def perform(task: Task, data: Path | None, output: Path) -> None:
    """A base, a world, or a cell; what they say is nobody's to read."""
    from eval.study import cells, worlds  # noqa: PLC0415 - torch takes seconds

    cell = task.cell
    if task.kind == "cell":
        cells.run(cell, output)
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        make = worlds.make_base if task.kind == "base" else worlds.make_world
        make(cell.world, cell.seed, data, output)
