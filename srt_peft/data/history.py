"""The history: what earlier updates have left to this one, their texts as one old pool and what is known of them.

    RUN/history/
      history.json             which run it is of, which update comes now, and the step at which that begins
      train/  held_out/        pools, as `ingest` writes them: what was trained on, and what never was
      supersedes.jsonl         what replaces what, as the texts of all updates so far have said
      state/                   the review state of the examples of train, row by row, and the clock
      log                      their reviews in all updates so far
      let_go-0.safetensors     what is known of the examples that are kept no longer: they are not new when they return
      forgotten.json           tombstones of the examples that were here until `forget` was asked for; they are not new

A recipe names it as `data.old`, alone. It is written once, as a whole, by `srt_peft.lifecycle`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.data import supersedes, tombstones
from srt_peft.data.pool import Pool
from srt_peft.data.tombstones import Tombstones
from srt_peft.errors import DamagedError, OptionError, StateError
from srt_peft.review import ReviewState, files
from srt_peft.review.rows import IDENTITY_BYTES

FOLDER, FILE = "history", "history.json"
STATE, LOG, LET_GO, FORGOTTEN = "state", "log", "let_go-0.safetensors", "forgotten.json"
FORMAT, VERSION = "srt_peft history", 1


@dataclass(frozen=True)
class History:
    """What earlier updates have left."""

    folder: Path
    about: dict[str, Any]
    train: Pool
    held_out: Pool
    let_go: NDArray[np.uint8]
    forgotten: Tombstones = field(default_factory=lambda: Tombstones({}))

    @property
    def step(self) -> int:
        """The step at which this update begins."""
        return int(self.about["step"])

    @property
    def update(self) -> int:
        """How many updates there were before this one."""
        return int(self.about["updates"])

    @property
    def seen(self) -> NDArray[np.uint8]:
        """What all examples are known by that were here before: none of them is new."""
        return np.concatenate([self.train.identity, self.held_out.identity, self.let_go])

    def state(self, decks: Sequence[str]) -> ReviewState:
        """The review state of the old examples, in memory; `decks` is what the decks are called now, by number."""
        found = ReviewState.restore(self.folder / STATE)
        columns = found.columns
        if "deck" not in columns:
            return found
        theirs = self.about["decks"][: columns["reviews"].size]
        place = np.asarray([decks.index(name) if name in decks else -1 for name in theirs], np.int64)
        there = place >= 0
        for name, empty in (("reviews", 0), ("forgetting", 0.0), ("known", np.nan)):
            moved = np.full(max(len(decks), 1), empty, columns[name].dtype)
            moved[place[there]] = columns[name][there]
            columns[name] = moved
        columns["deck"] = np.maximum(place, 0).astype(np.uint16)[columns["deck"]]
        return found


def named(sources: Sequence[Any]) -> Path | None:
    """The history that these sources of `data.old` are, if they are one; it stands alone."""
    paths = [Path(source.path).expanduser() for source in sources]
    found = [path for path in paths if (path / FILE).is_file()]
    if not found:
        return None
    if len(paths) > 1 or sources[0].limit is not None:
        fault = f"data.old names the history {found[0]}: expected it alone, and whole. Old text is added with `next`"
        raise OptionError("the corpus", [fault])
    return found[0]


def open_history(folder: Path) -> History:
    """A history, once all of it is known to be whole."""
    about = _about(folder)
    train, held_out = Pool.open(folder / "train"), Pool.open(folder / "held_out")
    supersedes.check(train)
    table: files.Layout = {"identity": (np.dtype("<u1"), (about["let_go"], IDENTITY_BYTES))}
    let_go = files.map_columns(folder / LET_GO, table, "r")
    files.verify(folder / LET_GO, let_go, about["checksums"])
    return History(folder, about, train, held_out, let_go["identity"], tombstones.read(folder / FORGOTTEN))


def describe(folder: Path, let_go: NDArray[np.uint8], **about: Any) -> None:
    """Write what a history is, once all else of it lies in the folder."""
    sums = files.write_columns(folder / LET_GO, {"identity": let_go})
    said = {"format": FORMAT, "version": VERSION, **about, "let_go": len(let_go), "checksums": sums}
    (folder / FILE).write_bytes(files.vouched(said))


def _about(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    try:
        raw = path.read_bytes()
        about = json.loads(raw)
        whole = isinstance(about, dict) and files.vouched(about) == raw and about["format"] == FORMAT
    except FileNotFoundError:
        raise StateError(f"{folder} holds no history: expected a folder that `srt-peft next` has written.") from None
    except (ValueError, KeyError, RecursionError):
        about, whole = {}, False
    if not whole or about["version"] != VERSION or not all(right(about.get(key)) for key, right in _FIELDS.items()):
        raise DamagedError(
            f"{path} is damaged, or not of this version. Make it again with `srt-peft next`, from its run."
        )
    return dict(about)


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "run": lambda v: isinstance(v, str),
    "updates": lambda v: type(v) is int and v > 0,
    "step": lambda v: type(v) is int and v >= 0,
    "decks": lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v),
    "let_go": lambda v: type(v) is int and v >= 0,
    "checksums": lambda v: isinstance(v, dict),
}
