"""What a command is, the arguments that several take, and how all of them speak."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srt_peft.errors import SRTError

Arguments = argparse.Namespace
Argument = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Command:
    """One command: what runs, what it is for, an example, and its arguments as argparse takes them."""

    run: Callable[[Arguments], int | None]
    purpose: str
    example: str
    arguments: tuple[Argument, ...] = ()


OVERRIDES: Argument = (
    "overrides",
    {"metavar": "key.sub=value", "nargs": "*", "help": "any key of the recipe; the value is read as YAML"},
)


def suite(text: str) -> Argument:
    """`--suite`, which may be given again."""
    return ("--suite", {"metavar": "NAME[=SOURCE]", "action": "append", "default": [], "help": text})


def style(of: str) -> Argument:
    """`--format`: how tables are written."""
    return (
        "--format",
        {"choices": ("terminal", "markdown", "latex", "json"), "default": "terminal", "help": f"of the {of}"},
    )


FAILED = SRTError.exit_code
"""The exit code where a part has failed, and the rest was told."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ROOM = "Make room on the disk, and try again; a run goes on from its newest whole checkpoint with --resume."


def path_of(given: str) -> Path:
    """A path as it was typed: the shell leaves the ~ of --out=~/corpora as it is."""
    return Path(os.path.expanduser(given))  # noqa: PTH111 - Path's own fails where there is no user of that name


def in_words(error: Exception) -> str:
    """An error as a person is told of it."""
    if isinstance(error, SRTError):
        return f"error: {error}"
    told = f"error: {type(error).__name__}: {error}"
    if isinstance(error, OSError):
        return f"{told}\n{_ROOM}" if error.errno in _FULL else told
    return f"{told}\nThis was not foreseen. `--debug` shows where it happened; a report needs that and `srt-peft env`."


def say(text: str, **where: Any) -> None:
    """Print."""
    print(text, **where)  # noqa: T201 - a command line prints
