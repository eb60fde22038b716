"""From two snapshots of a wiki to old, new, and what supersedes what: the whole way, in the order it is gone.

    survey    pass over the compressed bytes: hashes, places to begin at, files that are cut off
    spool     the map: each part's pages into a spool, with an index          (all cores, or the cluster)
    align     which page became which, in SQLite
    compare   the reduce: each heap of pairs into rows                        (all cores, or the cluster)
    write     who is taken of each topic and stratum, copied in order

What is finished of it lies in the folder's `parts`, and is not made again after a kill. No part depends on how many
processes there are, so neither does the corpus.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import srt_peft
from srt_peft.corpora.documents import PLACE, library
from srt_peft.corpora.folder import SOUND, Folder, check_out, dumped, staged
from srt_peft.corpora.rows import Context
from srt_peft.corpora.wikipedia import dump, pairs, snapshot
from srt_peft.corpora.wikipedia.choose import taken_of, write
from srt_peft.corpora.wikipedia.compare import Heap, How, compare
from srt_peft.corpora.wikipedia.dump import Advance, Part, Site, Survey
from srt_peft.corpora.wikipedia.engine import ENGINES, Engine, Task, engine_of
from srt_peft.corpora.wikipedia.pairs import Aligned, align
from srt_peft.corpora.wikipedia.snapshot import Snapshot
from srt_peft.corpora.wikipedia.spool import Spooled, spool
from srt_peft.corpora.wikipedia.topics import NAMES
from srt_peft.corpora.wikipedia.wikitext import Names, parser
from srt_peft.corpora.writing import bar, recipe
from srt_peft.errors import OptionError, did_you_mean

HEAP = 8 << 20
"""Of wikitext, in one reduce task."""


@dataclass(frozen=True)
class Options:
    """What decides which corpus comes out."""

    namespaces: tuple[str, ...] = ("0",)
    topics: tuple[str, ...] = NAMES
    per_stratum: int | None = None
    context: Context = "title"
    held_out: float = 0.02

    def faults(self) -> list[str]:
        """What cannot be, a line each."""
        unknown = [t for t in self.topics if t not in NAMES]
        known = ", ".join(NAMES)
        found = [f"--topics = {t!r}{did_you_mean(t, NAMES)}: expected some of {known}" for t in unknown]
        spaces = [n for n in self.namespaces if not n.isdigit()]
        found += [f"--namespaces = {n!r}: expected numbers, such as 0 for articles" for n in spaces]
        if self.per_stratum is not None and self.per_stratum < 1:
            found.append(f"--per-stratum = {self.per_stratum}: expected 1 page or more, or nothing for all")
        return found


def wikipedia(
    old: Sequence[str],
    new: Sequence[str],
    out: Path,
    options: Options,
    *,
    engine: str = "local",
    workers: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Make the corpus `out`; the figures of it."""
    run = engine_of(engine, workers)
    (old_files, faults), (new_files, more) = snapshot.files_of("old", old), snapshot.files_of("new", new)
    faults += more + options.faults()
    if engine not in ENGINES:
        faults.append(f"--engine = {engine!r}: expected one of {', '.join(ENGINES)}")
    elif engine == "ray":
        away = [path for path in (out, *old_files, *new_files) if not path.is_absolute()]
        faults += [f"{path} = given with --engine ray: expected a path from /, the same on all nodes" for path in away]
    if faults:
        raise OptionError("the arguments", faults)
    check_out(out)
    if not all(map(snapshot.is_table, [*old_files, *new_files])):
        parser()
    library("sentencex")
    say = partial(_bar, progress=progress)
    snapshots = _surveyed({"old": old_files, "new": new_files}, options, engine_of("local", workers), say)
    language = _language(snapshots)
    settled = {**asdict(options), "language": language}

    def make(folder: Folder) -> None:
        work = _Work(folder, out, run, say)
        spools, found = work.spool(snapshots)
        aligned = work.align(spools)
        if not aligned.bytes:
            raise OptionError(PLACE, [f"they have no pages of --namespaces {','.join(options.namespaces)}"])
        how = How(options.context, language, options.held_out, _names(snapshots))
        heaps = work.compare(aligned, how)
        work.write(heaps, options, aligned, found)

    manifest = staged(out, "corpus wikipedia", _inputs(snapshots), json.loads(json.dumps(settled)), make)
    figures: dict[str, Any] = manifest["counts"]
    return figures


