"""Pools: tokenised examples on disk, memory-mapped, with their texts and what each is known by.

    FOLDER/
      pool.json            what this is, the counts, the names of the sources, the fingerprint and the checksums
      examples.safetensors the columns, back to back; any safetensors reader opens it

column        dtype   length    meaning
offsets       i8      n + 1     tokens[offsets[i] : offsets[i + 1]] are example i
text_offsets  i8      n + 1     text[text_offsets[i] : text_offsets[i + 1]] is its text
document      i8      n         which document of its ingest it was cut from, counted from 0
tokens        i4      T         the token ids of all examples
source        i4      n         an index into the manifest's list of source names
identity      u1      n × 16    BLAKE2b-128 of its text
key           u1      n × 16    BLAKE2b-128 of what its document is called; zeros where it is called nothing
known         u1      k × 16    the keys of the ingest's other documents: held out, double, or empty; sorted
text          u1      bytes     the texts, UTF-8
date          i8      n         optional: when its document is from, seconds since 1970; NO_DATE where it does not say

The identity is that of the text and not of the tokens: state follows an example to another row, another pool
and another tokenizer. The key is that of a whole document: all examples that were cut from it share it, and so do two
documents that are called the same. The fingerprint is over identities, lengths and tokens, in order: two pools that
have the same one train alike.

A pool is written once, beside its place, flushed, and renamed into it; nothing ever writes to it again. A folder
that exists is whole. A reader trusts nothing: the manifest carries a check of itself, the header must be the very
bytes that we would write for a pool of that size, and each column must have its checksum.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import DamagedError, OptionError, StateError, VersionError
from srt_peft.review import files
from srt_peft.review.files import Columns, Layout
from srt_peft.review.rows import IDENTITY_BYTES

FORMAT = "srt_peft pool"
VERSION = 2
MANIFEST = "pool.json"
COLUMNS = "examples.safetensors"
NO_DATE = -(2**63)
_AGAIN = "Delete the folder and ingest the text again."


def identity_of(text: str) -> bytes:
    """What an example is known by: a hash of its text."""
    return blake2b(text.encode(), digest_size=IDENTITY_BYTES).digest()


def key_of(name: str | None) -> bytes:
    """The key of a document that is called so; zeros for one that is called nothing."""
    return bytes(IDENTITY_BYTES) if not name else blake2b(name.encode(), digest_size=IDENTITY_BYTES).digest()


def among(these: NDArray[np.uint8], those: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which of these identities are among those; half a hash is enough, and sorts a good deal faster."""
    mine, theirs = (np.ascontiguousarray(rows[:, :8]).view("<u8").ravel() for rows in (these, those))
    found: NDArray[np.bool_] = np.isin(mine, theirs)
    return found


def layout(examples: int, tokens: int, text: int, known: int, *, dated: bool = False) -> Layout:
    """The columns of a pool of that size. Wide columns come first, so that each is aligned."""
    table = {
        "offsets": ("<i8", (examples + 1,)),
        "text_offsets": ("<i8", (examples + 1,)),
        "document": ("<i8", (examples,)),
        **({"date": ("<i8", (examples,))} if dated else {}),
        "tokens": ("<i4", (tokens,)),
        "source": ("<i4", (examples,)),
        "identity": ("<u1", (examples, IDENTITY_BYTES)),
        "key": ("<u1", (examples, IDENTITY_BYTES)),
        "known": ("<u1", (known, IDENTITY_BYTES)),
        "text": ("<u1", (text,)),
    }
    return {name: (np.dtype(code), shape) for name, (code, shape) in table.items()}


