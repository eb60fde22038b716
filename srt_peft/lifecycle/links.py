"""A run's texts, where RUN/pools leads to them: what it trains on, and what it holds out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from srt_peft.data.corpus import Corpus
from srt_peft.data.pool import Pool
from srt_peft.errors import StateError
from srt_peft.training.folder import POOLS

Part = Literal["train", "held_out"]


def corpus_of(home: Path | None) -> Corpus | None:
    """Both pools as one id space, or None where the links lead nowhere: the cache may have been cleared."""
    pools = {} if home is None else linked(home, "train")
    return Corpus(pools["old"], pools["new"]) if len(pools) == 2 else None


def linked(home: Path, part: Part) -> dict[str, Pool]:
    """Those of the pools `old` and `new` that are there."""
    found = {}
    for name in ("old", "new"):
        try:
            found[name] = Pool.open(home / POOLS / name / part, verify=False)
        except (StateError, OSError):
            continue
    return found


def unseen(home: Path | None, most: int) -> tuple[dict[str, Pool], bool]:
    """What a run can be asked about, at most so many examples a pool, and whether it was held out.

    Where nothing was, it is a sample of what was trained on. The choice is the same every time.
    """
    corpus = corpus_of(home)
    if home is None or corpus is None:
        return {}, False
    held_out = {name: corpus.unseen(pool) for name, pool in linked(home, "held_out").items()}
    chosen = {name: pool for name, pool in held_out.items() if len(pool)}
    if chosen:
        return {name: _some(pool, most) for name, pool in chosen.items()}, True
    both = {"old": corpus.old, "new": corpus.new}
    return {name: _some(pool, most) for name, pool in both.items() if len(pool)}, False


def _some(pool: Pool, most: int) -> Pool:
    """A sample: an example's hash decides, as it always has the same."""
    if len(pool) <= most:
        return pool
    by_hash = np.ascontiguousarray(pool.identity[:, :8]).view("<u8").ravel()
    return pool.only(np.sort(np.argsort(by_hash, kind="stable")[:most]).astype(np.int64))
