"""`srt-peft corpus text`: old, new, and what supersedes what, from two snapshots of anybody's text."""
# ruff: noqa: PLC0415 - what is slow to import is imported where it is needed

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from srt_peft.commands.command import Arguments, Command, path_of, say
from srt_peft.errors import OptionError

if TYPE_CHECKING:
    from srt_peft.corpora.snapshots import Snapshot


def _text(args: Arguments) -> None:
    from srt_peft.corpora.documents import library
    from srt_peft.corpora.folder import check_out
    from srt_peft.corpora.tables import told
    from srt_peft.corpora.text import LIBRARIES, Options, make
    from srt_peft.corpora.writing import closing

    faults = list(_faults(args))
    if faults:
        raise OptionError("the arguments", faults)
    out = path_of(args.out)
    check_out(out)
    for name in LIBRARIES:
        library(name)
    old, new = _snapshots(args)
    options = Options(context_of(args.context), args.held_out, args.language)
    asked = {name: getattr(args, name) for name in ("include", *_COLUMNS)}
    manifest = make(old, new, out, options, asked=asked, workers=args.workers)
    figures = json.loads((out / "statistics.json").read_text("utf-8"))
    say(told(figures))
    for what, count in manifest["counts"]["left out"].items():
        say(f"left out: {count:,} {what}")
    say(closing(out))


_COLUMNS = ("key", "text_column", "title_column", "source_column")


def _snapshots(args: Arguments) -> list[Snapshot]:
    from srt_peft.corpora import commits
    from srt_peft.corpora.snapshots import Columns, both

    if args.repo is not None:
        return commits.two(path_of(args.repo), (args.old, args.new), args.include)
    columns = Columns(args.text_column, args.title_column, args.key, args.source_column)
    return both([path_of(args.old), path_of(args.new)], columns, args.include)


def context_of(given: str) -> str | int:
    """`--context` as it is meant."""
    return int(given) if given.isdecimal() else given


def check_shared(args: Arguments) -> list[str]:
    """What is wrong with the arguments that every corpus of documents has."""
    faults = []
    if args.context not in ("title", "none") and not args.context.isdecimal():
        faults.append(f"--context = {args.context}: expected title, none, or how many sentences, such as 2")
    if not 0 <= args.held_out < 1:
        faults.append(f"--held-out = {args.held_out}: expected a share, from 0 to below 1")
    return [*faults, *check_workers(args)]


def check_workers(args: Arguments) -> list[str]:
    """What is wrong with the number of processes."""
    wrong = args.workers is not None and args.workers < 1
    return [f"--workers = {args.workers}: expected 1 or more"] if wrong else []


def _faults(args: Arguments) -> list[str]:
    faults = check_shared(args)
    given = [f"--{name.replace('_', '-')}" for name in _COLUMNS if getattr(args, name) != _DEFAULTS.get(name)]
    if args.repo is not None and given:
        faults.append(f"{', '.join(given)} = given with --repo: columns are a table's; leave them out")
    return faults


_DEFAULTS = {"text_column": "text", "title_column": "title"}

SHARED = (
    (
        "--context",
        {
            "metavar": "title|none|N",
            "default": "title",
            "help": "what precedes a statement: its document's title (the default), nothing, or that and N sentences",
        },
    ),
    (
        "--held-out",
        {
            "metavar": "SHARE",
            "type": float,
            "default": 0.02,
            "help": "of the documents, kept from training in both snapshots, to ask questions of; without it 0.02",
        },
    ),
    ("--language", {"metavar": "CODE", "default": "en", "help": "whose rules end a sentence; without it en"}),
    ("--workers", {"metavar": "N", "type": int, "help": "processes; all cores, without it. The result is the same"}),
    ("--out", {"metavar": "DIR", "required": True, "help": "the folder that is made; it must not be there"}),
)

COMMAND = Command(
    _text,
    "old and new from two folders, two tables with a key, or two commits of a git repository; what replaces what",
    "srt-peft corpus text --old docs-june --new docs-july --out corpora/july\n"
    "  srt-peft corpus text --old june.jsonl.gz --new july.jsonl.gz --key url --out corpora/july\n"
    "  srt-peft corpus text --repo . --old v1.0 --new HEAD --include 'docs/*.md' --out corpora/head",
    (
        ("--old", {"metavar": "PATH|REV", "required": True, "help": "the earlier snapshot; with --repo, a commit"}),
        ("--new", {"metavar": "PATH|REV", "required": True, "help": "the later one"}),
        ("--repo", {"metavar": "DIR", "help": "a git repository, of which --old and --new name commits"}),
        (
            "--include",
            {
                "metavar": "PATTERN",
                "action": "append",
                "help": "which files are text, such as '*.rst', and may be given again; without it the usual kinds",
            },
        ),
        ("--key", {"metavar": "COLUMN", "help": "what a table's rows are known by; without it id, path, url or title"}),
        ("--text-column", {"metavar": "COLUMN", "default": "text", "help": "a table's text; without it text"}),
        ("--title-column", {"metavar": "COLUMN", "default": "title", "help": "a table's titles; without it title"}),
        ("--source-column", {"metavar": "COLUMN", "help": "which source each row is from, where there are several"}),
        *SHARED,
    ),
)