# --- what is read -------------------------------------------------------------------------------------------


def _surveyed(files: dict[str, list[Path]], options: Options, run: Engine, say: _Say) -> list[Snapshot]:
    """Both snapshots, once each file was passed over; what can be seen to be wrong is told now."""
    every = [path for paths in files.values() for path in paths]
    sizes = {path: path.stat().st_size for path in every}
    with say("checking", sum(sizes.values()), "B") as advance:
        tasks = ((sizes[path], path) for path in every)
        found: dict[Path, Survey | str] = dict(run(_survey, tasks, advance))
    known = {path: one for path, one in found.items() if isinstance(one, Survey)}
    faults = [found[path] for path in every if path not in known]
    if faults:
        raise OptionError(PLACE, [str(fault) for fault in faults])
    wanted = frozenset(options.namespaces)
    snapshots = [snapshot.surveyed(name, paths, [known[p] for p in paths], wanted) for name, paths in files.items()]
    sides = [{found.sha256 for found in one.surveys} for one in snapshots]
    twice = [path for path in files["new"] if known[path].sha256 in sides[0]]
    if twice and sides[0] == sides[1]:
        raise OptionError(PLACE, [f"--new {twice[0]} is what --old is, byte for byte: expected a later date"])
    snapshot.check_one_wiki(snapshots)
    return snapshots


def _survey(path: Path, advance: Advance) -> tuple[Path, Survey | str]:
    """A file's survey, or its fault: all of them are told together."""
    try:
        return path, dump.survey(path, advance)
    except OptionError as error:
        return path, error.faults[0]


