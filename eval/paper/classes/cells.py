"""One cell: an entry, a seed and a data set; and the base that all of a seed begin from. Both are written whole.

    cells/WORLD/ENTRY/SEED.json   {"asked": {…}, "seconds": …, "at": {steps: {"old": …, "new": …, "overall": …,
                                   "steps": …, "old_share": …, "filled": …, "forward": …}},
                                   "counts": [[old, new], …]}
    bases/WORLD/SEED.safetensors  the base's weights, its signal on every example, and its Fisher information

`old_share` is what part of the examples drawn was old, `filled` what part of the slots was used, and `forward` how many
examples were forwarded and not trained on, for each that was. Asked otherwise, or of other data, neither is taken up.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from eval.paper.classes import ewc, networks, update
from eval.paper.classes.entries import COSTED, FORWARD, MATCHED, ROWS, options_of, scheduler_of
from eval.paper.classes.sources import Source
from eval.paper.classes.splits import HELD_OUT, Data, split
from eval.paper.classes.worlds import World
from srt_peft.errors import SRTError
from srt_peft.review import Draw
from srt_peft.training.folder import replace

FISHER = 2_000
"""So many old examples, by chance of the seed, at most: their gradients are taken one by one."""
NLL, WEIGHTS, INFORMATION = "nll", "weights.", "fisher."


@dataclass(frozen=True)
class Cell:
    """One entry with one seed on one data set."""

    world: World
    digest: int
    """Of the data."""
    row: str
    seed: int

    @property
    def place(self) -> str:
        """Its file, in the output's folder."""
        return f"cells/{self.world.name}/{self.row.replace(' ', '-')}/{self.seed}.json"

    @property
    def base(self) -> str:
        """The base's."""
        return f"bases/{self.world.name}/{self.seed}.safetensors"

    @property
    def asked(self) -> dict[str, Any]:
        """All that decides what comes of it, but for the lengths at which it is asked."""
        entry = ROWS[self.row]
        name, options = options_of(entry, self.world, self.seed)
        after = Cell(self.world, self.digest, entry.after, self.seed).asked if entry.after else None
        own = {"entry": asdict(entry), "scheduler": name, "options": options}
        return {**self.begun, **own, "after": after, "forward": FORWARD}

    @property
    def begun(self) -> dict[str, Any]:
        """All that decides what comes of its base."""
        world = asdict(self.world) | {"lengths": None}
        settings = [networks.CHANNELS, networks.HIDDEN, networks.WIDE, FISHER, HELD_OUT]
        return {"world": world, "data": self.digest, "seed": self.seed, "settings": settings}


