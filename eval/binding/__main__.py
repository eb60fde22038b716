r"""Does scheduling bind? CPT, both uniforms, match, paper, auto and auto-quiz, with and without what is superseded.

    python -m eval.binding world                              the demo's world of facts, accuracy
    python -m eval.binding factbook --data FOLDER             real text with a pretrained base of 260 k parameters, NLL
    python -m eval.binding wikipedia --data FOLDER
    python -m eval.binding variants                           the demo's world: cheaper quizzes, clusters, static decks

Interrupted, the same command goes on. README.md says what FOLDER has to hold.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from srt_peft.errors import OptionError, SRTError
from srt_peft.evaluation.entries import seeds_of

ENTRIES = ("cpt", "uniform", "uniform-epoch", "match", "paper", "auto", "auto-quiz")
STEPS, TAUGHT = 120, 300
SETTINGS = ("world", "factbook", "wikipedia", "variants")
VARIANTS = {
    "quiz: 4": ("review.retention=high",),
    "quiz: 2": ("review.old.quiz=2",),
    "quiz: 4, every 2nd step": ("review.retention=high", "review.old.quiz_every=2"),
    "quiz: 4, every 4th step": ("review.retention=high", "review.old.quiz_every=4"),
    "quiz: 4, first 4 tokens": ("review.retention=high", "review.old.quiz_tokens=4"),
    "quiz: 4, no decks": ("review.retention=high", "review.decks=off"),
    "decks: auto": (),
    "decks: auto, 30 references a deck": ("review.reference_sample=30",),
    "decks: sqrt": ("review.decks=sqrt",),
    "decks: equal": ("review.decks=equal",),
    "decks: off": ("review.decks=off",),
    "decks: auto, of 4 clusters": ("data.source_column=null", "data.clusters=4"),
    "uniform-epoch": ("review.scheduler=uniform", "review.order=epoch"),
}
"""What is changed in the demo's recipe, row by row."""
UNITS = {"accuracy": ("points", 100.0), "nll": ("thousandths of a nat a token", 1000.0)}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.binding", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="copies of the texts, and the base")
    parser.add_argument("--seeds", default="3", metavar="N", help="how many trainings of each, or which: 0,5")
    parser.add_argument("--steps", type=int, default=STEPS, help="of an update on real text (default %(default)s)")
    parser.add_argument("--taught", type=int, default=TAUGHT, help="of the base on old text (default %(default)s)")
    parser.add_argument("--output", default="runs/binding", metavar="DIR", help="where all runs lie")
    given = parser.parse_args(arguments)
    if given.setting in ("factbook", "wikipedia") and given.data is None:
        raise OptionError("eval.binding", [f"{given.setting}: expected --data FOLDER with the texts"])
    return given


def measured(given: argparse.Namespace) -> Iterator[str]:
    """The tables of a setting, one with what is superseded set aside and one without."""
    say = partial(print, file=sys.stderr, flush=True)
    seeds = seeds_of(given.seeds)
    yield f"`python -m eval.binding {given.setting}`, {len(seeds)} seeds, {_machine()}\n"
    if given.setting == "variants":
        yield from _variants(given, seeds, say)
        return
    for honoured, which in _SUPERSEDED[given.setting].items():
        yield f"### {given.setting}: {which}\n"
        yield from _table(_contest(given, seeds, say, honoured=honoured))


_ASIDE = {True: "superseded texts set aside", False: "superseded texts replayed like all others"}
_SUPERSEDED = {"world": _ASIDE, "factbook": _ASIDE, "wikipedia": {False: "nothing superseded"}}


def _contest(given: argparse.Namespace, seeds: Sequence[int], say: Any, *, honoured: bool) -> Any:
    from srt_peft.demo import demo  # noqa: PLC0415 - torch takes seconds
    from srt_peft.evaluation import rivals, suites  # noqa: PLC0415 - torch takes seconds

    folder = Path(given.output) / f"{given.setting}-{'aside' if honoured else 'kept'}"
    if given.setting == "world":
        return demo.demo(
            folder, tuning="lora", entries=ENTRIES, seeds=seeds, scale=demo.FULL, say=say, supersedes=honoured
        )
    recipe = _recipe(given, folder, honoured=honoured)
    asked = suites.parse(["perplexity"])
    return rivals.contest(recipe, entries=ENTRIES, seeds=seeds, asked=asked, folder=folder, say=say)


def _recipe(given: argparse.Namespace, folder: Path, *, honoured: bool) -> Any:
    """An update of the pretrained base by LoRA; its texts are written first, beside the runs."""
    from eval.binding import texts  # noqa: PLC0415 - NumPy
    from srt_peft.training.base import load_tokenizer  # noqa: PLC0415 - transformers takes seconds
    from srt_peft.training.recipe import load_recipe  # noqa: PLC0415 - torch takes seconds

    texts.check(given.data, given.setting)
    pretrained = str(given.data / texts.BASE)
    tokenizer = load_tokenizer(pretrained, None)
    place = Path(given.output) / f"{given.setting}-texts"
    texts.write(given.data, given.setting, lambda text: len(tokenizer(text)["input_ids"]), place)
    base = _base(pretrained, place / "old.jsonl", Path(given.output) / f"{given.setting}-base", given.taught)
    return load_recipe({
        "model": {
            "base": base, "tuning": "lora", "lora": {"r": 16, "alpha": 32}, "dtype": "float32",
            "gradient_checkpointing": False,
        },
        "data": {
            "old": str(place / "old.jsonl"), "new": str(place / "new.jsonl"), "source_column": "source",
            "max_length": texts.LENGTH, "holdout": texts.HOLDOUT, "supersedes": "supersedes" if honoured else None,
        },
        "review": {"old_fraction": 0.2},
        "training": {
            "steps": given.steps, "batch_size": 20, "micro_batch_tokens": 4096, "learning_rate": 3e-3,
            "warmup_steps": min(20, given.steps),
        },
        "checkpoints": {"every": given.steps, "keep": 1},
        "output": str(folder / "run"),
    })  # fmt: skip


