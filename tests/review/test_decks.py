"""References, decks, the quiz and superseded examples against their twin, over whole histories and rebuilt anywhere."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import make_scheduler
from tests.review.deck_twin import DeckTwin

STEPS = 30
ORDERS = {
    "srt": ("uniform", "overdue", "epoch"),
    "leitner": ("uniform", "overdue", "epoch"),
    "uniform": ("uniform", "epoch"),
}


@st.composite
def worlds(draw):
    """A scheduler with some of the options beyond the paper, over decks of odd sizes."""
    name = draw(st.sampled_from(["srt", "srt", "srt", "leitner", "uniform"]))
    old, new = draw(st.sampled_from([0, 1, 7, 40, 150])), draw(st.sampled_from([0, 3, 40]))
    recall = draw(st.sampled_from(["absolute", "relative", "relative", "quantile"]))
    world = {
        "name": name,
        "old": old,
        "new": new,
        "batch_size": draw(st.sampled_from([1, 5, 16, 33])),
        "old_fraction": draw(st.sampled_from([0.2, 0.29, 0.5, 1.0])),
        "seed": draw(st.sampled_from([0, 1, 2**64 - 1])),
        "stagger": draw(st.sampled_from([1, 5, 30])),
        "order": {"old": draw(st.sampled_from(ORDERS[name])), "new": draw(st.sampled_from(ORDERS[name]))},
        "underfull": draw(st.sampled_from(["short", "ahead"])),
        "max_interval": draw(st.sampled_from([None, 9])),
        "recall": recall,
        "reference": "base" if recall == "quantile" else draw(st.sampled_from(["best", "base"])),
    }
    if draw(st.booleans()):
        decks = draw(st.sampled_from([1, 3, 8]))
        numbers = np.random.default_rng(draw(st.integers(0, 9))).integers(0, decks, old + new) ** 2
        world |= {"decks": draw(st.sampled_from(["auto", "auto", "sqrt", "equal", "off"])), "deck": numbers.tolist()}
        world["deck_floor"] = draw(st.sampled_from([0.0, 0.2, 1.0]))
    if name != "uniform" and draw(st.booleans()):
        world |= {"quiz": draw(st.sampled_from([1, 2, 4])), "quiz_every": draw(st.sampled_from([1, 1, 2, 5]))}
        world |= {"quiz_tokens": draw(st.sampled_from([None, 8])), "explore": draw(st.sampled_from([0.0, 0.1, 1.0]))}
    return world


def twin_of(name, old, new, *, order, old_fraction, max_interval, deck_floor=0.2, **rest):
    return DeckTwin(
        name,
        old,
        new,
        order=(order["old"], order["new"]),
        old_fraction=Fraction(str(old_fraction)),
        max_interval=max_interval or 2**30,
        deck_floor=Fraction(str(deck_floor)),
        **rest,
    )


def signals(rng, size):
    """Around where the references lie, lost or not; now and then a number that is none."""
    nll = rng.choice([1.0, 3.0, 4.5, 5.6, 7.0], size) + rng.normal(0, 0.3, size)
    nll[rng.random(size) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    return nll


@settings(max_examples=120)
@given(world=worlds(), chance=st.integers(0, 2**32))
def test_every_quiz_draw_and_state_agrees_with_the_twin(world, chance):
    """3,600 steps: whom it asks and draws, and every column after; now and then a rebuilt scheduler takes over."""
    Pair(world, chance).walk()


@pytest.mark.slow
@settings(max_examples=4000, derandomize=False)
@given(world=worlds(), chance=st.integers(0, 2**32))
def test_thousands_of_decked_worlds_agree_with_the_twin(world, chance):
    """The same over 120,000 steps, other ones each night."""
    Pair(world, chance).walk()


class Pair:
    """A scheduler and its twin, in the hands of somebody who does all that may be done."""

    def __init__(self, world, chance):
        self.world, self.rng = world, np.random.default_rng(chance)
        self.real, self.twin = make_scheduler(**world), twin_of(**world)
        if self.rng.random() < 0.5:
            self.prime(np.flatnonzero(self.rng.random(world["old"]) < 0.9))
        self.prime_all_if_none()

    def walk(self):
        for _ in range(STEPS):
            if self.rng.random() < 0.2:
                self.change()
            self.real.check_valid()
            self.perhaps_rebuilt()
            answers = self.ask()
            draw = self.real.draw()
            self.twin.check(draw)
            if self.rng.random() < 0.2:
                draw = self.begun_again(answers, draw)
            nll = signals(self.rng, draw.ids.size)
            mixed = self.rng.permutation(draw.ids.size)
            dtype = self.rng.choice([np.float16, np.float32, np.float64])
            found = self.real.review(draw.ids[mixed], nll[mixed].astype(dtype))
            passed = self.twin.review(draw.ids.tolist(), nll.astype(dtype))
            assert found.passed == len(passed)
            self.twin.check_state(self.real.state)

    def ask(self):
        """Hold the quiz, where there is one, and return what was answered."""
        asked = self.real.quiz()
        self.twin.check_quiz(asked)
        if asked is None:
            return None
        assert np.array_equal(self.real.quiz(), asked), "until it is answered, a quiz is the same"
        if self.rng.random() < 0.2:
            self.perhaps_rebuilt(always=True)
            assert np.array_equal(self.real.quiz(), asked)
        nll = signals(self.rng, asked.size)
        mixed = self.rng.permutation(asked.size)
        self.real.answer(asked[mixed], nll[mixed])
        assert self.real.quiz() is None
        self.twin.answer(asked, nll)
        return asked, nll

    def begun_again(self, answers, draw):
        """Loaded from before its draw, a scheduler asks the same, and draws the same."""
        self.perhaps_rebuilt(always=True)
        if answers is not None:
            assert np.array_equal(self.real.quiz(), answers[0])
            self.real.answer(*answers)
        again = self.real.draw()
        assert np.array_equal(again.ids, draw.ids)
        assert (again.step, again.n_old, again.due, again.asked) == (draw.step, draw.n_old, draw.due, draw.asked)
        return again

    def perhaps_rebuilt(self, *, always=False):
        if always or self.rng.random() < 0.2:
            saved, deck = self.real.state_dict(), self.real.state.deck
            sizes = {"old": self.real.state.n_old, "new": self.real.state.n_new}
            self.real = make_scheduler(**self.world | sizes | ({} if deck is None else {"deck": deck}))
            self.real.load_state_dict(saved)

    def prime(self, ids=None):
        ids = np.arange(self.real.state.n_old) if ids is None else ids
        nll = signals(self.rng, ids.size)
        nll[:1] = 2.0
        prefix = nll + 0.5 if self.world.get("quiz_tokens") and np.isfinite(nll).all() else None
        self.real.prime(ids, nll, prefix=prefix)
        self.twin.prime(ids.tolist(), nll, prefix)

    def prime_all_if_none(self):
        """Where the base is the reference, it has to be told before anything is drawn."""
        if self.world["reference"] == "base" and all(r["ref"] is None for r in self.twin.rows[: self.twin.old]):
            self.prime()

    def change(self):
        """Suspend, revive, supersede, grow, empty a deck, or score some anew."""
        if not self.real.state.n:
            return
        some = np.unique(self.rng.integers(0, self.real.state.n, 4))
        if self.twin.held and self.rng.random() < 0.5:
            some = np.array(sorted(self.twin.held)[:3])
        kind = self.rng.choice(["suspend", "revive", "supersede", "empty", "grow", "prime"])
        if kind == "prime":
            self.prime(some[some < self.real.state.n_old])
        elif kind == "grow":
            pool, size = int(self.rng.integers(2)), int(self.rng.integers(1, 9))
            decks = self.rng.integers(0, 4, size) if self.twin.deck else np.zeros(size, np.int64)
            given_ = {"deck": decks} if self.twin.deck else {}
            self.real.state.grow(**{("old", "new")[pool]: size}, stagger=self.world["stagger"], **given_)
            self.twin.grow(pool, decks.tolist())
            self.prime_all_if_none()
        elif kind == "supersede":
            self.real.state.supersede(some)
            for i, r in enumerate(self.twin.rows):
                r["replaced"] = i in some
        else:
            if kind == "empty":
                some = np.flatnonzero([r["deck"] == 1 for r in self.twin.rows])
            (self.real.state.revive if kind == "revive" else self.real.state.suspend)(some)
            for i in some.tolist():
                self.twin.rows[i]["off"] = kind != "revive"
