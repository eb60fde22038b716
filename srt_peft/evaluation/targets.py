"""What is evaluated: a run, a checkpoint, an adapter or a base, and the model that it stands for, ready to be asked.

    RUN           a run's folder: its newest whole checkpoint
    CHECKPOINT    a folder of one, adapter or full; also any adapter that PEFT saved
    BASE          a model's folder, or its name on the hub

A checkpoint knows what it was trained on: an adapter that was trained on a base in 4 bits is asked on a base in 4 bits,
unless another precision is named. `fingerprint` tells the weights apart, so that scores are never another model's.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from srt_peft.errors import OptionError
from srt_peft.training import checkpoint
from srt_peft.training.base import adapter_folder, commit_of, config_of, fingerprint, load_tokenizer
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe

_LOGGER = logging.getLogger("srt_peft")
_CONFIG = "adapter_config.json"


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
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        told: dict[str, Any] = {"base": _weights(self.base, self.revision)}
        if self.adapter is not None:  # its configuration too, which has its scale
            files = ("adapter_model.safetensors", _CONFIG)
            told["adapter"] = [checkpoint.hashed(self.adapter / name) for name in files]
        return told


def target_of(name: str, *, base: str | None = None) -> Target:
    """The target that a person has named; `base` is the base of an adapter that is not where it was, or on the hub."""
    is_run = (Path(name) / "checkpoints").is_dir()
    folder = _newest(Path(name)) if is_run else Path(name)
    here = folder if folder.is_dir() else None
    if not is_run and (folder / checkpoint.MANIFEST).is_file():
        checkpoint.check(folder)
    recipe = _recipe(folder)
    if (folder / _CONFIG).is_file():
        adapter_folder(str(folder))
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        said = config.get("base_model_name_or_path") or ""
        under, revision = (said, config.get("revision")) if base in (None, said) else (str(base), None)
        if said and Path(said).name not in (Path(under).name, Path(under).resolve().name):  # which may be a link
            _LOGGER.warning("%s was made for the base %s, and is asked on %s, as --base has it.", name, said, under)
        target = Target(name, under, revision, folder, folder, recipe)
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


def base_of(target: Target, *, base: str | None = None) -> Target:
    """The base that a target was made from, before any update; a full checkpoint's may be named, as an adapter's."""
    recipe = target.recipe
    under, revision = target.base, target.revision
    if target.adapter is None and recipe is not None:
        said = recipe.model.base
        under, revision = (said, recipe.model.revision) if base in (None, said) else (str(base), None)
        try:
            config_of(under, revision)
        except OptionError as error:
            faults = [f"{fault}; give its base with --base" for fault in error.faults]
            raise OptionError(f"the base of {target.label}", faults) from None
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
    for fault in faults:  # of newer ones: what is asked is not what was trained last
        _LOGGER.warning("%s Asked instead is %s.", fault, newest)
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
        files = sorted(p for p in folder.iterdir() if p.suffix in {".safetensors", ".json", ".model", ".txt"})
        # Copies that keep the time, and other weights of the same shape, are told apart by what the files begin with.
        return [fingerprint(base, revision), *([p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files)]
    return [base, revision, commit_of(base, revision)]
