"""What surrounds the loop: a run's folder, set up or resumed; what a person sees; and how it ends.

RUN/
recipe.yaml      as resolved                 metrics.jsonl    a line a step
pools/           links to the tokenised examples
review/          the live review state (state/) and the review log (log)
checkpoints/     see `checkpoint`
decks.json       the decks, by number         summary.json     did scheduling bind? at the end
history/         what earlier updates left    supersedes.jsonl what replaces what, as the texts say
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tqdm import tqdm

from srt_peft.data import supersedes
from srt_peft.data.corpus import Corpus
from srt_peft.data.pool import Pool
from srt_peft.errors import OptionError
from srt_peft.review import Scheduler
from srt_peft.training import checkpoint, stack, summary
from srt_peft.training.base import adapter_fingerprint, check_base, check_ids, fingerprint, load_tokenizer
from srt_peft.training.card import card
from srt_peft.training.folder import DECKS, RECIPE, check_remembered, claim, link_pools, replace
from srt_peft.training.keys import Recipe
from srt_peft.training.model import evaluating, load_model, make_optimizer
from srt_peft.training.nll import packs_exactly
from srt_peft.training.preset import reopened, resolve, told
from srt_peft.training.ranks import as_one, available, from_main
from srt_peft.training.recipe import changed, dump, load_recipe
from srt_peft.training.schedule import steps_of
from srt_peft.training.scheduled import counts_of, scheduler_of
from srt_peft.training.texts import CALLED, Texts, check_there, notes, read


@dataclass
class Setup:
    """Everything that a step needs."""

    recipe: Recipe
    """As resolved."""
    asked: Recipe
    """As it was given: what it leaves open, the next update decides anew."""
    folder: Path
    accelerator: Accelerator
    identity: dict[str, str]
    """What a resume must find unchanged beside the recipe: the base's weights and the texts."""
    tokenizer: Any
    texts: Texts
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Scheduler
    passes: list[dict[str, Any]] = field(default_factory=list)
    """What was scored before the first step."""
    terse: bool = False
    """Whether only how far it is is told: many runs of one recipe have the rest in common."""

    @property
    def corpus(self) -> Corpus:
        """What is trained on."""
        return self.texts.corpus

    @property
    def held_out(self) -> dict[str, Pool]:
        """What is not, by pool."""
        return self.texts.held_out

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return bool(self.accelerator.is_main_process)

    def say(self, line: str | None, *, progress: bool = False) -> None:
        """Tell the person, once."""
        if line and self.main and (progress or not self.terse):
            tqdm.write(line, file=sys.stderr)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute in the recipe's precision; weights that train stay in theirs."""
        dtype = getattr(torch, self.recipe.model.dtype)
        if dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.accelerator.device.type, dtype=dtype)

    def names(self) -> dict[int, str]:
        """The name of each parameter, by identity."""
        return {id(p): name for name, p in self.model.named_parameters()}


