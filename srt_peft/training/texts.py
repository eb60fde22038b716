"""The texts of a recipe: the examples of both pools, their decks, what no longer holds, and what is said of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.data import history, supersedes, tombstones
from srt_peft.data.corpus import Corpus
from srt_peft.data.history import History
from srt_peft.data.ingest import home, ingest
from srt_peft.data.pool import Pool
from srt_peft.data.sources import absent
from srt_peft.data.supersedes import Pair, Supersedes
from srt_peft.data.tombstones import Tombstones
from srt_peft.errors import OptionError, StateError
from srt_peft.review.options import Options
from srt_peft.training.keys import Recipe, Source

CALLED = {"decks": "division into decks", "supersedes": "map of what is superseded", "counts": "log of counts"}
"""What a part of a run's identity is called, where its name alone is not a word for it."""


@dataclass(frozen=True)
class Texts:
    """All that a run reads."""

    corpus: Corpus
    held_out: dict[str, Pool]
    """What neither pool trains on, by pool."""
    deck: NDArray[np.uint16]
    """Which deck each example is of."""
    decks: list[str]
    words: list[list[str]]
    """The most telling words of each deck, where decks are clusters."""
    superseded: NDArray[np.int64]
    """The old examples that newer ones replace."""
    gone: Sequence[str] = ()
    """What is said to be replaced by what is old itself, and is not in the old text any more."""
    ambiguous: Mapping[str, int] = field(default_factory=dict)
    """Each name of what is superseded that several old documents share, and how many do."""
    nowhere: Sequence[str] = ()
    """Names of what is superseded that have no example: held out, empty, or the text stands under another name."""
    outdated: int = 0
    """How many held-out old examples are left out of what is measured, since their documents are superseded."""
    pairs: tuple[Pair, ...] = ()
    """What is said of what replaces what."""
    past: History | None = None
    """What earlier updates have left, where there were any."""

    @property
    def first(self) -> int:
        """The step at which the update begins: the clock goes on from one update to the next."""
        return 0 if self.past is None else self.past.step

    @property
    def sources(self) -> int:
        """How many decks the old text has that something can be drawn of."""
        return int(np.count_nonzero(self.sizes))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many old examples each deck has, without the superseded."""
        there = np.delete(self.deck[: self.corpus.n_old], self.superseded)
        return np.bincount(there, minlength=len(self.decks))

    @property
    def identity(self) -> dict[str, str]:
        """What a resume must find unchanged."""
        return identified(self.corpus, self.decks, self.deck, self.pairs)


def identified(
    corpus: Corpus, decks: Sequence[str], deck: NDArray[np.uint16], pairs: tuple[Pair, ...]
) -> dict[str, str]:
    """A hash of the texts, and of how they are divided and of who replaces whom, where there is anything to say."""
    found = {"corpus": corpus.fingerprint}
    if len(decks) > 1:
        told = f"{list(decks)} ".encode() + deck.tobytes()
        found["decks"] = hashlib.blake2b(told, digest_size=16).hexdigest()
    return found | ({"supersedes": Supersedes(pairs).fingerprint} if pairs else {})


def read(recipe: Recipe, tokenizer: Any) -> Texts:
    """The texts as this tokenizer has them; or all that is wrong with them."""
    past = past_of(recipe)
    corpus, held_out, said = _ingested(recipe, tokenizer, past)
    k, words = recipe.data.clusters, list[list[str]]()
    if k is None:
        deck, decks = corpus.decks
    else:
        from srt_peft.data.clusters import clusters_of  # noqa: PLC0415 - scikit-learn takes a second

        deck, decks, words = clusters_of(corpus, k)
    found = supersedes.superseded(corpus, said.pairs)
    return Texts(
        corpus,
        _measured(corpus, held_out),
        deck,
        decks,
        words,
        found.ids,
        gone=found.gone,
        ambiguous=found.ambiguous,
        nowhere=found.nowhere,
        outdated=_held_out(held_out["old"]) - len(held_out["old"]),
        pairs=said.pairs,
        past=past,
    )


def past_of(recipe: Recipe) -> History | None:
    """What earlier updates have left, where that is the old text."""
    folder = history.named(recipe.data.old)
    past = None if folder is None else history.open_history(folder)
    if past is not None and tombstones.load(home()).of("examples", past.seen).any():
        run = Path(recipe.output)
        raise StateError(f"{past.folder} holds examples that were forgotten elsewhere. {follow_with(run)}")
    return past


def follow_with(run: Path) -> str:
    """What has a run forget what was forgotten in others."""
    return f"Have this run forget them, too: `srt-peft forget {run}`."


def corpora(recipe: Recipe, tokenizer: Any) -> tuple[Corpus, dict[str, Pool]]:
    """The texts as this tokenizer has them: what is trained on, and what neither pool trains on, by pool."""
    corpus, held_out, _ = _ingested(recipe, tokenizer, past_of(recipe))
    return corpus, _measured(corpus, held_out)


def _ingested(recipe: Recipe, tokenizer: Any, past: History | None) -> tuple[Corpus, dict[str, Pool], Supersedes]:
    """What is trained on, what is held out and still holds, and what replaces what."""
    data, run = recipe.data, Path(recipe.output)
    tombstones.adopt(home(), run)
    old = tokenised(recipe, data.old, tokenizer) if past is None else (past.train, past.held_out)
    before: dict[str, Any] = {} if past is None else {"without": past.seen, "before": past.forgotten}
    new = tokenised(recipe, data.new, tokenizer, grouped=False, **before)
    corpus = Corpus(old[0], new[0])
    said = supersedes.read(data.supersedes, corpus, past=past is not None)
    said = supersedes.without(said, corpus, tombstones.load(home()))
    return corpus, {"old": supersedes.still(old[1], said.pairs), "new": new[1]}, said


def _held_out(pool: Pool) -> int:
    """How many examples its ingest has held out."""
    return int(pool.manifest["about"]["report"]["held_out"])


def _measured(corpus: Corpus, held_out: Mapping[str, Pool]) -> dict[str, Pool]:
    """Of what is held out, what neither pool trains on, word for word."""
    unseen = {name: corpus.unseen(pool) for name, pool in held_out.items()}
    return {name: pool for name, pool in unseen.items() if len(pool)}


def tokenised(
    recipe: Recipe,
    sources: Sequence[Source],
    tokenizer: Any,
    *,
    grouped: bool = True,
    without: NDArray[np.uint8] | None = None,
    before: Tombstones | None = None,
) -> tuple[Pool, Pool]:
    """The pools that these sources become under the recipe: what is trained on, and what is held out.

    `grouped` is whether each has to say which source its rows are of: slots are shared among the sources of old alone.
    """
    found = ingest(
        [asdict(source) for source in sources],
        tokenizer,
        text_column=recipe.data.text_column,
        source_column=recipe.data.source_column,
        grouped=grouped,
        id_column=recipe.data.id_column,
        date_column=recipe.data.date_column,
        supersedes_column=supersedes.column_of(recipe.data.supersedes),
        format=recipe.data.format,
        max_length=recipe.data.max_length,
        holdout=recipe.data.holdout,
        without=without,
        before=before,
    )
    return found.train, found.held_out


def check_there(recipe: Recipe) -> None:
    """What can be told of texts before any of them is read, which may take an hour."""
    replaced = [recipe.data.supersedes] if recipe.data.supersedes else []  # a column's name is no path by its looks
    gone = absent([source.path for source in (*recipe.data.old, *recipe.data.new)] + replaced)
    if gone:
        raise OptionError("the corpus", gone)


def notes(recipe: Recipe, texts: Texts) -> Iterator[str]:
    """What the texts have become, and what is legal and seldom meant."""
    corpus, held_out = texts.corpus, texts.held_out
    shared, n_new, batch = corpus.shared(), len(corpus.new), recipe.training.batch_size
    for name, pool in (("old", corpus.old), ("new", corpus.new)):
        about = pool.manifest["about"]["report"]
        left = len(held_out.get(name, ()))
        yield (
            f"{name}: {about['documents']:,} documents ({about['empty']:,} empty) make {len(pool):,} examples of "
            f"{int(pool.lengths.sum()):,} tokens; {left:,} more are held out, {about['duplicates']:,} were duplicates."
        )
        outdated = texts.outdated if name == "old" else 0
        if about["held_out"] > left + outdated:
            yield (
                f"{about['held_out'] - left - outdated} more were held out of data.{name}, and are trained on in the "
                "other text, word for word: they are left out of what is measured."
            )
    if texts.sources > 1:
        sizes = texts.sizes
        largest = [f"{texts.decks[g]} {sizes[g]:,}" for g in np.argsort(-sizes, kind="stable")[:8] if sizes[g]]
        more = f" and {texts.sources - len(largest):,} more" if texts.sources > len(largest) else ""
        yield f"data.old has {texts.sources:,} decks: {', '.join(largest)}{more}."
    if texts.superseded.size:
        yield (
            f"{texts.superseded.size:,} of {corpus.n_old:,} old examples are superseded: they are neither drawn nor "
            "counted, and come back when what replaces them is withdrawn."
        )
    yield from _replaced(texts)
    share, replays = recipe.review.old_fraction, recipe.review.scheduler not in ("cpt", "match")
    if corpus.n_old and share and replays and not Options(batch_size=batch, old_fraction=share).old_slots:
        yield (
            f"review.old_fraction = {share} of training.batch_size = {batch} is less than one example: no slot is kept "
            "for old ones."
        )
    if recipe.evaluation.every and not held_out:
        yield f"evaluation.every = {recipe.evaluation.every}: no text is held out whose perplexity could be measured."
    if shared:
        yield (
            f"{shared} of {n_new} new examples are in data.old, too, word for word: each is reviewed in both pools, as "
            "two examples. Take them out of one of the two, unless that is meant."
        )
    if batch > len(corpus):
        yield f"training.batch_size = {batch} is more than the {len(corpus)} examples there are: draws are smaller."


def _replaced(texts: Texts) -> Iterator[str]:
    """What else is to be said of superseded documents."""
    if texts.outdated:
        yield (
            f"{texts.outdated:,} held-out examples of data.old are of superseded documents: what no longer holds is "
            "left out of what is measured."
        )
    if texts.ambiguous:
        shared = _some([f"{name!r} is {count:,} documents" for name, count in texts.ambiguous.items()])
        yield f"Names that supersedes uses are shared in data.old, and all who bear them are set aside: {shared}."
    if texts.nowhere:
        yield (
            f"Nothing is set aside for {_some([repr(name) for name in texts.nowhere])}: superseded, and without an "
            "example in data.old (held out, empty, or the same text stood there before under another name: name that)."
        )
    if texts.gone:
        count = "1 document" if len(texts.gone) == 1 else f"{len(texts.gone):,} documents"
        yield (
            f"{count} that old texts once replaced are not in data.old any more, so nothing of them is set aside: "
            f"{_some([repr(name) for name in texts.gone])}."
        )


def _some(said: Sequence[str], most: int = 5) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(said[:most]) + (f" and {len(said) - most:,} more" if len(said) > most else "")
