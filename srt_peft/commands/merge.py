"""`srt-peft merge`: an adapter into its base, as a whole model."""
# ruff: noqa: PLC0415 - torch and transformers take seconds to import

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from srt_peft.commands.command import FAILED, Arguments, Command, say

if TYPE_CHECKING:
    from srt_peft.lifecycle.merge import Merged


def _merge(args: Arguments) -> int:
    from srt_peft.evaluation.perplexity import score
    from srt_peft.lifecycle.merge import merge
    from srt_peft.lifecycle.which import checkpoint_of

    chosen = checkpoint_of(args.run, "the merge")

    def keep(merged: Merged) -> bool:
        say(told(merged))
        return not merged.changed or args.yes or _asked()

    out = None if args.out is None else Path(args.out)
    merged = merge(chosen, score=score, keep=keep, out=out, dtype=args.dtype)
    if merged is None:
        say("Nothing was kept. --yes keeps it all the same; --dtype float32 rounds the least.", file=sys.stderr)
        return FAILED
    say(f"\nThe merged model lies in {merged.folder}, and is loaded by")
    say(f"    model = transformers.AutoModelForCausalLM.from_pretrained({str(merged.folder)!r})")
    return 0


def _asked() -> bool:
    return sys.stdin.isatty() and input("Keep it all the same? [y/N] ").strip().lower() in ("y", "yes")


def told(merged: Merged) -> str:
    """What the two forms say of the same text."""
    lines = [f"The adapter is merged into its base ({merged.base}), in {merged.dtype}."]
    if merged.untied:
        lines.append("Embeddings and head were one, and the adapter changed one of them: the head now has its own.")
    if not merged.asked:
        lines.append("Its perplexity was not measured: the run's pools lead to no text.")
        return "\n".join(lines)
    what = "held-out text" if merged.held_out else "a sample of what was trained on, as nothing was held out"
    lines.append(f"Perplexity of {what}:")
    for name, one in merged.asked.items():
        change = f"{100 * (one.merged / one.adapter - 1):+.3f} %, {one.change:+.5f} nats a token"
        told = f"adapter {one.adapter:.4f}, merged {one.merged:.4f} ({change})"
        lines.append(f"  {name}: {told}; {one.examples:,} examples, {one.tokens:,} tokens")
    changed, most = " and ".join(merged.changed), f"{merged.rounding:.2g} nats a token"
    lines.append(
        f"Warning: on {changed} that is more than rounding explains ({most})."
        if changed
        else f"That is no more than rounding explains ({most})."
    )
    return "\n".join(lines)


COMMAND = Command(
    _merge,
    "merge an adapter into the base that it was trained on: a whole model folder, held against the adapter",
    "srt-peft merge runs/this-week\n"
    "  srt-peft merge runs/this-week/checkpoints/step-00000100 --out merged --dtype float32",
    (
        ("run", {"metavar": "RUN", "help": "a run's folder (its newest whole checkpoint), or a checkpoint's"}),
        ("--out", {"metavar": "DIR", "help": "where the model goes; without it RUN/merged/step-N"}),
        (
            "--dtype",
            {"choices": ("bfloat16", "float16", "float32"), "help": "of the merged weights; without it the run's own"},
        ),
        ("--yes", {"action": "store_true", "help": "keep a model that differs from the adapter by more than rounding"}),
    ),
)
