"""The command line. `COMMANDS` is all of it: what each command is for, takes, and runs.

Exit codes: 0 done, 1 failed at run time, 2 bad arguments or recipe, 130 interrupted. Errors are told in words;
`--debug` shows the traceback. Whatever is slow to import is imported by the command that needs it, so that
`srt-peft --help` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import srt_peft
from srt_peft.errors import OptionError, SRTError, did_you_mean

Arguments = argparse.Namespace
INTERRUPTED = 130

# --- train --------------------------------------------------------------------------------------------------------


def _train(args: Arguments) -> int | None:
    from srt_peft.training.recipe import load_recipe  # noqa: PLC0415 - see above

    _check_is_here(args.recipe)
    if args.resume and args.output is None and not any(word.startswith("output=") for word in args.overrides):
        args.output = _own_folder(Path(args.recipe))
    output = [] if args.output is None else [f"output='{args.output.replace(chr(39), 2 * chr(39))}'"]
    try:
        recipe = load_recipe(args.recipe, [*args.overrides, *output])
        from srt_peft.evaluation import suites  # noqa: PLC0415 - see above

        asked = suites.parse(recipe.evaluation.suites)
        suites.check(asked)
    except OptionError as error:
        if int(os.environ.get("RANK", "0")) == 0:
            raise
        time.sleep(2)  # of the processes that a launcher began, the first tells; the launcher ends all when one ends
        return error.exit_code

    from srt_peft.training.loop import train  # noqa: PLC0415 - see above

    evaluate = partial(suites.in_training, asked) if asked else None
    code: int | None = train(recipe, resume=args.resume, allow_changes=args.allow_changes, evaluate=evaluate)
    if not code and (Path(recipe.output) / "metrics.jsonl").exists() and int(os.environ.get("RANK", "0")) == 0:
        _draw_report(Path(recipe.output))
    return code


def _check_is_here(recipe: str) -> None:
    name = recipe.removesuffix(".yaml")
    if not Path(recipe).exists() and name in _shipped():
        remedy = (
            f"no such file here, but a recipe that comes with srt-peft: `srt-peft recipes copy {name}`, edit, train"
        )
        raise OptionError(f"the recipe {recipe}", [remedy])


def _own_folder(recipe: Path) -> str | None:
    """The run whose resolved recipe this is: it may have been moved since."""
    whole = recipe.name == "recipe.yaml" and any(recipe.parent.glob("checkpoints/step-*/MANIFEST.json"))
    return str(recipe.parent) if whole else None


# --- eval ---------------------------------------------------------------------------------------------------------


def _eval(args: Arguments) -> int:
    from srt_peft.evaluation import suites  # noqa: PLC0415 - see above

    names = [*args.targets, *args.compare]
    least = {"batch-tokens": 1, "limit": 1, "num-fewshot": 0, "seed": 0}
    given = {name: getattr(args, name.replace("-", "_")) for name in least}
    faults = [
        f"--{name} = {value}: expected a whole number, {least[name]} or more"
        for name, value in given.items()
        if value is not None and value < least[name]
    ]
    if faults:
        raise OptionError("eval", faults)
    asked = suites.parse([*args.suite, *([f"tasks={args.tasks}"] if args.tasks else [])] or ["perplexity"])
    if not names:
        raise OptionError("eval", ["there is no target: expected a run, a checkpoint, an adapter, or a base model"])

    from srt_peft.evaluation.evaluate import code_of, evaluate, told  # noqa: PLC0415 - see above

    options = suites.Options(
        precision=args.precision, limit=args.limit, data_root=args.data_root, num_fewshot=args.num_fewshot,
        budget=args.batch_tokens,
    )  # fmt: skip
    out = Path(args.out) if args.out else None
    if out is not None:
        _make(out)
    results = evaluate(
        names, asked, options, base=args.base, against_base=bool(args.compare), max_forgetting=args.max_forgetting,
        out=out, seed=args.seed,
    )  # fmt: skip
    _say(told(results, args.format), end="")
    if out is not None:
        (out / "results.json").write_text(told(results, "json"), encoding="utf-8")
    return code_of(results)


def _make(out: Path) -> None:
    """A folder to write to, before hours go by."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(out, os.W_OK) else "it may not be written to"
    except OSError as error:
        reason = error.strerror
    if reason:
        raise OptionError("eval", [f"--out = {out}: {reason}: expected a folder that you may write to"])


# --- compare ------------------------------------------------------------------------------------------------------


