"""A new adapter on top of one that stays as it is: what earlier updates have learned is out of the optimiser's reach.

    W + S·B_below·A_below + S·B·A  =  W + S·[B_below, B]·[A_below; A]

Only A and B train. What is saved is the sum on the right, one LoRA adapter of rank r_below + r, which PEFT loads like
any other; a resume takes it apart again, the same bytes. The adapter below has the scale S of the new one: what it was
scaled by before is multiplied into its B once, when it is loaded.
"""
# ruff: noqa: PLC0415 - peft takes seconds to import

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from srt_peft.training.base import refused

BELOW, TOP = "below", "default"
WEIGHTS = "adapter_model.safetensors"
Tensors = dict[str, torch.Tensor]


def stacked(model: Any, folder: Path, config: Any, options: Mapping[str, Any], *, resume: bool) -> Any:
    """The model under both adapters, of which the new one trains; `config` is that of the one in `folder`.

    `resume` is whether the one in `folder` is already the sum of both.
    """
    from peft import LoraConfig, PeftModel, set_peft_model_state_dict

    faults = [f"{what} = {value!r}" for what, value in _odd(config).items() if value]
    if faults or options.get("use_dora"):
        told = ", ".join(faults) or "model.lora.use_dora = true"
        raise refused(f"model.stack = true with {told}: expected plain LoRA. Set next.adapter to 'merge' or 'continue'")
    tensors = load_file(folder / WEIGHTS)
    top = LoraConfig(**{"task_type": "CAUSAL_LM", "target_modules": "all-linear", **options}, revision=config.revision)
    scale, rank = _scale(top), config.r - (top.r if resume else 0)
    if rank < 1:
        raise refused(f"model.lora.r = {top.r} of an adapter of rank {config.r}: expected what this run was begun with")
    if not resume:
        factor = _scale(config) / scale
        tensors = {name: t * factor if "_B" in name and factor != 1 else t for name, t in tensors.items()}
    below = LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=scale * rank, target_modules=config.target_modules,
        fan_in_fan_out=config.fan_in_fan_out, inference_mode=True,
    )  # fmt: skip
    tuned = PeftModel(model, below, adapter_name=BELOW)
    tuned.add_adapter(TOP, top)
    parts = {BELOW: _part(tensors, 0, rank), **({TOP: _part(tensors, rank, config.r)} if resume else {})}
    for name, part in parts.items():
        found: Any = set_peft_model_state_dict(tuned, part, adapter_name=name)
        if found.unexpected_keys:
            raise refused(
                f"model.adapter = {str(folder)!r} does not fit: {found.unexpected_keys[0]} has no counterpart"
            )
    layers: Any = tuned.base_model
    layers.set_adapter([BELOW, TOP])
    for name, parameter in tuned.named_parameters():
        parameter.requires_grad_(f".{TOP}." in name)
    return tuned


def is_stacked(model: Any) -> bool:
    """Whether a model is under two adapters."""
    return BELOW in getattr(model, "peft_config", {})


def save(model: Any, folder: Path) -> None:
    """Write both as the one adapter that they come to."""
    from peft import get_peft_model_state_dict

    below, top = (get_peft_model_state_dict(model, adapter_name=name) for name in (BELOW, TOP))
    ranks = [model.peft_config[name].r for name in (BELOW, TOP)]
    tensors = {name: _joined(name, below.get(name), top.get(name), ranks) for name in sorted(below.keys() | top.keys())}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = copy.copy(model.peft_config[TOP])
    config.r, config.lora_alpha, config.use_rslora = sum(ranks), _scale(config) * sum(ranks), False
    config.target_modules = sorted({n.rpartition(".lora_")[0].removeprefix("base_model.model.") for n in tensors})
    config.inference_mode = True
    config.save_pretrained(folder)


def _joined(name: str, below: torch.Tensor | None, top: torch.Tensor | None, ranks: list[int]) -> torch.Tensor:
    """Both parts side by side along the rank; who has no part has zeros."""
    along = 0 if "_A" in name else 1
    like = below if top is None else top
    assert like is not None, "one of them has it"

    def whole(part: torch.Tensor | None, rank: int) -> torch.Tensor:
        shape = [rank if i == along else size for i, size in enumerate(like.shape)]
        return like.new_zeros(shape) if part is None else part.detach()

    return torch.cat([whole(below, ranks[0]), whole(top, ranks[1])], dim=along).cpu().contiguous()


def _part(tensors: Tensors, start: int, stop: int) -> Tensors:
    """These ranks of each."""
    return {name: t[start:stop] if "_A" in name else t[:, start:stop].contiguous() for name, t in tensors.items()}


def _scale(config: Any) -> float:
    return float(config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r))


def _odd(config: Any) -> dict[str, Any]:
    """What a sum of two LoRA adapters does not have."""
    names = (
        "use_dora",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "trainable_token_indices",
        "layer_replication",
    )
    found = {name: getattr(config, name, None) for name in names}
    return found | {"bias": config.bias if config.bias != "none" else None}
