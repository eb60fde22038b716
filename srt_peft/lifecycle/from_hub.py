"""The next update, on top of one that was pushed: the texts are here, all else is on the hub.

    hub:REPO, --old TEXTS  ->  OUT/pushed, OUT/history, OUT/recipe.yaml  ->  srt-peft train

With the full state, old text is put where its hash says: in the row that it had, of the source that it had, held out if
it was. So the history is the one that `next` makes where the update was trained, and so is every draw.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.data import supersedes
from srt_peft.data.history import FOLDER
from srt_peft.data.ingest import home
from srt_peft.data.pool import Pool, among
from srt_peft.data.sources import absent
from srt_peft.errors import DamagedError, OptionError, StateError
from srt_peft.lifecycle import hub, pushed
from srt_peft.lifecycle.following import PUSHED, Ended, _check_free, _given, _next_name, _onto
from srt_peft.lifecycle.past import Left, Made, _words, make
from srt_peft.lifecycle.pushed import Base, Known
from srt_peft.review import ReviewState
from srt_peft.review.log import RECORD
from srt_peft.review.rows import IDENTITY_BYTES
from srt_peft.training import checkpoint, texts
from srt_peft.training.base import fingerprint, load_tokenizer
from srt_peft.training.folder import RECIPE, replace
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import dump, load_recipe


@dataclass(frozen=True)
class Followed:
    """What has come of it."""

    recipe: Recipe
    made: Made
    notes: Sequence[str]
    """What cannot be continued."""


def follow(
    name: str, new: Sequence[str], *, out: Path | None = None, old: Sequence[str] = (), overrides: Sequence[str] = ()
) -> Followed:
    """Write the folder of the next update, ready to be trained: what was pushed, its history and its recipe."""
    repo, revision = hub.named(name, "next")
    _check_texts(name, old, new)
    if out is not None:
        _check_free(out)
    commit, there = hub.resolve(repo, revision)
    if pushed.ABOUT not in there:
        fault = f"hub:{repo} has no {pushed.ABOUT}: expected what `srt-peft push` has put there"
        raise OptionError("next", [fault])
    scratch = home() / "fetched" / hashlib.sha256(f"{repo}@{commit}".encode()).hexdigest()[:16]
    try:
        return _followed(f"hub:{repo}@{commit}", scratch, list(old), list(new), out, overrides)
    except OptionError:  # what was fetched may serve the next call; the state goes, since it has hashes of texts
        shutil.rmtree(scratch / pushed.STATE, ignore_errors=True)
        raise
    except StateError:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _followed(
    source: str, scratch: Path, old: list[str], new: list[str], out: Path | None, overrides: Sequence[str]
) -> Followed:
    """Fetch to the scratch folder, and make the next update's folder of it."""
    repo, _, commit = source.removeprefix("hub:").partition("@")
    hub.fetch(repo, commit, [pushed.ABOUT], scratch)
    about = pushed.read_about(scratch)
    out = out or _next_name(Path("runs") / about["run"])
    _check_free(out)
    given = load_recipe(_started(about, old, new, out), overrides)
    if given.next.adapter == "merge":
        fault = (
            f"next.adapter = 'merge' with hub:{repo}: expected 'continue' or 'stack', as what is pushed is an adapter"
        )
        raise OptionError("next", [f"{fault} by itself. Merge when the update after this one begins"])
    _check_base(repo, given, about)
    hub.fetch(repo, commit, _wanted(about), scratch)
    _check_whole(repo, scratch, about)
    known = pushed.read_known(scratch, about) if about["state"] == "full" else None
    base = str(scratch) if given.model.tuning == "full" else given.model.base
    left = _left(source, given, load_tokenizer(base, given.model.revision), about, known)
    made = make(left, out / FOLDER, keep=given.next.keep, horizon=given.next.horizon or about["steps"])
    _put(scratch, out / PUSHED, about, given.model.base)
    last = Ended(Path(source), out / PUSHED, given, {"base": about["base"]["weights"]}, about["steps"])
    recipe = _onto(last, load_recipe(_given(last, new, out), overrides), out)
    replace(out / RECIPE, dump(recipe))
    shutil.rmtree(scratch, ignore_errors=True)
    return Followed(recipe, made, _notes(about))


def _check_texts(name: str, old: Sequence[str], new: Sequence[str]) -> None:
    gone = absent([*old, *new])
    if gone:
        raise OptionError("the corpus", gone)
    if not old:
        fault = f"{name} without --old: expected the texts that it was trained on, which are not pushed. Give them"
        raise OptionError("next", [f"{fault} with --old PATH, each"])


def _started(about: Mapping[str, Any], old: list[str], new: list[str], out: Path) -> dict[str, Any]:
    """The recipe that was pushed, over the texts that are here; nothing in it reaches beyond this machine."""
    given, base = about["recipe"], about["base"]
    local = Path(base["name"]).is_dir()
    model = {**given["model"], "base": base["name"], "adapter": None, "stack": False}
    model["revision"] = None if base["local"] or local else base["revision"] or base["weights"]
    if model["tuning"] == "full":
        model["revision"] = None
    data = {**given["data"], "old": old, "new": new}
    evaluation = {**given.get("evaluation", {}), "suites": []}
    return {
        **given,
        "model": model,
        "data": data,
        "evaluation": evaluation,
        "tracking": {"with": []},
        "output": str(out),
    }


