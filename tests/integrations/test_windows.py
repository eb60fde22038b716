"""A window: what each rank has of a draw, and the review at its end."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from srt_peft import OptionError, ProtocolError, make_scheduler
from srt_peft.integrations.windows import Windows, cut


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 5))
def test_every_example_is_in_one_micro_batch_of_one_rank(size, accumulation, ranks):
    """Every rank has as many micro-batches as the window, fillers first, and none is larger than it must be."""
    ids = np.arange(size) * 3
    shares = [cut(ids, accumulation, rank=rank, ranks=ranks) for rank in range(ranks)]
    for share in shares:
        assert len(share) == accumulation
        real = [batch[0] >= 0 for batch in share]
        assert real == sorted(real)
        assert all(batch == [-1] for batch, is_real in zip(share, real, strict=True) if not is_real)
    members = [i for share in shares for batch in share for i in batch if i >= 0]
    assert sorted(members) == ids.tolist()
    assert max(len(batch) for share in shares for batch in share) <= max(1, -(-size // (accumulation * ranks)))
    if size >= ranks:
        assert all(share[-1][0] >= 0 for share in shares)


def windows(accumulation=2, *, old=4, new=12, **more):
    options = {"batch_size": 8, "old_fraction": 0.25, "stagger": 1, "underfull": "ahead"}
    own = {key: more.pop(key) for key in ("rank", "ranks") if key in more}
    return Windows(make_scheduler("srt", old=old, new=new, **options | more), accumulation, **own)


def test_ranks_that_share_a_draw_review_the_same():
    """Each notes its own; the sum over ranks is what both review, and so they go on drawing the same."""
    pair = [windows(rank=rank, ranks=2) for rank in (0, 1)]
    for _ in range(5):
        shares = [each.next() for each in pair]
        for each, share in zip(pair, shares, strict=True):
            for batch in share:
                each.note(torch.tensor(batch), torch.tensor(batch) * 0.5)
        together = sum(each._signals for each in pair)
        for each in pair:
            each.passed(lambda _, whole=together: whole)
            each.passed(lambda _, whole=together: whole)
        states = [each.scheduler.state.columns for each in pair]
        for name, column in states[0].items():
            assert column.tobytes() == states[1][name].tobytes(), name
    drawn = pair[0].scheduler.state
    seen = np.flatnonzero(drawn.visits)
    assert drawn.columns["signal"][seen].tolist() == (seen * 0.5).tolist()


def test_a_window_is_reviewed_before_there_is_another():
    w = windows()
    w.next()
    with pytest.raises(ProtocolError, match="step 0 was drawn, and training_step got 0 of its 2 micro-batches"):
        w.next()
    w.void()
    w.next()
    assert w.scheduler.state.step == 0


def test_a_draw_with_fewer_examples_than_ranks_is_refused():
    w = windows(new=1, old=1, ranks=4, underfull="short")
    with pytest.raises(OptionError, match=r"step 0 has 2 examples, and there are 4 processes: each needs one\. Set"):
        w.next()


def test_where_nobody_is_left_to_be_drawn_the_run_is_told(monkeypatch):
    """Suspended examples are never due, and underfull: ahead cannot help either."""
    monkeypatch.setattr("srt_peft.integrations.windows._EMPTY", 10)
    w = windows()
    w.scheduler.state.suspend(np.arange(16))
    with pytest.raises(OptionError, match="nobody was due in 10 steps, up to step 10: what there is to learn"):
        w.next()
