"""What a step of scheduling costs, and how that grows with the number of examples.

    python eval/speed/scheduler.py                      # 1e4 to 1e8 examples: minutes, 8 GB of memory
    python eval/speed/scheduler.py --huge               # 1e9 as well: 60 GB of memory and of disk
    python eval/speed/scheduler.py --most 1e6 --order overdue
    python eval/speed/scheduler.py --most 1e7 --decks 100 --quiz 4
    python eval/speed/scheduler.py --columns            # the bytes of an example, column by column

For each size, half old and half new, B = 512, in two conditions: `fresh` (nothing was ever seen) and `mature`
(everything was; half is due, the other half falls due bit by bit). Signals lapse two times in five, so that batches
stay full at every size; `batch` is the mean size that was reached. A step is draw and review together. `naive` scans
all due steps at every draw, with the same review; it is run beside ours, on a state of the same size. `worst` is the
slowest step of all but the first, which builds the index.

With `--decks` and `--quiz` the signals are held against each example's best, and old slots are shared out by what each
deck has lost (`auto`). A step is then quiz, answer, draw and review; the forward pass of a quiz is none of it.

`state` is the columns; `index` is everything else that Python and NumPy hold for the scheduler, counted by
tracemalloc after 300 steps (at 1e4 examples its fixed part shows); `RAM` is what the process grew by. `create`
includes the index; `snapshot` writes, sums and flushes; `restore` verifies a snapshot, copies it into a
memory-mapped folder and builds the index; `open` maps a closed state and verifies every byte of it.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from srt_peft import ReviewState, Scheduler, load_scheduler, make_scheduler
from srt_peft.review import recall, rows, sm2

Array = np.ndarray[Any, Any]

BATCH = 512
QUALITY_NLL = np.array([9.0, 8.0, 7.0, 5.5, 4.5, 1.0])
QUALITY_SHARE = [0.1, 0.1, 0.2, 0.1, 0.1, 0.4]


def signals(steps: int) -> Array:
    rng = np.random.default_rng(0)
    return rng.choice(QUALITY_NLL, (steps, BATCH), p=QUALITY_SHARE) + 0.2 * rng.random((steps, BATCH))


class Naive:
    """The obvious scheduler: look at every example's due step, pick among those that are due, keep no index."""

    def __init__(self, state: ReviewState) -> None:
        self.state = state
        self.rng = np.random.default_rng(0)

    def step(self, nll: Array) -> None:
        state, columns = self.state, self.state.columns
        due = np.flatnonzero(columns["due"] <= state.step)
        old, new = due[due < state.n_old], due[due >= state.n_old]
        b_old = min(old.size, BATCH // 5)
        b_new = min(new.size, BATCH - b_old)
        ids = np.sort(np.concatenate([self.rng.choice(old, b_old, False), self.rng.choice(new, b_new, False)]))
        nll = nll[: ids.size]
        ease, n, interval = sm2.review(
            columns["ease"][ids], columns["repetitions"][ids], columns["interval"][ids], recall.from_nll(nll)
        )
        columns["ease"][ids], columns["repetitions"][ids], columns["interval"][ids] = ease, n, interval
        columns["due"][ids] = sm2.due(state.step, interval)
        columns["signal"][ids] = nll
        columns["visits"][ids] += 1
        state.step += 1


def timed(steps: int, one: Callable[[int], Any]) -> Array:
    """Milliseconds of each step."""
    times = np.empty(steps)
    for i in range(steps):
        start = time.perf_counter()
        one(i)
        times[i] = time.perf_counter() - start
    return times * 1e3


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def resident() -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def mature(s: Scheduler) -> Scheduler:
    """Everything was seen; half is due, and the rest falls due as it would have to: half a batch a step.

    No history can do otherwise: what falls due at a step was reviewed at some step, and each reviewed a batch.
    """
    rng, n, columns = np.random.default_rng(1), s.state.n, s.state.columns
    horizon = max(1, n // BATCH)
    step = 2 * horizon
    ahead = rng.integers(0, horizon, n, dtype=np.int32)
    waits = rng.random(n, dtype=np.float32) < 0.5
    columns["due"][:] = step + np.where(waits, 1 + ahead, -ahead)
    columns["interval"][:] = np.where(waits, 2 + ahead, 1 + ahead // 4)
    columns["visits"][:] = 3
    columns["repetitions"][:] = 2
    columns["signal"][:] = 1.0
    if "reference" in columns:
        columns["reference"][:] = 1.0
    s.state.step = step
    return s


class Drive:
    """A scheduler, driven."""

    def __init__(self, n: int, condition: str, args: argparse.Namespace) -> None:
        self.nll = signals(args.steps)
        self.sizes: list[int] = []
        order = {"old": "epoch", "new": "intake"} if args.order == "intake" else args.order
        more = {"decks": "auto", "deck": np.arange(n) % args.decks} if args.decks else {}
        self.s = make_scheduler(
            args.scheduler,
            old=n // 2,
            new=n - n // 2,
            batch_size=BATCH,
            order=order,
            underfull=args.underfull,
            recall="relative" if args.decks or args.quiz else "absolute",
            quiz=args.quiz,
            **more,
        )
        if condition == "mature":
            mature(self.s)

    def step(self, i: int) -> None:
        if (asked := self.s.quiz()) is not None:
            self.s.answer(asked, self.nll[i, np.arange(asked.size) % BATCH])
        draw = self.s.draw()
        self.sizes.append(draw.ids.size)
        self.s.review(draw.ids, self.nll[i, : draw.ids.size])


def memory(n: int, condition: str, args: argparse.Namespace) -> tuple[float, float, float]:
    """Bytes an example of the state and of all else that Python and NumPy hold, and by how much the process grew."""
    before = resident()
    tracemalloc.start()
    drive = Drive(n, condition, args)
    for i in range(min(300, args.steps)):
        drive.step(i)
    state = sum(column.nbytes for column in drive.s.state.columns.values())
    index = tracemalloc.get_traced_memory()[0] - state - drive.nll.nbytes
    tracemalloc.stop()
    return state / n, index / n, (resident() - before) / n


def measure(n: int, condition: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One row: memory first, then a step of ours and of the naive one on the same state, then the disk."""
    state, index, grown = memory(n, condition, args)
    row, p50 = speed(n, condition, args, folder)
    restore, loaded = seconds(lambda: load_scheduler(folder / "snapshot", folder=folder / "live"))
    loaded.close()
    opened, _ = seconds(lambda: ReviewState.open(folder / "live"))
    shutil.rmtree(folder / "snapshot")
    shutil.rmtree(folder / "live")
    sizes = {
        "B/ex state": f"{state:.1f}",
        "B/ex index": f"{index:.2f}",
        "B/ex RAM": f"{grown:.1f}" if n >= 1_000_000 else "",
    }
    return row | sizes | {"restore s": f"{restore:.2f}", "open s": f"{opened:.2f}", "_p50": p50}


def speed(n: int, condition: str, args: argparse.Namespace, folder: Path) -> tuple[dict[str, str], float]:
    create, drive = seconds(lambda: Drive(n, condition, args))
    first = timed(min(50, args.steps), drive.step)  # the stagger's steps are among them
    ours = timed(args.steps, drive.step)
    drive.s.check_valid()
    snapshot, _ = seconds(lambda: drive.s.save(folder / "snapshot"))
    naive = Naive(drive.s.state)
    theirs = timed(max(5, min(args.steps, int(2e8 / n))), lambda i: naive.step(drive.nll[i]))
    row = {
        "examples": f"{n:.0e}".replace("e+0", "e"),
        "state": condition,
        "batch": f"{np.mean(drive.sizes):.0f}",
        "p50 ms": f"{np.median(ours):.3f}",
        "p99 ms": f"{np.quantile(ours, 0.99):.3f}",
        "worst ms": f"{max(first[1:].max(), ours.max()):.1f}",
        "naive p50": f"{np.median(theirs):.3f}",
        "naive/ours": f"{np.median(theirs) / np.median(ours):.1f}",
        "create s": f"{create:.2f}",
        "snapshot s": f"{snapshot:.2f}",
    }
    return row, float(np.median(ours))


def import_cost(runs: int = 15) -> str:
    """Milliseconds that each import takes beyond a bare interpreter, the median over processes."""
    lines = []
    for module in ("numpy", "srt_peft", "srt_peft.review"):
        costs = []
        for _ in range(runs):
            pair = []
            for code in ("pass", f"import {module}"):
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", code], check=True)
                pair.append(time.perf_counter() - start)
            costs.append(pair[1] - pair[0])
        lines.append(f"import {module}: {np.median(costs) * 1e3:.0f} ms")
    return ", ".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if not name.startswith("_")]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    lines = ["| " + " | ".join(f"{name:>{widths[name]}}" for name in names) + " |"]
    lines.append("|" + "|".join("-" * (widths[name] + 1) + ":" for name in names) + "|")
    lines += ["| " + " | ".join(f"{row[name]:>{widths[name]}}" for name in names) + " |" for row in rows]
    return "\n".join(lines)


def columns() -> str:
    """What each column of a state takes, where all are kept."""
    extras = {"reference": 1, "prefix": 1, "decks": 1, "asked": 1}
    kept = {name: kind for name, kind in rows.layout(1, identity=True, extras=extras).items() if name not in rows.ONCE}
    lines = [
        {
            "column": name,
            "type": dtype.str[1:],
            "B/ex": str(dtype.itemsize * shape[-1] if len(shape) > 1 else dtype.itemsize),
        }
        | {"kept": "always" if name in rows.ROW else "if asked for"}
        for name, (dtype, shape) in kept.items()
    ]
    return table(
        [*lines, {"column": "all", "type": "", "B/ex": str(sum(int(line["B/ex"]) for line in lines)), "kept": ""}]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", default="srt", help="which one (default: srt)")
    parser.add_argument("--order", default="uniform", help="within a pool (default: uniform); intake: old by epoch")
    parser.add_argument("--decks", type=int, default=0, help="so many decks (default: 0, none)")
    parser.add_argument("--quiz", type=int, default=0, help="so many asked for each that is studied (default: 0, none)")
    parser.add_argument("--columns", action="store_true", help="print the bytes of each column, and no more")
    parser.add_argument("--underfull", default="short", help="short or ahead (default: short)")
    parser.add_argument("--steps", type=int, default=1500, help="measured steps a row (default: 1500)")
    parser.add_argument("--most", type=float, default=1e8, help="the largest number of examples (default: 1e8)")
    parser.add_argument("--huge", action="store_true", help="1e9 examples, too")
    parser.add_argument("--folder", type=Path, help="where the disk is measured (default: a temporary folder)")
    args = parser.parse_args()
    if args.columns:
        print(columns())
        return
    sizes = [10**e for e in range(4, 9) if 10**e <= args.most] + ([10**9] if args.huge else [])
    more = "".join(f", {name} {count}" for name, count in (("decks", args.decks), ("quiz", args.quiz)) if count)
    print(
        f"{args.scheduler}, order {args.order}, underfull {args.underfull}{more}, B = {BATCH}, {args.steps} steps a row"
    )
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.system()} {platform.machine()}")
    print(import_cost() + "\n", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for condition in ("fresh", "mature"):
            for n in sizes:
                print(f"  {condition}, {n:,} examples …", file=sys.stderr, flush=True)
                rows.append(measure(n, condition, args, Path(folder)))
    print(table(rows) + "\n")
    for condition in ("fresh", "mature"):
        mine = [row for row in rows if row["state"] == condition]
        ratio = mine[-1]["_p50"] / mine[0]["_p50"]
        print(f"{condition}: p50 at {mine[-1]['examples']} is {ratio:.2f} times that at {mine[0]['examples']}")


if __name__ == "__main__":
    main()
