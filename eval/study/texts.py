"""Real text from copies of public texts in a folder: what a base is taught, what of it is replayed, and what is new.

    taught    all stories that there are, and 5,000 pieces of each other old source; about two passes
    old       of that some 1,000 pieces of TinyStories, 600 of the Factbook of 2021, 300 of PEPs of 2021 and 100 of
              Shakespeare: a sample, so that to have forgotten is not to have lost what was learned by heart
    new       about 1,920 pieces: Wikipedia of 2017, the Factbook of 2024, or GSM8K

A piece is at most 96 tokens. Documents are cut into passages of at most 600 characters, and passages are drawn by
chance, always the same. A third of them, by a hash of the text, is held out, of what is taught as of what is replayed:
no base and no update ever trains on it. Of the Factbook's old passages every second one has its page of 2024 among the
new texts, which names it; pages that are replayed and not replaced are not among them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from srt_peft.errors import OptionError

LENGTH, HOLDOUT = 96, 0.34
LONGEST = 600
FULL = 0.8
"""Of a piece's room, what is filled in the mean: pieces end at borders."""
TAUGHT = 5_000

Row = dict[str, Any]
Count = Callable[[str], int]
Passage = tuple[str, str]
"""Its name, and what it says."""


class Source(NamedTuple):
    """Where a source lies, and how its documents are read."""

    path: str
    read: Callable[[str], Iterable[tuple[str, str]]]


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


def _problems(text: str) -> Iterator[tuple[str, str]]:
    for i, line in enumerate(text.splitlines()):
        row = json.loads(line)
        yield str(i), f"{row['question']}\n{row['answer']}"


OLD = {
    "stories": Source("tinystories/tinystories_sample.txt", _stories),
    "factbook": Source("factbook/factbook_docs_2021-12-30.jsonl.gz", _rows),
    "peps": Source("peps/peps_2021-12-31.jsonl.gz", _rows),
    "shakespeare": Source("tinyshakespeare/input.txt", _scenes),
}
NEW = {
    "factbook": Source("factbook/factbook_docs_2024-07-11.jsonl.gz", _rows),
    "wikipedia": Source("wiki_pairs/enwiki_2017.dev.jsonl.gz", _rows),
    "gsm8k": Source("gsm8k/train.jsonl.gz", _problems),
}
BASE = "stories260K/hf"


def check(data: Path, new: Iterable[str]) -> None:
    """Refuse a folder that lacks a file."""
    wanted = [source.path for source in (*OLD.values(), *(NEW[name] for name in new))]
    gone = [name for name in wanted if not (data / name).is_file()] + ([] if (data / BASE).is_dir() else [BASE])
    if gone:
        told = ", ".join(gone)
        raise OptionError("the study", [f"--data = {data} lacks {told}: expected what eval/study/README.md lists"])


def write_taught(data: Path, count: Count, path: Path) -> None:
    """What a base is taught: of every old source, whatever is replayed of it later."""
    found = {name: _picked(_passages(data, source), TAUGHT, count) for name, source in OLD.items()}
    _write(path, [{"id": f"{name}/{i}", "text": text} for name, mine in found.items() for i, text in mine])


def write_pools(
    data: Path, sizes: Mapping[str, int], new: tuple[str, int], count: Count, folder: Path, *, shuffled: bool
) -> None:
    """old.jsonl and new.jsonl: `source` is where a text is from, `deck` what the update is told of that."""
    old = {name: _picked(_passages(data, OLD[name]), pieces, count) for name, pieces in sizes.items()}
    rows = [{"id": f"{name} 2021/{i}", "source": name, "text": text} for name, mine in old.items() for i, text in mine]
    order = np.random.default_rng(0).permutation(len(rows)) if shuffled else range(len(rows))
    decks = [rows[i]["source"] for i in order]
    _write(folder / "old.jsonl", [row | {"deck": deck} for row, deck in zip(rows, decks, strict=True)])
    learned = list(_new(data, *new, old.get("factbook", []), count))
    _write(folder / "new.jsonl", [row | {"deck": row["source"]} for row in learned])


def _write(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _new(data: Path, new: str, pieces: int, factbook: Sequence[Passage], count: Count) -> Iterator[Row]:
    found = _passages(data, NEW[new])
    again = {i for i, _ in factbook[::2]} if new == "factbook" else set()
    known = {_document(i) for i, _ in factbook} if new == "factbook" else set()
    first = [(i, text) for i, text in found if i in again]
    left = pieces - round(sum(_pieces(text, count) for _, text in first) * (1 - HOLDOUT))
    others = _picked([(i, text) for i, text in found if _document(i) not in known], left, count)
    for i, text in (*first, *others):
        replaced = [f"factbook 2021/{i}"] if i in again else None
        yield {"id": f"{new}/{i}", "source": f"{new}, new", "text": text, "supersedes": replaced}


def _passages(data: Path, source: Source) -> list[Passage]:
    raw = (data / source.path).read_bytes()
    text = (gzip.decompress(raw) if source.path.endswith(".gz") else raw).decode("utf-8")
    return [(f"{i}#{k}", part) for i, said in source.read(text) for k, part in enumerate(_parts(said))]


def _parts(said: str) -> Iterator[str]:
    """A document in parts that end between words where they can."""
    while said := said.strip():
        end = len(said) if len(said) <= LONGEST else (said.rfind(" ", LONGEST // 2, LONGEST) + 1 or LONGEST)
        yield said[:end].strip()
        said = said[end:]


def _document(passage: str) -> str:
    return passage.rpartition("#")[0]


def _picked(passages: Sequence[Passage], pieces: int, count: Count) -> list[Passage]:
    """Passages by chance, so many that about this many pieces are trained on; more begin with the same."""
    picked, left = [], pieces / (1 - HOLDOUT)
    for i in np.random.default_rng(0).permutation(len(passages)).tolist():
        if left <= 0:
            break
        picked.append(passages[i])
        left -= _pieces(passages[i][1], count)
    return picked


def _pieces(text: str, count: Count) -> int:
    return -(-count(text) // int(FULL * LENGTH))
