"""Does scheduling bind? What is said of updates with tiny pools to huge ones, before and after training."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from srt_peft.training import binding
from srt_peft.training.binding import said, shown
from srt_peft.training.figures import Pools
from srt_peft.training.preset import resolve
from srt_peft.training.recipe import load_recipe
from srt_peft.training.rehearsal import rehearse

LEAST = {"model": {"base": "b"}, "data": {"old": "a.txt", "new": "b.txt"}}
SMALL = ("training.batch_size=20",)


def pools(old, new, decks=(), superseded=(), namesakes=0):
    """Pools of examples of 100 tokens; `decks` are the sizes of old's."""
    sizes = list(decks) or [old]
    deck = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.zeros(new, int)]).astype(np.uint16)
    return Pools(
        old=old, new=new, lengths=np.full(old + new, 100), deck=deck, decks=[f"deck {g}" for g in range(len(sizes))],
        superseded=np.array(superseded, np.int64), namesakes=namesakes,
    )  # fmt: skip


def rehearsed(sizes, *overrides, most=2000):
    recipe = load_recipe(LEAST, overrides)
    return rehearse(resolve(recipe, len(sizes.decks)), sizes, most=most)


PAPER = "review.preset=paper"
SEEN = "Most old examples are not visited"
ORDER = "in shuffled epochs (rounds)"
LONGEST = "review.order=epoch"
ONE = "data.old is one source"
EQUAL = "Warning: expect more than 90 % of old reviews to score the same, q = 5"
QUIZ = "The quiz costs 27 % more compute"

CASES = {
    "the paper's": (pools(31_729, 31_729), [PAPER], [SEEN, "is uniform replay", EQUAL, "35 % of the new", ONE]),
    "the paper's pools": (pools(31_729, 31_729), [], [SEEN, ORDER, ONE]),
    "four sources, high retention": (
        pools(31_728, 31_729, [7932] * 4),
        ["review.retention=high"],
        [
            SEEN, "the order decides, not the intervals", "Decks help the mean and the worst", QUIZ,
            "costs 26 % of the update's compute",
        ],
    ),
    "a small pool": (pools(663, 600), [*SMALL, "training.steps=400"], ["are visited 2.4 times", ORDER, ONE]),
    "the longest unseen": (
        pools(663, 600),
        [*SMALL, LONGEST, "training.steps=400"],
        ["are visited 2.4 times", "the order decides, not the intervals", ONE],
    ),
    "often, in rounds": (pools(100, 100), [*SMALL, "training.steps=400"], ["to matter, were it asked.", ORDER, ONE]),
    "tiny pools, short": (
        pools(20, 20),
        [PAPER, "training.batch_size=10", "training.steps=100"],
        ["visited 5 times: often", "The intervals bind", "too little is due: 92 of 100", EQUAL, "is old, where", ONE],
    ),
    "tiny pools, filled": (
        pools(20, 20),
        [LONGEST, "training.batch_size=10", "training.steps=100"],
        ["visited 10 times: often", "soonest due fill the rest", "Nothing old is due in 70 %", ONE],
    ),
    "fewer than a batch": (
        pools(3, 4),
        [*SMALL, LONGEST, "training.steps=10"],
        ["often enough", "The intervals bind", "comes before its time", "20 slots, and there are 7 examples", ONE],
    ),
    "few new ones, released": (
        pools(2000, 100),
        [*SMALL, PAPER, "training.steps=150"],
        ["are visited 1.2 times", "is uniform replay", EQUAL, "83 % of all that is drawn is old", ONE],
    ),
    "many small sources": (
        pools(3000, 600, [10] * 300),
        SMALL,
        [SEEN, ORDER, "300 decks have 0.5", "By size, 300 of 300 decks", "Warning: what the base scores"],
    ),
    "a huge pool with a tiny source": (
        pools(300_000, 2000, [299_900, 100]),
        [*SMALL, "review.reference_sample=200"],
        [SEEN, ORDER, "Decks help", "By size, 1 of 2 decks would get less than a slot in 50 steps (deck 1)"],
    ),
    "two sources, decks off": (
        pools(900, 600, [600, 300]), [*SMALL, "review.decks=off"], [SEEN, ORDER, "2 decks, and review.decks is off"],
    ),
    "nothing old": (pools(0, 600), SMALL, ["Nothing is replayed, since there is no old text"]),
    "no slot for old": (pools(600, 600), ["training.batch_size=4"], ["Nothing is replayed, since not one slot"]),
    "unscheduled": (pools(600, 600), [*SMALL, "review.scheduler=uniform"], ["'uniform' draws by no schedule", ONE]),
    "ppl": (
        pools(600, 600),
        [*SMALL, "review.scheduler=ppl"],
        ["did worse than uniform replay", "The same ones are drawn again", "Warning: what the base scores before"],
    ),
    "intake": (pools(600, 600), [*SMALL, "review.new.order=intake"], [SEEN, ORDER, "taken in slowly (intake)", ONE]),
    "half a pass": (pools(600, 600), [*SMALL, "training.steps=19"], [SEEN, ORDER, "49 % of the new examples", ONE]),
    "texts that overlap": (pools(600, 600, namesakes=7), SMALL, [SEEN, ORDER, ONE, "7 documents of data.new are"]),
}  # fmt: skip


