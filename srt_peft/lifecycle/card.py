"""The model card of what is pushed: what was measured in this run, and nothing else.

Names of texts stand in it and how many examples they have, never what is in them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from srt_peft.lifecycle.following import Ended
from srt_peft.lifecycle.past import Left
from srt_peft.lifecycle.pushed import counted
from srt_peft.training.folder import METRICS, SUMMARY

TAGS = ("srt-peft", "peft", "continual-pretraining")
_MOST = 20
_KINDS = {
    "qlora": "a LoRA adapter, trained on the base in 4 bits (NF4)",
    "lora": "a LoRA adapter",
    "full": "a whole model",
}


@dataclass(frozen=True)
class Result:
    """One table of an evaluation that the run has, as Markdown, and its means."""

    title: str
    table: str
    metric: str
    scores: Sequence[tuple[str, float, float]]
    """Split, mean, standard deviation: as the table shows them."""


@dataclass(frozen=True)
class Facts:
    """All that a card is made of."""

    repo: str
    run: Ended
    left: Left
    results: Sequence[Result]
    pictures: Sequence[str]

    @property
    def full(self) -> bool:
        """Whether it is a whole model."""
        return self.run.recipe.model.tuning == "full"


def card(facts: Facts, about: Mapping[str, Any]) -> str:
    """The card."""
    parts = [
        _head(facts, about),
        _data(facts),
        _recipe(facts, about),
        _exposure(facts),
        _measured(facts),
        _loading(facts, about),
        _going_on(facts, about),
        _limits(facts, about),
    ]
    text = "\n".join(line for part in parts for line in part)
    return f"---\n{metadata(facts, about)}---\n\n{text}\n"


def metadata(facts: Facts, about: Mapping[str, Any]) -> str:
    """The card's YAML, by the hub's own class; a base that has no address on the hub is named in the text alone."""
    from huggingface_hub import EvalResult, ModelCardData  # noqa: PLC0415 - half a second

    said: dict[str, Any] = {
        "library_name": "transformers" if facts.full else "peft",
        "pipeline_tag": "text-generation",
        "tags": list(TAGS),
    }
    if not about["base"]["local"]:
        said["base_model"] = about["base"]["name"]
        said["base_model_relation"] = "finetune" if facts.full else "adapter"
    name = facts.repo.rpartition("/")[2]
    results = [
        EvalResult(
            task_type="text-generation", dataset_type="text", dataset_name=f"{result.title}, {split}",
            dataset_config=result.title,
            dataset_split=split,
            metric_type=result.metric, metric_value=round(mean, 4), metric_name=f"{result.metric} ({split})",
        )
        for result in facts.results for split, mean, _ in result.scores
    ]  # fmt: skip
    if results:
        said |= {"model_name": name, "eval_results": results}
    return ModelCardData(**said).to_yaml() + "\n"


def _head(facts: Facts, about: Mapping[str, Any]) -> list[str]:
    base, run = about["base"], facts.run
    where = "a local folder" if base["local"] else f"revision `{base['revision'] or base['weights']}`"
    lines = [
        f"# {facts.repo.rpartition('/')[2]}",
        "",
        (
            f"This is {_KINDS[run.recipe.model.tuning]}: update {about['updates']} of a line of continual updates, "
            f"{about['steps']} steps of {run.recipe.training.batch_size} examples, by srt-peft {about['srt_peft']}. "
            "Which old examples were seen again, and when, was decided by their review state."
        ),
        "",
        "| | |",
        "| --- | --- |",
        f"| base | `{base['name']}`, {where} |",
    ]
    if base["local"]:
        lines.append(f"| the base's weights | `{base['weights']}` (BLAKE2b of sizes and ends of its files) |")
    pictures = [f"![{Path(name).stem}](pictures/{name})" for name in facts.pictures]
    return [*lines, f"| clock | step {about['step']} |", "", *(line for picture in pictures for line in (picture, ""))]


def _data(facts: Facts) -> list[str]:
    lines = ["## Data", "", "| pool | source | examples |", "| --- | --- | ---: |"]
    for name, pool in zip(("old", "new"), facts.left.train, strict=False):
        found = counted(pool)
        lines += [f"| {name} | {_cell(source)} | {n:,} |" for source, n in found[:_MOST]]
        rest = found[_MOST:]
        if rest:
            lines.append(f"| {name} | {len(rest):,} more sources | {sum(n for _, n in rest):,} |")
    return [*lines, "", f"{_apart(facts):,} more examples were held out, and never trained on.", ""]


def _apart(facts: Facts) -> int:
    return sum(len(pool) for pool in facts.left.held_out)


def _cell(text: str) -> str:
    """A name in a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")


def _recipe(facts: Facts, about: Mapping[str, Any]) -> list[str]:
    review, training = facts.run.recipe.review, facts.run.recipe.training
    told = yaml.safe_dump(about["recipe"], sort_keys=False, allow_unicode=True)
    return [
        "## Recipe",
        "",
        (
            f"Scheduler `{review.scheduler}`, preset `{review.preset}`, {review.old_fraction:g} of each batch for old "
            f"examples; learning rate {training.learning_rate:g}, {training.schedule}, warm-up "
            f"{training.warmup_steps} steps; at most {facts.run.recipe.data.max_length} tokens an example."
        ),
        "",
        "<details><summary>The whole recipe, with names for paths</summary>",
        "",
        "```yaml",
        *told.splitlines(),
        "```",
        "",
        "</details>",
        "",
    ]


