"""What a run was, once it has ended: did scheduling bind, what did it cost, who was superseded. Told, and kept.

RUN/summary.json has the figures, the sentences and the ids of all superseded examples; on the screen it is a few lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.data.corpus import Corpus
from srt_peft.review import ReviewLog
from srt_peft.training.binding import said, shown
from srt_peft.training.figures import Figures, figures
from srt_peft.training.folder import METRICS, REVIEW, SUMMARY, replace
from srt_peft.training.rehearsal import pools_of

if TYPE_CHECKING:
    from srt_peft.training.run import Setup

FEW_TEXTS, FEW_WORDS = 5, 12
"""Of the superseded examples so many are shown, and so much of each."""


def summarise(setup: Setup, steps: int) -> None:
    """Write RUN/summary.json; a run that is finished, and not one of many, is told of, too."""
    found = measured(setup, steps)
    gone = setup.texts.superseded.tolist()
    lines = list(said(found))
    kept = {
        "figures": asdict(found),
        "said": lines,
        "superseded": gone,
        "superseded_texts": list(_texts(setup.corpus, setup.texts.superseded)),
    }
    replace(setup.folder / SUMMARY, json.dumps(kept, indent=1, sort_keys=True) + "\n")
    if found.known < steps:
        return
    told = ["", "What the schedule was:", *(f"  {line}" for line in (*shown(found), *lines))]
    if gone:
        told += [f"  {len(gone):,} old examples were superseded, and not drawn; {SUMMARY} has their ids. The first:"]
        told += [f"    {text}" for text in kept["superseded_texts"]]
    setup.say("\n".join(told))


def measured(setup: Setup, steps: int) -> Figures:
    """The figures of this run, from metrics.jsonl and the review log."""
    trained, qualities = _reviews(setup)
    lines = [json.loads(line) for line in (setup.folder / METRICS).read_text().splitlines()]
    scheduler, pools = setup.scheduler, pools_of(setup.recipe, setup.texts)
    return figures(scheduler.name, scheduler.options, pools, lines, trained, qualities, steps=steps, measured=True)


def _reviews(setup: Setup) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How often each example was trained on, and how the reviews of each pool came out."""
    trained, qualities = np.zeros(len(setup.corpus), np.int64), np.zeros((2, 6), np.int64)
    with ReviewLog(setup.folder / REVIEW / "log") as log:
        for part in log.parts():
            told = part[part["id"] >= 0]
            np.add.at(qualities, (told["pool"], told["quality"]), 1)
            trained += np.bincount(told["id"][told["untrained"] == 0], minlength=trained.size)
    return trained, qualities


def amended(folder: Path, corpus: Corpus, superseded: NDArray[np.int64]) -> None:
    """Have RUN/summary.json name those who are superseded by the ids that they have now."""
    told = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    told |= {"superseded": superseded.tolist(), "superseded_texts": list(_texts(corpus, superseded))}
    replace(folder / SUMMARY, json.dumps(told, indent=1, sort_keys=True) + "\n")


def _texts(corpus: Corpus, superseded: NDArray[np.int64]) -> Iterator[str]:
    """How the first superseded examples begin."""
    for i in superseded[:FEW_TEXTS].tolist():
        words = corpus.text(i).split()
        yield " ".join(words[:FEW_WORDS]) + (" …" if len(words) > FEW_WORDS else "")


def decks(setup: Setup) -> str:
    """RUN/decks.json: the decks in the order in which metrics.jsonl has their slots and what they have lost."""
    return listed(setup.texts.decks, setup.texts.deck, setup.corpus.n_old, setup.texts.words)


def listed(names: Sequence[str], deck: NDArray[Any], n_old: int, words: Sequence[Sequence[str]]) -> str:
    """The decks of these names: `deck` is the number that each example has."""
    sizes: list[Any] = [np.bincount(part, minlength=len(names)).tolist() for part in (deck[:n_old], deck[n_old:])]
    listed = [{"name": name, "old": old, "new": new} for name, old, new in zip(names, *sizes, strict=True)]
    for one, telling in zip(listed, words, strict=False):  # only clusters have words
        one["words"] = telling
    return json.dumps(listed, indent=1, ensure_ascii=False) + "\n"
