"""The demo's base: a Llama of half a million parameters, a word a token, that has read nothing but the old snapshot.

It is an update like any other, of a blank model by full training on old texts alone: the loop, the checkpoint and the
progress bar are those of `srt-peft train`. As it comes, 500 steps of 64 take well under a minute on two cores, after
which it answers 97 % or more of the old questions, in wordings that no text has.

Lessons can be taught beside the old texts: what no pool of an update has, so that losing it shows.

It is kept under ${SRT_PEFT_HOME:-~/.cache/srt-peft}/demo, by all that it is made of; a second demo begins at once, and
one that was interrupted goes on.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from srt_peft.data.ingest import home
from srt_peft.demo.world import World, files_of, vocabulary, write
from srt_peft.errors import LockedError
from srt_peft.review.files import sync
from srt_peft.training import checkpoint
from srt_peft.training.recipe import load_recipe

VERSION = 1
UNKNOWN, END = "<unk>", "<end>"
MAX_LENGTH = 64
HOLDOUT = 0.02
"""Of both snapshots' texts, for base and updates alike, so that a run's page can show how perplexity goes."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large the base is, and how long it learns."""

    width: int = 128
    layers: int = 2
    heads: int = 4
    hidden: int = 384
    steps: int = 500
    batch: int = 64
    learning_rate: float = 3e-3


@dataclass(frozen=True)
class Lessons:
    """What a base is taught beside the old texts, and how long a text may be. "<unk>" in a text is a word unknown."""

    texts: tuple[str, ...] = ()
    length: int = MAX_LENGTH


def made(world: World, shape: Shape, say: Callable[[str], None], lessons: Lessons = Lessons()) -> Path:
    """The folder with the world's files and `base`, which knows its old texts; what is there already is not made."""
    words = [UNKNOWN, END, *vocabulary(text.replace(UNKNOWN, " ") for text in lessons.texts)]
    settings = [VERSION, asdict(shape), words, lessons.length, HOLDOUT, files_of(world), *lessons.texts]
    told = json.dumps(settings).encode()
    folder = home() / "demo" / blake2b(told, digest_size=8).hexdigest()
    ready = folder / "base"
    if ready.is_dir():
        say(f"World and base are there already, in {folder}.")
        return folder
    say(f"The world lies in {folder}. A base learns its old texts from nothing, in {shape.steps} steps:")
    _whole(folder / "world", lambda staged: write(world, staged))
    _whole(folder / "blank", lambda staged: _blank(staged, words, shape, lessons))
    _learn(folder, shape, lessons, say)
    newest, _ = checkpoint.newest(folder / "run")
    assert newest is not None, "a run that is finished has a checkpoint"
    files = [path for path in newest.iterdir() if path.suffix in {".json", ".safetensors"}]
    _whole(ready, lambda staged: _copied(staged, [path for path in files if path.name != checkpoint.MANIFEST]))
    for used in ("run", "blank"):
        shutil.rmtree(folder / used)
    return folder


def _whole(folder: Path, write: Callable[[Path], None]) -> None:
    """A folder that is whole if it is there: staged, and renamed."""
    if folder.is_dir():
        return
    for left in folder.parent.glob(f".{folder.name}-*"):  # by a kill in the middle of it
        if not _lives(left.name.rpartition("-")[2]):
            shutil.rmtree(left, ignore_errors=True)
    staged = folder.with_name(f".{folder.name}-{os.getpid()}")
    staged.mkdir(parents=True)
    try:
        write(staged)
        sync(staged)
        with contextlib.suppress(OSError):  # another process was first, with the same bytes
            staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _lives(process: str) -> bool:
    """Whether another process of this number is there."""
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return int(process) != os.getpid()


def _copied(folder: Path, files: Sequence[Path]) -> None:
    for path in files:
        shutil.copy(path, folder)


def _blank(folder: Path, words: Sequence[str], shape: Shape, lessons: Lessons) -> None:
    """A model that knows nothing, and its tokenizer."""
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - takes seconds

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=shape.width, intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        max_position_embeddings=lessons.length, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=words.index(END), pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer_of(words, tidy=bool(lessons.texts)).save_pretrained(folder)


def tokenizer_of(words: Sequence[str], *, tidy: bool = False) -> Any:
    """A token for each word, and for each mark between words; what is written may be tidied: "True." for "True ."."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - takes seconds
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes seconds

    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    fast: Any = PreTrainedTokenizerFast
    tidying = {"clean_up_tokenization_spaces": True} if tidy else {}
    return fast(tokenizer_object=inner, unk_token=UNKNOWN, eos_token=END, pad_token=END, **tidying)


def _learn(folder: Path, shape: Shape, lessons: Lessons, say: Callable[[str], None]) -> None:
    """Full training on the old texts, and on lessons if there are any, from the blank model on."""
    from srt_peft.training.loop import train  # noqa: PLC0415 - takes seconds

    sources = [str(folder / "world" / "old.jsonl")]
    if lessons.texts:
        sources.append(str(folder / "lessons.jsonl"))
        content = "".join(json.dumps({"text": text}) + "\n" for text in lessons.texts)
        Path(sources[-1]).write_text(content, encoding="utf-8")
    recipe = load_recipe({
        "model": {"base": str(folder / "blank"), "tuning": "full", "dtype": "float32", "gradient_checkpointing": False},
        "data": {"old": None, "new": sources, "max_length": lessons.length, "holdout": HOLDOUT},
        "review": {"scheduler": "uniform", "order": "epoch"},
        "training": {
            "steps": shape.steps, "batch_size": shape.batch, "micro_batch_tokens": 4096,
            "learning_rate": shape.learning_rate, "warmup_steps": 20,
        },
        "checkpoints": {"every": 250, "keep": 1},
        "output": str(folder / "run"),
    })  # fmt: skip
    newest, faults = checkpoint.newest(folder / "run")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # how a run is loaded, or gone on with by itself
            train(recipe, resume=bool(newest or faults), interrupts=True, terse=True)
    except KeyboardInterrupt:
        say(f"\nInterrupted. What the base has learned is kept in {folder}: the same command goes on from there.")
        raise
    except LockedError:
        raise LockedError(
            f"Another demo is teaching its base at this moment, the one in {folder} that this demo would use as well. "
            "Wait until it says that the base is asked; then the same command begins with that base."
        ) from None
