"""The grid as study.yaml has it: worlds, rows, tunings and seeds, and the cells that they make.

cell    (world, tuning, row, seed): one update, and what it kept and learned
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.evaluation.entries import ENTRIES

HERE = Path(__file__).parent
STUDY = HERE / "study.yaml"
TUNINGS = ("full", "lora")
MIXTURE = {"stories": 1000, "factbook": 600, "peps": 300, "shakespeare": 100}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "kind": ("facts", "text"),
    "superseded": ("aside", "replayed"),
    "sources": ("given", "none", "shuffled", "clusters"),
    "base": ("continued", "scratch"),
    "new": ("wikipedia", "gsm8k", "factbook"),
    "control": ("", "shuffled-quality"),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A scheduler: an entry of `srt-peft compare`, and what is changed in the recipe."""

    name: str
    entry: str
    overrides: tuple[str, ...] = ()
    with_: str = ""
    """Who is trained first, since this one takes its counts."""
    compute_of: str = ""
    """Who is matched in compute, by more steps; nobody where the steps are equal."""
    control: str = ""
    kinds: tuple[str, ...] = ("facts", "text")

    @property
    def slug(self) -> str:
        """The name as a folder has it."""
        return re.sub(r"\W+", "-", self.name).strip("-")


@dataclass(frozen=True, kw_only=True)
class World:
    """What is known, and what is to be learned."""

    name: str
    kind: str
    steps: int
    superseded: str = "aside"
    sources: str = "given"
    bases: int = 1
    """How many worlds and bases the seeds share: seed s has that of s modulo as many."""
    rows: tuple[str, ...] = ()
    tuning: tuple[str, ...] = ()
    """Where it has rows or tunings of its own; all of the grid's without them."""
    taught: int = 0
    """Steps of a base of facts; the most steps of one of text, 0 for two passes."""
    people: int = 0
    added: int = 0
    changed: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates by tuning, where they are not those of its kind."""
    new: str = "wikipedia"
    old: Mapping[str, int] = field(default_factory=lambda: dict(MIXTURE))
    pieces: int = 1920
    """Of new text."""
    base: str = "continued"


@dataclass(frozen=True)
class Cell:
    """One update."""

    world: World
    tuning: str
    row: Row
    seed: int

    @property
    def place(self) -> str:
        """Where its result lies, below the study's folder."""
        return f"cells/{self.world.name}/{self.tuning}/{self.row.slug}/{self.seed}.json"

    @property
    def asked(self) -> dict[str, Any]:
        """All that its result depends on, as JSON has it: one of anything else is none of this cell's."""
        world = asdict(self.world) | {"rows": None, "old": dict(self.world.old), "rates": dict(self.world.rates)}
        del world["tuning"]  # whichever others the grid has
        row = asdict(self.row) | {"kinds": None, "overrides": list(self.row.overrides)}
        return {"world": world, "tuning": self.tuning, "row": row, "seed": self.seed}

    @property
    def after(self) -> tuple[str, ...]:
        """The cells that its steps follow from: the one whose compute it has, and itself at equal steps."""
        other = self.row.compute_of
        return (self.place_of(other), self.place_of(self.row.entry)) if other else ()

    def place_of(self, row: str) -> str:
        """The place of another row at the same seed."""
        return replace(self, row=Row(name=row, entry=row)).place


@dataclass(frozen=True)
class Plan:
    """The grid."""

    worlds: tuple[World, ...]
    rows: tuple[Row, ...]
    tunings: tuple[str, ...]
    seeds: tuple[int, ...]

    def rows_of(self, world: World) -> list[Row]:
        """The rows that this world has."""
        return [r for r in self.rows if world.kind in r.kinds and (not world.rows or r.name in world.rows)]

    def tunings_of(self, world: World) -> tuple[str, ...]:
        """The tunings that this world has."""
        return world.tuning or self.tunings

    def cells(self) -> Iterator[Cell]:
        """Every cell: seed by seed, so that a study that was stopped has all rows of some seeds."""
        for seed in self.seeds:
            for world in self.worlds:
                for tuning in self.tunings_of(world):
                    yield from (Cell(world, tuning, row, seed) for row in self.rows_of(world))


