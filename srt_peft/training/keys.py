"""The keys of a recipe: each with its type, its default, its rule and what a resume does; and how they are read.

Each key stands once, in the dataclasses below, with its default, its rule, what is expected in words, and what a
resume does with it: a key with a `free` reason may be changed between a checkpoint and its resume, and the recipe
wins; every other key must be what it was. The paper's values are the defaults.
"""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.review.kinds import SCHEDULERS
from srt_peft.review.options import ORDERS, RULES, Options

DTYPES = ("bfloat16", "float32")  # float16 would need its loss scaled, which the loop does not do
ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
SCHEDULES = ("linear", "cosine", "constant")
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab")
LARGEST = 2**31 - 1

# --- the rules: what a value must be, and how it is kept ----------------------------------------------------------

Parse = Callable[[Any], Any]
"""Gives the value as it is kept, or raises: ValueError or TypeError, or OptionError with the faults of its parts."""


class Rule(NamedTuple):
    """How one key's value is read, and what it should be, in words."""

    parse: Parse
    expected: str


_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


def _number(value: Any) -> Any:
    """`1e-4`, which YAML 1.1 takes for text, as the number that was meant; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_number, value))
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()) or math.isinf(float(value)):
        return value
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _where(holds: Callable[[Any], bool], read: Parse = _number) -> Parse:
    def parse(value: Any) -> Any:
        kept = read(value)
        if not holds(kept):
            raise ValueError
        return kept

    return parse


def _or(special: str | None, parse: Parse) -> Parse:
    return lambda value: value if value == special else parse(value)


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _whole(low: int, high: int = LARGEST) -> Parse:
    return _where(lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high)


def _real(holds: Callable[[float], bool]) -> Parse:
    return _where(lambda v: _is_real(v) and holds(v))


def _texts(value: Any) -> tuple[str, ...]:
    """A list of texts; one text alone is a list of one."""
    return tuple(map(_text, value if isinstance(value, (list, tuple)) else [value]))


_text = _where(lambda v: isinstance(v, str) and bool(v.strip()), read=lambda v: v)
_place = _where(bool, read=lambda v: os.path.expanduser(_text(v)))  # noqa: PTH111 - a name on the hub is no path
_flag = _where(lambda v: isinstance(v, bool), read=lambda v: v)


def _key(parse: Parse, expected: str, default: Any = MISSING, *, free: str = "") -> Any:
    """One key of the recipe. `free` is the reason why a resume may change it."""
    rule = Rule(parse, expected)
    return field(default=default, metadata={"rule": rule, "free": free})


def _one_of(names: Iterable[str], default: str, *, free: str = "") -> Any:
    names = tuple(names)
    expected = "one of " + ", ".join(map(repr, names))
    return _key(_where(lambda v: isinstance(v, str) and v in names), expected, default, free=free)


def _option(name: str, default: Any = MISSING) -> Any:
    """A setting of the scheduler: its rule and its default stand in `srt_peft.review.options`, and only there."""
    return _key(_where(RULES[name][0]), RULES[name][1], getattr(Options, name) if default is MISSING else default)


def _preset(name: str) -> Any:
    """A setting that the preset decides, as `srt_peft.training.preset` says, where it is null."""
    rule = _where(RULES[name][0], read=lambda v: "off" if v is False else _number(v))  # which YAML 1.1 takes off for
    return _key(_or(None, rule), f"{RULES[name][1]}; or null, as the preset says", None)


def _order(names: str, holds: Iterable[str]) -> Any:
    known = tuple(holds)
    rule = _where(lambda v: isinstance(v, str) and v in known)
    return _key(_or(None, rule), f"{names}; or null, as the preset says", None)


# --- the keys -----------------------------------------------------------------------------------------------------

_NUMERICS = "it changes how the same numbers are computed, not which"
_FOLLOWING = "it is of the next update, and not of this one"
_REPORTING = "it says what is kept or told, and nothing of what is learned"


@dataclass(frozen=True, kw_only=True)
class Lora:
    """The adapter's shape; of no consequence with `tuning: full`."""

    r: int = _key(_whole(1), "the adapter's rank, a whole number, 1 or more", 16)
    alpha: float = _key(_real(lambda v: v > 0), "a number above 0; the update is scaled by alpha / r", 32)
    dropout: float = _key(_real(lambda v: 0 <= v < 1), "a number from 0 to below 1", 0.0)
    target_modules: str | tuple[str, ...] = _key(
        _or("all-linear", _texts), "'all-linear', or a list of module names", "all-linear"
    )
    use_dora: bool = _key(_flag, "true or false", default=False)
    use_rslora: bool = _key(_flag, "true or false", default=False)


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained, and how much of it."""

    base: str = _key(_place, "the base model: a folder, or a name on the hub")
    revision: str | None = _key(_or(None, _text), "the base's commit or tag (in quotes if all digits), or null", None)
    tuning: str = _one_of(("qlora", "lora", "full"), "qlora")
    adapter: str | None = _key(_or(None, _place), "an adapter to go on with: a folder, a hub name, or null", None)
    stack: bool = _key(_flag, "true to leave the adapter as it is and train a new one on top, or false", default=False)
    lora: Lora = field(default_factory=Lora)
    dtype: str = _one_of(DTYPES, "bfloat16")
    attention: str = _one_of(ATTENTION, "sdpa", free=_NUMERICS)
    gradient_checkpointing: bool = _key(_flag, "true or false", default=True, free=_NUMERICS)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One place that texts come from."""

    path: str = _key(_text, "a file, a folder or a dataset's name on the hub")
    source: str | None = _key(_or(None, _text), "what to call this source in reports, or null", None)
    limit: int | None = _key(
        _or(None, _whole(1)), "the most documents to take, a whole number, 1 or more, or null", None
    )


