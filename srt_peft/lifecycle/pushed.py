"""The form in which an update is pushed: what stands in the folder, how it is written, and how it is read again.

    FOLDER/
      adapter_model.safetensors  adapter_config.json     (tuning: full: model*.safetensors, config.json, tokenizer)
      README.md                  the model card, with pictures/
      srt_peft.json              the recipe as it was asked for, base, clock, lineage; sizes and hashes of the rest
      review.json                anonymous, full: statistics a pool and a deck
      srt_state/                 full: the review state at the end, row by row, and the hash of each example's text
        known-0.safetensors        the source of each row; the hashes of what was held out, and of what was let go

No text is in it, no id of a document, and no path of this machine: what was a path is the name at its end. The same run
gives the same bytes, so that an upload that broke off finds what it has sent before.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import srt_peft
from srt_peft.data import supersedes
from srt_peft.errors import DamagedError, VersionError
from srt_peft.lifecycle.following import Ended
from srt_peft.lifecycle.past import Left
from srt_peft.review import ReviewState, files
from srt_peft.review.rows import IDENTITY_BYTES
from srt_peft.training import checkpoint

FORMAT, VERSION = "srt_peft pushed", 1
ABOUT, REVIEW, STATE, KNOWN, CARD = "srt_peft.json", "review.json", "srt_state", "known-0.safetensors", "README.md"
PICTURES = "pictures"
WITH_STATE = ("none", "anonymous", "full")
FEW = 10
"""Fewer examples are counted with others: a distribution of one example is that example's state."""
SAFE = {".safetensors", ".json", ".txt", ".model", ".jinja"}
"""What a model's files end in; anything else is neither pushed nor fetched."""
_ADAPTER = {"adapter_model.safetensors", "adapter_config.json"}
_NAMES = ("base_model_name_or_path", "_name_or_path", "name_or_path")


@dataclass(frozen=True)
class Base:
    """The base that the first update of all was trained on."""

    name: str
    revision: str | None
    weights: str
    """What tells its weights apart: its commit on the hub, or a hash of the folder that it was."""
    local: bool
    """Whether it was a folder, which has no address."""


def base_of(run: Ended) -> Base:
    """Of an adapter, its base; of a whole model, what the first of its line was trained on."""
    name, revision, weights = run.recipe.model.base, run.recipe.model.revision, run.identity["base"]
    while run.recipe.model.tuning == "full" and Path(name).is_dir():
        folder = Path(name)
        if (folder / ABOUT).is_file():
            return Base(**read_about(folder)["base"])
        if not (folder / "trainer" / "trainer.json").is_file():
            break
        saved = json.loads((folder / "trainer" / "trainer.json").read_text())
        model, weights = saved["recipe"]["model"], saved["identity"]["base"]
        name, revision = model["base"], model["revision"]
    local = Path(name).is_dir() or name.startswith((".", "/", "~"))
    return Base(Path(name).resolve().name if local else name, revision, weights, local)


# --- writing --------------------------------------------------------------------------------------------------------