def seed_of(seed: int, step: int, rank: int) -> int:
    """Chance within a step (dropout), as a function of seed, step and rank: nothing of it is ever saved."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


# --- beginning ------------------------------------------------------------------------------------------------


def prepare(
    recipe: Recipe, accelerator: Accelerator, *, resume: bool, allow_changes: bool, terse: bool = False
) -> Setup | None:
    """Set a run up, or take it up where its newest whole checkpoint left it; None where there is nothing to do."""
    folder, main = Path(recipe.output), accelerator.is_main_process
    newest = None
    with as_one(accelerator):
        _check_sizes(recipe, accelerator)
        _check_trackers(recipe)
        if main:
            newest = claim(folder, resume=resume)
    start = from_main(newest)
    with as_one(accelerator):
        check_there(recipe)
        adapter = None if start else recipe.model.adapter
        check_base(recipe.model.base, recipe.model.revision, adapter, recipe.data.max_length)
        tokenizer = load_tokenizer(recipe.model.base, recipe.model.revision)
        if main:
            texts = read(recipe, tokenizer)
    with as_one(accelerator):
        if not main:  # who find in the cache what the main process has put there
            texts = read(recipe, tokenizer)
        asked, recipe, corpus = recipe, resolve(recipe, texts.sources), texts.corpus
        saved = None if start is None else json.loads((start / "trainer" / "trainer.json").read_text())
        identity = _identity(recipe, texts, saved and saved["identity"])
        if saved is not None and start is not None:
            asked = reopened(asked, load_recipe(saved.get("asked", saved["recipe"])), load_recipe(saved["recipe"]))
            _same(start, recipe, identity, saved, texts.sources, allow_changes=allow_changes)
            if saved["step"] >= texts.first + steps_of(recipe, len(corpus.new)):
                if main:
                    done = saved["step"] - texts.first
                    print(f"{folder} is finished: all {done} steps are done. Its adapter lies in {start}.")
                return None
    with as_one(accelerator):
        torch.manual_seed(recipe.training.seed)
        model, optimizer = _model(recipe, start, accelerator.device)
        check_ids(model, tokenizer, max(pool.largest for pool in (corpus.old, corpus.new, *texts.held_out.values())))
        _check_packing(recipe, model)
        setup = Setup(
            recipe,
            asked,
            folder,
            accelerator,
            identity,
            tokenizer,
            texts,
            model,
            optimizer,
            None,  # type: ignore[arg-type]
            terse=terse,
        )
        if start is not None:
            checkpoint.load_optimizer(optimizer, setup.names(), start / "trainer")
        setup.scheduler = scheduler_of(setup, start)
        if main:
            replace(folder / RECIPE, dump(recipe))
            replace(folder / DECKS, summary.decks(setup))
            replace(folder / supersedes.FILE, supersedes.dumped(texts.pairs).decode())
            link_pools(folder, {"old": corpus.old, "new": corpus.new})
        setup.say("\n".join([*notes(recipe, texts), *told(asked, recipe)]))
        if recipe.tracking.with_:
            accelerator.init_trackers("srt_peft", config={"recipe": dump(recipe)})
    return setup


def _check_sizes(recipe: Recipe, accelerator: Accelerator) -> None:
    ranks, batch = accelerator.num_processes, recipe.training.batch_size
    if batch < ranks:
        fault = f"training.batch_size = {batch}: expected at least one example for each of the {ranks} processes"
        raise OptionError("the recipe", [fault])


def _check_trackers(recipe: Recipe) -> None:
    lacking = [name for name in recipe.tracking.with_ if name not in available()]
    if lacking:
        remedy = f"pip install {' '.join(lacking)}, or leave it out: metrics.jsonl has the same numbers"
        raise OptionError("the recipe", [f"tracking.with: {', '.join(lacking)} cannot be used here; {remedy}"])


def _check_packing(recipe: Recipe, model: torch.nn.Module) -> None:
    """Packing is exact or absent: a model that sees across examples is refused, and told how it can train."""
    if recipe.data.packing:
        with evaluating(model):
            exact = packs_exactly(model)
        if not exact:
            fault = (
                "data.packing = true: this base does not keep examples apart that share a row (it does not honour "
                "position_ids), so their losses would be wrong; set data.packing=false"
            )
            raise OptionError("the recipe", [fault])


def _identity(recipe: Recipe, texts: Texts, saved: Mapping[str, str] | None) -> dict[str, str]:
    """What this run is made of, beside its recipe; `saved` is what it was made of when it was begun."""
    identity = {"base": fingerprint(recipe.model.base, recipe.model.revision), **texts.identity}
    adapter = recipe.model.adapter
    if adapter is not None and (saved is None or Path(adapter).is_dir()):
        identity["adapter"] = adapter_fingerprint(adapter)
    elif saved and "adapter" in saved:  # it need not be there any more: the checkpoint has all that it was
        identity["adapter"] = saved["adapter"]
    if recipe.review.counts is not None:
        counts = counts_of(recipe.review.counts, texts.first, steps_of(recipe, len(texts.corpus.new)))
        identity["counts"] = hashlib.blake2b(str(counts).encode(), digest_size=16).hexdigest()
    return identity


_CHANGED = {
    "base": "other weights",
    "adapter": "other weights",
    "corpus": "other text, or another tokenizer",
    "decks": "other sources, or other clusters",
    "supersedes": "another map of what replaces what",
    "counts": "another run's log",
}


def _same(
    start: Path, recipe: Recipe, identity: dict[str, str], saved: dict[str, Any], sources: int, *, allow_changes: bool
) -> None:
    begun, before = saved["recipe"], saved["identity"]
    if before.get("corpus") != identity["corpus"]:
        check_remembered(start, Path(recipe.output))
    if "decks" not in begun["review"]:  # it is of a version that drew as the paper does, and told no decks apart
        begun = begun | {"review": begun["review"] | {"preset": "paper"}}
        before = {name: identity[name] for name in identity.keys() & {"decks"}} | before
    differences = changed(resolve(load_recipe(begun), sources), recipe)
    differences += [
        f"the {CALLED.get(name, name)} is {value} now and {before.get(name)} in the checkpoint ({_CHANGED[name]})"
        for name, value in {**dict.fromkeys(before), **identity}.items()
        if before.get(name) != value
    ]
    if differences and not allow_changes:
        raise OptionError(
            "going on with this run, which was begun with other settings (--allow-changes goes on all the same: "
            "the run is then no longer the one that either recipe describes)",
            differences,
        )


def _model(recipe: Recipe, start: Path | None, device: torch.device) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    m, full = recipe.model, recipe.model.tuning == "full"
    model = load_model(
        str(start) if start and full else m.base,
        revision=None if start and full else m.revision,
        tuning=m.tuning,
        adapter=str(start) if start and not full else m.adapter,
        stack=("saved" if start else "new") if m.stack else "",
        lora=asdict(m.lora),
        dtype=m.dtype,
        attention=m.attention,
        gradient_checkpointing=m.gradient_checkpointing,
        device=device,
    )
    optimizer = make_optimizer(
        model,
        learning_rate=recipe.training.learning_rate,
        weight_decay=recipe.training.weight_decay,
        tuning=m.tuning,
        device=device,
    )
    model.train()
    return model, optimizer


# --- saving and ending ------------------------------------------------------------------------------------------


def save(setup: Setup, step: int) -> None:
    """A checkpoint after so many steps; only the main process writes."""
    with as_one(setup.accelerator):
        if setup.main:
            writers: dict[str, Callable[[Path], None]] = {
                "": lambda folder: _save_model(setup, step, folder),
                "srt_state": setup.scheduler.save,
                "trainer": lambda folder: _save_trainer(setup, step, folder),
            }
            checkpoint.save(setup.folder, step, writers, keep=setup.recipe.checkpoints.keep)


def _save_model(setup: Setup, step: int, folder: Path) -> None:
    if stack.is_stacked(setup.model):
        stack.save(setup.model, folder)
    else:
        setup.model.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]
    setup.tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card(setup.recipe, setup.folder, step), encoding="utf-8")


def _save_trainer(setup: Setup, step: int, folder: Path) -> None:
    checkpoint.save_optimizer(setup.optimizer, setup.names(), folder)
    saved = {"step": step, "recipe": setup.recipe.as_dict(), "identity": setup.identity}
    saved["asked"] = setup.asked.as_dict()
    (folder / "trainer.json").write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")


def close(setup: Setup, steps: int) -> int:
    """Close what is open, and say where things lie; 0 if the run is finished, 1 if it was stopped before."""
    at = setup.scheduler.state.step
    done = at - setup.texts.first
    setup.scheduler.close()
    if setup.recipe.tracking.with_:
        setup.accelerator.end_training()
    newest = setup.folder / "checkpoints" / checkpoint.name_of(at)
    if not setup.main:
        return 0 if done >= steps else 1
    summary.summarise(setup, steps)
    if done < steps:
        print(f"\nStopped after {done} of {steps} steps; everything is saved in {newest}.")
        print(f"Go on with:  srt-peft train {shlex.quote(str(setup.folder / RECIPE))} --resume")
        return 1
    print(f"\nDone: {done} steps. The result lies in {newest} and is loaded by")
    print("    import peft, transformers")
    if setup.recipe.model.tuning == "full":
        print(f"    model = transformers.AutoModelForCausalLM.from_pretrained({str(newest)!r})")
    else:
        print(f"    base = transformers.AutoModelForCausalLM.from_pretrained({setup.recipe.model.base!r})")
        print(f"    model = peft.PeftModel.from_pretrained(base, {str(newest)!r})")
    return 0