def _sources(value: Any) -> tuple[Source, ...]:
    """A path, or a list of paths and of {path, source, limit}; null is no source at all."""
    told: list[str] = []
    items = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    found = []
    for i, item in enumerate(items):
        if not isinstance(item, (str, Mapping, Source)):
            raise TypeError
        given = {"path": item} if isinstance(item, str) else _plain(item)
        found.append(_read(Source, given, f"[{i}]", told))
    if told:
        raise OptionError("the sources", told)
    return tuple(found)


_SOURCE = "a path, a hub name, or a list of {path: …, source: NAME, limit: null}"
_COMPARED = "texts may be moved; what is in them is compared"


@dataclass(frozen=True, kw_only=True)
class Data:
    """The texts. `old` and `new` are always tuples of `Source`; `old: null` is an update without replay."""

    old: tuple[Source, ...] = _key(_sources, f"what to retain: {_SOURCE}; null if there is nothing", free=_COMPARED)
    new: tuple[Source, ...] = _key(_where(bool, _sources), f"what to learn: {_SOURCE}", free=_COMPARED)
    text_column: str = _key(_text, "a column's name", "text")
    source_column: str | None = _key(
        _or(None, _text), "a column's name, '__file__' to make each file a source, or null", None
    )
    id_column: str = _key(_text, "a column's name; it is read where it is there", "id")
    date_column: str | None = _key(_or(None, _text), "a column's name, which is read where it is there, or null", None)
    format: str = _one_of(("text", "chat"), "text")
    max_length: int = _key(_whole(4), "the most tokens of an example, a whole number, 4 or more", 2048)
    packing: bool = _key(_flag, "true or false", default=True, free="draws and each example's NLL are the same")
    holdout: float = _key(_real(lambda v: 0 <= v < 1), "the share held out for evaluation, from 0 to below 1", 0.01)
    supersedes: str | None = _key(
        _or(None, _text), "a column of data.new, the path of a map with rows of {new: ID, old: IDS}, or null", None,
        free="a map may be moved; what it says is compared",
    )  # fmt: skip
    clusters: int | None = _key(
        _or(None, _whole(2, 1000)), "how many clusters stand for sources, a whole number from 2 to 1000, or null", None
    )


@dataclass(frozen=True, kw_only=True)
class OldReview:
    """How the old pool is drawn from, and whether it is asked before it is studied."""

    order: str | None = _order("'uniform', 'overdue', 'epoch' or 'rounds'", ORDERS[:4])
    quiz: int | None = _preset("quiz")
    quiz_every: int = _option("quiz_every")
    quiz_tokens: int | None = _option("quiz_tokens")
    explore: float = _option("explore")


