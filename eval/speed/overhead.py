"""What scheduling adds to a training step: SRT, uniform and CPT on the same tokens, side by side.

    python eval/speed/overhead.py                     # the whole table, on the CPU: 7 minutes, 1 GB of memory
    python eval/speed/overhead.py --quick             # one small block of it: seconds
    python eval/speed/overhead.py --base MODEL --batch 128 --length 512 --dtype bfloat16     # a real model

Each run takes the loop's own steps (`srt_peft.training.loop.one_step`) through the loop's own stream, from pools and a
review state that are memory-mapped, with the review log. What differs is the scheduler alone:

plain      no scheduler: the same forward pass, loss, backward pass and update, on micro-batches that lie ready
cpt        new examples only; reviewed for the record, as every scheduler of ours does
cpt again  the same, with another seed: what this measurement takes for a difference where there is none
uniform    one old to four new, with replacement between batches
epoch      the same, but nothing returns before all the others were seen
srt        one old to four new, by spaced repetition (`underfull: ahead`, so that its batches are full as well)

All examples have the same length, so all steps have the same tokens, in micro-batches of the same shapes. All runs
train one and the same model with one optimiser and advance in turn, step by step, in an order that rotates: what
disturbs the machine disturbs all alike. A step lasts from one draw in hand to the next, so that waiting for a draw
counts. Told is the median over rounds of how much longer it lasted than another run's step of the same round, with its
95 % interval by order statistics; for `over cpt` the 10th and 90th percentile, too. `cpu` is the same for the processor
time of all threads: all the work there is, hidden or not, and far less disturbed by what else runs on the machine.

A thread reviews, draws, fetches and collates while the main one is in the backward pass: `review`, `draw` and `batch`
(fetch and collate) are the milliseconds of processor time that this takes, and `wait` is for how long the main thread
waited for the next draw, all of them medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import Accelerator
from numpy.typing import ArrayLike
from tqdm import trange

from srt_peft import Draw, Review, Scheduler, make_scheduler
from srt_peft.data.corpus import Corpus
from srt_peft.data.pool import Pool, write
from srt_peft.data.stream import SRTDataset, Step
from srt_peft.training.keys import Recipe
from srt_peft.training.loop import one_step, update
from srt_peft.training.model import load_model, make_optimizer
from srt_peft.training.nll import token_nll
from srt_peft.training.recipe import load_recipe
from srt_peft.training.run import Setup
from srt_peft.training.texts import Texts

Array = np.ndarray[Any, Any]

RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cpt": {"name": "cpt"},
    "cpt again": {"name": "cpt", "seed": 1},
    "uniform": {"name": "uniform"},
    "epoch": {"name": "uniform", "order": "epoch"},
    "srt": {"name": "srt", "underfull": "ahead"},
}
THREAD = ("review", "draw", "batch", "wait")
PAPER = """\
The paper (4,096 tokens a step, which takes 9.19 s with CPT): step time uniform +12.4 % and SRT +17.0 % over CPT,
SRT +4.1 % over uniform; wall-clock +10.8 %, +14.7 % and +3.5 %."""


@dataclass(frozen=True)
class Size:
    """A model, if it is made here, and what it is shown."""

    model: dict[str, Any]
    batch: int
    length: int
    rounds: int


@dataclass
class Times:
    """Seconds of each step of a run, a step a round, and of the processor in it."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextmanager
    def measured(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)


SIZES = {
    "tiny": Size(
        {
            "vocab_size": 512, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 5,
            "num_attention_heads": 8, "num_key_value_heads": 4,
        },
        batch=512, length=16, rounds=24,
    ),
    "small": Size(
        {
            "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
            "num_attention_heads": 8, "num_key_value_heads": 4,
        },
        batch=64, length=64, rounds=14,
    ),
}  # fmt: skip
BLOCKS = [("tiny", 1e4, 1), ("tiny", 1e6, 1), ("tiny", 1e6, 2), ("small", 1e6, 1), ("small", 1e6, 2)]
"""What the whole table has: a size, how many examples, how many threads torch may use."""


