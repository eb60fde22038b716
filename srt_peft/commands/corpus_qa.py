"""`srt-peft corpus qa`: questions on the held-out documents of a corpus."""
# ruff: noqa: PLC0415 - NumPy, torch and the segmenter are needed by this command alone

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from srt_peft.commands.command import Arguments, Command, say
from srt_peft.errors import OptionError, SRTError

if TYPE_CHECKING:
    from srt_peft.corpora.qa.items import Corpus
    from srt_peft.corpora.qa.making import Maker, Outcome

_HERE = ("localhost", "127.0.0.1", "::1")


def _qa(args: Arguments) -> int:
    from srt_peft.corpora.qa.making import make, manifest_of

    out = Path(args.out or Path(args.corpus) / "questions.jsonl")
    options = {"from": args.corpus, "n": args.n, "seed": args.seed, "endpoint": args.endpoint}
    try:
        outcomes = make(Path(args.corpus), out, args.n, lambda corpus: _maker(args, corpus), args.seed, options)
    except (SRTError, KeyboardInterrupt) as error:
        if not isinstance(error, OptionError):  # which the same command would meet again
            _kept(out)
        raise
    say(_told(outcomes))
    say(f"\n`srt-peft eval --suite qa={shlex.quote(str(out))}` asks them; {manifest_of(out)} says what they are.")
    say(f"Look them through:  srt-peft corpus review {shlex.quote(str(out))}")
    return 0


def _maker(args: Arguments, corpus: Corpus) -> Maker:
    """Whoever the options name."""
    if args.endpoint is not None:
        from srt_peft.corpora.qa.endpoint import Endpoint

        if args.model is None:
            raise OptionError("corpus qa", ["--model is missing: expected the name that the endpoint knows it by"])
        key = os.environ.get(args.api_key_env)
        parts = urlsplit(args.endpoint)
        if key and parts.scheme == "http" and parts.hostname not in _HERE:
            say(f"Warning: {args.endpoint} is not encrypted, and the key is sent to it in the clear.", file=sys.stderr)
        return Endpoint(args.endpoint, args.model, key=key, timeout=args.timeout, concurrency=args.concurrency)
    if args.model is not None:
        from srt_peft.corpora.qa.local import Local

        return Local(args.model, args.seed)
    from srt_peft.corpora.qa.cloze import Cloze

    return Cloze(corpus)


def _kept(out: Path) -> None:
    from srt_peft.corpora.qa.making import drafts_of

    drafts = drafts_of(out)
    if drafts.exists():
        with drafts.open("rb") as file:
            answered = max(sum(1 for _ in file) - 1, 0)
        say(f"{answered:,} answers are kept in {drafts}: the same command goes on from there.", file=sys.stderr)


def _told(outcomes: dict[str, Outcome]) -> str:
    """How many there are, of what kinds, and why there are no more."""
    from collections import Counter

    lines = []
    for split, one in outcomes.items():
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in Counter(m.draft.kind for m in one.made).most_common())
        there = f"{len(one.made):,} of {one.wanted:,} questions" + (f" ({kinds})" if kinds else "")
        lines.append(f"{split}: {there} from {one.statements:,} statements")
        lines += [f"  {count:>7,}  {reason}" for reason, count in one.left.most_common()]
        if len(one.made) < one.wanted:
            lines.append("  There are no more: make the corpus with a larger --held-out, or have a model ask.")
    return "\n".join(lines)


COMMAND = Command(
    _qa,
    "multiple-choice questions on the documents that a corpus holds out: by a model, or from the diffs alone",
    "srt-peft corpus qa --from corpora/factbook --n 500\n"
    "  srt-peft corpus qa --from corpora/factbook --endpoint http://localhost:8000/v1 --model NAME --concurrency 4\n"
    "  srt-peft corpus qa --from corpora/factbook --model models/instruct",
    (
        (
            "--from",
            {"metavar": "CORPUS", "dest": "corpus", "required": True, "help": "a folder that `corpus` has made"},
        ),
        ("--n", {"type": int, "default": 500, "help": "questions of each split, old and new (500)"}),
        ("--out", {"metavar": "FILE", "help": "where they go; without it CORPUS/questions.jsonl"}),
        ("--endpoint", {"metavar": "URL", "help": "an OpenAI-compatible service, which --model asks"}),
        ("--model", {"metavar": "NAME", "help": "the endpoint's model; without one a model's folder, which asks here"}),
        (
            "--api-key-env",
            {"metavar": "NAME", "default": "OPENAI_API_KEY", "help": "the variable with the key (OPENAI_API_KEY)"},
        ),
        ("--concurrency", {"type": int, "default": 1, "help": "requests at a time (1)"}),
        ("--timeout", {"type": float, "default": 120.0, "help": "seconds that an answer may take (120)"}),
        ("--seed", {"type": int, "default": 0, "help": "what is asked about first, and where letters lie (0)"}),
    ),
)
