"""One loop for every row, over the bare-loop face: quiz, draw, train, review. AdamW, a constant rate, cross-entropy.

Neither the rate nor a draw knows how long the update will be: one of 50 steps is the first 50 of one of 200. So each is
trained once, and asked at every length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from eval.paper.classes.splits import Data
from srt_peft.review import Draw, Scheduler

AT_ONCE = 100
"""So many examples are forwarded at once where nothing is learned."""
Penalty = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Scores:
    """What is right of old, of new, and of all that is asked, in %."""

    old: float
    new: float
    overall: float


def steps(
    network: nn.Module, data: Data, scheduler: Scheduler, rate: float, penalty: Penalty | None = None
) -> Iterator[Draw]:
    """Train for ever, a draw at a time; a draw with nobody in it takes no step, and counts."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate)
    while True:
        asked = scheduler.quiz()
        if asked is not None:
            scheduler.answer(asked, nll(network, data, asked))
        draw = scheduler.draw()
        signal = np.empty(0, np.float32)
        if draw.ids.size:
            network.train()
            x, y = data.batch(torch.from_numpy(draw.ids.copy()))
            losses = cross_entropy(network(x), y, reduction="none")
            loss = losses.mean() if penalty is None else losses.mean() + penalty(network)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            signal = losses.detach().numpy()
        scheduler.review(draw.ids, signal)
        yield draw


@torch.no_grad()
def nll(network: nn.Module, data: Data, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """The cross-entropy of each of these, forward only."""
    network.eval()
    found = [np.empty(0, np.float32)]
    for part in torch.split(torch.from_numpy(ids.copy()), AT_ONCE):
        x, y = data.batch(part)
        found.append(cross_entropy(network(x), y, reduction="none").numpy())
    return np.concatenate(found)


@torch.no_grad()
def ask(network: nn.Module, data: Data) -> Scores:
    """The accuracy on what was held out; an answer is one of all classes, old and new."""
    network.eval()
    answers = torch.cat([network(part.float() / data.top).argmax(1) for part in torch.split(data.asked, AT_ONCE)])
    right, old = (answers == data.answers).double(), data.asked_old
    return Scores(*(100 * float(right[part].mean()) for part in (old, ~old, torch.ones_like(old))))