def _exposure(facts: Facts) -> list[str]:
    """How often what was seen, as the run has counted it."""
    try:
        figures = json.loads((facts.run.folder / SUMMARY).read_text(encoding="utf-8"))["figures"]
    except (OSError, ValueError, KeyError):
        return []
    lines = ["## Exposure", "", "| | old | new |", "| --- | ---: | ---: |"]
    old, new = figures["old"], figures["new"]
    rows = {
        "examples, the superseded apart": [f"{side['examples']:,}" for side in (old, new)],
        "drawn a step": [f"{side['slots']:.1f}" for side in (old, new)],
        "visits an example in this update": [f"{side['visits']:.2f}" for side in (old, new)],
        "never visited in this update": [
            "unknown" if side["never"] is None else f"{100 * side['never']:.1f} %" for side in (old, new)
        ],
        "reviews with a lapse": [f"{100 * side['lapses']:.1f} %" for side in (old, new)],
    }
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    asked = facts.run.recipe.review.old_fraction
    share = f"{100 * figures['old_share']:.1f} % of all that was drawn was old, where {100 * asked:g} % was asked for"
    return [*lines, "", f"{share}. {figures['trained_tokens']:,} tokens were trained on.", ""]


def _measured(facts: Facts) -> list[str]:
    lines = ["## Evaluation", ""]
    held_out = list(_held_out(facts.run.folder / METRICS))
    if held_out:
        lines += [
            "Perplexity of text that was held out, in the run itself (exp of the token mean; no error is known of it):",
            "",
            "| text | before | after |",
            "| --- | ---: | ---: |",
            *held_out,
            "",
        ]
    for result in facts.results:
        lines += [result.table.strip(), ""]
    if not held_out and not facts.results:
        apart = "the text that is held out was not asked" if _apart(facts) else "no text was held out"
        lines += [f"Nothing was measured: {apart}, and no suite was.", ""]
    return lines


def _held_out(metrics: Path) -> Iterator[str]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else ():
        try:
            told = json.loads(line)
        except ValueError:  # torn by a power cut
            continue
        for key, value in told.items():
            if key.startswith("held_out_") and key.endswith("_nll"):
                found.setdefault(key.removeprefix("held_out_").removesuffix("_nll"), []).append((told["step"], value))
    for name, values in found.items():
        (first, before), (last, after) = min(values), max(values)
        if first < last:
            cells = [f"{math.exp(min(v, 700.0)):.4g}" for v in (before, after)]
            yield f"| {name} | {cells[0]} | {cells[1]} |"


def _loading(facts: Facts, about: Mapping[str, Any]) -> list[str]:
    base, model = about["base"], facts.run.recipe.model
    revision = "" if base["local"] else f', revision="{base["revision"] or base["weights"]}"'
    code = [
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f'base = AutoModelForCausalLM.from_pretrained("{base["name"]}"{revision})',
        f'tokenizer = AutoTokenizer.from_pretrained("{base["name"]}"{revision})',
        f'model = PeftModel.from_pretrained(base, "{facts.repo}")',
    ]
    if facts.full:
        code = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = AutoModelForCausalLM.from_pretrained("{facts.repo}")',
            f'tokenizer = AutoTokenizer.from_pretrained("{facts.repo}")',
        ]
    lines = ["## How to load it", "", "```python", *code, "```", ""]
    if base["local"] and not facts.full:
        lines += [f"`{base['name']}` stands for the folder of the base, which has no address on the hub.", ""]
    if model.tuning == "qlora":
        lines += [
            "It was trained beside the base in NF4, and is measured above so; on an unquantised base it differs.",
            "",
        ]
    return lines


_STATE = {
    "full": "With the review state of every example, known by a hash of its text: with the same texts, `next` draws "
    "what it would have drawn on the machine that pushed. Held-out text stays held out, and what was let go is not new "
    "again.",
    "anonymous": "With statistics of the review state, and nothing of single examples: adapter, clock and recipe go "
    "on, and every old example begins with a fresh state. What is held out is decided by the same hash. What was let "
    "go by `next.keep` is new again where it is given as new.",
    "none": "Without a review state: adapter, clock and recipe go on, and every old example begins with a fresh state. "
    "What is held out is decided by the same hash.",
}


def _going_on(facts: Facts, about: Mapping[str, Any]) -> list[str]:
    base = " model.base=PATH" if about["base"]["local"] and not facts.full else ""
    lines = [
        "## How to continue",
        "",
        "```bash",
        f"srt-peft next hub:{facts.repo} --old OLD_TEXTS --new NEW_TEXT --out RUN{base}",
        "```",
        "",
        _STATE[about["state"]],
        "",
        (
            "The texts are not here: `--old` are those that it was trained on, in any order and in any files, and "
            "`--new` is what it is to learn. The optimiser is not here either; each update begins with a new one. The "
            "base must have the weights that are named above."
        ),
        "",
    ]
    if about["supersedes"]:
        lines += ["What replaces what is said by the texts, and is not here.", ""]
    return lines


def _limits(facts: Facts, about: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Limitations",
        "",
        "- What was measured is above; nothing else is known of what this update has learned or forgotten.",
        "- It has what its base and its texts have of errors and bias; they were not filtered by srt-peft.",
        "- An adapter may give back what it was trained on. That no text is in these files does not change that.",
    ]
    if about["state"] == "full":
        lines.append("- `srt_state/` has a hash of each text: whoever has a text can see whether it was among them.")
    if not facts.results:
        lines.append("- It was not held against its base, question by question: `srt-peft eval --compare` does so.")
    return lines
