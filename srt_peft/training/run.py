"""What surrounds the loop: a run's folder, set up or resumed; what a person sees; and how it ends.

RUN/
recipe.yaml      as resolved                 metrics.jsonl    a line a step
pools/           links to the tokenised examples
review/          the live review state (state/) and the review log (log)
checkpoints/     see `checkpoint`
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from tqdm import tqdm

from srt_peft.data.collate import Batch, collate, cut
from srt_peft.data.ingest import ingest
from srt_peft.data.pool import Corpus, Pool
from srt_peft.data.sources import absent
from srt_peft.data.stream import Examples
from srt_peft.errors import OptionError
from srt_peft.review import ReviewLog, Scheduler, load_scheduler, make_scheduler
from srt_peft.review.options import Options, plain
from srt_peft.training import checkpoint
from srt_peft.training.base import check_base, check_ids, fingerprint, load_tokenizer
from srt_peft.training.card import card
from srt_peft.training.folder import RECIPE, check_log, claim, link_pools, replace
from srt_peft.training.keys import Recipe
from srt_peft.training.model import evaluating, load_model, make_optimizer
from srt_peft.training.nll import packs_exactly
from srt_peft.training.ranks import as_one, available, from_main
from srt_peft.training.recipe import changed, dump, load_recipe
from srt_peft.training.schedule import steps_of


@dataclass
class Setup:
    """Everything that a step needs."""

    recipe: Recipe
    folder: Path
    accelerator: Accelerator
    identity: dict[str, str]
    """What a resume must find unchanged beside the recipe: the base's weights and the texts."""
    tokenizer: Any
    corpus: Corpus
    held_out: dict[str, Pool]
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Scheduler

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return bool(self.accelerator.is_main_process)

    def say(self, line: str | None) -> None:
        """Tell the person, once."""
        if line and self.main:
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


def prepare(recipe: Recipe, accelerator: Accelerator, *, resume: bool, allow_changes: bool) -> Setup | None:
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
        _check_inputs(recipe, start)
        tokenizer = load_tokenizer(recipe.model.base, recipe.model.revision)
        if main:
            corpus, held_out = corpora(recipe, tokenizer)
    with as_one(accelerator):
        if not main:  # who find in the cache what the main process has put there
            corpus, held_out = corpora(recipe, tokenizer)
        identity = _identity(recipe, corpus)
        if start is not None:
            saved = json.loads((start / "trainer" / "trainer.json").read_text())
            _same(recipe, identity, saved, allow_changes=allow_changes)
            if saved["step"] >= steps_of(recipe, len(corpus) - corpus.n_old):
                if main:
                    print(f"{folder} is finished: all {saved['step']} steps are done. Its adapter lies in {start}.")
                return None
    with as_one(accelerator):
        torch.manual_seed(recipe.training.seed)
        model, optimizer = _model(recipe, start, accelerator.device)
        check_ids(model, tokenizer, max(pool.largest for pool in (corpus.old, corpus.new, *held_out.values())))
        _check_packing(recipe, model)
        setup = Setup(
            recipe,
            folder,
            accelerator,
            identity,
            tokenizer,
            corpus,
            held_out,
            model,
            optimizer,
            None,  # type: ignore[arg-type]
        )
        if start is not None:
            checkpoint.load_optimizer(optimizer, setup.names(), start / "trainer")
        setup.scheduler = _scheduler(setup, start)
        if main:
            replace(folder / RECIPE, dump(recipe))
            link_pools(folder, {"old": corpus.old, "new": corpus.new})
        setup.say("\n".join(_notes(recipe, corpus, held_out)))
        if recipe.tracking.with_:
            accelerator.init_trackers("srt_peft", config={"recipe": dump(recipe)})
    return setup


