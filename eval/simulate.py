"""A schedule at work, without a model: who is asked, how often, and what that does for a learner that forgets.

    python eval/simulate.py
    python eval/simulate.py --old 20000 --new 5000 --steps 400 --seeds 5

The learner is simulated. Each example has a strength; its perplexity grows with the steps since it was last
studied, ten times faster for the fragile tenth of the examples than for the rest, and studying it makes it last
longer. No claim about language models follows: this shows what the schedulers do, and docs/scheduler.md says how.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from srt_peft import make_scheduler

Array = np.ndarray[Any, Any]

CONTESTANTS: dict[str, dict[str, Any]] = {
    "cpt": {"name": "cpt"},
    "uniform": {"name": "uniform"},
    "uniform, epochs": {"name": "uniform", "order": "epoch"},
    "ppl": {"name": "ppl"},
    "leitner": {"name": "leitner"},
    "srt (paper)": {"name": "srt"},
    "match (srt's counts)": {"name": "match"},
    "srt, overdue": {"name": "srt", "order": "overdue", "underfull": "ahead"},
}


class Learner:
    """Knows old examples well at the start and new ones not at all; forgets both, at different speeds."""

    def __init__(self, old: int, new: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.fragile = rng.random(old + new) < 0.1
        self.lasts = np.where(self.fragile, 12.0, 120.0) * rng.lognormal(0, 0.3, old + new)
        self.studied = np.full(old + new, -1.0)
        self.studied[old:] = -4.0 * self.lasts[old:]

    def nll(self, ids: Array, step: int) -> Array:
        """Nats a token: from 2 when just studied towards 9, which is no model of it at all."""
        forgotten = 1 - np.exp(-(step - self.studied[ids]) / self.lasts[ids])
        nll: Array = 2 + 7 * forgotten
        return nll

    def study(self, ids: Array, step: int) -> None:
        self.studied[ids] = step
        self.lasts[ids] *= 1.3


class Outcome(NamedTuple):
    """One update: figures at its end, how many old and new ones each step drew, and what one example went through."""

    figures: dict[str, float]
    counts: list[tuple[int, int]]
    story: dict[str, list[str]]


def run(options: dict[str, Any], args: argparse.Namespace, seed: int) -> Outcome:
    learner = Learner(args.old, args.new, seed)
    s = make_scheduler(old=args.old, new=args.new, batch_size=args.batch, seed=seed, **options)
    counts = []
    watched = {kind: int(np.argmax(learner.fragile == (kind == "fragile"))) for kind in ("steady", "fragile")}
    story: dict[str, list[str]] = {kind: [] for kind in watched}
    for step in range(args.steps):
        draw = s.draw()
        review = s.review(draw.ids, learner.nll(draw.ids, step))
        learner.study(draw.ids, step)
        counts.append((draw.n_old, draw.ids.size - draw.n_old))
        for kind, i in watched.items():
            for q in review.quality[draw.ids == i]:
                story[kind].append(f"step {step} q{q} I{s.state.columns['interval'][i]}")
    known = learner.nll(np.arange(args.old + args.new), args.steps) < np.log(500)
    old, new = known[: args.old], known[args.old :]
    visits, fragile = s.state.visits[: args.old], learner.fragile[: args.old]
    drawn = np.sum(counts, axis=0)
    figures = {
        "old known %": 100 * old.mean(),
        "fragile old %": 100 * old[fragile].mean(),
        "new known %": 100 * new.mean(),
        "visits fragile/steady": visits[fragile].mean() / max(visits[~fragile].mean(), 1e-9),
        "old share %": 100 * drawn[0] / max(drawn.sum(), 1),
        "reviews": float(drawn.sum()),
    }
    return Outcome(figures, counts, story)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=int, default=1000, help="old examples (default: 1000)")
    parser.add_argument("--new", type=int, default=2000, help="new examples (default: 2000)")
    parser.add_argument("--batch", type=int, default=64, help="examples a step (default: 64)")
    parser.add_argument("--steps", type=int, default=200, help="steps (default: 200)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds, for the spread (default: 3)")
    args = parser.parse_args()
    print(f"{args.old:,} old and {args.new:,} new examples, B = {args.batch}, {args.steps} steps, {args.seeds} seeds;")
    print("known: perplexity below 500 at the end, which is quality 3 or more. A simulated learner, no model.\n")
    started = time.perf_counter()
    results: dict[tuple[str, int], Outcome] = {}
    for number, (label, options) in enumerate(CONTESTANTS.items()):
        for seed in range(args.seeds):
            progress(number * args.seeds + seed, len(CONTESTANTS) * args.seeds, started)
            more = {"counts": results["srt (paper)", seed].counts} if label.startswith("match") else {}
            results[label, seed] = run(options | more, args, seed)
    progress(1, 1, started)
    names = list(results["cpt", 0].figures)
    print(" " * 20 + "".join(f"{name:>23}" for name in names))
    for label in CONTESTANTS:
        cells = []
        for name in names:
            values = [results[label, seed].figures[name] for seed in range(args.seeds)]
            mean, spread = np.mean(values), np.std(values)
            cells.append(f"{mean:,.0f}" if name == "reviews" else f"{mean:.1f} ± {spread:.1f}")
        print(f"{label:20}" + "".join(f"{cell:>23}" for cell in cells))
    print("\nRows with the same old share differ only in who was drawn. `match` draws as many old and new ones as srt")
    print("did, step by step, but anyone: what srt has over it is due to the schedule, the rest to the slots.")
    for label in ("srt (paper)", "srt, overdue"):
        print(f"\nWhat two old examples went through under {label} (q: quality, I: the interval that it gave)")
        for kind, events in results[label, 0].story.items():
            print(f"{kind:>10}  {' · '.join(events) or 'never asked'}")


def progress(done: int, total: int, started: float) -> None:
    """A bar on a terminal; nothing where the output is kept."""
    if sys.stderr.isatty():
        filled = 40 * done // total
        spent = time.perf_counter() - started
        left = f", {spent / done * (total - done):.0f} s left" if done and done < total else ""
        end = "\n" if done == total else ""
        print(f"\r[{'█' * filled}{'·' * (40 - filled)}] {spent:.0f} s{left}   ", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
