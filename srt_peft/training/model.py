"""What is trained: a base with a quantised trunk and an adapter (qlora), with an adapter (lora), or all of it (full).

    tuning   the base's weights                    what trains            optimiser
    qlora    NF4, double quantisation; the rest    LoRA, in float32       paged 8-bit AdamW on a GPU, else AdamW
             (embeddings, norms, head) in `dtype`
    lora     `dtype`                               LoRA, in float32       AdamW
    full     float32                               all of them            AdamW

`dtype` is what the model computes in; the loop runs it under autocast. What trains is held in float32 whatever
`dtype` is, mixed precision as in the paper: the 8 bits of bfloat16 would round most small updates away.

PEFT's `prepare_model_for_kbit_training` is not used: it casts all that is not quantised to float32, gigabytes for
embeddings that do not train, where norms and our loss compute in float32 anyway. PEFT freezes the base by itself, and
gradient checkpointing is told to work without input gradients (`use_reentrant=False`).

Nothing that is downloaded is ever executed: no remote code, and no weights but safetensors.
"""
# ruff: noqa: PLC0415 - transformers, peft and bitsandbytes take seconds to import

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.training.base import NO_WEIGHTS, adapter_folder, commit_of, config_of, line_of, load_tokenizer, refused
from srt_peft.training.stack import stacked

__all__ = [
    "describe", "evaluating", "load_base", "load_model", "load_to_score", "load_tokenizer", "make_optimizer", "spare",
    "with_adapter",
]  # fmt: skip

_LOGGER = logging.getLogger("srt_peft")
# It tells, on every import, of a package that it can do without.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

TUNING = ("qlora", "lora", "full")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
BETAS, EPSILON = (0.9, 0.999), 1e-8

# The recipe's short names for what PEFT's LoraConfig calls otherwise; all its other names pass through.
_SHORT = {"alpha": "lora_alpha", "dropout": "lora_dropout"}
_LONG = {long: short for short, long in _SHORT.items()}
# What makes an adapter's shape and scale: an adapter that is continued keeps these.
_SHAPE = ("r", "lora_alpha", "use_dora", "use_rslora")


def load_model(
    base: str | Path,
    *,
    revision: str | None = None,
    tuning: str = "qlora",
    adapter: str | Path | None = None,
    stack: Literal["", "new", "saved"] = "",
    lora: Mapping[str, Any] | None = None,
    dtype: str = "bfloat16",
    attention: str = "sdpa",
    gradient_checkpointing: bool = True,
    device: torch.device | str | None = None,
) -> Any:
    """The model, ready to train on `device` (a GPU if there is one).

    `lora` takes r, alpha, dropout, target_modules, and whatever else LoraConfig does (use_dora, use_rslora, …). With
    `adapter`, that adapter is continued: r, alpha, use_dora and use_rslora, where `lora` names them, must be its own;
    or, with `stack`, it stays as it is, beneath a new one of that shape ("saved": it is the sum of both, as saved).
    """
    base = str(base)
    options = {_SHORT.get(key, key): value for key, value in (lora or {}).items()}
    _check(tuning, dtype, attention, options, adapter)
    config = config_of(base, revision)
    model = _load_base(base, revision, config, tuning, DTYPES[dtype], attention, _place(device))
    if gradient_checkpointing:  # transformers before 5.23 knows it by its older name only
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    if tuning == "full":
        return model.requires_grad_(True)
    commit = commit_of(base, revision) or revision
    with _quiet():
        folder = None if adapter is None else adapter_folder(str(adapter))
        if folder is None:
            tuned = _new_adapter(model, commit, options)
        else:
            tuned = _continued(model, base, commit, folder, options, stack=stack)
    config = tuned.peft_config["default"]
    if isinstance(config.target_modules, set):  # which would be saved in another order by every process
        config.target_modules = sorted(config.target_modules)
    return tuned


