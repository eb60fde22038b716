"""From rows to the files of a corpus: near-duplicates left out, everything counted, and a recipe that reads them.

A new row that replaces something is kept even if its like was there: without it what it replaces would go on being
reviewed. Of old rows that are near-duplicates the first is kept, as `data.old` does with equal ones. Those that are
replaced are no part of this: they are suspended, so nothing is left out for them, and each must be there to be named.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from srt_peft.corpora.folder import Folder, dumped, line_of
from srt_peft.corpora.near import NearDuplicates, Signature
from srt_peft.corpora.rows import Row
from srt_peft.corpora.tables import Tally

FILES = {"old": "old.jsonl", "new": "new.jsonl", "held out": "held-out.jsonl"}
Entry = tuple[str, Row, Signature | None]
"""Which file a row is for, and what it is known by; what is held out, or replaced, has no likeness to be known by."""


def write(
    folder: Folder, entries: Iterable[Entry], tally: Tally, left_out: Counter[str], out: Path, *, heading: str
) -> None:
    """Write a corpus's files, and count what is in them and what was left out."""
    sources: dict[str, Counter[str]] = {"old": Counter(), "new": Counter()}
    with ExitStack() as stack:
        lines = {
            pool: stack.enter_context((folder.path / name).open("w", encoding="utf-8")) for pool, name in FILES.items()
        }
        for pool, row in kept(entries, left_out):
            lines[pool].write(line_of(row))
            tally.rows[pool] += 1
            if pool in sources:
                sources[pool][row["source"]] += 1
            if pool == "new":
                tally.rows["superseded"] += len(row["supersedes"])
    by_source = {pool: dict(counts) for pool, counts in sources.items()}
    figures = {**tally.figures(), "left out": dict(left_out), "rows by source": by_source}
    (folder.path / "statistics.json").write_bytes(dumped(figures))
    several = len({name for counts in sources.values() for name in counts if name}) > 1
    (folder.path / "recipe.yaml").write_text(recipe(out, heading, several=several), "utf-8")
    folder.counts = {"rows": figures["rows"], "documents": figures["documents"], "left out": figures["left out"]}


def kept(entries: Iterable[Entry], left_out: Counter[str]) -> Iterator[tuple[str, Row]]:
    """The rows that say what none before them has said, or that replace something, or are replaced."""
    seen = {"old": NearDuplicates(), "new": NearDuplicates()}
    for pool, row, signature in entries:
        again = signature is not None and seen[pool].seen(signature)
        if again and not row.get("supersedes"):
            left_out[f"near-duplicates among {pool} rows"] += 1
            continue
        yield pool, row


def recipe(out: Path, heading: str, *, several: bool) -> str:
    """The part of a recipe that says what the corpus is."""
    lines = [
        f"# {heading}",
        "#",
        f"# Look first:  {_typed('plan', out)}",
        f"# Launch:      {_typed('train', out, 'output=runs/this-update')}",
        "# or copy `data` into a recipe of your own (`srt-peft recipes list`). Paths are from where you launch it.",
        "",
        "data:",
        f"  old: {_quoted(out / FILES['old'])} # what to retain; what is replaced is suspended",
        f"  new: {_quoted(out / FILES['new'])} # what to learn",
        "  text_column: text",
        "  id_column: id",
        *(["  source_column: source"] if several else []),
        "  supersedes: supersedes # the column of new that names the old rows which no longer hold",
    ]
    return "\n".join(lines) + "\n"


def closing(out: Path) -> str:
    """What is said once a corpus is there: where it lies, and what to do next."""
    return f"\nThe corpus lies in {out}. Look at what its schedule comes to, and train:\n    {_typed('plan', out)}"


def _typed(command: str, out: Path, *overrides: str) -> str:
    """A command over a corpus's recipe, as a shell takes it."""
    return shlex.join(["srt-peft", command, f"{out}/recipe.yaml", "model.base=BASE", *overrides])


def _quoted(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False)


def shown(items: Iterable[Any], what: str, unit: str, total: int | None = None) -> Iterator[Any]:
    """The same items, with a progress bar."""
    with bar(total, what, unit, progress=True) as advance:
        for item in items:
            yield item
            advance.update()


def bar(total: int | None, what: str, unit: str, *, progress: bool) -> Any:
    """A progress bar: on a terminal only, and only for what takes longer than two seconds."""
    from tqdm import tqdm  # noqa: PLC0415 - 0.1 s

    hidden = None if progress else True
    return tqdm(total=total, desc=what, unit=unit, unit_scale=True, delay=2, disable=hidden, leave=False)
