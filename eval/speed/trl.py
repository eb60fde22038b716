"""Tokens a second of `srt-peft train` and of TRL's SFTTrainer: the same tokens, the same base, the same LoRA.

    python -m eval.speed.trl                    # the whole table, on the CPU: 6 minutes, 2 GB; needs srt-peft[trl]
    python -m eval.speed.trl --size small       # its blocks of one model
    python -m eval.speed.trl --quick            # two small blocks: seconds

Each loop is run as a user runs it: ours is `srt_peft.training.loop.learn` with its review log and its line of metrics
a step, TRL's is `SFTTrainer.train`, which logs every tenth. Both have float32, sdpa, AdamW (fused) with the same
learning rate, decay and clipping, and a base that is made here, with random weights; neither saves.

cpt        ours, new examples only
srt        ours by spaced repetition, one old example to four new, as `preset: auto` has it
trl        SFTTrainer on the very examples that cpt draws, in that order, a step of them a step
trl rows   packed only: SFTTrainer with a packed row a micro-batch (see below)

narrow     a vocabulary so small that the head hardly counts: what is left is the model, and all around it
wide       32,000 words, where the head is most of a step. SFTTrainer's tells each token's entropy and whether it was
           the likeliest, too, and has kernels of its own for that on a GPU, which the CPU knows nothing of

even       examples of one length: neither has padding, and all forward passes have one shape
mixed      lengths from an eighth of the longest to the longest. SFTTrainer pads to the longest of a micro-batch; ours
           shares a step's examples out by length, into micro-batches of as many tokens
packed     `packing=True` and `data.packing`. TRL packs the whole text beforehand, ours a step's examples when they are
           drawn, so that steps differ in their tokens by some percent, and rows are less full. TRL's packing implies
           padding-free: a micro-batch is one long row, for which sdpa gets a mask of all against all. `trl rows` does
           without by a micro-batch of one row, and accumulates over more of them

The loops advance in turn, step by step, in an order that rotates (`eval/speed/turns.py`): what disturbs the machine
disturbs all alike. A step lasts from the end of the loop's last to the end of this: drawing, collating and logging
count. `tokens` are those of a step that are no padding, `padding` the share that is, both counted by one and
the same hook on the embeddings. `over trl` is the median over rounds of the loop's tokens/s over TRL's in the same
round, with its 95 % interval by order statistics, and its 10th and 90th percentile; `cpu` is the same for tokens by
second of processor time, which what else runs on the machine disturbs far less. `peak MiB` is what an untimed last step
takes beyond what was there before it (weights, moments, the other loops): of resident memory, or of a GPU's. `loss` is
that of the first step, before anything is learned: of cpt and trl it must be one, unless packing has mixed the order.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from accelerate import Accelerator
from tokenizers import Tokenizer, models, pre_tokenizers

from eval.speed.overhead import Size, interval, made, table
from eval.speed.turns import PAD, Figures, Loop, take_turns
from srt_peft.training import run, scoring
from srt_peft.training.folder import METRICS
from srt_peft.training.loop import learn
from srt_peft.training.progress import Stop
from srt_peft.training.recipe import load_recipe
from srt_peft.training.run import Setup

END = 1
WARM_UP = 2
TIMED = slice(WARM_UP, -1)
CHECKPOINTING = next(  # as transformers calls it now, and as it did
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in transformers.TrainingArguments.__dataclass_fields__
)
LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}
"""Ours by default, too."""
OPTIMIZER: dict[str, Any] = {"learning_rate": 1e-4, "weight_decay": 0.001, "max_grad_norm": 1.0}

_LAYERS: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
SIZES = {
    "tiny": Size({"vocab_size": 512, "hidden_size": 64, "intermediate_size": 172, **_LAYERS}, 128, 16, 14),
    "narrow": Size({"vocab_size": 256, "hidden_size": 256, "intermediate_size": 688, **_LAYERS}, 16, 128, 14),
    "small": Size({"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 688, **_LAYERS}, 16, 128, 7),
    "wide": Size({"vocab_size": 32000, "hidden_size": 128, "intermediate_size": 344, **_LAYERS}, 8, 128, 5),
}
SIZES["quick"] = replace(SIZES["tiny"], batch=16, rounds=3)
MICRO_BATCH = 1024
"""Tokens of a forward pass, padding counted."""


@dataclass(frozen=True)
class Block:
    """What is compared: one table."""

    size: str
    lengths: str = "even"
    packing: bool = False
    checkpointing: bool = False

    @property
    def shortest(self) -> int:
        """The shortest example's tokens."""
        longest = SIZES[self.size].length
        return longest if self.lengths == "even" else longest // 8

    @property
    def batch(self) -> int:
        """How many examples make as many tokens as the size's batch does where all are of the longest length."""
        size = SIZES[self.size]
        return 2 * size.batch * size.length // (self.shortest + size.length)


