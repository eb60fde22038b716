"""From a draw to micro-batches: everything once, nothing mixed up."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from srt_peft.data.collate import collate, cut

lengths_of = st.lists(st.integers(1, 40), max_size=60)


@settings(max_examples=300, derandomize=True)
@given(lengths=lengths_of, budget=st.integers(1, 200), packing=st.booleans())
def test_every_example_stands_in_one_row_of_one_micro_batch(lengths, budget, packing):
    """Rows hold at most `row` tokens, micro-batches at most the budget, unless a single example is longer."""
    batches = cut(lengths, budget, packing=packing, row=40)
    members = [i for rows in batches for row in rows for i in row]
    assert sorted(members) == list(range(len(lengths)))
    for rows in batches:
        widths = [sum(lengths[i] for i in row) for row in rows]
        assert all(width <= 40 for width in widths)
        assert len(rows) * max(widths) <= budget or len(rows) == 1
        assert packing or all(len(row) == 1 for row in rows)


@settings(max_examples=300, derandomize=True)
@given(lengths=lengths_of.filter(bool), packing=st.booleans())
def test_tokens_come_back_as_they_went_in(lengths, packing):
    """Each example's tokens, in order, with positions from 0, and marked as its own; all else is padding."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(1, 100, n).astype(np.int32) for n in lengths]
    ids = np.sort(rng.permutation(1000)[: len(lengths)])
    seen = set()
    for rows in cut(lengths, 90, packing=packing, row=40):
        batch = collate(rows, tokens, ids, pad=0)
        for k, i in enumerate(batch.ids.tolist()):
            mine = batch.example == k
            original = tokens[int(np.searchsorted(ids, i))]
            assert batch.input_ids[mine].tolist() == original.tolist()
            assert batch.position_ids[mine].tolist() == list(range(len(original)))
            seen.add(i)
        assert torch.all(batch.input_ids[batch.example < 0] == 0)
        if batch.attention_mask is None:
            assert packing
        else:
            assert torch.equal(batch.attention_mask.bool(), batch.example >= 0)
    assert seen == set(ids.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_packing_wastes_little(seed):
    """Best fit on many examples: under a twentieth of the row tokens are padding."""
    lengths = np.random.default_rng(seed).integers(5, 400, 512).tolist()
    rows = [row for rows in cut(lengths, 16_384, packing=True, row=2048) for row in rows]
    assert sum(lengths) > 0.95 * 2048 * (len(rows) - 1)
