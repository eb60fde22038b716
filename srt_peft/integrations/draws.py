"""The scheduler's draws as a loader's micro-batches, made when they are asked for and not one earlier.

Trainer asks for a window of micro-batches, one optimiser step's worth, all at once. So a window is a draw: the loader
draws at a window's first micro-batch, and by the time it is asked for the next one the last of this one has been
forwarded and reviewed. The loader is an ordinary one, not prepared by accelerate, which would fetch a batch ahead of
the review and share batches out on its own.

A resume skips batches by asking for them and throwing them away. What it throws away here is empty: see `Draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset

from srt_peft.errors import OptionError, ProtocolError
from srt_peft.integrations.windows import Windows

IDS = "srt_ids"
"""The key under which a micro-batch carries its ids; it is taken out again before the model is called."""


class Both(Dataset[Any]):
    """Two datasets as one: the old examples are 0 to n_old − 1, then come the new ones. Each may be of any kind."""

    def __init__(self, old: Any, new: Any) -> None:
        faults = [fault for name, part in (("old_dataset", old), ("new_dataset", new)) if (fault := _fault(name, part))]
        if faults:
            raise OptionError("the datasets", faults)
        self.old, self.new = old, new

    def __len__(self) -> int:
        return len(self.old) + len(self.new)

    def __getitem__(self, i: int) -> Any:
        n_old = len(self.old)
        return self.old[i] if i < n_old else self.new[i - n_old]


def _fault(name: str, part: Any) -> str | None:
    """Why this is no dataset that can be reviewed, if so."""
    if isinstance(part, IterableDataset):
        return (
            f"{name} is a {type(part).__name__}, which cannot be asked for an example again: expected one that can be "
            "indexed. Write it out once (datasets: Dataset.from_generator), or give a list"
        )
    if not hasattr(part, "__len__") or not hasattr(part, "__getitem__"):
        return (
            f"{name} is a {type(part).__name__}: expected a dataset with a length that can be indexed, such as a list"
        )
    return None


class Numbered(Dataset[Any]):
    """A dataset whose items know their ids; `rows` says in which of its rows each example stands."""

    def __init__(self, of: Any, rows: NDArray[np.integer] | None = None) -> None:
        self.of, self.rows = of, rows

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, i: int) -> tuple[int, Any]:
        row = i if i >= 0 else -1 - i
        return i, self.of[row if self.rows is None else int(self.rows[row])]


class Draws:
    """A batch sampler: an epoch's windows. Those that a resume skips are empty, and draw nothing."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return self.windows.an_epoch * self.windows.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        skipped, self.windows.skip = self.windows.skip % self.windows.an_epoch, 0
        for _ in range(skipped * self.windows.accumulation):
            yield []
        for _ in range(self.windows.an_epoch - skipped):
            yield from self.windows.next()


class Collate:
    """The user's collator, and the ids beside what it makes."""

    def __init__(self, collator: Callable[[list[Any]], Any], labels: Sequence[str]) -> None:
        self.collator, self.labels = collator, labels

    def __call__(self, items: list[tuple[int, Any]]) -> MutableMapping[str, Any]:
        """One micro-batch; of a filler, every label is −100, so that it counts for nothing in the window's loss."""
        if not items:
            raise ProtocolError(
                "a batch that was skipped on resume was asked for all the same: Trainer and SRTTrainer do not agree on "
                "where its epoch stands. Set ignore_data_skip=True, and report this with `srt-peft env`."
            )
        ids, examples = zip(*items, strict=True)
        made = self.collator(list(examples))
        if not isinstance(made, MutableMapping):
            fault = (
                f"data_collator made a {type(made).__name__}: expected a dictionary of tensors, to which ids are added"
            )
            raise OptionError("SRTTrainer", [fault])
        made[IDS] = torch.tensor(ids)
        if ids[0] < 0:
            for name in self.labels:
                if isinstance(made.get(name), torch.Tensor):
                    made[name] = torch.full_like(made[name], -100)
        return made


def loader_of(
    windows: Windows, dataset: Numbered, collator: Callable[[list[Any]], Any], labels: Sequence[str], *, pin: bool
) -> DataLoader[Any]:
    """The loader, in the process that draws: a worker would have a scheduler of its own."""
    return DataLoader(
        dataset,
        batch_sampler=Draws(windows),
        collate_fn=Collate(collator, labels),
        num_workers=0,
        pin_memory=pin and torch.cuda.is_available(),
    )
