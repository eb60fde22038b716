"""Text becomes pools: read, cut into examples, tokenise in several processes, drop what is empty or double, hold out.

Reading is in `sources`, cutting in `cutting`, tokens and processes in `tokenise`; here is what brings them together,
what is kept of it, and the cache.

What was forgotten (`tombstones`) is dropped after that, so that everybody else is held out or not as before; a cached
pool that holds some of it is made anew.

Pools are cached by content under `${SRT_PEFT_HOME:-~/.cache/srt-peft}/pools`: the key is a hash of the inputs' bytes,
the tokenizer and the options. `datasets` and the hub are made to keep their caches there as well, so that all that was
derived from a text can be found, and erased.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srt_peft.data import pool as pools, supersedes, tombstones
from srt_peft.data.pool import Pool, key_of
from srt_peft.data.reading import fail
from srt_peft.data.register import Register, others
from srt_peft.data.sources import Source, Wanted, documents_of, sources_of
from srt_peft.data.tokenise import Plan, batches_of, plan_of, tokenised
from srt_peft.data.tombstones import Tombstones
from srt_peft.errors import LockedError, SRTError, StateError
from srt_peft.review.files import Array, Columns, Lock, sync
from srt_peft.review.rows import IDENTITY_BYTES

VERSION = 2
"""Of what a text becomes: a change to cutting, marks or hold-out raises it, and so misses the cache."""

FEW = 20
"""With fewer documents, examples are held out instead; with fewer examples, nothing is."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What became of a corpus; `examples` and `tokens` are those kept, the held-out ones among them."""

    documents: int
    examples: int
    tokens: int
    empty: int
    duplicates: int
    cut: int
    held_out: int
    seen: int = 0
    """Left out, since they were there before."""
    forgotten: int = 0
    """Left out, since they were forgotten."""


class Ingested(NamedTuple):
    """A pool to train on, one that is never trained on (it may be empty), and the counts."""

    train: Pool
    held_out: Pool
    report: Report


