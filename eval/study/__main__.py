"""The study: a grid of worlds, tunings, schedulers and seeds, cell by cell, and its tables.

    python -m eval.study run --data FOLDER             all of it; interrupted, the same command goes on
    python -m eval.study table > eval/study/results.md
    python -m eval.study pictures                      a picture a world, in docs/pictures
    python -m eval.study run --quick --data FOLDER     two worlds, four rows, two seeds: minutes

The grid is eval/study/study.yaml. README.md says what FOLDER has to hold; without it the worlds of facts alone are run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.study import plan as plans
from srt_peft.errors import OptionError, SRTError


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("run", "table", "pictures"), default="run")
    parser.add_argument("--quick", action="store_true", help="the small grid that the file has beside the whole one")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="copies of the texts, and a pretrained base")
    parser.add_argument("--only", action="append", default=[], metavar="WORLD", help="this world; may be given again")
    parser.add_argument("--seeds", metavar="5-9", help="in place of the file's; 0,3 is two")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at once (default: one a core; one a GPU)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where all lies (default runs/study, -quick)")
    parser.add_argument("--grid", type=Path, default=plans.STUDY, metavar="FILE", help="another grid than study.yaml")
    parser.add_argument("--to", type=Path, default=Path("docs/pictures"), metavar="DIR", help="where pictures go")
    given = parser.parse_args(arguments)
    if given.jobs is not None and given.jobs < 1:
        raise OptionError("eval.study", [f"--jobs = {given.jobs}: expected 1 or more"])
    given.output = given.output or Path(f"runs/study{'-quick' if given.quick else ''}")
    return given


def run(given: argparse.Namespace, plan: plans.Plan) -> int:
    """Every cell that is not there; 1 if one has failed."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # before torch is loaded, here or in a worker
        os.environ[name] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch  # noqa: PLC0415 - takes seconds

    from eval.study import cells, grid, texts  # noqa: PLC0415 - torch takes seconds
    from srt_peft.review.files import Lock  # noqa: PLC0415 - see above

    if given.data is not None:
        texts.check(given.data, {world.new for world in plan.worlds if world.kind == "text"})
    given.output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lock = Lock(given.output / "lock", f"the study in {given.output}")
    tasks = grid.tasks_of(plan, given.output)
    wanted = list(plan.cells())
    there = [found["seconds"] for cell in wanted if (found := cells.held(cell, given.output))]
    left = sum(task.kind == "cell" for task in tasks)
    jobs = given.jobs or (torch.cuda.device_count() or os.cpu_count() or 1)
    say(_told(len(wanted), left, there, jobs))
    try:
        failed = grid.run(tasks, data=given.data, output=given.output, jobs=jobs)
    except KeyboardInterrupt:
        say(f"\nInterrupted. What was done is kept in {given.output}: the same command goes on from there.")
        return 130
    finally:
        lock.release()
    for failure in failed:
        say(f"failed: {failure.name}: {failure.reason}")
    lost = sum(failure.name.startswith("cells/") for failure in failed)
    say(f"{left - lost} cells done, {lost} failed.")
    return int(bool(failed))


SECONDS = 20.0
"""Of a cell on one core, where none has been run."""


def _told(wanted: int, left: int, there: Sequence[float], jobs: int) -> str:
    each = sum(there) / len(there) if there else SECONDS
    known = "by those that are there" if there else "by experience"
    hours = left * each / jobs / 3600
    return (
        f"{wanted:,} cells, {left:,} of them to do in {jobs} processes: {each:.0f} s each, {known}, makes "
        f"{f'{hours:.1f} hours' if hours >= 1 else f'{60 * hours:.0f} minutes'}, and bases and worlds before them."
    )


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the grid, or print its tables."""
    try:
        given = parsed(arguments)
        plan = plans.load(given.grid, quick=given.quick, only=given.only, seeds=given.seeds)
        if given.what == "table":
            from eval.study import table  # noqa: PLC0415 - NumPy

            print(table.told(plan, given.output, list(arguments)))
            return 0
        if given.what == "pictures":
            from eval.study import pictures  # noqa: PLC0415 - NumPy

            made = pictures.draw(plan, given.output, given.to)
            if not made:
                say(f"{given.output} has no two rows of a world yet: there is nothing to draw.")
            print(*made, sep="\n")
            return 0
        if given.data is None and any(world.kind == "text" for world in plan.worlds):
            say("Worlds of text need --data FOLDER, and are left out.")
            plan = plans.without_text(plan)
        return run(given, plan)
    except SRTError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
