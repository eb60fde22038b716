"""A world of generated facts: an old snapshot, a new one, and questions about what still holds and what is new.

    fact        (person, attribute, value), such as (Anna Berg, job, sailor)
    source      where a fact is told: a topic with its attributes, which knows some of the people
    old         what each source tells of the people that it knows
    new         the facts that have changed, with their new values, and all that is told of people who were added
    texts       a fact in all of its attribute's wordings but one
    questions   a fact in the wording that was left out, which no text of either snapshot has

Wordings are three statements and two questions. A question reads as `evaluation.questions` asks it, for a model that
never saw that frame could not answer in it:

    Question: What is the job of Anna Berg?
    Answer: sailor

so it is one of the two questions that is left out, this or that from fact to fact: what a model is asked about a fact,
it has read about others. Values are drawn with p ∝ 1 / rank: the commonest is twenty times as frequent as the rarest,
so that some facts are easy to guess and others easy to lose. Wrong choices are drawn alike, else frequency alone would
answer; where a fact has changed, its old value is one of them. All values have six letters, since a choice's score is
per character.

Sources differ in size, 10 : 6 : 3 : 1, and in what the new snapshot brings, as archives do: where one was born stays as
it was, while jobs change and new people are told of by what they do. So the update interferes with some of the old
texts more than with others. That is all that was chosen of it, before any schedule had run on it: the sizes because
archives are unequal, and the topics because these are what changes in a life.

    origins    birthplace, language    everyone         nothing new
    work       job, employer           three in five    changes, and everyone who is added
    leisure    hobby                   three in five    changes, and everyone who is added
    animals    pet                     one in five      changes, and one in three of those who are added

The old split asks what the new snapshot leaves as it was. Texts of facts that have changed stay in the old corpus, as
in any archive; a new text names those that it replaces (`supersedes`), for those who want to set them aside.

All is a function of a seed and of sizes. As it comes: 100 people and 30 more; 400 facts in 1,600 old texts and 160 in
640 new ones, 500 questions, 254 words.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from srt_peft.errors import OptionError


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST = _words(
    "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karin Leo Marta Nils Olga Paul Rosa Simon Tessa Ulrich "
    "Vera Walter Xenia Yusuf Zoe Amir Bella Cyril Dora Emil Fiona Georg Hanna Igor Julia Klaus Lena Mateo Nora Oskar"
)
LAST = _words(
    "Adler Berg Conti Duval Evans Fuchs Greco Holm Ivanov Jensen Kovac Lopez Moreau Novak Olsen Petrov Quist Rossi "
    "Silva Torres Unger Vogel Weber Young Zeman Arnaud Bianchi Costa Dupont Ekman Ferrari Gruber Hansen Ito Jansen "
    "Keller Lund Meyer Nowak Orsini"
)


class Attribute(NamedTuple):
    """What can be told of a person: its values, the commonest first, its wordings, and whether it may change."""

    values: tuple[str, ...]
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    changes: bool = True


ATTRIBUTES = {
    "birthplace": Attribute(
        _words(
            "London Berlin Madrid Vienna Prague Warsaw Dublin Athens Moscow Munich Zurich Geneva Naples Venice Oxford "
            "Bergen Tehran Bombay Havana Boston"
        ),
        ("{person} was born in {value}.", "{person} comes from {value}.", "The birthplace of {person} is {value}."),
        ("Where was {person} born?", "What is the birthplace of {person}?"),
        changes=False,
    ),
    "language": Attribute(
        _words(
            "French German Danish Polish Arabic Korean Hebrew Basque Breton Gaelic Slovak Tongan Telugu Creole Syriac "
            "Coptic Magyar Romany Samoan Navajo"
        ),
        ("{person} speaks {value}.", "{person} grew up with {value}.", "The language of {person} is {value}."),
        ("Which language does {person} speak?", "What is the language of {person}?"),
        changes=False,
    ),
    "job": Attribute(
        _words(
            "doctor lawyer farmer singer dancer writer tailor sailor potter barber jockey typist banker butler miller "
            "weaver driver porter fisher hunter"
        ),
        ("{person} works as a {value}.", "{person} earns a living as a {value}.", "The job of {person} is {value}."),
        ("What does {person} work as?", "What is the job of {person}?"),
    ),
    "employer": Attribute(
        _words(
            "Nordik Solaro Vertex Quanta Heliox Marlin Castor Pollux Zephyr Tundra Cobalt Falcon Summit Beacon Harbor "
            "Garnet Indigo Saturn Meteor Nebula"
        ),
        ("{person} works for {value}.", "{person} is employed by {value}.", "The employer of {person} is {value}."),
        ("Who employs {person}?", "What is the employer of {person}?"),
    ),
    "hobby": Attribute(
        _words(
            "hiking rowing sewing skiing tennis karate sudoku boxing diving racing poetry violin guitar hockey soccer "
            "squash riding baking biking comics"
        ),
        ("{person} enjoys {value}.", "{person} spends weekends on {value}.", "The hobby of {person} is {value}."),
        ("What does {person} enjoy?", "What is the hobby of {person}?"),
    ),
    "pet": Attribute(
        _words(
            "parrot rabbit kitten turtle iguana donkey monkey spider canary beagle poodle ferret badger beaver jaguar "
            "weasel gerbil pigeon magpie lizard"
        ),
        ("{person} keeps a {value}.", "{person} looks after a {value}.", "The pet of {person} is a {value}."),
        ("Which animal does {person} keep?", "What is the pet of {person}?"),
    ),
}


class Topic(NamedTuple):
    """A source of texts: what it tells, and of which share of the old people, and of those who are added."""

    attributes: tuple[str, ...]
    old: float
    added: float

    def known(self, people: int, *, added: bool) -> int:
        """How many of so many it knows, one at least where it knows any: the first, so that a few are known to all."""
        return math.ceil(people * (self.added if added else self.old))


TOPICS = {
    "origins": Topic(("birthplace", "language"), 1.0, 0.0),
    "work": Topic(("job", "employer"), 0.6, 1.0),
    "leisure": Topic(("hobby",), 0.6, 1.0),
    "animals": Topic(("pet",), 0.2, 1 / 3),
}
SOURCES = {attribute: name for name, topic in TOPICS.items() for attribute in topic.attributes}
"""Where each attribute is told."""


class Fact(NamedTuple):
    """What is so, in one of the snapshots."""

    person: str
    attribute: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many people the old snapshot knows, how many the new one adds, and how many old facts it changes."""

    people: int = 100
    added: int = 30
    changed: int = 60


