"""What is asked of a corpus of code, checked: all that cannot be is told at once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from srt_peft.corpora.code import licences
from srt_peft.errors import OptionError

WHAT = "the arguments"
_MONTHS = 12


class Options(NamedTuple):
    """The dates are days or months; both moments are in seconds since 1970, in UTC."""

    old_before: str
    new_after: str
    licences: str
    per_repo: int
    held_out: float

    @property
    def cutoff(self) -> int:
        """The first moment at which an old repository is not looked at any more."""
        return int(_span(self.old_before)[0].timestamp())

    @property
    def birth(self) -> int:
        """The first moment at which a new repository may have been begun."""
        return int(_span(self.new_after)[1].timestamp())


def checked(options: Options) -> Options:
    """The same, if it can be."""
    faults = []
    for name in ("old_before", "new_after"):
        given, flag = getattr(options, name), f"--{name.replace('_', '-')}"
        try:
            begins, _ = _span(given)
        except ValueError:
            faults.append(f"{flag} = {given!r}: expected a day or a month, as 2024-07-31 or 2024-07")
            continue
        if begins > datetime.now(UTC):
            faults.append(
                f"{flag} = {given} is in the future: expected a date that has passed, as history has no other"
            )
    if not faults and options.cutoff > options.birth:
        order = f"--old-before = {options.old_before} is after --new-after = {options.new_after}"
        faults.append(f"{order}: expected the old to end before the new begins. Change one of them")
    if options.per_repo < 1:
        faults.append(f"--per-repo = {options.per_repo}: expected a number of files, 1 or more")
    if not 0 <= options.held_out < 1:
        faults.append(f"--held-out = {options.held_out}: expected a share of the repositories, 0 or more and below 1")
    try:
        licences.wanted(options.licences)
    except OptionError as error:
        faults.extend(error.faults)
    if faults:
        raise OptionError(WHAT, faults)
    return options


def _span(given: str) -> tuple[datetime, datetime]:
    """From when to when a day or a month is."""
    if re.fullmatch(r"\d{4}-\d{2}", given):
        begins = datetime.strptime(given, "%Y-%m").replace(tzinfo=UTC)
        return begins, begins.replace(year=begins.year + begins.month // _MONTHS, month=begins.month % _MONTHS + 1)
    begins = datetime.strptime(given, "%Y-%m-%d").replace(tzinfo=UTC)
    return begins, begins + timedelta(days=1)