BLOCKS = [
    Block("tiny"),
    Block("narrow"),
    Block("small"),
    Block("small", checkpointing=True),
    Block("small", "mixed"),
    Block("small", "mixed", packing=True),
    Block("small", "mixed", packing=True, checkpointing=True),
    Block("wide", "mixed"),
    Block("wide", "mixed", packing=True),
    Block("quick", "mixed"),
    Block("quick", "mixed", packing=True),
]


# --- ours ---------------------------------------------------------------------------------------------------------


class Turns(Stop):
    """In the place of what asks, after each step, whether the run is to stop."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(tell=False)
        self.loop = loop

    def asked(self, accelerator: Accelerator) -> bool:
        self.loop.pause()
        return super().asked(accelerator)


def setup_of(folder: Path, block: Block, scheduler: str, output: str) -> Setup:
    size = SIZES[block.size]
    recipe = load_recipe(
        {
            "model": {
                "base": str(folder / "base"), "tuning": "lora", "dtype": "float32", "attention": "sdpa",
                "gradient_checkpointing": block.checkpointing,
                "lora": {"r": LORA["r"], "alpha": LORA["lora_alpha"], "target_modules": LORA["target_modules"]},
            },
            "data": {
                "old": str(folder / "old.jsonl"), "new": str(folder / "new.jsonl"), "max_length": size.length,
                "packing": block.packing, "holdout": 0.0,
            },
            "review": {"scheduler": scheduler},
            "training": {
                "batch_size": block.batch, "micro_batch_tokens": MICRO_BATCH, "steps": 10**6,
                "schedule": "constant", "warmup_steps": 0, **OPTIMIZER,
            },
            "checkpoints": {"every": 10**6},
            "output": str(folder / output),
        }
    )  # fmt: skip
    found = run.prepare(recipe, Accelerator(), resume=False, allow_changes=False, terse=True)
    assert found is not None, "a new run has all to do"
    return found


def ours(folder: Path, block: Block, scheduler: str, loop: Loop) -> None:
    setup = setup_of(folder, block, scheduler, scheduler)
    with setup.scheduler:
        scoring.first_passes(setup)
        loop.watch(setup.model)
        try:
            learn(setup, 10**6, Turns(loop), None)
        finally:
            with (setup.folder / METRICS).open() as file:
                lines = (json.loads(line) for line in file)
                loop.figures.loss = next(line["loss"] for line in lines if "loss" in line)


def drawn(folder: Path, block: Block, steps: int) -> list[dict[str, list[int]]]:
    """The tokens of what cpt draws, step after step: its draws depend on no signal."""
    setup = setup_of(folder, block, "cpt", "drawn")
    with setup.scheduler as s:
        ids = []
        for _ in range(steps):
            draw = s.draw()
            s.review(draw.ids, np.zeros(draw.ids.size, np.float32))
            ids += draw.ids.tolist()
    return [{"input_ids": setup.corpus[i].tolist()} for i in ids]


# --- TRL's --------------------------------------------------------------------------------------------------------


class Paused(transformers.TrainerCallback):
    """A loop's turn is over with its step."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.loop.pause()

    def on_log(self, args: Any, state: Any, control: Any, **told: Any) -> None:  # noqa: ARG002 - the base's names
        if state.global_step == 1:
            self.loop.figures.loss = told["logs"]["loss"]


def theirs(folder: Path, block: Block, rows: list[dict[str, list[int]]], loop: Loop, *, flat: bool = True) -> None:
    """`flat`: a micro-batch has as many tokens as ours; else it is one row."""
    from datasets import Dataset  # type: ignore[import-untyped]  # noqa: PLC0415 - heavy
    from trl.trainer.sft_config import SFTConfig  # noqa: PLC0415 - an extra; and it takes seconds to import
    from trl.trainer.sft_trainer import SFTTrainer  # noqa: PLC0415

    size = SIZES[block.size]
    n = size.batch if block.packing else block.batch  # rows that are full, or examples
    most = MICRO_BATCH // size.length if flat else 1
    each = max(k for k in range(1, most + 1) if n % k == 0)
    options: dict[str, Any] = {
        "max_length": size.length, "packing": block.packing, "bf16": False, CHECKPOINTING: block.checkpointing,
        "model_init_kwargs": {"dtype": torch.float32, "attn_implementation": "sdpa"}, "optim": "adamw_torch_fused",
        "per_device_train_batch_size": each, "gradient_accumulation_steps": n // each, "num_train_epochs": 1000,
        "train_sampling_strategy": "sequential", "lr_scheduler_type": "constant", "logging_first_step": True,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }  # fmt: skip
    trainer = SFTTrainer(
        model=str(folder / "base"),
        args=SFTConfig(str(folder / "trl"), **options, **OPTIMIZER),
        train_dataset=Dataset.from_list(rows),
        peft_config=peft.LoraConfig(task_type="CAUSAL_LM", **LORA),
        callbacks=[Paused(loop)],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    loop.watch(trainer.model)
    trainer.train()


# --- what they train on -------------------------------------------------------------------------------------------


def write_texts(path: Path, block: Block, n: int, rng: np.random.Generator) -> None:
    """Random words, which no training makes easier; with the mark of the end, as many tokens as the block says."""
    size = SIZES[block.size]
    lengths = rng.integers(block.shortest, size.length, n, endpoint=True)
    with path.open("w") as file:
        for length in lengths.tolist():
            words = rng.integers(2, size.model["vocab_size"], length - 1)
            file.write(json.dumps({"text": " ".join(map(str, words.tolist()))}) + "\n")


def write_base(folder: Path, size: Size) -> None:
    """A Llama of that size, with random weights, and a tokenizer that knows as many words."""
    made(folder, size)
    words = {"<pad>": PAD, "</s>": END, **{str(i): i for i in range(2, size.model["vocab_size"])}}
    inner = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=inner, eos_token="</s>", pad_token="<pad>").save_pretrained(folder)


