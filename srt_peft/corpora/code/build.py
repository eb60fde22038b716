"""From repositories to a corpus: what each brings, what of it nobody had before, and what is kept.

Repositories are scanned on their own, in several processes, each to a part of its own that outlives a kill. Then they
are gone through in the order of their first commits, so that of two that are alike the earlier one is the original:
first the old ones and those that are neither, which say what existed; then the new ones, of which nothing may be like
that. A new repository of whose files many are like it did exist, whatever its history says: an import with a rewritten
history, one that was begun anew. It is left out as a whole, since the rest of it will have grown from those.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.corpora import git
from srt_peft.corpora.code import clones, licences
from srt_peft.corpora.code.clones import NEW, OLD, Clone
from srt_peft.corpora.code.options import WHAT, Options, checked
from srt_peft.corpora.code.scan import about_of, scan, unpacked
from srt_peft.corpora.code.tally import Tally
from srt_peft.corpora.documents import library
from srt_peft.corpora.folder import Folder, check_out, dumped, line_of, staged
from srt_peft.corpora.near import NearDuplicates, Signature
from srt_peft.corpora.rows import Row, is_held_out
from srt_peft.corpora.text import in_processes
from srt_peft.corpora.writing import FILES, bar, recipe
from srt_peft.errors import OptionError

COMMAND = "corpus code"
NEAR = 0.7
"""The share of three-word sequences from which on two files are the same."""
BANDS = (25, 5)
"""By which they are found: of two that are 0.7 alike, 99 % share a band."""
COPIED = 0.25
"""The share of a new repository's files that existed before, from which on the repository did."""

LIBRARIES = ("datasketch", "identify.identify", "license_expression", "ukkonen")
"""Asked for before anything is begun: from another process their absence could not be told."""
COPY, BEFORE, COPIED_WHOLE = "near-duplicate", "existed before", "in a copied repository"
LICENCE, CAP = "licence", "over the cap"


class Known(NamedTuple):
    """A file without its text."""

    path: str
    licence: str
    signature: Signature


class Part(NamedTuple):
    """What the scan of a repository has found."""

    clone: Clone
    path: Path
    about: dict[str, Any]

    def lines(self) -> Iterator[dict[str, Any]]:
        """All that was written."""
        with self.path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def known(self) -> list[Known]:
        """The files to learn from, as they are compared."""
        return [
            Known(line["path"], line["licence"], unpacked(line["signature"])) for line in self.lines() if "path" in line
        ]

    def before(self) -> Iterator[Signature]:
        """What else existed before."""
        return (unpacked(line["before"]) for line in self.lines() if "before" in line)


def build(
    given: Sequence[str], out: Path, options: Options, *, workers: int | None = None, progress: bool = True
) -> dict[str, Any]:
    """Make the corpus's folder; its manifest."""
    checked(options)
    check_out(out)
    git.check_git()
    for name in LIBRARIES:
        library(name)
    every = clones.clones_of(given)

    def make(folder: Folder) -> None:
        parts = list(_scanned(every, options, folder, workers, progress=progress))
        tally = _write(parts, options, folder, progress=progress)
        folder.counts = tally.figures()
        (folder.path / "statistics.json").write_bytes(dumped(folder.counts))
        dates = f"before {options.old_before} and after {options.new_after}"
        heading = f"Files of repositories from {dates}, as `srt-peft {COMMAND}` has made it."
        (folder.path / "recipe.yaml").write_text(recipe(out, heading, several=True), "utf-8")

    return staged(out, COMMAND, [_input(clone) for clone in every], options._asdict(), make)


def _input(clone: Clone) -> dict[str, str | None]:
    """What the manifest says of a repository: a commit's id is a hash of all that is in it."""
    return {
        "path": os.fsencode(clone.path).decode(errors="replace"),
        "name": clone.name,
        "first": clone.root,
        "newest": git.tip(clone.git),
        "refs": hashlib.sha256(git.run(clone.git, "for-each-ref")).hexdigest(),
    }


# --- scanning ---------------------------------------------------------------------------------------------------


def _scanned(
    every: Sequence[Clone], options: Options, folder: Folder, workers: int | None, *, progress: bool
) -> Iterator[Part]:
    """The part of each repository, in the same order."""
    calls = [(folder, options, f"{i:06d}-{clone.root[:12]}.jsonl", clone) for i, clone in enumerate(every)]
    with bar(len(every), "reading", "repository", progress=progress) as shown:
        for clone, path in zip(every, in_processes(_part, calls, workers), strict=True):
            yield Part(clone, path, about_of(path))
            shown.update()


def _part(folder: Folder, options: Options, name: str, clone: Clone) -> Path:
    return folder.part(name, partial(scan, clone, options.cutoff, options.birth))