def _inputs(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    return [
        {"snapshot": one.name, "path": str(path), "bytes": found.size, "sha256": found.sha256}
        for one in snapshots
        for path, found in zip(one.files, one.surveys, strict=True)
    ]


def _language(snapshots: Sequence[Snapshot]) -> str:
    """The wiki's language, by which its sentences are found: English, unless its address says otherwise."""
    host = next((one.host for one in snapshots if one.host), None) or "en"
    first = host.partition(".")[0]
    return first if 2 <= len(first) <= 3 else "en"


def _names(snapshots: Sequence[Snapshot]) -> Names:
    sites = [site.names for one in snapshots for site in one.sites]
    return Names(*(tuple(dict.fromkeys(name for names in kind for name in names)) for kind in zip(*sites, strict=True)))


# --- the work -----------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A map task."""

    folder: Folder
    name: str
    part: Part
    site: Site


def _names_of_parts(one: Snapshot) -> Iterator[str]:
    """What each part's spool is called: by all that it depends on, so that it is good when another file is mended."""
    held = {path: found.sha256 for path, found in zip(one.files, one.surveys, strict=True)}
    for part, site in one.parts():
        known = (srt_peft.__version__, held[part.path], part.end, *sorted(site.wanted))
        yield f"{SOUND}{hashlib.blake2b(repr(known).encode(), digest_size=8).hexdigest()}-{part.start:012d}"


def _spool(piece: _Piece, advance: Advance) -> tuple[str, Spooled]:
    def make(beside: Path) -> None:
        found = spool(piece.part, piece.site, beside.with_name(piece.name), advance)
        beside.write_text(json.dumps(found._asdict()), encoding="utf-8")

    done = piece.folder.part(f"{piece.name}.json", make)
    return piece.name, Spooled(**json.loads(done.read_text(encoding="utf-8")))


def _compare(task: tuple[Folder, Heap], advance: Advance) -> Path:
    folder, heap = task
    return folder.part(heap.name, lambda beside: compare(heap, beside, advance))


class _Work:
    """What is done in the folder."""

    def __init__(self, folder: Folder, out: Path, run: Engine, say: _Say) -> None:
        self._folder, self._out, self._run, self._say = folder, out, run, say

    def spool(self, snapshots: Sequence[Snapshot]) -> tuple[dict[str, list[str]], dict[str, list[Spooled]]]:
        """The map: the spools' names in order, and what is in them."""
        cut = {one.name: one.parts() for one in snapshots}
        names = {one.name: list(_names_of_parts(one)) for one in snapshots}
        total = sum(part.end - part.start for parts in cut.values() for part, _ in parts)
        with self._say("reading", total, "B") as advance:
            tasks: Iterator[Task] = (
                (part.end - part.start, _Piece(self._folder, name, part, site))
                for side, parts in cut.items()
                for name, (part, site) in zip(names[side], parts, strict=True)
            )
            done: dict[str, Spooled] = dict(self._run(_spool, tasks, advance))
        found = {side: [done[name] for name in names[side]] for side in names}
        _check_dates(found)
        return names, found

    def align(self, spools: dict[str, list[str]]) -> Aligned:
        """The pairs."""
        with self._say("aligning", None, "it"):

            def make(beside: Path) -> None:
                beside.write_text(json.dumps(align(beside.parent, spools)._asdict()), encoding="utf-8")

            return Aligned(**json.loads(self._folder.part("pairs.json", make).read_text(encoding="utf-8")))

    def compare(self, aligned: Aligned, how: How) -> list[Path]:
        """The reduce: the heaps' files, in order."""
        parts = self._folder.part("pairs.json", lambda _: None).parent
        with self._say("comparing", aligned.bytes, "B") as advance:
            tasks = (
                (sum(pair.bytes for pair in heap), (self._folder, Heap(f"heap-{i:06d}", heap, how)))
                for i, heap in enumerate(pairs.batches(parts, HEAP, believed=aligned.believed))
            )
            return sorted(self._run(_compare, tasks, advance))

    def write(self, heaps: list[Path], options: Options, aligned: Aligned, found: dict[str, list[Spooled]]) -> None:
        """The outputs."""
        why = taken_of(heaps, options.topics, options.per_stratum)
        with self._say("writing", len(heaps), "heaps") as advance:
            figures, left_out = write(heaps, self._folder.path, why, advance)
        if not figures["rows"]["new"]:
            held = figures["documents"].get("held out", 0)
            fault = f"nothing is new of the pages that are taken, {held:,} held-out ones apart"
            raise OptionError(PLACE, [f"{fault}: expected snapshots of two dates"])
        for side, parts in found.items():
            for one in parts:
                left_out.update({f"{side}: {what}": count for what, count in one.left_out.items()})
        left_out.update(aligned.left_out)
        figures["pages known by"] = "id" if aligned.believed else "title"
        figures["pages"] = {kind: count for kind, count in aligned.kinds.items() if count}
        figures["left out"] = dict(sorted(left_out.items()))
        (self._folder.path / "statistics.json").write_bytes(dumped(figures))
        heading = "Two snapshots of a wiki, as `srt-peft corpus wikipedia` has made them: a source is a topic."
        several = sum(any(by.values()) for by in figures["documents by topic and change"].values()) > 1
        (self._folder.path / "recipe.yaml").write_text(recipe(self._out, heading, several=several), "utf-8")
        self._folder.counts = figures


def _check_dates(found: dict[str, list[Spooled]]) -> None:
    """Refuse snapshots in the wrong order, or of one date."""
    old, new = (max((one.newest for one in found[side]), default="") for side in ("old", "new"))
    if old and new and old >= new:
        what = "of one date" if old == new else "the wrong way round"
        told = f"the newest revision of --old is of {old}, and that of --new of {new}"
        raise OptionError(PLACE, [f"they are {what}: {told}; expected --old to be the earlier"])


_Say = Callable[[str, int | None, str], Any]


@contextmanager
def _bar(what: str, total: int | None, unit: str, *, progress: bool) -> Iterator[Advance]:
    with bar(total, what, unit, progress=progress) as shown:
        yield shown.update
