"""An adapter, merged into the base that it was trained on: a whole model, which needs neither PEFT nor the adapter.

    lora     W + BA, with W as the recipe's `dtype` has it
    qlora    W' + BA, with W' what NF4 makes of W: the adapter was trained beside W', and has learned to mend it

    OUT/
      model*.safetensors  config.json  generation_config.json  tokenizer files
      merge.json               what it was made of, and its perplexity beside the adapter's

Each sum is made in float32 and rounded once, to the dtype that is asked for, a layer at a time. What comes out is
saved, loaded again as a person will load it, and asked the same text as the adapter: that is the change of perplexity
which is told.

A base whose embeddings are its head, too, gets a head of its own where the adapter changes one of the two only.
"""
# ruff: noqa: PLC0415 - transformers and peft take seconds to import

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from tqdm import tqdm

import srt_peft
from srt_peft.data.pool import Pool
from srt_peft.errors import OptionError, StateError
from srt_peft.lifecycle.links import unseen
from srt_peft.lifecycle.which import Checkpoint
from srt_peft.review.files import Lock, sync, sync_all
from srt_peft.training.base import adapter_fingerprint, config_of, fingerprint, line_of, load_tokenizer
from srt_peft.training.model import DTYPES, load_base, with_adapter

ABOUT = "merge.json"
MOST = 256
"""Examples of each pool that both forms are asked."""
_BUDGET = 16_384
_WHAT = "the merge"

Score = Callable[..., Iterator[Mapping[str, Any]]]
"""From a model, its tokenizer and pools by name, with a `budget` of tokens, to records: split, value (NLL), weight."""


@dataclass(frozen=True)
class Asked:
    """What both forms said of one pool's text."""

    examples: int
    tokens: int
    adapter: float
    """Perplexity: exp of the token mean of the NLL."""
    merged: float

    @property
    def change(self) -> float:
        """In nats a token; above 0 the merged model is worse."""
        return math.log(self.merged / self.adapter)


@dataclass(frozen=True)
class Merged:
    """What a merge came to."""

    folder: Path
    dtype: str
    base: str
    """Which weights the adapter was merged into."""
    untied: bool
    held_out: bool
    """Whether the text that was asked was never trained on."""
    asked: Mapping[str, Asked]
    rounding: float
    """The change, in nats a token, that rounding alone explains."""

    @property
    def changed(self) -> list[str]:
        """The pools whose perplexity has changed by more than rounding."""
        return [name for name, one in self.asked.items() if not abs(one.change) <= self.rounding]


def place_of(chosen: Checkpoint) -> Path:
    """Where the merged model goes, unless a person says otherwise."""
    return chosen.beside / "merged" / chosen.folder.name


def merge(
    chosen: Checkpoint, *, score: Score, keep: Callable[[Merged], bool], out: Path | None = None, dtype: str | None
) -> Merged | None:
    """Merge a checkpoint's adapter; None where `keep`, which is shown what came of it, does not want it."""
    out, dtype = out or place_of(chosen), dtype or chosen.recipe.model.dtype
    _check_kind(chosen)
    base = fingerprint(chosen.recipe.model.base, chosen.recipe.model.revision)
    head = _touches_ties(chosen)
    _check(chosen, out, DTYPES[dtype], base, untied=head)
    tokenizer = load_tokenizer(chosen.recipe.model.base, chosen.recipe.model.revision)
    pools, held_out = unseen(chosen.home, MOST)
    with _staged(out) as staged:
        before = _made(chosen, staged, dtype, tokenizer, pools, score, untied=head)
        after = _ask(load_base(staged, tuning="lora", dtype=dtype), dtype, tokenizer, pools, score)
        asked = {name: Asked(*before[name][:2], before[name][2], after[name][2]) for name in before}
        trained = chosen.recipe.model.dtype
        kind = f"NF4, de-quantised in {trained}" if chosen.recipe.model.tuning == "qlora" else trained
        merged = Merged(out, dtype, kind, head, held_out, asked, rounding(trained, dtype))
        if not keep(merged):
            return None
        (staged / ABOUT).write_text(json.dumps(_about(chosen, merged, base), indent=1) + "\n", encoding="utf-8")
        sync_all(staged)
        (staged / "lock").unlink()
        staged.rename(out)
        sync(out.parent)
    return merged


def rounding(*dtypes: str) -> float:
    """What the coarsest of these dtypes may move the mean NLL by, in nats a token: its unit roundoff."""
    return max(torch.finfo(DTYPES[name]).eps for name in dtypes) / 2 + 1e-4


