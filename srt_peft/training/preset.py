"""Presets: what the review options are where a recipe leaves them null, by what is known of the texts.

                         paper       auto
    stagger              5           1
    underfull            short       ahead                    every slot is filled
    old.order            uniform     rounds, which are shuffled epochs; overdue with a quiz
    new.order            uniform     rounds
    recall               absolute    relative
    reference            best        base with decks, a quiz or `recall: quantile`, which costs a pass over old; else
                                     best, which is free, and so where no slot is kept for old ones
    decks                off         auto where old has two sources or more, the superseded not counted
    old.quiz             0           0; 4 with `retention: high`

A preset never moves what a recipe sets. What a scheduler does not know stays as it is in the paper: the others have
no due set, and so none of this but the orders. Why auto is what it is: docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from srt_peft.review.kinds import SCHEDULERS
from srt_peft.review.options import Options
from srt_peft.training.keys import Recipe, Review

PAPER: dict[str, Any] = {
    name: getattr(Options, name) for name in ("stagger", "recall", "reference", "underfull", "decks", "quiz")
} | {"old": "uniform", "new": "uniform"}
QUIZ = 4


def resolve(recipe: Recipe, sources: int) -> Recipe:
    """The recipe with every review option explicit; `sources` is how many the old text has to draw from."""
    review = recipe.review
    decided = _auto(recipe, sources) if review.preset == "auto" else PAPER
    orders = SCHEDULERS[review.scheduler].agendas
    by_pool = {
        pool: getattr(review, pool).order or (decided[pool] if decided[pool] in orders else "uniform")
        for pool in ("old", "new")
    }
    flat = {
        name: decided[name] if getattr(review, name) is None else getattr(review, name)
        for name in ("stagger", "recall", "reference", "underfull", "decks")
    }
    old = replace(
        review.old, order=by_pool["old"], quiz=decided["quiz"] if review.old.quiz is None else review.old.quiz
    )
    return replace(recipe, review=replace(review, **flat, old=old, new=replace(review.new, order=by_pool["new"])))


def _auto(recipe: Recipe, sources: int) -> dict[str, Any]:
    """What auto stands for, in the order in which one thing follows from another."""
    review, kind = recipe.review, SCHEDULERS[recipe.review.scheduler]
    if "quiz" not in kind.extras:
        return PAPER | {"old": "epoch", "new": "epoch", "stagger": 1, "underfull": "ahead"}
    decks = review.decks or ("auto" if sources > 1 else "off")
    quiz = (QUIZ if review.retention == "high" else 0) if review.old.quiz is None else review.old.quiz
    slots = Options(batch_size=recipe.training.batch_size, old_fraction=review.old_fraction).old_slots
    return {
        "stagger": 1,
        "underfull": "ahead",
        "recall": "relative",
        "reference": "base" if slots and (decks == "auto" or quiz or review.recall == "quantile") else "best",
        "decks": decks,
        "quiz": quiz,
        "old": "overdue" if quiz else "rounds",
        "new": "rounds",
    }


def told(asked: Recipe, resolved: Recipe) -> Iterator[str]:
    """What the preset stands for here, as a recipe would say it, and what of it is the recipe's own."""
    mine = _options(asked)
    said = ", ".join(
        f"{key}: {value}" + ("" if mine[key] is None else " (yours)") for key, value in _options(resolved).items()
    )
    yield f"review.preset: {resolved.review.preset} stands for {said}."
    if None not in mine.values():
        yield from _in_vain(asked)


def reopened(given: Recipe, asked: Recipe, begun: Recipe) -> Recipe:
    """The recipe that a resume was given, with what the run was `asked` to leave to its preset left to it again.

    The recipe.yaml of a run has all that was decided when it was begun, and so resumes it. Taken at its word it would
    bind every update after this one, too.
    """
    decided, left = _options(begun), [key for key, value in _options(asked).items() if value is None]
    stays = [key for key in left if _options(given)[key] == decided[key]]
    return replace(given, review=_without(given.review, stays))


def _without(review: Review, keys: Collection[str]) -> Review:
    """The review settings with these left to the preset."""
    left: dict[str, Any] = {key: None for key in keys if "." not in key}
    for pool in ("old", "new"):
        own: dict[str, Any] = {key.partition(".")[2]: None for key in keys if key.startswith(f"{pool}.")}
        left[pool] = replace(getattr(review, pool), **own)
    return replace(review, **left)


def _in_vain(asked: Recipe) -> Iterator[str]:
    """What a preset would have otherwise of a recipe that leaves it nothing, as the recipe.yaml of a run does."""
    review = asked.review
    recipe = replace(asked, review=_without(review, _options(asked)))
    one, several = (_options(resolve(recipe, sources)) for sources in (1, 2))
    differing = [
        f"{key} stays {value}, where it would be {one[key]}"
        for key, value in _options(asked).items()
        if value not in (one[key], several[key])
    ]
    if differing:
        high = " with review.retention: high" if (review.preset, review.retention) == ("auto", "high") else ""
        yield (
            f"Warning: this recipe sets all that a preset decides, as the recipe.yaml of a run does, so review.preset: "
            f"{review.preset}{high} changes nothing: {'; '.join(differing)}. Set to null what the preset should decide."
        )


def _options(recipe: Recipe) -> dict[str, Any]:
    review = recipe.review
    flat = {name: getattr(review, name) for name in ("recall", "reference", "underfull", "stagger", "decks")}
    return {"old.order": review.old.order, "new.order": review.new.order, "old.quiz": review.old.quiz, **flat}