class Pool:
    """The examples of one pool, memory-mapped and read-only."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], columns: Columns) -> None:
        """For `open`."""
        self.folder = folder
        self.manifest = dict(manifest)
        self.columns = columns

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> Pool:
        """Map a pool. `verify=False` leaves out the checksums, for one that this run has verified already."""
        folder = Path(folder)
        manifest = _read_manifest(folder)
        sizes = (manifest[name] for name in ("examples", "tokens", "text_bytes", "known"))
        table = layout(*sizes, dated=manifest.get("dated") is True)
        _check_columns_file(folder / COLUMNS, table)
        pool = cls(folder, manifest, files.map_columns(folder / COLUMNS, table, "r"))
        if verify:
            sums = files.checksums(pool.columns)
            wrong = [name for name, value in sums.items() if value != manifest["checksums"].get(name)]
            if wrong:
                raise DamagedError(
                    f"{folder / COLUMNS} is damaged: {', '.join(wrong)} do not have their checksums. {_AGAIN}"
                )
            pool.check_valid()
        return pool

    @classmethod
    def create(
        cls,
        folder: str | Path,
        tokens: Sequence[ArrayLike],
        texts: Sequence[str],
        *,
        document: ArrayLike | None = None,
        source: ArrayLike | None = None,
        sources: Sequence[str] = ("",),
        ids: Sequence[str | None] | None = None,
    ) -> Pool:
        """A pool of examples that are in memory, row by row: token ids, texts, and what their documents are called."""
        n = len(tokens)
        if len(texts) != n:
            raise OptionError("Pool.create", [f"{len(texts)} texts for {n} examples: expected one each"])
        raw = [text.encode() for text in texts]
        rows = [np.asarray(row, dtype=np.int32) for row in tokens]
        columns: Columns = {
            "offsets": _offsets(map(len, rows), n),
            "text_offsets": _offsets(map(len, raw), n),
            "document": np.asarray(range(n) if document is None else document, dtype=np.int64),
            "tokens": np.concatenate([np.zeros(0, np.int32), *rows]),
            "source": np.asarray([0] * n if source is None else source, dtype=np.int32),
            "identity": np.frombuffer(b"".join(map(identity_of, texts)), np.uint8).reshape(n, IDENTITY_BYTES),
            "key": np.frombuffer(b"".join(map(key_of, ids or [None] * n)), np.uint8).reshape(n, IDENTITY_BYTES),
            "known": np.zeros((0, IDENTITY_BYTES), np.uint8),
            "text": np.frombuffer(b"".join(raw), np.uint8),
        }
        return write(folder, columns, np.arange(n), sources)

    def __len__(self) -> int:
        return int(self.manifest["examples"])

    def __getitem__(self, i: int) -> NDArray[np.int32]:
        """The token ids of example i: a view of the mapping, not to be written to."""
        part: NDArray[np.int32] = self.columns["tokens"][self._span("offsets", i)]
        return part

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[i] for i in range(len(self)))

    def text(self, i: int) -> str:
        """The text that example i was tokenised from."""
        return self.columns["text"][self._span("text_offsets", i)].tobytes().decode()

    def _span(self, name: str, i: int) -> slice:
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"example {i} is not in the pool of {n} examples in {self.folder}")
        start, stop = self.columns[name][i % n : i % n + 2].tolist()
        return slice(start, stop)

    def only(self, rows: NDArray[np.int64]) -> Pool:
        """These examples alone, in this order, as a pool in memory."""
        columns = {name: self.columns[name][rows] for name in _a_row(self.columns)}
        columns["known"] = self.columns["known"]
        for offsets, flat in (("offsets", "tokens"), ("text_offsets", "text")):
            columns[offsets] = np.append(np.int64(0), np.cumsum(np.diff(self.columns[offsets])[rows]))
            columns[flat] = np.empty(columns[offsets][-1], self.columns[flat].dtype)
            _gather(columns[flat], self.columns[flat], self.columns[offsets], rows)
        about = {**self.manifest, "examples": int(rows.size), "fingerprint": _fingerprint(columns)}
        return Pool(self.folder, about, columns)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each example has."""
        return np.diff(self.columns["offsets"])

    @property
    def largest(self) -> int:
        """The largest token id; -1 where there is no token."""
        return int(self.columns["tokens"].max(initial=-1))

    @property
    def identity(self) -> NDArray[np.uint8]:
        """What each example is known by."""
        return self.columns["identity"]

    @property
    def key(self) -> NDArray[np.uint8]:
        """A hash of what each example's document is called; zeros where it is called nothing."""
        return self.columns["key"]

    @property
    def known(self) -> NDArray[np.uint8]:
        """The keys of those documents of its ingest that have no example here."""
        return self.columns["known"]

    @property
    def date(self) -> NDArray[np.int64] | None:
        """When each example's document is from, where that was asked for; NO_DATE where it did not say."""
        return self.columns.get("date")

    @property
    def document(self) -> NDArray[np.int64]:
        """Which document each example was cut from."""
        return self.columns["document"]

    @property
    def source(self) -> NDArray[np.int32]:
        """Which of `sources` each example came from."""
        return self.columns["source"]

    @property
    def sources(self) -> list[str]:
        """The names of the sources."""
        return list(self.manifest["sources"])

    @property
    def fingerprint(self) -> str:
        """A hash over what the examples are, how long, and in which order."""
        return str(self.manifest["fingerprint"])

    def check_valid(self) -> None:
        """Raise a DamagedError where an offset or an index cannot be."""
        c, broken = self.columns, []
        for name, total in (("offsets", "tokens"), ("text_offsets", "text")):
            if c[name][0] != 0 or c[name][-1] != c[total].size or np.any(np.diff(c[name]) < 0):
                broken.append(name)
        if np.any((c["source"] < 0) | (c["source"] >= max(len(self.sources), 1))):
            broken.append("source")
        if broken:
            raise DamagedError(f"The pool in {self.folder} is damaged: {', '.join(broken)} cannot be. {_AGAIN}")


def _a_row(columns: Columns) -> list[str]:
    """The columns that have a value an example."""
    return [name for name in ("document", "source", "identity", "key", "date") if name in columns]


# --- writing ------------------------------------------------------------------------------------------------