def corpora(recipe: Recipe, tokenizer: Any) -> tuple[Corpus, dict[str, Pool]]:
    """The texts as this tokenizer has them: what is trained on, and what neither pool trains on, by pool."""
    pools, held_out = {}, {}
    for name in ("old", "new"):
        found = ingest(
            [asdict(source) for source in getattr(recipe.data, name)],
            tokenizer,
            text_column=recipe.data.text_column,
            format=recipe.data.format,
            max_length=recipe.data.max_length,
            holdout=recipe.data.holdout,
        )
        pools[name], held_out[name] = found.train, found.held_out
    corpus = Corpus(pools["old"], pools["new"])
    unseen = {name: corpus.unseen(pool) for name, pool in held_out.items()}
    return corpus, {name: pool for name, pool in unseen.items() if len(pool)}


def _check_inputs(recipe: Recipe, start: Path | None) -> None:
    """What can be told of texts, base and adapter before any of them is read, which may take an hour."""
    gone = absent(source.path for source in (*recipe.data.old, *recipe.data.new))
    if gone:
        raise OptionError("the corpus", gone)
    adapter = None if start else recipe.model.adapter
    check_base(recipe.model.base, recipe.model.revision, adapter, recipe.data.max_length)


def _notes(recipe: Recipe, corpus: Corpus, held_out: dict[str, Pool]) -> Iterator[str]:
    """What the texts have become, and what is legal and seldom meant."""
    shared, n_new, batch = corpus.shared(), len(corpus.new), recipe.training.batch_size
    for name, pool in (("old", corpus.old), ("new", corpus.new)):
        about = pool.manifest["about"]["report"]
        left = len(held_out.get(name, ()))
        yield (
            f"{name}: {about['documents']:,} documents ({about['empty']:,} empty) make {len(pool):,} examples of "
            f"{int(pool.lengths.sum()):,} tokens; {left:,} more are held out, {about['duplicates']:,} were duplicates."
        )
        if about["held_out"] > left:
            yield (
                f"{about['held_out'] - left} more were held out of data.{name}, and are trained on in the other text, "
                "word for word: they are left out of what is measured."
            )
    share, replays = recipe.review.old_fraction, recipe.review.scheduler not in ("cpt", "match")
    if corpus.n_old and share and replays and not Options(batch_size=batch, old_fraction=share).old_slots:
        yield (
            f"review.old_fraction = {share} of training.batch_size = {batch} is less than one example: no slot is kept "
            "for old ones."
        )
    if recipe.evaluation.every and not held_out:
        yield f"evaluation.every = {recipe.evaluation.every}: no text is held out whose perplexity could be measured."
    if shared:
        yield (
            f"{shared} of {n_new} new examples are in data.old, too, word for word: each is reviewed in both pools, as "
            "two examples. Take them out of one of the two, unless that is meant."
        )
    if batch > len(corpus):
        yield f"training.batch_size = {batch} is more than the {len(corpus)} examples there are: draws are smaller."


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


def _identity(recipe: Recipe, corpus: Corpus) -> dict[str, str]:
    identity = {"base": fingerprint(recipe.model.base, recipe.model.revision), "corpus": corpus.fingerprint}
    if recipe.review.counts is not None:
        counts = _counts(recipe.review.counts, steps_of(recipe, len(corpus.new)))
        identity["counts"] = hashlib.blake2b(str(counts).encode(), digest_size=16).hexdigest()
    return identity


_CHANGED = {"base": "other weights", "corpus": "other text, or another tokenizer", "counts": "another run's log"}


