"""How slots are shared among decks and picked from a quiz: statistics, and what the two do over whole runs."""

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from srt_peft import make_scheduler
from srt_peft.review import chance, decks
from srt_peft.review.quiz import pick
from tests.review import twin
from tests.review.test_chance import FALSE_ALARM, quantile


def subsets(k, rate):
    """The exact probability of each set of k, drawn one after the other in proportion to the rates."""
    found = {}
    for order in permutations(range(len(rate)), k):
        p, left = 1.0, sum(rate)
        for i in order:
            p, left = p * rate[i] / left, left - rate[i]
        found[tuple(sorted(order))] = found.get(tuple(sorted(order)), 0.0) + p
    return found


@pytest.mark.parametrize(
    ("lost", "k", "explore"),
    [
        ([0.5, 0.3, 0.1, 0.0, -1.0], 2, 0.1),
        ([0.5, 0.3, 0.1, 0.2], 3, 0.0),
        ([1.0, 0.1, 0.1, 0.1], 1, 0.5),
        ([9.0, 0.0, 0.0], 1, 1.0),
        ([0.4, np.inf, np.nan, 0.1], 2, 0.1),
    ],
)
def test_a_quiz_picks_each_set_as_often_as_its_definition_says(lost, k, explore):
    """Chi-square over all sets; who could not be scored counts as the most forgotten, who has no reference as kept."""
    weight = np.clip(np.nan_to_num(lost, nan=0.001, posinf=max(x for x in lost if np.isfinite(x))), 0.001, None)
    exact = subsets(k, ((1 - explore) * weight / weight.sum() + explore / weight.size).tolist())
    draws, counts = 20_000, dict.fromkeys(exact, 0)
    for step in range(draws):
        counts[tuple(pick(k, np.array(lost), explore, chance.bits(5, step, 0)).tolist())] += 1
    expected = {chosen: p * draws for chosen, p in exact.items() if p * draws >= 5}
    chi2 = sum((counts[chosen] - e) ** 2 / e for chosen, e in expected.items())
    assert chi2 < quantile(max(len(expected) - 1, 1), FALSE_ALARM)
    assert sum(counts[chosen] for chosen in exact if chosen not in expected) < 60


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("count", "k"), [(2, 1), (7, 20), (40, 20), (100, 102)])
def test_in_the_long_run_each_deck_gets_its_wish(count, k, seed):
    """Never more than one slot away from it at a step, and no deck starves, whichever others stand beside it."""
    rng = np.random.default_rng([seed, count])
    sizes = rng.integers(1000, 9000, count)
    share = decks.shares("auto", rng.integers(0, 90, count), rng.gamma(0.5, 0.2, count), sizes, 0.2)
    wish = decks.wanted(k, share, sizes)
    assert wish.sum() == pytest.approx(k)
    steps = 3000
    given = np.array(
        [decks.slots(k, wish, sizes, float(chance.uniform(1, chance.bits(seed, t, 0))[0])) for t in range(steps)]
    )
    assert (given.sum(1) == k).all()
    assert (np.abs(given - wish) < 1 + 1e-6).all()
    part = wish % 1
    assert (np.abs(given.mean(0) - wish) < 5 * np.sqrt(part * (1 - part) / steps) + 1e-6).all()
    gaps = [np.diff(np.flatnonzero(got), prepend=0, append=steps).max() for got in given.T]
    assert all(gap < 5 + 25 / w for gap, w in zip(gaps, wish, strict=True)), "as rare as independent chance makes it"


def test_rounding_never_gives_what_is_not_there():
    """Whatever the wishes and however little is left of each deck, all slots are filled that can be."""
    rng = np.random.default_rng(0)
    for _ in range(3000):
        count, k = int(rng.integers(1, 12)), int(rng.integers(0, 60))
        sizes = rng.integers(0, 50, count)
        room = rng.integers(0, sizes + 1)
        kind, reviews = str(rng.choice(["auto", "sqrt", "equal"])), rng.integers(0, 90, count)
        share = decks.shares(kind, reviews, rng.normal(0.1, 0.3, count), sizes, 0.2)
        given = decks.slots(k, decks.wanted(k, share, sizes), room, float(rng.random()))
        assert ((given >= 0) & (given <= room)).all()
        assert given.sum() == min(k, room.sum())


