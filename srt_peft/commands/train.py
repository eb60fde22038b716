"""`srt-peft train`: an update, from a recipe."""
# ruff: noqa: PLC0415 - torch and transformers take seconds to import

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from srt_peft.commands.command import OVERRIDES, Arguments, Command
from srt_peft.commands.recipes import check_is_here
from srt_peft.commands.report import draw
from srt_peft.errors import OptionError

if TYPE_CHECKING:
    from srt_peft.training.recipe import Recipe


def _train(args: Arguments) -> int | None:
    from srt_peft.training.recipe import load_recipe

    check_is_here(args.recipe)
    own: list[str] = []
    if args.resume and args.output is None and not any(word.startswith("output=") for word in args.overrides):
        args.output = _own_folder(Path(args.recipe))
        own = _history_of(args.output)
    output = [] if args.output is None else [f"output={_quoted(args.output)}"]
    try:
        recipe = load_recipe(args.recipe, [*own, *args.overrides, *output])
        check_suites(recipe)
    except OptionError as error:
        if int(os.environ.get("RANK", "0")) == 0:
            raise
        time.sleep(2)  # of the processes that a launcher began, the first tells; the launcher ends all when one ends
        return error.exit_code
    return carried_out(recipe, resume=args.resume, allow_changes=args.allow_changes)


def check_suites(recipe: Recipe) -> None:
    """Refuse suites that cannot be asked, before anything is trained."""
    from srt_peft.evaluation import suites

    suites.check(suites.parse(recipe.evaluation.suites))


def carried_out(recipe: Recipe, *, resume: bool = False, allow_changes: bool = False) -> int | None:
    """Train, and draw what became of it."""
    from srt_peft.evaluation import suites
    from srt_peft.training.loop import train

    asked = suites.parse(recipe.evaluation.suites)
    evaluate = partial(suites.in_training, asked) if asked else None
    code: int | None = train(recipe, resume=resume, allow_changes=allow_changes, evaluate=evaluate)
    if not code and (Path(recipe.output) / "metrics.jsonl").exists() and int(os.environ.get("RANK", "0")) == 0:
        draw(Path(recipe.output))
    return code


def _own_folder(recipe: Path) -> str | None:
    """The run whose resolved recipe this is: it may have been moved since."""
    whole = recipe.name == "recipe.yaml" and any(recipe.parent.glob("checkpoints/step-*/MANIFEST.json"))
    return str(recipe.parent) if whole else None


def _history_of(run: str | None) -> list[str]:
    """What earlier updates left to a run, where it lies in its folder, wherever that was moved to: as an override."""
    place = None if run is None else Path(run) / "history"
    return [f"data.old={_quoted(str(place))}"] if place is not None and place.is_dir() else []


def _quoted(text: str) -> str:
    return f"'{text.replace(chr(39), 2 * chr(39))}'"


COMMAND = Command(
    _train,
    "update an adapter: the scheduler chooses every batch, and each checkpoint holds adapter and review state",
    "srt-peft train weekly.yaml training.steps=50 data.new=this_week.jsonl\n"
    "  srt-peft train weekly.yaml --resume\n"
    "  accelerate launch --config_file ddp.yaml -m srt_peft train weekly.yaml",
    (
        ("recipe", {"metavar": "RECIPE", "help": "a YAML file; `srt-peft recipes copy NAME` gives one to edit"}),
        OVERRIDES,
        ("--resume", {"action": "store_true", "help": "go on from the newest whole checkpoint in the output"}),
        (
            "--allow-changes",
            {"action": "store_true", "help": "resume with other settings or texts than the run was begun with"},
        ),
        ("--output", {"metavar": "DIR", "help": "the run's folder; the same as output=DIR"}),
    ),
)
