"""draw() and review(): one face for all schedulers. `kinds` says what tells them apart.

    q = s.quiz()                 whom to ask before the draw, where there is a quiz; else None
    s.answer(q, nll)
    draw = s.draw()              whom to train on
    s.review(draw.ids, nll)      what that found; the clock moves

A draw is a pure function of (seed, t, review state), and of the answers where somebody was asked: the agendas are built
from the state alone, and chance from the seed and the step. So nothing but the state is ever saved. What a quiz found
is written with the review of its step: saved in between, a scheduler asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import ProtocolError
from srt_peft.review import given, sm2
from srt_peft.review.agenda import NOBODY, Agenda, Pool, Schedule
from srt_peft.review.chance import Ids, bits
from srt_peft.review.decked import STUDIED, Decked
from srt_peft.review.kinds import SCHEDULERS, Counts
from srt_peft.review.log import ReviewLog
from srt_peft.review.options import Options
from srt_peft.review.quiz import PART, Answers, pick
from srt_peft.review.reading import Reading, Written
from srt_peft.review.rows import NOBODY as NONE, waits
from srt_peft.review.saved import check_columns, taken
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
    asked: int = 0
    """How many were asked beforehand, at this step."""


@dataclass(frozen=True, slots=True, eq=False)
class Review:
    """What one step's review found, in the order of the ids that it was given."""

    step: int
    quality: NDArray[np.int64]
    lapses: int
    """How many were not recalled (q < 3)."""
    not_finite: int
    """How many signals were no finite number, and counted as q = 0."""
    passed: int = 0
    """How many were asked, recalled, and so rescheduled without being trained on."""


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
        self._answers: Answers | None = None
        self._revision = -1
        self._agendas: tuple[Agenda, Agenda]
        check_columns(options, state)
        self._index()

    def _index(self) -> None:
        seed, stagger = self.options.seed, self.options.stagger
        self._pools = tuple(Pool(self.state, number, seed=seed, stagger=stagger) for number in (0, 1))
        old, new = (self._kind.agendas[order] for order in self.options.orders)
        by_deck = self.options.decks != "off"
        kept = (
            Decked(self._pools[0], old, self.options.decks, self.options.deck_floor) if by_deck else old(self._pools[0])
        )
        self._agendas = (kept, new(self._pools[1]))
        self._answers = self._waiting()
        self._reading = Reading(self.options, self.state, self._kind.rule)
        self._revision = self.state.revision

    def _waiting(self) -> Answers | None:
        """Who was asked at an earlier step and waits to be drawn, as the state has it."""
        there = waits(self.state.columns)
        if not there.any():
            return None
        ids, lost = (self.state.columns[name][there] for name in ("asked", "lost"))
        return Answers.of(-1, ids, lost, answered=True)

    def quiz(self) -> Ids | None:
        """The old examples to score forward only before the next draw, with `answer`; None where nobody is asked."""
        self._begin("quiz")
        step, asked = self.state.step, self._answers
        if not self.options.quiz or step % self.options.quiz_every:
            return None
        if asked is not None and asked.step == step:
            return None if asked.answered else asked.ids
        self._revision = -1  # interrupted from here on, the next call builds its index anew
        if asked is not None:
            self._back(asked.ids, step)
        self._answers = None
        due, available = self._counts(step)
        b_old, _ = self._kind.share(self.options, step, available)
        most = self.options.quiz * min(b_old, self.options.old_slots)
        ids = self._take(0, min(most, available[0]), due[0], step)
        self._revision = self.state.revision
        if not ids.size:
            return None
        ids.flags.writeable = False
        self._answers = Answers.of(step, ids, np.full(ids.size, np.nan), answered=False)
        return ids

    def answer(self, ids: ArrayLike, nll: ArrayLike) -> None:
        """Tell how well each example of the quiz was known, in nats a token: all of them, once each, in any order."""
        asked = self._answers
        if self._drawn is not None or asked is None or asked.step < 0 or asked.answered:
            raise ProtocolError(
                "answer() was called, and nothing is asked. Each quiz() is answered once, before draw()."
            )
        self._unchanged(asked.step, "quiz", "answer")
        _, signal = given.matched("answer", asked.ids, asked.step, ids, nll)
        quality = self._reading.quality(asked.ids, signal, self._reading.asks)
        lost = self._reading.lost(asked.ids, signal, self._reading.asks)
        self._answers = replace(asked, signal=signal, quality=quality, lost=lost, answered=True)

    def draw(self) -> Draw:
        """The ids of the next step's global batch; to be reviewed before the next draw."""
        self._begin("draw")
        step, asked = self.state.step, self._answers
        if self.options.quiz and step % self.options.quiz_every == 0:
            if asked is None or asked.step != step:
                self.quiz()
                asked = self._answers
            if asked is not None and not asked.answered:
                raise ProtocolError(
                    f"draw() was called before the quiz of step {step} was answered: with quiz = {self.options.quiz}, "
                    "score q = s.quiz() forward only, unless it is None, and call s.answer(q, nll) before s.draw()."
                )
        self._drawn, self._revision = None, -1  # interrupted from here on, the next draw builds its index anew
        due, available = self._counts(step)
        b_old, b_new = self._kind.share(self.options, step, available)
        picked = self._picked(b_old, step)
        still = due[0] - self._due_among(asked, step)
        old = np.sort(np.concatenate([picked, self._take(0, b_old - picked.size, still, step)]))
        ids = np.concatenate([old, self._take(1, b_new, due[1], step)])
        ids.flags.writeable = False
        now = 0 if asked is None or asked.step != step else asked.ids.size
        self._drawn, self._revision = Draw(step, ids, b_old, due, now), self.state.revision
        return self._drawn

    def _begin(self, what: str) -> None:
        """Whether a quiz or a draw may begin; if so, with an index that knows the state."""
        state = self.state.writable()
        if self._drawn is not None and self._revision == state.revision:
            raise ProtocolError(
                f"{what}() was called again before step {self._drawn.step} was reviewed. The usual cause is "
                "prefetching: a DataLoader with workers, or one that accelerate has prepared, fetches the next batch "
                "while this one is trained on. Use num_workers=0, do not prepare the loader, and call "
                "review(draw.ids, nll) once a step before the next draw()."
            )
        if state.step > sm2.MAX_STEP:
            raise ProtocolError(
                f"the clock stands at step {state.step}, past the last that can be drawn ({sm2.MAX_STEP})."
            )
        if self._revision != state.revision:
            self._drawn = None
            self._index()
        if not self._reading.primed:
            raise ProtocolError(
                "reference = 'base', and no old example has a reference yet: score them with the base model, and call "
                "prime(ids, nll) before the first draw; or take reference='best', which needs no pass."
            )

    def _counts(self, step: int) -> tuple[Counts, Counts]:
        """How many of each pool are due, and how many may be drawn; who is asked is in no agenda, and counts."""
        old, new = self._agendas
        asked = 0 if self._answers is None else self._answers.ids.size
        due = (old.count(step) + self._due_among(self._answers, step), new.count(step))
        return due, (old.total() + asked, new.total()) if self.options.underfull == "ahead" else due

    def _due_among(self, asked: Answers | None, step: int) -> int:
        return 0 if asked is None else int(np.count_nonzero(self.state.columns["due"][asked.ids] <= step))

    def _picked(self, b_old: int, step: int) -> Ids:
        """Who is studied of those that were asked: a deck's slots each, in proportion to what was lost."""
        asked, agenda = self._answers, self._agendas[0]
        if asked is None or not b_old:
            return NOBODY
        random = bits(self.options.seed, step, 0, PART)
        if not isinstance(agenda, Decked):
            return asked.ids[pick(b_old, asked.lost, self.options.explore, random)]
        deck = agenda.deck[asked.ids]
        shared = agenda.shared(b_old, np.bincount(deck, minlength=agenda.sizes.size), step, STUDIED)
        parts = [NOBODY]
        for number in np.flatnonzero(shared).tolist():
            mine = np.flatnonzero(deck == number)
            parts.append(asked.ids[mine[pick(int(shared[number]), asked.lost[mine], self.options.explore, random)]])
        return np.sort(np.concatenate(parts))

    def _take(self, number: int, wanted: int, due: int, step: int) -> Ids:
        agenda = self._agendas[number]
        ids = agenda.take(min(wanted, due), step)
        if wanted > due:
            ids = np.sort(np.concatenate([ids, agenda.ahead(wanted - due)]))
        return ids + self._pools[number].first

    # --- the review ---------------------------------------------------------------------------------------------

    def review(self, ids: ArrayLike, nll: ArrayLike) -> Review:
        """Tell how well each drawn example was known, in nats a token; the clock moves to the next step.

        The ids are those of the draw, all of them, once each, in any order.
        """
        self.state.writable()
        drawn, reading = self._under_way(), self._reading
        order, signal = given.matched("review", drawn.ids, drawn.step, ids, nll)
        quality = reading.quality(drawn.ids, signal)
        passed, held = self._unstudied(drawn)
        rows = np.concatenate([drawn.ids, passed.ids])
        signals, qualities = np.concatenate([signal, passed.signal]), np.concatenate([quality, passed.quality])
        after = reading.after(drawn.step, rows, signals, qualities)
        best = reading.best("reference", drawn.ids, signal) + reading.best(*self._answered(drawn, passed))
        measured = reading.measured(*self._told(drawn, signal))
        if self.log is not None:
            self.log.append(drawn.step, rows, signals, qualities, self.state.n_old, untrained=passed.ids.size)
        self._apply(drawn, rows, after, best + measured, held)
        return _reviewed(drawn.step, quality, order, np.isfinite(signal), passed.ids.size)

    def _told(self, drawn: Draw, signal: NDArray[np.float32]) -> tuple[Ids, NDArray[np.float64]]:
        """What tells of the decks: the old that were drawn; or all that were asked, for a quiz draws the forgotten."""
        asked = self._answers
        if not self.options.quiz:
            old = drawn.ids[: drawn.n_old]
            return old, self._reading.lost(old, signal[: drawn.n_old])
        if asked is None or asked.step != drawn.step:
            return NOBODY, np.empty(0)
        return asked.ids, asked.lost

    def _unstudied(self, drawn: Draw) -> tuple[Answers, Answers]:
        """Of those that were asked and not drawn, who passed just now, and who waits."""
        asked = self._answers
        if asked is None:
            nobody = Answers.of(drawn.step, NOBODY, np.empty(0), answered=True)
            return nobody, nobody
        left = asked.only(~np.isin(asked.ids, drawn.ids))
        return left.only(left.passed), left.only(~left.passed)

    def _answered(self, drawn: Draw, passed: Answers) -> tuple[str, Ids, NDArray[np.float32]]:
        """Whose answers are reviews of their own: who passed, and of first tokens those that were drawn as well."""
        asked, column = self._answers, self._reading.asks
        if asked is None or asked.step != drawn.step or column == "reference":
            return column, passed.ids, passed.signal
        told = asked.only(asked.passed | np.isin(asked.ids, drawn.ids))
        return column, told.ids, told.signal

    def _apply(
        self, drawn: Draw, rows: Ids, after: Mapping[str, NDArray[Any]], more: Iterable[Written], held: Answers
    ) -> None:
        """Write what a review changes. While it does, the clock is negative: interrupted, the state is refused."""
        columns, revision = self.state.columns, self._revision
        self._drawn, self._revision = None, -1
        columns["clock"][0] = -1 - drawn.step
        for name, values in after.items():
            columns[name][rows] = values
        for name, where, values in more:
            columns[name][where] = values
        keeps = self.options.asked > 0
        if keeps:
            columns["asked"][:], columns["lost"][:] = NONE, np.nan
            columns["asked"][: held.ids.size], columns["lost"][: held.ids.size] = held.ids, held.lost
        columns["clock"][0] = drawn.step + 1
        old, new = self._agendas
        of_old = rows < self.state.n_old
        old.put(rows[of_old])
        new.put(rows[~of_old] - self.state.n_old)
        self._answers = replace(held, step=-1) if keeps and held.ids.size else None
        if not keeps and held.ids.size:
            self._back(held.ids, drawn.step)
        self._revision = revision

    def _back(self, ids: Ids, step: int) -> None:
        agenda = self._agendas[0]
        assert isinstance(agenda, (Schedule, Decked)), "only those that go by the due are asked"
        agenda.back(ids, step)

    def _under_way(self) -> Draw:
        """The draw that is to be reviewed."""
        drawn = self._drawn
        if drawn is None:
            past = (
                f": step {self.state.step - 1} was reviewed already, or draw() was not called"
                if self.state.step
                else " yet"
            )
            raise ProtocolError(f"review() was called, and nothing is drawn{past}. Each draw is reviewed exactly once.")
        self._unchanged(drawn.step, "draw", "review")
        return drawn

    def _unchanged(self, step: int, what: str, then: str) -> None:
        if self._revision != self.state.revision:
            raise ProtocolError(
                f"the state was changed (grown, or examples suspended or revived) between the {what} of step "
                f"{step} and its {then}. That {what} is void: call {what}() again, and {then} what it gives."
            )

    def prime(self, ids: ArrayLike, nll: ArrayLike, *, prefix: ArrayLike | None = None) -> None:
        """Note signals of a scoring pass, such as the base model's, without a review.

        They are what later signals are held against, where the state keeps references; `ppl` starts from them.
        `prefix` are the same of the first tokens, for a quiz that asks only these.
        """
        self.state.writable()
        rows, signal = given.arrays("prime()", ids, nll)
        if self._drawn is not None:
            raise ProtocolError(f"prime() was called while step {self._drawn.step} is drawn and not yet reviewed.")
        if rows.shape != signal.shape or rows.ndim != 1:
            raise ProtocolError(f"prime() got ids of shape {rows.shape} and signals of shape {signal.shape}.")
        if rows.size and (rows.min() < 0 or rows.max() >= self.state.n):
            raise ProtocolError(
                f"prime() got ids from {rows.min()} to {rows.max()}; there are 0 to {self.state.n - 1}."
            )
        first = None if prefix is None else given.arrays("prime()", ids, prefix)[1]
        if first is not None and first.shape != rows.shape:
            raise ProtocolError(f"prime() got ids of shape {rows.shape} and prefix signals of shape {first.shape}.")
        self._reading.prime(rows, signal, first)
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
        n_old, columns = taken(self._settings(), self.state, saved)
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
                held = NOBODY if self._answers is None or pool.number else self._answers.ids
                everyone = np.sort(np.concatenate([agenda.members(), held]))
                assert np.array_equal(everyone, np.flatnonzero(pool.suspended[:] == 0)), "somebody is missing"


def _reviewed(
    step: int, quality: NDArray[np.int64], order: Ids | slice, finite: NDArray[np.bool_], passed: int
) -> Review:
    found = np.empty_like(quality)
    found[order] = quality
    not_finite = int(np.count_nonzero(~finite))
    if not_finite:
        message = "step %d: %d of %d signals were not finite numbers and counted as not recalled (q = 0)"
        _LOGGER.warning(message, step, not_finite, finite.size)
    return Review(step, found, int(np.count_nonzero(quality < sm2.PASSING)), not_finite, passed)