def _compare(args: Arguments) -> None:
    from srt_peft.training.recipe import load_recipe  # noqa: PLC0415 - see above

    _check_is_here(args.recipe)
    recipe = load_recipe(args.recipe, args.overrides)
    schedulers = [name.strip() for name in args.schedulers.split(",") if name.strip()]

    from srt_peft.evaluation import rivals, suites  # noqa: PLC0415 - see above

    seeds = rivals.seeds_of(args.seeds)
    rivals.check(schedulers, seeds)
    asked = suites.parse(args.suite or recipe.evaluation.suites or ["perplexity"])
    folder = Path(args.output or f"{recipe.output}-compared")
    found = rivals.contest(
        recipe, entries=schedulers, seeds=seeds, asked=asked, folder=folder, say=partial(_say, file=sys.stderr)
    )
    _say(rivals.told(found, args.format), end="")
    _say(f"\nAll of it lies in {folder}: contest.json, table.md, and each run.", file=sys.stderr)
    _draw_report(folder)


# --- demo ---------------------------------------------------------------------------------------------------------


def _demo(args: Arguments) -> None:
    from srt_peft.evaluation.entries import ENTRIES, check, seeds_of  # noqa: PLC0415 - see above

    seeds = seeds_of(args.seeds or ("1" if args.quick else "3"))
    check(tuple(ENTRIES), seeds)

    from srt_peft.demo import demo  # noqa: PLC0415 - see above

    scale = demo.QUICK if args.quick else demo.FULL
    folder = Path(args.output or f"runs/demo-{args.tuning}{'-quick' if args.quick else ''}")
    found = demo.demo(
        folder,
        tuning=args.tuning,
        entries=tuple(ENTRIES) if args.all else demo.ENTRIES,
        seeds=seeds,
        scale=scale,
        say=partial(_say, file=sys.stderr),
    )
    _say(demo.told(found, args.format), end="")
    _say(f"\nAll of it lies in {folder}: contest.json, table.md, and each run.", file=sys.stderr)
    _draw_report(folder)


# --- report -------------------------------------------------------------------------------------------------------


def _report(args: Arguments) -> None:
    from srt_peft.report.page import write  # noqa: PLC0415 - see above

    if args.out is not None and len(args.runs) > 1:
        fault = (
            f"--out = {args.out}: expected one RUN with it, as each has a page of its own; {len(args.runs)} are given"
        )
        raise OptionError("report", [fault])
    for folder in args.runs:
        page = write(folder, text=not args.no_text, out=args.out)
        _say(f"{page} ({page.stat().st_size / 1e6:.1f} MB) opens in any browser, offline.")


