"""From drawn examples to tensors: rows of a micro-batch, padded or packed, in which every token knows its example.

Packing is exact or absent. Examples that share a row are kept apart by `position_ids` alone, which begin at 0 with
each of them: without an attention mask, Transformers builds the block-diagonal one from them. (With a mask of ones
attention would silently cross from one example to the next.)
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A micro-batch: tensors of shape (rows, length), but for the ids."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    """None where rows are packed."""
    example: torch.Tensor
    """For each token, which of `ids` it belongs to; -1 at padding."""
    ids: torch.Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        mask = None if self.attention_mask is None else self.attention_mask.to(device, non_blocking=True)
        input_ids, position_ids, example, ids = (
            t.to(device, non_blocking=True) for t in (self.input_ids, self.position_ids, self.example, self.ids)
        )
        return Batch(input_ids, position_ids, mask, example, ids)


Rows = list[list[int]]
"""The rows of a micro-batch: for each row, which examples stand in it, one after the other."""


def cut(lengths: Sequence[int], budget: int, *, packing: bool, row: int) -> list[Rows]:
    """Share examples out into micro-batches of at most `budget` tokens, padding counted, in rows of at most `row`.

    Widest rows first, so that those of like length stand together. An example longer than the budget has a
    micro-batch of its own. The cut depends on the lengths alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    rows = _packed(order, lengths, row) if packing else [[i] for i in order]
    rows.sort(key=lambda members: (-sum(lengths[i] for i in members), members))
    batches: list[Rows] = []
    width = 0
    for members in rows:
        if not batches or (len(batches[-1]) + 1) * width > budget:
            batches.append([])
            width = sum(lengths[i] for i in members)
        batches[-1].append(members)
    return batches


def _packed(order: Sequence[int], lengths: Sequence[int], row: int) -> Rows:
    """Examples into rows by best fit: each goes where it leaves the least room."""
    rooms: list[tuple[int, int]] = []  # (room left, number of the row), ascending
    rows: Rows = []
    for i in order:
        at = bisect.bisect_left(rooms, (lengths[i], -1))
        if at < len(rooms):
            room, number = rooms.pop(at)
        else:
            room, number = max(row, lengths[i]), len(rows)
            rows.append([])
        rows[number].append(i)
        bisect.insort(rooms, (room - lengths[i], number))
    return rows


def collate(rows: Rows, tokens: Sequence[NDArray[np.integer]], ids: Ids, *, pad: int) -> Batch:
    """The tensors of one micro-batch; `rows` holds numbers into `tokens` and `ids`.

    Rows are filled from the left, so the filled places, row by row, are the examples one after the other, and each
    tensor is written at once: a third of what a loop over 512 short examples takes.
    """
    members = [i for row in rows for i in row]
    sizes = np.array([len(tokens[i]) for i in members])
    filled = np.array([sum(len(tokens[i]) for i in row) for row in rows])[:, None]
    column = np.arange(filled.max())
    inside = column < filled
    input_ids, example = np.full(inside.shape, pad, dtype=np.int64), np.full(inside.shape, -1, dtype=np.int64)
    position_ids = column - filled  # padding is a block of its own
    input_ids[inside] = np.concatenate([tokens[i] for i in members])
    example[inside] = np.repeat(np.arange(sizes.size), sizes)
    position_ids[inside] = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    packed = any(len(row) > 1 for row in rows)
    return Batch(
        torch.from_numpy(input_ids),
        torch.from_numpy(position_ids),
        None if packed else torch.from_numpy(inside.astype(np.int64)),
        torch.from_numpy(example),
        torch.from_numpy(np.ascontiguousarray(ids[members], dtype=np.int64)),
    )