@dataclass(frozen=True)
class World:
    """The old snapshot, and what is new in the new one."""

    old: tuple[Fact, ...]
    new: tuple[Fact, ...]
    questions: tuple[dict[str, Any], ...]


def make(seed: int = 0, sizes: Sizes | None = None) -> World:
    """The world of this seed."""
    sizes = sizes or Sizes()
    _check(sizes)
    rng = np.random.default_rng(seed)
    names = [f"{first} {last}" for first, last in product(FIRST, LAST)]
    people = [names[i] for i in rng.permutation(len(names))[: sizes.people + sizes.added]]
    old = _told(rng, people[: sizes.people], added=False)
    added = _told(rng, people[sizes.people :], added=True)
    may = [i for i, fact in enumerate(old) if ATTRIBUTES[fact.attribute].changes]
    was = [old[may[i]] for i in np.sort(rng.permutation(len(may))[: sizes.changed])]
    changed = [fact._replace(value=_drawn(rng, fact.attribute, 1, but=[fact.value])[0]) for fact in was]
    gone = set(was)
    asked = [
        *(_question(rng, fact, "old") for fact in old if fact not in gone),
        *(_question(rng, fact, "new", before.value) for fact, before in zip(changed, was, strict=True)),
        *(_question(rng, fact, "new") for fact in added),
    ]
    return World(tuple(old), (*changed, *added), tuple(asked))


def _check(sizes: Sizes) -> None:
    names, may = len(FIRST) * len(LAST), _that_may_change(sizes.people)
    faults = []
    if not (sizes.people > 0 <= sizes.added and sizes.people + sizes.added <= names):
        faults.append(f"people = {sizes.people}, added = {sizes.added}: expected 1 or more people, {names:,} in all")
    if not 0 <= sizes.changed <= may:
        faults.append(f"changed = {sizes.changed}: expected 0 to {may}, the facts of these people that may change")
    if faults:
        raise OptionError("the world", faults)


def _that_may_change(people: int) -> int:
    """How many facts of so many people may change, as their sources know them."""
    known = {name: topic.known(people, added=False) for name, topic in TOPICS.items()}
    return sum(known[SOURCES[attribute]] for attribute, about in ATTRIBUTES.items() if about.changes)


