"""The recipe: one YAML file that says all there is to say about a run, typed, checked, and told at once.

    recipe = load_recipe("weekly.yaml", ["training.steps=50", "model.base=models/mine"])
    s = make_scheduler(recipe.review.scheduler, old=…, new=…, batch_size=…, seed=…, **recipe.scheduler_options())

Its keys, with their defaults and rules, stand in `srt_peft.training.keys`; here a recipe is loaded, with its overrides,
checked as a whole, written, and compared with the one that a checkpoint was made with (`changed`).

Paths are relative to the current directory, as on any command line, and not to the recipe's folder: a recipe that
is copied elsewhere still means the same files. Numbers that YAML 1.1 takes for text (`1e-4`) are read as numbers
wherever a number is expected, and a date is the text that was written.
"""

from __future__ import annotations

import copy
import json
import math
import os
import reprlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from srt_peft.errors import OptionError
from srt_peft.review.kinds import SCHEDULERS
from srt_peft.review.options import Options, faults
from srt_peft.training import preset
from srt_peft.training.keys import _FREE, Model, NewReview, OldReview, Recipe, _keys, _plain, _read, _value
from srt_peft.training.schedule import learning_rate_factor, steps_of, warmup_note

__all__ = ["Recipe", "changed", "dump", "learning_rate_factor", "load_recipe", "steps_of", "warmup_note"]

# --- reading ------------------------------------------------------------------------------------------------------


def load_recipe(recipe: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a YAML file or a mapping, with `key.sub=value` overrides, the last of which win.

    All faults are told at once, in one OptionError with a line each.
    """
    told: list[str] = []
    if isinstance(recipe, Mapping):
        what, given = "the recipe", copy.deepcopy(dict(recipe))
    else:
        what = f"the recipe {os.fspath(recipe)}"
        given = _mapping(_yaml(_contents(Path(recipe), what), what, told), what)
    for override in overrides:
        _override(given, override, told)
    _spread_order(given, told)
    _keep_shape(given)
    made = _read(Recipe, given, "", told)
    if not told:
        told = _clashes(made)
    if told:
        raise OptionError(what, told)
    assert isinstance(made, Recipe)
    return made


def _contents(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        fault = f"not UTF-8 text (byte {error.start}): expected a YAML file, saved as UTF-8"
    except OSError as error:
        fault = f"{error.strerror}: expected a YAML file; `srt-peft recipes list` names some to start from"
    raise OptionError(what, [fault])


def _yaml(text: str, what: str, told: list[str]) -> Any:
    """The text's values, by way of its nodes, which know their lines."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        told.extend(_tidy(node, set()))
        return None if node is None else yaml.SafeLoader("").construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        fault = f"{line}no YAML: {error.problem or error.context}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        fault = f"no YAML: {' '.join(str(error).split())}"
    raise OptionError(what, [fault])


def _tidy(node: Any, seen: set[int]) -> Iterator[str]:
    """Make dates the text that was written, and tell of each key that is there twice, which YAML would lose."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith((":timestamp", ":value")):
        node.tag = "tag:yaml.org,2002:str"
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _tidy(child, seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line, name = key.start_mark.line + 1, getattr(key, "value", None)
            if isinstance(name, str) and name in first:
                yield f"line {line}: the key {name!r} is there twice, first in line {first[name]}: keep one of them"
            elif isinstance(name, str):
                first[name] = line
            yield from _tidy(key, seen)
            yield from _tidy(value, seen)


def _mapping(values: Any, what: str) -> dict[str, Any]:
    if isinstance(values, dict):
        return values
    held = "nothing" if values is None else reprlib.repr(values)
    raise OptionError(what, [f"it holds {held}: expected sections, such as {', '.join(_keys(Recipe))}"])


def _override(given: dict[str, Any], override: str, told: list[str]) -> None:
    """Set `key.sub=value`, the value read as YAML."""
    dotted, equals, text = override.partition("=")
    *path, last = dotted.strip().split(".")
    if not equals or not all((*path, last)):
        told.append(f"{override!r}: expected an override, key.sub=value, such as training.steps=50")
        return
    try:
        value = _yaml(text, override, told)
    except OptionError as error:
        told.extend(f"{override!r}: {fault}" for fault in error.faults)
        return
    section = given
    for depth, name in enumerate(path, 1):
        if section.get(name) is None:
            section[name] = {}
        if not isinstance(section[name], dict):
            told.append(f"{override!r}: {'.'.join(path[:depth])} is {section[name]!r} here, and has no keys")
            return
        section = section[name]
    section[last] = value


def _spread_order(given: dict[str, Any], told: list[str]) -> None:
    """`review.order`, which stands for both pools, as the order of each."""
    review = given.get("review")
    if not isinstance(review, Mapping) or "order" not in review:
        return
    given["review"] = review = dict(review)
    count = len(told)
    order = _value(_keys(NewReview)["order"], review.pop("order"), "review.order", told)
    for pool in ("old", "new") if len(told) == count else ():
        own = review.get(pool)
        if own is None or isinstance(own, Mapping):
            review[pool] = own = {**(own or {}), "order": (own or {}).get("order") or order}
            if own.get("order") not in (None, order):
                told.append(f"review.order = {order!r} and review.{pool}.order = {own['order']!r}: keep one of the two")


_SHAPE = {"r": "r", "alpha": "lora_alpha", "use_dora": "use_dora", "use_rslora": "use_rslora"}
"""What an adapter that is continued keeps: the recipe's names, and those of PEFT."""


def _keep_shape(given: dict[str, Any]) -> None:
    """Where an adapter is continued and the recipe does not name its shape, that is the adapter's own."""
    model = given.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("adapter"), str) or model.get("stack"):
        return
    try:
        config = json.loads((Path(model["adapter"]) / "adapter_config.json").read_text(encoding="utf-8"))
        own = {key: config[theirs] for key, theirs in _SHAPE.items() if theirs in config}
    except (OSError, ValueError, TypeError):  # not here, or damaged: told when it is loaded
        return
    lora = model.get("lora")
    if lora is None or isinstance(lora, Mapping):
        given["model"] = {**model, "lora": {**own, **(lora or {})}}


