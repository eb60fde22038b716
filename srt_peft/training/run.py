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
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from tqdm import tqdm

from srt_peft.data.collate import Batch, collate, cut
from srt_peft.data.ingest import ingest
from srt_peft.data.pool import Corpus, Pool
from srt_peft.data.stream import Step
from srt_peft.errors import OptionError
from srt_peft.review import Review, Scheduler, load_scheduler, make_scheduler
from srt_peft.training import checkpoint
from srt_peft.training.keys import Recipe
from srt_peft.training.model import evaluating, load_model, load_tokenizer, make_optimizer
from srt_peft.training.nll import packs_exactly
from srt_peft.training.recipe import changed, dump, load_recipe
from srt_peft.training.schedule import steps_of


@dataclass
class Setup:
    """Everything that a step needs."""

    recipe: Recipe
    folder: Path
    accelerator: Accelerator
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


def prepare(recipe: Recipe, *, resume: bool, allow_changes: bool) -> Setup | None:
    """Set a run up, or take it up where its newest whole checkpoint left it; None where there is nothing to do."""
    with_ = list(recipe.tracking.with_)
    accelerator = Accelerator(log_with=with_ or None, project_dir=recipe.output)
    folder = Path(recipe.output)
    start = _start(folder, resume=resume, accelerator=accelerator)
    accelerator.wait_for_everyone()
    tokenizer = load_tokenizer(recipe.model.base, recipe.model.revision)
    with accelerator.main_process_first():
        corpus, held_out = _corpora(recipe, tokenizer)
    _check_sizes(recipe, accelerator)
    identity = {"corpus": corpus.fingerprint}
    if start is not None:
        saved = json.loads((start / "trainer" / "trainer.json").read_text())
        _same(recipe, identity, saved, allow_changes=allow_changes)
        if saved["step"] >= steps_of(recipe, len(corpus) - corpus.n_old):
            if accelerator.is_main_process:
                print(f"{folder} is finished: all {saved['step']} steps are done. Its adapter lies in {start}.")
            return None
    torch.manual_seed(recipe.training.seed)
    model, optimizer = _model(recipe, start, accelerator.device)
    _check_packing(recipe, model)
    _check_packing(recipe, model)
    setup = Setup(recipe, folder, accelerator, tokenizer, corpus, held_out, model, optimizer, None)  # type: ignore[arg-type]
    if start is not None:
        checkpoint.load_optimizer(optimizer, setup.names(), start / "trainer")
    setup.scheduler = _scheduler(setup, start)
    if setup.main:
        (folder / "recipe.yaml").write_text(dump(recipe), encoding="utf-8")
    if with_:
        accelerator.init_trackers("srt_peft", config={"recipe": dump(recipe)})
    return setup


