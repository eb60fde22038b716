"""draw() and review(): one face for all schedulers. `kinds` says what tells them apart.

A draw is a pure function of (seed, t, review state): the agendas are built from the state alone, and chance
from the seed and the step. So nothing but the state is ever saved.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import DamagedError, OptionError, ProtocolError, StateError, did_you_mean
from srt_peft.review import files, sm2
from srt_peft.review.agenda import Agenda, Pool
from srt_peft.review.chance import Ids
from srt_peft.review.kinds import SCHEDULERS, as_counted
from srt_peft.review.log import ReviewLog
from srt_peft.review.options import Options, faults, hundredths, plain
from srt_peft.review.rows import MAX_VISITS
from srt_peft.review.state import ReviewState

_LOGGER = logging.getLogger("srt_peft")


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """The examples of one optimiser step's global batch."""

    step: int
    ids: Ids
    """In ascending order, so the old ones come first."""
    n_old: int
    """How many of the ids are old."""
    due: tuple[int, int]
    """How many old and new examples could have been drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class Review:
    """What one step's review found, in the order of the ids that it was given."""

    step: int
    quality: NDArray[np.int64]
    lapses: int
    """How many were not recalled (q < 3)."""
    not_finite: int
    """How many signals were no finite number, and counted as q = 0."""


# --- the scheduler ----------------------------------------------------------------------------------------------


