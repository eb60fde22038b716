"""A window: the micro-batches of one optimiser step, as one rank of data-parallel ones sees them; and its review.

Every rank holds the same scheduler, makes the same draws, and takes its own pieces. A window always has `accumulation`
micro-batches, since Trainer counts them. A draw too small for all of them leaves fillers, of which nothing is learned.
They come first: the last micro-batch is the one at which data-parallel ranks meet.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from srt_peft.errors import OptionError, ProtocolError
from srt_peft.integrations.reviewing import steps_of_a_pass
from srt_peft.review import Draw, Scheduler

_EMPTY = 100_000
"""So many draws in a row with nobody in them, and nobody will come for long."""

Batches = list[list[int]]
"""The ids of each micro-batch; [−1 − id] is a filler that looks like this example."""


def cut(ids: NDArray[np.int64], accumulation: int, *, rank: int = 0, ranks: int = 1) -> Batches:
    """One rank's micro-batches of a draw, in the draw's order, all of like size."""
    pieces = np.array_split(ids, min(ids.size, accumulation * ranks))
    mine: Batches = [piece.tolist() for piece in pieces[rank::ranks]]
    return [[-1 - int(ids[0])]] * (accumulation - len(mine)) + mine


class Windows:
    """The scheduler's draws as windows, each reviewed before there is another."""

    def __init__(
        self,
        scheduler: Scheduler,
        accumulation: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        self.scheduler = scheduler
        self.accumulation, self.rank, self.ranks, self.device = accumulation, rank, ranks, device
        self.an_epoch = steps_of_a_pass(scheduler.options, scheduler.state.n_new)
        """Windows in an epoch: one pass over new text."""
        self.skip = 0
        """How many windows the next epoch to begin has behind it already, from before a resume."""
        self.real = accumulation
        """How many of the window's micro-batches are no fillers."""
        self.told = {"steps": 0, "examples": 0, "old": 0, "lapses": 0}
        """What was reviewed, in all."""
        self._draw: Draw | None = None
        self._left = 0
        self._signals = torch.zeros(0)

    def next(self) -> Batches:
        """Draw."""
        if self._draw is not None:
            raise ProtocolError(
                f"step {self._draw.step} was drawn, and training_step got {self.accumulation - self._left} of its "
                f"{self.accumulation} micro-batches. The usual causes: training_step is overridden without a call of "
                "super().training_step; a callback stops the epoch within a step; or somebody else iterates over the "
                "train_dataloader."
            )
        draw = self._anybody()
        if draw.ids.size < self.ranks:
            fault = (
                f"step {draw.step} has {draw.ids.size} examples, and there are {self.ranks} processes: each needs one. "
                "Set review underfull='ahead', or take fewer processes"
            )
            raise OptionError("SRTTrainer", [fault])
        batches = cut(draw.ids, self.accumulation, rank=self.rank, ranks=self.ranks)
        self._draw, self._left = draw, self.accumulation
        self.real = sum(batch[0] >= 0 for batch in batches)
        self._signals = torch.zeros(draw.ids.size, dtype=torch.float32, device=self.device)
        return batches

    def _anybody(self) -> Draw:
        """The next draw with anybody in it: without, there is no optimiser step, and the clock moves on."""
        for _ in range(_EMPTY):
            draw = self.scheduler.draw()
            if draw.ids.size:
                return draw
            self.scheduler.review(draw.ids, [])
        fault = (
            f"nobody was due in {_EMPTY:,} steps, up to step {self.scheduler.state.step}: what there is to learn is "
            "learned. Train for fewer steps, or set review underfull='ahead'"
        )
        raise OptionError("SRTTrainer", [fault])

    def note(self, ids: torch.Tensor, nll: torch.Tensor) -> None:
        """The signals of one micro-batch."""
        assert self._draw is not None, "the loader has drawn what it gives"
        at = torch.from_numpy(np.searchsorted(self._draw.ids, ids.numpy()))
        self._signals[at.to(self._signals.device)] = nll.to(self._signals)

    def passed(self, over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """A micro-batch is done with. After the window's last the draw is reviewed, with the signals of all ranks.

        `over_ranks` sums them: each rank has zeros where another forwarded the example.
        """
        if self._draw is None:
            raise ProtocolError("training_step got a batch that the scheduler did not draw: see get_train_dataloader.")
        self._left -= 1
        if self._left:
            return
        draw, signals = self._draw, self._signals if self.ranks == 1 else over_ranks(self._signals)
        found = self.scheduler.review(draw.ids, signals.cpu().numpy())
        self._draw = None
        for name, more in (("steps", 1), ("examples", draw.ids.size), ("old", draw.n_old), ("lapses", found.lapses)):
            self.told[name] += more

    def void(self) -> None:
        """Forget a draw that was not reviewed: a run broke off within its step."""
        if self._draw is not None:
            self.scheduler.load_state_dict(self.scheduler.state_dict())
            self._draw = None