def _draw_report(folder: Path) -> None:
    """The page of what has just ended. That is safe on the disk, whatever becomes of its picture."""
    from srt_peft.report.page import available, write  # noqa: PLC0415 - see above

    again = f"`srt-peft report {shlex.quote(str(folder))}`"
    if not available():
        _say(f"For a page with pictures: pip install 'srt-peft[report]', then {again}.", file=sys.stderr)
        return
    try:
        _say(f"Pictures: {write(folder)}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - see above
        _say(f"The page with pictures was not written; {again} tries again. {_in_words(error)}", file=sys.stderr)


# --- recipes ------------------------------------------------------------------------------------------------------


def _shipped() -> dict[str, Path]:
    """The recipes by name: beside this file in an installed package, beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "recipes", package.parent / "recipes"):
        if (folder / "tiny_cpu.yaml").is_file():
            return {
                path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))
            }
    return {}


def _recipe_named(name: str) -> Path:
    shipped = _shipped()
    wanted = name.removesuffix(".yaml")
    if wanted not in shipped:
        known = ", ".join(shipped) or "none: this installation of srt-peft lacks them"
        raise OptionError("recipes", [f"{name!r} is no recipe{did_you_mean(wanted, shipped)}; known are {known}"])
    return shipped[wanted]


def _list(_args: Arguments) -> None:
    for name, path in sorted(_shipped().items(), key=lambda item: ("/" in item[0], item[0])):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        _say(f"{name:26} {first.lstrip('# ')}")


def _show(args: Arguments) -> None:
    _say(_recipe_named(args.name).read_text(encoding="utf-8"), end="")


def _copy(args: Arguments) -> None:
    source = _recipe_named(args.name)
    target = Path(args.path or source.name)
    if target.is_dir():
        target /= source.name
    try:
        with target.open("x", encoding="utf-8") as copy:
            copy.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise OptionError("recipes copy", [f"{target} is there already: name another path, or remove it"]) from None
    except OSError as error:
        raise OptionError("recipes copy", [f"{target}: {error.strerror}: expected a path to write to"]) from None
    _say(f"{target} is yours to edit. Its first lines say how to launch it.")


# --- env ----------------------------------------------------------------------------------------------------------

PACKAGES = ("numpy", "torch", "transformers", "peft", "accelerate", "datasets", "bitsandbytes", "tokenizers")


def _env(_args: Arguments) -> None:
    for name, look in _probes():
        try:
            found = look()
        except Exception as error:  # noqa: BLE001 - a report of what is broken must not break on it
            found = f"not found ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
        _say(f"{name:20} {found}")


def _probes() -> Iterator[tuple[str, Callable[[], object]]]:
    """What a bug report needs: names, and how to look. A look may fail; it is told then."""
    import platform  # noqa: PLC0415 - see above
    from importlib.metadata import version  # noqa: PLC0415 - see above

    yield "srt-peft", lambda: f"{srt_peft.__version__} ({Path(__file__).parent})"
    yield "python", lambda: f"{platform.python_version()} ({sys.executable})"
    for package in PACKAGES:
        yield package, partial(version, package)
    yield "bitsandbytes import", _bitsandbytes
    yield "CUDA", _cuda
    yield "GPUs", _gpus
    yield "OS", platform.platform
    yield "CPU cores", lambda: f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    yield "RAM", lambda: _gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    yield "SRT_PEFT_HOME", lambda: f"{_home()} ({_free(_home())})"
    yield "current directory", lambda: f"{Path.cwd()} ({_free(Path.cwd())})"


def _bitsandbytes() -> str:
    import contextlib  # noqa: PLC0415 - see above
    import io  # noqa: PLC0415 - see above
    import warnings  # noqa: PLC0415 - see above

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        import bitsandbytes  # noqa: PLC0415 - see above
    return f"works ({Path(bitsandbytes.__file__).parent})"


def _cuda() -> str:
    import torch  # noqa: PLC0415 - see above

    return f"{torch.version.cuda or torch.version.hip or 'not in this build of torch'}"


def _gpus() -> str:
    import torch  # noqa: PLC0415 - see above

    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return "; ".join(f"{gpu.name}, {_gib(gpu.total_memory)}, sm_{gpu.major}{gpu.minor}" for gpu in found) or "none"


def _home() -> Path:
    return Path(os.environ.get("SRT_PEFT_HOME") or "~/.cache/srt-peft").expanduser()


def _free(folder: Path) -> str:
    import shutil  # noqa: PLC0415 - see above

    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return f"{_gib(shutil.disk_usage(there).free)} free"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


# --- the table of commands ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """One command: what runs, what it is for, an example, and its arguments as argparse takes them."""

    run: Callable[[Arguments], int | None]
    purpose: str
    example: str
    arguments: tuple[tuple[str, dict[str, Any]], ...] = ()


_NAME = ("name", {"metavar": "NAME", "help": "as `srt-peft recipes list` names it"})

COMMANDS = {
    "demo": Command(
        _demo,
        "see it: a small base forgets a world of facts while it learns another, with and without replay; 3 minutes",
        "srt-peft demo\n  srt-peft demo --all --seeds 5 --output runs/demo-lora\n  srt-peft demo --tuning full",
        (
            ("--all", {"action": "store_true", "help": "every scheduler, and not only cpt, uniform and srt"}),
            ("--seeds", {"metavar": "N", "help": "how many trainings of each, 3 unless given, or which: 0,5"}),
            ("--tuning", {"choices": ("lora", "full", "qlora"), "default": "lora", "help": "what an update trains"}),
            ("--output", {"metavar": "DIR", "help": "where all runs lie; unless given, runs/demo-TUNING"}),
            (
                "--format",
                {"choices": ("terminal", "markdown", "latex", "json"), "default": "terminal", "help": "of the table"},
            ),
            ("--quick", {"action": "store_true", "help": "a minute, and less to see: a smaller world, one seed"}),
        ),
    ),
    "train": Command(
        _train,
        "update an adapter: the scheduler chooses every batch, and each checkpoint holds adapter and review state",
        "srt-peft train weekly.yaml training.steps=50 data.new=this_week.jsonl\n"
        "  srt-peft train weekly.yaml --resume\n"
        "  accelerate launch --config_file ddp.yaml -m srt_peft train weekly.yaml",
        (
            ("recipe", {"metavar": "RECIPE", "help": "a YAML file; `srt-peft recipes copy NAME` gives one to edit"}),
            (
                "overrides",
                {"metavar": "key.sub=value", "nargs": "*", "help": "any key of the recipe; the value is read as YAML"},
            ),
            ("--resume", {"action": "store_true", "help": "go on from the newest whole checkpoint in the output"}),
            (
                "--allow-changes",
                {"action": "store_true", "help": "resume with other settings or texts than the run was begun with"},
            ),
            ("--output", {"metavar": "DIR", "help": "the run's folder; the same as output=DIR"}),
        ),
    ),
    "eval": Command(
        _eval,
        "score a model on questions, probes, held-out text or the harness's tasks; or compare updates with their base",
        "srt-peft eval runs/this-week --suite qa=questions.jsonl --suite perplexity\n"
        "  srt-peft eval --compare runs/a runs/b --suite qa=questions.jsonl --max-forgetting 2.0\n"
        "  srt-peft eval meta-llama/Llama-3.2-3B --suite broad --limit 100",
        (
            (
                "targets",
                {"metavar": "TARGET", "nargs": "*", "help": "a run, a checkpoint, an adapter, or a base model"},
            ),
            (
                "--compare",
                {"metavar": "TARGET", "nargs": "+", "default": [], "help": "targets to compare with their base"},
            ),
            (
                "--suite",
                {
                    "metavar": "NAME[=SOURCE]",
                    "action": "append",
                    "default": [],
                    "help": "qa=FILE, temporalwiki=FILE, perplexity[=RECIPE] (the default), broad; may be given again",
                },
            ),
            ("--tasks", {"metavar": "A,B", "help": "tasks, groups or task folders of the harness"}),
            ("--base", {"metavar": "BASE", "help": "an adapter's base, where it is not where the adapter says"}),
            (
                "--precision",
                {"choices": ("4bit", "bfloat16", "float16", "float32"), "help": "as it was trained, unless given"},
            ),
            ("--limit", {"metavar": "N", "type": int, "help": "questions of each of the harness's tasks"}),
            ("--num-fewshot", {"metavar": "N", "type": int, "help": "examples in the harness's prompts"}),
            ("--data-root", {"metavar": "DIR", "help": "local copies of the harness's data: MMLU, BBH, GSM8K, PIQA"}),
            ("--batch-tokens", {"metavar": "N", "type": int, "default": 16384, "help": "tokens of one forward pass"}),
            (
                "--max-forgetting",
                {
                    "metavar": "POINTS",
                    "type": float,
                    "help": "exit with 3 where the whole interval of the loss on old lies beyond so many points",
                },
            ),
            (
                "--format",
                {"choices": ("terminal", "markdown", "latex", "json"), "default": "terminal", "help": "of the tables"},
            ),
            ("--out", {"metavar": "DIR", "help": "where answers are kept, and results.json written"}),
            ("--seed", {"metavar": "N", "type": int, "default": 0, "help": "of the resamples"}),
        ),
    ),
    "compare": Command(
        _compare,
        "train one recipe under several schedulers and seeds, at equal steps, and say what each kept and learned",
        "srt-peft compare weekly.yaml --suite qa=questions.jsonl\n"
        "  srt-peft compare weekly.yaml --schedulers cpt,uniform,uniform-epoch,srt,match --seeds 5 training.steps=200",
        (
            (
                "recipe",
                {"metavar": "RECIPE", "help": "a YAML file; scheduler, seed and output are each run's own"},
            ),
            (
                "overrides",
                {"metavar": "key.sub=value", "nargs": "*", "help": "any key of the recipe; the value is read as YAML"},
            ),
            (
                "--schedulers",
                {
                    "metavar": "A,B",
                    "default": "cpt,uniform-epoch,srt",
                    "help": "of cpt, uniform, uniform-epoch, ppl, leitner, srt, and match (srt's counts of old and "
                    "new, but no schedule); cpt,uniform-epoch,srt unless given",
                },
            ),
            (
                "--seeds",
                {"metavar": "N|A,B", "default": "3", "help": "how many (3 unless given), or which: 0,1,2; one: 7,"},
            ),
            (
                "--suite",
                {
                    "metavar": "NAME[=SOURCE]",
                    "action": "append",
                    "default": [],
                    "help": "as in `srt-peft eval`; those of the recipe unless given, else perplexity",
                },
            ),
            ("--output", {"metavar": "DIR", "help": "where all runs lie; unless given, the recipe's output-compared"}),
            (
                "--format",
                {"choices": ("terminal", "markdown", "latex", "json"), "default": "terminal", "help": "of the tables"},
            ),
        ),
    ),
    "report": Command(
        _report,
        "draw what became of a run, or of a comparison, on one page that opens offline: RUN/report.html",
        "srt-peft report runs/this-week\n  srt-peft report runs/this-week --no-text --out this-week.html",
        (
            ("runs", {"metavar": "RUN", "nargs": "+", "help": "a run's folder, or a comparison's"}),
            ("--no-text", {"action": "store_true", "help": "leave the texts of the hardest examples out"}),
            ("--out", {"metavar": "FILE", "help": "where the page goes, with one RUN"}),
        ),
    ),
    "recipes list": Command(_list, "name the recipes that come with srt-peft", "srt-peft recipes list"),
    "recipes show": Command(_show, "print a recipe", "srt-peft recipes show tiny_cpu", (_NAME,)),
    "recipes copy": Command(
        _copy,
        "copy a recipe, to be edited; nothing is ever overwritten",
        "srt-peft recipes copy tinyllama_1b_qlora weekly.yaml",
        (_NAME, ("path", {"metavar": "PATH", "nargs": "?", "help": "a file or a folder; here, under its own name"})),
    ),
    "env": Command(_env, "print what a bug report needs", "srt-peft env"),
}
GROUPS = {"recipes": "recipes to start from: list, show, copy"}


class _Parser(argparse.ArgumentParser):
    """argparse, with errors in the words of this house."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' ?\(choose from (.*)\)", message)
        if wrong:
            known = re.findall(r"[\w-]+", wrong[2])
            message = f"{wrong[1]!r} is no command{did_you_mean(wrong[1], known)}; known are {', '.join(known)}"
        self.exit(OptionError.exit_code, f"error: {message}\n`{self.prog} --help` shows how it is called.\n")


