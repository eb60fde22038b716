r"""The paper's tables beside ours, each with a recipe and one command, at two scales.

    python -m eval.paper all                            every table at demo scale, here: about ten minutes
    python -m eval.paper ratio --seeds 5                one of them, with more trainings
    python -m eval.paper temporal_qa --scale paper --questions wiki_questions.jsonl data.old=wiki_old.jsonl \
        data.new=wiki_new.jsonl model.base=meta-llama/Llama-3.2-3B-Instruct

demo    a small base that is made here, on a generated world of facts: whether the machinery gives each table, and what
        scheduling does where everything is known. Its figures are not the paper's, and cannot be
paper   the paper's models and hyperparameters, on a GPU of 80 GB. Its corpora and questions were not released: yours
        are named by overrides of the recipe (data.old, data.new) and by --questions and --probes

Each table prints the paper's figures beside those measured here, and ends with what they say in words. Interrupted,
the same command goes on; a table that is there already is printed again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from srt_peft.errors import OptionError, SRTError
from srt_peft.evaluation.entries import seeds_of

INTERRUPTED = 130
_HEADS = {
    "terminal": "{command}: {machine}\n",
    "markdown": "`{command}`: {machine}\n",
    "latex": "% {command}: {machine}\n",
}
SCALES = {"demo": "3", "paper": "1"}
"""How many trainings of each, unless it is said: the paper has one."""
STYLES = ("terminal", "markdown", "latex", "json")


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    from eval.paper.tables import ALL, TABLES  # noqa: PLC0415 - only names

    parser = argparse.ArgumentParser(
        prog="python -m eval.paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", metavar="TABLE", help=", ".join([*TABLES, ALL]))
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="of the table's recipe")
    parser.add_argument("--scale", choices=list(SCALES), default="demo", help="(default %(default)s)")
    parser.add_argument("--seeds", metavar="N", help="how many trainings of each, or which: 0,5 (default 3; paper 1)")
    parser.add_argument("--output", metavar="DIR", help="where all runs lie (default runs/paper-SCALE)")
    parser.add_argument("--format", choices=STYLES, default="terminal", help="(default %(default)s)")
    parser.add_argument(
        "--questions", metavar="FILE", help="paper scale: JSONL (default wiki_ or code_questions.jsonl)"
    )
    parser.add_argument("--probes", metavar="PATH", help="paper scale: TemporalWiki's files (default probes)")
    parser.add_argument("--data-root", metavar="DIR", help="paper scale: copies of the benchmarks (default: the hub)")
    parser.add_argument("--quick", action="store_true", help="demo scale: a smaller world and shorter updates")
    return parser.parse_intermixed_args(arguments)


def machine() -> str:
    """What the figures were measured with."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("srt-peft", "torch", "transformers", "numpy"))
    cores = f"{_processor()}, {os.cpu_count()} cores"
    return f"{datetime.now(UTC):%Y-%m-%d}. Python {platform.python_version()}, {packages}; {cores}."


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def run(args: argparse.Namespace) -> None:
    from eval.paper.tables import chosen  # noqa: PLC0415 - only names

    names = chosen(args.table)
    seeds = seeds_of(args.seeds or ("1" if args.quick else SCALES[args.scale]))
    if args.quick and args.scale != "demo":
        raise OptionError("eval.paper", ["--quick is the demo scale's: expected no --scale paper with it"])

    import torch  # noqa: PLC0415 - takes seconds
    from transformers.utils import logging  # noqa: PLC0415 - takes seconds

    from eval.paper import experiments, printed  # noqa: PLC0415 - see above
    from eval.paper.materials import Brought, check  # noqa: PLC0415 - see above

    brought = Brought(args.questions, args.probes, args.data_root, tuple(args.overrides))
    if args.scale == "demo":
        torch.set_num_threads(1)  # models so small gain nothing from a second
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    else:
        check(names, brought)
    output = Path(args.output or f"runs/paper-{args.scale}{'-quick' if args.quick else ''}")
    command = f"python -m eval.paper {' '.join(args.given)}"
    if args.format != "json":
        print(_HEADS[args.format].format(command=command, machine=machine()), flush=True)
    found = []
    for name in names:
        say(f"== {name}, {args.scale} scale, {len(seeds)} seeds")
        outcome = experiments.run(
            name, scale=args.scale, seeds=seeds, output=output, brought=brought, say=say, quick=args.quick
        )
        found.append(outcome)
        if args.format != "json":
            print(printed.told(outcome, args.format), flush=True)
    if args.format == "json":
        document = {"command": command, "machine": machine(), "tables": [outcome.as_dict() for outcome in found]}
        print(json.dumps(document, indent=1, ensure_ascii=False))
    say(f"All of it lies in {output}.")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    args = parsed(arguments)
    args.given = list(arguments)
    try:
        run(args)
    except SRTError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
