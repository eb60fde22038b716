"""report.html: one file, with its pictures, its tables and the library that draws them; it fetches nothing.

A page that is opened may load nothing: its policy (Content-Security-Policy) allows two scripts, by their hashes, and no
address at all. So neither a text that slipped through the escaping nor the library could call out.

plotly.js is 4.8 MB of the page, once. Its smaller builds are not part of the Python package.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import srt_peft
from srt_peft.errors import OptionError
from srt_peft.report.read import POOLS, Course, Hard, Run, read_run
from srt_peft.report.words import duration, number, percent, perplexity, whole

REPORT = "report.html"
Fact = tuple[str, str]


def available() -> bool:
    """Whether there is a library to draw with."""
    return find_spec("plotly") is not None


def write(folder: Path | str, *, text: bool = True, out: Path | str | None = None) -> Path:
    """Write the page of a run or of a contest, into its folder unless another file is named; where it is."""
    if not available():
        remedy = "plotly draws the pictures, and is not installed: pip install 'srt-peft[report]'"
        raise OptionError("the report", [remedy])
    folder = Path(folder)
    target = _target(folder / REPORT if out is None else Path(out))
    page = _contest(folder) if (folder / "contest.json").is_file() else _run(folder, text=text)
    beside = target.with_name(f".{target.name}.new")
    try:
        beside.write_text(page, encoding="utf-8")
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        fault = f"{target}: {error.strerror}: expected a file that can be written"
        raise OptionError("the report", [fault]) from error
    return target


def _target(path: Path) -> Path:
    """Where the page goes: what a link leads to, and never in the place of what is no file."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "no file, but a device or a pipe"
        fault = f"{path} is {what}: expected the name of a file, new or to be replaced, such as {REPORT}"
        raise OptionError("the report", [fault])
    return target


# --- a run ----------------------------------------------------------------------------------------------------------


def _run(folder: Path, *, text: bool) -> str:
    from srt_peft.report.charts import of_run  # noqa: PLC0415 - plotly is an extra

    run = read_run(folder, text=text)
    scheduler, base = run.asked("review", "scheduler"), Path(str(run.asked("model", "base"))).name
    title = f"{folder.resolve().name}: {scheduler} on {base}"
    body = [_tiles(_facts(run)), _notes(run.notes), *_sections(of_run(run)), _hardest(run.hardest, text=text)]
    return _page(title, f"An update of {base}, scheduled by {scheduler}.", body)


def _facts(run: Run) -> list[Fact]:
    """What a person asks first."""
    census, course = run.census, run.course
    old, new = census.examples
    facts = [
        ("steps done", f"{census.step:,} of {run.asked('training', 'steps')}".replace(" of one_pass", "")),
        ("old examples", f"{old:,} ({percent(census.seen[0] / old)} seen)" if old else "none"),
        ("new examples", f"{new:,} ({percent(census.seen[1] / new)} seen)" if new else "none"),
    ]
    if census.suspended:
        facts.append(("set aside", whole(census.suspended)))
    if course is not None:
        drawn = course.drawn.sum(axis=0)
        share = f"{percent(drawn[0] / drawn.sum())}" if drawn.any() else "–"
        aims = run.asked("review", "scheduler") not in ("cpt", "match")
        rho = run.asked("review", "old_fraction") if aims else None
        facts += [
            ("old in the draws", f"{share} (ρ {percent(rho)})" if rho is not None else share),
            ("loss, last", number(next((float(v) for v in course.loss[::-1] if np.isfinite(v)), None))),
            *((f"held out, {pool}", perplexity(course.measured[key][1][-1])) for pool in POOLS
              if (key := f"held_out_{pool}_nll") in course.measured),
            ("tokens trained", whole(course.tokens)),
            *_forward_only(course),
            ("time in steps", duration(course.seconds)),
        ]  # fmt: skip
        if course.empty:
            facts.append(("empty steps", whole(course.empty)))
    if run.journal is not None:
        facts.append(("reviews", whole(int(run.journal.quality.sum()))))
        if run.journal.untrained:
            facts.append(("of them asked only", whole(run.journal.untrained)))
        facts.append(("lapses", percent(run.journal.quality[:, :, :3].sum() / max(run.journal.quality.sum(), 1))))
    return facts


def _forward_only(course: Course) -> Iterator[Fact]:
    """What was scored and not learned from, which is compute as well."""
    for one in course.passes:
        yield f"{one['name']} pass", f"{one['examples']:,} examples"
    if course.forward_only:
        share = percent(course.forward_only / max(course.tokens, 1))
        yield "tokens forward only", f"{course.forward_only:,} ({share} of those trained)"


