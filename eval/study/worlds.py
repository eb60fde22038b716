"""A world, ready to be updated: base, texts, questions, and what the base answers; made once, by whoever comes first.

    facts    the demo's world and base (`srt_peft.demo`); seeds share `bases` of them
    text     a mixture of real texts (`texts`); the base has been taught much more of the same sources, by full training
             in about two passes, from stories260K on or from nothing

world.json holds the update's recipe, what is asked, and of each thing asked its split, its group and the base's value.
A group of old is a source; of new, what is told of the changed and of the added. Groups are the true ones, whatever
the update is told of decks. `gap` is the base's NLL of held-out text less that of replayed text: how much it knows by
heart.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eval.study import texts
from eval.study.plan import World
from srt_peft.demo import base as demo_base, world as facts
from srt_peft.demo.demo import RATES
from srt_peft.errors import StateError
from srt_peft.evaluation import suites
from srt_peft.evaluation.targets import Target
from srt_peft.training import checkpoint
from srt_peft.training.base import load_tokenizer
from srt_peft.training.keys import Recipe
from srt_peft.training.loop import train
from srt_peft.training.recipe import load_recipe

FILE = "world.json"
TEXT_RATES = {"full": 1e-3, "lora": 3e-3}
BATCH = 20
Say = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """A world that is there."""

    folder: Path
    recipe: dict[str, Any]
    suite: str
    metric: str
    asked: dict[str, dict[str, Any]]
    """By key: split, group, weight, and what the base answers."""
    gap: dict[str, float]

    @property
    def base(self) -> Path:
        """The base's answers, as a contest has them."""
        return self.folder / "base"


def base_key(world: World, seed: int) -> str:
    """Which base a world has for a seed: worlds of one base share it."""
    if world.kind == "text":
        return f"{world.base}-{world.taught}"
    return f"facts-{world.people}-{world.added}-{world.changed}-{world.taught}-{seed % world.bases}"


def place_of(world: World, seed: int, output: Path) -> Path:
    """Where a world lies, for the seeds that share its base."""
    return output / "worlds" / world.name / str(seed % world.bases)


def read(folder: Path) -> Made:
    """The world that was made there."""
    given = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return Made(folder, given["recipe"], given["suite"], given["metric"], given["asked"], given["gap"])


# --- the bases ----------------------------------------------------------------------------------------------------


def make_base(world: World, seed: int, data: Path | None, output: Path) -> None:
    """The base, unless it is there."""
    if world.kind == "facts":
        _facts(world, seed)
        return
    assert data is not None, "the command line asks for it"
    folder = output / "bases" / base_key(world, seed)
    if (folder / "base").is_dir():
        return
    pretrained = data / texts.BASE
    tokenizer = load_tokenizer(str(pretrained), None)
    texts.write_taught(data, _counted(tokenizer), folder / "taught.jsonl")
    start = pretrained if world.base == "continued" else _blank(tokenizer, folder / "blank")
    steps = world.taught or 2 * _pieces_of(folder / "taught.jsonl", tokenizer) // BASE_BATCH
    _learned(start, folder, steps, 2e-3 if world.base == "continued" else 3e-3)


BASE_BATCH = 40


def _facts(world: World, seed: int) -> Path:
    """The demo's world and base of this number, in the demo's cache."""
    sizes = facts.Sizes(people=world.people, added=world.added, changed=world.changed)
    return demo_base.made(facts.make(seed % world.bases, sizes), demo_base.Shape(steps=world.taught), _quietly)


def _quietly(_: str) -> None:
    """What a base's making says: a bar tells of it."""


def _counted(tokenizer: Any) -> Callable[[str], int]:
    return lambda text: len(tokenizer(text)["input_ids"])


def _blank(tokenizer: Any, folder: Path) -> Path:
    """A small Llama that knows nothing, with the pretrained one's tokenizer."""
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - takes seconds

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=6, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _pieces_of(path: Path, tokenizer: Any) -> int:
    """How many pieces of a file are trained on."""
    from srt_peft.data.ingest import ingest  # noqa: PLC0415 - transformers takes seconds

    found = ingest([{"path": str(path)}], tokenizer, max_length=texts.LENGTH, holdout=texts.HOLDOUT)
    return len(found.train)


