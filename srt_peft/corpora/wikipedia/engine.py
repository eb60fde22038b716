"""Where the map and the reduce run: in processes of this machine, or on a Ray cluster. The functions are the same.

A task is one call whose result is a file in a folder that all can write to; it is small, and its order does not matter.
So an engine has little to do: run all of them, tell how far it is, and let the first failure out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any

from srt_peft.corpora.wikipedia.dump import Advance
from srt_peft.data import processes
from srt_peft.errors import OptionError

Task = tuple[int, Any]
"""How much of the progress bar it is, and what the function is given."""
Function = Callable[[Any, Advance], Any]
Engine = Callable[[Function, Iterator[Task], Advance], Iterator[Any]]
_AHEAD = 2
"""Tasks that wait for each process: a reduce task holds its pairs' places, so there must not be all of them."""


def engine_of(name: str, workers: int | None) -> Engine:
    """The engine by its name; one that is not installed is told of before anything is begun, or gone on with."""
    if name == "ray" and find_spec("ray") is None:
        fault = "--engine = ray: it is not installed: pip install 'srt-peft[ray]', here and on the nodes"
        raise OptionError("the arguments", [fault])
    count = workers or processes.cores()

    def run(function: Function, tasks: Iterator[Task], advance: Advance) -> Iterator[Any]:
        return ENGINES[name](function, tasks, advance, count)

    return run


def _local(function: Function, tasks: Iterator[Task], advance: Advance, count: int) -> Iterator[Any]:
    if count == 1:
        for _, task in tasks:
            yield function(task, advance)
        return
    done = processes.context().Value("q", 0)
    seen = 0
    try:
        with processes.pool(count, _begin, (function, done)) as pool:
            waiting: set[Future[Any]] = set()
            try:
                waiting |= {pool.submit(_here, task) for _, task in islice(tasks, _AHEAD * count)}
                while waiting:
                    ready, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                    waiting |= {pool.submit(_here, task) for _, task in islice(tasks, len(ready))}
                    for future in ready:
                        yield future.result()
                    now = done.value
                    advance(now - seen)
                    seen = now
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    except BrokenProcessPool:
        raise processes.killed(count) from None


_at_work: list[Any] = []


def _begin(function: Function, done: Any) -> None:
    _at_work[:] = [function, done]


def _here(task: Any) -> Any:
    function, done = _at_work

    def advance(much: int) -> None:
        with done.get_lock():
            done.value += much

    return function(task, advance)


def _ray(function: Function, tasks: Iterator[Task], advance: Advance, count: int) -> Iterator[Any]:
    ray: Any = import_module("ray")  # a second
    ours = not ray.is_initialized()
    if ours:  # RAY_ADDRESS names a cluster; without it, one is begun on this machine, for as long as we run
        elsewhere = "RAY_ADDRESS" in os.environ
        ray.init(log_to_driver=False, **({} if elsewhere else {"num_cpus": count, "include_dashboard": False}))
    remote = ray.remote(function)
    count = max(count, int(ray.cluster_resources().get("CPU", 1)))
    try:
        running = {remote.remote(task, _nobody): size for size, task in islice(tasks, _AHEAD * count)}
        while running:
            ready, _ = ray.wait(list(running))
            for one in ready:
                advance(running.pop(one))
                yield _got(ray, one)
            running.update({remote.remote(task, _nobody): size for size, task in islice(tasks, len(ready))})
    finally:
        if ours:
            ray.shutdown()


def _got(ray: Any, one: Any) -> Any:
    try:
        return ray.get(one)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause or error) from None


def _nobody(_much: int) -> None:
    """Progress is told by whole tasks: nobody counts within one on another machine."""


ENGINES: dict[str, Callable[[Function, Iterator[Task], Advance, int], Iterator[Any]]] = {"local": _local, "ray": _ray}
