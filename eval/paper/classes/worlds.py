"""The data sets: classes old and new as the paper splits them, and what the paper leaves open.

The splits are those of the paper's table. It names neither widths, rates, batches nor lengths of updates: those here
are one choice, made with seeds that are not reported, by the accuracy of the paper's bases; and lengths are several.

    wine      each feature less its mean over the old training examples, by their deviation, as one would have it
    wine-raw  features as they are in the file, which is what the paper's row looks like
    mnist-few MNIST with ten new examples a class: a small pool, where intervals bind and slots stay empty
    digits    scikit-learn's 8 × 8 digits, split as MNIST; not in the paper
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval.paper.classes.sources import FILES
from srt_peft.errors import OptionError, did_you_mean

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")
OBJECTS = ("Airplane", "Automobile", "Bird", "Cat", "Deer", "Dog", "Frog", "Horse", "Ship", "Truck")
CULTIVARS = ("1", "2", "3")


@dataclass(frozen=True, kw_only=True)
class World:
    """One data set, its split, and how its network is trained."""

    name: str
    title: str
    source: str
    """Which files; see `sources`."""
    panel: str = ""
    """What the paper's table calls it; nothing where it is not in it."""
    classes: tuple[str, ...] = DIGITS
    """By label."""
    old: tuple[str, ...] = DIGITS[:7]
    batch_size: int = 64
    base_steps: int = 600
    lengths: tuple[int, ...] = (50, 100, 200)
    """Of updates, in steps."""
    learning_rate: float = 1e-3
    old_fraction: float = 0.2
    dropout: float = 0.0
    standardised: bool = False
    few: int | None = None
    """So many new examples a class, drawn by chance; else all."""

    @property
    def new(self) -> tuple[str, ...]:
        """All classes that are not old."""
        return tuple(name for name in self.classes if name not in self.old)

    @property
    def old_labels(self) -> list[int]:
        """The numbers of the old classes in the files."""
        return [self.classes.index(name) for name in self.old]


WINE: dict[str, Any] = {
    "source": "wine", "panel": "Wine", "classes": CULTIVARS, "old": ("1", "2"), "batch_size": 16, "base_steps": 500,
}  # fmt: skip
WORLDS = {
    world.name: world
    for world in (
        World(name="mnist", title="MNIST", source="mnist", panel="MNIST"),
        World(
            name="fashion", title="Fashion-MNIST", source="fashion", panel="Fashion", classes=CLOTHES,
            old=("T-shirt", "Trouser", "Dress", "Coat", "Sandal", "Bag", "Boot"),
        ),
        World(
            name="cifar", title="CIFAR-10", source="cifar", panel="CIFAR-10", classes=OBJECTS,
            old=("Airplane", "Automobile", "Bird", "Cat", "Deer", "Ship"), dropout=0.5, base_steps=4_000,
        ),
        World(name="wine-raw", title="Wine, features as they are", **WINE),
        World(name="wine", title="Wine, features standardised", standardised=True, **WINE),
        World(name="digits", title="Digits of 8 × 8", source="digits", batch_size=32, base_steps=300),
        World(name="mnist-few", title="MNIST, ten new examples a class", source="mnist", few=10, lengths=(50, 150)),
    )
}  # fmt: skip
WHOLE = tuple(name for name, world in WORLDS.items() if world.few is None)
QUICK = ("wine-raw", "wine", "digits")
"""What needs no files."""


def chosen(names: Sequence[str]) -> list[World]:
    """The worlds of these names; where none is named, all that have their new examples whole."""
    faults = [
        f"{name!r} is no data set{did_you_mean(name, WORLDS)}; known are {', '.join(WORLDS)}"
        for name in names
        if name not in WORLDS
    ]
    if faults:
        raise OptionError("eval.paper.classes", faults)
    return [WORLDS[name] for name in dict.fromkeys(names or WHOLE)]


assert {world.source for world in WORLDS.values()} <= FILES.keys()
