"""`srt-peft forget` and `srt-peft audit`: examples vanish, and a run is held against what was forgotten."""
# ruff: noqa: PLC0415 - NumPy, torch and the readers are needed by these commands alone

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from srt_peft.commands.command import FAILED, Arguments, Command, say
from srt_peft.errors import OptionError

FEW = 8


def _forget(args: Arguments) -> int:
    from srt_peft.lifecycle import choosing
    from srt_peft.lifecycle.forget import forget

    ways = {
        "ids": lambda given: choosing.by_ids(Path(given)),
        "match": choosing.by_match,
        "source": choosing.by_source,
        "before": choosing.by_date,
    }
    given = {name: getattr(args, name) for name in ways if getattr(args, name) is not None}
    if len(given) > 1:
        raise OptionError(choosing.WHAT, [f"{' and '.join(f'--{name}' for name in given)}: expected one of them"])
    choose = next((ways[name](value) for name, value in given.items()), None)
    refused = False

    def agreed(plans: list[dict[str, Any]]) -> bool:
        nonlocal refused
        for plan in plans:
            say("\n".join(_told(plan["report"])))
        if args.dry_run:
            say("\nNothing was changed: --dry-run.")
            return False
        refused = not (args.yes or _asked())
        return not refused

    receipts = forget(list(dict.fromkeys(map(Path, args.runs))), choose, agreed=agreed)
    if refused:
        say("Nothing was forgotten. --yes does it without a question.", file=sys.stderr)
        return FAILED
    for run, receipt in receipts:
        say("\n".join(_done(run, receipt)))
    if not receipts and not args.dry_run:
        say("There is nothing to forget.")
    return 0


def _asked() -> bool:
    return sys.stdin.isatty() and input("Forget them, for good? [y/N] ").strip().lower() in ("y", "yes")


def _told(report: dict[str, Any]) -> Iterator[str]:
    """What is to be forgotten, and what cannot be."""
    yield f"{report['run']}: {report['examples']:,} examples of {report['tokens']:,} tokens are to be forgotten."
    for name, pool in report["pools"].items():
        sources = ", ".join(f"{source} {count:,}" for source, count in pool["sources"].items())
        if pool["trained"] or pool["held_out"]:
            yield f"  {name}: {pool['trained']:,} to train on, {pool['held_out']:,} held out ({sources})"
    if report["let_go"]:
        yield f"  {report['let_go']:,} that were let go, and known by their hashes only"
    yield from _left(report)


def _left(report: dict[str, Any]) -> Iterator[str]:
    """What forgetting does not reach."""
    if report["adapters"]:
        yield "Weights cannot be wound back. These were trained on some of them:"
    for one in report["adapters"]:
        steps = ", ".join(map(str, one["steps"][:FEW])) + (" …" if len(one["steps"]) > FEW else "")
        yield f"  {one['path']}: {one['reviews']:,} reviews of {one['examples']:,} examples, at steps {steps}"
    if report["shared"]:
        yield "Other runs hold some of them. Have them forget, too:"
        yield from (f"  srt-peft forget {shlex.quote(run)}" for run in report["shared"])
    if report["sources"]:
        yield "The sources are yours, and are not changed. Take the text out of them, too:"
        yield from (f"  {path}" for path in report["sources"])


def _done(run: Path, receipt: dict[str, Any]) -> Iterator[str]:
    yield f"\n{run}: {receipt['examples']:,} examples are forgotten. The receipt lies in {run}/forgotten."
    yield f"Hold the run against it:  srt-peft audit {shlex.quote(str(run))}"
    yield from (f"Have it forget, too:  srt-peft forget {shlex.quote(other)}" for other in receipt["shared"])


def _audit(args: Arguments) -> int:
    from srt_peft.lifecycle.audit import audit

    found = audit(Path(args.run))
    whole = not any(check.fault for check in found)
    if args.json:
        checks = [{"what": check.what, "whole": not check.fault, "fault": check.fault} for check in found]
        say(json.dumps({"run": args.run, "whole": whole, "checks": checks}, indent=1, ensure_ascii=False))
    else:
        width = max(len(check.what) for check in found)
        say("\n".join(f"{check.what:{width}}  {check.fault or 'as it must be'}" for check in found))
        say(f"{args.run}: " + ("nothing that was forgotten is there." if whole else "not all is as it must be."))
    return 0 if whole else FAILED


FORGET = Command(
    _forget,
    "forget examples: they vanish from texts, states, logs, caches and checkpoints, and do not come back",
    "srt-peft forget runs/this-week --ids withdrawn.txt --dry-run\n"
    "  srt-peft forget runs/this-week --match 'jane@example\\.org' --yes\n"
    "  srt-peft forget runs/this-week        what was interrupted, or forgotten in other runs",
    (
        ("runs", {"metavar": "RUN", "nargs": "+", "help": "the folders of runs that are at rest"}),
        ("--ids", {"metavar": "FILE", "help": "a line each: a document's name, an example's identity or its number"}),
        ("--match", {"metavar": "REGEX", "help": "examples whose text has a match"}),
        ("--source", {"metavar": "NAME", "help": "all examples of a source"}),
        ("--before", {"metavar": "DATE", "help": "documents from before a date, which data.date_column tells"}),
        ("--dry-run", {"action": "store_true", "help": "tell what would be forgotten, and change nothing"}),
        ("--yes", {"action": "store_true", "help": "forget without a question"}),
    ),
)
AUDIT = Command(
    _audit,
    "hold a run against the receipts of what it has forgotten; exit code 1 if anything of it is there",
    "srt-peft audit runs/this-week",
    (
        ("run", {"metavar": "RUN", "help": "the folder of a run"}),
        ("--json", {"action": "store_true", "help": "the same as JSON"}),
    ),
)
