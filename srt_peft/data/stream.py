"""Draw, fetch, collate: the examples of each step as micro-batches that carry their ids.

The next step can be drawn as soon as this one is reviewed, which is when its last micro-batch has been forwarded.
So `review` hands the signals over and returns at once; a thread reviews, draws, fetches and collates while the
device is busy with the backward pass and the optimiser.

Every rank holds the same scheduler and makes the same draws. The global batch and its micro-batches depend on the
draw alone, and rank r of w takes micro-batches r, r + w, …: what is trained on does not depend on how many ranks
there are, nor on what a micro-batch holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    asked_tokens: int = 0
    """How many tokens were scored beforehand, to choose whom to draw."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A quiz, as one rank sees it: to be scored before the step is drawn."""

    ids: NDArray[np.int64]
    batches: list[Batch]
    n_tokens: int


Score = Callable[[Asked], NDArray[np.floating]]
"""The mean NLL of each example of a quiz, in the order of its ids, by whichever rank has it."""


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
        score: Score | None = None,
    ) -> None:
        """Rows are at most `row` tokens long; `pad` is the token that fills them; `score` answers a quiz."""
        if len(examples) != scheduler.state.n:
            fault = f"examples: there are {len(examples)}, and the scheduler has a state for {scheduler.state.n}"
            raise OptionError("SRTDataset", [fault])
        if scheduler.options.quiz and score is None:
            fault = f"score: the scheduler has quiz = {scheduler.options.quiz}, and nothing here can answer it"
            raise OptionError("SRTDataset", [fault])
        self.scheduler, self.score = scheduler, score
        self.examples = examples
        self.budget, self.packing, self.row, self.pad = micro_batch_tokens, packing, row, pad
        self.rank, self.ranks = rank, ranks
        self._thread: ThreadPoolExecutor | None = None
        self._next: Future[Step | Asked] | None = None

    def __iter__(self) -> Iterator[Step]:
        """The steps, without end; each is reviewed before the next is asked for."""
        if get_worker_info() is not None:
            raise ProtocolError(
                "SRTDataset was put into a DataLoader with workers. A worker has a copy of the scheduler, which would "
                "draw on without the reviews. Use num_workers=0: batches are fetched ahead in a thread as it is."
            )
        while True:
            upcoming, self._next = self._next, None
            yield self._drawn(self._prepare() if upcoming is None else upcoming.result())

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

    def _after(self, reviewed: Future[Review]) -> Step | Asked:
        reviewed.result()  # a review that failed is told here, not as a draw without one
        return self._prepare()

    def _prepare(self) -> Step | Asked:
        ids = self.scheduler.quiz()
        if ids is None:
            return self._draw(0)
        batches, lengths = self._collated(ids, self.scheduler.options.quiz_tokens)
        return Asked(ids, batches, int(lengths.sum()))

    def _drawn(self, prepared: Step | Asked) -> Step:
        """The step itself, once the quiz before it, if there is one, is answered."""
        if isinstance(prepared, Step):
            return prepared
        assert self.score is not None, "a scheduler with a quiz has somebody to answer it"
        self.scheduler.answer(prepared.ids, self.score(prepared))
        return self._draw(prepared.n_tokens)

    def _draw(self, asked_tokens: int) -> Step:
        draw = self.scheduler.draw()
        batches, lengths = self._collated(draw.ids, None)
        n_targets = int(np.maximum(lengths - 1, 0).sum())
        return Step(draw, batches, n_targets, int(lengths.sum()), asked_tokens)

    def _collated(self, ids: NDArray[np.int64], most: int | None) -> tuple[list[Batch], NDArray[np.int64]]:
        """These examples, or the first tokens of each, as this rank's micro-batches; and how long each is."""
        tokens = [self.examples[i][:most] for i in ids.tolist()]
        lengths = np.minimum(self.examples.lengths[ids], np.iinfo(np.int64).max if most is None else most)
        micro = cut(lengths.tolist(), self.budget, packing=self.packing, row=self.row)
        return [collate(rows, tokens, ids, pad=self.pad) for rows in micro[self.rank :: self.ranks]], lengths

    def close(self) -> None:
        """Wait for what is under way, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