def _hardest(hard: Sequence[Hard], *, text: bool) -> str:
    if not hard:
        return ""
    lists = []
    for pool in POOLS:
        items = "".join(_item(one) for one in hard if one.pool == pool)
        if items:
            lists.append(f'<div><h3>{pool}</h3><ol class="hard {pool}">{items}</ol></div>')
    left = "" if text else " Their texts were left out of this page."
    return (
        "<section><h2>The hardest examples</h2><p class=soft>Those with the highest perplexity when they were last "
        f"reviewed. What stays here review after review may be noise, or a contradiction.{left}</p>"
        f'<div class="pools">{"".join(lists)}</div></section>'
    )


def _item(one: Hard) -> str:
    words = "" if one.text is None else f"<pre tabindex=0>{escape(one.text)}</pre>"
    told = [
        f"example {one.id:,}", _many(one.visits, "review"), _many(one.lapses, "lapse"),
        f"ease {one.ease:.2f}", f"returns after {_many(one.interval, 'step')}",
    ]  # fmt: skip
    about = " · ".join(told)
    return f"<li><strong>perplexity {perplexity(one.signal)}</strong> <span class=soft>{about}</span>{words}</li>"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# --- a contest ------------------------------------------------------------------------------------------------------


def _contest(folder: Path) -> str:
    from srt_peft.report.contest import of_contest, read_contest, tables  # noqa: PLC0415 - plotly is an extra

    contest = read_contest(folder)
    said = contest.said
    base = Path(str(said["recipe"]["model"]["base"])).name
    facts = [
        ("schedulers", whole(len(said["entries"]))),
        ("seeds of each", whole(len(said["seeds"]))),
        ("runs done", f"{len(said['runs']):,} of {len(said['planned']):,}"),
        *([("asked", whole(len(said["results"])))] if said["results"] else []),
    ]
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in said["sentences"])
    made = "".join(_table(t.head, t.rows, t.caption) for t in tables(contest))
    body = [
        _tiles(facts), _notes(contest.notes),
        f"<section><h2>In words</h2><ul>{sentences}</ul></section>" if sentences else "",
        *_sections(of_contest(contest)), f"<section><h2>Tables</h2>{made}</section>" if made else "", _runs(contest),
    ]  # fmt: skip
    told = f"{len(said['entries'])} schedulers, one recipe, equal steps: what each kept and what each learned."
    return _page(f"{folder.resolve().name}: schedulers on {base}", told, body)


def _runs(contest: Any) -> str:
    """Links to the pages of the runs, where they have one; and how one is made."""
    items = "".join(
        f'<li><a href="{escape(run["folder"])}/{REPORT}">{escape(run["entry"])}, seed {run["seed"]}</a></li>'
        for run in contest.said["runs"]
        if (contest.folder / run["folder"] / REPORT).is_file()
    )
    if not contest.said["runs"]:
        return ""
    last = shlex.quote(str(contest.folder / contest.said["runs"][-1]["folder"]))
    told = f"Each run has a folder of its own, whose page <code>srt-peft report {escape(last)}</code> draws, for one."
    return f"<section><h2>The runs</h2><p class=soft>{told}</p><ul>{items}</ul></section>"


# --- the page -------------------------------------------------------------------------------------------------------


def _tiles(facts: Iterable[Fact]) -> str:
    tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="tiles">{tiles}</dl>'


def _notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _sections(sections: Iterable[Any]) -> list[str]:
    return [
        f'<section><h2>{escape(section.title)}</h2><div class="charts">'
        f"{''.join(map(_chart, section.charts))}</div></section>"
        for section in sections
    ]


def _chart(chart: Any) -> str:
    name, title = escape(chart.name), escape(chart.title)
    data = chart.figure.to_json(engine="json").replace("<", "\\u003c")
    return (
        f'<figure{" class=tall" if chart.tall else ""} aria-labelledby="{name}-title"><figcaption>'
        f'<h3 id="{name}-title">{title}</h3><p id="{name}-reading">{escape(chart.reading)}</p></figcaption>'
        f'<div class="plot" id="{name}" role="img" aria-label="{title}: a picture; its figures are in the table that '
        f'follows" aria-describedby="{name}-reading" data-figure="{name}-data"></div>'
        f'<script type="application/json" id="{name}-data">{data}</script>'
        f"<details><summary>Figures as a table</summary>{_table(chart.head, chart.rows)}</details></figure>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    table = f"<table>{named}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _page(title: str, about: str, body: Iterable[str]) -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an extra

    here = files("srt_peft.report")
    style, *scripts = (here.joinpath("page.css").read_text(), get_plotlyjs(), here.joinpath("page.js").read_text())
    allowed = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{style}</style></head><body>',
            f'<header><div><h1>{escape(title)}</h1><p class="soft">{escape(about)}</p></div>',
            '<button id="theme" type="button" aria-pressed="false" hidden>Dark page</button></header>',
            "<noscript><p>The pictures need JavaScript; the figures of each are in the table below it.</p></noscript>",
            "<main>", *body, "</main>",
            f'<footer><p class="soft">Made by srt-peft {srt_peft.__version__}. This page fetches nothing.</p></footer>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>",
        ]
    ) + "\n"  # fmt: skip


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
