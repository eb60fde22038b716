"""Every error that srt_peft raises on purpose.

    SRTError
    ├── OptionError      a setting that cannot be           (a ValueError, too;   exit code 2)
    ├── ProtocolError    draw and review out of step        (a RuntimeError, too; exit code 1)
    ├── DivergedError    a gradient that is no number                           (exit code 1)
    ├── HubError         the hub refuses, or cannot be reached                  (exit code 1)
    └── StateError       a state or a log on disk that cannot be used           (exit code 1)
        ├── DamagedError   truncated, altered, incomplete, or never one of ours
        ├── VersionError   written in a format that this version does not read
        └── LockedError    another process is writing it

Each message names the thing, what it is, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any


class SRTError(Exception):
    """The root: `except SRTError` catches all that srt_peft raises on purpose."""

    exit_code = 1


class OptionError(SRTError, ValueError):
    """One or more settings cannot be; `faults` holds a line for each, of which the message tells at most so many."""

    exit_code = 2

    def __init__(self, what: str, faults: Sequence[str], *, most: int | None = None) -> None:
        self.faults = tuple(dict.fromkeys(faults))  # one file may be named twice
        self._what, self._most = what, most
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults):,} faults"
        more = len(self.faults) - len(self.faults[:most])
        rest = [f"and {more:,} more"] if more else []
        super().__init__("\n  ".join([f"{count} in {what}:", *self.faults[:most], *rest]))

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is told by another process: by its message alone it could not be made there again."""
        return partial(type(self), most=self._most), (self._what, self.faults)


class ProtocolError(SRTError, RuntimeError):
    """`draw()` and `review()` were called out of step, or with each other's ids."""


class DivergedError(SRTError):
    """Training has left the numbers: the same run would do so again. `fact` is what happened, without the remedy."""

    def __init__(self, fact: str, remedy: str = "") -> None:
        self.fact = fact
        super().__init__(f"{fact} {remedy}".rstrip())


class HubError(SRTError):
    """The hub refuses, or cannot be reached."""


class StateError(SRTError):
    """A state or a log on disk cannot be used."""


class DamagedError(StateError):
    """The files are truncated, altered, incomplete, or were never ours."""


class VersionError(StateError):
    """The files are whole, but of a format that this version does not read."""


class LockedError(StateError):
    """Another process is writing the files."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'uniform'?)` for a near miss, and nothing for anything else."""
    near = get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
