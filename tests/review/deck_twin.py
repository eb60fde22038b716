"""The slow and obvious scheduler with references, decks, a quiz and superseded examples: full scans, exact fractions.

It says of each quiz and of each draw whether the definitions allow it. Every deck gets its wish, rounded down or up;
within a deck the agenda's order decides, as in `twin`; whom a quiz picks is found again from the same random bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from srt_peft.review import chance
from tests.review import twin

CHANGE = [Fraction(t) for t in (0.03, 0.08, 0.16, 0.30, 0.50)]
QUANTILES = [Fraction(p, 100) for p in (50, 75, 90, 95, 99)]
LEAST = Fraction(1, 1000)
NEAR = Fraction(1, 10**6)
"""How far floats may be from these fractions before a wish is rounded."""


def poured(total, share, most):
    """`total` in proportion to the shares, nobody above his most, until it is gone or nobody takes more."""
    got, open_ = dict.fromkeys(share, Fraction(0)), {g for g in share if share[g] > 0}
    while open_ and (left := total - sum(got.values())) > 0:
        weight = sum(share[g] for g in open_)
        full = {g for g in open_ if got[g] + left * share[g] / weight >= most[g]}
        for g in full or open_:
            got[g] = most[g] if full else got[g] + left * share[g] / weight
        open_ -= full or open_
    return got


def believed(reviews, lost):
    """What each deck is taken to have lost: its own reviews, forty at most, and ten of what all decks have lost."""
    weight = [min(n, 40) for n in reviews]
    mean = sum((w * x for w, x in zip(weight, lost, strict=True)), Fraction(0)) / max(sum(weight), 1)
    return [(w * x + 10 * mean) / (w + 10) for w, x in zip(weight, lost, strict=True)]


def wishes(kind, k, lost, sizes, floor):
    """How many of k slots each deck is to have: its share of them, but no more than is good for it."""
    pool = sum(sizes.values())
    if not pool:
        return dict.fromkeys(sizes, Fraction(0))
    weight = {
        "equal": lambda g: Fraction(sizes[g] > 0),
        "sqrt": lambda g: Fraction(math.sqrt(sizes[g])),
        "auto": lambda g: max(lost[g], LEAST) if sizes[g] else Fraction(0),
    }[kind]
    weights = {g: weight(g) for g in sizes}
    share = {g: w / sum(weights.values()) for g, w in weights.items()}
    if kind == "auto":
        share = {g: (1 - floor) * s + floor * Fraction(sizes[g], pool) for g, s in share.items()}
    even = {g: Fraction(k * n, pool) for g, n in sizes.items()}
    return poured(Fraction(k), share, {g: max(even[g], min(10 * even[g], Fraction(n, 8))) for g, n in sizes.items()})


def picked(k, lost, explore, raw):
    """The places of k of these, the first of exponential times at the rates that the quiz's docstring gives."""
    if k >= len(lost):
        return list(range(len(lost)))
    known = [x for x in lost if math.isfinite(x)]
    most = max([*known, 1e-3])
    weight = [1e-3 if math.isnan(x) else min(max(x, 1e-3), most) for x in lost]
    rate = [(1 - explore) * w / math.fsum(weight) + explore / len(lost) for w in weight]
    times = [-math.log1p(-(int(bits) >> 11) * 2.0**-53) / r for bits, r in zip(raw(len(lost)), rate, strict=True)]
    return sorted(sorted(range(len(lost)), key=times.__getitem__)[:k])


