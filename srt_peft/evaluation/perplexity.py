"""How well held-out text is predicted, old and new: the NLL of each example, in nats a token."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from srt_peft.data.collate import collate, cut
from srt_peft.data.pool import Pool
from srt_peft.evaluation.records import Record, key_of
from srt_peft.training.nll import summarise, token_nll


@torch.no_grad()
def score(
    model: nn.Module, tokenizer: Any, pools: Mapping[str, Pool], *, budget: int, done: Collection[str] = ()
) -> Iterator[Record]:
    """A record for each example of these pools (by their splits' names) that is not done yet, longest first."""
    device = next(model.parameters()).device
    for split, pool in pools.items():
        keys = [key_of("perplexity", split, identity.tobytes().hex()) for identity in pool.identity]
        # An example of one token predicts nothing.
        ids = np.array([i for i, key in enumerate(keys) if key not in done and len(pool[i]) > 1], dtype=np.int64)
        tokens = [pool[int(i)] for i in ids]
        with tqdm(total=len(ids), desc=f"perplexity, {split}", delay=2, disable=None, leave=False) as bar:
            for rows in cut([len(t) for t in tokens], budget, packing=False, row=budget):
                batch = collate(rows, tokens, ids, pad=tokenizer.pad_token_id).to(device)
                mean, count = summarise(*token_nll(model, batch), len(batch.ids))
                for i, nll, n in zip(batch.ids.tolist(), mean.tolist(), count.tolist(), strict=True):
                    source = pool.sources[pool.source[i]]
                    yield {"key": keys[i], "split": split, "value": nll, "weight": float(n), "id": i, "source": source}
                bar.update(len(batch.ids))
