"""`srt-peft demo`: forgetting, replay and scheduling, in three minutes."""
# ruff: noqa: PLC0415 - torch and transformers take seconds to import

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from srt_peft.commands.command import Arguments, Command, say, style
from srt_peft.commands.report import ended


def _demo(args: Arguments) -> int:
    from srt_peft.evaluation.entries import ENTRIES, seeds_of

    seeds = seeds_of(args.seeds or ("1" if args.quick else "3"), tuple(ENTRIES))

    from srt_peft.demo import demo

    scale = demo.QUICK if args.quick else demo.FULL
    honoured = args.supersedes == "honoured"
    suffix = ("-quick" if args.quick else "") + ("" if honoured else "-supersedes-ignored")
    folder = Path(args.output or f"runs/demo-{args.tuning}{suffix}")
    found = demo.demo(
        folder,
        tuning=args.tuning,
        entries=tuple(ENTRIES) if args.all else demo.ENTRIES,
        seeds=seeds,
        scale=scale,
        say=partial(say, file=sys.stderr),
        supersedes=honoured,
    )
    return ended(folder, demo.told(found, args.format), failed=bool(found.failed))


COMMAND = Command(
    _demo,
    "see it: a small base forgets a world of facts while it learns another, with and without replay; 3 minutes",
    "srt-peft demo\n  srt-peft demo --all --seeds 5 --output runs/demo-lora\n  srt-peft demo --tuning full",
    (
        ("--all", {"action": "store_true", "help": "every scheduler, and not only five of them"}),
        ("--seeds", {"metavar": "N", "help": "how many trainings of each, 3 unless given, or which: 0,5"}),
        ("--tuning", {"choices": ("lora", "full", "qlora"), "default": "lora", "help": "what an update trains"}),
        (
            "--supersedes",
            {
                "choices": ("honoured", "ignored"),
                "default": "honoured",
                "help": "old texts that new ones contradict are set aside (unless given), or replayed like all others",
            },
        ),
        ("--output", {"metavar": "DIR", "help": "where all runs lie; unless given, runs/demo-TUNING"}),
        style("table"),
        ("--quick", {"action": "store_true", "help": "a minute, and less to see: a smaller world, one seed"}),
    ),
)
