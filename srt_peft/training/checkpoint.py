"""Adapter, optimiser and review state: one folder, all of it or nothing.

    checkpoints/step-00000100/
      adapter_model.safetensors  adapter_config.json  README.md     (tuning: full: model*.safetensors, config.json)
      tokenizer files
      srt_state/                 the review state at this very step
      trainer/                   optimizer.safetensors, trainer.json
      MANIFEST.json              sizes and SHA-256 of all the rest, written last

The folder is written under another name, flushed, and renamed once it is whole. So a checkpoint that exists is
whole when it is written, and one that was damaged since is refused by name. Nothing is pickled. Learning rate and
chance need no saving: both are functions of the step.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from srt_peft.errors import DamagedError, StateError
from srt_peft.review.files import sync, sync_all

MANIFEST = "MANIFEST.json"
FORMAT, VERSION = "srt_peft checkpoint", 1
_NAME = re.compile(r"step-(\d{8,})")
_ASIDE = ".before"


def name_of(step: int) -> str:
    """The folder of a checkpoint after so many steps."""
    return f"step-{step:08d}"


def save(run: Path, step: int, parts: Mapping[str, Callable[[Path], None]], *, keep: int | None = None) -> Path:
    """Write a checkpoint. Each part is handed a folder (its name, "" for the checkpoint's own) to write into."""
    home = run / "checkpoints"
    home.mkdir(parents=True, exist_ok=True)
    staged, final = home / f".{name_of(step)}.part", home / name_of(step)
    for left in (*home.glob(".step-*.part"), *home.glob(f".step-*{_ASIDE}")):  # by a kill, perhaps at another step
        shutil.rmtree(left, ignore_errors=True)
    try:
        for name, write in parts.items():
            (staged / name).mkdir(parents=True, exist_ok=True)
            write(staged / name)
        _seal(staged, step)
        if final.exists():  # of an earlier run to this step, which resume went behind
            shutil.rmtree(final)
        staged.rename(final)
        sync(home)
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        # What is written in Rust (safetensors, tokenizers) tells of a full disk in an exception of its own.
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        reason = getattr(error, "strerror", None) or error
        raise StateError(
            f"The checkpoint {final} could not be written ({reason}); earlier ones are as they were. "
            "Make room on the disk, or lower checkpoints.keep, and go on with --resume."
        ) from error
    if keep is not None:  # later ones were passed over: they are damaged, and must not push out this one
        for path in [path for path in all_of(run) if step_of(path) <= step][:-keep]:
            shutil.rmtree(path)
    return final


def _seal(staged: Path, step: int) -> None:
    """Write the manifest of what is there, and have all of it on the disk."""
    files = {str(p.relative_to(staged)): described(p) for p in sorted(staged.rglob("*")) if p.is_file()}
    manifest = {"format": FORMAT, "version": VERSION, "step": step, "files": files}
    (staged / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    sync_all(staged)


def revise(path: Path, parts: Mapping[str, Callable[[Path], None]]) -> None:
    """Write parts of a whole checkpoint anew (folders or files, by name), all or nothing; the rest is the same files.

    A folder cannot be renamed over another, so the one that was there steps aside; `newest` puts it back if a kill
    comes between the two renames. The caller holds the run's lock.
    """
    staged, aside = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}{_ASIDE}")
    files = check(path)["files"]
    for left in (staged, aside):
        shutil.rmtree(left, ignore_errors=True)
    try:
        for file in (file for file in files if not any(f"{file}/".startswith(f"{name}/") for name in parts)):
            (staged / file).parent.mkdir(parents=True, exist_ok=True)
            _link(path / file, staged / file)
        for name, write in parts.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            write(staged / name)
        _seal(staged, step_of(path))
        path.rename(aside)
        staged.rename(path)
    except BaseException as error:
        if not path.exists():
            aside.rename(path)
        shutil.rmtree(staged, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        message = f"The checkpoint {path} could not be revised ({error.strerror or error}); it is as it was."
        raise StateError(message) from error
    sync(path.parent)
    shutil.rmtree(aside)


def _link(source: Path, to: Path) -> None:
    try:
        os.link(source, to)
    except OSError:  # a file system without hard links
        shutil.copy2(source, to)


def _mend(run: Path) -> None:
    """Put back what a kill in the middle of `revise` has left aside; where it may not be written to, it stays."""
    for aside in (run / "checkpoints").glob(f".step-*{_ASIDE}"):
        path = aside.with_name(aside.name[1 : -len(_ASIDE)])
        if not path.exists():
            with suppress(OSError):
                aside.rename(path)


def step_of(path: Path) -> int:
    """After how many steps a checkpoint was made, by its name."""
    found = _NAME.fullmatch(path.name)
    assert found, "it is called as name_of does"
    return int(found[1])


def all_of(run: Path) -> list[Path]:
    """The run's checkpoints, oldest first, whole or not."""
    found = (run / "checkpoints").glob("step-*")
    return sorted((path for path in found if _NAME.fullmatch(path.name) and path.is_dir()), key=step_of)


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run, and what is wrong with any newer ones."""
    faults = []
    _mend(run)
    for path in reversed(all_of(run)):
        try:
            check(path)
        except DamagedError as error:
            faults.append(str(error))
        else:
            return path, faults
    return None, faults


def check(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, once every file is known to be as it was written."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files, step = dict(manifest["files"]), manifest["step"]
        known = (manifest["format"], manifest["version"]) == (FORMAT, VERSION)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DamagedError(f"{path} is no whole checkpoint: its {MANIFEST} is missing or cannot be read.") from None
    if not known:
        raise DamagedError(f"{path} is not a checkpoint that this version reads: {MANIFEST} says so.")
    if path.name != (name_of(step) if isinstance(step, int) else None):
        raise DamagedError(f"{path} is not what its name says: its {MANIFEST} is of step {step!r}.")
    for name in _ESSENTIAL - files.keys():
        raise DamagedError(f"{path} is not whole: its {MANIFEST} names no {name}.")
    for name, said in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DamagedError(f"{path} is damaged: its {MANIFEST} names {name}, which lies outside of it.")
        if not (path / name).is_file():
            raise DamagedError(f"{path} is not whole: {name} is missing.")
        if described(path / name) != said:
            raise DamagedError(f"{path} is damaged: {name} is not as it was written.")
    return manifest


_ESSENTIAL = {"srt_state/state.json", "trainer/trainer.json"}
"""What a run cannot go on without, whatever it trains."""


def described(path: Path) -> dict[str, Any]:
    """A file's size and hash, as a manifest has them."""
    return {"bytes": path.stat().st_size, "sha256": hashed(path)}


def hashed(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- the optimiser, without pickle ----------------------------------------------------------------------------


def save_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str], folder: Path) -> None:
    """The state of each parameter by its name; what is no tensor goes to JSON."""
    tensors, plain = {}, {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                slot = f"{names[id(parameter)]}|{key}"
                if isinstance(value, torch.Tensor):
                    tensors[slot] = value.detach().cpu().contiguous().clone()
                else:
                    plain[slot] = value
    save_file(tensors, folder / "optimizer.safetensors")
    (folder / "optimizer.json").write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n")


def load_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str], folder: Path) -> None:
    """Put the state back where `save_optimizer` found it."""
    tensors = load_file(folder / "optimizer.safetensors")
    plain = json.loads((folder / "optimizer.json").read_text())
    by_name: dict[str, dict[str, Any]] = {}
    for slot, value in [*tensors.items(), *plain.items()]:
        name, key = slot.rsplit("|", 1)
        by_name.setdefault(name, {})[key] = value
    parameters = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    strangers = by_name.keys() - parameters.keys()
    if strangers:
        raise DamagedError(f"{folder} holds the optimiser of another model: it names {min(strangers)}.")
    for name, state in by_name.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {key: _placed(key, value, parameter) for key, value in state.items()}


def _placed(key: str, value: Any, parameter: torch.nn.Parameter) -> Any:
    # torch keeps `step` on the CPU unless the optimiser is fused or capturable.
    moved = isinstance(value, torch.Tensor) and (key != "step" or parameter.is_cuda)
    return value.to(parameter.device) if moved else value
