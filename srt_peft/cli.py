"""The command line: from words to a command of `commands.COMMANDS`, and from what becomes of it to an exit code.

Exit codes: 0 done, 1 failed at run time, 2 bad arguments or recipe, 3 (`eval` with an allowance) forgot too much,
130 interrupted. Errors are told in words; `--debug` shows the traceback.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import srt_peft
from srt_peft.commands import COMMANDS, GROUPS
from srt_peft.commands.command import Arguments, in_words, say
from srt_peft.errors import OptionError, SRTError, did_you_mean

INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in the words of this house."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"(?:argument (--[\w-]+): )?invalid choice: '(.*?)' ?\(choose from (.*)\)", message)
        if wrong:
            flag, given, known = wrong[1], wrong[2], re.findall(r"[\w-]+", wrong[3])
            guess, names = did_you_mean(given, known), ", ".join(known)
            message = f"{given!r} is no command{guess}; known are {names}"
            if flag:
                message = f"{flag} = {given!r}{guess}: expected one of {names}"
        self.exit(OptionError.exit_code, f"error: {message}\n`{self.prog} --help` shows how it is called.\n")


def parser() -> argparse.ArgumentParser:
    """The parser that the table stands for."""
    top = _Parser(
        prog="srt-peft",
        description="Continual LoRA updates that do not forget: each training example carries a review state, "
        "\nand the state decides which examples the model sees again, and when.",
        epilog="to begin:\n  srt-peft demo\n  srt-peft recipes list\n"
        "  srt-peft recipes copy tiny_cpu\n  srt-peft train tiny_cpu.yaml",
    )
    top.add_argument("--version", action="version", version=f"srt-peft {srt_peft.__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    branches = {"": top.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)}
    for path, command in COMMANDS.items():
        group, _, name = path.rpartition(" ")
        if group not in branches:
            branch = branches[""].add_parser(group, help=GROUPS[group], description=GROUPS[group])
            branches[group] = branch.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
        epilog = f"for example:\n  {command.example}"
        leaf = branches[group].add_parser(name, help=command.purpose, description=command.purpose, epilog=epilog)
        for argument, settings in command.arguments:
            leaf.add_argument(argument, **settings)
        leaf.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show an error's traceback")
        leaf.set_defaults(command=path, usage=leaf.error)
    return top


def _parse(argv: Sequence[str]) -> Arguments:
    """The arguments; overrides may stand on either side of the options, which argparse alone does not allow."""
    args, rest = parser().parse_known_args(argv)
    if hasattr(args, "overrides"):
        args.overrides += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        flags = [name for name, _ in COMMANDS[args.command].arguments if name.startswith("-")]
        args.usage(f"{rest[0]!r} is no argument of {args.command!r}{did_you_mean(rest[0], [*flags, '--debug'])}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    args = _parse(sys.argv[1:] if argv is None else argv)
    try:
        return COMMANDS[args.command].run(args) or 0
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `srt-peft recipes show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SRTError.exit_code
    except Exception as error:
        if args.debug:
            raise
        return _failed(in_words(error), getattr(error, "exit_code", SRTError.exit_code))


def _failed(message: str, code: int) -> int:
    say(message, file=sys.stderr)
    return code
