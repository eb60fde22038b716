"""What is spoiled on purpose: a schedule that does as well without what it knows has not used it.

shuffled-quality    what was lost since the reference is dealt out anew among the examples of one draw, old among
old and new among new, and among those of one quiz: the same amounts, of others
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.review import Scheduler


@contextlib.contextmanager
def spoiled(control: str) -> Iterator[None]:
    """Everything in this process that is reviewed is spoiled so, until the end."""
    if not control:
        yield
        return
    review, answer = Scheduler.review, Scheduler.answer

    def reviewed(self: Scheduler, ids: ArrayLike, nll: ArrayLike) -> Any:
        return review(self, ids, dealt(self, ids, nll, 0))

    def answered(self: Scheduler, ids: ArrayLike, nll: ArrayLike) -> None:
        answer(self, ids, dealt(self, ids, nll, 1))

    Scheduler.review, Scheduler.answer = reviewed, answered  # type: ignore[method-assign]
    try:
        yield
    finally:
        Scheduler.review, Scheduler.answer = review, answer  # type: ignore[method-assign]


def dealt(scheduler: Scheduler, ids: ArrayLike, nll: ArrayLike, salt: int) -> NDArray[np.float64]:
    """The signals of a draw or quiz, with what was lost dealt out anew: a function of seed and step."""
    rows, signal = np.asarray(ids, dtype=np.int64), np.array(nll, dtype=np.float64)
    state = scheduler.state
    reference = np.asarray(state.columns["reference"][rows], dtype=np.float64)
    known = np.isfinite(reference)
    held = np.where(known, reference, 0.0)
    rng = np.random.default_rng([scheduler.options.seed, state.step, salt])
    order = np.argsort(rows)
    for part in (old & has for old in (rows < state.n_old, rows >= state.n_old) for has in (known, ~known)):
        mine = order[part[order]]  # by id: ranks and packing may not decide it
        signal[mine] = held[mine] + rng.permutation(signal[mine] - held[mine])
    return signal
