"""The stream: the same global batch for any number of ranks and any micro-batch, and never ahead of a review."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from srt_peft import OptionError, ProtocolError, make_scheduler
from srt_peft.data.stream import SRTDataset


class Examples:
    """Examples in memory: number i holds i's digits, so that a token tells whose it is."""

    def __init__(self, n):
        self.lengths = np.arange(n) % 17 + 1

    def __len__(self):
        return self.lengths.size

    def __getitem__(self, i):
        return np.full(self.lengths[i], i, dtype=np.int32)


def stream(*, rank=0, ranks=1, budget=100, packing=True, **options):
    s = make_scheduler("srt", old=60, new=60, batch_size=24, **options)
    return SRTDataset(
        s, Examples(120), micro_batch_tokens=budget, packing=packing, row=32, pad=0, rank=rank, ranks=ranks
    )


def signal_of(step):
    """A signal that depends on ids and step alone, as a model's would on what it is shown."""
    return (step.draw.ids * 7 + step.draw.step) % 10


def run(s, steps):
    """The ids of each step's draw, and those that this rank was given."""
    drawn, given = [], []
    for step in s:
        drawn.append(step.draw.ids.tolist())
        given.append(sorted(i for batch in step.batches for i in batch.ids.tolist()))
        for batch in step.batches:
            assert torch.all((batch.input_ids == batch.ids[batch.example.clamp(min=0)]) | (batch.example < 0))
        last = len(drawn) == steps
        s.review(step, signal_of(step), last=last).result()
        if last:
            break
    s.close()
    return drawn, given


def test_the_draws_depend_on_neither_ranks_nor_micro_batches_nor_packing():
    """One process, two or three, small micro-batches or large ones, padded or packed: the same draws."""
    reference, given = run(stream(), 30)
    assert given == reference
    for options in ({"budget": 20}, {"budget": 10_000}, {"packing": False}):
        assert run(stream(**options), 30)[0] == reference
    for ranks in (2, 3):
        parts = [run(stream(rank=rank, ranks=ranks), 30) for rank in range(ranks)]
        assert all(drawn == reference for drawn, _ in parts)
        shares = [sorted(i for part in step for i in part) for step in zip(*(given for _, given in parts), strict=True)]
        assert shares == reference


def test_the_draws_are_those_of_the_scheduler_alone():
    """Nothing between the scheduler and the model changes what is drawn."""
    s = make_scheduler("srt", old=60, new=60, batch_size=24)
    alone = []
    for _ in range(20):
        draw = s.draw()
        alone.append(draw.ids.tolist())
        s.review(draw.ids, (draw.ids * 7 + draw.step) % 10)
    assert run(stream(), 20)[0] == alone


def test_counts_of_the_whole_global_batch():
    """Tokens and targets are those of all ranks, whichever rank asks."""
    for rank in range(2):
        step = next(iter(stream(rank=rank, ranks=2)))
        lengths = np.arange(120)[step.draw.ids] % 17 + 1
        assert (step.n_tokens, step.n_targets) == (lengths.sum(), (lengths - 1).sum())


def test_asking_ahead_of_the_review_is_refused():
    """The next step exists only once this one is reviewed."""
    steps = iter(stream())
    next(steps)
    with pytest.raises(ProtocolError, match="before step 0 was reviewed"):
        next(steps)


def test_a_review_that_fails_in_the_background_is_told():
    s = stream()
    steps = iter(s)
    step = next(steps)
    reviewed = s.review(step, [1.0])
    with pytest.raises(ProtocolError, match=r"signals of shape \(1,\)"):
        next(steps)
    with pytest.raises(ProtocolError):
        reviewed.result()
    s.close()


def test_workers_are_refused():
    """A worker's copy would draw on its own; the error says what to do."""
    loader = DataLoader(stream(), batch_size=None, num_workers=1)
    with pytest.raises((ProtocolError, RuntimeError), match="num_workers=0"):
        next(iter(loader))


def test_another_number_of_examples_is_refused():
    s = make_scheduler("srt", old=60, new=61, batch_size=24)
    with pytest.raises(OptionError, match="there are 120, and the scheduler has a state for 121"):
        SRTDataset(s, Examples(120), micro_batch_tokens=100, packing=True, row=32, pad=0)