def load_to_score(
    base: str | Path,
    *,
    revision: str | None = None,
    adapter: str | Path | None = None,
    precision: str = "bfloat16",
    attention: str = "sdpa",
    device: torch.device | str | None = None,
) -> Any:
    """A base, alone or with an adapter, to be asked and not trained; `precision` is "4bit" (NF4) or a dtype's name."""
    quantise = precision == "4bit"
    dtype = "bfloat16" if quantise and _place(device).type == "cuda" else "float32" if quantise else precision
    kind = "qlora" if quantise else "lora"  # which a base that comes quantised can be, too
    model = load_base(base, revision=revision, tuning=kind, dtype=dtype, attention=attention, device=device)
    if adapter is not None:
        model = with_adapter(model, base, revision, adapter)
    return model


def load_base(
    base: str | Path,
    *,
    revision: str | None = None,
    tuning: str,
    dtype: str,
    attention: str = "sdpa",
    device: torch.device | str | None = None,
) -> Any:
    """A base to be asked and not trained, with the very weights beside which `tuning` trains an adapter."""
    base = str(base)
    config = config_of(base, revision)
    model = _load_base(base, revision, config, tuning, DTYPES[dtype], attention, _place(device))
    spare(model.requires_grad_(False).eval())
    return model


def with_adapter(model: Any, base: str | Path, revision: str | None, adapter: str | Path) -> Any:
    """The base with an adapter on it, to be asked and not trained."""
    commit = commit_of(str(base), revision) or revision
    with _quiet():
        tuned = _continued(model, str(base), commit, adapter_folder(str(adapter)), {}, elsewhere=True)
    spare(tuned.requires_grad_(False).eval())
    return tuned


