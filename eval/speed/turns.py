"""Training loops that advance in turn, step by step, each in a thread of its own: what else the machine does meets all.

A loop calls `pause` after each of its steps, and there waits for its next turn; whatever it does from one pause to the
next is that step's. What it trains on is counted by a hook on the embeddings, the same for every loop.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import trange

PAD = 0
"""The token that is none."""


class EnoughError(Exception):
    """Ends a loop in its turn."""


@dataclass
class Figures:
    """Of each step: its seconds, those of the processor, its tokens, and how many places they took."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    loss: float = float("nan")
    """Of the first step."""
    peak: int = 0
    """Bytes, of the last."""


class Loop(threading.Thread):
    """A training loop that goes on for a step when it is told to, and waits in `pause` after each."""

    def __init__(self, body: Callable[[Loop], object]) -> None:
        super().__init__(daemon=True)
        self.body, self.figures = body, Figures()
        self.turn, self.over = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None
        self.ending = False
        self.seen: list[tuple[torch.Tensor, int]] = []

    def run(self) -> None:
        self.turn.acquire()
        try:
            if not self.ending:
                self.body(self)
        except EnoughError:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.error = error
        self.over.release()

    def watch(self, model: Any) -> None:
        """Count what the model trains on from now on; passes without a gradient are no training."""

        def count(_module: Any, given: tuple[torch.Tensor, ...]) -> None:
            if torch.is_grad_enabled():
                self.seen.append(((given[0] != PAD).sum(), given[0].numel()))

        model.get_input_embeddings().register_forward_pre_hook(count)

    def pause(self) -> None:
        """What the loop calls after each step."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.over.release()
        self.turn.acquire()
        if self.ending:
            raise EnoughError

    def step(self) -> None:
        """What the main thread calls: the loop's turn, from its pause to its next."""
        started, cpu = time.perf_counter(), time.process_time()
        self.turn.release()
        self.over.acquire()
        self.figures.seconds.append(time.perf_counter() - started)
        self.figures.cpu.append(time.process_time() - cpu)
        if self.error is not None:
            raise self.error
        self.figures.tokens.append(sum(int(tokens) for tokens, _ in self.seen))
        self.figures.places.append(sum(places for _, places in self.seen))
        self.seen.clear()

    def end(self) -> None:
        self.ending = True
        self.turn.release()
        self.join()


def take_turns(loops: Sequence[Loop], steps: int) -> None:
    """So many steps of each, in an order that rotates; the memory of the last is told, which is not to be timed."""
    for loop in loops:
        loop.start()
    try:
        for i in trange(steps - 1, desc="rounds", delay=2, disable=None, leave=False):
            at = i % len(loops)
            for loop in (*loops[at:], *loops[:at]):
                loop.step()
        for loop in loops:
            with memory(loop.figures):
                loop.step()
    finally:  # interrupted, too: what they hold open is closed before its folder goes
        for loop in loops:
            loop.end()


@contextmanager
def memory(figures: Figures) -> Iterator[None]:
    """What is taken meanwhile beyond what was there; resident memory where there is no GPU, which Linux tells."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield
        figures.peak = torch.cuda.max_memory_allocated() - before
        return
    if sys.platform != "linux":
        yield
        return
    CDLL(None).malloc_trim(0)  # what is free already is none of the step's
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    yield
    figures.peak = _status("VmHWM") - before


def _status(name: str) -> int:
    """Bytes, as Linux counts them for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