def _about(chosen: Checkpoint, merged: Merged, base: str) -> dict[str, Any]:
    model = chosen.recipe.model
    return {
        "format": "srt_peft merge",
        "version": 1,
        "srt_peft": srt_peft.__version__,
        "checkpoint": {"run": chosen.beside.resolve().name, "step": chosen.step},
        "adapter": adapter_fingerprint(str(chosen.folder)),
        "base": {"name": model.base, "revision": model.revision, "weights": base, "as": merged.base},
        "dtype": merged.dtype,
        "untied": merged.untied,
        "held_out": merged.held_out,
        "perplexity": {name: {**asdict(one), "change": one.change} for name, one in merged.asked.items()},
        "rounding": merged.rounding,
    }


# --- beforehand -----------------------------------------------------------------------------------------------------


def _check(chosen: Checkpoint, out: Path, dtype: torch.dtype, base: str, *, untied: bool) -> None:
    """All that speaks against it, and can be told before anything is loaded."""
    model, faults = chosen.recipe.model, []
    if chosen.identity.get("base") != base:
        faults.append(
            f"model.base = {model.base!r} is not what the run was trained on: its weights are {base} now, and were "
            f"{chosen.identity.get('base')}. Put the base of that revision back where it was"
        )
    if out.exists():
        faults.append(f"--out = {out} exists already, and nothing is written over: name another, or remove it")
    elif (lacking := _size(chosen, dtype, untied=untied) - _room(out)) > 0:
        faults.append(f"--out = {out}: the disk there lacks {lacking / 1e9:.2f} GB: make room, or name another")
    if faults:
        raise OptionError(_WHAT, faults)


def _check_kind(chosen: Checkpoint) -> None:
    """Refuse what has no adapter, and a base whose weights nobody can add one to."""
    model = chosen.recipe.model
    if model.tuning == "full":
        fault = f"{chosen.folder} was trained with tuning: full: it is a whole model, and has no adapter to merge"
        raise OptionError(_WHAT, [fault])
    stored = getattr(config_of(model.base, model.revision), "quantization_config", None)
    told = stored if isinstance(stored, dict) else {} if stored is None else stored.to_dict()
    if told and not (told.get("quant_method") == "bitsandbytes" and told.get("load_in_4bit")):
        fault = f"model.base = {model.base!r} is stored quantised by {told.get('quant_method')!r}"
        raise OptionError(_WHAT, [f"{fault}, into which nothing is merged: expected 4 bits of bitsandbytes, or none"])


def _room(out: Path) -> int:
    there = next(parent for parent in out.resolve().parents if parent.is_dir())
    return shutil.disk_usage(there).free


def _size(chosen: Checkpoint, dtype: torch.dtype, *, untied: bool) -> int:
    """How many bytes the merged weights take."""
    shape = _outline(chosen)
    weights = sum(parameter.numel() for parameter in shape.parameters())
    return int(weights + untied * shape.get_input_embeddings().weight.numel()) * dtype.itemsize


