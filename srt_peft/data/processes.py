"""Processes that work for this one: as many as there are cores, and none of them outlives it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from srt_peft.errors import StateError

_AHEAD = 3
"""Calls that wait for each process."""


def cores() -> int:
    """How many cores we may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def context() -> Any:
    """How they are begun: a fork needs no `if __name__ == "__main__"` of our caller, and imports nothing again."""
    from multiprocessing import get_all_start_methods, get_context  # noqa: PLC0415

    return get_context("fork" if "fork" in get_all_start_methods() else None)


def pool(count: int, first: Callable[..., None] | None = None, given: tuple[Any, ...] = ()) -> ProcessPoolExecutor:
    """So many processes; each does `first(*given)` before all else."""
    return ProcessPoolExecutor(count, mp_context=context(), initializer=_begin, initargs=(os.getpid(), first, given))


def in_order(executor: ProcessPoolExecutor, count: int, do: Callable[..., Any], calls: Iterable[Any]) -> Iterator[Any]:
    """What a function gives for the arguments of each call, in their order."""
    ahead: deque[Future[Any]] = deque()
    with executor:
        try:
            for call in calls:
                ahead.append(executor.submit(do, *call))
                if len(ahead) > _AHEAD * count:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except BrokenProcessPool:
            raise killed(count) from None
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


def killed(count: int) -> StateError:
    """What to tell when a process has gone."""
    return StateError(
        f"One of {count} processes was killed, probably for want of memory: run the same command again, with fewer "
        "workers. It begins with what was finished, where anything is kept of that."
    )


def _begin(parent: int, first: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if first is not None:
        first(*given)


def _end_with(parent: int) -> None:
    """End when the parent was killed: nobody would tell us, and we would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
