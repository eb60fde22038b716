"""The checkpoint that a person means: a run's newest whole one, or the one whose folder is named."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from srt_peft.errors import DamagedError, OptionError
from srt_peft.training import checkpoint
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe

_LOGGER = logging.getLogger("srt_peft")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint, and what it says of the run that it is of."""

    folder: Path
    home: Path | None
    """The run's folder, where the checkpoint still lies in it."""
    step: int
    recipe: Recipe
    identity: dict[str, str]
    """What the run was made of, beside its recipe."""

    @property
    def beside(self) -> Path:
        """Where what is made of it goes: the run's folder, or where it lies."""
        return self.home or self.folder.parent


def checkpoint_of(name: str | Path, what: str) -> Checkpoint:
    """The checkpoint of a run or a checkpoint's folder; `what` is the command that asks, for its errors."""
    path = Path(name)
    if (path / "checkpoints").is_dir():
        folder, faults = checkpoint.newest(path)
        if folder is None:
            told = "; ".join(faults) or "there is none yet: train it first"
            raise OptionError(what, [f"{path} has no whole checkpoint ({told})"])
        for fault in faults:
            _LOGGER.warning("%s Taken instead is %s.", fault, folder)
    elif (path / checkpoint.MANIFEST).is_file() or (path / "trainer").is_dir():
        folder = path
        checkpoint.check(folder)
    else:
        there = "" if path.is_dir() else ", which does not exist"
        raise OptionError(what, [f"{path}{there}: expected the folder of a run, or of one of its checkpoints"])
    return _read(folder)


def _read(folder: Path) -> Checkpoint:
    try:
        saved = json.loads((folder / "trainer" / "trainer.json").read_text(encoding="utf-8"))
        step, recipe, identity = int(saved["step"]), saved["recipe"], dict(saved["identity"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{folder / 'trainer/trainer.json'} is no checkpoint's ({error}).") from None
    real = folder.resolve()
    home = real.parent.parent if real.parent.name == "checkpoints" else None
    if home is not None and folder.parent.name == "checkpoints":
        home = folder.parent.parent  # as the person calls it
    return Checkpoint(folder, home, step, load_recipe(recipe), identity)
