"""Presets: what the options are that a recipe leaves to them, for every scheduler and every number of sources."""

import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import OptionError, make_scheduler
from srt_peft.review.kinds import SCHEDULERS
from srt_peft.training import preset
from srt_peft.training.preset import QUIZ, resolve, told
from srt_peft.training.recipe import load_recipe

LEAST = {"model": {"base": "b"}, "data": {"old": "a.txt", "new": "b.txt"}}


def load(*overrides):
    return load_recipe(LEAST, overrides)


def options(recipe):
    """What the preset decides, as the table in its docstring names it."""
    review = recipe.review
    flat = {name: getattr(review, name) for name in ("stagger", "underfull", "recall", "reference", "decks")}
    return {**flat, "old.order": review.old.order, "new.order": review.new.order, "old.quiz": review.old.quiz}


def table():
    """(paper, the beginning of auto) by option, as the docstring has them."""
    rows = re.findall(r"^    ([\w.]+) +(\w+) +(\S.*)$", preset.__doc__, re.MULTILINE)
    return {name: (paper, auto) for name, paper, auto in rows}


def test_the_table_holds():
    """Each row of it, with one source and with several, at either retention."""
    assert set(table()) == set(options(resolve(load(), 1)))
    papers = options(resolve(load("review.preset=paper"), 2))
    one, two = (options(resolve(load(), sources)) for sources in (1, 2))
    high = options(resolve(load("review.retention=high"), 1))
    for name, (paper, auto) in table().items():
        assert str(papers[name]) == paper, name
        assert auto.startswith(("base with decks", "auto where old has two")) or re.match(rf"{one[name]}\b", auto), name
    assert (one["reference"], two["reference"], high["reference"]) == ("best", "base", "base")
    assert options(resolve(load("review.recall=quantile"), 1))["reference"] == "base"
    assert (one["decks"], two["decks"], high["decks"]) == ("off", "auto", "off")
    assert (one["old.order"], high["old.order"], high["old.quiz"]) == ("rounds", "overdue", QUIZ)


def test_the_papers_preset_is_the_papers_scheduler():
    recipe = resolve(load("review.preset=paper"), sources=7)
    sizes = {"old": 9, "new": 9, "batch_size": 4}
    made = make_scheduler("srt", **sizes, **recipe.scheduler_options())
    assert made.options == make_scheduler("srt", **sizes).options


@pytest.mark.parametrize("name", sorted(set(SCHEDULERS) - {"match"}))
@pytest.mark.parametrize("retention", ["normal", "high"])
@pytest.mark.parametrize("kind", ["auto", "paper"])
def test_every_scheduler_takes_what_a_preset_decides(name, retention, kind):
    """Also those that know neither decks nor a quiz, nor an order but one; and nothing is left open."""
    recipe = load(f"review.scheduler={name}", f"review.retention={retention}", f"review.preset={kind}")
    for sources in (0, 1, 2):
        resolved = resolve(recipe, sources)
        assert None not in options(resolved).values()
        make_scheduler(
            name, old=6, new=6, batch_size=2, deck=np.arange(12) % 3, **resolved.scheduler_options()
        ).check_valid()


OWN = {
    "review.stagger": [1, 3],
    "review.underfull": ["short", "ahead"],
    "review.recall": ["absolute", "relative"],
    "review.reference": ["best", "base"],
    "review.decks": ["off", "auto", "sqrt", "equal"],
    "review.old.order": ["uniform", "epoch", "overdue", "rounds"],
    "review.new.order": ["uniform", "epoch", "overdue", "rounds", "intake"],
    "review.old.quiz": [0, 2],
}


@given(
    st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in OWN.items()}),
    st.sampled_from(["auto", "paper"]),
    st.sampled_from(["normal", "high"]),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_what_a_recipe_sets_stays(own, kind, retention, sources):
    """Resolving is pure, moves nothing that is set, and is done once: a second time changes nothing."""
    given_ = [f"{key}={value}" for key, value in own.items()]
    recipe = load(*given_, f"review.preset={kind}", f"review.retention={retention}")
    resolved = resolve(recipe, sources)
    for key, value in own.items():
        assert options(resolved)[key.removeprefix("review.")] == value
    assert recipe == load(*given_, f"review.preset={kind}", f"review.retention={retention}")
    assert resolve(resolved, sources) == resolve(resolved, 9) == resolved


def test_it_is_told_and_what_is_the_recipes_own_is_named():
    asked = load("review.old.quiz=2", "review.decks=off")
    [line] = told(asked, resolve(asked, 2))
    stands = "review.preset: auto stands for old.order: overdue, new.order: rounds, old.quiz: 2 (yours), "
    assert line.startswith(stands)
    assert "decks: off (yours)" in line
    assert line.count("(yours)") == 2


def test_a_clash_with_what_the_preset_would_decide_is_told_when_the_recipe_is_read():
    with pytest.raises(OptionError, match="'cpt' knows none"):
        load("review.scheduler=cpt", "review.decks=auto")


def test_first_tokens_may_be_asked_of_a_quiz_that_the_preset_holds():
    """`retention: high` holds one; without a quiz the option is refused by name."""
    asked = load("review.retention=high", "review.old.quiz_tokens=4")
    assert resolve(asked, 1).scheduler_options()["quiz_tokens"] == 4
    for none in (["review.old.quiz=0", "review.retention=high"], ["review.preset=paper", "review.retention=high"], []):
        with pytest.raises(OptionError, match="quiz_tokens = 4 without a quiz"):
            load(*none, "review.old.quiz_tokens=4")


def test_a_preset_that_has_nothing_left_to_decide_is_told():
    """As on the recipe.yaml of a run, which is resolved: what it would have otherwise, and how to leave it that."""
    ran = resolve(load(), 2).as_dict()
    for unchanged in ([], ["review.decks=off"]):  # another number of sources is no preset that is set in vain
        asked = load_recipe(ran, unchanged)
        assert len(list(told(asked, resolve(asked, 2)))) == 1
    paper = load_recipe(ran, ["review.preset=paper"])
    [_, line] = told(paper, resolve(paper, 2))
    assert "so review.preset: paper changes nothing: old.order stays rounds, where it would be uniform; " in line
    assert "recall stays relative, where it would be absolute" in line
    assert line.endswith("Set to null what the preset should decide.")
    high = load_recipe(ran, ["review.retention=high"])
    [_, line] = told(high, resolve(high, 2))
    assert "review.preset: auto with review.retention: high changes nothing: old.order stays rounds, where" in line
    assert "old.quiz stays 0, where it would be 4" in line
    left = load_recipe(ran, ["review.retention=high", "review.old.quiz=null"])
    assert len(list(told(left, resolve(left, 2)))) == 1


@pytest.mark.parametrize("scheduler", ["srt", "leitner", "uniform"])
def test_thresholds_of_an_unsaid_recall_are_refused_when_the_recipe_is_read(scheduler):
    """Perplexities would be read as nats, or refused only once the model is loaded; the paper's preset says which."""
    own = {"review.thresholds": "[50,158,500,1581,5000]", "review.alpha": "0.5"}
    words = [f"{key}={value}" for key, value in own.items()]
    with pytest.raises(OptionError) as error:
        load(f"review.scheduler={scheduler}", *words)
    assert [fault.split(" = ")[0] for fault in error.value.faults] == list(own)
    for said in ("review.preset=paper", "review.recall=absolute"):
        resolved = resolve(load(f"review.scheduler={scheduler}", said, *words), 1)
        make_scheduler(scheduler, old=6, new=6, batch_size=2, **resolved.scheduler_options()).check_valid()