def kept(cell: Cell, output: Path) -> dict[str, Any] | None:
    """What there is of this very cell, if anything, at whatever lengths it was asked."""
    try:
        found: dict[str, Any] = json.loads((output / cell.place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if found.get("asked") == json.loads(json.dumps(cell.asked)) else None


def held(cell: Cell, output: Path) -> dict[str, Any] | None:
    """The same, where it was asked at every length."""
    found, lengths = kept(cell, output), cell.world.lengths if ROWS[cell.row].trains else (0,)
    return found if found is not None and found["at"].keys() >= set(map(str, lengths)) else None


def run(cell: Cell, source: Source, output: Path) -> None:
    """Train, ask, and write down what came of it."""
    started = time.monotonic()
    data = split(cell.world, source, cell.seed)
    found = _updated(cell, data, output)
    found |= {"asked": cell.asked, "seconds": round(time.monotonic() - started, 2)}
    path = output / cell.place
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, json.dumps(found))


def _updated(cell: Cell, data: Data, output: Path) -> dict[str, Any]:
    world, entry = cell.world, ROWS[cell.row]
    network = networks.made(world, data, cell.seed)
    base = read_base(cell, output)
    if not entry.afresh:
        network.load_state_dict(base.weights)
    if not entry.trains:
        return {"at": {"0": asdict(update.ask(network, data)) | _drawn([], world, 0)}}
    other = _other(cell, entry.after, output) if entry.after else None
    counts = other["counts"] if other and entry.after == MATCHED else None
    scheduler = scheduler_of(entry, world, data, cell.seed, counts)
    primed = {"all": len(data.labels), "old": data.n_old, "": 0}[entry.primes]
    if primed:
        scheduler.prime(np.arange(primed), base.nll[:primed])

    def penalty(at: nn.Module) -> Tensor:
        return ewc.penalty(at, base.information, base.weights, entry.strength)

    going = update.steps(network, data, scheduler, world.learning_rate, penalty if entry.strength else None)
    before = world.base_steps if entry.afresh else 0
    drawn = list(islice(going, before))
    at = {}
    for length in world.lengths:
        more = other["at"][str(length)]["forward"] * FORWARD if other and entry.after == COSTED else 0.0
        drawn += islice(going, before + round(length * (1 + more)) - len(drawn))
        at[str(length)] = asdict(update.ask(network, data)) | _drawn(drawn[before:], world, primed)
    return {"at": at, "counts": [(draw.n_old, draw.ids.size - draw.n_old) for draw in drawn[before:]]}


def _drawn(draws: list[Draw], world: World, primed: int) -> dict[str, float | None]:
    slots = len(draws) * world.batch_size
    used, old = sum(draw.ids.size for draw in draws), sum(draw.n_old for draw in draws)
    asked = primed + sum(draw.asked for draw in draws)
    return {
        "steps": len(draws), "old_share": old / used if used else None,
        "filled": used / slots if slots else None, "forward": asked / slots if slots else 0.0,
    }  # fmt: skip


def _other(cell: Cell, row: str, output: Path) -> dict[str, Any]:
    """Another row's cell with the same seed, which this one goes by."""
    found = held(Cell(cell.world, cell.digest, row, cell.seed), output)
    if found is None:
        raise SRTError(f"{cell.row} goes by {row}, which is not there for {cell.world.name}, seed {cell.seed}.")
    return found


# --- bases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Base:
    """A trained network, and what was found out about it."""

    weights: dict[str, Tensor]
    nll: Any
    information: dict[str, Tensor]


def has_base(cell: Cell, output: Path) -> bool:
    """Whether this very base is there."""
    try:
        with safe_open(output / cell.base, "pt") as file:
            return bool((file.metadata() or {}).get("begun") == json.dumps(cell.begun))
    except (OSError, SafetensorError):
        return False


def make_base(cell: Cell, source: Source, output: Path) -> None:
    """Train on old examples alone, in shuffled epochs."""
    data = split(cell.world, source, cell.seed)
    known = Data(**(vars(data) | {"features": data.features[: data.n_old], "labels": data.labels[: data.n_old]}))
    network = networks.made(cell.world, data, cell.seed)
    scheduler = scheduler_of(ROWS["joint"], cell.world, known, cell.seed)
    for _ in islice(update.steps(network, known, scheduler, cell.world.learning_rate), cell.world.base_steps):
        pass
    some = torch.from_numpy(np.random.default_rng(cell.seed).permutation(data.n_old)[:FISHER])
    information = ewc.fisher(network, *data.batch(some))
    kept = {NLL: torch.from_numpy(update.nll(network, data, np.arange(len(data.labels))))}
    kept |= {WEIGHTS + name: value.contiguous() for name, value in network.state_dict().items()}
    kept |= {INFORMATION + name: value.contiguous() for name, value in information.items()}
    path = output / cell.base
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    save_file(kept, beside, {"begun": json.dumps(cell.begun)})
    beside.replace(path)


def read_base(cell: Cell, output: Path) -> Base:
    """The base that this cell begins from."""
    if not has_base(cell, output):
        raise SRTError(f"{output / cell.base} is not there, or another's: expected the base of this very data.")
    with safe_open(output / cell.base, "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    parts = [{n.removeprefix(p): v for n, v in found.items() if n.startswith(p)} for p in (WEIGHTS, INFORMATION)]
    return Base(parts[0], found[NLL].numpy(), parts[1])