def write(
    folder: str | Path,
    columns: Columns,
    rows: NDArray[np.int64],
    sources: Sequence[str],
    about: Mapping[str, Any] | None = None,
) -> Pool:
    """Write these rows of the columns, in this order, as a new pool; `about` is kept in the manifest as it is."""
    folder = Path(folder)
    if folder.exists():
        raise StateError(f"{folder} exists already, and a pool is written once. Delete it, or name another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = folder.with_name(f".{folder.name}.staged-{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    try:
        _write_into(staged, columns, rows, sources, about)
        staged.rename(folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    files.sync(folder.parent)
    return Pool.open(folder, verify=False)


def _write_into(
    staged: Path, columns: Columns, rows: NDArray[np.int64], sources: Sequence[str], about: Mapping[str, Any] | None
) -> None:
    lengths, sizes = (np.diff(columns[name])[rows] for name in ("offsets", "text_offsets"))
    known = columns["known"]
    table = layout(rows.size, int(lengths.sum()), int(sizes.sum()), len(known), dated="date" in columns)
    files.allocate(staged / COLUMNS, table)
    out = files.map_columns(staged / COLUMNS, table, "r+")
    for name in _a_row(columns):
        out[name][:] = columns[name][rows]
    out["known"][:] = known
    for offsets, flat, each in (("offsets", "tokens", lengths), ("text_offsets", "text", sizes)):
        np.cumsum(each, out=out[offsets][1:])
        _gather(out[flat], columns[flat], columns[offsets], rows)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "examples": int(rows.size),
        "tokens": int(out["tokens"].size),
        "text_bytes": int(out["text"].size),
        "known": len(known),
        "documents": int(np.unique(out["document"]).size),
        "sources": list(sources),
        "fingerprint": _fingerprint(out),
        "checksums": files.checksums(out),
        "about": dict(about or {}),
        **({"dated": True} if "date" in columns else {}),
    }
    del out
    for name, content in ((COLUMNS, None), (MANIFEST, files.vouched(manifest))):
        with (staged / name).open("rb+" if content is None else "xb") as file:
            if content is not None:
                file.write(content)
                file.flush()
            os.fsync(file.fileno())
    files.sync(staged)


def _gather(out: files.Array, flat: files.Array, offsets: files.Array, rows: NDArray[np.int64]) -> None:
    """Copy the segments of these rows, a run of neighbours at a time: few rows are left out, so runs are long."""
    if rows.size == 0:
        return
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    at = 0
    for first, last in zip(rows[np.r_[0, breaks]], rows[np.r_[breaks - 1, rows.size - 1]], strict=True):
        start, stop = int(offsets[first]), int(offsets[last + 1])
        out[at : at + stop - start] = flat[start:stop]
        at += stop - start


def _fingerprint(columns: Columns) -> str:
    digest = blake2b(digest_size=16)
    for name in ("identity", "offsets", "tokens"):
        flat = columns[name].reshape(-1)
        for part in files.chunks(flat.size):
            digest.update(flat[part].data)
    return digest.hexdigest()


def _offsets(lengths: Iterable[int], n: int) -> NDArray[np.int64]:
    return np.fromiter(chain([0], accumulate(lengths)), dtype=np.int64, count=n + 1)


# --- pool.json ----------------------------------------------------------------------------------------------


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "examples": _count,
    "tokens": _count,
    "text_bytes": _count,
    "known": _count,
    "documents": _count,
    "sources": lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v),
    "fingerprint": lambda v: isinstance(v, str),
    "checksums": lambda v: isinstance(v, dict),
    "about": lambda v: isinstance(v, dict),
}


def _read_manifest(folder: Path) -> dict[str, Any]:
    """What `pool.json` says, once it is known to be ours, whole, and of this version."""
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(
            f"{folder} holds no pool: expected a folder with a {MANIFEST} in it, as srt_peft.data.ingest writes."
        ) from None
    try:
        manifest: dict[str, Any] | None = json.loads(raw)
        whole = isinstance(manifest, dict) and files.vouched(manifest) == raw
    except (ValueError, RecursionError):
        manifest, whole = None, False
    if not whole:
        raise DamagedError(f"{path} is damaged, or is not ours: its content does not match its own check. {_AGAIN}")
    assert manifest is not None
    if manifest.get("format") != FORMAT:
        raise DamagedError(f"{path} describes {manifest.get('format')!r}, not {FORMAT!r}. Give the folder of a pool.")
    if manifest.get("version") != VERSION:
        raise VersionError(
            f"{path} is of format version {manifest.get('version')!r}; this srt-peft reads version {VERSION}. "
            "Ingest the text again, or upgrade: pip install --upgrade srt-peft."
        )
    if not all(right(manifest.get(key)) for key, right in _FIELDS.items()):
        raise DamagedError(f"{path} is damaged: what it says of its columns cannot be. {_AGAIN}")
    return manifest


def _check_columns_file(path: Path, table: Layout) -> None:
    head, expected = files.header(table), files.size(table)
    try:
        actual = path.stat().st_size
    except OSError:
        raise DamagedError(f"{path} is missing, and its {MANIFEST} describes it. {_AGAIN}") from None
    if actual != expected:
        what = "truncated" if actual < expected else "not that pool's"
        raise DamagedError(f"{path} has {actual} bytes, and must have {expected}: it is {what}. {_AGAIN}")
    with path.open("rb") as file:
        if file.read(len(head)) != head:
            raise DamagedError(f"{path} is damaged: its header is not that of such a pool. {_AGAIN}")
