"""The next update: what the last one has left, and the recipe that goes on from there.

    RUN (finished)  ->  OUT/history, OUT/recipe.yaml  ->  srt-peft train

The text of RUN's new pool is old from now on; the clock, the states and the adapter go on. What the recipe had left to
its preset is left to it again: there may be more sources by now.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from srt_peft.data import history, supersedes, tombstones
from srt_peft.data.history import FOLDER, History
from srt_peft.data.ingest import home
from srt_peft.data.pool import Pool
from srt_peft.errors import DamagedError, OptionError, StateError
from srt_peft.lifecycle.past import Left, Made, make
from srt_peft.review import ReviewLog, ReviewState
from srt_peft.review.log import RECORD
from srt_peft.training import checkpoint, texts
from srt_peft.training.base import fingerprint, load_tokenizer
from srt_peft.training.folder import DECKS, POOLS, RECIPE, REVIEW, check_idle, check_remembered, check_run, replace
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import _SHAPE, dump, load_recipe
from srt_peft.training.schedule import steps_of

BASE = "base"
"""In a run's folder: what it begins from, where the adapter of the update before was merged into its base."""
Merge = Callable[[Path, Path], None]
"""From a checkpoint to a folder for the whole model."""
PUSHED = "pushed"
"""In a run that goes on from the hub: the adapter or model that it began from."""


@dataclass(frozen=True)
class Ended:
    """A run that has come to its end."""

    folder: Path
    checkpoint: Path
    recipe: Recipe
    """As it was given."""
    identity: dict[str, str]
    steps: int
    past: History | None = None
    """What earlier updates had left to this one; of a run on the hub, that is known otherwise."""


def ended(run: Path, what: str = "next") -> Ended:
    """A finished run; or what is wrong with this one. `what` is the command that asks, for its errors."""
    check_run(run, what)
    check_idle(run)
    newest, faults = checkpoint.newest(run)
    if newest is None:
        reason = faults[0] if faults else "nothing was saved"
        raise StateError(
            f"{run} has no whole checkpoint ({reason}). Train it: `srt-peft train {run / RECIPE} --resume`."
        )
    saved = json.loads((newest / "trainer" / "trainer.json").read_text())
    resolved = load_recipe(saved["recipe"])
    # It lies in the run's folder, wherever that was moved to.
    past = history.open_history(run / FOLDER) if (run / FOLDER).is_dir() else None
    first, n_new = 0 if past is None else past.step, ReviewState.open(newest / "srt_state").n_new
    done, steps = saved["step"] - first, steps_of(resolved, n_new)
    if done < steps:
        fault = (
            f"RUN = {run} was stopped after {done} of {steps} steps: expected a finished update. Go on with "
            f"`srt-peft train {run / RECIPE} --resume`"
        )
        raise OptionError(what, [fault])
    asked = load_recipe(saved.get("asked", saved["recipe"]))
    return Ended(run, newest, asked, saved["identity"], steps, past)


def left_by(run: Ended, old: Sequence[str]) -> Left:
    """What a run leaves; `old` is more old text, of which what is known keeps its state."""
    try:
        pools = {name: [Pool.open(run.folder / POOLS / name / part) for part in ("train", "held_out")]
                 for name in ("old", "new")}  # fmt: skip
    except StateError as error:
        raise StateError(
            f"{error}\nThe tokenised texts of {run.folder} are gone. Make them again from their sources: "
            f"`srt-peft train {run.folder / RECIPE} --resume`; or give these as --old."
        ) from error
    more = []
    if old:
        given = load_recipe({**run.recipe.as_dict(), "data": {**run.recipe.as_dict()["data"], "old": list(old)}})
        more = [texts.tokenised(given, given.data.old, load_tokenizer(given.model.base, given.model.revision))]
    past = run.past
    said = (run.folder / supersedes.FILE).read_bytes() if (run.folder / supersedes.FILE).is_file() else b""
    state = ReviewState.open(run.checkpoint / "srt_state")
    train = [pool[0] for pool in (*pools.values(), *more)]
    found = Left(
        run=str(run.folder),
        state=state,
        train=train,
        held_out=[pool[1] for pool in (*pools.values(), *more)],
        decks=_decks(run),
        pairs=[*supersedes.undumped(said), *(pair for pool, _ in more for pair in supersedes.stored(pool))],
        records=_records(run, state.step),
        updates=0 if past is None else past.update,
        **({} if past is None else {"let_go": past.let_go}),
    )
    own = np.concatenate([pool[0].identity for pool in pools.values()])
    if not np.array_equal(own, state.columns["identity"]):
        check_remembered(run.checkpoint, run.folder)
        raise DamagedError(
            f"The texts in {run.folder / POOLS} are not those that its review state follows. Restore them from a copy."
        )
    return found


def _decks(run: Ended) -> list[str]:
    """What the decks are called; clusters are called nothing that they would be called again."""
    if run.recipe.data.clusters is not None:
        return []
    return [deck["name"] for deck in json.loads((run.folder / DECKS).read_text())]


