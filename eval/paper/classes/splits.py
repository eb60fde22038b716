"""What is trained on, the old examples first, and what is asked, as tensors that a batch is taken from.

Where a data set has no part to be asked, 30 % of each class, by chance of the seed, are that part.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.paper.classes.sources import Labelled, Source
from eval.paper.classes.worlds import World

HELD_OUT = 0.3
Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Data:
    """A world's examples with one seed."""

    features: Tensor
    labels: Tensor
    n_old: int
    """The first so many are old."""
    asked: Tensor
    answers: Tensor
    asked_old: Tensor
    """Which of the asked are of old classes."""
    top: float

    @property
    def n_new(self) -> int:
        return len(self.labels) - self.n_old

    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The features and labels of these examples."""
        return self.features[ids].float() / self.top, self.labels[ids]


def digest(source: Source) -> int:
    """What tells one copy of a data set from another."""
    parts = [np.ascontiguousarray(values) for part in source if part for values in (part.features, part.labels)]
    found = 0
    for values in parts:
        found = crc32(values.data, found)
    return found


def split(world: World, source: Source, seed: int) -> Data:
    """Old and new by the world's classes."""
    random = np.random.default_rng(seed)
    whole, test = source
    trained = np.arange(len(whole.labels))
    if test is None:
        held = np.concatenate([_some(whole, label, HELD_OUT, random) for label in range(len(world.classes))])
        trained, asked = np.setdiff1d(trained, held), _only(whole, held)
    else:
        asked = _only(test, np.arange(len(test.labels)))
    of_old = np.isin(whole.labels[trained], world.old_labels)
    old, new = trained[of_old], trained[~of_old]
    if world.few is not None:
        kept = [
            random.permutation(new[whole.labels[new] == label])[: world.few] for label in np.unique(whole.labels[new])
        ]
        new = np.sort(np.concatenate(kept))
    mine = _only(whole, np.concatenate([old, new]))
    features, questions = torch.from_numpy(mine.features), torch.from_numpy(asked.features)
    if world.standardised:
        known = features[: len(old)]
        mean, deviation = known.mean(0), known.std(0)
        features, questions = (features - mean) / deviation, (questions - mean) / deviation
    return Data(
        features=features,
        labels=torch.from_numpy(mine.labels),
        n_old=len(old),
        asked=questions,
        answers=torch.from_numpy(asked.labels),
        asked_old=torch.from_numpy(np.isin(asked.labels, world.old_labels)),
        top=whole.top,
    )


def _some(whole: Labelled, label: int, share: float, random: np.random.Generator) -> Ids:
    there = random.permutation(np.flatnonzero(whole.labels == label))
    return there[: round(share * len(there))]


def _only(whole: Labelled, ids: Ids) -> Labelled:
    """A copy, which is writable, as torch wants it."""
    return Labelled(whole.features[ids], whole.labels[ids], whole.top)
