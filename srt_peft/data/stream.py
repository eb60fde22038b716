"""Draw, fetch, collate: the examples of each step as micro-batches that carry their ids.

The next step can be drawn as soon as this one is reviewed, which is when its last micro-batch has been forwarded.
So `review` hands the signals over and returns at once; a thread reviews, draws, fetches and collates while the
device is busy with the backward pass and the optimiser.

Every rank holds the same scheduler and makes the same draws. The global batch and its micro-batches depend on the
draw alone, and rank r of w takes micro-batches r, r + w, …: what is trained on does not depend on how many ranks
there are, nor on what a micro-batch holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import IterableDataset, get_worker_info

from srt_peft.data.collate import Batch, collate, cut
from srt_peft.errors import OptionError, ProtocolError
from srt_peft.review import Draw, Review, Scheduler


class Examples(Protocol):
    """What a stream draws from: token ids by example, and their lengths."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example."""

    def __getitem__(self, i: int, /) -> NDArray[np.integer]: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One optimiser step, as one rank sees it."""

    draw: Draw
    batches: list[Batch]
    """This rank's micro-batches; none where nothing was drawn, or too little for every rank."""
    n_targets: int
    """How many tokens are predicted in the whole global batch: the loss is the mean over them."""
    n_tokens: int
    """How many tokens the whole global batch has."""


class SRTDataset(IterableDataset[Step]):
    """The steps of a run, one after the other, as the scheduler decides them."""

    def __init__(
        self,
        scheduler: Scheduler,
        examples: Examples,
        *,
        micro_batch_tokens: int,
        packing: bool,
        row: int,
        pad: int,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Rows are at most `row` tokens long; `pad` is the token that fills them."""
        if len(examples) != scheduler.state.n:
            fault = f"examples: there are {len(examples)}, and the scheduler has a state for {scheduler.state.n}"
            raise OptionError("SRTDataset", [fault])
        self.scheduler = scheduler
        self.examples = examples
        self.budget, self.packing, self.row, self.pad = micro_batch_tokens, packing, row, pad
        self.rank, self.ranks = rank, ranks
        self._thread: ThreadPoolExecutor | None = None
        self._next: Future[Step] | None = None

    def __iter__(self) -> Iterator[Step]:
        """The steps, without end; each is reviewed before the next is asked for."""
        if get_worker_info() is not None:
            raise ProtocolError(
                "SRTDataset was put into a DataLoader with workers. A worker has a copy of the scheduler, which would "
                "draw on without the reviews. Use num_workers=0: batches are fetched ahead in a thread as it is."
            )
        while True:
            upcoming, self._next = self._next, None
            yield self._prepare() if upcoming is None else upcoming.result()

    def review(self, step: Step, nll: ArrayLike, *, last: bool = False) -> Future[Review]:
        """Review the step's draw, in the order of its ids, and prepare the next step, both in the background.

        After the `last` step of a run nothing is prepared.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="srt-draw")
        signals = np.array(nll, dtype=np.float32)
        reviewed = self._thread.submit(self.scheduler.review, step.draw.ids, signals)
        self._next = None if last else self._thread.submit(self._after, reviewed)
        return reviewed

    def _after(self, reviewed: Future[Review]) -> Step:
        reviewed.result()  # a review that failed is told here, not as a draw without one
        return self._prepare()

    def _prepare(self) -> Step:
        draw = self.scheduler.draw()
        lengths = self.examples.lengths[draw.ids]
        micro = cut(lengths.tolist(), self.budget, packing=self.packing, row=self.row)
        tokens = [self.examples[i] for i in draw.ids.tolist()]
        batches = [collate(rows, tokens, draw.ids, pad=self.pad) for rows in micro[self.rank :: self.ranks]]
        n_targets = int(np.maximum(lengths - 1, 0).sum())
        return Step(draw, batches, n_targets, int(lengths.sum()))

    def close(self) -> None:
        """Wait for what is under way, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