def _learned(start: Path, folder: Path, steps: int, rate: float) -> None:
    """Full training on what is taught, and the result as a folder that any recipe can name."""
    recipe = load_recipe({
        "model": {"base": str(start), "tuning": "full", "dtype": "float32", "gradient_checkpointing": False},
        "data": {
            "old": None, "new": str(folder / "taught.jsonl"), "max_length": texts.LENGTH, "holdout": texts.HOLDOUT,
        },
        "review": {"scheduler": "uniform", "order": "epoch"},
        "training": {
            "steps": steps, "batch_size": BASE_BATCH, "micro_batch_tokens": 4096, "learning_rate": rate,
            "warmup_steps": min(20, steps),
        },
        "checkpoints": {"every": 500, "keep": 1},
        "output": str(folder / "run"),
    })  # fmt: skip
    newest, faults = checkpoint.newest(folder / "run")
    train(recipe, resume=bool(newest or faults), terse=True, interrupts=True)
    newest, _ = checkpoint.newest(folder / "run")
    assert newest is not None, "a run that is finished has a checkpoint"
    staged = folder / f".base-{os.getpid()}"
    staged.mkdir()
    for path in newest.iterdir():
        if path.suffix in {".json", ".safetensors"} and path.name != checkpoint.MANIFEST:
            shutil.copy(path, staged)
    staged.rename(folder / "base")
    shutil.rmtree(folder / "run")


# --- the worlds ---------------------------------------------------------------------------------------------------


def make_world(world: World, seed: int, data: Path | None, output: Path) -> None:
    """The world, unless it is there: its base must be."""
    folder = place_of(world, seed, output)
    told = _described(world, output)
    if (folder / FILE).exists() and json.loads((folder / FILE).read_text(encoding="utf-8"))["of"] == told:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if world.kind == "facts":
        recipe, suite = _facts_recipe(world, _facts(world, seed), folder)
        metric = "accuracy"
    else:
        assert data is not None, "the command line asks for it"
        base = (output / "bases" / base_key(world, seed) / "base").resolve()
        count = _counted(load_tokenizer(str(base), None))
        new = (world.new, world.pieces)
        texts.write_pools(data, world.old, new, count, folder, shuffled=world.sources == "shuffled")
        recipe, suite, metric = _text_recipe(world, base, folder), "perplexity", "nll"
    asked, gap = _known(world, load_recipe(recipe), suite, folder)
    content = {"of": told, "recipe": recipe, "suite": suite, "metric": metric, "asked": asked, "gap": gap}
    beside = folder / f".{FILE}"
    beside.write_text(json.dumps(content), encoding="utf-8")
    beside.replace(folder / FILE)


def _described(world: World, output: Path) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps({**world.__dict__, "rows": None, "output": str(output.resolve())}))
    return plain