def load(path: Path = STUDY, *, quick: bool = False, only: Sequence[str] = (), seeds: str | None = None) -> Plan:
    """The grid of this file, or all that is wrong with it."""
    given = _read(path)
    hurry = given.pop("quick", {})
    faults: list[str] = []
    if quick:
        given |= hurry
    worlds = [_made(World, {"name": name, **about}, name, faults) for name, about in given["worlds"].items()]
    rows = [_made(Row, dict(about), str(about.get("name")), faults) for about in given["rows"]]
    kept = given.get("only_rows", [row.name for row in rows])
    rows = [row for row in rows if row.name in kept]
    names = [world.name for world in worlds]
    faults += [f"--only {name}: no such world{did_you_mean(name, names)}; known are {', '.join(names)}"
               for name in only if name not in names]  # fmt: skip
    faults += _faults(worlds, rows, [*given["tuning"], *(name for world in worlds for name in world.tuning)])
    if faults:
        raise OptionError(f"the study, {path.name}", faults)
    return Plan(
        tuple(world for world in worlds if not only or world.name in only),
        tuple(rows),
        tuple(given["tuning"]),
        _seeds(str(seeds or given["seeds"])),
    )


def _read(path: Path) -> dict[str, Any]:
    """What the file says, if it says what a grid is of."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OptionError("the study", [f"--grid = {path}: {error}: expected a file such as {STUDY.name}"]) from None
    there = given if isinstance(given, dict) else {}
    if lacking := [key for key in ("seeds", "tuning", "rows", "worlds") if key not in there]:
        fault = f"--grid = {path} lacks {', '.join(lacking)}: expected them as {STUDY.name} has them"
        raise OptionError("the study", [fault])
    return there


def without_text(plan: Plan) -> Plan:
    """The grid's worlds of facts, which need no files."""
    return replace(plan, worlds=tuple(world for world in plan.worlds if world.kind == "facts"))


def _made(kind: type, given: Mapping[str, Any], name: str, faults: list[str]) -> Any:
    """A row or a world; what is wrong with it is told, and its default stands in."""
    known = {f.name.removesuffix("_"): f for f in fields(kind)}
    values = {}
    for key, value in given.items():
        if key not in known:
            faults.append(f"{name}: {key}: no such key{did_you_mean(key, known)}; known are {', '.join(known)}")
        elif key in _CHOICES and value not in _CHOICES[key]:
            faults.append(f"{name}: {key} = {value!r}: expected one of {', '.join(_CHOICES[key])}")
        else:
            values[known[key].name] = tuple(value) if isinstance(value, list) else value
    for key, about in known.items():
        needed = about.default is MISSING and about.default_factory is MISSING
        if needed and about.name not in values:
            if key not in given:
                faults.append(f"{name}: {key} is missing")
            values[about.name] = 1 if key == "steps" else "?"
    return kind(**values)


def _faults(worlds: Sequence[World], rows: Sequence[Row], tunings: Sequence[str]) -> Iterator[str]:
    names, slugs = {row.name for row in rows}, [row.slug for row in rows]
    for row in rows:
        for entry in (row.entry, *([row.with_] if row.with_ else [])):
            if entry not in ENTRIES and entry != "?":
                yield f"{row.name}: {entry!r} is no entry of compare{did_you_mean(entry, ENTRIES)}"
        if row.compute_of and not {row.compute_of, row.entry} <= names:
            yield f"{row.name}: compute_of = {row.compute_of!r}: expected one of the rows, and a row {row.entry!r}"
        if slugs.count(row.slug) > 1:
            yield f"{row.name}: another row has this name, or one that makes the same folder"
    for world in worlds:
        yield from (f"{world.name}: rows: there is no {name!r}" for name in world.rows if name not in names)
    yield from (f"tuning = {name!r}: expected one of {', '.join(TUNINGS)}" for name in tunings if name not in TUNINGS)


def _seeds(text: str) -> tuple[int, ...]:
    """`5-9` is five seeds, `0,3` is two."""
    found: list[int] = []
    for word in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if not match or (match[2] and int(match[2]) < int(match[1])):
            raise OptionError("the study", [f"--seeds = {text!r}: expected such as 5-9, or 0,3"])
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(dict.fromkeys(found))