# --- what is kept -----------------------------------------------------------------------------------------------


def _write(parts: Sequence[Part], options: Options, folder: Folder, *, progress: bool) -> Tally:
    """Write the rows; what is counted."""
    tally = Tally()
    with ExitStack() as stack:
        lines = {
            pool: stack.enter_context((folder.path / name).open("w", encoding="utf-8")) for pool, name in FILES.items()
        }
        shown = stack.enter_context(bar(len(parts), "comparing", "repository", progress=progress))
        for part, pool, files in _fresh(parts, tally):
            chosen = _chosen(part, pool, files, options, tally)
            held_out = is_held_out(part.clone.root, options.held_out)
            for row in _rows(part, chosen):
                tally.row(pool, row, held_out=held_out)
                lines["held out" if held_out else pool].write(line_of(_finished(row, pool, held_out=held_out)))
            shown.update()
    _check(tally)
    return tally


def _fresh(parts: Sequence[Part], tally: Tally) -> Iterator[tuple[Part, str, list[Known]]]:
    """The old and the new repositories, each with those of its files that are like none of an earlier one."""
    before, since = (NearDuplicates(NEAR, BANDS) for _ in range(2))
    for part in parts:
        tally.repository(part.about)
    for part in _of(parts, OLD):
        yield part, OLD, _unseen(part.known(), before, OLD, tally)
    for part in parts:  # once all old ones are written: what they had later is no copy among them
        for signature in part.before():
            before.seen(signature)
    for part in _of(parts, NEW):
        yield part, NEW, _unseen(_newborn(part.known(), before, tally), since, NEW, tally)


def _of(parts: Sequence[Part], kind: str) -> list[Part]:
    return [part for part in parts if part.about["kind"] == kind]


def _unseen(files: Sequence[Known], seen: NearDuplicates, pool: str, tally: Tally) -> list[Known]:
    """Those that are like none before them."""
    found = [file for file in files if not seen.seen(file.signature)]
    tally.left_out[pool][COPY] += len(files) - len(found)
    return found


def _newborn(files: Sequence[Known], before: NearDuplicates, tally: Tally) -> list[Known]:
    """The files of a new repository that are like none that existed before; none of them, if too many did."""
    found = [file for file in files if not before.has(file.signature)]
    if files and len(files) - len(found) >= COPIED * len(files):
        tally.repositories.subtract([NEW])
        tally.repositories["copied"] += 1
        tally.left_out[NEW][COPIED_WHOLE] += len(files)
        return []
    tally.left_out[NEW][BEFORE] += len(files) - len(found)
    return found


def _chosen(part: Part, pool: str, files: Sequence[Known], options: Options, tally: Tally) -> set[str]:
    """The files whose licence is wanted, and of these as many as a repository may bring: those of the lowest hashes."""
    wanted = licences.wanted(options.licences)
    free = [file.path for file in files if wanted(file.licence)]
    kept = sorted(free, key=lambda path: hashlib.blake2b(f"{part.clone.root} {path}".encode()).digest())
    tally.left_out[pool][LICENCE] += len(files) - len(free)
    tally.left_out[pool][CAP] += len(kept[options.per_repo :])
    return set(kept[: options.per_repo])


def _rows(part: Part, chosen: set[str]) -> Iterator[Row]:
    name = part.clone.name
    for line in part.lines():
        if line.get("path") in chosen:
            called = f"{name}/{line['path']}"
            yield {
                "id": called,
                "document": called,
                "title": f"{name}: {line['path']}",
                "source": line["language"],
                "repository": name,
                "date": part.about["date"],
                "licence": line["licence"],
                "text": f"Repository: {name}\nPath: {line['path']}\n\n{line['text']}",
            }


def _finished(row: Row, pool: str, *, held_out: bool) -> Row:
    """A row of its file: new ones replace nothing; of those held out, nothing is known but that they are there."""
    if not held_out:
        return {**row, "supersedes": []} if pool == NEW else row
    text = row.pop("text")
    return {**row, "old": None, "new": None, pool: text, "changes": []}


def _check(tally: Tally) -> None:
    """Refuse a corpus without old or without new."""
    lacking = [pool for pool in (OLD, NEW) if not tally.rows[pool]]
    if lacking:
        there = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.repositories.items()))
        gone = {pool: Counter({**tally.left_out[pool], "held out": tally.held_out[pool]}) for pool in lacking}
        left = "; ".join(
            f"{pool}: " + (", ".join(f"{n:,} {why}" for why, n in count.most_common() if n) or "nothing")
            for pool, count in gone.items()
        )
        fault = f"--repos: no {' and no '.join(lacking)} file is left. The repositories are {there}; left out of {left}"
        raise OptionError(WHAT, [f"{fault}. List others, or change the dates, --licences or --held-out"])