def _facts_recipe(world: World, made: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """The demo's update, with questions that say whether what is new was changed or added."""
    lines = (made / "world" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    asked, left = [json.loads(line) for line in lines], world.changed
    for question in asked:  # the changed come before the added
        if question["split"] == "new":
            question["source"] = "changed" if left > 0 else "added"
            left -= 1
    (folder / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in asked), encoding="utf-8")
    rng = np.random.default_rng(0)
    for pool in ("old", "new"):
        rows = [json.loads(line) for line in (made / "world" / f"{pool}.jsonl").read_text("utf-8").splitlines()]
        decks = [row["source"] for row in rows]
        if world.sources == "shuffled":
            decks = [decks[i] for i in rng.permutation(len(decks))]
        content = "".join(json.dumps(row | {"deck": deck}) + "\n" for row, deck in zip(rows, decks, strict=True))
        (folder / f"{pool}.jsonl").write_text(content, encoding="utf-8")
    recipe = _recipe(world, made / "base", folder, RATES, {"r": 8, "alpha": 16})
    recipe["data"] |= {"max_length": demo_base.MAX_LENGTH, "holdout": demo_base.HOLDOUT}
    return recipe, f"qa-text={(folder / 'questions.jsonl').resolve()}"


def _text_recipe(world: World, base: Path, folder: Path) -> dict[str, Any]:
    recipe = _recipe(world, base, folder, TEXT_RATES, {"r": 16, "alpha": 32})
    recipe["data"] |= {"max_length": texts.LENGTH, "holdout": texts.HOLDOUT}
    recipe["model"]["attention"] = "eager"  # heads of 8: twice as fast a step as sdpa on a CPU, and the same to 1e-6
    return recipe


def _recipe(
    world: World, base: Path, folder: Path, rates: Mapping[str, float], lora: Mapping[str, int]
) -> dict[str, Any]:
    """An update; a cell adds its tuning, its learning rate and its row."""
    return {
        "model": {
            "base": str(base), "tuning": "full", "lora": lora, "dtype": "float32", "gradient_checkpointing": False,
        },
        "data": {
            "old": str((folder / "old.jsonl").resolve()), "new": str((folder / "new.jsonl").resolve()),
            "source_column": "deck" if world.sources in ("given", "shuffled") else None,
            "clusters": len(world.old) if world.sources == "clusters" else None,
            "supersedes": "supersedes" if world.superseded == "aside" else None,
        },
        "review": {"old_fraction": 0.2},
        "training": {
            "steps": world.steps, "batch_size": BATCH, "micro_batch_tokens": 4096, "learning_rate": rates["full"],
            "warmup_steps": min(20, world.steps),
        },
        "checkpoints": {"every": 1_000_000, "keep": 1},
        "output": "run",
    }  # fmt: skip


def rate_of(world: World, tuning: str) -> float:
    """The learning rate of an update."""
    return float(world.rates.get(tuning) or (RATES if world.kind == "facts" else TEXT_RATES)[tuning])


def _known(
    world: World, recipe: Recipe, suite: str, folder: Path
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """What the base answers, by key, with the true groups; and the gap between held-out and replayed text."""
    target = Target("base", recipe.model.base, None, None, Path(recipe.model.base), recipe)
    model, options = suites.Model(target, "float32"), suites.Options()
    mine = suites.ask(model, suites.parse([suite]), options, folder / "base")[0].records
    truth = {record["key"]: record.get("source") for record in mine}
    gap: dict[str, float] = {}
    if world.kind == "text":
        given = recipe.as_dict()
        given["data"] |= {"source_column": "source", "clusters": None}
        true = load_recipe(given)
        again = suites.Model(replace(target, recipe=true), "float32")
        found = suites.ask(again, suites.parse([suite]), options, folder / "true")[0].records
        truth = {record["key"]: record["source"] for record in found}
        gap = _gap(true, model, found)
        shutil.rmtree(folder / "true")
    lacking = [record["key"] for record in mine if record["key"] not in truth]
    if lacking:
        raise StateError(f"{len(lacking)} of {len(mine)} pieces of {folder} are of no known source.")
    asked = {
        r["key"]: {
            "split": r["split"],
            "group": truth[r["key"]] or r["split"],
            "weight": r["weight"],
            "base": r["value"],
        }
        for r in mine
    }
    return asked, gap


def _gap(recipe: Recipe, model: suites.Model, held_out: list[dict[str, Any]]) -> dict[str, float]:
    """By source of old: the NLL of held-out text less that of replayed text, in nats a token."""
    from srt_peft.evaluation import perplexity  # noqa: PLC0415 - torch takes seconds
    from srt_peft.training.texts import corpora  # noqa: PLC0415 - torch takes seconds

    loaded, tokenizer = model.loaded
    corpus, _ = corpora(recipe, tokenizer)
    replayed = list(perplexity.score(loaded, tokenizer, {"old": corpus.old}, budget=suites.BUDGET))
    names = dict.fromkeys(str(record["source"]) for record in replayed)
    return {
        name: _mean([r for r in held_out if r["split"] == "old" and r["source"] == name])
        - _mean([r for r in replayed if r["source"] == name])
        for name in names
    }


def _mean(records: list[dict[str, Any]]) -> float:
    values, weights = zip(*((r["value"], r["weight"]) for r in records), strict=True)
    return float(np.average(values, weights=weights))
