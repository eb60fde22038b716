"""`srt-peft eval`: what models score, and whether an update may be shipped."""
# ruff: noqa: PLC0415 - torch and transformers take seconds to import

from __future__ import annotations

import os
from pathlib import Path

from srt_peft.commands.command import Arguments, Command, say, style, suite
from srt_peft.errors import OptionError

_LEAST = {"batch-tokens": 1, "limit": 1, "num-fewshot": 0, "seed": 0}


def _eval(args: Arguments) -> int:
    from srt_peft.evaluation import suites

    names = [*args.targets, *args.compare]
    given = {name: getattr(args, name.replace("-", "_")) for name in _LEAST}
    faults = [
        f"--{name} = {value}: expected a whole number, {_LEAST[name]} or more"
        for name, value in given.items()
        if value is not None and value < _LEAST[name]
    ]
    if faults:
        raise OptionError("eval", faults)
    asked = suites.parse([*args.suite, *([f"tasks={args.tasks}"] if args.tasks else [])] or ["perplexity"])
    if not names:
        raise OptionError("eval", ["there is no target: expected a run, a checkpoint, an adapter, or a base model"])

    from srt_peft.evaluation.evaluate import code_of, evaluate, told

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
    say(told(results, args.format), end="")
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


COMMAND = Command(
    _eval,
    "score a model on questions, probes, held-out text or the harness's tasks; or compare updates with their base",
    "srt-peft eval runs/this-week --suite qa=questions.jsonl --suite perplexity\n"
    "  srt-peft eval --compare runs/a runs/b --suite qa=questions.jsonl --max-forgetting 2.0\n"
    "  srt-peft eval meta-llama/Llama-3.2-3B --suite broad --limit 100",
    (
        ("targets", {"metavar": "TARGET", "nargs": "*", "help": "a run, a checkpoint, an adapter, or a base model"}),
        ("--compare", {"metavar": "TARGET", "nargs": "+", "default": [], "help": "targets to compare with their base"}),
        suite("qa=FILE, temporalwiki=FILE, perplexity[=RECIPE] (the default), broad; may be given again"),
        ("--tasks", {"metavar": "A,B", "help": "tasks, groups or task folders of the harness"}),
        ("--base", {"metavar": "BASE", "help": "an adapter's base, where it is not where the adapter says"}),
        ("--precision", {"choices": ("4bit", "bfloat16", "float16", "float32"), "help": "as trained, unless given"}),
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
        style("tables"),
        ("--out", {"metavar": "DIR", "help": "where answers are kept, and results.json written"}),
        ("--seed", {"metavar": "N", "type": int, "default": 0, "help": "of the resamples"}),
    ),
)
