"""`srt-peft push`: an update to the hub."""
# ruff: noqa: PLC0415 - torch and transformers take seconds to import

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srt_peft.commands.command import FAILED, Arguments, Command, say
from srt_peft.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from srt_peft.lifecycle.card import Result
    from srt_peft.lifecycle.following import Ended
    from srt_peft.lifecycle.publish import Made


def _push(args: Arguments) -> int:
    from srt_peft.lifecycle import hub, publish
    from srt_peft.report.still import drawn

    repo, revision = hub.named(args.repo, "push")
    if revision is not None:
        raise OptionError(
            "push", [f"REPO = {args.repo!r}: expected no revision; a push is a new commit of the main branch"]
        )
    if args.out is not None and not args.dry_run:
        raise OptionError("push", [f"--out = {args.out}: expected --dry-run with it, which leaves the folder there"])
    how: dict[str, Any] = {"state": args.with_state, "results": results, "pictures": drawn}
    run = Path(args.run)
    if args.dry_run:
        out = Path(args.out or repo.rpartition("/")[2])
        _tell(publish.prepare(run, repo, out, **how))
        say(f"\nNothing was sent. {out} is what would be: look at its README.md.")
        return 0
    hub.check_token()
    if args.public and not (args.yes or _asked(repo, args.with_state)):
        say("Nothing was sent. --yes says so beforehand; without --public it is private.", file=sys.stderr)
        return FAILED
    with publish.scratch(run) as scratch:
        made = publish.prepare(run, repo, scratch / "push", **how)
        place = hub.look(repo)
        publish.check_visible(place, public=args.public)
        hub.check_base(place, made.about, scratch / "theirs")
        _tell(made)
        message = args.message or f"{made.about['run']}, to step {made.about['step']:,}"
        where = hub.send(made.folder, place, private=not args.public, message=message)
    private = place.private if place.there else not args.public
    say(f"\n{where} ({'private' if private else 'public'})")
    if place.there and place.private and args.public:
        say(f"{repo} was private, and stays so: make it public on the hub.", file=sys.stderr)
    if place.there and made.about["state"] != "full" and any(name.startswith("srt_state/") for name in place.files):
        say(f"The review state that {repo} had is gone from it, and not from its history of commits.", file=sys.stderr)
    base = " model.base=PATH" if made.about["base"]["local"] else ""
    say(f"Go on from it anywhere:  srt-peft next hub:{shlex.quote(repo)} --old TEXTS --new TEXT{base}")
    return 0


def _tell(made: Made) -> None:
    for name, size in made.files:
        say(f"{size:>14,}  {name}")


def _asked(repo: str, state: str) -> bool:
    more = ", and see by a text's hash whether it was trained on" if state == "full" else ""
    question = f"Everybody will be able to read {repo}{more}. Make it public? [y/N] "
    return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")


def results(run: Ended) -> Sequence[Result]:
    """The evaluations that the run has, as the card takes them."""
    from srt_peft.evaluation.compare import COMBINED
    from srt_peft.evaluation.kept import UPDATE, kept
    from srt_peft.evaluation.verdict import METRICS
    from srt_peft.lifecycle.card import Result

    found = []
    for one in kept(run.folder, run.checkpoint):
        metric = METRICS[one.comparison.metric]
        mine = next(standing for standing in one.comparison.standings if standing.label == UPDATE)
        scores = [
            (split, metric.show(score.mean), metric.slope(score.mean) * score.sd)
            for split, score in mine.scores.items()
            if split != COMBINED
        ]
        name = "perplexity" if one.comparison.metric == "nll" else one.comparison.metric
        found.append(Result(one.title, one.table, name, scores))
    return found


COMMAND = Command(
    _push,
    "publish an update on the hub: adapter, model card, and what was learned of each example, as far as you say",
    "srt-peft push runs/this-week me/my-adapter --dry-run --out look\n"
    "  srt-peft push runs/this-week me/my-adapter --with-state full\n"
    "  srt-peft next hub:me/my-adapter --old last_week.jsonl --new this_week.jsonl",
    (
        ("run", {"metavar": "RUN", "help": "the folder of a finished update"}),
        ("repo", {"metavar": "REPO", "help": "the repository, as in me/my-adapter; made, private, if it is not there"}),
        (
            "--with-state",
            {"choices": ("none", "anonymous", "full"), "default": "anonymous", "help": "of the review state: "
             "nothing; statistics a deck (unless given); or all, by hashes of texts, so that `next` draws as here"},
        ),
        ("--public", {"action": "store_true", "help": "everybody may read it; asks first"}),
        ("--dry-run", {"action": "store_true", "help": "make the folder, and send nothing"}),
        ("--out", {"metavar": "DIR", "help": "where a dry run leaves the folder; REPO's name without it"}),
        ("--message", {"metavar": "TEXT", "help": "of the commit; the run's name and its step without it"}),
        ("--yes", {"action": "store_true", "help": "do not ask"}),
    ),
)  # fmt: skip