# --- whole runs -------------------------------------------------------------------------------------------------


def run(s, steps, lost, *, seed=0, noise=0.0):
    """The ids of each step's draw, where every old example was 2.0 nats before, and has lost so much of it."""
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(steps):
        asked = s.quiz()
        if asked is not None:
            s.answer(asked, 2 + lost[asked] + rng.normal(0, noise, asked.size))
        draw = s.draw()
        s.review(draw.ids, 2 + lost[draw.ids] + rng.normal(0, noise, draw.ids.size))
        drawn.append(draw.ids)
    return drawn


def four_decks(**more):
    deck = np.arange(1000) % 4
    options = {"batch_size": 20, "old_fraction": 1.0, "stagger": 1, "recall": "relative", "reference": "base"}
    s = make_scheduler("srt", old=1000, new=0, decks="auto", deck=deck, **options | more)
    s.prime(range(1000), np.full(1000, 2.0))
    return s, deck


def slots_of(drawn, deck):
    return np.mean([np.bincount(deck[ids], minlength=4) for ids in drawn], axis=0)


@pytest.mark.parametrize("order", ["uniform", "overdue", "epoch"])
def test_shares_follow_a_planted_forgetting(order):
    """Within 15 steps of 20 reviews the hurt deck has its share; once another is hurt, so has that, 40 visits later."""
    s, deck = four_decks(order=order)
    lost = np.array([0.0, 0.05, 0.4, 0.0])
    run(s, 15, lost[deck], noise=0.05)
    share = slots_of(run(s, 25, lost[deck], noise=0.05), deck) / 20
    assert share[2] == pytest.approx(0.8 * 0.3425 / 0.45 + 0.05, abs=0.06)
    assert share[[0, 3]] == pytest.approx([0.09, 0.09], abs=0.04), "who holds gets few slots"
    lost = np.array([0.4, 0.05, 0.0, 0.0])
    visits = 0
    while visits < 40:
        visits += slots_of(run(s, 1, lost[deck], noise=0.05), deck)[0]
    share = slots_of(run(s, 10, lost[deck], noise=0.05), deck) / 20
    assert share[0] > 0.6
    assert share[2] < 0.15


def test_a_deck_that_was_measured_too_early_is_not_starved():
    """Nothing is lost in the first steps, and a tiny deck is reviewed a few times in them: then all lose alike."""
    deck = np.repeat(np.arange(4), [1000, 600, 300, 60])
    options = {"batch_size": 20, "old_fraction": 0.2, "stagger": 1, "recall": "relative", "reference": "base"}
    s = make_scheduler("srt", old=1960, new=4000, decks="auto", deck=np.append(deck, [0] * 4000), order="rounds",
                       underfull="ahead", **options)  # fmt: skip
    s.prime(range(1960), np.full(1960, 2.0))
    lost = np.zeros(5960)
    run(s, 8, lost)
    lost[:1960] = 0.2
    slots = np.sum([np.bincount(deck[ids[ids < 1960]], minlength=4) for ids in run(s, 100, lost)], axis=0)
    assert (slots > 60).all(), slots


def test_a_quiz_tells_of_the_decks_more_than_the_draw():
    """With a quiz, f is what all that were asked have lost, and not those whom it chose to study for having lost it."""
    s, deck = four_decks(quiz=4)
    lost = np.where(np.arange(1000) % 8 == 0, 0.8, 0.0)
    run(s, 20, lost)
    drawn = np.concatenate(run(s, 20, lost))
    assert lost[drawn[deck[drawn] == 0]].mean() > 0.5
    assert s.state.forgetting[0] < 0.75


TINY = [(3, 500, 497), (500, 3, 497), (350, 300, 3, 347), (333, 300, 3, 364)]


