"""`srt-peft corpus review`: a local page to accept, edit or reject questions, and the file of those that were kept."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path

from srt_peft.commands.command import FAILED, Arguments, Command, path_of, say
from srt_peft.errors import OptionError


def _review(args: Arguments) -> int:
    questions = path_of(args.questions)
    return _serve(questions, args.port) if args.export is None else _export(questions, path_of(args.export))


def _serve(questions: Path, port: int) -> int:
    from srt_peft.corpora.qa.decisions import Decisions, counts  # noqa: PLC0415
    from srt_peft.corpora.qa.page import Page  # noqa: PLC0415

    decisions = Decisions(questions, writing=True)
    try:
        with Page(decisions, port) as page:
            say(f"Open {page.url}", flush=True)
            say(f"Decisions go to {decisions.path}, each at once. Ctrl-C ends the page.", file=sys.stderr)
            with suppress(KeyboardInterrupt):  # the way to end it
                page.serve_forever()
    finally:
        decisions.close()
    told = ", ".join(f"{name} {count:,}" for name, count in counts(decisions.rows, decisions.state()).items())
    say(f"\n{told}")
    say(f"Write those that you kept:  srt-peft corpus review {shlex.quote(str(questions))} --export reviewed.jsonl")
    return 0


def _export(questions: Path, out: Path) -> int:
    from srt_peft.corpora.folder import line_of  # noqa: PLC0415
    from srt_peft.corpora.qa.decisions import Decisions, accepted, counts, given_away  # noqa: PLC0415
    from srt_peft.corpora.qa.making import put  # noqa: PLC0415

    if out.exists() or out.is_symlink():
        raise OptionError("corpus review", [f"--export = {out}: is there already; name another file, or remove it"])
    decisions = Decisions(questions)
    rows, told = accepted(decisions.rows, decisions.state()), counts(decisions.rows, decisions.state())
    if not rows:
        say(
            f"No question of {questions} was accepted yet: srt-peft corpus review {shlex.quote(str(questions))}",
            file=sys.stderr,
        )
        return FAILED
    out.parent.mkdir(parents=True, exist_ok=True)
    put(out, "".join(map(line_of, rows)).encode())
    splits = {split: sum(row["split"] == split for row in rows) for split in ("old", "new")}
    say(f"{out}: {splits['old']:,} old and {splits['new']:,} new questions, {told['edit']:,} of them edited.")
    say(f"{told['reject']:,} were rejected; {told['undecided']:,} are undecided, and left out.")
    if given_away(rows):
        say(
            "Warning: whoever takes the longest choice, or the shortest, is now better or worse than chance.",
            file=sys.stderr,
        )
    if lacking := [split for split, count in splits.items() if not count]:
        say(f"Warning: `srt-peft eval` asks both splits, and there is no {lacking[0]} question.", file=sys.stderr)
    return 0


COMMAND = Command(
    _review,
    "a local page to accept, edit or reject questions with the passage beside each; and the file of those kept",
    "srt-peft corpus review corpora/factbook/questions.jsonl\n"
    "  srt-peft corpus review corpora/factbook/questions.jsonl --export reviewed.jsonl",
    (
        ("questions", {"metavar": "QUESTIONS", "help": "a file that `corpus qa` made"}),
        ("--export", {"metavar": "FILE", "help": "write those that were accepted, and end"}),
        ("--port", {"type": int, "default": 0, "help": "of the page, on 127.0.0.1 (any that is free)"}),
    ),
)
