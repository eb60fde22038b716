"""The update before it is made: the recipe's own scheduler over the true pools, with assumed signals.

Nothing is trained or scored: each signal is what the example's reference is, as if nothing were ever lost.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from srt_peft.data.corpus import Corpus
from srt_peft.review import ReviewState, Scheduler, make_scheduler
from srt_peft.review.options import Options
from srt_peft.training.binding import PERPLEXITY
from srt_peft.training.figures import Figures, Line, Pools, figures, reference_tokens
from srt_peft.training.keys import Recipe
from srt_peft.training.schedule import steps_of
from srt_peft.training.scheduled import options_of
from srt_peft.training.texts import Texts

MOST_STEPS = 2000
"""Of a longer update only so many steps are rehearsed."""


def pools_of(recipe: Recipe, texts: Texts) -> Pools:
    """What of the texts a schedule depends on."""
    corpus = texts.corpus
    silent = recipe.data.supersedes is None
    return Pools(
        old=corpus.n_old,
        new=len(corpus.new),
        lengths=corpus.lengths,
        deck=texts.deck,
        decks=texts.decks,
        superseded=texts.superseded,
        namesakes=_namesakes(corpus) if silent else 0,
    )


def _namesakes(corpus: Corpus) -> int:
    """How many documents of new have the name of an old one, and not its text; half a hash tells them apart."""
    (text, name), (new_text, new_name) = (
        [np.ascontiguousarray(column[:, :8]).view("<u8").ravel() for column in (pool.identity, pool.key)]
        for pool in (corpus.old, corpus.new)
    )
    other = new_name[~np.isin(new_text, text)]
    return int(np.count_nonzero(np.intersect1d(name, other)))  # a document without a name has zeros for one


def rehearse(
    recipe: Recipe, pools: Pools, *, past: ReviewState | None = None, most: int = MOST_STEPS, bar: bool = False
) -> Figures:
    """The figures of a recipe whose presets are resolved; `past` is what earlier updates have left of the old ones."""
    steps = steps_of(recipe, pools.new)
    scheduler = make_scheduler(
        recipe.review.scheduler,
        old=pools.old,
        new=pools.new,
        deck=pools.deck if len(pools.decks) > 1 or recipe.review.decks != "off" else None,
        past=past,
        **options_of(recipe, pools.new, 0 if past is None else past.step),
    )
    scheduler.state.supersede(pools.superseded)
    signals = _assumed(scheduler.options, pools.old + pools.new)
    lines = _before(scheduler, recipe, pools, signals)
    trained, qualities = np.zeros(signals.size, np.int64), np.zeros((2, 6), np.int64)
    shown = tqdm(range(min(steps, most)), desc="rehearsal", unit="step", delay=2, disable=None if bar else True)
    for _ in shown:
        lines.append(_step(scheduler, pools, signals, trained, qualities))
    return figures(scheduler.name, scheduler.options, pools, lines, trained, qualities, steps=steps, measured=False)


def _assumed(options: Options, n: int) -> NDArray[np.float32]:
    """The signal of each example, at every review."""
    if options.recall == "confidence":
        return np.full(n, -math.log(0.95), np.float32)
    signals = np.full(n, math.log(PERPLEXITY), np.float32)
    if options.recall == "quantile":  # which all alike have none: spread evenly, neighbours far apart
        signals += (np.arange(n) * 0.618034 % 1 - 0.5).astype(np.float32)
    return signals


def _before(scheduler: Scheduler, recipe: Recipe, pools: Pools, signals: NDArray[np.float32]) -> list[Line]:
    """What is scored before the first step, noted as compute."""
    options, old = scheduler.options, np.arange(pools.old)
    if scheduler.name == "ppl":
        scheduler.prime(np.arange(signals.size), signals)
        return [_pass("first look", signals.size, int(pools.lengths.sum()))]
    there = np.delete(old, pools.superseded)
    if not options.refers or options.reference != "base" or not there.size:
        return []
    most, sample = options.quiz_tokens, recipe.review.reference_sample
    there = there[np.isnan(scheduler.state.columns["reference"][there])]  # others were scored in an earlier update
    scheduler.prime(old, signals[old], prefix=None if most is None else signals[old])
    sizes = np.bincount(pools.deck[there], minlength=len(pools.decks))
    taken = there.size if sample is None else int(np.minimum(sizes, sample).sum())
    share = taken / max(there.size, 1)  # who is in a sample is not known here
    tokens = round(share * reference_tokens(pools.lengths[there], most))
    return [_pass("reference", taken, tokens)] if taken else []


def _pass(name: str, examples: int, tokens: int) -> Line:
    return {"pass": name, "examples": examples, "forward_only_tokens": tokens}


def _step(
    scheduler: Scheduler,
    pools: Pools,
    signals: NDArray[np.float32],
    trained: NDArray[np.int64],
    qualities: NDArray[np.int64],
) -> Line:
    """One step, as metrics.jsonl would have it."""
    asked = scheduler.quiz()
    tokens = 0
    if asked is not None:
        scheduler.answer(asked, signals[asked])
        most = scheduler.options.quiz_tokens or np.iinfo(np.int64).max
        tokens = int(np.minimum(pools.lengths[asked], most).sum())
    draw = scheduler.draw()
    review = scheduler.review(draw.ids, signals[draw.ids])
    trained[draw.ids] += 1
    np.add.at(qualities, ((draw.ids >= pools.old).astype(int), review.quality), 1)
    return {
        "step": draw.step,
        "old": draw.n_old,
        "new": draw.ids.size - draw.n_old,
        "due_old": draw.due[0],
        "due_new": draw.due[1],
        "tokens": int(pools.lengths[draw.ids].sum()),
        "asked": draw.asked,
        "forward_only_tokens": tokens,
    }
