"""The model card of a checkpoint: what it was made of, what it scored, how it is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import srt_peft
from srt_peft.training.folder import METRICS
from srt_peft.training.keys import Recipe


def card(recipe: Recipe, run: Path, step: int) -> str:
    """The card of the checkpoint after so many steps; names of texts stand in it, and nothing of what is in them."""
    model, data, review, training = recipe.model, recipe.data, recipe.review, recipe.training
    full = model.tuning == "full"
    name = Path(model.base).name if Path(model.base).is_dir() else model.base
    sources = {which: ", ".join(source.source or Path(source.path).name for source in getattr(data, which)) or "none"
               for which in ("old", "new")}  # fmt: skip
    kind = {"qlora": "A LoRA adapter, trained on the base in 4 bits (NF4)", "lora": "A LoRA adapter", "full": "A model"}
    head = [
        "---",
        f"base_model: {json.dumps(name)}",
        f"library_name: {'transformers' if full else 'peft'}",
        "pipeline_tag: text-generation",
        "tags: [srt-peft, continual-learning, spaced-repetition]",
        "---",
        "",
    ]
    lines = [
        f"# An update of {name}",
        "",
        f"{kind[model.tuning]}: {step} steps of {training.batch_size} examples, by srt-peft {srt_peft.__version__}.",
        "`srt_state/` holds the review state of every example, so that the next update can go on.",
        "",
        "| | |",
        "| --- | --- |",
        f"| new text | {sources['new']} |",
        f"| old text, to be retained | {sources['old']} |",
        f"| scheduler | {review.scheduler}, {review.old_fraction:g} of each batch for old examples |",
        f"| learning rate | {training.learning_rate:g}, {training.schedule}, warm-up {training.warmup_steps} steps |",
    ]
    lines += [f"| {told} |" for told in _scores(run / METRICS, step)]
    return "\n".join([*head, *lines, "", "```python", *_loading(full=full), "```", ""])


def _scores(metrics: Path, step: int) -> Iterator[str]:
    """What was last measured, up to this step."""
    last: dict[str, tuple[int, Any]] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else ():
        told = json.loads(line)
        if told["step"] < step:
            last |= {key: (told["step"] + 1, value) for key, value in told.items() if _is_score(key)}
    for key, (when, value) in last.items():
        if key.startswith("held_out_"):
            which = key.removeprefix("held_out_").removesuffix("_nll")
            yield f"perplexity of held-out {which} text, after step {when} | {math.exp(min(value, 700.0)):.4g}"
        else:
            yield f"{key.removeprefix('score/')}, after step {when} | {value:.4g}"


def _is_score(key: str) -> bool:
    return key.startswith(("held_out_", "score/"))


def _loading(*, full: bool) -> list[str]:
    if full:
        return ["from transformers import AutoModelForCausalLM", "model = AutoModelForCausalLM.from_pretrained(HERE)"]
    return ["from peft import PeftModel", "model = PeftModel.from_pretrained(base_model, HERE)"]
