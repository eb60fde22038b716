"""From repositories to a corpus: what each brings, what of it nobody had before, and what is kept.

Repositories are scanned on their own, in several processes, each to a part of its own that outlives a kill. Then they
are gone through in the order of their first commits, so that of two that are alike the earlier one is the original:
first the old ones and those that are neither, which say what existed; then the new ones, of which nothing may be like
that. A new repository most of whose text is like it did exist, whatever its history says: a fork, an import with a
rewritten history, one that was begun anew. It is left out as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from srt_peft.corpora.code import clones, git, licences
from srt_peft.corpora.code.clones import NEW, OLD, Clone
from srt_peft.corpora.code.options import WHAT, Options, checked
from srt_peft.corpora.code.scan import scan, unpacked
from srt_peft.corpora.code.tally import Tally
from srt_peft.corpora.folder import Folder, check_out, line_of, staged
from srt_peft.corpora.near import NearDuplicates
from srt_peft.corpora.rows import Row, is_held_out
from srt_peft.errors import OptionError, StateError

NEAR = 0.7
"""The share of three-word sequences from which on two files are the same."""
COPIED = 0.5
"""The share of a new repository's text that existed before, from which on the repository did."""

COPY, BEFORE, COPIED_WHOLE = "near-duplicate", "existed before", "in a copied repository"
LICENCE, CAP = "licence", "over the cap"
OUTPUTS = {OLD: "old.jsonl", NEW: "new.jsonl"}
HELD_OUT = "held-out.jsonl"


class Part(NamedTuple):
    """What the scan of a repository has found."""

    clone: Clone
    path: Path
    about: dict[str, Any]

    def lines(self) -> Iterator[dict[str, Any]]:
        """All that follows the first line."""
        with self.path.open(encoding="utf-8") as file:
            next(file)
            yield from map(json.loads, file)

    def files(self) -> Iterator[dict[str, Any]]:
        """Those to learn from."""
        return (line for line in self.lines() if "path" in line)


def build(given: Sequence[str], out: Path, options: Options, *, workers: int | None = None) -> dict[str, Any]:
    """Make the corpus; its figures."""
    checked(options)
    check_out(out)
    git.check_git()
    every = clones.clones_of(given)

    def make(folder: Folder) -> None:
        tally = Tally()
        _divide(_scanned(every, options, folder, workers), options, folder, tally)
        _check(tally)
        folder.counts = tally.figures()
        (folder.path / "statistics.json").write_text(json.dumps(folder.counts, indent=1) + "\n", encoding="utf-8")

    counts: dict[str, Any] = staged(out, "corpus code", [_input(one) for one in every], options._asdict(), make)["counts"]
    return counts


def _input(clone: Clone) -> dict[str, str | None]:
    """What the manifest says of a repository: a commit's id is a hash of all that is in it."""
    refs = hashlib.sha256(git.run(clone.git, "for-each-ref")).hexdigest()
    return {"path": str(clone.path), "name": clone.name, "first": clone.root, "newest": git.tip(clone.git), "refs": refs}


# --- scanning ---------------------------------------------------------------------------------------------------


def _scanned(every: Sequence[Clone], options: Options, folder: Folder, workers: int | None) -> list[Part]:
    """The part of each repository, in the same order."""
    found: dict[int, Path] = {}
    count = min(len(every), workers or len(os.sched_getaffinity(0)))
    jobs = [(folder, options, number, clone) for number, clone in enumerate(every)]
    if count == 1:
        found.update(map(_part, _watched(jobs, len(jobs), "reading repositories")))
    else:
        found.update(_in_processes(jobs, count))
    return [Part(clone, found[i], _about(found[i])) for i, clone in enumerate(every)]


_Job = tuple[Folder, Options, int, Clone]


def _part(job: _Job) -> tuple[int, Path]:
    folder, options, number, clone = job
    name = f"{number:06d}-{clone.root[:12]}.jsonl"
    return number, folder.part(name, partial(scan, clone, options.cutoff, options.birth))


