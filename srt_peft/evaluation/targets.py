"""What is evaluated: a run, a checkpoint, an adapter or a base, and the model that it stands for, ready to be asked.

    RUN           a run's folder: its newest whole checkpoint
    CHECKPOINT    a folder of one, adapter or full; also any adapter that PEFT saved
    BASE          a model's folder, or its name on the hub

A checkpoint knows what it was trained on: an adapter that was trained on a base in 4 bits is asked on a base in 4 bits,
unless another precision is named. `fingerprint` tells the weights apart, so that scores are never another model's.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srt_peft.errors import OptionError
from srt_peft.training import checkpoint
from srt_peft.training.base import config_of, load_tokenizer
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe

PRECISIONS = ("4bit", "bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Target:
    """A model to be asked."""

    label: str
    base: str
    revision: str | None
    adapter: Path | None
    folder: Path | None
    """Where it lies, unless it is a name on the hub."""
    recipe: Recipe | None
    """The recipe of the run that it came from, if it came from one."""

    @property
    def home(self) -> Path | None:
        """The folder of the run that it is a checkpoint of."""
        inside = self.folder is not None and self.folder.parent.name == "checkpoints"
        return self.folder.parent.parent if inside and self.folder else None

    def precision(self, asked: str | None, *, gpu: bool) -> str:
        """What its base is loaded in: as asked, else as it was trained, else what the machine computes well in."""
        if asked is not None:
            return asked
        if self.recipe is not None:
            return "4bit" if self.recipe.model.tuning == "qlora" else self.recipe.model.dtype
        return "bfloat16" if gpu else "float32"

    def fingerprint(self) -> dict[str, Any]:
        """What tells its weights apart from others: the files' hashes where they are known, else sizes and times."""
        told: dict[str, Any] = {"base": _weights(self.base, self.revision)}
        if self.adapter is not None:
            told["adapter"] = hashlib.sha256((self.adapter / "adapter_model.safetensors").read_bytes()).hexdigest()
        return told


def target_of(name: str, *, base: str | None = None) -> Target:
    """The target that a person has named; `base` is the base of an adapter that is not where it was, or on the hub."""
    folder = _newest(Path(name)) if (Path(name) / "checkpoints").is_dir() else Path(name)
    here = folder if folder.is_dir() else None
    if (folder / checkpoint.MANIFEST).is_file():
        checkpoint.check(folder)
    recipe = _recipe(folder)
    if (folder / "adapter_config.json").is_file():
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        under = base or config.get("base_model_name_or_path") or ""
        target = Target(name, under, config.get("revision"), folder, folder, recipe)
    else:
        target = Target(name, str(folder) if here else name, None, None, here, recipe)
    try:
        config_of(target.base, target.revision)
    except OptionError as error:
        if target.adapter is None:
            expected = "expected a run, a checkpoint, an adapter, or a base model"
            raise OptionError(f"the target {name}", [f"{fault}; {expected}" for fault in error.faults]) from None
        remedy = "give its base with --base"
        raise OptionError(f"the target {name}", [f"{fault}; {remedy}" for fault in error.faults]) from None
    return target


def base_of(target: Target) -> Target:
    """The base that a target was made from, before any update."""
    recipe = target.recipe
    under = recipe.model.base if target.adapter is None and recipe is not None else target.base
    revision = recipe.model.revision if target.adapter is None and recipe is not None else target.revision
    return Target(under, under, revision, None, Path(under) if Path(under).is_dir() else None, recipe)


def load(target: Target, precision: str) -> tuple[Any, Any]:
    """The model, in evaluation mode with nothing to train, and its tokenizer."""
    from srt_peft.training.model import load_to_score  # noqa: PLC0415 - torch and peft take seconds

    model = load_to_score(target.base, revision=target.revision, adapter=target.adapter, precision=precision)
    return model, load_tokenizer(target.base, target.revision)


def _newest(run: Path) -> Path:
    newest, faults = checkpoint.newest(run)
    if newest is None:
        what = "; ".join(faults) or "there is none yet"
        fault = f"it has no whole checkpoint ({what}): train it first, or name another"
        raise OptionError(f"the target {run}", [fault])
    return newest


def _recipe(folder: Path) -> Recipe | None:
    saved = folder / "trainer" / "trainer.json"
    if not saved.is_file():
        return None
    return load_recipe(json.loads(saved.read_text(encoding="utf-8"))["recipe"])


def _weights(base: str, revision: str | None) -> Any:
    folder = Path(base)
    if (folder / checkpoint.MANIFEST).is_file():
        return {name: told["sha256"] for name, told in checkpoint.check(folder)["files"].items() if "/" not in name}
    if folder.is_dir():
        files = sorted(p for p in folder.iterdir() if p.suffix in {".safetensors", ".json"})
        return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    return [base, revision, getattr(config_of(base, revision), "_commit_hash", None)]
