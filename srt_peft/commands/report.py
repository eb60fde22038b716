"""`srt-peft report`: the page of a run, or of a comparison."""
# ruff: noqa: PLC0415 - NumPy and plotly are needed for pictures alone

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from srt_peft.commands.command import FAILED, Arguments, Command, in_words, say
from srt_peft.errors import OptionError


def _report(args: Arguments) -> None:
    from srt_peft.report.page import write

    if args.out is not None and len(args.runs) > 1:
        fault = (
            f"--out = {args.out}: expected one RUN with it, as each has a page of its own; {len(args.runs)} are given"
        )
        raise OptionError("report", [fault])
    for folder in args.runs:
        page = write(folder, text=not args.no_text, out=args.out)
        say(f"{page} ({page.stat().st_size / 1e6:.1f} MB) opens in any browser, offline.")


def draw(folder: Path) -> None:
    """The page of what has just ended. That is safe on the disk, whatever becomes of its picture."""
    from srt_peft.report.page import available, write

    again = f"`srt-peft report {shlex.quote(str(folder))}`"
    if not available():
        say(f"For a page with pictures: pip install 'srt-peft[report]', then {again}.", file=sys.stderr)
        return
    try:
        say(f"Pictures: {write(folder)}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - see above
        say(f"The page with pictures was not written; {again} tries again. {in_words(error)}", file=sys.stderr)


def ended(folder: Path, told: str, *, failed: bool) -> int:
    """What a comparison says at its end, and the exit code: not 0 where one of its runs came to nothing."""
    say(told, end="")
    say(f"\nAll of it lies in {folder}: contest.json, table.md, and each run.", file=sys.stderr)
    draw(folder)
    return FAILED if failed else 0


COMMAND = Command(
    _report,
    "draw what became of a run, or of a comparison, on one page that opens offline: RUN/report.html",
    "srt-peft report runs/this-week\n  srt-peft report runs/this-week --no-text --out this-week.html",
    (
        ("runs", {"metavar": "RUN", "nargs": "+", "help": "a run's folder, or a comparison's"}),
        ("--no-text", {"action": "store_true", "help": "leave the texts of the hardest examples out"}),
        ("--out", {"metavar": "FILE", "help": "where the page goes, with one RUN"}),
    ),
)
