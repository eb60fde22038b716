"""`srt-peft corpus text`: two snapshots of anybody's text become a corpus.

Documents are aligned (`align`), each pair becomes rows (`rows`), in processes, a part of the pairs at a time: a part
that is finished is on the disk, and is not made again after a kill. Then the parts are read in their order, and what
was said before is left out (`writing`). Both snapshots are held in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from srt_peft.corpora.align import align
from srt_peft.corpora.documents import PLACE, Document
from srt_peft.corpora.folder import Folder, line_of, staged
from srt_peft.corpora.near import Signature, signature_of
from srt_peft.corpora.rows import Context, held_out_of, is_held_out, rows_of_pair
from srt_peft.corpora.snapshots import Snapshot
from srt_peft.corpora.tables import Tally
from srt_peft.corpora.writing import Entry, bar, write
from srt_peft.data import processes
from srt_peft.errors import OptionError

COMMAND = "corpus text"
LIBRARIES = ("sentencex", "datasketch")
"""Asked for before the snapshots are read, which may take minutes."""
PART = 1 << 21
"""About as many characters of both snapshots are in a part."""

Pair = tuple[Document | None, Document | None]


@dataclass(frozen=True)
class Options:
    """What the rows depend on, the snapshots apart."""

    context: Context = "title"
    held_out: float = 0.02
    language: str = "en"


def make(
    old: Snapshot,
    new: Snapshot,
    out: Path,
    options: Options,
    *,
    asked: dict[str, Any] | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Make the corpus's folder; its manifest. `asked` is what else the manifest has among the options."""
    same = [f"{name} of --old and --new is the same" for name in ("sha256", "commit") if _same(old, new, name)]
    if same:
        raise OptionError(PLACE, [f"{same[0]} ({old.name}; {new.name}): expected an earlier and a later state"])

    def build(folder: Folder) -> None:
        aligned = align(old.documents, new.documents)
        parts = list(_parts(aligned.pairs))
        tally = Tally()
        left_out = Counter({f"files, {why}": n for why, n in (old.left_out + new.left_out).items()})
        entries = _read(_made(folder, parts, options, workers, progress=progress), tally)
        tally.documents.update({f"paired by {how}": count for how, count in aligned.by.items()})
        heading = f"{new.name} against {old.name}, as `srt-peft {COMMAND}` has made it."
        write(folder, entries, tally, left_out, out, heading=heading)
        if not tally.rows["new"]:
            held = f", held-out ones ({tally.rows['held out']:,}) apart" if tally.rows["held out"] else ""
            were, are = len(old.documents), len(new.documents)
            what = f"its {are:,} documents say nothing that the {were:,} before do not{held}"
            told = "".join(f"; left out: {count:,} {why}" for why, count in left_out.items())
            raise OptionError(PLACE, [f"nothing is new in {new.name}: {what}{told}. Check the snapshots"])

    return staged(out, COMMAND, [old.about, new.about], {**asdict(options), **(asked or {})}, build)


def _same(old: Snapshot, new: Snapshot, name: str) -> bool:
    return name in old.about and old.about[name] == new.about.get(name)


def _parts(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    part, size = [], 0
    for pair in pairs:
        part.append(pair)
        size += sum(len(document.text) for document in pair if document is not None)
        if size >= PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def lines_of(pairs: Sequence[Pair], options: Options) -> str:
    """A part as it is kept: a line that counts, and a line for each row."""
    tally, lines = Tally(), []
    for old, new in pairs:
        document = old or new
        assert document is not None
        if is_held_out(document.key, options.held_out):
            tally.documents["held out"] += 1
            lines.append(line_of({"for": "held out", "row": held_out_of(old, new, language=options.language)}))
            continue
        rows = rows_of_pair(old, new, context=options.context, language=options.language)
        tally.add(old, new, rows)
        replaced = {name for row in rows.new for name in row["supersedes"]}
        for pool, found in (("old", rows.old), ("new", rows.new)):
            for row in found:
                entry = {"for": pool, "row": row}
                if row["id"] not in replaced or pool == "new":
                    entry["known"] = [part.hex() for part in signature_of(row["text"])]
                lines.append(line_of(entry))
    return line_of(vars(tally)) + "".join(lines)


def _read(parts: Iterator[Path], tally: Tally) -> Iterator[Entry]:
    """The rows of parts, in order; what they counted is added up."""
    for path in parts:
        with path.open(encoding="utf-8") as file:
            tally.merge(json.loads(next(file)))
            for line in file:
                said = json.loads(line)
                known = Signature(*map(bytes.fromhex, said["known"])) if "known" in said else None
                yield said["for"], said["row"], known


def _made(
    folder: Folder, parts: Sequence[list[Pair]], options: Options, workers: int | None, *, progress: bool
) -> Iterator[Path]:
    """Every part on the disk, in order; in processes where there is more than one to make."""
    names = [f"rows-{number:05d}.jsonl" for number in range(len(parts))]
    todo = [part for part, name in zip(parts, names, strict=True) if not folder.has(name)]
    made = in_processes(lines_of, [(part, options) for part in todo], workers)
    with bar(len(parts), "comparing", "part", progress=progress) as shown:
        for name in names:
            yield folder.part(name, lambda path: path.write_text(next(made), "utf-8"))
            shown.update()


def in_processes(do: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int | None) -> Iterator[Any]:
    """What a function gives for each call, in their order; by as many processes as there are cores."""
    count = min(len(calls), workers or processes.cores())
    if count <= 1:
        yield from (do(*call) for call in calls)
    else:
        yield from processes.in_order(processes.pool(count), count, do, calls)
