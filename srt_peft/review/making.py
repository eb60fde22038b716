"""Making a scheduler, and loading one that was saved: what is checked before there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from srt_peft.errors import OptionError, StateError, did_you_mean
from srt_peft.review import files
from srt_peft.review.kinds import SCHEDULERS, as_counted
from srt_peft.review.log import ReviewLog
from srt_peft.review.options import Options, faults, plain
from srt_peft.review.schedulers import Scheduler
from srt_peft.review.state import ReviewState


def make_scheduler(
    name: str,
    *,
    old: int,
    new: int,
    batch_size: int,
    folder: str | Path | None = None,
    log: str | Path | None = None,
    identity: ArrayLike | None = None,
    deck: ArrayLike | None = None,
    past: ReviewState | None = None,
    **options: Any,
) -> Scheduler:
    """A scheduler over `old` and `new` examples, none of them reviewed yet; without options, the paper's.

    `folder` is where the live state is memory-mapped (else it is in memory); `log` is a review log to append to;
    `identity` is a content hash for each example, 16 bytes; `deck` is the number of the group that each is scheduled
    with; `past` is the state in which an earlier update has left the first of the old examples: they keep theirs, and
    the clock goes on from there. The options and their defaults are those of `Options`; `counts` also takes a
    ReviewLog.
    """
    if isinstance(options.get("counts"), ReviewLog):
        first, table = options["counts"].counts()
        options["counts"] = [(0, 0)] * first + table.tolist()
    settings = plain({"batch_size": batch_size, **options})
    checked = _checked(name, {"old": old, "new": new, **settings}, "make_scheduler")
    made = Options(**{key: checked[key] for key in settings})
    if made.decks != "off" and deck is None:
        raise OptionError("make_scheduler", [f"decks = {made.decks!r} without deck=: expected a number an example"])
    extras = {
        "reference": int(made.refers),
        "prefix": int(made.quiz_tokens is not None),
        "asked": made.asked,
    }
    opened = _appending(log, None)
    try:
        state = ReviewState.create(
            checked["old"],
            checked["new"],
            folder=folder,
            initial_ease=made.initial_ease,
            stagger=made.stagger,
            identity=identity,
            deck=deck,
            extras=extras,
            past=past,
        )
    except BaseException:
        if opened is not None:
            opened.close()
        raise
    return Scheduler(name, made, state, opened)


def load_scheduler(
    snapshot: str | Path, *, folder: str | Path | None = None, log: str | Path | None = None
) -> Scheduler:
    """The scheduler that `save` wrote to a folder: the next draw is the one that it would have made.

    The snapshot stays as it is. The live state is a copy, in memory or memory-mapped in `folder`. `log` is
    truncated to the step of the snapshot, and appended to.
    """
    settings = files.read_manifest(Path(snapshot))["scheduler"]
    if settings is None:
        raise StateError(
            f"{snapshot} holds a review state without a scheduler. ReviewState.open reads it; load_scheduler takes a "
            "folder that Scheduler.save wrote."
        )
    what = f"the scheduler saved in {snapshot}"
    options = Options(**_checked(settings["name"], plain(settings["options"]), what))
    opened = _appending(log, ReviewState.open(snapshot).step)
    try:
        state = ReviewState.restore(snapshot, folder)
    except BaseException:
        if opened is not None:
            opened.close()
        raise
    return Scheduler(settings["name"], options, state, opened)


def _checked(name: str, settings: dict[str, Any], what: str) -> dict[str, Any]:
    """The settings, once they are known to be right for this scheduler."""
    found = faults(**settings)
    kind = SCHEDULERS.get(name) if isinstance(name, str) else None
    if kind is None:
        found.insert(0, f"{name!r} is no scheduler{did_you_mean(name, SCHEDULERS)}; known are {', '.join(SCHEDULERS)}")
    elif not found:
        order = settings.get("order", "uniform")
        asked = (order,) if isinstance(order, str) else tuple(order.values())
        for unknown in dict.fromkeys(o for o in asked if o not in kind.agendas):
            found.append(f"order = {unknown!r}: the scheduler {name!r} knows only {', '.join(map(repr, kind.agendas))}")
        for key, off in (("decks", "off"), ("quiz", 0)):
            if settings.get(key, off) != off and key not in kind.extras:
                found.append(f"{key} = {settings[key]!r}: the scheduler {name!r} knows none, expected {off!r}")
        if (settings.get("counts") is None) == (kind.share is as_counted):
            found.append("counts: the scheduler 'match' needs them, a pair (old, new) a step, and no other takes them")
    if found:
        raise OptionError(what, found)
    return settings


def _appending(path: str | Path | None, step: int | None) -> ReviewLog | None:
    """The log at `path`, cut to `step`; without a step, a log that must be empty."""
    if path is None:
        return None
    log = ReviewLog(path, "a")
    if step is None and len(log):
        log.close()
        raise StateError(
            f"{path} holds the reviews of another run, which a new scheduler would lose. Go on from that run's "
            "snapshot with load_scheduler(snapshot, log=…), or name another file."
        )
    if step is not None:
        log.truncate(step)
    return log