@pytest.mark.parametrize("sizes", TINY)
@pytest.mark.parametrize("quiz", [0, 4])
def test_a_deck_of_three_is_neither_drilled_to_death_nor_starved(sizes, quiz):
    """Forgotten at every visit, and the others half as much: each of the three rests for eight steps in the mean.

    With a quiz a visit is to be asked, and who is studied was asked before.
    """
    deck = np.repeat(np.arange(len(sizes)), sizes)
    s = make_scheduler(
        "srt", old=1000, new=0, batch_size=20, old_fraction=1.0, stagger=1, order="epoch", recall="relative",
        reference="base", decks="auto", deck=deck, quiz=quiz,
    )  # fmt: skip
    s.prime(range(1000), np.full(1000, 2.0))
    tiny = sizes.index(3)
    drawn = np.concatenate(run(s, 240, np.where(deck == tiny, 1.0, 0.5)))
    visits = np.count_nonzero(deck[drawn] == tiny)
    assert visits < 240 * 3 / 8 + 35
    assert visits > 15


# --- superseded, and orders, from what was logged ---------------------------------------------------------------

SCHEDULERS = {
    "srt": {"quiz": 4, "quiz_every": 3, "underfull": "ahead"},
    "leitner": {"decks": "auto", "order": "overdue"},
    "uniform": {"decks": "sqrt", "order": "epoch"},
    "cpt": {},
    "ppl": {},
    "match": {"counts": [(5, 3)] * 90, "order": "epoch"},
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_superseded_examples_are_never_drawn(name):
    """In no scheduler, nor asked, nor counted, not even who waited for a draw after a quiz; withdrawn, all return."""
    s = make_scheduler(
        name, old=60, new=30, batch_size=10, old_fraction=0.5, deck=np.arange(90) % 3, **SCHEDULERS[name]
    )
    rng = np.random.default_rng(0)
    away: set[int] = set()
    for step in range(90):
        if step in (19, 40, 61):  # a step after a quiz
            away = set(rng.permutation(60)[:40].tolist()) if step < 61 else set()
            before = s.state_dict()["columns"]
            s.state.supersede(sorted(away))
            assert np.array_equal(s.state_dict()["columns"]["due"], before["due"]), "kept, with the state that it had"
        asked = s.quiz()
        if asked is not None:
            s.answer(asked, rng.normal(6, 2, asked.size))
        draw = s.draw()
        found = set(draw.ids.tolist()) | set([] if asked is None else asked.tolist())
        assert not found & away
        assert draw.due[0] <= 60 - len(away)
        s.review(draw.ids, rng.normal(6, 2, draw.ids.size))
        s.check_valid()
    assert (s.state.visits[:60] > 0).all() or name == "cpt"


def history(order, path):
    """From a log alone: at each step, whom it drew, and when each example was last seen and will be due."""
    with make_scheduler("srt", old=120, new=120, batch_size=16, old_fraction=0.5, order=order, log=path) as s:
        rng = np.random.default_rng(1)
        for _ in range(250):
            draw = s.draw()
            s.review(draw.ids, rng.choice([1.0, 5.5, 9.0], draw.ids.size, p=[0.7, 0.1, 0.2]))
        records = s.log.records()
    state = dict.fromkeys(range(240), (Fraction(5, 2), 0, 1))
    last, due = dict.fromkeys(range(240), -1), {i: i % 120 % 5 for i in range(240)}
    for step in range(250):
        mine = records[(records["step"] == step) & (records["id"] >= 0)]
        yield step, set(mine["id"].tolist()), last, due
        for i, q in zip(mine["id"].tolist(), mine["quality"].tolist(), strict=True):
            state[i] = twin.sm2(*state[i], q)
            last[i], due[i] = step, step + state[i][2]


POOLS = [range(120), range(120, 240)]


def test_in_epoch_order_nobody_returns_while_another_who_is_due_waited_longer(tmp_path):
    returned = 0
    for step, drawn, last, due in history("epoch", tmp_path / "log"):
        for pool in POOLS:
            waited = [last[i] for i in pool if i not in drawn and due[i] <= step]
            newest = max((last[i] for i in pool if i in drawn), default=-1)
            assert all(seen >= newest for seen in waited)
            returned += newest >= 0
    assert returned > 100


def test_in_intake_order_nobody_is_begun_while_a_review_is_due(tmp_path):
    begun = 0
    for step, drawn, last, due in history({"old": "epoch", "new": "intake"}, tmp_path / "log"):
        first = [i for i in POOLS[1] if i in drawn and last[i] < 0]
        begun += len(first)
        assert not first or all(i in drawn for i in POOLS[1] if last[i] >= 0 and due[i] <= step)
    assert begun > 60