def _records(run: Ended, step: int) -> Any:
    """All reviews so far, this run's and those before."""
    parts = [np.zeros(0, RECORD)]
    paths = [] if run.past is None else [run.past.folder / history.LOG]
    for path in (*paths, run.folder / REVIEW / "log"):
        with ReviewLog(path) as log:
            parts.append(log.records())
    records = np.concatenate(parts)
    return records[records["step"] < step]


# --- the next one ---------------------------------------------------------------------------------------------------


def follow(
    run: Path,
    new: Sequence[str],
    *,
    out: Path | None = None,
    old: Sequence[str] = (),
    overrides: Sequence[str] = (),
    merge: Merge | None = None,
) -> tuple[Recipe, Made]:
    """Write the folder of the next update, ready to be trained: its history, its recipe, and a base that is merged."""
    last = ended(run)
    out = out or _next_name(run)
    _check_free(out)
    given = load_recipe(_given(last, list(new), out), overrides)
    recipe = _onto(last, given, out)
    tombstones.adopt(home(), run)
    check_remembered(last.checkpoint, run)
    texts.check_there(dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, old=())))
    horizon = recipe.next.horizon or last.steps
    out.mkdir(parents=True, exist_ok=True)
    made = make(left_by(last, old), out / FOLDER, keep=recipe.next.keep, horizon=horizon)
    _name(recipe, run, out)
    texts.corpora(recipe, load_tokenizer(given.model.base, given.model.revision))  # told before a merge, if none is new
    shutil.rmtree(out / BASE, ignore_errors=True)  # of an earlier call, which was stopped, or went on otherwise
    if recipe.next.adapter == "merge":
        assert merge is not None, "whoever offers to merge knows how"
        merge(last.checkpoint, out / BASE)
    return recipe, made


def _name(recipe: Recipe, run: Path, out: Path) -> None:
    """Make the folder a run, which `forget` finds by its recipe: at once, since texts lie in it whatever comes next."""
    if (run / tombstones.FORGOTTEN / tombstones.FILE).is_file():
        stones = (run / tombstones.FORGOTTEN / tombstones.FILE).read_bytes()
        tombstones.write(out / tombstones.FORGOTTEN / tombstones.FILE, stones)
    replace(out / RECIPE, dump(recipe))


def _next_name(run: Path) -> Path:
    """runs/week-09 -> runs/week-10; where there is no number, one is put behind."""
    found = re.fullmatch(r"(.*?)(\d+)", run.resolve().name)
    name = f"{found[1]}{int(found[2]) + 1:0{len(found[2])}}" if found else f"{run.resolve().name}-2"
    return run.parent / name


def _check_free(out: Path) -> None:
    """Refuse a folder that holds a run; what an earlier `next` has prepared there is made anew."""
    known = {FOLDER, BASE, PUSHED, RECIPE, f".{RECIPE}.new", f".{BASE}.part", tombstones.FORGOTTEN}
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    state = out / REVIEW / "state"
    if (out / REVIEW).is_dir() and {state, state / "lock"}.issuperset((out / REVIEW).rglob("*")):
        there.discard(REVIEW)  # `forget` has held it, and left no more than its lock
    strange = sorted(name for name in there - known if not name.startswith(f".{FOLDER}.staged-"))
    if (out.exists() and not out.is_dir()) or strange:
        what = f"holds {strange[0]} already" if strange else "is a file"
        raise OptionError("next", [f"--out = {out} {what}: expected a folder that is not there yet, or is empty"])


def _given(last: Ended, new: list[str], out: Path) -> dict[str, Any]:
    """The recipe of the next update, as far as it follows from the last one's."""
    given = last.recipe.as_dict()
    named = given["data"]["supersedes"]
    data = {"old": str(out / FOLDER), "new": new, "supersedes": supersedes.column_of(named)}
    return {**given, "data": {**given["data"], **data}, "output": str(out)}


def _onto(last: Ended, recipe: Recipe, out: Path) -> Recipe:
    """The same with the model that the next update begins from, by `next.adapter`."""
    base, how = recipe.model.base, recipe.next.adapter
    full = recipe.model.tuning == "full"
    if (
        not full
        and base == last.recipe.model.base
        and fingerprint(base, recipe.model.revision) != last.identity["base"]
    ):
        fault = (
            f"model.base = {base!r} has other weights than when {last.folder} was trained: expected the same. Bring "
            "them back; an adapter that was made for others spoils them"
        )
        raise OptionError("next", [fault])
    given = recipe.as_dict()
    if full:
        if how != "continue":
            fault = f"next.adapter = {how!r} with model.tuning = 'full': expected 'continue', as there is no adapter"
            raise OptionError("next", [fault])
        return load_recipe({**given, "model": {**given["model"], "base": str(last.checkpoint), "revision": None}})
    if how == "merge":
        merged = {"base": str(out / BASE), "revision": None, "adapter": None, "stack": False}
        return load_recipe({**given, "model": {**given["model"], **merged}})
    shape = given["model"]["lora"]
    if how == "continue":  # an adapter keeps its shape, which load_recipe reads
        shape = {key: value for key, value in shape.items() if key not in _SHAPE}
    model = {**given["model"], "adapter": str(last.checkpoint), "stack": how == "stack", "lora": shape}
    return load_recipe({**given, "model": model})
