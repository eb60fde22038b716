"""`srt-peft plan`: does scheduling bind here? Said before anything is trained."""
# ruff: noqa: PLC0415 - what is slow to import is imported where it is needed

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from srt_peft.commands.command import OVERRIDES, Arguments, Command, say
from srt_peft.commands.recipes import check_is_here


def _plan(args: Arguments) -> None:
    from srt_peft.training.recipe import load_recipe

    check_is_here(args.recipe)
    asked = load_recipe(args.recipe, args.overrides)

    from srt_peft.training import binding, preset, rehearsal, texts
    from srt_peft.training.base import check_base, load_tokenizer
    from srt_peft.training.schedule import warmup_note

    texts.check_there(asked)
    check_base(asked.model.base, asked.model.revision, None, asked.data.max_length)
    found = texts.read(asked, load_tokenizer(asked.model.base, asked.model.revision))
    recipe = preset.resolve(asked, found.sources)
    past = None if found.past is None else found.past.state(found.decks)
    figures = rehearsal.rehearse(recipe, rehearsal.pools_of(recipe, found), past=past, bar=sys.stderr.isatty())
    notes = [*texts.notes(recipe, found), *preset.told(asked, recipe)]
    told = [*binding.said(figures), *filter(None, [warmup_note(recipe, figures.steps)])]
    if args.format == "json":
        review = recipe.as_dict()["review"]
        say(json.dumps({"review": review, "figures": asdict(figures), "notes": notes, "said": told}, indent=1))
        return
    say("\n".join(notes))
    say(f"\n{figures.steps:,} steps of {recipe.training.batch_size:,} examples:")
    say("\n".join(f"  {line}" for line in binding.shown(figures)))
    say("\nDoes scheduling bind?")
    say("\n".join(f"  {line}" for line in told))


COMMAND = Command(
    _plan,
    "say before an update what its schedule comes to: visits, backlog, decks, what a quiz costs, what to change",
    "srt-peft plan weekly.yaml\n  srt-peft plan weekly.yaml review.retention=high training.steps=200 --format json",
    (
        ("recipe", {"metavar": "RECIPE", "help": "a YAML file, as for `srt-peft train`; nothing is trained or scored"}),
        OVERRIDES,
        ("--format", {"choices": ("text", "json"), "default": "text", "help": "text, or json for programs"}),
    ),
)