def _check_base(repo: str, recipe: Recipe, about: Mapping[str, Any]) -> None:
    """Refuse another base than the one that was pushed; a whole model is its own."""
    if recipe.model.tuning == "full":
        return
    base, given = Base(**about["base"]), recipe.model.base
    if base.local and not Path(given).is_dir():
        fault = f"model.base = {given!r} was a folder where hub:{repo} was pushed, and is none here"
        raise OptionError("next", [f"{fault}: expected model.base=PATH, with the weights {base.weights}"])
    found = fingerprint(given, recipe.model.revision)
    if found != base.weights:
        fault = (
            f"model.base = {given!r} has the weights {found}: expected those of {base.name!r} that hub:{repo} was made"
        )
        raise OptionError("next", [f"{fault} for, {base.weights}. An adapter spoils any other base"])


def _wanted(about: Mapping[str, Any]) -> list[str]:
    """What is fetched: weights, configuration and state, of kinds that hold no code."""
    names = [name for name in about["files"] if Path(name).suffix in pushed.SAFE]
    return [re.sub(r"([*?[])", r"[\1]", name) for name in names if not name.startswith(f"{pushed.PICTURES}/")]


def _check_whole(repo: str, folder: Path, about: Mapping[str, Any]) -> None:
    """Refuse files that are not as they were pushed; they are fetched again by the next call."""
    for name, said in about["files"].items():
        if Path(name).suffix not in pushed.SAFE or name.startswith(f"{pushed.PICTURES}/"):
            continue
        path = folder / name
        if not path.is_file() or checkpoint.described(path) != said:
            shutil.rmtree(folder, ignore_errors=True)
            raise DamagedError(
                f"{name} of hub:{repo} is not as it was pushed. Fetch it again, or push the update again."
            )


def _put(scratch: Path, folder: Path, about: Mapping[str, Any], base: str) -> None:
    """The adapter or the model into the run's folder, without the state: its history has that.

    The adapter is told what its base is called here, whose weights are known to be the right ones.
    """
    staged = folder.with_name(f".{folder.name}.staged")
    for each in (staged, folder):
        shutil.rmtree(each, ignore_errors=True)
    staged.mkdir(parents=True)
    for name in (
        pushed.ABOUT,
        *(name for name in about["files"] if "/" not in name and Path(name).suffix in pushed.SAFE),
    ):
        shutil.copyfile(scratch / name, staged / name)
    config = staged / "adapter_config.json"
    if config.is_file():
        said = json.loads(config.read_text(encoding="utf-8")) | {"base_model_name_or_path": base}
        config.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    staged.rename(folder)


# --- what it has left -----------------------------------------------------------------------------------------------


def _left(run: str, given: Recipe, tokenizer: Any, about: Mapping[str, Any], known: Known | None) -> Left:
    """As `following.left_by` has it of a run that is here."""
    train, held_out = texts.tokenised(given, given.data.old, tokenizer, grouped=False)
    shared = {
        "run": run,
        "decks": about["decks"],
        "pairs": list(supersedes.stored(train)),
        "records": np.zeros(0, RECORD),
        "updates": about["updates"] - 1,
    }
    if known is None:
        state = ReviewState.create(0, 0, identity=np.zeros((0, IDENTITY_BYTES), np.uint8))
        state.step = about["step"]
        return Left(**shared, state=state, train=[train], held_out=[held_out])
    mine = known.state.columns["identity"]
    if not among(mine, np.concatenate([train.identity, held_out.identity])).any():
        sources = ", ".join(about["sources"][:8])
        fault = f"--old has none of the {len(mine):,} examples that the state knows: expected the texts of {sources}"
        raise OptionError("next", [f"{fault}, with the columns that the recipe names"])
    ours, apart = ([_is_of(pool, rows) for pool in (train, held_out)] for rows in (mine, known.held_out))
    fresh = ~apart[0] & ~_is_of(train, known.let_go)
    trained = [_rows(train, ours[0] | fresh), _rows(held_out, ours[1])]
    away = [_rows(held_out, ~ours[1]), _rows(train, apart[0] & ~ours[0])]
    trained = [_sourced(pool, known, about["sources"]) for pool in trained]
    return Left(**shared, state=known.state, train=trained, held_out=away, let_go=known.let_go)


def _is_of(pool: Pool, identities: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return among(pool.identity, identities)


def _rows(pool: Pool, chosen: NDArray[np.bool_]) -> Pool:
    return pool.only(np.flatnonzero(chosen))


def _sourced(pool: Pool, known: Known, sources: Sequence[str]) -> Pool:
    """The same, each example that the state knows of the source that it had: its deck depends on it."""
    names = list(dict.fromkeys([*sources, *pool.sources]))
    source = np.asarray([names.index(name) for name in pool.sources], np.int32)[pool.source]
    mine, first = np.unique(_words(known.state.columns["identity"]), return_index=True)
    _, here, there = np.intersect1d(_words(pool.identity), mine, assume_unique=True, return_indices=True)
    source[here] = known.source[first[there]]
    return Pool(pool.folder, {**pool.manifest, "sources": names}, {**pool.columns, "source": source})


def _notes(about: Mapping[str, Any]) -> list[str]:
    """What the next update does not have of this one."""
    told = []
    if about["state"] != "full":
        told.append(
            f"It was pushed with --with-state {about['state']}: the adapter, the clock and the recipe go on. Which old "
            "example was known how well is not there: each begins with a fresh state, and what next.keep has let go is "
            "new again where it is given as new."
        )
    if about["supersedes"] and about["recipe"]["data"]["supersedes"] is None:
        told.append(
            "What replaces what was a file, which is not pushed: give it with data.supersedes=PATH, else what it set "
            "aside falls due again."
        )
    return told