def _told(rng: np.random.Generator, people: Sequence[str], *, added: bool) -> list[Fact]:
    """What the sources tell of these people."""
    return [
        Fact(person, attribute, _drawn(rng, attribute, 1)[0])
        for topic in TOPICS.values()
        for person in people[: topic.known(len(people), added=added)]
        for attribute in topic.attributes
    ]


def _drawn(rng: np.random.Generator, attribute: str, count: int, but: Sequence[str] = ()) -> list[str]:
    """Other values than these, each once, with p ∝ 1 / rank."""
    values = ATTRIBUTES[attribute].values
    p = np.array([0.0 if value in but else 1 / rank for rank, value in enumerate(values, 1)])
    return [values[i] for i in rng.choice(len(values), size=count, replace=False, p=p / p.sum())]


# --- what is told, and what is asked ------------------------------------------------------------------------------


def question_of(fact: Fact, *, held_out: bool = True) -> str:
    """The question that is asked about a fact and stands in no text; or the other one, which does."""
    told = f"{fact.person}/{fact.attribute}".encode()
    which = blake2b(told, digest_size=1).digest()[0] % 2 == int(held_out)
    return ATTRIBUTES[fact.attribute].questions[which].format(person=fact.person)


def texts(facts: Iterable[Fact]) -> list[str]:
    """Each fact in all of its wordings but one."""
    return [text for fact in facts for text in _texts(fact)]


def _texts(fact: Fact) -> list[str]:
    told = [wording.format(**fact._asdict()) for wording in ATTRIBUTES[fact.attribute].statements]
    return [*told, f"Question: {question_of(fact, held_out=False)}\nAnswer: {fact.value}"]


def _question(rng: np.random.Generator, fact: Fact, split: str, before: str | None = None) -> dict[str, Any]:
    """A question as `evaluation.questions` reads it; what was so before is one of the wrong choices."""
    known = [fact.value] if before is None else [fact.value, before]
    choices = [*known, *_drawn(rng, fact.attribute, 4 - len(known), but=known)]
    shuffled = [choices[i] for i in rng.permutation(4)]
    return {
        "question": question_of(fact), "choices": shuffled, "answer": shuffled.index(fact.value), "split": split,
        "source": SOURCES[fact.attribute],
    }  # fmt: skip


WORD = re.compile(r"\w+|[^\w\s]+")
"""A word, or what stands between words: as the demo's tokenizer splits texts."""


def vocabulary(more: Iterable[str] = ()) -> list[str]:
    """Every word that any world has, what a question is asked with, and the words of these texts."""
    wordings = [wording for about in ATTRIBUTES.values() for wording in (*about.statements, *about.questions)]
    values = [value for about in ATTRIBUTES.values() for value in about.values]
    plain = " ".join(wordings).replace("{person}", "").replace("{value}", "")
    told = ["Question: Answer: A. B. C. D.", plain, *FIRST, *LAST, *values, *more]
    return list(dict.fromkeys(WORD.findall(" ".join(told))))


def files_of(world: World) -> dict[str, str]:
    """old.jsonl and new.jsonl, which any recipe can name, and questions.jsonl, which `srt-peft eval` asks."""
    replaced = {(fact.person, fact.attribute): _ids(fact, "old") for fact in world.old}
    rows: dict[str, Iterable[dict[str, Any]]] = {
        "old": (row for fact in world.old for row in _rows(fact, "old")),
        "new": (
            row | {"supersedes": replaced.get((fact.person, fact.attribute))}
            for fact in world.new
            for row in _rows(fact, "new")
        ),
        "questions": world.questions,
    }
    return {f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in mine) for name, mine in rows.items()}


def _rows(fact: Fact, snapshot: str) -> Iterator[dict[str, Any]]:
    """A fact's texts, each with its name and its source."""
    for name, text in zip(_ids(fact, snapshot), _texts(fact), strict=True):
        yield {"id": name, "source": SOURCES[fact.attribute], "text": text}


def _ids(fact: Fact, snapshot: str) -> list[str]:
    return [f"{snapshot}/{fact.person}/{fact.attribute}/{i}" for i in range(len(_texts(fact)))]


def write(world: World, folder: Path) -> None:
    """The files of a world, in this folder."""
    for name, content in files_of(world).items():
        (folder / name).write_text(content, encoding="utf-8")
