"""`srt-peft corpus code`: old and new files from clones of git repositories."""
# ruff: noqa: PLC0415 - NumPy and the readers are needed by this command alone

from __future__ import annotations

from srt_peft.commands.command import Arguments, Command, path_of, say
from srt_peft.commands.corpus_text import check_workers
from srt_peft.errors import OptionError


def _code(args: Arguments) -> None:
    from srt_peft.corpora.code.build import build
    from srt_peft.corpora.code.options import Options
    from srt_peft.corpora.code.tally import told
    from srt_peft.corpora.writing import closing

    if faults := check_workers(args):
        raise OptionError("the arguments", faults)
    options = Options(args.old_before, args.new_after, args.licences, args.per_repo, args.held_out)
    out = path_of(args.out)
    manifest = build(args.repos, out, options, workers=args.workers)
    say(told(manifest["counts"]))
    say(closing(out))


COMMAND = Command(
    _code,
    "old and new files from clones of git repositories, told apart by the dates of their first commits",
    "srt-peft corpus code --repos clones.txt --out corpora/code\n"
    "  srt-peft corpus code --repos ~/src --licences permissive --per-repo 300 --out corpora/code",
    (
        (
            "--repos",
            {
                "metavar": "LIST",
                "action": "append",
                "required": True,
                "help": "a file with the path of a clone on each line, a folder of clones, or a clone, bare or not; "
                "may be given again",
            },
        ),
        ("--out", {"metavar": "DIR", "required": True, "help": "where the corpus goes"}),
        (
            "--old-before",
            {
                "metavar": "DATE",
                "default": "2022-01",
                "help": "old are the repositories that existed before this day or month (2022-01), as they were then",
            },
        ),
        (
            "--new-after",
            {
                "metavar": "DATE",
                "default": "2024-07",
                "help": "new are those that were begun after this day or month (2024-07), as they are now",
            },
        ),
        (
            "--licences",
            {
                "metavar": "WHICH",
                "default": "any",
                "help": "any, permissive, or a list of SPDX identifiers, as MIT,Apache-2.0; else a file is left out",
            },
        ),
        (
            "--per-repo",
            {"metavar": "N", "type": int, "default": 1000, "help": "files a repository brings at most (1000)"},
        ),
        (
            "--held-out",
            {
                "metavar": "SHARE",
                "type": float,
                "default": 0.02,
                "help": "of the repositories, to ask questions of instead of training on them (0.02)",
            },
        ),
        ("--workers", {"metavar": "N", "type": int, "help": "processes; as many as there are cores without it"}),
    ),
)