class Clocked(Scheduler):
    """A scheduler that notes how much processor time its thread had used when each review and draw began and ended."""

    def __init__(self, s: Scheduler) -> None:
        super().__init__(s.name, s.options, s.state, s.log)
        self.marks: list[tuple[float, ...]] = []

    def review(self, ids: ArrayLike, nll: ArrayLike) -> Review:
        begun = time.thread_time()
        found = super().review(ids, nll)
        self.marks.append((begun, time.thread_time()))
        return found

    def draw(self) -> Draw:
        begun = time.thread_time()
        drawn = super().draw()
        if self.marks:  # the first draw is made by the main thread
            self.marks[-1] += (begun, time.thread_time())
        return drawn


class Run:
    """A stream and its scheduler, driven a step at a time."""

    def __init__(self, setup: Setup, folder: Path, options: dict[str, Any]) -> None:
        corpus, recipe = setup.corpus, setup.recipe
        self.setup = setup
        self.s = Clocked(
            make_scheduler(
                old=corpus.n_old,
                new=len(corpus) - corpus.n_old,
                batch_size=recipe.training.batch_size,
                folder=folder / "state",
                log=folder / "log",
                **options,
            )
        )
        self.stream = SRTDataset(
            self.s,
            corpus,
            micro_batch_tokens=recipe.training.micro_batch_tokens,
            packing=recipe.data.packing,
            row=recipe.data.max_length,
            pad=0,
        )
        self.steps: Iterator[Step] = iter(self.stream)
        self.next = next(self.steps)
        self.waits: list[float] = []

    def step(self) -> None:
        """From one draw in hand to the next."""
        assert self.next.draw.ids.size == self.setup.recipe.training.batch_size, "not the same tokens"
        one_step(self.setup, self.stream, self.next, self.setup.recipe.training.learning_rate, last=False)
        start = time.perf_counter()
        self.next = next(self.steps)
        self.waits.append(time.perf_counter() - start)

    def thread(self) -> dict[str, str]:
        """Median milliseconds of what the thread does, and of the wait for it."""
        begun, reviewed, drawing, drawn = np.array([m for m in self.s.marks if len(m) == 4]).T
        parts = (reviewed - begun, drawn - drawing, begun[1:] - drawn[:-1], np.array(self.waits))
        return {name: f"{np.median(part) * 1e3:.2f}" for name, part in zip(THREAD, parts, strict=True)}

    def close(self) -> None:
        self.stream.close()
        self.s.close()


def plain_step(setup: Setup, step: Step) -> None:
    """A step that knows of no examples: forward, loss, backward, update."""
    total = torch.zeros((), dtype=torch.float64, device=setup.accelerator.device)
    for host in step.batches:
        batch = host.to(setup.accelerator.device)
        with setup.autocast():
            nll, _ = token_nll(setup.model, batch)
        loss = nll.sum() / step.n_targets
        total += loss.detach()
        loss.backward()  # type: ignore[no-untyped-call]
    update(setup, step.draw.step, setup.recipe.training.learning_rate)
    float(total)


# --- what the steps are taken on ---------------------------------------------------------------------------------