def _same(recipe: Recipe, identity: dict[str, str], saved: dict[str, Any], *, allow_changes: bool) -> None:
    differences = changed(load_recipe(saved["recipe"]), recipe)
    differences += [
        f"the {name} is {value} now and {saved['identity'].get(name)} in the checkpoint ({_CHANGED[name]})"
        for name, value in identity.items()
        if saved["identity"].get(name) != value
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


def _scheduler(setup: Setup, start: Path | None) -> Scheduler:
    """Every rank has the same scheduler; only the main one maps its state into the run's folder and keeps the log."""
    review = setup.folder / "review"
    places: dict[str, Any] = {"folder": review / "state", "log": review / "log"} if setup.main else {}
    if start is not None:
        if setup.main:
            check_log(setup.folder, checkpoint.step_of(start))
        return _as_asked(setup, load_scheduler(start / "srt_state", **places))
    return make_scheduler(
        setup.recipe.review.scheduler,
        old=setup.corpus.n_old,
        new=len(setup.corpus) - setup.corpus.n_old,
        identity=setup.corpus.identity,
        **_options(setup),
        **places,
    )


def _options(setup: Setup) -> dict[str, Any]:
    recipe = setup.recipe
    options = {"batch_size": recipe.training.batch_size, "seed": recipe.training.seed, **recipe.scheduler_options()}
    if recipe.review.counts is not None:
        options["counts"] = _counts(recipe.review.counts, steps_of(recipe, len(setup.corpus.new)))
    return options


def _counts(path: str, steps: int) -> list[list[int]]:
    """How many old and new examples another run drew at each of these steps, by its review log."""
    with ReviewLog(path) as log:
        first, table = log.counts()
    if first or len(table) < steps:
        held = f"the steps {first} to {first + len(table) - 1}" if len(table) else "no step"
        fault = f"review.counts = {path!r} has {held}: expected all of this run's, 0 to {steps - 1}"
        raise OptionError("the recipe", [f"{fault}; finish that run, or name the log of another"])
    counts: list[list[int]] = table[:steps].tolist()
    return counts


def _as_asked(setup: Setup, saved: Scheduler) -> Scheduler:
    """The scheduler that was saved, under the recipe's settings where `allow_changes` has let others through."""
    name, options = setup.recipe.review.scheduler, Options(**plain(_options(setup)))
    if not np.array_equal(saved.state.identity, setup.corpus.identity):  # type: ignore[arg-type]
        saved.close()
        fault = (
            "the texts are cut into other examples than those of the checkpoint's review state, which follows them "
            "one by one. Begin a new run with another output, and model.adapter set to the checkpoint"
        )
        raise OptionError("going on with this run", [fault])
    if (saved.name, saved.options) == (name, options):
        return saved
    return Scheduler(name, options, saved.state, saved.log)


# --- on the way -----------------------------------------------------------------------------------------------


AT_ONCE = 1 << 14
"""Examples that are cut into micro-batches at once, where all of a corpus are gone through."""


def batches(setup: Setup, examples: Examples) -> Iterator[Batch]:
    """All examples, each once, this rank's part of them."""
    data, training, lengths = setup.recipe.data, setup.recipe.training, examples.lengths
    for start in range(0, len(examples), AT_ONCE):
        ids = np.arange(start, min(start + AT_ONCE, len(examples)))
        tokens = [examples[i] for i in ids.tolist()]
        micro = cut(lengths[ids].tolist(), training.micro_batch_tokens, packing=data.packing, row=data.max_length)
        for rows in micro[setup.accelerator.process_index :: setup.accelerator.num_processes]:
            yield collate(rows, tokens, ids, pad=setup.tokenizer.pad_token_id)


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
    setup.model.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]
    setup.tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card(setup.recipe, setup.folder, step), encoding="utf-8")


def _save_trainer(setup: Setup, step: int, folder: Path) -> None:
    checkpoint.save_optimizer(setup.optimizer, setup.names(), folder)
    saved = {"step": step, "recipe": setup.recipe.as_dict(), "identity": setup.identity}
    (folder / "trainer.json").write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n")


def close(setup: Setup, steps: int) -> int:
    """Close what is open, and say where things lie; 0 if the run is finished, 1 if it was stopped before."""
    done = setup.scheduler.state.step
    setup.scheduler.close()
    if setup.recipe.tracking.with_:
        setup.accelerator.end_training()
    newest = setup.folder / "checkpoints" / checkpoint.name_of(done)
    if not setup.main:
        return 0 if done >= steps else 1
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
