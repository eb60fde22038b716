"""The paper's images and tables, with what it lacks beside it: replay without a schedule, joint training, and presets.

    python -m eval.paper.classes --data DIR                all data sets that are there, ten seeds
    python -m eval.paper.classes --quick                   Wine and digits, two seeds: a minute, no files needed
    python -m eval.paper.classes mnist --from mnist=hub:ylecun/mnist

DIR holds folders of the publishers' files: mnist and fashion-mnist (idx), cifar-10 (the binary version), wine (CSV);
README.md says which. Interrupted, the same command goes on. JSON and a picture lie beside the cells in --output.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from eval.paper.__main__ import INTERRUPTED, machine, say
from srt_peft.errors import OptionError, SRTError, did_you_mean
from srt_peft.evaluation.entries import seeds_of

STYLES = ("terminal", "markdown", "json")


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.paper.classes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "worlds", nargs="*", metavar="DATASET", help="default: all but mnist-few; with --quick, Wine and digits"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="the publishers' files, in a folder each")
    parser.add_argument(
        "--from", dest="named", action="append", default=[], metavar="NAME=PLACE",
        help="mnist, fashion, cifar or wine from another folder, or from hub:OWNER/NAME; may be given again",
    )  # fmt: skip
    parser.add_argument("--rows", metavar="ROW,ROW", help="these alone, such as paper,match (default: all)")
    parser.add_argument("--print", dest="printing", action="store_true", help="what is there; nothing is run")
    parser.add_argument("--quick", action="store_true", help="Wine and digits, two seeds")
    parser.add_argument("--seeds", metavar="N", help="how many, or which: 0,5 (default 10; with --quick 2)")
    parser.add_argument("--processes", type=int, metavar="N", help="at once (default: one a core)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where all lies (default runs/classes, -quick)")
    parser.add_argument("--format", choices=STYLES, default="terminal", help="(default %(default)s)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="the SVG (default classes.svg in --output)")
    given = parser.parse_intermixed_args(arguments)
    faults = []
    if given.processes is not None and given.processes < 1:
        faults.append(f"--processes = {given.processes}: expected 1 or more")
    if given.data is not None and not given.data.is_dir():
        faults.append(f"--data = {given.data}: expected a folder with mnist, fashion-mnist, cifar-10 or wine in it")
    if faults:
        raise OptionError("eval.paper.classes", faults)
    given.output = given.output or Path(f"runs/classes{'-quick' if given.quick else ''}")
    return given


def run(args: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Every cell that is not there; then the tables. 1 if a cell has failed."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # before torch is loaded, here or in a worker
        os.environ[name] = "1"
    from eval.paper.classes import picture, pool, sources, table, worlds  # noqa: PLC0415 - torch takes seconds
    from srt_peft.review.files import Lock  # noqa: PLC0415 - see above

    seeds = seeds_of(args.seeds or ("2" if args.quick else "10"))
    named = _named(args.named, sources.FILES)
    wanted = worlds.chosen(args.worlds or (worlds.QUICK if args.quick else ()))
    wanted = [replace(world, lengths=(50, 100)) for world in wanted] if args.quick else wanted
    places = {world.source: pool.Place(world.source, args.data, named.get(world.source)) for world in wanted}
    digests = {source: pool.digest_of(place) for source, place in places.items()}
    there = [world for world in wanted if digests[world.source] is not None]
    missing = {world.title: sources.FILES[world.source] for world in wanted if world not in there}
    if missing and args.worlds:
        faults = [
            f"{title}: expected, in {files.folder}/ of --data, {files.expected}" for title, files in missing.items()
        ]
        raise OptionError("eval.paper.classes", faults)
    lock = Lock(args.output / "lock", f"what lies in {args.output}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cells = pool.cells_of(there, seeds, digests, _rows(args.rows))
        jobs = args.processes or os.cpu_count() or 1
        failed = [] if args.printing else pool.run(cells, places, args.output, jobs, say)
    finally:
        lock.release()
    command = f"python -m eval.paper.classes {' '.join(arguments)}".rstrip()
    found = table.gathered(cells, args.output)
    document = json.dumps(table.document(found, missing, command, machine()), indent=1, ensure_ascii=False)
    (args.output / "classes.json").write_text(document + "\n", encoding="utf-8")
    drawn = args.picture or args.output / "classes.svg"
    drawn.parent.mkdir(parents=True, exist_ok=True)
    drawn.write_text(picture.picture(found), encoding="utf-8")
    told = document if args.format == "json" else table.told(found, missing, args.format, f"{command}: {machine()}")
    print(told)
    for failure in failed:
        say(f"failed: {failure}")
    say(f"All of it lies in {args.output}, the picture in {drawn}.")
    return int(bool(failed))


def _rows(given: str | None) -> Sequence[str]:
    """The entries that are asked for."""
    from eval.paper.classes.entries import ROWS  # noqa: PLC0415 - torch takes seconds

    names = list(ROWS) if given is None else [name.strip() for name in given.split(",")]
    faults = [
        f"--rows: {name!r} is no row{did_you_mean(name, ROWS)}; known are {', '.join(ROWS)}"
        for name in names
        if name not in ROWS
    ]
    if faults:
        raise OptionError("eval.paper.classes", faults)
    return names


def _named(given: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Where each of these data sets is read from."""
    parts = [one.partition("=") for one in given]
    faults = [
        f"--from {''.join(part)}: expected NAME=PLACE with a name of {', '.join(known)}"
        for part in parts
        if part[0] not in known or not part[2]
    ]
    if faults:
        raise OptionError("eval.paper.classes", faults)
    return {name: place for name, _, place in parts}


def main(arguments: Sequence[str]) -> int:
    """Run, and print."""
    try:
        return run(parsed(arguments), arguments)
    except SRTError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("\nInterrupted. What was done is kept: the same command goes on from there.")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
