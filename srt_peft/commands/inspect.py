"""`srt-peft inspect`: what is due, what lapses, who is hardest, and one example's whole history."""
# ruff: noqa: PLC0415 - NumPy and the readers are needed by this command alone

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from srt_peft.commands.command import Arguments, Command, say
from srt_peft.errors import OptionError

FEW = 20
"""Rows of a table on the screen; --json has all."""
_DEFAULT = -1


def _inspect(args: Arguments) -> None:
    from srt_peft.lifecycle import inspect, leeches

    threshold = inspect.LAPSES if args.leeches in (None, _DEFAULT) else args.leeches
    inspect.checked(threshold, args.hardest)
    _check(args)
    found: dict[str, Any]
    if args.suspend_leeches or args.revive:
        name = "revived" if args.revive else "set_aside"
        rows = leeches.revive(Path(args.run)) if args.revive else leeches.suspend(Path(args.run), threshold)
        found = {"run": args.run, name: rows}
    else:
        seen = inspect.look(args.run, args.at)
        found = {"run": args.run, "step": seen.step}
        if args.example is not None:
            found["examples"] = [inspect.history(seen, i) for i in inspect.named(seen, args.example).tolist()]
        elif args.hardest is not None:
            found["by"], found["hardest"] = inspect.hardest(seen, args.hardest)
        elif args.leeches is not None:
            found |= {"threshold": threshold, "leeches": inspect.leeches(seen, threshold)}
        else:
            found = inspect.facts(seen)
    say(json.dumps(found, indent=1, ensure_ascii=False) if args.json else "\n".join(told(found)))


def _check(args: Arguments) -> None:
    flags = ("example", "hardest", "leeches", "suspend-leeches", "revive")
    given = [f"--{flag}" for flag in flags if getattr(args, flag.replace("-", "_")) not in (None, False)]
    if given == ["--leeches", "--suspend-leeches"]:
        given = given[1:]
    faults = [f"{' and '.join(given)}: expected one of them"] if len(given) > 1 else []
    if args.at is not None and (args.suspend_leeches or args.revive):
        faults.append(
            f"--at = {args.at} with {given[-1]}: expected none, as it is the newest checkpoint that is changed"
        )
    if faults:
        raise OptionError("inspect", faults)


# --- for a terminal -------------------------------------------------------------------------------------------------


def told(found: dict[str, Any]) -> Iterator[str]:
    """What was found, in lines that fit the terminal."""
    width = min(shutil.get_terminal_size().columns, 120)
    if "pools" in found:
        yield from _facts(found, width)
    elif "examples" in found:
        for number, example in enumerate(found["examples"][:FEW]):
            yield from [""] * (number > 0)
            yield from _history(example, width)
        yield from _more(found["examples"])
    elif "hardest" in found:
        yield f"{found['run']} at step {found['step']:,}: the hardest, by {found['by']}"
        yield from _rows(found["hardest"], width)
    elif "leeches" in found:
        rows = found["leeches"]
        count = f"{len(rows):,} examples with {found['threshold']} lapses or more"
        yield f"{found['run']} at step {found['step']:,}: {count}"
        yield from _rows(rows, width)
    else:
        name = "revived" if "revived" in found else "set_aside"
        done = "may be drawn again" if name == "revived" else "are set aside, and drawn no more (--revive undoes it)"
        yield f"{found['run']}: {len(found[name]):,} examples {done}."
        yield from _rows(found[name], width)


_FACTS = {
    "examples": "examples", "never seen": "never_seen", "due now": "due", "backlog, batches": "backlog",
    "reviews": "reviews", "lapses": "lapses", "set aside": "suspended", "superseded": "superseded",
}  # fmt: skip


def _facts(found: dict[str, Any], width: int) -> Iterator[str]:
    yield f"{found['run']} at step {found['step']:,}, scheduler {found['scheduler']}; read from {found['state']}"
    old, new = found["pools"]["old"], found["pools"]["new"]
    yield from ("", f"{'':18}{'old':>12}{'new':>12}")
    yield from (f"{title:18}{_cell(old[key]):>12}{_cell(new[key]):>12}" for title, key in _FACTS.items())
    for title, key in (("interval, in steps", "intervals"), ("ease", "eases")):
        if found[key]:
            yield from ("", f"{title} (examples that were reviewed)")
            yield from _bars(found[key], width)