def _start(folder: Path, *, resume: bool, accelerator: Accelerator) -> Path | None:
    """The checkpoint to go on from, or None for a fresh start in a folder that is cleared of unfinished attempts."""
    newest, faults = checkpoint.newest(folder)
    main = accelerator.is_main_process
    for fault in faults if main else ():
        print(f"passed over: {fault}", file=sys.stderr)
    if resume and newest is not None:
        if main:
            print(f"Going on from {newest}.", file=sys.stderr)
        return newest
    if checkpoint.all_of(folder):
        remedy = "--resume to go on" if newest else "another output, since none of its checkpoints is whole"
        fault = f"output = {folder}: a run lies there already; give {remedy}, or name another output"
        raise OptionError("the recipe", [fault])
    if main:
        if resume:
            print(f"There is no checkpoint in {folder}: starting afresh.", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in ("review", "pools", "metrics.jsonl"):
            path = folder / leftover
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return None


def _corpora(recipe: Recipe, tokenizer: Any) -> tuple[Corpus, dict[str, Pool]]:
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
        pools[name] = found.train
        if len(found.held_out):
            held_out[name] = found.held_out
    return Corpus(pools["old"], pools["new"]), held_out


def _check_sizes(recipe: Recipe, accelerator: Accelerator) -> None:
    ranks, batch = accelerator.num_processes, recipe.training.batch_size
    if batch < ranks:
        fault = f"training.batch_size = {batch}: expected at least one example for each of the {ranks} processes"
        raise OptionError("the recipe", [fault])


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


def _same(recipe: Recipe, identity: dict[str, str], saved: dict[str, Any], *, allow_changes: bool) -> None:
    differences = changed(load_recipe(saved["recipe"]), recipe)
    differences += [
        f"{name}: {saved['identity'][name]} in the checkpoint, {value} now (other text, or another tokenizer)"
        for name, value in identity.items()
        if saved["identity"][name] != value
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
    places = {"folder": review / "state", "log": review / "log"} if setup.main else {}
    review.mkdir(exist_ok=True)
    if start is not None:
        return load_scheduler(start / "srt_state", **places)
    options = setup.recipe.scheduler_options()
    return make_scheduler(
        setup.recipe.review.scheduler,
        old=setup.corpus.n_old,
        new=len(setup.corpus) - setup.corpus.n_old,
        batch_size=setup.recipe.training.batch_size,
        seed=setup.recipe.training.seed,
        identity=setup.corpus.identity,
        **options,
        **places,
    )


# --- on the way -----------------------------------------------------------------------------------------------


def batches(setup: Setup, pool: Pool) -> Iterator[Batch]:
    """A pool's examples in order, this rank's part of them."""
    ids = np.arange(len(pool))
    data, training = setup.recipe.data, setup.recipe.training
    micro = cut(pool.lengths.tolist(), training.micro_batch_tokens, packing=data.packing, row=data.max_length)
    tokens = [pool[i] for i in range(len(pool))]
    for rows in micro[setup.accelerator.process_index :: setup.accelerator.num_processes]:
        yield collate(rows, tokens, ids, pad=setup.tokenizer.pad_token_id)


class Stop:
    """SIGINT and SIGTERM ask the run to save and leave after this step; asked twice, it is left at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        for other, handler in self._before.items():
            signal.signal(other, handler)

    def asked(self, accelerator: Accelerator) -> bool:
        """Whether any rank was asked to stop."""
        flag = torch.tensor(float(self.signal is not None), device=accelerator.device)
        return bool(accelerator.reduce(flag, "sum") > 0)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Metrics:
    """A line a step in metrics.jsonl, the trackers, and a progress bar with what a person watches."""

    def __init__(self, setup: Setup, steps: int) -> None:
        self.setup, self.steps = setup, steps
        self.begun = setup.scheduler.state.step
        self.path = setup.folder / "metrics.jsonl"
        self.drawn = np.zeros(2, dtype=np.int64)

    def __enter__(self) -> Metrics:
        if self.setup.main:
            lines = self.path.read_text().splitlines() if self.path.exists() else []
            kept = [line for line in lines if json.loads(line)["step"] < self.begun]
            self.path.write_text("".join(f"{line}\n" for line in kept))
            self.file = self.path.open("a")
        disable = None if self.setup.main else True
        self.bar = tqdm(total=self.steps, initial=self.begun, unit="step", disable=disable, dynamic_ncols=True)
        return self

    def note(
        self, step: Step, review: Review, *, loss: float, norm: float, learning_rate: float, started: float
    ) -> None:
        """What one step did."""
        draw, seconds = step.draw, time.perf_counter() - started
        n_new = draw.ids.size - draw.n_old
        self.drawn += (draw.n_old, n_new)
        line = {
            "step": draw.step,
            "loss": loss,
            "learning_rate": learning_rate,
            "gradient_norm": norm,
            "old": draw.n_old,
            "new": n_new,
            "due_old": draw.due[0],
            "due_new": draw.due[1],
            "lapses": review.lapses,
            "not_finite": review.not_finite,
            "tokens": step.n_tokens,
            "seconds": round(seconds, 4),
        }
        self._write(line)
        self.bar.set_postfix_str(
            f"loss {loss:.3f}, {step.n_tokens / seconds:,.0f} tok/s, old {draw.n_old}/{draw.ids.size}, "
            f"due {draw.due[0]:,}+{draw.due[1]:,}, lapses {review.lapses}"
        )
        self.bar.update()

    def held_out(self, step: int, nll: dict[str, float]) -> None:
        """Perplexity on text that is never trained on."""
        self._write({"step": step, **{f"held_out_{name}_nll": value for name, value in nll.items()}})
        told = ", ".join(f"{name} {np.exp(min(value, 700.0)):.2f}" for name, value in nll.items())
        self.setup.say(f"step {step + 1}: held-out perplexity {told}")

    def _write(self, line: dict[str, Any]) -> None:
        if self.setup.main:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
        self.setup.accelerator.log({k: v for k, v in line.items() if k != "step"}, step=line["step"])

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.setup.main:
            self.file.close()


# --- saving and ending ------------------------------------------------------------------------------------------


def save(setup: Setup, step: int) -> None:
    """A checkpoint after so many steps; only the main process writes."""
    if setup.main:
        writers: dict[str, Callable[[Path], None]] = {
            "": lambda folder: _save_model(setup, folder),
            "srt_state": setup.scheduler.save,
            "trainer": lambda folder: _save_trainer(setup, step, folder),
        }
        checkpoint.save(setup.folder, step, writers, keep=setup.recipe.checkpoints.keep)
    setup.accelerator.wait_for_everyone()


def _save_model(setup: Setup, folder: Path) -> None:
    setup.model.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]
    setup.tokenizer.save_pretrained(folder)


def _save_trainer(setup: Setup, step: int, folder: Path) -> None:
    checkpoint.save_optimizer(setup.optimizer, setup.names(), folder)
    saved = {"step": step, "recipe": setup.recipe.as_dict(), "identity": {"corpus": setup.corpus.fingerprint}}
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
        print(f"Go on with:  srt-peft train {setup.folder / 'recipe.yaml'} --resume")
        return 1
    print(f"\nDone: {done} steps. The result lies in {newest} and is loaded by")
    if setup.recipe.model.tuning == "full":
        print("    from transformers import AutoModelForCausalLM")
        print(f'    model = AutoModelForCausalLM.from_pretrained("{newest}")')
    else:
        print("    from peft import PeftModel")
        print(
            f'    model = PeftModel.from_pretrained(base_model, "{newest}")   # base_model is {setup.recipe.model.base}'
        )
    return 0
