"""The suites: what a model is asked, and which figures come of it.

    qa=FILE             multiple-choice questions (JSONL), by letter and by text                     accuracy
    qa-text=FILE        the same by text alone, for a base that has never learned what letters stand for
    temporalwiki=FILE   probes of changed and unchanged facts (CSV, or a folder of them)             perplexity
    perplexity          the run's own held-out text; perplexity=RECIPE names another recipe's        perplexity
    broad               MMLU, BBH, GSM8K and PIQA through EleutherAI's harness                       accuracy
    tasks=A,B           any task, group or task folder of the harness                                accuracy

An answer is written down when it is given: asked again, an evaluation goes on, and one that is done costs nothing.
"""
# ruff: noqa: PLC0415 - torch, transformers and the harness take seconds to import

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.evaluation.records import Record, Records
from srt_peft.evaluation.targets import Target, load
from srt_peft.training.keys import Recipe

if TYPE_CHECKING:
    from srt_peft.training.run import Setup

BUDGET = 16_384


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be said of an evaluation beyond its suites."""

    precision: str | None = None
    limit: int | None = None
    data_root: str | None = None
    num_fewshot: int | None = None
    budget: int = BUDGET


@dataclass
class Model:
    """A target, loaded when it is first asked something."""

    target: Target
    precision: str

    @cached_property
    def loaded(self) -> tuple[Any, Any]:
        """The model and its tokenizer."""
        return load(self.target, self.precision)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What its answers depend on: its weights, and the precision that they are held in."""
        return {**self.target.fingerprint(), "precision": self.precision}


Baselines = dict[str, dict[str, float]]
"""The mean of each way to score without knowing, in each split."""


class View(NamedTuple):
    """Records of one suite that are averaged together, in which metric, and what scores without knowing."""

    title: str
    metric: str
    records: list[Record]
    baselines: Baselines


Scores = Callable[[Any, Any, Records], Iterator[Record]]
"""From a model, its tokenizer and the records that are there to those that are not."""


class Prepared(NamedTuple):
    """A suite that is ready to be asked: what its records depend on, how they come, and what is made of them."""

    settings: dict[str, Any]
    scores: Scores
    views: Callable[[list[Record]], list[View]]


class Suite(NamedTuple):
    """One suite: what `NAME=…` names (nothing where it is None), and whether it must."""

    names: str | None
    must: bool
    prepare: Callable[[str | None, Target, Options], Prepared]


# --- the suites ---------------------------------------------------------------------------------------------------


def _qa(source: str | None, _target: Target, options: Options, by: Sequence[str] = ("letter", "text")) -> Prepared:
    from srt_peft.evaluation import qa
    from srt_peft.evaluation.questions import TRIVIAL, load_questions, trivial

    questions = load_questions(str(source))

    def scores(model: Any, tokenizer: Any, there: Records) -> Iterator[Record]:
        modes = [*by, *(f"{mode}-blind" for mode in by)]
        return qa.score(model, tokenizer, questions, modes=modes, budget=options.budget, done=there.known)

    def views(records: list[Record]) -> list[View]:
        without = _means([*records, *trivial(questions)], {"letter-blind", "text-blind", *TRIVIAL})
        modes = {mode: [record for record in records if record["mode"] == mode] for mode in by}
        return [View(f"qa, by {mode}", "accuracy", mine, without) for mode, mine in modes.items()]

    return Prepared({"questions": _content(Path(str(source)))}, scores, views)


def _means(records: Sequence[Record], modes: Collection[str]) -> Baselines:
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record["mode"] in modes:
            name = record["mode"].replace("-blind", ", question left out")
            found.setdefault(name, {}).setdefault(record["split"], []).append(record["value"])
    return {name: {split: fmean(values) for split, values in by.items()} for name, by in found.items()}


def _temporalwiki(source: str | None, _target: Target, options: Options) -> Prepared:
    from srt_peft.evaluation import probes

    found = probes.load_probes(str(source))

    def scores(model: Any, tokenizer: Any, there: Records) -> Iterator[Record]:
        return probes.score(model, tokenizer, found, budget=options.budget, done=there.known)

    def views(records: list[Record]) -> list[View]:
        return [
            View("temporalwiki, the mean of the objects' perplexities", "perplexity", records, {}),
            View("temporalwiki, the perplexity of the objects' mean NLL", "nll", records, {}),
        ]

    return Prepared({"probes": hashlib.sha256("".join(p.key for p in found).encode()).hexdigest()}, scores, views)


def _perplexity(source: str | None, target: Target, options: Options) -> Prepared:
    from srt_peft.evaluation import perplexity
    from srt_peft.training.base import load_tokenizer
    from srt_peft.training.recipe import load_recipe
    from srt_peft.training.texts import corpora

    recipe: Recipe | None = load_recipe(source) if source else target.recipe
    if recipe is None:
        fault = f"perplexity: {target.label} is no run's, so there is no held-out text: expected perplexity=RECIPE.yaml"
        raise OptionError("the suites", [fault])
    _, pools = corpora(recipe, load_tokenizer(target.base, target.revision))
    if not pools:
        fault = "perplexity: nothing was held out (data.holdout is 0, or there are too few texts): expected some"
        raise OptionError("the suites", [fault])

    def scores(model: Any, tokenizer: Any, there: Records) -> Iterator[Record]:
        return perplexity.score(model, tokenizer, pools, budget=options.budget, done=there.known)

    settings = {"pools": {name: pool.fingerprint for name, pool in pools.items()}}
    return Prepared(settings, scores, lambda records: [View("perplexity of held-out text", "nll", records, {})])