@dataclass(frozen=True, kw_only=True)
class NewReview:
    """How the new pool is drawn from."""

    order: str | None = _order("'uniform', 'overdue', 'epoch', 'rounds' or 'intake'", ORDERS)


@dataclass(frozen=True, kw_only=True)
class Review:
    """The scheduler and its options; what is null is as the preset says. `order: NAME` sets that of both pools."""

    scheduler: str = _one_of(SCHEDULERS, "srt")
    preset: str = _one_of(("auto", "paper"), "auto", free="the options that it stands for are compared")
    retention: str = _one_of(("normal", "high"), "normal", free="the options that it stands for are compared")
    old_fraction: float = _option("old_fraction")
    stagger: int | None = _preset("stagger")
    initial_ease: float = _option("initial_ease")
    min_ease: float = _option("min_ease")
    recall: str | None = _preset("recall")
    reference: str | None = _preset("reference")
    reference_sample: int | None = _key(
        _or(None, _whole(1)),
        "how many examples of each deck the base scores, a whole number, 1 or more, or null for all of them", None,
    )  # fmt: skip
    thresholds: tuple[float, ...] | None = _option("thresholds")
    alpha: float = _option("alpha")
    max_interval: int | None = _option("max_interval")
    underfull: str | None = _preset("underfull")
    decks: str | None = _preset("decks")
    deck_floor: float = _option("deck_floor")
    counts: str | None = _key(
        _or(None, _text), "the path of a review log, whose counts 'match' draws, or null", None,
        free="a log may be moved; the counts in it are compared",
    )  # fmt: skip
    old: OldReview = field(default_factory=OldReview)
    new: NewReview = field(default_factory=NewReview)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The optimiser's settings. A step is a draw of `batch_size` examples, over all ranks and micro-batches."""

    steps: int | str = _key(_or("one_pass", _whole(1)), "a whole number, 1 or more, or 'one_pass'", "one_pass")
    batch_size: int = _option("batch_size", 512)
    micro_batch_tokens: int = _key(
        _whole(2), "the tokens of one forward pass, a whole number, 2 or more", 16384, free=_NUMERICS
    )
    learning_rate: float = _key(_real(lambda v: v > 0), "a number above 0", 1e-4)
    schedule: str = _one_of(SCHEDULES, "linear")
    warmup_steps: int = _key(_whole(0), "a whole number, 0 or more", 200)
    weight_decay: float = _key(_real(lambda v: v >= 0), "a number, 0 or more", 0.001)
    max_grad_norm: float = _key(_real(lambda v: v > 0), "a number above 0 (a large one clips nothing)", 1.0)
    seed: int = _key(_whole(0, 2**32 - 1), "a whole number from 0 to 2**32 - 1", 0)  # NumPy's global seed ends there


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """How often the run is saved, and how many of its checkpoints stay."""

    every: int = _key(_whole(1), "a whole number of steps, 1 or more", 50, free=_REPORTING)
    keep: int = _key(_whole(1), "how many checkpoints stay, a whole number, 1 or more", 3, free=_REPORTING)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How often the perplexity of the held-out texts is measured, and what else is asked then."""

    every: int | None = _key(_or(None, _whole(1)), "a whole number of steps, 1 or more, or null", None, free=_REPORTING)
    suites: tuple[str, ...] = _key(
        _texts, "a list of suites, as in `srt-peft eval --suite`: [qa=questions.jsonl]", (), free=_REPORTING
    )


@dataclass(frozen=True, kw_only=True)
class Next:
    """What `srt-peft next` makes of this update when the next one begins."""

    adapter: str = _one_of(("continue", "merge", "stack"), "continue", free=_FOLLOWING)
    keep: str | int = _key(
        _or("all", _or("unmastered", _whole(1))),
        "'all', 'unmastered', or how many old examples are kept, a whole number, 1 or more", "all", free=_FOLLOWING,
    )  # fmt: skip
    horizon: int | None = _key(
        _or(None, _whole(1)),
        "an interval in steps beyond which an example is mastered, a whole number, 1 or more, or null for an update's "
        "length", None, free=_FOLLOWING,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Where the metrics go besides metrics.jsonl. The key is `with`, which Python keeps for itself."""

    with_: tuple[str, ...] = _key(
        _where(lambda v: set(v) <= set(TRACKERS), _texts), f"a list of {', '.join(TRACKERS)}", (), free=_REPORTING
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run, as it was asked for: every key explicit, every value checked."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    review: Review = field(default_factory=Review)
    training: Training = field(default_factory=Training)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    evaluation: Evaluation = field(default_factory=Evaluation)
    tracking: Tracking = field(default_factory=Tracking)
    next: Next = field(default_factory=Next)
    output: str = _key(_place, "the run's folder", "runs/my-update", free="a folder may be moved")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and YAML; `load_recipe` makes an equal recipe of them."""
        made: dict[str, Any] = _plain(self)
        return made

    def scheduler_options(self) -> dict[str, Any]:
        """The options for `make_scheduler`, beside the name, the pools' sizes, `batch_size`, `seed` and `counts`.

        What is left to a preset that was not resolved (see `preset`) is left out, and so is the paper's.
        """
        review, ours = self.review, RULES.keys() - {"old", "new", "counts", "order"}
        given = {
            name: getattr(section, name)
            for section in (review, review.old)
            for name in _keys(type(section))
            if name in ours and (getattr(section, name) is not None or getattr(Options, name) is None)
        }
        old, new = (order or Options.order for order in (review.old.order, review.new.order))
        return {**given, "order": old if old == new else {"old": old, "new": new}}


# --- the keys as a table, and what is given, read through it ------------------------------------------------------


def _keys(section: type) -> dict[str, Any]:
    """A section's keys, as they are written, and their fields. A field with a factory is a section itself."""
    return {f.name.removesuffix("_"): f for f in fields(section)}


def _read(section: type, given: Any, where: str, told: list[str]) -> Any:
    """The section's values, each through its rule; where one cannot be, that is told and its default stands in."""
    keys = _keys(section)
    if given is not None and not isinstance(given, Mapping):
        told.append(f"{where} = {reprlib.repr(given)}: expected a section with keys, such as {', '.join(keys)}")
        given = None
    given = given or {}
    dot = f"{where}." if where else ""
    told.extend(_unknown(dot, str(key), keys) for key in given if key not in keys)
    values = {}
    for key, about in keys.items():
        if about.default_factory is not MISSING:
            values[about.name] = _read(about.default_factory, given.get(key), dot + key, told)
        elif key in given:
            values[about.name] = _value(about, given[key], dot + key, told)
        elif about.default is MISSING:
            told.append(f"{dot}{key} is missing: expected {about.metadata['rule'].expected}")
            values[about.name] = None
    return section(**values)


def _value(about: Any, value: Any, dotted: str, told: list[str]) -> Any:
    rule: Rule = about.metadata["rule"]
    try:
        return rule.parse(value)
    except OptionError as error:
        told.extend(dotted + fault for fault in error.faults)
    except (ValueError, TypeError):
        known = re.findall(r"'(\w+)'", rule.expected)
        near = did_you_mean(value, known) if isinstance(value, str) and value not in known else ""
        told.append(f"{dotted} = {reprlib.repr(value)}{near}: expected {rule.expected}")
    return None if about.default is MISSING else about.default


def _unknown(dot: str, key: str, keys: Iterable[str]) -> str:
    """The line for a key that does not exist: what was meant, here or in another section."""
    homes = [dotted for dotted in _FREE if dotted.rpartition(".")[2] == key]
    meant = f" (did you mean {homes[0]!r}?)" if homes else did_you_mean(key, keys)
    return f"{dot}{key}: no such key{meant}; known are {', '.join(keys)}"


def _plain(value: Any) -> Any:
    """Sections as dictionaries and tuples as lists, for YAML."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(getattr(value, about.name)) for key, about in _keys(type(value)).items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _leaves(section: type, dot: str = "") -> Iterator[tuple[str, Any]]:
    for key, about in _keys(section).items():
        if about.default_factory is not MISSING:
            yield from _leaves(about.default_factory, f"{dot}{key}.")
        else:
            yield dot + key, about


_FREE: dict[str, str] = {dotted: about.metadata["free"] for dotted, about in _leaves(Recipe)}
"""Every key of a recipe, and why a resume may change it; nothing where it may not."""