def make_optimizer(
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float,
    tuning: str,
    device: torch.device | str | None = None,
) -> torch.optim.Optimizer:
    """AdamW over what trains, β = (0.9, 0.999), ε = 1e-8; matrices decay, vectors (norms, biases) do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if _eight_bit(tuning, _place(device)):
        import bitsandbytes.optim

        kind: Any = bitsandbytes.optim.PagedAdamW8bit  # type: ignore[attr-defined]
        return cast(torch.optim.Optimizer, kind(groups, lr=learning_rate, betas=BETAS, eps=EPSILON))
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, eps=EPSILON, fused=True)


def describe(model: nn.Module, *, tuning: str) -> dict[str, int]:
    """How many parameters there are and train, and the bytes that these and their training take.

    `weights` are the base's, `adapter` the trained ones' beside it. Activations come on top: they depend on the
    micro-batch, and are measured, not computed.
    """
    parameters = list(model.parameters())
    count, size = (sum(column) for column in zip(*map(_stored, parameters), strict=True))
    trained = [p for p in parameters if p.requires_grad]
    trainable, trained_size = (sum(column) for column in zip(*map(_stored, trained), strict=True))
    adapter = 0 if tuning == "full" else trained_size
    optimizer = 2 * trainable if _eight_bit(tuning, parameters[0].device) else 2 * trained_size
    return {
        "trainable": trainable,
        "total": count,
        "weights": size - adapter,
        "adapter": adapter,
        "gradients": trained_size,
        "optimizer": optimizer,
    }


def _check(tuning: str, dtype: str, attention: str, lora: Mapping[str, Any], adapter: object) -> None:
    """All that is wrong with the options, at once."""
    choices = (("tuning", tuning, TUNING), ("dtype", dtype, DTYPES), ("attention", attention, ATTENTION))
    faults = [
        f"model.{name} = {value!r}: expected one of {', '.join(known)}{did_you_mean(value, known)}"
        for name, value, known in choices
        if value not in known
    ]
    if tuning == "full" and adapter is not None:
        faults.append(f"model.adapter = {str(adapter)!r}: expected none with tuning = 'full', which trains no adapter")
    if lora and tuning != "full":
        from peft import LoraConfig

        known = {_LONG.get(field.name, field.name) for field in dataclasses.fields(LoraConfig)}
        unknown = [key for key in (_LONG.get(key, key) for key in lora) if key not in known]
        faults += [f"model.lora.{k}: PEFT's LoraConfig has no such option{did_you_mean(k, known)}" for k in unknown]
    if tuning == "qlora" and find_spec("bitsandbytes") is None:
        faults.append("model.tuning = 'qlora' needs bitsandbytes: pip install bitsandbytes, or set tuning to 'lora'")
    if faults:
        raise OptionError("the model", faults)


# --- loading ------------------------------------------------------------------------------------------------------


def _place(device: torch.device | str | None) -> torch.device:
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place


def _load_base(
    base: str, revision: str | None, config: Any, tuning: str, dtype: torch.dtype, attention: str, place: torch.device
) -> Any:
    import transformers
    from safetensors import SafetensorError

    kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if attention == "sdpa" and not getattr(kind, "_supports_sdpa", True):  # a default, which some cannot have
        _LOGGER.info("%s has no sdpa attention in transformers; eager is used.", kind.__name__)
        attention = "eager"
    weights = torch.float32 if tuning == "full" else dtype
    options: dict[str, Any] = {"dtype": weights, "attn_implementation": attention}
    options |= {"use_safetensors": True, "trust_remote_code": False}
    if tuning == "qlora":
        options["device_map"] = {"": str(place)}
    quantised = _quantised(base, config, tuning)
    if tuning == "qlora" and not quantised:
        nf4: Any = transformers.BitsAndBytesConfig
        options["quantization_config"] = nf4(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
        )
    try:
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(
            base, revision=revision, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except SafetensorError as error:
        raise refused(f"model.base = {base!r} is damaged ({line_of(error)}): fetch its weights again") from error
    except (OSError, ValueError, ImportError) as error:
        raise refused(_load_fault(base, attention, error)) from error
    model, info = found
    lacking = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    if lacking:  # transformers would begin them at random, and say so in passing
        raise refused(
            f"model.base = {base!r} is not what its config.json says: {len(lacking)} weights are missing or of another "
            f"shape, the first is {lacking[0]}. Fetch weights and config.json from one place"
        )
    return model if quantised or tuning == "qlora" else model.to(place)


def _quantised(base: str, config: Any, tuning: str) -> bool:
    """Whether the base comes quantised; refused where the tuning cannot take it so."""
    said = getattr(config, "quantization_config", None)
    if said is None:
        return False
    method = said.get("quant_method") if isinstance(said, dict) else getattr(said, "quant_method", None)
    if tuning == "full" or (tuning == "qlora" and method != "bitsandbytes"):
        remedy = "tuning 'lora' can train beside it" if tuning == "qlora" else "tuning 'qlora' or 'lora' can"
        raise refused(
            f"model.base = {base!r} is stored quantised by {method!r}, which tuning = {tuning!r} cannot train; {remedy}"
        )
    return True


def _load_fault(base: str, attention: str, error: Exception) -> str:
    if "safetensors" in str(error) and isinstance(error, OSError):
        return NO_WEIGHTS.format(base=base)
    if "attention" in str(error).lower() or "flash" in str(error).lower():
        return f"model.attention = {attention!r} cannot be had here ({line_of(error)}): set it to 'sdpa' or 'eager'"
    return f"model.base = {base!r} cannot be loaded: {line_of(error)}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what nobody here can act on, and what `_other_names` tells."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing. is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message="Found missing adapter keys")
        # An adapter that was trained on a quantised Conv1D, which is a Linear4bit, on the Conv1D; PEFT sets it right.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        yield


# --- adapters -----------------------------------------------------------------------------------------------------


def _new_adapter(model: Any, commit: str | None, options: Mapping[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    settings = {"task_type": "CAUSAL_LM", "target_modules": "all-linear", **options}
    # GPT-2's Conv1D holds its weight the other way round; quantised, it has become a Linear4bit.
    settings.setdefault("fan_in_fan_out", any(type(m) is Conv1D for m in model.modules()))
    try:
        return get_peft_model(model, LoraConfig(**settings, revision=commit))
    except (ValueError, TypeError) as error:
        raise refused(f"model.lora: {line_of(error)}") from error


def _continued(
    model: Any,
    base: str,
    commit: str | None,
    folder: Path,
    options: Mapping[str, Any],
    *,
    elsewhere: bool = False,
    stack: str = "",
) -> Any:
    """The adapter in `folder`, to be trained on; it must have been made for this base, in the shape that is asked.

    `elsewhere` lets the base have another name: what is only asked spoils nothing, and the shapes are checked anyway.
    """
    from peft import PeftConfig, PeftModel
    from safetensors import SafetensorError

    name = f"model.adapter = {str(folder)!r}"
    try:
        config: Any = PeftConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError) as error:
        raise refused(f"{name} has an adapter_config.json that PEFT cannot read: {line_of(error)}") from error
    faults = _mismatches(config, None if elsewhere else base, name, {} if stack else options)
    if faults:
        raise OptionError("the model", faults)
    if commit and config.revision and config.revision != commit:
        _LOGGER.warning("the adapter was made for revision %s of %s; this is %s.", config.revision, base, commit)
    if stack:
        settings = {"fan_in_fan_out": config.fan_in_fan_out, **options}
        return stacked(model, folder, config, settings, resume=stack == "saved")
    config.base_model_name_or_path, config.revision = base, commit  # before PEFT looks there for the vocabulary
    if "lora_dropout" in options:
        config.lora_dropout = options["lora_dropout"]
    try:
        tuned = PeftModel.from_pretrained(model, str(folder), config=config, is_trainable=True)
    except SafetensorError as error:
        raise refused(f"{name} is damaged: {line_of(error)}. Fetch it again") from error
    except (RuntimeError, ValueError) as error:
        raise _misfit(name, base, line_of(error, -1)) from error
    odd = _other_names(tuned, folder)
    if odd:
        raise _misfit(name, base, f"{len(odd)} tensors have no counterpart, the first is {odd[0]}")
    return tuned


def _mismatches(config: Any, base: str | None, name: str, options: Mapping[str, Any]) -> list[str]:
    if str(getattr(config.peft_type, "value", config.peft_type)) != "LORA":
        return [f"{name} is of kind {config.peft_type}: expected LoRA"]
    made_for = config.base_model_name_or_path
    # A base may have moved since, so it is its last name that counts; its shapes are checked when it is loaded.
    faults = []
    if base and made_for and Path(made_for).resolve().name != Path(base).resolve().name:
        faults.append(
            f"{name} was made for the base {made_for!r}, and model.base is {base!r}: expected the same base. Set "
            "model.base to it, or leave model.adapter out to begin a new one"
        )
    for key in _SHAPE:
        theirs = getattr(config, key)
        if key in options and options[key] != theirs:
            asked = f"model.lora.{_LONG.get(key, key)}"
            faults.append(
                f"{name} has {key} = {theirs}, and {asked} is {options[key]}: expected the same, since an adapter that "
                f"is continued keeps its shape. Set {asked} to {theirs}"
            )
    return faults


def _misfit(name: str, base: str, reason: str) -> OptionError:
    return refused(
        f"{name} does not fit model.base = {base!r} ({reason}): it was made for a base of another shape. "
        "Set model.base to that base, or leave model.adapter out to begin a new one"
    )


def _other_names(tuned: Any, folder: Path) -> list[str]:
    """Names of tensors that only the file has, or only the model: PEFT would pass over either."""
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        saved = set(file.keys())
    return sorted(saved ^ set(get_peft_model_state_dict(tuned)))


def _eight_bit(tuning: str, place: torch.device) -> bool:
    return tuning == "qlora" and place.type == "cuda" and find_spec("bitsandbytes") is not None


def _stored(parameter: nn.Parameter) -> tuple[int, int]:
    """How many weights a parameter stands for, and in how many bytes: quantised, it has scales beside it."""
    size = parameter.numel() * parameter.element_size()
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.numel(), size
    inner = (state.state2.absmax, state.state2.code, state.offset) if state.nested else ()
    scales = sum(t.numel() * t.element_size() for t in (state.absmax, state.code, *inner))
    return int(torch.Size(state.shape).numel()), size + scales


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout and gradients while this lasts, and in training mode again afterwards.

    Quantised layers stay in training mode, which means nothing else to them: on some processors bitsandbytes re-packs
    their weights for inference once they are not, and training on from there goes wrong without a sound.
    """
    spare(model.eval())
    try:
        with torch.no_grad():
            yield
    finally:
        model.train()


def spare(model: nn.Module) -> None:
    """Keep a model's quantised layers from being re-packed by whoever calls `eval()` on it (see `evaluating`)."""
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.training = True