def ingest(
    source: Any,
    tokenizer: Any,
    *,
    text_column: str = "text",
    source_column: str | None = None,
    grouped: bool = True,
    id_column: str = "id",
    supersedes_column: str | None = None,
    date_column: str | None = None,
    format: str = "text",  # noqa: A002 - the recipe's name for it
    max_length: int = 2048,
    holdout: float = 0.01,
    without: NDArray[np.uint8] | None = None,
    before: Tombstones | None = None,
    cache: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> Ingested:
    """Tokenise a source, or open the pools that it became before.

    `source` is a path, a hub name (`org/name`, or `org/name:config`), or a list of these and of
    {path, source, limit}. An empty list is no text at all, and gives empty pools. A null in a text column is an empty
    document. Documents are held out by a hash of their content, so that the choice outlives the corpus's growth.

    `source_column` says which source each row is from, where that is not the one that it was found in; `__file__` makes
    every file a source of its own. Each source that is given must have that column, unless `grouped` is False. What a
    row supersedes is kept beside the pools, where `supersedes.read` finds it.
    Examples that are known by one of the identities `without` are left out, and those that were known so until they
    were forgotten: `before` has the tombstones of these.
    """
    plan = plan_of(tokenizer, format, max_length, holdout, workers)
    root = home(cache)
    column = "messages" if format == "chat" and text_column == "text" else text_column
    wanted = Wanted(column, source_column, id_column, supersedes_column, grouped, date_column)
    sources = sources_of(source, root, format)
    without = None if without is None else np.unique(without, axis=0)
    key = _key(sources, plan, wanted, holdout, without)
    target = root / "pools" / key
    found = _open(target, tombstones.load(root))
    if found is not None:
        return found
    try:
        with workplace(target.parent) as staged:
            names = list(dict.fromkeys(s.name for s in sources))
            register = Register([] if source_column else names, supersedes_column, dated=date_column is not None)
            documents = register.watch(documents_of(sources, wanted, format))
            with _bar(sources, progress=progress) as advance:
                columns, hashes = _spool(staged, tokenised(batches_of(documents, plan, advance), plan, workers))
            stones = tombstones.load(root)
            seen = _seen(columns["identity"], without, before)
            left = _divide(columns, hashes, holdout, names, seen, _forgotten(columns, register, stones))
            _write(staged / "whole", columns, left, register, key, stones)
            sync(staged / "whole")
            try:
                (staged / "whole").rename(target)
            except OSError:
                if not target.exists():  # else another process was first, with the same bytes
                    raise
            sync(target.parent)
    except OSError as error:
        raise StateError(
            f"The pools could not be written in {root} ({error.strerror or error}); nothing was left there. Free some "
            "space, or set SRT_PEFT_HOME to a folder that can be written to and has room."
        ) from error
    found = _open(target, tombstones.load(root))
    if found is None:
        raise StateError(f"While {target} was written, some of it was forgotten. Try again.")
    return found


def home(cache: str | Path | None = None) -> Path:
    """Where all that is derived from a text is kept."""
    return Path(cache if cache is not None else os.environ.get("SRT_PEFT_HOME") or "~/.cache/srt-peft").expanduser()


class _Left(NamedTuple):
    """What is kept of an ingest: which rows, and which documents have none since they were forgotten."""

    train: NDArray[np.int64]
    held_out: NDArray[np.int64]
    report: Report
    gone: NDArray[np.int64]


def _write(whole: Path, columns: Columns, left: _Left, register: Register, key: str, stones: Tombstones) -> None:
    """The pools of these rows, and beside them what their documents supersede."""
    rows = {"train": left.train, "held_out": left.held_out}
    away = _gone(register, columns["document"], left, stones)
    names = None if register.ids is None else [name for name in register.ids if key_of(name) not in away]
    about: dict[str, Any] = {"key": key, "report": asdict(left.report), "ids": names}
    columns = {**columns, "source": register.source[columns["document"]], "key": register.key[columns["document"]]}
    if register.dated:
        columns["date"] = register.date[columns["document"]]
    if register.supersedes is not None:
        raw = supersedes.dumped(supersedes.kept(register.pairs, away))
        about["supersedes"] = {"hash": supersedes.digest(raw), "seen": register.seen, "lacking": register.lacking}
    for name, chosen_rows in rows.items():
        known = others(register.key, columns["document"][chosen_rows])
        columns["known"] = known[[row.tobytes() not in away for row in known]] if away else known
        pools.write(whole / name, columns, chosen_rows, register.names, about)
    if register.supersedes is not None:
        with (whole / supersedes.FILE).open("xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())


def _seen(
    identity: NDArray[np.uint8], without: NDArray[np.uint8] | None, before: Tombstones | None
) -> NDArray[np.bool_]:
    """Which rows were there before this update."""
    seen = np.zeros(len(identity), bool) if without is None else pools.among(identity, without)
    return seen if before is None else seen | before.of("examples", identity)


def _forgotten(columns: Columns, register: Register, stones: Tombstones) -> NDArray[np.bool_]:
    """Which rows were forgotten, by their text or by their document's name."""
    blocked = stones.of("documents", register.key)[columns["document"]]
    return blocked | stones.of("examples", columns["identity"])


def _gone(register: Register, document: NDArray[np.int64], left: _Left, stones: Tombstones) -> set[bytes]:
    """The keys of documents of which nothing is left since it was forgotten, and that no other document has now."""
    if not stones:
        return set()
    there = {row.tobytes() for row in register.key[np.unique(document[np.concatenate([left.train, left.held_out])])]}
    named = register.key[stones.of("names", register.key) | stones.of("documents", register.key)]
    return {row.tobytes() for row in (*register.key[left.gone], *named)} - there - {bytes(IDENTITY_BYTES)}


CLEARED = "cleared"
"""Beside the pools: the digest of those tombstones that they are known to hold nothing of."""


def _clear(target: Path, pools_: Sequence[Pool], stones: Tombstones) -> bool:
    """Whether these pools hold nothing that was forgotten; what was looked at once is not looked at again."""
    said = target / CLEARED
    if not stones or (said.is_file() and said.read_text() == stones.digest):
        return True
    if any(stones.of("examples", p.identity).any() or stones.of("documents", p.key).any() for p in pools_):
        return False
    with suppress(OSError):  # it is looked at again next time
        beside = target / f".{CLEARED}.new-{os.getpid()}"
        beside.write_text(stones.digest)
        beside.replace(said)
    return True


def _open(target: Path, stones: Tombstones) -> Ingested | None:
    """The pools of an earlier run, or None; what is damaged is only a cache, and is made anew."""
    if not target.exists():
        return None
    try:
        train, held_out = Pool.open(target / "train"), Pool.open(target / "held_out")
        supersedes.check(train)
        if not _clear(target, (train, held_out), stones):
            raise StateError(f"{target} holds what was forgotten since.")
        return Ingested(train, held_out, Report(**train.manifest["about"]["report"]))
    except (SRTError, OSError, KeyError, TypeError) as error:
        _log.warning("A cached pool cannot be used, and is made anew: %s", error)
        shutil.rmtree(target, ignore_errors=True)
        return None


@contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """A folder to work in that is gone afterwards; those that a killed process left hold text, and go too."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(".staged-*"):
        with suppress(LockedError, OSError):
            if time.time() - left.stat().st_mtime > 60:  # a younger one may be about to take its lock
                Lock(left / "lock", str(left)).release()
                shutil.rmtree(left, ignore_errors=True)
    staged = Path(tempfile.mkdtemp(prefix=".staged-", dir=parent))
    lock = Lock(staged / "lock", str(staged))
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        lock.release()


@contextmanager
def _bar(sources: Sequence[Source], *, progress: bool) -> Iterator[Any]:
    """A progress bar over the text read: on a terminal only, and only for what takes longer than two seconds."""
    from tqdm import tqdm  # noqa: PLC0415 - 0.1 s

    plain = all(path.suffix in {".txt", ".md"} for s in sources for path in s.files) and not any(
        s.rows for s in sources
    )
    total = sum(path.stat().st_size for s in sources for path in s.files) if plain else None
    hidden = None if progress else True
    with tqdm(total=total, desc="tokenising", unit="B", unit_scale=True, delay=2, disable=hidden, leave=False) as bar:
        yield bar.update


# --- what is kept -------------------------------------------------------------------------------------------


def _spool(folder: Path, found: Iterable[Columns]) -> tuple[Columns, NDArray[np.uint64]]:
    """All examples as columns, the large ones on disk; and the hash of each document."""
    parts: list[Columns] = []
    with (folder / "tokens").open("wb") as tokens, (folder / "text").open("wb") as text:
        for columns in found:
            tokens.write(columns.pop("tokens").data)
            text.write(columns.pop("text").data)
            parts.append(columns)

    def joined(name: str, empty: Array) -> Array:
        return np.concatenate([empty, *(part[name] for part in parts)])

    def mapped(name: str, kind: type) -> Array:
        path = folder / name
        return np.memmap(path, kind, "r") if path.stat().st_size else np.zeros(0, kind)

    hashes = np.zeros(0, np.uint64)
    if parts:
        documents, first = np.unique(joined("documents", np.zeros(0, np.int64)), return_index=True)
        hashes = joined("hashes", hashes)[first]
        assert documents.size == documents[-1] + 1, "documents are numbered in order"
    columns = {
        "offsets": np.cumsum(joined("length", np.zeros(1, np.int64))),
        "text_offsets": np.cumsum(joined("size", np.zeros(1, np.int64))),
        "document": joined("document", np.zeros(0, np.int64)),
        "identity": joined("identity", np.zeros((0, IDENTITY_BYTES), np.uint8)),
        "tokens": mapped("tokens", np.int32),
        "text": mapped("text", np.uint8),
    }
    return columns, hashes


def _divide(
    columns: Columns,
    hashes: NDArray[np.uint64],
    holdout: float,
    names: Sequence[str],
    seen: NDArray[np.bool_],
    forgotten: NDArray[np.bool_],
) -> _Left:
    """Which rows to train on, and which to hold out; of rows with the same text, the first is kept."""
    identity, document = columns["identity"], columns["document"]
    if identity.shape[0] == 0 and names:
        held = f"{hashes.size} documents, all of them empty" if hashes.size else "no documents"
        fail(f"there is no text in {', '.join(names)}: {held}. Check the paths and the column")
    halves = np.ascontiguousarray(identity).view("<u8").reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    fresh = np.ones(order.size, dtype=bool)
    fresh[1:] = np.any(halves[order[1:]] != halves[order[:-1]], axis=1)
    distinct = np.sort(order[fresh])
    kept = distinct[~seen[distinct]]
    if distinct.size and not kept.size:
        fail(f"all {distinct.size:,} examples of {', '.join(names)} were there before: bring text that is new")
    alive = np.unique(document[kept])
    if alive.size >= FEW:
        away = np.isin(document[kept], alive[chosen(hashes[alive], holdout)])
    else:
        away = chosen(halves[kept, 0], holdout)
    if kept.size and away.all():
        fail(f"holdout = {holdout} leaves nothing of {', '.join(names)} to train on: lower it, or bring more text")
    there = ~forgotten[kept]
    if kept.size and not (there & ~away).any():
        fail(f"all {kept.size:,} examples of {', '.join(names)} were forgotten: bring text that is new")
    gone = np.setdiff1d(document[kept], document[kept[there]])
    dropped, kept, away = int((~there).sum()), kept[there], away[there]
    report = Report(
        documents=int(hashes.size - gone.size),
        examples=int(kept.size),
        tokens=int(np.diff(columns["offsets"])[kept].sum()),
        empty=int(hashes.size - np.unique(document).size),
        duplicates=int(document.size - distinct.size),
        cut=int(np.sum(np.unique(document, return_counts=True)[1] > 1)),
        held_out=int(away.sum()),
        seen=int(distinct.size - kept.size - dropped),
        forgotten=dropped,
    )
    if dropped:
        _log.warning("%d examples of %s were forgotten, and are left out", dropped, ", ".join(names))
    return _Left(kept[~away], kept[away], report, gone)


def chosen(hashes: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Which of them are held out: those whose hash is low enough; the lowest, at least, of FEW or more."""
    if share == 0 or hashes.size < FEW:
        return np.zeros(hashes.size, dtype=bool)
    away: NDArray[np.bool_] = (hashes < np.uint64(int(share * 2**64))) | (hashes == hashes.min())
    return away


# --- the cache ----------------------------------------------------------------------------------------------


def _key(
    sources: Sequence[Source], plan: Plan, wanted: Wanted, holdout: float, without: NDArray[np.uint8] | None
) -> str:
    """A hash of all that the pools depend on."""
    *options, date = wanted  # which came later: pools without dates are cached under the key that they had
    told = {
        "version": [VERSION, pools.VERSION],
        "sources": [[s.name, s.limit, s.content] for s in sources],
        "tokenizer": _tokenizer_key(plan),
        "options": [options, plan.chat, plan.max_length, float(holdout), sys.byteorder],
    }
    if date is not None:
        told["date"] = date
    if without is not None:
        told["without"] = hashlib.blake2b(without.tobytes(), digest_size=16).hexdigest()
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()


def _tokenizer_key(plan: Plan) -> list[Any]:
    tokenizer = plan.tokenizer
    if tokenizer.is_fast:
        # Truncation and padding are what somebody last called it with, and not what it is.
        content: Any = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    else:
        content = [tokenizer.get_vocab(), {str(k): v for k, v in tokenizer.special_tokens_map.items()}]
    return [type(tokenizer).__name__, content, plan.marks, tokenizer.chat_template if plan.chat else None]