def corpus_of(folder: Path, n: int, length: int, words: int) -> Corpus:
    """Half old, half new: random tokens, which no training makes easier, in pools on disk."""
    rng = np.random.default_rng(0)
    pools: list[Pool] = []
    for name, size in (("old", n // 2), ("new", n - n // 2)):
        columns: dict[str, Array] = {
            "offsets": np.arange(size + 1, dtype=np.int64) * length,
            "text_offsets": np.zeros(size + 1, dtype=np.int64),
            "document": np.arange(size, dtype=np.int64),
            "tokens": rng.integers(1, words, size * length, dtype=np.int32),
            "source": np.zeros(size, dtype=np.int32),
            "identity": rng.integers(0, 256, (size, 16), dtype=np.uint8),
            "key": np.zeros((size, 16), dtype=np.uint8),
            "known": np.zeros((0, 16), dtype=np.uint8),
            "text": np.zeros(0, dtype=np.uint8),
        }
        pools.append(write(folder / name, columns, np.arange(size), ["random"]))
    return Corpus(*pools)


def made(folder: Path, size: Size) -> str:
    """A Llama of that size, with random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**size.model, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def recipe_of(size: Size, base: str, args: argparse.Namespace) -> Recipe:
    row = max(256, size.length)
    return load_recipe(
        {
            "model": {
                "base": base, "tuning": args.tuning, "dtype": args.dtype,
                "gradient_checkpointing": args.gradient_checkpointing,
            },
            "data": {"old": "random tokens", "new": "random tokens", "max_length": row, "packing": args.packing},
            "training": {"batch_size": size.batch, "micro_batch_tokens": args.micro_batch_tokens, "steps": 1},
        }
    )  # fmt: skip


def setup_of(folder: Path, recipe: Recipe, length: int, n: int) -> Setup:
    """Model and optimiser of the recipe, and n examples of one length."""
    accelerator, given, training = Accelerator(), recipe.model, recipe.training
    options: dict[str, Any] = {"tuning": given.tuning, "device": accelerator.device}
    model = load_model(given.base, dtype=given.dtype, gradient_checkpointing=given.gradient_checkpointing, **options)
    optimizer = make_optimizer(
        model, learning_rate=training.learning_rate, weight_decay=training.weight_decay, **options
    )
    corpus = corpus_of(folder, n, length, model.config.vocab_size)
    texts = Texts(corpus, {}, np.zeros(len(corpus), np.uint16), [""], [], np.zeros(0, np.int64))
    return Setup(recipe, recipe, folder, accelerator, {}, None, texts, model.train(), optimizer, None)  # type: ignore[arg-type]


# --- measuring ---------------------------------------------------------------------------------------------------


def interval(values: Array) -> tuple[float, float]:
    """A 95 % interval for the median, or the widest that so few values give: the k-th smallest and k-th largest."""
    n, ordered = values.size, np.sort(values)
    tail, k = 0.5**n, 0
    while k + 1 < n // 2 and tail + comb(n, k + 1) * 0.5**n <= 0.025:
        k += 1
        tail += comb(n, k) * 0.5**n
    return float(ordered[k]), float(ordered[n - 1 - k])


def measure(setup: Setup, folder: Path, rounds: int) -> tuple[dict[str, Times], dict[str, Run]]:
    """All runs, in turn; the first two rounds warm up and are left out."""
    runs = {name: Run(setup, folder / name.replace(" ", "-"), options) for name, options in RUNS.items() if options}
    ready = runs["cpt"].next  # any step's micro-batches have these shapes
    names, times = list(RUNS), {name: Times() for name in RUNS}
    for i in trange(rounds + 2, desc="rounds", delay=2, disable=None, leave=False):
        at = i % len(names)
        for name in names[at:] + names[:at]:
            with times[name].measured():
                if name in runs:
                    runs[name].step()
                else:
                    plain_step(setup, ready)
    for run in runs.values():
        run.close()
    return {name: Times(t.wall[2:], t.cpu[2:]) for name, t in times.items()}, runs


def over(mine: list[float], theirs: list[float], *, spread: bool = False) -> str:
    """How much longer a run's step lasts than another's of the same round, in percent."""
    ratio = (np.array(mine) / np.array(theirs) - 1) * 100
    low, high = interval(ratio)
    told = f"{np.median(ratio):+.2f} [{low:+.2f}, {high:+.2f}]"
    return told + " ({:+.1f}, {:+.1f})".format(*np.quantile(ratio, [0.1, 0.9])) if spread else told


def rows_of(times: dict[str, Times], runs: dict[str, Run]) -> Iterator[dict[str, str]]:
    for name, mine in times.items():
        yield {
            "run": name,
            "p50 ms": f"{np.median(mine.wall) * 1e3:.1f}",
            "% over cpt (p10, p90)": "" if name == "cpt" else over(mine.wall, times["cpt"].wall, spread=True),
            "% over plain": "" if name == "plain" else over(mine.wall, times["plain"].wall),
            "% over uniform": over(mine.wall, times["uniform"].wall) if name == "srt" else "",
            "cpu: % over cpt": "" if name == "cpt" else over(mine.cpu, times["cpt"].cpu),
            "cpu: % over plain": "" if name == "plain" else over(mine.cpu, times["plain"].cpu),
            **(runs[name].thread() if name in runs else dict.fromkeys(THREAD, "")),
        }


def table(rows: list[dict[str, str]]) -> str:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    lines = ["| " + " | ".join(f"{name:>{width}}" for name, width in widths.items()) + " |"]
    lines.append("|" + "|".join("-" * (width + 1) + ":" for width in widths.values()) + "|")
    lines += ["| " + " | ".join(f"{row[name]:>{width}}" for name, width in widths.items()) + " |" for row in rows]
    return "\n".join(lines)


def block(name: str, n: int, threads: int, args: argparse.Namespace) -> None:
    asked = {key: value for key in ("batch", "length", "rounds") if (value := getattr(args, key))}
    size = replace(SIZES[name], **asked)
    torch.set_num_threads(threads)
    print(f"  {name}, {n:,} examples, {threads} threads …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as there:
        folder = Path(there)
        recipe = recipe_of(size, args.base or made(folder / "base", size), args)
        setup = setup_of(folder, recipe, size.length, n)
        times, runs = measure(setup, folder, size.rounds)
    weights = sum(p.numel() for p in setup.model.parameters()) / 1e6
    print(
        f"\n{args.base or name}: {weights:.2f} M weights, {args.tuning}, {args.dtype}, on {setup.accelerator.device}; "
        f"B = {size.batch} of {size.length} tokens; {n:,} examples; {threads} threads, {size.rounds} rounds\n"
    )
    print(table(list(rows_of(times, runs))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the tiny model, few examples, few rounds")
    parser.add_argument("--base", help="a real model, in place of those that are made")
    parser.add_argument("--size", choices=list(SIZES), help="only one block, of this size (with --base: its batch)")
    parser.add_argument("--examples", type=float, default=1e6, help="of that block, half of them old (default: 1e6)")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in that block (default: 1)")
    parser.add_argument("--batch", type=int, help="examples a step (default: the size's)")
    parser.add_argument("--length", type=int, help="tokens an example (default: the size's)")
    parser.add_argument("--rounds", type=int, help="steps of each run (default: the size's)")
    parser.add_argument("--tuning", choices=["qlora", "lora", "full"], default="lora")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    parser.add_argument("--packing", action="store_true", help="pack rows of 256 tokens (examples of one length)")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--folder", type=Path, help="where pools and states lie (default: a temporary folder)")
    args = parser.parse_args()
    if args.quick:
        args.size, args.examples, args.batch, args.rounds = "tiny", 1e4, args.batch or 32, args.rounds or 6
    versions = ", ".join(f"{module.__name__} {module.__version__}" for module in (torch, transformers, np))
    print(f"Python {platform.python_version()}, {versions}, {platform.system()} {platform.machine()}, "
          f"{os.cpu_count()} cores")  # fmt: skip
    print(PAPER, flush=True)
    only = args.size or ("small" if args.base else None)
    for name, n, threads in [(only, args.examples, args.threads)] if only else BLOCKS:
        block(name, int(n), threads, args)


if __name__ == "__main__":
    main()
