"""`srt-peft next`: the update after this one."""
# ruff: noqa: PLC0415 - torch and transformers take seconds to import

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from srt_peft.commands.command import OVERRIDES, Arguments, Command, say
from srt_peft.commands.merge import told
from srt_peft.commands.train import carried_out, check_suites
from srt_peft.errors import OptionError

if TYPE_CHECKING:
    from srt_peft.lifecycle.past import Made


def _next(args: Arguments) -> int | None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        fault = (
            "several processes were launched: expected one. Give --prepare, and launch `srt-peft train` on the result"
        )
        raise OptionError("next", [fault])

    out, notes = None if args.out is None else Path(args.out), list[str]()
    if args.run.startswith("hub:"):
        from srt_peft.lifecycle import from_hub

        found = from_hub.follow(args.run, args.new, out=out, old=args.old, overrides=args.overrides)
        recipe, made, notes = found.recipe, found.made, list(found.notes)
    else:
        from srt_peft.lifecycle.following import follow

        recipe, made = follow(Path(args.run), args.new, out=out, old=args.old, overrides=args.overrides, merge=_merged)
    check_suites(recipe)
    say("\n".join([*_told(made), *notes]), file=sys.stderr)
    if args.prepare:
        say(f"{recipe.output} is ready. Train it with:  srt-peft train {shlex.quote(f'{recipe.output}/recipe.yaml')}")
        return None
    return carried_out(recipe)


def _merged(checkpoint: Path, out: Path) -> None:
    from srt_peft.evaluation.perplexity import score
    from srt_peft.lifecycle.merge import Merged, merge
    from srt_peft.lifecycle.which import checkpoint_of

    def keep(merged: Merged) -> bool:
        say(told(merged), file=sys.stderr)
        return True

    merge(checkpoint_of(checkpoint, "next"), score=score, keep=keep, out=out, dtype=None)


def _told(made: Made) -> list[str]:
    begins = f"Update {made.updates + 1} begins at step {made.step:,}"
    lines = [f"{begins}: {made.kept:,} examples of the updates before are old now, each with its review state."]
    if made.let_go:
        lines.append(f"{made.let_go:,} more are let go, as next.keep says; they are not new when they return.")
    if made.fresh:
        lines.append(f"{made.fresh:,} old examples are here for the first time.")
    if made.lost:
        lines.append(f"{made.lost:,} examples of the review state are in none of the texts, and left out.")
    return lines


COMMAND = Command(
    _next,
    "go on from a finished update: its text becomes old, with its review state, and new text is learned",
    "srt-peft next runs/week-1 --new this_week.jsonl --out runs/week-2\n"
    "  srt-peft next runs/week-2 --new notes/ next.adapter=merge next.keep=50000 training.learning_rate=5e-5\n"
    "  srt-peft next runs/week-3 --new this_week.jsonl --prepare && srt-peft plan runs/week-4/recipe.yaml\n"
    "  srt-peft next hub:me/my-adapter --old last_week.jsonl --new this_week.jsonl model.base=models/my-base",
    (
        ("run", {"metavar": "RUN", "help": "the folder of the finished update; or hub:REPO, pushed"}),
        OVERRIDES,
        (
            "--new",
            {"metavar": "PATH", "action": "append", "required": True, "help": "the new text; may be given again. "
             "What was seen before, wherever it stands there, keeps its state and is not new"},
        ),
        ("--out", {"metavar": "RUN2", "help": "the next run's folder; RUN's name with the next number if left out"}),
        (
            "--old",
            {"metavar": "PATH", "action": "append", "default": [], "help": "more old text, with "
             "hub:REPO all of it; may be given again"},
        ),
        ("--prepare", {"action": "store_true", "help": "write the folder, and do not train yet"}),
    ),
)  # fmt: skip