def write(
    folder: Path, run: Ended, left: Left, *, state: str, card: Callable[[Mapping[str, Any]], str],
    pictures: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Write all of it; `card` makes the model card of what srt_peft.json says, which is handed back."""
    base = base_of(run)
    folder.mkdir(parents=True)
    _write_model(folder, run, base)
    for name, picture in pictures.items():
        _write(folder / PICTURES / name, picture)
    known: dict[str, Any] | None = None
    if state != "none":
        _write(folder / REVIEW, _dump(statistics(left)))
    if state == "full":
        known = _write_state(folder / STATE, run, left)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "srt_peft": srt_peft.__version__,
        "state": state,
        "run": run.folder.resolve().name,
        "step": left.state.step,
        "steps": run.steps,
        "updates": left.updates + 1,
        "base": vars(base),
        "recipe": told(run, left, base),
        "old": left.state.n_old,
        "new": left.state.n_new,
        "decks": list(left.decks),
        "sources": _sources(left),
        "known": known,
        "supersedes": run.recipe.data.supersedes is not None,
        "files": {
            path.relative_to(folder).as_posix(): checkpoint.described(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    }
    (folder / ABOUT).write_bytes(files.vouched(about))
    _write(folder / CARD, card(about))
    return about


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _dump(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _write_model(folder: Path, run: Ended, base: Base) -> None:
    """What PEFT or Transformers loads: the adapter alone, whose base has the tokenizer; or all of a whole model."""
    full = run.recipe.model.tuning == "full"
    for path in sorted(run.checkpoint.iterdir()):
        if not path.is_file() or path.suffix not in SAFE or path.name == "MANIFEST.json":
            continue
        if not full and path.name not in _ADAPTER:
            continue
        if path.name.endswith("config.json"):
            said = json.loads(path.read_text(encoding="utf-8"))
            said |= {name: base.name for name in _NAMES if said.get(name)}
            _write(folder / path.name, _dump(said))
        else:
            _copy(path, folder / path.name)


def _copy(source: Path, to: Path) -> None:
    try:
        os.link(source, to)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, to)


def _sources(left: Left) -> list[str]:
    return list(dict.fromkeys(name for pool in left.train for name in pool.sources))


def told(run: Ended, left: Left, base: Base) -> dict[str, Any]:
    """The recipe as it was asked for, with names where it had paths, and without what is of this machine alone."""
    given = run.recipe.as_dict()
    old, new = ([name for name, _ in counted(pool)] for pool in left.train[:2])
    column = supersedes.column_of(run.recipe.data.supersedes)
    suites = [word for word in given["evaluation"]["suites"] if "=" not in word]  # the others name files
    return {
        **given,
        "model": {**given["model"], "base": base.name, "revision": base.revision, "adapter": None, "stack": False},
        "data": {**given["data"], "old": old, "new": new, "supersedes": column},
        "review": {**given["review"], "counts": None},
        "evaluation": {**given["evaluation"], "suites": suites},
        "tracking": {"with": []},
        "output": run.folder.resolve().name,
    }


def counted(pool: Any) -> list[tuple[str, int]]:
    """The sources of a pool and how many examples each has, most first."""
    counts = np.bincount(pool.source, minlength=len(pool.sources))
    order = np.argsort(-counts, kind="stable")
    return [(pool.sources[i], int(counts[i])) for i in order if counts[i]]


def _write_state(folder: Path, run: Ended, left: Left) -> dict[str, Any]:
    """The review state as the checkpoint has it, and beside it what only hashes can say of other texts."""
    folder.mkdir()
    source = run.checkpoint / STATE
    for name in (files.MANIFEST, files.read_manifest(source)["file"]):
        _copy(source / name, folder / name)
    names = {name: i for i, name in enumerate(_sources(left))}
    columns: files.Columns = {
        "source": np.concatenate(
            [np.asarray([names[n] for n in pool.sources], np.int32)[pool.source] for pool in left.train]
        ),
        "held_out": _distinct([pool.identity for pool in left.held_out]),
        "let_go": _distinct([left.let_go]),
    }
    sums = files.write_columns(folder / KNOWN, columns)
    return {"held_out": len(columns["held_out"]), "let_go": len(columns["let_go"]), "checksums": sums}


def _distinct(parts: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Each once, sorted: their order says nothing of the texts'."""
    every = np.concatenate([np.zeros((0, IDENTITY_BYTES), np.uint8), *parts])
    return np.unique(every, axis=0)


# --- statistics -----------------------------------------------------------------------------------------------------


def statistics(left: Left) -> dict[str, Any]:
    """What may be known of the review state without knowing anything of an example: counts a pool and a deck."""
    state, c = left.state, left.state.columns
    found: dict[str, Any] = {"format": "srt_peft review statistics", "version": 1, "step": state.step}
    if min(state.n_old, state.n_new) < FEW:
        found["pools"] = {"both": _grouped(left, np.zeros(state.n, np.int64), 1)[0]}
    else:
        pool = (np.arange(state.n) >= state.n_old).astype(np.int64)
        found["pools"] = dict(zip(("old", "new"), _grouped(left, pool, 2), strict=True))
    if "deck" not in c or not left.decks:
        return {**found, "decks": []}
    sizes = np.bincount(c["deck"], minlength=len(left.decks))
    small = _small(sizes)
    together = np.where(small, len(sizes), np.arange(len(sizes)))[c["deck"]]
    *each, rest = _grouped(left, together, len(sizes) + 1)
    decks: list[dict[str, Any]] = [
        {"name": name, **told, "forgetting": _number(c["forgetting"][g]), "reviews": int(c["reviews"][g])}
        for g, (name, told) in enumerate(zip(left.decks, each, strict=False))
        if not small[g]
    ]
    if rest["examples"]:
        decks.append({"name": "other decks, together", **rest})
    return {**found, "decks": decks}


def _small(sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Those that are counted together: small ones, and the next larger until what is left of the sums is not few."""
    small: NDArray[np.bool_] = sizes < FEW
    for g in np.argsort(sizes, kind="stable"):
        if 0 < sizes[small].sum() < FEW:
            small[g] = True
    return small


def _grouped(left: Left, group: NDArray[np.int64], count: int) -> list[dict[str, Any]]:
    """The counts of each group of examples."""
    quality = np.zeros((count, 6), np.int64)
    reviews = left.records[left.records["id"] >= 0]
    np.add.at(quality, (group[reviews["id"]], reviews["quality"]), 1)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=count))
    parts = np.split(order, ends[:-1])
    return [_counts(left.state, rows, quality[g]) for g, rows in enumerate(parts)]


def _counts(state: ReviewState, rows: NDArray[np.int64], quality: NDArray[np.int64]) -> dict[str, Any]:
    c = {name: state.columns[name][rows] for name in ("visits", "interval", "ease", "suspended")}
    seen = c["visits"] > 0
    power = np.frexp(c["interval"][seen].astype(np.float64))[1] - 1
    tenths = c["ease"][seen].astype(np.int64) // 10
    return {
        "examples": int(rows.size),
        "seen": int(seen.sum()),
        "suspended": int((c["suspended"] > 0).sum()),
        "qualities": quality.tolist(),
        "intervals_from": {
            str(2 ** int(k)): int(n) for k, n in zip(*np.unique(power, return_counts=True), strict=True)
        },
        "eases_from": {f"{k / 10:.1f}": int(n) for k, n in zip(*np.unique(tenths, return_counts=True), strict=True)},
    }


def _number(value: Any) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What a full state says of texts beside its rows."""

    state: ReviewState
    source: NDArray[np.int32]
    held_out: NDArray[np.uint8]
    let_go: NDArray[np.uint8]


def read_about(folder: Path) -> dict[str, Any]:
    """What srt_peft.json says, once it is known to be ours and whole."""
    path = folder / ABOUT
    try:
        raw = path.read_bytes()
        about = json.loads(raw)
        whole = isinstance(about, dict) and about["format"] == FORMAT and files.vouched(about) == raw
    except (OSError, ValueError, KeyError, RecursionError):
        about, whole = {}, False
    if not whole:
        raise DamagedError(f"{path} is damaged, or is not ours. Push the update again.")
    if about["version"] != VERSION:
        raise VersionError(
            f"{path} is of format version {about['version']!r}; this srt-peft reads version {VERSION}. Upgrade: pip "
            "install --upgrade srt-peft."
        )
    if not all(right(about.get(name)) for name, right in _FIELDS.items()):
        raise DamagedError(f"{path} is damaged: what it says cannot be. Push the update again.")
    return dict(about)


def read_known(folder: Path, about: Mapping[str, Any]) -> Known:
    """The state of a folder that has one, as srt_peft.json vouches for it."""
    state, said = ReviewState.open(folder / STATE), about["known"]
    table: files.Layout = {
        "source": (np.dtype("<i4"), (state.n,)),
        "held_out": (np.dtype("<u1"), (said["held_out"], IDENTITY_BYTES)),
        "let_go": (np.dtype("<u1"), (said["let_go"], IDENTITY_BYTES)),
    }
    columns = files.map_columns(folder / STATE / KNOWN, table, "r")
    files.verify(folder / STATE / KNOWN, columns, said["checksums"])
    if np.any((columns["source"] < 0) | (columns["source"] >= len(about["sources"]))) or state.identity is None:
        raise DamagedError(f"{folder / STATE} is damaged: it names sources that are not there. Push the update again.")
    return Known(state, columns["source"], columns["held_out"], columns["let_go"])


def _plain_name(name: Any) -> bool:
    """A relative path that stays in its folder, of a kind that holds no code."""
    if not isinstance(name, str):
        return False
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts and len(path.parts) <= 2 and "\\" not in name


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "state": lambda v: v in WITH_STATE,
    "run": lambda v: isinstance(v, str),
    "step": lambda v: type(v) is int and v >= 0,
    "steps": lambda v: type(v) is int and v > 0,
    "updates": lambda v: type(v) is int and v > 0,
    "base": lambda v: isinstance(v, dict) and v.keys() == Base.__dataclass_fields__.keys(),
    "recipe": lambda v: isinstance(v, dict) and all(isinstance(v.get(k), dict) for k in ("model", "data")),
    "decks": lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v),
    "sources": lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v),
    "known": lambda v: v is None or (isinstance(v, dict) and v.keys() == {"held_out", "let_go", "checksums"}),
    "files": lambda v: isinstance(v, dict) and all(map(_plain_name, v)),
}
