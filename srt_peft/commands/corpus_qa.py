"""`srt-peft corpus qa`: questions on the held-out documents of a corpus."""
# ruff: noqa: PLC0415 - NumPy, torch and the segmenter are needed by this command alone

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from srt_peft.commands.command import Arguments, Command, path_of, say
from srt_peft.errors import OptionError, SRTError, StateError, did_you_mean

if TYPE_CHECKING:
    from srt_peft.corpora.qa.items import Corpus
    from srt_peft.corpora.qa.making import Maker, Outcome

_HERE = ("localhost", "127.0.0.1", "::1")


def _qa(args: Arguments) -> int:
    from srt_peft.corpora.qa.making import faults, make, manifest_of, remedy

    corpus = path_of(args.corpus)
    out = path_of(args.out) if args.out else corpus / "questions.jsonl"
    if wrong := [*faults(out, args.n), *_faults(args)]:
        raise OptionError("corpus qa", wrong)
    options = {"from": args.corpus, "n": args.n, "seed": args.seed, "endpoint": args.endpoint}
    try:
        outcomes = make(corpus, out, args.n, lambda corpus: _maker(args, corpus), args.seed, options)
    except (SRTError, KeyboardInterrupt) as error:
        if not isinstance(error, OptionError | StateError):  # which the same command would meet again
            _kept(out)
        raise
    say(_told(outcomes, remedy(by_model=args.model is not None)))
    say(f"\n`srt-peft eval --suite qa={shlex.quote(str(out))}` asks them; {manifest_of(out)} says what they are.")
    say(f"Look them through:  srt-peft corpus review {shlex.quote(str(out))}")
    return 0


def _key(args: Arguments) -> str:
    return os.environ.get(args.api_key_env, "").strip()


def _faults(args: Arguments) -> list[str]:
    """Why whoever the options name cannot be asked; told before the corpus is read, which may take minutes."""
    if args.endpoint is not None:
        from srt_peft.corpora.qa.endpoint import faults

        lacking = ["--model is missing: expected the name that the endpoint knows it by"] if args.model is None else []
        return [*lacking, *faults(args.endpoint, _key(args), args.timeout, args.concurrency)]
    if args.model is None or (model := path_of(args.model)).is_dir():
        return []
    near = did_you_mean(model.name, (p.name for p in model.parent.iterdir())) if model.parent.is_dir() else ""
    expected = "expected one with config.json, a tokenizer and *.safetensors; or --endpoint with a model's name"
    return [f"--model = {args.model}: is no folder{near}; {expected}"]


def _maker(args: Arguments, corpus: Corpus) -> Maker:
    """Whoever the options name."""
    if args.endpoint is not None:
        from srt_peft.corpora.qa.endpoint import Endpoint

        key = _key(args)
        parts = urlsplit(args.endpoint)
        if key and parts.scheme == "http" and parts.hostname not in _HERE:
            say(f"Warning: {args.endpoint} is not encrypted, and the key is sent to it in the clear.", file=sys.stderr)
        return Endpoint(args.endpoint, args.model, key=key, timeout=args.timeout, concurrency=args.concurrency)
    if args.model is not None:
        from srt_peft.corpora.qa.local import Local

        return Local(str(path_of(args.model)), args.seed)
    from srt_peft.corpora.qa.cloze import Cloze

    return Cloze(corpus)


def _kept(out: Path) -> None:
    from srt_peft.corpora.qa.making import drafts_of

    drafts = drafts_of(out)
    if drafts.exists():
        with drafts.open("rb") as file:
            answered = max(sum(1 for _ in file) - 1, 0)
        say(f"{answered:,} answers are kept in {drafts}: the same command goes on from there.", file=sys.stderr)


def _told(outcomes: dict[str, Outcome], remedy: str) -> str:
    """How many there are, of what kinds, and why there are no more."""
    from collections import Counter

    lines = []
    for split, one in outcomes.items():
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in Counter(m.draft.kind for m in one.made).most_common())
        there = f"{len(one.made):,} of {one.wanted:,} questions" + (f" ({kinds})" if kinds else "")
        lines.append(f"{split}: {there} from {one.statements:,} statements")
        lines += [f"  {count:>7,}  {reason}" for reason, count in one.left.most_common()]
        if len(one.made) < one.wanted:
            lines.append(f"  There are no more: {remedy}.")
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
