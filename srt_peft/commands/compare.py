"""`srt-peft compare`: one recipe under several schedulers."""
# ruff: noqa: PLC0415 - torch and transformers take seconds to import

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from srt_peft.commands.command import OVERRIDES, Arguments, Command, say, style, suite
from srt_peft.commands.recipes import check_is_here
from srt_peft.commands.report import ended


def _compare(args: Arguments) -> int:
    from srt_peft.training.recipe import load_recipe

    check_is_here(args.recipe)
    recipe = load_recipe(args.recipe, args.overrides)
    schedulers = [name.strip() for name in args.schedulers.split(",") if name.strip()]

    from srt_peft.evaluation import rivals, suites

    seeds = rivals.seeds_of(args.seeds, schedulers)
    asked = suites.parse(args.suite or recipe.evaluation.suites or ["perplexity"])
    suites.check(asked)
    folder = Path(args.output or f"{recipe.output}-compared")
    found = rivals.contest(
        recipe, entries=schedulers, seeds=seeds, asked=asked, folder=folder, say=partial(say, file=sys.stderr)
    )
    return ended(folder, rivals.told(found, args.format), failed=bool(found.failed))


COMMAND = Command(
    _compare,
    "train one recipe under several schedulers and seeds, at equal steps, and say what each kept and learned",
    "srt-peft compare weekly.yaml --suite qa=questions.jsonl\n"
    "  srt-peft compare weekly.yaml --schedulers cpt,uniform,uniform-epoch,srt,match --seeds 5 training.steps=200",
    (
        ("recipe", {"metavar": "RECIPE", "help": "a YAML file; scheduler, seed and output are each run's own"}),
        OVERRIDES,
        (
            "--schedulers",
            {
                "metavar": "A,B",
                "default": "cpt,uniform-epoch,srt",
                "help": "of cpt, uniform, uniform-epoch, ppl, leitner, paper, auto, auto-quiz, srt, and match (a "
                "schedule's counts of old and new, but no schedule); cpt,uniform-epoch,srt unless given",
            },
        ),
        (
            "--seeds",
            {"metavar": "N|A,B", "default": "3", "help": "how many (3 unless given), or which: 0,1,2; one: 7,"},
        ),
        suite("as in `srt-peft eval`; those of the recipe unless given, else perplexity"),
        ("--output", {"metavar": "DIR", "help": "where all runs lie; unless given, the recipe's output-compared"}),
        style("tables"),
    ),
)
