"""What a table's runs start from: base, texts, and what is asked. Made here at demo scale, brought to the paper's.

demo     the world of `srt-peft demo` and its base, which is made once and kept; for the broad benchmarks a smaller
         world, and a base that was taught four skills beside its old texts
paper    what the recipe and the command line name. The paper's corpora and questions were not released
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eval.paper import skills
from eval.paper.figures import HERE
from eval.paper.tables import TABLES
from srt_peft.data.sources import absent
from srt_peft.demo import world
from srt_peft.demo.base import Lessons, Shape, made
from srt_peft.errors import OptionError
from srt_peft.evaluation.suites import Asked, Options
from srt_peft.training.recipe import load_recipe

Say = Callable[[str], None]
POOLS = ("old", "new")


@dataclass(frozen=True)
class Brought:
    """What a command line names: files to ask from, and overrides of the recipe."""

    questions: str | None = None
    probes: str | None = None
    data_root: str | None = None
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Materials:
    """Overrides of the recipe, what is asked, and how."""

    overrides: list[str]
    asked: list[Asked]
    options: Options = field(default_factory=Options)


# --- demo scale -----------------------------------------------------------------------------------------------------

WORLD, SMALL = world.Sizes(), world.Sizes(people=40, added=14, changed=36)
QUICK = world.Sizes(people=24, added=8, changed=20)
SHAPE, TAUGHT, BRIEF = Shape(), Shape(steps=1000), Shape(steps=250)
HURRY = ["training.steps=60", "checkpoints.every=60"]


def demo(asks: str, folder: Path, say: Say, *, quick: bool) -> Materials:
    """World and base, in the cache; probes and benchmarks, in this folder."""
    broad = asks == "benchmarks"
    sizes = QUICK if quick else SMALL if broad else WORLD
    shape = BRIEF if quick else TAUGHT if broad else SHAPE
    here = world.make(0, sizes)
    home = made(here, shape, say, skills.lessons() if broad else Lessons())
    overrides = [_set("model.base", home / "base")]
    overrides += [_set(f"data.{pool}", home / "world" / f"{pool}.jsonl") for pool in POOLS]
    if quick:
        overrides += HURRY
    if broad:
        subjects, tasks = skills.names()
        skills.write(folder, subjects, tasks)
        # The prompts of so small a model have no examples, which it has no room for.
        return Materials(overrides, [Asked("broad", None)], Options(data_root=str(folder), num_fewshot=0))
    if asks == "probes":
        _write_probes(here, folder)
        return Materials(overrides, [Asked("temporalwiki", str(folder))])
    return Materials(overrides, [Asked("qa-text", str(home / "world" / "questions.jsonl"))])


def _set(key: str, path: Path) -> str:
    """An override whose value is this path, whatever YAML would make of its characters."""
    return f"{key}='{str(path).replace(chr(39), 2 * chr(39))}'"


def _write_probes(here: world.World, folder: Path) -> None:
    """TemporalWiki's two files: facts of the old snapshot as they are now, changed ones and unchanged ones."""
    now = {(fact.person, fact.attribute): fact for fact in here.new}
    rows: dict[str, list[list[str]]] = {"changed": [], "unchanged": []}
    for fact in here.old:
        changed = now.get((fact.person, fact.attribute))
        wording = world.ATTRIBUTES[fact.attribute].statements[0]
        relation = wording.removeprefix("{person} ").removesuffix(" {value}.")
        rows["changed" if changed else "unchanged"].append([fact.person, relation, (changed or fact).value])
    folder.mkdir(parents=True, exist_ok=True)
    for split, mine in rows.items():
        with (folder / f"demo_{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["subject", "relation", "object"], *mine])


# --- the paper's scale ----------------------------------------------------------------------------------------------


def check(names: Sequence[str], brought: Brought) -> None:
    """Refuse what could not be run to its end: what is missing is told, and what it has to be."""
    faults = list(dict.fromkeys(fault for name in names if TABLES[name].asks for fault in _lacking(name, brought)))
    if brought.data_root is not None:
        faults += _missing("--data-root", brought.data_root, "a folder with copies of MMLU, BBH, GSM8K and PIQA")
    if faults:
        what = "the paper's scale (its corpora and questions were not released: bring your own)"
        raise OptionError(what, faults)


def paper(name: str, brought: Brought) -> Materials:
    """What was brought along."""
    suite, source = _asked(name, brought)
    return Materials([], [Asked(suite, source)], Options(data_root=brought.data_root))


def _lacking(name: str, brought: Brought) -> Iterator[str]:
    recipe = load_recipe(HERE / name / "paper.yaml", brought.overrides)
    for pool in POOLS:
        for fault in absent(source.path for source in getattr(recipe.data, pool)):
            yield f"data.{pool}: {fault}. {_TEXTS[pool]}. Name it: data.{pool}=…"
    suite, source = _asked(name, brought)
    if source is not None:
        option, expected = _FILES[suite]
        yield from _missing(option, source, expected)


_TEXTS = {
    "old": "It is what the base knows: the paper has 31,729 Wikipedia articles, or 22,055 files of code",
    "new": "It is what is to be learned: the paper has 31,729 articles' changed sentences, or 70,643 files of code",
}
_FILES = {
    "qa": ("--questions", "JSONL with question, choices, answer and split; the paper has 500 of old and 500 of new"),
    "temporalwiki": ("--probes", "TemporalWiki's …_changed.csv and …_unchanged.csv, or a folder of both"),
}


def _asked(name: str, brought: Brought) -> tuple[str, str | None]:
    """A table's suite, and its file."""
    table = TABLES[name]
    return {
        "benchmarks": ("broad", None),
        "probes": ("temporalwiki", brought.probes or "probes"),
        "questions": ("qa", brought.questions or f"{table.corpus}_questions.jsonl"),
    }[table.asks]


def _missing(option: str, path: str, expected: str) -> list[str]:
    return [] if Path(path).exists() else [f"{option} = {path}: no such file or folder: expected {expected}"]