@dataclass
class DeckTwin(twin.Twin):
    recall: str = "absolute"
    reference: str = "best"
    decks: str = "off"
    deck_floor: Fraction = Fraction(1, 5)
    deck: list = field(default_factory=list)
    quiz: int = 0
    quiz_every: int = 1
    quiz_tokens: int | None = None
    explore: float = 0.1
    answers: dict | None = None
    """Who was asked at this step: id -> (signal, lost, quality)."""
    held: dict = field(default_factory=dict)
    """Who was asked at an earlier step and waits: id -> lost."""

    def __post_init__(self):
        super().__post_init__()
        for r, g in zip(self.rows, self.deck or [0] * len(self.rows), strict=True):
            r |= {"ref": None, "prefix": None, "deck": g, "replaced": False}
        count = max(self.deck, default=0) + 1
        self.lost, self.reviews, self.known = [Fraction(0)] * count, [0] * count, [None] * count
        self.thresholds = [math.log(t) for t in twin.THRESHOLDS]

    # --- who is where --------------------------------------------------------------------------------------

    def members(self, pool):
        return [i for i in super().members(pool) if not self.rows[i]["replaced"]]

    def away(self):
        return [r["off"] or r["replaced"] for r in self.rows]

    def waits(self):
        """Whom the quiz has, now or from before, and so no agenda has."""
        asked = self.held if self.answers is None else self.answers
        return [i for i in sorted(asked) if not self.rows[i]["off"] and not self.rows[i]["replaced"]]

    def tag(self, i):
        """With decks, each counts its own examples from 0."""
        if self.decks == "off" or self.rows[i]["pool"]:
            return super().tag(i)
        return self.tags[sum(self.rows[j]["deck"] == self.rows[i]["deck"] for j in range(i))]

    def by_deck(self, ids):
        found = {g: [] for g in range(len(self.lost))}
        for i in ids:
            found[self.rows[i]["deck"]].append(i)
        return found

    # --- what may be asked and drawn -----------------------------------------------------------------------

    def check_quiz(self, ids):
        """Assert that these are who is to be asked at this step; None where that is nobody."""
        if not self.quiz or self.step % self.quiz_every:
            assert ids is None
            return
        self.held, self.answers = {}, None
        slots = math.floor(self.old_fraction * self.batch_size)
        there = len(self.due(0)) if self.underfull == "short" else len(self.members(0))
        wanted = min(self.quiz * min(self.shares()[0], slots), there)
        asked = [] if ids is None else ids.tolist()
        assert asked == sorted(set(asked))
        assert len(asked) == wanted
        self.check_some(asked, self.members(0))
        self.answers = dict.fromkeys(asked)

    def answer(self, ids, nll):
        column = "ref" if self.quiz_tokens is None else "prefix"
        for i, x in zip(ids.tolist(), np.float32(nll).tolist(), strict=True):
            self.answers[i] = (x, self.has_lost(i, x, column), self.quality(i, x, column))

    def check(self, draw):
        ids = draw.ids.tolist()
        assert draw.step == self.step
        assert ids == sorted(set(ids))
        assert tuple(draw.due) == (len(self.due(0)), len(self.due(1)))
        assert draw.asked == len(self.answers or ())
        old, new = ([i for i in ids if self.rows[i]["pool"] == pool] for pool in (0, 1))
        assert draw.n_old == len(old)
        assert (len(old), len(new)) == self.shares()
        self.check_pool(1, new)
        asked = self.waits()
        studied = [i for i in old if i in set(asked)]
        assert len(studied) == min(len(old), len(asked)), "who was asked comes first"
        self.check_studied(studied, asked)
        self.check_some([i for i in old if i not in set(asked)], [i for i in self.members(0) if i not in set(asked)])

    def check_studied(self, studied, asked):
        """Assert that those are drawn whom the same random bits draw."""
        if not studied:
            return
        raw = chance.bits(self.seed, self.step, 0, 2**32).random_raw
        lost = self.held if self.answers is None else {i: a[1] for i, a in self.answers.items()}
        if self.decks == "off":
            groups = {0: asked}
        else:
            self.check_counts(studied, asked)
            groups = self.by_deck(asked)
        for mine in groups.values():
            k = len(set(mine) & set(studied))
            if k:
                places = picked(k, [float(lost[i]) for i in mine], self.explore, raw)
                assert [mine[p] for p in places] == sorted(set(mine) & set(studied))

    def check_some(self, drawn, members):
        """Assert that these may be taken from the agenda of the old, when it holds those members."""
        if self.decks == "off":
            self.check_pool(0, drawn, members)
            return
        due = [i for i in self.due(0) if i in set(members)]
        early = [i for i in drawn if i not in set(due)]
        on_time = [i for i in drawn if i in set(due)]
        assert not early or on_time == due, "the due come first"
        self.check_counts(on_time, due)
        self.check_counts(early, [i for i in members if i not in set(due)])
        for number, mine in self.by_deck(members).items():
            self.check_pool(0, [i for i in drawn if self.rows[i]["deck"] == number], mine)

    def check_counts(self, drawn, available):
        """Assert that each deck has its wish, rounded down or up, where so many of it could be drawn."""
        if not drawn:
            return
        sizes = {g: len(ids) for g, ids in self.by_deck(self.members(0)).items()}
        wish = wishes(self.decks, len(drawn), believed(self.reviews, self.lost), sizes, self.deck_floor)
        mean = poured(Fraction(len(drawn)), wish, {g: Fraction(len(i)) for g, i in self.by_deck(available).items()})
        for g, ids in self.by_deck(drawn).items():
            assert math.floor(mean[g] - NEAR) <= len(ids) <= math.ceil(mean[g] + NEAR), (g, len(ids), float(mean[g]))

    # --- what a signal says --------------------------------------------------------------------------------

    def quality(self, i, x, column="ref"):
        before = self.rows[i][column]
        if not math.isfinite(x):
            return 0
        if self.recall == "relative" and before is not None:
            return 5 - sum(Fraction(x) - Fraction(before) >= t for t in CHANGE)
        if self.recall == "quantile":
            return 5 - sum(x >= t for t in self.quantiles())
        return twin.quality(x)

    def quantiles(self):
        """Thresholds of the NLL, at quantiles of the references of the old pool."""
        known = sorted(Fraction(r["ref"]) for r in self.rows if r["pool"] == 0 and r["ref"] is not None)
        if not known:
            return self.thresholds
        at = [(len(known) - 1) * p for p in QUANTILES]
        low = [known[math.floor(a)] for a in at]
        return [a + (known[math.ceil(p)] - a) * (p - math.floor(p)) for a, p in zip(low, at, strict=True)]

    def has_lost(self, i, x, column="ref"):
        """log(PPL / PPL_reference); infinitely much where it could not be scored, NaN where there is no reference."""
        before = self.held_against(i, column)
        if not (self.quiz or self.decks == "auto" or self.recall in ("relative", "quantile")):
            before = None  # nothing is held against it, so no state keeps it
        if not math.isfinite(x):
            return math.inf
        return math.nan if before is None else Fraction(x) - Fraction(before)

    def held_against(self, i, column):
        """Its own reference, or its deck's, if it has a deck; of first tokens no deck has one."""
        own = self.rows[i][column]
        by_deck = own is None and column == "ref" and self.deck
        return self.known[self.rows[i]["deck"]] if by_deck else own

    def prime(self, ids, nll, prefix=None):
        for k, i in enumerate(ids):
            r, x = self.rows[i], np.float32(nll[k]).item()
            r["s"] = x if math.isfinite(x) else math.inf
            r["ref"] = x if math.isfinite(x) else None
            if prefix is not None:
                r["prefix"] = np.float32(prefix[k]).item()
        for g, mine in self.by_deck(range(self.old)).items():
            told = [Fraction(self.rows[i]["ref"]) for i in mine if self.rows[i]["ref"] is not None]
            self.known[g] = sum(told) / len(told) if told else None

    def grow(self, pool, decks):
        """Fresh examples at the end of a pool, as many as there are decks; who was asked is asked no more."""
        size = self.new if pool else self.old
        fresh = [
            {"pool": pool, "E": Fraction(5, 2), "n": 0, "I": 1, "d": self.step + i % self.stagger, "v": 0, "s": None}
            | {"off": False, "ref": None, "prefix": None, "deck": g, "replaced": False}
            for i, g in enumerate(decks)
        ]
        at = self.old + (self.new if pool else 0)
        self.rows[at:at] = fresh
        self.old, self.new = (self.old, size + len(decks)) if pool else (size + len(decks), self.new)
        more = max(decks, default=0) + 1 - len(self.lost)
        self.lost += [Fraction(0)] * more
        self.reviews += [0] * more
        self.known += [None] * more
        self.held, self.answers = {}, None
        self.tags = chance.tag(np.arange(max(self.old, self.new, 1)), self.seed).tolist()

    # --- what a review does --------------------------------------------------------------------------------

    def review(self, ids, nll):
        """Returns who passed, and so was rescheduled without having been drawn."""
        drawn = dict(zip(ids, np.float32(nll).tolist(), strict=True))
        answers = self.answers or {}
        passed = [i for i, (_, _, q) in answers.items() if q >= 3 and i not in drawn]
        told = {i: a[1] for i, a in answers.items()} if self.quiz else None
        if told is None:
            told = {i: self.has_lost(i, x) for i, x in drawn.items() if self.rows[i]["pool"] == 0}
        qualities = {i: self.quality(i, x) for i, x in drawn.items()} | {i: answers[i][2] for i in passed}
        for i, x in (drawn | {i: answers[i][0] for i in passed}).items():
            self.reschedule(i, x, qualities[i])
        for i, x in drawn.items():
            self.note_best(i, x, "ref")
        for i in answers if self.quiz_tokens else passed:
            if i in drawn or i in passed:
                self.note_best(i, answers[i][0], "ref" if self.quiz_tokens is None else "prefix")
        self.measure(told)
        lost = {i: a[1] for i, a in answers.items()} if self.answers is not None else self.held
        left = {i: lost[i] for i in self.waits() if i not in drawn and i not in passed}
        self.held, self.answers = left if self.quiz_every > 1 else {}, None
        self.step += 1
        return passed

    def reschedule(self, i, x, q):
        r = self.rows[i]
        rule = twin.leitner if self.name == "leitner" else twin.sm2
        r["E"], r["n"], r["I"] = rule(r["E"], r["n"], r["I"], q, max_interval=self.max_interval)
        r["d"] = self.step + r["I"]
        r["v"] += 1
        r["s"] = x if math.isfinite(x) else math.inf

    def note_best(self, i, x, column):
        """Who is held against the base keeps what it gave, or else the first; all others take their best."""
        r = self.rows[i]
        if not math.isfinite(x):
            return
        if self.reference == "base" and r["pool"] == 0:
            quantiles = self.recall == "quantile" and column == "ref"
            r[column] = x if self.held_against(i, column) is None and not quantiles else r[column]
        else:
            r[column] = x if r[column] is None else min(x, r[column])

    def measure(self, told):
        """The plain mean of a deck's first reviews; after 20, each counts for a twentieth of what is left."""
        for g, mine in self.by_deck(told).items():
            found = [told[i] for i in mine if isinstance(told[i], Fraction)]
            if not found:
                continue
            new, mean = len(found), sum(found) / len(found)
            before = self.reviews[g]
            weight = Fraction(new, before + new) if before < 20 else 1 - Fraction(19, 20) ** new
            self.lost[g] = Fraction(float(self.lost[g] + weight * (mean - self.lost[g])))
            self.reviews[g] += new

    def check_state(self, state):
        columns = state.columns
        super().check_state(state)
        assert state.superseded.tolist() == [r["replaced"] for r in self.rows]
        for name, key in (("reference", "ref"), ("prefix", "prefix")):
            if name in columns:
                want = np.array([math.nan if r[key] is None else r[key] for r in self.rows], dtype=np.float32)
                np.testing.assert_array_equal(columns[name], want, name)
        if self.deck:
            assert columns["reviews"].tolist() == self.reviews
            np.testing.assert_allclose(columns["forgetting"], [float(f) for f in self.lost], rtol=1e-7, atol=1e-9)
        if self.quiz and self.quiz_every > 1 and "asked" in columns:
            there = columns["asked"][columns["asked"] >= 0]
            assert there.tolist() == sorted(self.held)
            want = [float(self.held[i]) for i in sorted(self.held)]
            np.testing.assert_allclose(columns["lost"][: there.size], want, rtol=1e-6, atol=1e-9)
