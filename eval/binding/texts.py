"""The mixture: four old sources of unequal size, and one new one, from copies of public texts in a folder.

    old       about 1,000 pieces of TinyStories, 600 of the Factbook of 2021, 300 of PEPs of 2021, 100 of Shakespeare
    new       about 1,920 pieces: the Factbook of 2024, or Wikipedia of 2017

A piece is at most 96 tokens; a document is cut off after its first 600 characters, so that a source has many of
them. Of the Factbook's old pages every second one has its page of 2024 among the new texts, which names it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from srt_peft.errors import OptionError

LENGTH, HOLDOUT = 96, 0.25
LONGEST = 600
FULL = 0.8
"""Of a piece's room, what is filled in the mean: pieces end at borders."""
NEW_PIECES = 1_920

Row = dict[str, Any]
Count = Callable[[str], int]


class Source(NamedTuple):
    """Where a source lies, how it is read, and how many pieces are wanted."""

    path: str
    read: Callable[[str], Iterable[tuple[str, str]]]
    pieces: int


def _rows(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        row = json.loads(line)
        yield str(row["id"]), row["text"]


def _stories(text: str) -> Iterator[tuple[str, str]]:
    return ((str(i), story.strip()) for i, story in enumerate(text.split("<|endoftext|>")) if story.strip())


def _scenes(text: str) -> Iterator[tuple[str, str]]:
    speeches = iter(text.split("\n\n"))
    scenes = iter(lambda: "\n\n".join(islice(speeches, 8)), "")
    return ((str(i), scene) for i, scene in enumerate(scenes))


OLD = {
    "stories": Source("tinystories/tinystories_sample.txt", _stories, 1000),
    "factbook": Source("factbook/factbook_docs_2021-12-30.jsonl.gz", _rows, 600),
    "peps": Source("peps/peps_2021-12-31.jsonl.gz", _rows, 300),
    "shakespeare": Source("tinyshakespeare/input.txt", _scenes, 100),
}
NEW = {
    "factbook": Source("factbook/factbook_docs_2024-07-11.jsonl.gz", _rows, NEW_PIECES),
    "wikipedia": Source("wiki_pairs/enwiki_2017.dev.jsonl.gz", _rows, NEW_PIECES),
}
BASE = "stories260K/hf"


def check(data: Path, new: str) -> None:
    """Refuse a folder that lacks a file."""
    wanted = [source.path for source in (*OLD.values(), NEW[new])]
    gone = [name for name in wanted if not (data / name).is_file()] + ([] if (data / BASE).is_dir() else [BASE])
    if gone:
        told = ", ".join(gone)
        raise OptionError("the mixture", [f"--data = {data} lacks {told}: expected what eval/binding/README.md lists"])


def write(data: Path, new: str, count: Count, folder: Path) -> None:
    """old.jsonl and new.jsonl, the same for the same texts."""
    old = {name: _picked(_read(data, source), source.pieces, count) for name, source in OLD.items()}
    rows = [{"id": f"{name} 2021/{i}", "source": name, "text": text} for name, mine in old.items() for i, text in mine]
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (("old", rows), ("new", list(_new(data, new, old["factbook"], count)))):
        told = "".join(json.dumps(row) + "\n" for row in content)
        (folder / f"{file}.jsonl").write_text(told, encoding="utf-8")


def _new(data: Path, new: str, factbook: Sequence[tuple[str, str]], count: Count) -> Iterator[Row]:
    found = _read(data, NEW[new])
    again = {i for i, _ in factbook[::2]} if new == "factbook" else set()
    known = {i for i, _ in factbook} if new == "factbook" else set()
    first = [(i, text) for i, text in found if i in again]
    left = NEW_PIECES - sum(_pieces(text, count) for _, text in first)
    others = _picked([(i, text) for i, text in found if i not in known], left, count)
    for i, text in (*first, *others):
        replaced = [f"factbook 2021/{i}"] if i in again else None
        yield {"id": f"{new}/{i}", "source": f"{new}, new", "text": text, "supersedes": replaced}


def _read(data: Path, source: Source) -> list[tuple[str, str]]:
    raw = (data / source.path).read_bytes()
    text = (gzip.decompress(raw) if source.path.endswith(".gz") else raw).decode("utf-8")
    return [(i, said[:LONGEST]) for i, said in source.read(text)]


def _picked(documents: Sequence[tuple[str, str]], pieces: int, count: Count) -> list[tuple[str, str]]:
    """Documents by chance, so many that about this many pieces are trained on."""
    picked, left = [], pieces / (1 - HOLDOUT)
    for i in np.random.default_rng(0).permutation(len(documents)).tolist():
        if left <= 0:
            break
        picked.append(documents[i])
        left -= _pieces(documents[i][1], count)
    return picked


def _pieces(text: str, count: Count) -> int:
    return -(-count(text) // int(FULL * LENGTH))