class Scheduler:
    """Draws the examples of each step and learns, from how well they were known, when they return."""

    def __init__(self, name: str, options: Options, state: ReviewState, log: ReviewLog | None = None) -> None:
        """For `make_scheduler` and `load_scheduler`, which check what they pass."""
        self.name = name
        self.options = options
        self.state = state
        self.log = log
        self._kind = SCHEDULERS[name]
        self._drawn: Draw | None = None
        self._revision = -1
        self._agendas: tuple[Agenda, Agenda]
        self._index()

    def _index(self) -> None:
        seed, stagger = self.options.seed, self.options.stagger
        self._pools = tuple(Pool(self.state, number, seed=seed, stagger=stagger) for number in (0, 1))
        old, new = (self._kind.agendas[order](p) for order, p in zip(self.options.orders, self._pools, strict=True))
        self._agendas = (old, new)
        self._revision = self.state.revision

    def draw(self) -> Draw:
        """The ids of the next step's global batch; to be reviewed before the next draw."""
        state = self.state.writable()
        if self._drawn is not None and self._revision == state.revision:
            raise ProtocolError(
                f"draw() was called again before step {self._drawn.step} was reviewed. The usual cause is prefetching: "
                "a DataLoader with workers, or one that accelerate has prepared, fetches the next batch while this one "
                "is trained on. Use num_workers=0, do not prepare the loader, and call review(draw.ids, nll) once a "
                "step before the next draw()."
            )
        step = state.step
        if step > sm2.MAX_STEP:
            raise ProtocolError(f"the clock stands at step {step}, past the last that can be drawn ({sm2.MAX_STEP}).")
        if self._revision != state.revision:
            self._index()
        self._drawn, self._revision = None, -1  # interrupted from here on, the next draw builds its index anew
        old, new = self._agendas
        due = (old.count(step), new.count(step))
        available = (old.total(), new.total()) if self.options.underfull == "ahead" else due
        b_old, b_new = self._kind.share(self.options, step, available)
        ids = np.concatenate([self._take(0, b_old, due[0], step), self._take(1, b_new, due[1], step)])
        ids.flags.writeable = False
        self._drawn, self._revision = Draw(step, ids, b_old, due), state.revision
        return self._drawn

    def _take(self, number: int, wanted: int, due: int, step: int) -> Ids:
        agenda = self._agendas[number]
        ids = agenda.take(min(wanted, due), step)
        if wanted > due:
            ids = np.sort(np.concatenate([ids, agenda.ahead(wanted - due)]))
        return ids + self._pools[number].first

    def review(self, ids: ArrayLike, nll: ArrayLike) -> Review:
        """Tell how well each drawn example was known, in nats a token; the clock moves to the next step.

        The ids are those of the draw, all of them, once each, in any order.
        """
        columns = self.state.writable().columns
        drawn, order, signal = self._expected(ids, nll)
        step, rows = drawn.step, drawn.ids
        finite = np.isfinite(signal)
        quality = self.options.quality(signal)
        ease, repetitions, interval = self._kind.rule(
            columns["ease"][rows],
            columns["repetitions"][rows],
            columns["interval"][rows],
            quality,
            min_ease=hundredths(self.options.min_ease),
            max_interval=self.options.max_interval,
        )
        after = {
            "ease": ease,
            "repetitions": repetitions,
            "interval": interval,
            "due": sm2.due(step, interval),
            "signal": np.where(finite, signal, np.float32(np.inf)),
            "visits": np.minimum(columns["visits"][rows].astype(np.int64) + 1, MAX_VISITS),
        }
        if self.log is not None:
            self.log.append(step, rows, signal, quality, self.state.n_old)
        self._apply(drawn, after)
        return _reviewed(step, quality, order, finite)

    def _apply(self, drawn: Draw, after: Mapping[str, NDArray[Any]]) -> None:
        """Write what a review changes. While it does, the clock is negative: interrupted, the state is refused."""
        columns, revision = self.state.columns, self._revision
        self._drawn, self._revision = None, -1
        columns["clock"][0] = -1 - drawn.step
        for name, values in after.items():
            columns[name][drawn.ids] = values
        columns["clock"][0] = drawn.step + 1
        for agenda, pool, part in zip(self._agendas, self._pools, np.split(drawn.ids, [drawn.n_old]), strict=True):
            agenda.put(part - pool.first)
        self._revision = revision

    def _expected(self, ids: ArrayLike, nll: ArrayLike) -> tuple[Draw, Ids | slice, NDArray[np.float32]]:
        """The draw under way, where each of its ids stands in `ids`, and the signals in the order of the draw."""
        drawn = self._drawn
        if drawn is None:
            past = (
                f": step {self.state.step - 1} was reviewed already, or draw() was not called"
                if self.state.step
                else " yet"
            )
            raise ProtocolError(f"review() was called, and nothing is drawn{past}. Each draw is reviewed exactly once.")
        if self._revision != self.state.revision:
            raise ProtocolError(
                f"the state was changed (grown, or examples suspended or revived) between the draw of step "
                f"{drawn.step} and its review. That draw is void: call draw() again, and review what it gives."
            )
        given, signal = _arrays("review()", ids, nll)
        if given.shape != signal.shape or given.ndim != 1:
            raise ProtocolError(
                f"review() got ids of shape {given.shape} and signals of shape {signal.shape}: expected one signal for "
                f"each of the {drawn.ids.size} ids of step {drawn.step}."
            )
        if np.array_equal(given, drawn.ids):
            return drawn, slice(None), signal
        order = np.argsort(given, kind="stable")
        if not np.array_equal(given[order], drawn.ids):
            raise ProtocolError(_difference(drawn, given))
        return drawn, order, signal[order]

    def prime(self, ids: ArrayLike, nll: ArrayLike) -> None:
        """Note signals of a scoring pass, such as the base model's, without a review: `ppl` starts from them."""
        columns = self.state.writable().columns
        rows, signal = _arrays("prime()", ids, nll)
        if self._drawn is not None:
            raise ProtocolError(f"prime() was called while step {self._drawn.step} is drawn and not yet reviewed.")
        if rows.shape != signal.shape or rows.ndim != 1:
            raise ProtocolError(f"prime() got ids of shape {rows.shape} and signals of shape {signal.shape}.")
        if rows.size and (rows.min() < 0 or rows.max() >= self.state.n):
            raise ProtocolError(
                f"prime() got ids from {rows.min()} to {rows.max()}; there are 0 to {self.state.n - 1}."
            )
        columns["signal"][rows] = np.where(np.isfinite(signal), signal, np.float32(np.inf))
        self.state.revision += 1

    # --- saving -----------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write the state and the settings to a folder, from which `load_scheduler` goes on as if nothing happened."""
        if self.log is not None:
            self.log.flush()
        self.state.snapshot(folder, scheduler=self._settings())

    def state_dict(self) -> dict[str, Any]:
        """The same as `save`, in memory: settings, and a copy of each column."""
        columns = {name: column.copy() for name, column in self.state.whole().columns.items()}
        return {"scheduler": self._settings(), "n_old": self.state.n_old, "columns": columns}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over a `state_dict` of a scheduler with the same settings and examples; a draw under way is forgotten.

        A log is truncated to the step that is taken over.
        """
        try:
            settings, n_old, columns = saved["scheduler"], saved["n_old"], dict(saved["columns"])
            theirs = {"scheduler": settings["name"], **plain(settings["options"])}
            columns = {name: np.array(column) for name, column in columns.items()}
            n = len(columns["due"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(f"this is no state_dict of a scheduler ({type(error).__name__}: {error}).") from None
        changed = self._differences(theirs, (n_old, n - n_old), columns)
        if changed:
            raise OptionError("load_state_dict: the scheduler was made with other settings or examples", changed)
        ReviewState(columns, n_old, folder=None, writer=None).check_valid()
        live = self.state.columns  # whatever is in it, even after a review that was interrupted
        live["clock"][0] = -1
        for name in columns.keys() - {"clock"}:
            live[name][...] = columns[name]
        live["clock"][0] = columns["clock"][0]
        self._drawn = None
        self.state.revision += 1
        if self.log is not None:
            self.log.truncate(self.state.step)

    def _differences(self, theirs: Mapping[str, Any], sizes: tuple[Any, Any], columns: files.Columns) -> list[str]:
        ours = {"scheduler": self.name, **self.options.as_dict()}
        changed = [
            f"{name} is {value!r} here and {theirs.get(name)!r} in the saved state"
            for name, value in ours.items()
            if value != theirs.get(name)
        ]
        here = (self.state.n_old, self.state.n_new)
        if here != sizes:
            changed.append(f"(old, new) is {here} here and {sizes} in the saved state")
        kinds = [{k: (c.dtype, c.shape) for k, c in state.items()} for state in (self.state.columns, columns)]
        if not changed and kinds[0] != kinds[1]:
            wrong = sorted(k for k in kinds[0] | kinds[1] if kinds[0].get(k) != kinds[1].get(k))
            changed.append(f"the columns {', '.join(wrong)} are not of the types and sizes that they have here")
        elif not changed and not np.array_equal(self.state.columns.get("identity", 0), columns.get("identity", 0)):
            changed.append("the content hashes (identity) are those of other examples")
        return changed

    def _settings(self) -> dict[str, Any]:
        return {"name": self.name, "options": self.options.as_dict()}

    def close(self) -> None:
        """Close a live state in a folder, and the log; harmless twice."""
        try:
            self.state.close()
        finally:
            if self.log is not None:
                self.log.close()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise ProtocolError(
            "a scheduler is not copied or pickled: a copy would draw on its own, as a data-loading worker's does. Use "
            "num_workers=0, and state_dict() or save(folder) to keep a scheduler's state."
        )

    def check_valid(self) -> None:
        """Raise or assert if the state breaks its rules, or an agenda disagrees with the state."""
        self.state.check_valid()
        if self._drawn is None and self._revision == self.state.revision:
            for agenda, pool in zip(self._agendas, self._pools, strict=True):
                agenda.check_valid()
                assert np.array_equal(np.sort(agenda.members()), np.flatnonzero(pool.active())), "somebody is missing"


def _reviewed(step: int, quality: NDArray[np.int64], order: Ids | slice, finite: NDArray[np.bool_]) -> Review:
    given = np.empty_like(quality)
    given[order] = quality
    not_finite = int(np.count_nonzero(~finite))
    if not_finite:
        message = "step %d: %d of %d signals were not finite numbers and counted as not recalled (q = 0)"
        _LOGGER.warning(message, step, not_finite, finite.size)
    return Review(step, given, int(np.count_nonzero(quality < sm2.PASSING)), not_finite)


def _arrays(what: str, ids: ArrayLike, nll: ArrayLike) -> tuple[Ids, NDArray[np.float32]]:
    """Ids and signals as arrays, or a ProtocolError that says which of them is none."""
    given = np.asarray(ids)
    if given.size and given.dtype.kind not in "iu":
        raise ProtocolError(f"{what} got ids of dtype {given.dtype}: expected whole numbers, such as draw.ids.")
    try:
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            signal = np.asarray(nll).astype(np.float32)
    except (TypeError, ValueError, RuntimeError, Warning) as error:
        raise ProtocolError(
            f"{what} got signals that are no numbers ({error}): expected NLL in nats, as floats; from a torch tensor, "
            "nll.detach().float().cpu()."
        ) from None
    return given.astype(np.int64), signal


def _difference(drawn: Draw, given: NDArray[Any]) -> str:
    strangers, missing = np.setdiff1d(given, drawn.ids), np.setdiff1d(drawn.ids, given)
    parts = []
    if strangers.size:
        parts.append(f"{strangers.size} ids that were not drawn (the first is {strangers[0]})")
    if missing.size:
        parts.append(f"{missing.size} drawn ids are missing (the first is {missing[0]})")
    if not parts:
        parts.append("some ids more than once")
    return (
        f"review() of step {drawn.step} does not match its draw: {', and '.join(parts)}. Expected its "
        f"{drawn.ids.size} ids, all of them, once each, in any order."
    )


# --- making and loading -------------------------------------------------------------------------------------------


def make_scheduler(
    name: str,
    *,
    old: int,
    new: int,
    batch_size: int,
    folder: str | Path | None = None,
    log: str | Path | None = None,
    identity: ArrayLike | None = None,
    **options: Any,
) -> Scheduler:
    """A scheduler over `old` and `new` examples, none of them reviewed yet; without options, the paper's.

    `folder` is where the live state is memory-mapped (else it is in memory); `log` is a review log to append to;
    `identity` is a content hash for each example, 16 bytes. The options and their defaults are those of `Options`;
    `counts` also takes a ReviewLog.
    """
    if isinstance(options.get("counts"), ReviewLog):
        first, table = options["counts"].counts()
        options["counts"] = [(0, 0)] * first + table.tolist()
    settings = plain({"batch_size": batch_size, **options})
    checked = _checked(name, {"old": old, "new": new, **settings}, "make_scheduler")
    made = Options(**{key: checked[key] for key in settings})
    opened = _appending(log, None)
    try:
        state = ReviewState.create(
            checked["old"],
            checked["new"],
            folder=folder,
            initial_ease=made.initial_ease,
            stagger=made.stagger,
            identity=identity,
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