def _about(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        found: dict[str, Any] = json.loads(next(file))["about"]
    return found


def _in_processes(jobs: Sequence[_Job], count: int) -> Iterator[tuple[int, Path]]:
    from multiprocessing import get_context  # noqa: PLC0415

    try:
        with ProcessPoolExecutor(count, get_context("fork"), _begin, (os.getpid(),)) as executor:
            futures = [executor.submit(_part, job) for job in jobs]  # all of them fork before a bar starts its thread
            try:
                for future in _watched(as_completed(futures), len(jobs), "reading repositories"):
                    yield future.result()
            finally:
                executor.shutdown(wait=True, cancel_futures=True)
    except BrokenProcessPool:
        raise StateError(
            f"One of {count} processes that read repositories was killed, probably for want of memory. What they had "
            "finished is kept: give the same command again, with fewer --workers."
        ) from None


def _begin(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A parent that was killed outright cannot say so, and its pipes stay open in our siblings."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


_T = TypeVar("_T")


def _watched(items: Iterable[_T], total: int | None, what: str) -> Iterator[_T]:
    from tqdm import tqdm  # noqa: PLC0415 - 0.1 s

    return iter(tqdm(items, total=total, desc=what, unit="repo", delay=2, disable=None, leave=False))


# --- what is kept -----------------------------------------------------------------------------------------------


def _divide(parts: Sequence[Part], options: Options, folder: Folder, tally: Tally) -> None:
    """Write the rows: each is of a file that no earlier repository has."""
    before, since = NearDuplicates(NEAR), NearDuplicates(NEAR)
    with (
        (folder.path / OUTPUTS[OLD]).open("w", encoding="utf-8") as old,
        (folder.path / OUTPUTS[NEW]).open("w", encoding="utf-8") as new,
        (folder.path / HELD_OUT).open("w", encoding="utf-8") as away,
    ):
        writers = {OLD: old, NEW: new}

        def keep(part: Part, pool: str, files: Sequence[dict[str, Any]]) -> None:
            held = is_held_out(part.clone.root, options.held_out)
            for row in _rows(part, pool, _chosen(part, pool, files, options, tally)):
                tally.row(pool, row, held=held)
                (away if held else writers[pool]).write(line_of(_asked(row, pool) if held else row))

        for part in _watched([p for p in parts if _counted(p, tally) == OLD], None, "comparing old files"):
            alike = [before.seen(unpacked(file["signature"])) for file in part.files()]
            keep(part, OLD, [file for file, copy in zip(part.files(), alike, strict=True) if not copy])
            tally.left_out[OLD][COPY] += sum(alike)
        for part in parts:
            for line in part.lines():
                if "before" in line:
                    before.seen(unpacked(line["before"]))
        for part in _watched([p for p in parts if p.about["kind"] == NEW], None, "comparing new files"):
            keep(part, NEW, _fresh(part, before, since, tally))


def _counted(part: Part, tally: Tally) -> str:
    """The kind of a repository, once it and what its scan has left out are counted."""
    kind = str(part.about["kind"])
    tally.repositories[kind] += 1
    if kind in (OLD, NEW):
        tally.left_out[kind].update(part.about["reasons"])
    return kind


def _fresh(part: Part, before: NearDuplicates, since: NearDuplicates, tally: Tally) -> list[dict[str, Any]]:
    """The files of a new repository that are like none that existed before, and like no other new one's."""
    files = list(part.files())
    known = [before.has(unpacked(file["signature"])) for file in files]
    copied = sum(len(file["text"]) for file, was in zip(files, known, strict=True) if was)
    if copied and copied >= COPIED * sum(len(file["text"]) for file in files):
        tally.repositories[NEW] -= 1
        tally.repositories["copied"] += 1
        tally.left_out[NEW][COPIED_WHOLE] += len(files)
        return []
    rest = [file for file, was in zip(files, known, strict=True) if not was]
    fresh = [file for file in rest if not since.seen(unpacked(file["signature"]))]
    tally.left_out[NEW].update({BEFORE: sum(known), COPY: len(rest) - len(fresh)})
    return fresh


def _chosen(
    part: Part, pool: str, files: Sequence[dict[str, Any]], options: Options, tally: Tally
) -> list[dict[str, Any]]:
    """The files whose licence is wanted, and of these as many as a repository may bring: those of the lowest hashes."""
    wanted = licences.wanted(options.licences)
    free = [file for file in files if wanted(file["licence"])]
    lowest = set(sorted(free_hash for free_hash in (_lot(part, file) for file in free))[: options.per_repo])
    kept = [file for file in free if _lot(part, file) in lowest]
    tally.left_out[pool].update({LICENCE: len(files) - len(free), CAP: len(free) - len(kept)})
    return kept


def _lot(part: Part, file: dict[str, Any]) -> bytes:
    return hashlib.blake2b(f"{part.clone.root} {file['path']}".encode(), digest_size=16).digest()


def _rows(part: Part, pool: str, files: Iterable[dict[str, Any]]) -> Iterator[Row]:
    name = part.clone.name
    for file in files:
        called = f"{name}/{file['path']}"
        yield {
            "id": called,
            "document": called,
            "title": f"{name}: {file['path']}",
            "source": file["language"],
            "repository": name,
            "date": part.about["date"],
            "licence": file["licence"],
            "text": f"Repository: {name}\nPath: {file['path']}\n\n{file['text']}",
            **({"supersedes": []} if pool == NEW else {}),
        }


def _asked(row: Row, pool: str) -> Row:
    """A row as a document that questions are asked of: it is there in one of the two only, so nothing changed in it."""
    about = {key: value for key, value in row.items() if key not in ("text", "supersedes")}
    return {**about, "old": None, "new": None, pool: row["text"], "changes": []}


def _check(tally: Tally) -> None:
    """Refuse a corpus without old or without new."""
    lacking = [pool for pool in (OLD, NEW) if not tally.rows[pool]]
    if lacking:
        there = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.repositories.items()))
        left = "; ".join(
            f"{pool}: " + (", ".join(f"{n:,} {why}" for why, n in tally.left_out[pool].most_common() if n) or "nothing")
            for pool in lacking
        )
        fault = f"--repos: no {' and no '.join(lacking)} file is left. The repositories are {there}; left out of {left}"
        raise OptionError(WHAT, [f"{fault}. List others, or change the dates or --licences"])