@pytest.mark.parametrize(("every", "percent"), [(1, 27), (2, 13)])
def test_a_quiz_at_every_step_is_told_that_every_second_would_do(every, percent):
    figures_ = rehearsed(pools(31_729, 31_729), "review.retention=high", f"review.old.quiz_every={every}")
    [told] = [line for line in said(figures_) if line.startswith("The quiz costs")]
    assert f"The quiz costs {percent} % more compute" in told
    assert ("review.old.quiz_every: 2 kept nine tenths" in told) == (every == 1)


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_a_recipe(case):
    """These sentences, in this order, and no other but for what was assumed."""
    sizes, overrides, expected = CASES[case]
    found = rehearsed(sizes, *overrides)
    lines = [line for line in said(found) if not line.startswith("Rehearsed: all steps, as if everything")]
    assert len(lines) == len(expected), lines
    for line, part in zip(lines, expected, strict=True):
        assert part in line, lines
    assert all(len(line) < 360 and line.endswith(".") for line in (*lines, *shown(found)))


def test_every_sentence_is_in_the_manual():
    """docs/plan.md explains each: it names every function that says something."""
    manual = (Path(__file__).parents[2] / "docs/plan.md").read_text()
    for say in binding._SAYINGS:
        assert f"`{say.__name__.removeprefix('_')}`" in manual, say


def test_figures_are_what_was_drawn():
    found = rehearsed(pools(100, 60, [80, 20], superseded=[0, 1, 99]), *SMALL, "training.steps=10", "review.decks=sqrt")
    assert (found.old.examples, found.superseded, [deck.examples for deck in found.decks]) == (97, 3, [78, 19])
    assert found.old.visits * 97 == pytest.approx(40)
    assert found.new.visits * 60 == pytest.approx(160)
    assert sum(deck.slots for deck in found.decks) == pytest.approx(found.old.slots) == pytest.approx(4)
    assert sum(deck.even for deck in found.decks) == pytest.approx(4)
    assert (found.trained_tokens, found.short, found.old_share) == (20_000, 0, 0.2)
    assert (found.old.never, found.new.never) == (pytest.approx(57 / 97), 0.0)


def test_a_long_update_is_rehearsed_in_part_and_counted_whole():
    """Visits and compute are of the whole update; who is never drawn is not known."""
    whole, part = (rehearsed(pools(500, 800), *SMALL, "review.retention=high", most=most) for most in (2000, 10))
    assert (whole.known, part.known, part.steps) == (50, 10, 50)
    assert part.old.visits == pytest.approx(whole.old.visits)
    assert part.old.never is None
    assert part.cost("quiz") == pytest.approx(whole.cost("quiz"))
    assert "the first 10 of 50 steps" in [*said(part)][-1]


@pytest.mark.parametrize(
    ("recall", "thresholds", "q"),
    [("absolute", "null", 5), ("absolute", "[1,2,3,4,5]", 0), ("relative", "null", 5), ("confidence", "null", 5)],
)
def test_what_is_assumed_is_said(recall, thresholds, q):
    """A perplexity of 20 where it is that which is read; nothing lost where it is that."""
    found = rehearsed(pools(60, 60), *SMALL, f"review.recall={recall}", f"review.thresholds={thresholds}")
    [line] = [line for line in said(found) if line.startswith("Rehearsed")]
    assert f"q = {q})" in line
    assert ("a perplexity of 20" in line) is (recall == "absolute")


def test_quantiles_are_not_all_alike():
    found = rehearsed(pools(600, 60), *SMALL, "training.steps=150", "review={recall: quantile, reference: base}")
    assert 0.4 < found.old.equal < 0.6


def test_of_a_run_the_reviews_are_told_and_nothing_is_assumed():
    """As they were, and with the remedy that fits how they were read."""
    found = rehearsed(pools(600, 600), *SMALL)
    run = dataclasses.replace(found, measured=True, old=dataclasses.replace(found.old, equal=0.97, lapses=0.01))
    assert "q = 5 for 97 %, lapses 1 %" in next(shown(run))
    lines = [*said(run)]
    assert any("97 % of the old reviews score the same, q = 5: hardly anything was lost" in line for line in lines)
    assert not any("Rehearsed" in line for line in lines)
    absolute = dataclasses.replace(run, options=dataclasses.replace(run.options, recall="absolute"))
    assert any("review.recall: relative tells examples apart" in line for line in said(absolute))


def test_an_update_without_a_step_says_so():
    assert [*said(rehearsed(pools(10, 0), *SMALL))] == ["There is no step in this update: nothing is drawn."]


def test_numbers_are_written_to_be_read():
    told = [binding._number(x) for x in (0.0, 0.24, 2.4, 9.96, 63.04, 166_666.7)]
    assert told == ["0", "0.24", "2.4", "10", "63", "166,667"]
    assert all(re.fullmatch(r"[\d.]+ %", binding._percent(x)) for x in (0.0, 0.003, 0.27, 5.33))