def _bars(bins: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    """A line a bin, and a bar a pool."""
    most, room = max(max(b["old"], b["new"]) for b in bins), max((width - 18) // 2 - 10, 4)
    labels = [" to ".join(dict.fromkeys(map(_cell, (b["from"], b["to"])))) for b in bins]
    pad = max(map(len, labels))
    yield f"{'':{pad}}  {'old':{room + 8}}  new"
    for label, b in zip(labels, bins, strict=True):
        old, new = (f"{b[pool]:>7,} {'█' * -(-room * b[pool] // most)}" for pool in ("old", "new"))
        yield f"{label:>{pad}}  {old:{room + 8}}  {new}".rstrip()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "?" if value is None else f"{value:,.2f}" if isinstance(value, float) else str(value)


_COLUMNS = {
    "id": "id", "pool": "pool", "nll": "NLL", "reference": "ref.", "visits": "visits", "lapses": "lapses",
    "ease": "ease", "interval": "interval", "due": "due",
}  # fmt: skip


def _rows(rows: Sequence[dict[str, Any]], width: int) -> Iterator[str]:
    """A table, with as much of each text as there is room for."""
    if not rows:
        return
    table = [
        list(_COLUMNS.values()),
        *([str(row["id"]), *(_cell(row[key]) for key in list(_COLUMNS)[1:])] for row in rows[:FEW]),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    texts = ["text", *(f"({row['set_aside']}) " * bool(row["set_aside"]) + (row["text"] or "?") for row in rows)]
    for cells, text in zip(table, texts, strict=False):
        line = "  ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
        yield f"{line}  {_cut(text, width - len(line) - 2)}".rstrip()
    yield from _more(rows)


def _more(rows: Sequence[Any]) -> Iterator[str]:
    if len(rows) > FEW:
        yield f"and {len(rows) - FEW:,} more, which --json lists"


def _cut(text: str, room: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= room else f"{words[: max(room - 1, 8)]}…"


_REVIEWS = {"step": "step", "nll": "NLL", "quality": "q", "ease": "ease", "repetitions": "n", "interval": "interval",
            "due": "due", "trained": "trained on"}  # fmt: skip


def _history(example: dict[str, Any], width: int) -> Iterator[str]:
    """One example: who it is, each review, and its text."""
    aside = f", set aside ({example['set_aside']})" if example["set_aside"] else ""
    yield f"example {example['id']} of the {example['pool']} pool, source {example['source'] or '?'}{aside}"
    yield f"identity {example['identity'] or '?'}"
    yield f"due at step {example['due']:,}; NLL {_cell(example['nll'])}, reference {_cell(example['reference'])}"
    reviews = example["reviews"]
    if not example["whole"]:
        yield f"The log has {len(reviews)} of its {example['visits']} reviews: what it does not tell is shown as ?."
    table = [list(_REVIEWS.values()), *([_cell(review[key]) for key in _REVIEWS] for review in reviews)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if reviews:
        yield from ("  ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True)) for cells in table)
    else:
        yield "never reviewed"
    text = example["text"]
    yield "its text is not there: the pool's cache was cleared" if text is None else _cut(text, 10 * width)


COMMAND = Command(
    _inspect,
    "show what is due, what lapses, who is hardest, and one example's whole history",
    "srt-peft inspect runs/this-week\n  srt-peft inspect runs/this-week --hardest 10\n"
    "  srt-peft inspect runs/this-week --example 17\n  srt-peft inspect runs/this-week --leeches 5 --suspend-leeches",
    (
        ("run", {"metavar": "RUN", "help": "a run's folder, also of one that is training, or a checkpoint's"}),
        ("--json", {"action": "store_true", "help": "the same numbers as JSON, and nothing cut short"}),
        ("--example", {"metavar": "ID", "help": "an id, an identity of 32 hex digits, or a document's name"}),
        ("--hardest", {"metavar": "N", "type": int, "help": "so many examples, the hardest first"}),
        (
            "--leeches",
            {
                "metavar": "N",
                "type": int,
                "nargs": "?",
                "const": _DEFAULT,
                "help": "examples with so many lapses or more; 4 if N is left out",
            },
        ),
        ("--suspend-leeches", {"action": "store_true", "help": "set these aside in the newest checkpoint"}),
        ("--revive", {"action": "store_true", "help": "take back all that are set aside by request"}),
        ("--at", {"metavar": "STEP", "type": int, "help": "as the run's checkpoint of that step has it"}),
    ),
)