def _base(pretrained: str, old: Path, output: Path, steps: int) -> str:
    """The pretrained model once it has learned all old sources: what it never knew it could not lose."""
    from eval.binding import texts  # noqa: PLC0415 - NumPy
    from srt_peft.training import checkpoint  # noqa: PLC0415 - torch takes seconds
    from srt_peft.training.loop import train  # noqa: PLC0415 - torch takes seconds
    from srt_peft.training.recipe import load_recipe  # noqa: PLC0415 - torch takes seconds

    recipe = load_recipe({
        "model": {"base": pretrained, "tuning": "full", "dtype": "float32", "gradient_checkpointing": False},
        "data": {"old": None, "new": str(old), "max_length": texts.LENGTH, "holdout": texts.HOLDOUT},
        "review": {"scheduler": "uniform", "order": "epoch"},
        "training": {
            "steps": steps, "batch_size": 40, "micro_batch_tokens": 4096, "learning_rate": 2e-3,
            "warmup_steps": min(20, steps),
        },
        "checkpoints": {"every": steps, "keep": 1},
        "output": str(output),
    })  # fmt: skip
    newest, faults = checkpoint.newest(output)
    with contextlib.redirect_stdout(sys.stderr):
        if train(recipe, resume=bool(newest or faults)):
            raise KeyboardInterrupt
    newest, _ = checkpoint.newest(output)
    return str(newest)


def _variants(given: argparse.Namespace, seeds: Sequence[int], say: Any) -> Iterator[str]:
    """One table, a row a variant of the demo's recipe; each is a contest of one."""
    from srt_peft.demo import base, demo, world  # noqa: PLC0415 - torch takes seconds
    from srt_peft.evaluation import rivals, suites  # noqa: PLC0415 - torch takes seconds
    from srt_peft.training.recipe import load_recipe  # noqa: PLC0415 - torch takes seconds

    made = base.made(world.make(0, demo.FULL.sizes), demo.FULL.shape, say)
    asked = suites.parse([f"qa-text={made / 'world' / 'questions.jsonl'}"])
    plain = demo.recipe_of(made, "lora", demo.FULL).as_dict()
    for number, (name, overrides) in enumerate(VARIANTS.items()):
        folder = Path(given.output) / f"variant-{number}"
        recipe = load_recipe(plain, overrides)
        entry = "uniform-epoch" if name == "uniform-epoch" else "srt"
        found = rivals.contest(recipe, entries=[entry], seeds=seeds, asked=asked, folder=folder, say=say)
        lines = list(_table(found))
        head = 1 + next(i for i, line in enumerate(lines) if line.startswith("| ---"))
        yield from lines[:head] if number == 0 else ()
        yield lines[head].replace(f"`{entry}`", name, 1)


# --- the table ------------------------------------------------------------------------------------------------------


def _table(contest: Any) -> Iterator[str]:
    """A row an entry: what old has lost (mean of sources, worst source, all texts), what new has gained, the cost."""
    comparison, sources = contest.results[0].comparison, contest.sources[0]
    unit, factor = UNITS[comparison.metric]
    effects = {standing.label: standing.effects for standing in comparison.standings}
    sizes = ", ".join(f"{name} {count}" for name, count in sources.questions.items())
    yield f"In {unit}, ± the deviation between seeds. Old is what was lost: lower is better. Asked of old: {sizes}.\n"
    yield "| | old: mean of sources | worst source | all of old | new: gained | old share | forward only |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in sources.rows:
        worst, cost = row.sources[row.worst], contest.compute[row.label]
        share = contest.exposure[row.label]["realised_old_share"]["mean"] or 0.0
        beside = (cost["forward_only_tokens"]["mean"] or 0.0) / max(cost["tokens_trained"]["mean"] or 0.0, 1.0)
        old, new = (effects[row.label][split].difference for split in ("old", "new"))
        cells = [
            _told(row.mean["mean"], row.mean["sd"], factor),
            f"{_told(worst['mean'], worst['sd'], factor)} {row.worst}",
            _told(old.mean, old.between, factor),
            _told(new.mean, new.between, factor),
            f"{100 * share:.0f} %",
            f"{100 * beside:.0f} %" if beside else "none",
        ]
        yield f"| `{row.label}` | {' | '.join(cells)} |"
    yield ""
    yield from (f"- {sentence}" for sentence in contest.sentences)
    yield ""


def _told(mean: float | None, sd: float | None, factor: float) -> str:
    told = f"{factor * (mean or 0.0):.1f}".replace("-", "−")
    return told if sd is None else f"{told} ± {factor * sd:.1f}"


def _machine() -> str:
    names = ("srt-peft", "torch", "transformers", "peft")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"{datetime.now(tz=UTC):%Y-%m-%d}, CPU ({platform.machine()}), Python {platform.python_version()}, {versions}"
    )


def main(arguments: Sequence[str]) -> int:
    """Print the tables of one setting."""
    import torch  # noqa: PLC0415 - takes seconds

    torch.set_num_threads(1)  # a second one waits more than it helps, for so small a model
    try:
        for line in measured(parsed(arguments)):
            print(line, flush=True)
    except SRTError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, OptionError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
