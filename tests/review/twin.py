"""A second, slow and obvious scheduler: the paper's definitions by full scan, with exact fractions.

It shares with the real one only `chance.tag`, by which ties are defined. Where the real one draws at random, the
twin says which draws are allowed; where an order decides, it says which ids they must be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from srt_peft.review.chance import tag

THRESHOLDS = (50.0, 50 * 10**0.5, 500.0, 50 * 10**1.5, 5000.0)


def quality(nll: float, alpha: float = 1.0) -> int:
    """Equation (5), as it is written."""
    if not math.isfinite(nll):
        return 0
    ppl = math.exp(nll) if nll < 700 else math.inf
    return max(0, 5 - sum(ppl >= alpha * tau for tau in THRESHOLDS))


def sm2(ease, n, interval, q, min_ease=Fraction(13, 10), max_interval=2**30):
    """Equations (6) to (8), in fractions."""
    delta = Fraction(1, 10) - (5 - q) * (Fraction(8, 100) + Fraction(2, 100) * (5 - q))
    ease = min(max(min_ease, ease + delta), Fraction(32767, 100))
    if q < 3:
        return ease, 0, 1
    n += 1
    interval = 1 if n == 1 else 6 if n == 2 else math.ceil(interval * ease)
    return ease, n, min(interval, max_interval)


def leitner(ease, n, _interval, q, _min_ease=None, max_interval=2**30):
    n = n + 1 if q >= 3 else 0
    return ease, n, min(2 ** max(n - 1, 0), max_interval)


@dataclass
class Twin:
    name: str
    old: int
    new: int
    batch_size: int
    old_fraction: Fraction
    seed: int = 0
    order: tuple[str, str] = ("uniform", "uniform")
    underfull: str = "short"
    stagger: int = 5
    counts: list | None = None
    max_interval: int = 2**30
    step: int = 0
    rows: list = field(default_factory=list)

    def __post_init__(self):
        for pool, size in ((0, self.old), (1, self.new)):
            for i in range(size):
                self.rows.append(
                    {
                        "pool": pool,
                        "E": Fraction(5, 2),
                        "n": 0,
                        "I": 1,
                        "d": i % self.stagger,
                        "v": 0,
                        "s": None,
                        "off": False,
                    }
                )
        self.tags = tag(np.arange(max(self.old, self.new, 1)), self.seed).tolist()

    # --- what may be drawn ---------------------------------------------------------------------------------

    def members(self, pool):
        return [i for i, r in enumerate(self.rows) if r["pool"] == pool and not r["off"]]

    def due(self, pool):
        if self.name in ("srt", "leitner") and self.order[pool] != "rounds":
            return [i for i in self.members(pool) if self.rows[i]["d"] <= self.step]
        return self.members(pool)

    def tag(self, i):
        return self.tags[i - (self.old if self.rows[i]["pool"] else 0)]

    def shares(self):
        due = [len(self.due(p)) for p in (0, 1)]
        if self.underfull == "ahead":
            due = [len(self.members(p)) for p in (0, 1)]
        if self.name == "cpt":
            return 0, min(due[1], self.batch_size)
        if self.name == "match":
            return tuple(min(c, d) for c, d in zip(self.counts[self.step], due, strict=True))
        slots = math.floor(self.old_fraction * self.batch_size)
        b_old = min(due[0], slots)
        b_new = min(due[1], self.batch_size - b_old)
        b_old += min(due[0] - b_old, self.batch_size - b_old - b_new)
        return b_old, b_new

    def check(self, draw):
        """Assert that a draw is one that the definitions allow."""
        ids = draw.ids.tolist()
        assert draw.step == self.step
        assert ids == sorted(set(ids)), "ids ascend, and none is drawn twice"
        assert tuple(draw.due) == (len(self.due(0)), len(self.due(1)))
        by_pool = [[i for i in ids if self.rows[i]["pool"] == p] for p in (0, 1)]
        assert draw.n_old == len(by_pool[0])
        assert (len(by_pool[0]), len(by_pool[1])) == self.shares()
        for pool in (0, 1):
            self.check_pool(pool, by_pool[pool])

    def check_pool(self, pool, drawn, members=None):
        """Whom of a pool, or of these members of it, may be drawn where so many are."""
        members = self.members(pool) if members is None else members
        due = [i for i in self.due(pool) if i in set(members)]
        k = len(drawn)
        scheduled, order = self.name in ("srt", "leitner"), self.order[pool]
        if k > len(due):  # drawn ahead of time: everything due, and then the soonest due, or the longest unseen
            early = [i for i in members if i not in set(due)]
            key = {"epoch": self.longest, "intake": self.soonest}.get(order, lambda i: (self.rows[i]["d"], self.tag(i)))
            assert drawn == sorted(due + sorted(early, key=key)[: k - len(due)])
        elif scheduled and order in ("epoch", "intake"):
            assert drawn == sorted(sorted(due, key=self.longest if order == "epoch" else self.intake)[:k])
        elif self.name == "ppl":
            unseen = {i for i in due if self.rows[i]["s"] is None}
            first = [i for i in drawn if i in unseen]
            assert len(first) == min(k, len(unseen))
            rest = sorted((i for i in due if i not in unseen), key=lambda i: (-self.rows[i]["s"], i))
            assert [i for i in drawn if i not in unseen] == sorted(rest[: k - len(first)])
        elif self.order[pool] == "overdue":
            assert drawn == sorted(sorted(due, key=self.overdue)[:k])
        elif self.order[pool] in ("epoch", "rounds"):
            assert set(drawn) <= set(due)
            visits = [self.rows[i]["v"] for i in drawn]
            assert sorted(visits) == sorted(self.rows[i]["v"] for i in due)[:k], "the least visited come first"
        else:
            assert set(drawn) <= set(due)

    def overdue(self, i):
        r = self.rows[i]
        last = r["d"] - r["I"]
        return -Fraction(self.step - last, r["I"]), r["I"] if r["v"] else 0, self.tag(i)

    def longest(self, i):
        """Never seen, and then who was seen first; ties as in the docstrings: the shorter interval, then the tag."""
        r = self.rows[i]
        return (r["d"] - r["I"], r["I"], self.tag(i)) if r["v"] else (-1, 0, (r["d"], self.tag(i)))

    def intake(self, i):
        """Who was seen before, the longest unseen first, and then first visits."""
        return (not self.rows[i]["v"], self.longest(i))

    def soonest(self, i):
        r = self.rows[i]
        return r["d"], r["I"] if r["v"] else 0, self.tag(i)

    def away(self):
        return [r["off"] for r in self.rows]

    # --- what a review does --------------------------------------------------------------------------------

    def review(self, ids, nll):
        rule = leitner if self.name == "leitner" else sm2
        for i, x in zip(ids, np.float32(nll).tolist(), strict=True):
            r = self.rows[i]
            r["E"], r["n"], r["I"] = rule(r["E"], r["n"], r["I"], quality(x), max_interval=self.max_interval)
            r["d"] = self.step + r["I"]
            r["v"] += 1
            r["s"] = x if math.isfinite(x) else math.inf
        self.step += 1

    def check_state(self, state):
        """Assert that the real state says the same, for every example."""
        assert state.step == self.step
        assert [Fraction(int(e), 100) for e in state.columns["ease"]] == [r["E"] for r in self.rows]
        for name, key in (("repetitions", "n"), ("interval", "I"), ("due", "d"), ("visits", "v")):
            assert getattr(state, name).tolist() == [r[key] for r in self.rows], name
        assert state.suspended.tolist() == self.away()
        for signal, r in zip(state.signal.tolist(), self.rows, strict=True):
            assert math.isnan(signal) if r["s"] is None else signal == r["s"]