def _clashes(recipe: Recipe) -> list[str]:
    """A line for each pair of settings, each right by itself, that cannot go together."""
    model, data, review, training = recipe.model, recipe.data, recipe.review, recipe.training
    told = _of_options(recipe)
    orders = SCHEDULERS[review.scheduler].agendas
    told.extend(
        f"review.{pool}.order = {order!r}: the scheduler {review.scheduler!r} knows {' and '.join(map(repr, orders))}"
        for pool, order in (("old", review.old.order), ("new", review.new.order))
        if order is not None and order not in orders
    )
    for key, value in (("decks", review.decks), ("old.quiz", review.old.quiz)):
        if value not in (None, 0, "off") and key.rpartition(".")[2] not in SCHEDULERS[review.scheduler].extras:
            told.append(f"review.{key} = {value!r}: the scheduler {review.scheduler!r} knows none, expected null")
    if (review.scheduler == "match") != (review.counts is not None):
        told.append(
            f"review.counts = {review.counts!r} with review.scheduler = {review.scheduler!r}: expected the path of a "
            "review log for 'match', which draws as many old and new as that log has, and null for any other"
        )
    named = [{source.source for source in pool} - {None} for pool in (data.old, data.new)]
    if data.clusters is not None and (data.source_column or max(map(len, named)) > 1):
        told.append(
            f"data.clusters = {data.clusters} with "
            + (f"data.source_column = {data.source_column!r}" if data.source_column else "several named sources")
            + ": expected null, since clusters stand for sources where none are told apart"
        )
    if training.micro_batch_tokens < data.max_length:
        told.append(
            f"training.micro_batch_tokens = {training.micro_batch_tokens} is less than data.max_length = "
            f"{data.max_length}: expected room for at least one example"
        )
    if training.steps == "one_pass" and review.old_fraction == 1:
        told.append("training.steps = 'one_pass' with review.old_fraction = 1 never ends: expected a number of steps")
    if recipe.evaluation.suites and recipe.evaluation.every is None:
        told.append("evaluation.suites without evaluation.every: expected how many steps lie between two evaluations")
    return [*told, *_of_model(model)]


def _of_model(model: Model) -> Iterator[str]:
    if model.stack and model.adapter is None:
        yield "model.stack = true without model.adapter: expected the adapter that a new one is put upon"
    if model.tuning == "full" and model.adapter is not None:
        yield f"model.adapter = {model.adapter!r}: expected null with tuning = 'full', which trains no adapter"


def _of_options(recipe: Recipe) -> list[str]:
    """What the scheduler would refuse, of what is set and of what the preset makes of the rest."""
    review = recipe.review
    if review.recall is None and review.preset != "paper":  # what these are of is for recall to say
        told = [
            f"review.{name} = {value!r} with review.recall = null, which review.preset = {review.preset!r} decides: "
            f"{why}, or leave review.{name} out"
            for name, why in _OF_RECALL.items()
            if (value := getattr(review, name)) != getattr(Options, name)
        ]
        if told:
            return told
    resolved = (preset.resolve(recipe, sources).scheduler_options() for sources in (1, 2))
    lines = dict.fromkeys(
        line for options in resolved for line in faults(batch_size=recipe.training.batch_size, **options)
    )
    old = _keys(OldReview)
    return [f"review.{'old.' if line.split()[0] in old else ''}{line}" for line in lines]


_OF_RECALL = {
    "thresholds": "say what they are of with review.recall: absolute (perplexity) or relative (nats that were lost)",
    "alpha": "it scales thresholds of perplexity, so set review.recall: absolute as well",
}


# --- writing and comparing ----------------------------------------------------------------------------------------


def dump(recipe: Recipe) -> str:
    """The recipe as YAML, every key explicit; `load_recipe` makes an equal recipe of it."""
    return _written(recipe.as_dict(), width=120)


def _written(value: Any, **style: Any) -> str:
    """A value in YAML, as it can be read again: PyYAML loses a U+0085 unless it is escaped."""
    readable = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, **style)
    return str(readable if yaml.safe_load(readable) == value else yaml.safe_dump(value, sort_keys=False, **style))


def changed(saved: Recipe, asked: Recipe, where: str = "in the checkpoint") -> list[str]:
    """A line for each setting without which the run would not be the one that was saved, with both values.

    The keys that have a `free` reason are left out: for them the recipe that is asked for wins.
    """
    told = []
    for dotted, reason in _FREE.items():
        here, there = (_at(recipe, dotted) for recipe in (asked, saved))
        if not reason and here != there:
            override = shlex.quote(f"{dotted}={_flow(there)}")
            told.append(f"{dotted} is {_flow(here)} here and {_flow(there)} {where} (its value: {override})")
    return told


def _at(recipe: Recipe, dotted: str) -> Any:
    value: Any = recipe
    for key in dotted.split("."):
        value = getattr(value, _keys(type(value))[key].name)
    return value


def _flow(value: Any) -> str:
    """A value in YAML, on one line, as an override takes it."""
    return _written(_plain(value), default_flow_style=True, width=math.inf).removesuffix("...\n").rstrip("\n")
