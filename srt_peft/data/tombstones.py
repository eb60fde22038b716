"""Tombstones: what was forgotten, kept as keyed hashes, so that it is known again when it comes back, and not before.

    HOME/tombstones/NAME.json             what was forgotten by one call, a file each, never changed
    RUN/forgotten/tombstones.json         all that the run has to do with: it brings them along to another home

A set is a key of its own (random) and the hashes, under that key, of

    examples     the identities of examples: their text never becomes an example again, whoever brings it
    documents    the keys of documents that were forgotten by their names: nothing of that name is read again
    names        the keys of documents of which nothing was left: what `supersedes` says of them is passed over

Who has the key and a text can tell whether it was forgotten, and that is all that a tombstone tells.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from srt_peft.data.pool import key_of
from srt_peft.errors import DamagedError
from srt_peft.review import files

FOLDER, FORGOTTEN, FILE = "tombstones", "forgotten", "tombstones.json"
FORMAT, VERSION = "srt_peft tombstones", 1
KINDS = ("examples", "documents", "names")

Hashes = NDArray[np.uint8]


@dataclass(frozen=True)
class Tombstones:
    """Sets of keyed hashes, by (key, kind)."""

    sets: dict[tuple[bytes, str], frozenset[bytes]]

    def __bool__(self) -> bool:
        return any(self.sets.values())

    @property
    def digest(self) -> str:
        """The same for the same tombstones."""
        told = blake2b(digest_size=16)
        for (key, kind), hashes in sorted(self.sets.items()):
            told.update(key + kind.encode() + b"".join(sorted(hashes)))
        return told.hexdigest()

    def of(self, kind: str, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of these rows were forgotten; none that is all zeros, which is nobody's."""
        raw = np.ascontiguousarray(hashes)
        found = np.zeros(len(raw), dtype=bool)
        for (key, mine), known in self.sets.items():
            if mine == kind and known:
                found |= np.fromiter((_keyed(key, row.tobytes()) in known for row in raw), bool, len(raw))
        return found & raw.any(axis=1)

    def names(self, name: str | None) -> bool:
        """Whether nothing was left of the document that is called so."""
        row = np.frombuffer(key_of(name), np.uint8)[None]
        return bool(self.of("names", row)[0] or self.of("documents", row)[0])

    def __or__(self, other: Tombstones) -> Tombstones:
        keys = self.sets.keys() | other.sets.keys()
        none = frozenset[bytes]()
        return Tombstones({k: self.sets.get(k, none) | other.sets.get(k, none) for k in keys})

    def dumped(self) -> bytes:
        """As they are stored."""
        keys = sorted({key for key, _ in self.sets})
        sets = [
            {"key": key.hex(), **{kind: sorted(h.hex() for h in self.sets.get((key, kind), ())) for kind in KINDS}}
            for key in keys
        ]
        return files.vouched({"format": FORMAT, "version": VERSION, "sets": sets})


def made(key: bytes, **rows: Iterable[bytes]) -> Tombstones:
    """The tombstones of these identities and keys, by kind."""
    return Tombstones({(key, kind): frozenset(_keyed(key, row) for row in those) for kind, those in rows.items()})


def _keyed(key: bytes, row: bytes) -> bytes:
    return blake2b(row, digest_size=16, key=key).digest()


# --- on disk --------------------------------------------------------------------------------------------------------


def load(home: Path) -> Tombstones:
    """All tombstones of a home."""
    found = Tombstones({})
    for path in sorted((home / FOLDER).glob("*.json")):
        found |= read(path)
    return found


def read(path: Path) -> Tombstones:
    """One file of them; none where there is none."""
    try:
        raw = path.read_bytes()
        said = json.loads(raw)
        whole = isinstance(said, dict) and files.vouched(said) == raw and said["format"] == FORMAT
        sets = {
            (bytes.fromhex(one["key"]), kind): frozenset(map(bytes.fromhex, one[kind]))
            for one in said["sets"]
            for kind in KINDS
        }
    except FileNotFoundError:
        return Tombstones({})
    except (ValueError, KeyError, TypeError, RecursionError):
        whole, sets, said = False, {}, {}
    if not whole or said["version"] != VERSION:
        raise DamagedError(
            f"{path} is damaged, or of another version: without it, what was forgotten would come back. Restore it "
            f"from a copy (each run has one as {FORGOTTEN}/{FILE}), or delete it and forget again."
        )
    return Tombstones(sets)


def key(known: Tombstones) -> bytes:
    """The key for new ones: that which the home has already, so that an identity is hashed once, or a random one."""
    return min((key for key, _ in known.sets), default=None) or secrets.token_bytes(32)


def keep(home: Path, stones: Tombstones) -> None:
    """Add these to a home, in a file that nobody ever changes."""
    raw = stones.dumped()
    write(home / FOLDER / f"{blake2b(raw, digest_size=12).hexdigest()}.json", raw)


def adopt(home: Path, run: Path) -> None:
    """Have what the run has forgotten forgotten in this home, too: it may have come from another."""
    path = run / FORGOTTEN / FILE
    if path.is_file():
        theirs, ours = read(path), load(home)
        if (ours | theirs).digest != ours.digest:
            keep(home, theirs)


def write(path: Path, raw: bytes) -> None:
    """Put a file that is nobody else's business in place, in one step, and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    files.sync(path.parent)


def rows(hashes: Hashes) -> Iterator[bytes]:
    """Each row as bytes."""
    return (row.tobytes() for row in hashes)