# --- measuring ----------------------------------------------------------------------------------------------------


def measure(folder: Path, block: Block, rounds: int) -> dict[str, Figures]:
    """All loops, in turn: the first steps warm up, and the last one is not timed."""
    size, steps, rng = SIZES[block.size], WARM_UP + rounds + 1, np.random.default_rng(0)
    write_base(folder / "base", size)
    for pool in ("old", "new"):
        write_texts(folder / f"{pool}.jsonl", block, steps * block.batch, rng)
    rows = drawn(folder, block, steps)
    bodies: dict[str, Callable[[Loop], object]] = {
        "cpt": partial(ours, folder, block, "cpt"),
        "srt": partial(ours, folder, block, "srt"),
        "trl": partial(theirs, folder, block, rows),
    }
    if block.packing:
        bodies["trl rows"] = partial(theirs, folder, block, rows, flat=False)
    loops = {name: Loop(body) for name, body in bodies.items()}
    take_turns(list(loops.values()), steps)
    return {name: loop.figures for name, loop in loops.items()}


def over(mine: Figures, theirs: Figures, clock: str, *, spread: bool = False) -> str:
    """A loop's tokens a second over another's in the same round."""
    speeds = [np.array(f.tokens[TIMED]) / np.array(getattr(f, clock)[TIMED]) for f in (mine, theirs)]
    ratio = speeds[0] / speeds[1]
    low, high = interval(ratio)
    told = f"{np.median(ratio):.2f} [{low:.2f}, {high:.2f}]"
    return told + " ({:.2f}, {:.2f})".format(*np.quantile(ratio, [0.1, 0.9])) if spread else told


def rows_of(found: dict[str, Figures]) -> Iterator[dict[str, str]]:
    trl = found["trl"]
    for name, mine in found.items():
        tokens, seconds = np.array(mine.tokens[TIMED]), np.array(mine.seconds[TIMED])
        yield {
            "loop": name,
            "tokens": f"{tokens.mean():.0f}",
            "padding": f"{1 - tokens.sum() / sum(mine.places[TIMED]):.1%}",
            "p50 ms": f"{np.median(seconds) * 1e3:.1f}",
            "tokens/s": f"{np.median(tokens / seconds):.0f}",
            "over trl (p10, p90)": "" if mine is trl else over(mine, trl, "seconds", spread=True),
            "cpu: over trl": "" if mine is trl else over(mine, trl, "cpu"),
            "peak MiB": f"{mine.peak / 2**20:.0f}",
            "loss": f"{mine.loss:.3f}",
        }


def told(block: Block, rounds: int) -> str:
    size = SIZES[block.size]
    return (
        f"{block.size}, {block.lengths}, {'packed' if block.packing else 'unpacked'}, gradient checkpointing "
        f"{'on' if block.checkpointing else 'off'}: vocabulary {size.model['vocab_size']:,}, "
        f"{size.model['hidden_size']} features, {size.model['num_hidden_layers']} layers; at most {size.length} tokens "
        f"an example, {block.batch} examples a step; {rounds} rounds"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two blocks of the tiny model, in few rounds")
    parser.add_argument("--size", choices=list(SIZES), help="only the blocks of this size")
    parser.add_argument("--rounds", type=int, help="timed steps of each loop (default: the model's)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    args = parser.parse_args()
    if find_spec("trl") is None:
        raise SystemExit("error: trl is not installed, which this compares with: pip install 'srt-peft[trl]'")
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    modules = ", ".join(f"{name} {version(name)}" for name in ("trl", "torch", "transformers", "peft", "numpy"))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{args.threads} threads"
    print(f"Python {platform.python_version()}, {modules}, {platform.system()} {platform.machine()}, "
          f"{os.cpu_count()} cores, {device}", flush=True)  # fmt: skip
    only = "quick" if args.quick else args.size
    for block in [b for b in BLOCKS if b.size == only] or [b for b in BLOCKS if b.size != "quick"]:
        rounds = args.rounds or SIZES[block.size].rounds
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SRT_PEFT_HOME"] = f"{folder}/home"
            found = measure(Path(folder), block, rounds)
        print(f"\n{told(block, rounds)}\n\n{table(list(rows_of(found)))}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
