"""The paper's networks: convolution and pooling twice and two fully connected layers, or three layers on a table."""

from __future__ import annotations

import torch
from torch import nn

from eval.paper.classes.splits import Data
from eval.paper.classes.worlds import World

CHANNELS, HIDDEN, WIDE = (16, 32), 128, 32
"""The paper names no widths. With these a base knows its classes as well as the paper's does."""


def made(world: World, data: Data, seed: int) -> nn.Module:
    """A new network for the world's data; one output for each class, old and new."""
    torch.manual_seed(seed)
    classes = len(world.classes)
    if data.features.ndim == 2:
        return perceptron(data.features.shape[1], classes)
    _, channels, side, _ = data.features.shape
    return convolutional(channels, side, classes, world.dropout)


def convolutional(channels: int, side: int, classes: int, dropout: float) -> nn.Module:
    """Two blocks, each of which halves the side, and the head."""
    first, second = CHANNELS
    network = nn.Sequential(
        nn.Conv2d(channels, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(second * (side // 4) ** 2, HIDDEN), nn.ReLU(),
        nn.Dropout(dropout), nn.Linear(HIDDEN, classes),
    )  # fmt: skip
    faster: nn.Module = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return faster


def perceptron(features: int, classes: int) -> nn.Module:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(features, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, classes)
    )