def parser() -> argparse.ArgumentParser:
    """The parser that the table stands for."""
    top = _Parser(
        prog="srt-peft",
        description="Continual LoRA updates that do not forget: each training example carries a review state, "
        "\nand the state decides which examples the model sees again, and when.",
        epilog="to begin:\n  srt-peft demo\n  srt-peft recipes list\n"
        "  srt-peft recipes copy tiny_cpu\n  srt-peft train tiny_cpu.yaml",
    )
    top.add_argument("--version", action="version", version=f"srt-peft {srt_peft.__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    branches = {"": top.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)}
    for path, command in COMMANDS.items():
        group, _, name = path.rpartition(" ")
        if group not in branches:
            branch = branches[""].add_parser(group, help=GROUPS[group], description=GROUPS[group])
            branches[group] = branch.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
        epilog = f"for example:\n  {command.example}"
        leaf = branches[group].add_parser(name, help=command.purpose, description=command.purpose, epilog=epilog)
        for argument, settings in command.arguments:
            leaf.add_argument(argument, **settings)
        leaf.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show an error's traceback")
        leaf.set_defaults(command=path, usage=leaf.error)
    return top


def _parse(argv: Sequence[str]) -> Arguments:
    """The arguments; overrides may stand on either side of the options, which argparse alone does not allow."""
    args, rest = parser().parse_known_args(argv)
    if hasattr(args, "overrides"):
        args.overrides += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        flags = [name for name, _ in COMMANDS[args.command].arguments if name.startswith("-")]
        args.usage(f"{rest[0]!r} is no argument of {args.command!r}{did_you_mean(rest[0], [*flags, '--debug'])}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    args = _parse(sys.argv[1:] if argv is None else argv)
    try:
        return COMMANDS[args.command].run(args) or 0
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `srt-peft recipes show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SRTError.exit_code
    except Exception as error:
        if args.debug:
            raise
        return _failed(_in_words(error), getattr(error, "exit_code", SRTError.exit_code))


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ROOM = "Make room on the disk, and try again; a run goes on from its newest whole checkpoint with --resume."


def _in_words(error: Exception) -> str:
    if isinstance(error, SRTError):
        return f"error: {error}"
    told = f"error: {type(error).__name__}: {error}"
    if isinstance(error, OSError):
        return f"{told}\n{_ROOM}" if error.errno in _FULL else told
    return f"{told}\nThis was not foreseen. `--debug` shows where it happened; a report needs that and `srt-peft env`."


def _failed(message: str, code: int) -> int:
    _say(message, file=sys.stderr)
    return code


def _say(text: str, **where: Any) -> None:
    print(text, **where)  # noqa: T201 - a command line prints
