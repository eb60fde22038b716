"""Who else has what is forgotten: adapters that were trained on it, and other runs that hold it.

Weights cannot be wound back, so each adapter is told, with the steps at which it was trained on which of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from srt_peft.data import history
from srt_peft.errors import LockedError, SRTError
from srt_peft.lifecycle.choosing import Holder, look
from srt_peft.lifecycle.erasing import Leaving
from srt_peft.lifecycle.following import BASE
from srt_peft.lifecycle.inspect import running
from srt_peft.review import ReviewLog, ReviewState
from srt_peft.training import checkpoint
from srt_peft.training.folder import RECIPE, REVIEW, RUNS

Taught = tuple[int, bytes]
"""A step at which one of them was trained on, and whose it was: an example's identity."""


def holding(root: Path, holder: Holder, leaving: Leaving, given: Sequence[Path]) -> list[Path]:
    """The other runs that we know of and that hold some of them; one that is being trained is not to be disturbed."""
    found = []
    for run in known(root, holder, given):
        if _holds(run, leaving):
            if running(run):
                raise LockedError(
                    f"{run} has some of these examples, and is being trained at this moment. Nothing was changed: wait "
                    "until it has ended, and try again."
                )
            found.append(run)
    return found


def _holds(run: Path, leaving: Leaving) -> bool:
    """Whether a run has some of them, in its texts, its history or its state: as much of it as can be read."""
    parts: list[Callable[[], Any]] = [lambda: look(run).identities]
    if (run / history.FOLDER).is_dir():
        parts.append(lambda: history.open_history(run / history.FOLDER).seen)
    parts += [lambda p=p: ReviewState.open(p / "srt_state").identity for p in checkpoint.all_of(run)[-1:]]  # type: ignore[misc]
    for part in parts:
        with suppress(SRTError, OSError):
            identity = part()
            if identity is not None and leaving.of(identity).any():
                return True
    return False


def known(root: Path, holder: Holder, given: Sequence[Path]) -> list[Path]:
    """The other runs that have used this cache, lie beside the run, or are followed by it."""
    mine = {run.resolve() for run in given}
    found = []
    if (root / RUNS).is_file():
        for line in (root / RUNS).read_text(encoding="utf-8").splitlines():
            try:
                found.append(Path(json.loads(line)))
            except ValueError:  # torn by a kill
                continue
    found += [path.parent for path in holder.run.resolve().parent.glob(f"*/{RECIPE}")]
    past = holder.past
    while past is not None and Path(past.about["run"]).resolve() not in found[-1:]:
        found.append(Path(past.about["run"]).resolve())
        try:
            past = history.open_history(found[-1] / history.FOLDER)
        except (SRTError, OSError):
            past = None
    others = dict.fromkeys(run.resolve() for run in found)
    return [run for run in others if run not in mine and (run / RECIPE).is_file()]


def adapters(holder: Holder, leaving: Leaving, others: Sequence[Path]) -> list[dict[str, Any]]:
    """Every adapter that was trained on them, as far as the folders tell, and at which steps: this run's first."""
    lineage, found = _Lineage(leaving), list[dict[str, Any]]()
    lineage.holders[holder.run.resolve()] = holder
    for run in (holder.run, *others):
        places = [(path, checkpoint.step_of(path)) for path in checkpoint.all_of(run)]
        places += [(merged, step) for path, step in places for merged in _merged(run, path)]
        for path, step in sorted(places, key=lambda place: place[1]):
            found += _told(path, lineage.taught(run, step))
        if (run / BASE).is_dir():  # an adapter was merged into it before the first of the run's own steps
            found += _told(run / BASE, lineage.before(run))
    return found


def _told(path: Path, taught: frozenset[Taught]) -> list[dict[str, Any]]:
    steps, who = sorted({step for step, _ in taught}), {identity for _, identity in taught}
    return [{"path": str(path), "reviews": len(taught), "examples": len(who), "steps": steps}] if taught else []


class _Lineage:
    """What each run has taught of them, and what the runs had that it goes on from.

    An update may have drawn what the one before it held and did not draw; and with `next.keep` it may have let go what
    its adapter had been taught. So neither a run's own reviews nor its parent's are enough.
    """

    def __init__(self, leaving: Leaving) -> None:
        self.leaving = leaving
        self.holders: dict[Path, Holder] = {}
        self._own: dict[Path, frozenset[Taught]] = {}

    def taught(self, run: Path, step: int) -> frozenset[Taught]:
        """What was taught by this run's checkpoint of a step, and what it was begun from."""
        return frozenset(one for one in self.own(run) if one[0] < step) | self.before(run)

    def own(self, run: Path) -> frozenset[Taught]:
        """What its logs say: its own, and those that its history has of what it has kept."""
        run = run.resolve()
        if run not in self._own:
            self._own[run] = frozenset()
            with suppress(SRTError, OSError):
                self._own[run] = frozenset(_trained(self._look(run), self.leaving))
        return self._own[run]

    def before(self, run: Path) -> frozenset[Taught]:
        """What its adapter, or its base, had been taught when it was begun."""
        with suppress(SRTError, OSError):
            holder = self._look(run)
            model, past = holder.recipe.model, holder.past
            begun = Path(model.adapter or model.base).expanduser().resolve()
            if past is not None and begun == (run / BASE).resolve():
                mine = frozenset(one for one in self.own(run) if one[0] < past.step)
                parent = Path(past.about["run"]).expanduser()
                return mine | (self.taught(parent, past.step) if (parent / RECIPE).is_file() else frozenset())
            if begun.parent.name == "checkpoints" and (begun.parents[1] / RECIPE).is_file():
                return self.taught(begun.parents[1], checkpoint.step_of(begun))
            if begun.parent.name == "merged" and (begun.parents[1] / RECIPE).is_file():
                return self.taught(begun.parents[1], _merged_at(begun))
        return frozenset()

    def _look(self, run: Path) -> Holder:
        run = run.resolve()
        if run not in self.holders:
            self.holders[run] = look(run)
        return self.holders[run]


def _trained(holder: Holder, leaving: Leaving) -> Iterator[Taught]:
    """Each time that one of them was trained on, in this update and in those before."""
    logs = [(holder.run / REVIEW / "log", holder.state_identity)]
    if holder.past is not None:
        logs.append((holder.past.folder / history.LOG, holder.past.train.identity))
    for path, identity in logs:
        if path.is_file():
            mine = leaving.of(identity)
            with ReviewLog(path) as log:
                for part in log.parts():
                    told = part[(part["id"] >= 0) & (part["untrained"] == 0)]
                    for record in told[mine[told["id"]]]:
                        yield int(record["step"]), identity[record["id"]].tobytes()


def _merged(run: Path, path: Path) -> Iterator[Path]:
    """The models in a run into which this checkpoint of its was merged."""
    for about in (run / "merged").glob("*/merge.json"):
        if _merged_at(about.parent) == checkpoint.step_of(path):
            yield about.parent


def _merged_at(folder: Path) -> int:
    """The step of the adapter that was merged; of what does not say, before all steps."""
    try:
        return int(json.loads((folder / "merge.json").read_text(encoding="utf-8"))["checkpoint"]["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1
