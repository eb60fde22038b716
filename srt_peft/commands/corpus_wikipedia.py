"""`srt-peft corpus wikipedia`: two snapshots of a wiki become a corpus."""
# ruff: noqa: PLC0415 - pyarrow takes a while to import

from __future__ import annotations

from typing import Any

from srt_peft.commands.command import Arguments, Command, path_of, say
from srt_peft.commands.corpus_text import SHARED, check_shared, context_of
from srt_peft.errors import OptionError


def _wikipedia(args: Arguments) -> None:
    from srt_peft.corpora.tables import told
    from srt_peft.corpora.wikipedia.build import Options, wikipedia
    from srt_peft.corpora.wikipedia.choose import table_of
    from srt_peft.corpora.wikipedia.topics import NAMES
    from srt_peft.corpora.writing import closing

    options = Options(
        namespaces=tuple(space.strip() for space in args.namespaces.split(",")),
        topics=NAMES if args.topics is None else tuple(topic.strip() for topic in args.topics.split(",")),
        per_stratum=args.per_stratum,
        context=context_of(args.context),
        held_out=args.held_out,
    )
    faults = [*check_shared(args), *options.faults()]
    if faults:
        raise OptionError("the arguments", faults)
    out = path_of(args.out)
    figures = wikipedia(args.old, args.new, out, options, engine=args.engine, workers=args.workers)
    say(told(figures))
    say(f"\n{table_of(figures)}\n")
    say(_listed(f"pages, by {figures['pages known by']}", figures["pages"]))
    say(_listed("left out", figures["left out"]))
    say(closing(out))


def _listed(what: str, counts: dict[str, Any]) -> str:
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return f"{what}: {told or 'nothing'}"


COMMAND = Command(
    _wikipedia,
    "old and new corpora from two dumps of a wiki, or two Parquet snapshots of it",
    "srt-peft corpus wikipedia --old 'enwiki-20231101-*.xml*.bz2' --new 'enwiki-20240101-*.xml*.bz2' --out wiki\n"
    "  srt-peft corpus wikipedia --old 20231101.en --new 20240101.en --out wiki --per-stratum 1000",
    (
        (
            "--old",
            {
                "metavar": "DUMP",
                "nargs": "+",
                "required": True,
                "help": "the earlier snapshot: files, a folder or a pattern; pages-articles as .xml, .xml.bz2 "
                "(multistream is read on all cores) or .xml.gz, or .parquet or .jsonl with id, url, title, text",
            },
        ),
        ("--new", {"metavar": "DUMP", "nargs": "+", "required": True, "help": "the later one"}),
        ("--namespaces", {"metavar": "N,N", "default": "0", "help": "by number; 0, articles, without it"}),
        ("--topics", {"metavar": "T,T", "help": "only pages of these; all seven, and `other`, without it"}),
        (
            "--per-stratum",
            {
                "type": int,
                "metavar": "N",
                "help": "at most N pages of each topic that changed unchanged/small/medium/large, or are created/gone",
            },
        ),
        ("--engine", {"choices": ("local", "ray"), "default": "local", "help": "ray runs on the cluster RAY_ADDRESS"}),
        *(argument for argument in SHARED if argument[0] != "--language"),  # it is the wiki's own
    ),
)