def _outline(chosen: Checkpoint) -> Any:
    """The base without its weights: which layers there are, and how large."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(config_of(chosen.recipe.model.base, chosen.recipe.model.revision))
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]


def _touches_ties(chosen: Checkpoint) -> bool:
    """Whether the adapter changes embeddings or head of a base where the two are one, so that they part."""
    shape = _outline(chosen)
    ends = (shape.get_input_embeddings(), shape.get_output_embeddings())
    if ends[1] is None or ends[0].weight is not ends[1].weight:
        return False
    prefixes = tuple(f"base_model.model.{name}." for name, module in shape.named_modules() if module in ends)
    with safe_open(chosen.folder / "adapter_model.safetensors", framework="pt") as file:
        return any(key.startswith(prefixes) for key in file.keys())  # noqa: SIM118 - it is no mapping


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder to write to beside its place, which is gone unless it was renamed."""
    staged = out.with_name(f".{out.name}.part")
    lock = Lock(staged / "lock", f"{out}")
    try:
        for left in staged.iterdir():  # by a kill
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name != "lock":
                left.unlink()
        yield staged
    except Exception as error:
        # What is written in Rust (safetensors, tokenizers) tells of a full disk in an exception of its own.
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        reason = getattr(error, "strerror", None) or error
        raise StateError(
            f"{out} could not be written ({reason}); nothing is left of it. Make room, or --out."
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        lock.release()


# --- the merge ------------------------------------------------------------------------------------------------------

Scored = dict[str, tuple[int, int, float]]
"""Of each pool: examples, tokens, perplexity."""


def _made(
    chosen: Checkpoint,
    staged: Path,
    dtype: str,
    tokenizer: Any,
    pools: Mapping[str, Pool],
    score: Score,
    *,
    untied: bool,
) -> Scored:
    """Write the merged model; what the adapter form, which is loaded on the way, said of the text."""
    model = chosen.recipe.model
    base = load_base(
        model.base, revision=model.revision, tuning=model.tuning, dtype=model.dtype, attention=model.attention
    )
    tuned = with_adapter(base, model.base, model.revision, chosen.folder)
    asked = _ask(tuned, model.dtype, tokenizer, pools, score)
    base = dequantised(tuned.unload(), _outline(chosen)).to("cpu")
    merged = merged_into(base, chosen, DTYPES[dtype], untied=untied)
    merged.save_pretrained(staged)
    tokenizer.save_pretrained(staged)
    return asked


def dequantised(model: Any, outline: nn.Module) -> Any:
    """The model with plain layers in place of its quantised ones, weight by weight, so that both are never there."""
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    quantised = {name: module for name, module in model.named_modules() if type(module).__name__ == "Linear4bit"}
    for name, module in tqdm(quantised.items(), desc="de-quantising", delay=2, disable=None, leave=False):
        plain = outline.get_submodule(name)
        weight = dequantize_bnb_weight(module.weight).cpu()
        if type(plain).__name__ == "Conv1D":  # GPT-2's, which holds its weight the other way round
            weight = weight.T.contiguous()
        plain.weight = nn.Parameter(weight, requires_grad=False)
        if getattr(module, "bias", None) is not None:
            plain.bias = nn.Parameter(module.bias.data.cpu(), requires_grad=False)
        model.set_submodule(name, plain)
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)
    # Stored in 4 bits, it was read by a conversion that cannot be turned round, and would be tried when it is saved.
    conversions = getattr(model, "_weight_conversions", None)
    if conversions:
        conversions[:] = [each for each in conversions if not _reads_bits(each)]
    return model


def _reads_bits(conversion: Any) -> bool:
    return any("bitsandbytes" in type(each).__module__ for each in getattr(conversion, "operations", ()))


def merged_into(base: Any, chosen: Checkpoint, dtype: torch.dtype, *, untied: bool) -> Any:
    """The base with the adapter in its weights, in this dtype: rounded once."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    model = chosen.recipe.model
    if untied:
        _untie(base)
    tuned = with_adapter(base, model.base, model.revision, chosen.folder)
    layers = [module for module in tuned.modules() if isinstance(module, BaseTunerLayer)]
    for layer in tqdm(layers, desc="merging", delay=2, disable=None, leave=False):
        under = layer.get_base_layer().to(torch.float32)
        try:
            layer.merge()
        except (RuntimeError, ValueError) as error:
            raise OptionError(_WHAT, [f"{chosen.folder}: its adapter cannot be merged ({line_of(error)})"]) from error
        under.to(dtype)
    merged = tuned.unload().to(dtype)
    broken = [name for name, parameter in merged.named_parameters() if not torch.isfinite(parameter).all()]
    if broken:
        fault = f"--dtype {str(dtype).removeprefix('torch.')}: {len(broken)} weights are no finite numbers any more"
        raise OptionError(_WHAT, [f"{fault}, the first is {broken[0]}: expected a dtype that holds them, as bfloat16"])
    merged.config.dtype = dtype
    return merged


def _untie(base: Any) -> None:
    """Give the base a head of its own."""
    head = base.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    base.config.tie_word_embeddings = base.config.get_text_config(decoder=True).tie_word_embeddings = False
    base.all_tied_weights_keys = {}


def _ask(model: Any, dtype: str, tokenizer: Any, pools: Mapping[str, Pool], score: Score) -> Scored:
    """Each pool's perplexity, in this precision."""
    device = next(model.parameters()).device.type
    sums: dict[str, tuple[int, float, float]] = {}
    with torch.autocast(device, dtype=DTYPES[dtype], enabled=dtype != "float32"):
        for record in score(model, tokenizer, pools, budget=_BUDGET):
            count, tokens, nll = sums.get(record["split"], (0, 0.0, 0.0))
            weight = record["weight"]
            sums[record["split"]] = (count + 1, tokens + weight, nll + weight * record["value"])
    return {name: (count, int(tokens), math.exp(min(nll / tokens, 700))) for name, (count, tokens, nll) in sums.items()}