def _harness(name: str, tasks: Sequence[str] | None, options: Options) -> Prepared:
    from srt_peft.evaluation import broad
    from srt_peft.evaluation.broad_tasks import BROAD

    asked = tuple(BROAD if tasks is None else tasks)
    local = None if options.data_root is None else str(Path(options.data_root).resolve())

    def scores(model: Any, tokenizer: Any, there: Records) -> Iterator[Record]:
        return broad.score(
            model,
            tokenizer,
            answers=there.path.with_suffix(".answers.jsonl"),
            tasks=asked,
            limit=options.limit,
            num_fewshot=options.num_fewshot,
            data_root=local,
            budget=options.budget,
            done=there.known,
        )

    settings = {"tasks": asked, "limit": options.limit, "num_fewshot": options.num_fewshot, "data_root": local}
    return Prepared(settings, scores, lambda records: [View(name, "accuracy", records, {})])


def _broad(_source: str | None, _target: Target, options: Options) -> Prepared:
    return _harness("broad", None, options)


def _tasks(source: str | None, _target: Target, options: Options) -> Prepared:
    return _harness("tasks", [name.strip() for name in str(source).split(",") if name.strip()], options)


SUITES: Mapping[str, Suite] = {
    "qa": Suite("a JSONL file of questions", must=True, prepare=_qa),
    "qa-text": Suite("a JSONL file of questions", must=True, prepare=partial(_qa, by=("text",))),
    "temporalwiki": Suite("a CSV file of probes, or a folder of them", must=True, prepare=_temporalwiki),
    "perplexity": Suite("a recipe", must=False, prepare=_perplexity),
    "broad": Suite(None, must=False, prepare=_broad),
    "tasks": Suite("tasks of the harness, with commas", must=True, prepare=_tasks),
}

ACCURACY = {"qa", "qa-text", "broad", "tasks"}
"""The suites that count right answers."""


class Asked(NamedTuple):
    """A suite as a person has asked for it."""

    name: str
    source: str | None


def parse(words: Sequence[str]) -> list[Asked]:
    """`NAME` or `NAME=SOURCE`, each; all faults are told at once."""
    asked, faults = [], []
    for word in words:
        name, equals, source = word.partition("=")
        suite = SUITES.get(name)
        if suite is None:
            faults.append(f"{word!r}: {name!r} is no suite{did_you_mean(name, SUITES)}; known are {', '.join(SUITES)}")
        elif suite.must and not source:
            faults.append(f"{word!r}: expected {name}=…, {suite.names}")
        elif equals and suite.names is None:
            faults.append(f"{word!r}: expected {name} alone, which names nothing")
        else:
            asked.append(Asked(name, source or None))
    if faults:
        raise OptionError("the suites", faults)
    return asked


def check(asked: Sequence[Asked]) -> None:
    """Refuse, before hours of training, files of questions or probes that could not be asked after them."""
    from srt_peft.evaluation.probes import load_probes
    from srt_peft.evaluation.questions import load_questions

    readers: dict[str, Callable[[str], Any]] = {
        "qa": load_questions, "qa-text": load_questions, "temporalwiki": load_probes,
    }  # fmt: skip
    refused = []
    for each in asked:
        if each.name in readers:
            try:
                readers[each.name](str(each.source))
            except OptionError as error:
                refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise OptionError("the suites", [str(error).replace("\n", "\n  ") for error in refused])


# --- asking -------------------------------------------------------------------------------------------------------


def ask(model: Model, asked: Sequence[Asked], options: Options, folder: Path) -> list[View]:
    """What the model scores in each suite; what it was asked before, in this folder, it is not asked again."""
    found: list[tuple[Asked, View]] = []
    for each in asked:
        prepared = SUITES[each.name].prepare(each.source, model.target, options)
        records = Records(folder, each.name, model.identity, prepared.settings)
        if not records.done:
            for _ in records.add(prepared.scores(*model.loaded, records)):
                pass
            records.close()
        found += [(each, view) for view in prepared.views(list(records.known.values()))]
    titles = Counter(view.title for _, view in found)
    return [
        view._replace(title=f"{view.title} ({'/'.join(Path(each.source).parts[-2:])})")
        if titles[view.title] > 1 and each.source
        else view
        for each, view in found
    ]


def in_training(asked: Sequence[Asked], setup: Setup, step: int) -> dict[str, float]:
    """What a run's model scores after so many steps: the mean of each view and split."""
    from srt_peft.training.model import evaluating

    recipe = setup.recipe
    target = Target(recipe.output, recipe.model.base, recipe.model.revision, None, None, recipe)
    model = Model(target, recipe.model.dtype)
    model.loaded = setup.model, setup.tokenizer
    model.identity = {"run": setup.identity, "recipe": recipe.as_dict(), "step": step}
    means: dict[str, float] = {}
    with evaluating(setup.model), setup.autocast():
        for view in ask(model, asked, Options(), setup.folder / "evaluation" / f"during-{step:08d}"):
            for split in dict.fromkeys(record["split"] for record in view.records):
                mine = [record for record in view.records if record["split"] == split]
                weight = sum(record["weight"] for record in mine)
                means[f"{view.title}, {split}"] = sum(r["value"] * r["weight"] for r in mine) / weight
    return means


def _content(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
