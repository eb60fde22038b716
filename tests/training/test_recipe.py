"""The recipe: what it reads, what it refuses and how, and what a resume may change."""

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings, strategies as st

from srt_peft import OptionError, make_scheduler
from srt_peft.review.kinds import SCHEDULERS
from srt_peft.review.options import DECKS, ORDERS, Options
from srt_peft.training import keys as module
from srt_peft.training.keys import ATTENTION, DTYPES, SCHEDULES, TRACKERS, Recipe, Source
from srt_peft.training.preset import resolve
from srt_peft.training.recipe import changed, dump, load_recipe
from srt_peft.training.schedule import learning_rate_factor, steps_of, warmup_note

RECIPES = Path(__file__).parents[2] / "recipes"
LEAST = {"model": {"base": "b"}, "data": {"old": "a.txt", "new": "b.txt"}}


def load(*overrides):
    return load_recipe(LEAST, overrides)


def faults_of(recipe, *overrides):
    with pytest.raises(OptionError) as error:
        load_recipe(recipe, overrides)
    return list(error.value.faults)


# --- the contract -------------------------------------------------------------------------------------------------


def test_the_keys_and_their_defaults_are_the_contract():
    """DESIGN.md section 4, key by key; the paper's values, and null for what a preset decides."""
    assert load().as_dict() == {
        "model": {
            "base": "b",
            "revision": None,
            "tuning": "qlora",
            "adapter": None,
            "stack": False,
            "lora": {
                "r": 16,
                "alpha": 32,
                "dropout": 0.0,
                "target_modules": "all-linear",
                "use_dora": False,
                "use_rslora": False,
            },
            "dtype": "bfloat16",
            "attention": "sdpa",
            "gradient_checkpointing": True,
        },
        "data": {
            "old": [{"path": "a.txt", "source": None, "limit": None}],
            "new": [{"path": "b.txt", "source": None, "limit": None}],
            "text_column": "text",
            "source_column": None,
            "id_column": "id",
            "date_column": None,
            "format": "text",
            "max_length": 2048,
            "packing": True,
            "holdout": 0.01,
            "supersedes": None,
            "clusters": None,
        },
        "review": {
            "scheduler": "srt",
            "preset": "auto",
            "retention": "normal",
            "old_fraction": 0.2,
            "stagger": None,
            "initial_ease": 2.5,
            "min_ease": 1.3,
            "recall": None,
            "reference": None,
            "reference_sample": None,
            "thresholds": None,
            "alpha": 1.0,
            "max_interval": None,
            "underfull": None,
            "decks": None,
            "deck_floor": 0.2,
            "counts": None,
            "old": {"order": None, "quiz": None, "quiz_every": 1, "quiz_tokens": None, "explore": 0.1},
            "new": {"order": None},
        },
        "training": {
            "steps": "one_pass",
            "batch_size": 512,
            "micro_batch_tokens": 16384,
            "learning_rate": 1e-4,
            "schedule": "linear",
            "warmup_steps": 200,
            "weight_decay": 0.001,
            "max_grad_norm": 1.0,
            "seed": 0,
        },
        "checkpoints": {"every": 50, "keep": 3},
        "evaluation": {"every": None, "suites": []},
        "tracking": {"with": []},
        "next": {"adapter": "continue", "keep": "all", "horizon": None},
        "output": "runs/my-update",
    }


def test_the_scheduler_of_an_unresolved_recipe_is_the_papers():
    """No default below the recipe ever moves: what no preset has decided is as the paper has it."""
    recipe = load()
    sizes = {"old": 9, "new": 9, "batch_size": recipe.training.batch_size}
    made = make_scheduler(recipe.review.scheduler, **sizes, **recipe.scheduler_options())
    assert made.options == make_scheduler("srt", **sizes).options


def test_every_option_of_a_scheduler_can_be_asked_for():
    """All of `Options` but what the training section holds, and the counts of another run."""
    assert set(resolve(load(), sources=1).scheduler_options()) == set(Options.__dataclass_fields__) - {
        "batch_size",
        "seed",
        "counts",
    }


@pytest.mark.parametrize(
    ("overrides", "order"),
    [
        (["review.order=overdue"], "overdue"),
        (["review.old.order=overdue"], {"old": "overdue", "new": "uniform"}),
        (["review.order=overdue", "review.new={order: overdue}"], "overdue"),
        (["review.scheduler=cpt", "review.new.order=epoch"], {"old": "uniform", "new": "epoch"}),
    ],
)
def test_an_order_is_for_both_pools_or_for_one(overrides, order):
    recipe = load(*overrides)
    assert recipe.scheduler_options()["order"] == order
    make_scheduler(recipe.review.scheduler, old=3, new=3, batch_size=2, **recipe.scheduler_options())


# --- what is read -------------------------------------------------------------------------------------------------


def test_sources_are_a_path_or_a_list():
    data = load("data.old=[a, {path: b, source: wiki, limit: 10}]", "data.new=user/set").data
    assert data.old == (Source(path="a"), Source(path="b", source="wiki", limit=10))
    assert data.new == (Source(path="user/set"),)
    assert load("data.old=null").data.old == load("data.old=[]").data.old == ()


@pytest.mark.parametrize("written", ["1e-4", "1E-4", "1.0e-4", "0.0001", "'1e-4'", ".1e-3"])
def test_a_number_is_read_however_it_is_written(written):
    """YAML 1.1 takes 1e-4 for text."""
    assert load(f"training.learning_rate={written}").training.learning_rate == 1e-4


def test_off_is_a_word():
    """YAML 1.1 takes it for false."""
    assert load("review.decks=off").review.decks == load("review.decks='off'").review.decks == "off"


def test_numbers_are_read_where_numbers_are_meant_and_nowhere_else():
    recipe = load(
        "training.batch_size=1e2",
        "model.revision=1e5",
        "output=1e-4",
        "review.recall=relative",
        "review.thresholds=[1e0,2,3,4,5e1]",
    )
    assert recipe.training.batch_size == 100
    assert isinstance(recipe.training.batch_size, int)
    assert (recipe.model.revision, recipe.output) == ("1e5", "1e-4")
    assert recipe.review.thresholds == (1, 2, 3, 4, 50)
    assert load("data.old=[{path: a, source: 2024-13-45}]").data.old[0].source == "2024-13-45"


def test_one_word_may_stand_for_a_list_of_one():
    recipe = load("tracking.with=wandb", "model.lora.target_modules=q_proj")
    assert recipe.tracking.with_ == ("wandb",)
    assert recipe.model.lora.target_modules == ("q_proj",)


def test_empty_sections_are_their_defaults_and_the_last_override_wins(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("\ufeffmodel: {base: b}\ndata: {old: a.txt, new: b.txt}\ntraining:\nreview: {old: }\n")
    assert load_recipe(file) == load_recipe(str(file)) == load()
    assert load_recipe(file, ["training.steps=3", "training.steps=4"]).training.steps == 4


def test_a_mapping_is_left_as_it_was():
    given = json.loads(json.dumps(LEAST))
    load_recipe(given, ["model.base=c", "review.order=overdue", "data.old=z"])
    assert given == LEAST


# --- what is refused ----------------------------------------------------------------------------------------------

WRONG = {
    "modle={base: x}": "modle: no such key (did you mean 'model'?); known are model, data, review,",
    "learning_rate=1": "learning_rate: no such key (did you mean 'training.learning_rate'?)",
    "model.lora.rank=8": "model.lora.rank: no such key; known are r, alpha, dropout,",
    "model.tuning=QLORA": "model.tuning = 'QLORA': expected one of 'qlora', 'lora', 'full'",
    "model.tuning=false": "model.tuning = False: expected one of",
    "model.base=": "model.base = None: expected the base model: a folder, or a name on the hub",
    "model.revision=1234567": "model.revision = 1234567: expected the base's commit or tag (in quotes if all digits)",
    "model.lora.r=0": "model.lora.r = 0: expected the adapter's rank, a whole number, 1 or more",
    "model.lora.dropout=1": "model.lora.dropout = 1: expected a number from 0 to below 1",
    "model.lora.target_modules=[]x": "'model.lora.target_modules=[]x': line 1, column 3: no YAML:",
    "model.gradient_checkpointing=1": "model.gradient_checkpointing = 1: expected true or false",
    "data.new=[]": "data.new = []: expected what to learn: a path, a hub name, or a list of {path: …",
    "data.new=7": "data.new = 7: expected what to learn",
    "data.new=[a, 7]": "data.new = ['a', 7]: expected what to learn",
    "data.old={path: a, limit: 0}": "data.old[0].limit = 0: expected the most documents to take",
    "data.old=[a, {pth: b}]": "data.old[1].pth: no such key (did you mean 'path'?)",
    "data.holdout=1": "data.holdout = 1: expected the share held out for evaluation, from 0 to below 1",
    "data.supersedes=[a]": "data.supersedes = ['a']: expected a column of data.new, the path of a map with",
    "data.source_column=3": "data.source_column = 3: expected a column's name, '__file__' to make each file a source",
    "data.id_column=null": "data.id_column = None: expected a column's name; it is read where it is there",
    "data.clusters=1": "data.clusters = 1: expected how many clusters stand for sources, a whole number from 2 to 1000",
    "review.scheduler=strt": "review.scheduler = 'strt' (did you mean 'srt'?): expected one of 'srt', 'leitner',",
    "review.scheduler=match": "review.counts = None with review.scheduler = 'match': expected the path of a review log",
    "review.counts=runs/a/review/log": "with review.scheduler = 'srt': expected the path of a review log for 'match'",
    "review.preset=best": "review.preset = 'best': expected one of 'auto', 'paper'",
    "review.retention=2": "review.retention = 2: expected one of 'normal', 'high'",
    "review.quiz=4": "review.quiz: no such key (did you mean 'review.old.quiz'?); known are scheduler, preset,",
    "review.old.quiz=65": "review.old.quiz = 65: expected how many old examples are asked for each that is studied",
    "review.old.quiz_tokens=9": "review.old.quiz_tokens = 9 without a quiz: expected quiz = 1 or more",
    "review.new.quiz=4": "review.new.quiz: no such key (did you mean 'review.old.quiz'?); known are order",
    "review.decks=on": "review.decks = True: expected one of 'off', 'auto', 'sqrt', 'equal'; or null, as the",
    "review={preset: paper, recall: quantile}": "recall = 'quantile' takes its thresholds from a pass of the base",
    "review.reference_sample=0": "review.reference_sample = 0: expected how many examples of each deck the base scores",
    "review={scheduler: cpt, decks: auto}": "review.decks = 'auto': the scheduler 'cpt' knows none, expected null",
    "review={scheduler: uniform, old: {quiz: 4}}": "review.old.quiz = 4: the scheduler 'uniform' knows none, expected",
    "review.old_fraction=1.5": "review.old_fraction = 1.5: expected the share of old examples in a draw, from 0 to 1",
    "review.initial_ease=1.1": "review.initial_ease = 1.1 lies below min_ease = 1.3: expected it to be at least that",
    "review.thresholds=[5,4,3,2,1]": "review.thresholds = [5, 4, 3, 2, 1]: expected five positive numbers",
    "review.thresholds=[1,2,3,4,5]": "review.thresholds = (1, 2, 3, 4, 5) with review.recall = null, which",
    "review.alpha=0.5": "review.alpha = 0.5 with review.recall = null, which review.preset = 'auto' decides: it scales",
    "review.order=random": "review.order = 'random': expected 'uniform', 'overdue', 'epoch', 'rounds' or 'intake'",
    "review.old.order=intake": "review.old.order = 'intake': expected 'uniform', 'overdue', 'epoch' or 'rounds'",
    "review={scheduler: cpt, order: overdue}": "review.new.order = 'overdue': the scheduler 'cpt' knows 'uniform' and",
    "training.steps=two_pass": "training.steps = 'two_pass' (did you mean 'one_pass'?): expected a whole number, 1 or",
    "training.steps=1.5": "training.steps = 1.5: expected a whole number",
    "training.batch_size=true": "training.batch_size = True: expected the examples of one optimiser step",
    "training.learning_rate=.nan": "training.learning_rate = nan: expected a number above 0",
    "training.learning_rate=1e400": "training.learning_rate = '1e400': expected a number above 0",
    "training.max_grad_norm=.inf": "training.max_grad_norm = inf: expected a number above 0",
    "training.seed=4294967296": "training.seed = 4294967296: expected a whole number from 0 to 2**32 - 1",
    "training.micro_batch_tokens=512": "training.micro_batch_tokens = 512 is less than data.max_length = 2048",
    "review.old_fraction=1": "training.steps = 'one_pass' with review.old_fraction = 1 never ends",
    "evaluation.suites=[perplexity]": "evaluation.suites without evaluation.every: expected how many steps lie between",
    "tracking.with=[wandbb]": "tracking.with = ['wandbb']: expected a list of tensorboard, wandb, trackio,",
    "checkpoints=often": "checkpoints = 'often': expected a section with keys, such as every, keep",
    "output.folder=x": "output = {'folder': 'x'}: expected the run's folder",
    "model.base.x=1": "'model.base.x=1': model.base is 'b' here, and has no keys",
    "training.steps": "'training.steps': expected an override, key.sub=value, such as training.steps=50",
    ".steps=3": "'.steps=3': expected an override",
    "output={a: 1, a: 2}": "the key 'a' is there twice, first in line 1: keep one of them",
}


@pytest.mark.parametrize("override", WRONG)
def test_a_fault_names_the_key_the_value_and_what_is_expected(override):
    told = faults_of(LEAST, override)
    assert any(WRONG[override] in line for line in told), told


def test_all_faults_are_told_at_once():
    """Of the file's form, of the overrides, of unknown keys and of values, in one error."""
    told = faults_of(
        {"model": {"tuning": 3, "bass": "b"}, "data": {"old": "a", "new": [{"path": "b", "limit": -1}]}, "outptu": "x"},
        "nonsense",
        "review.alpha=0",
        "training.schedule=liner",
    )
    assert told == [
        "'nonsense': expected an override, key.sub=value, such as training.steps=50",
        (
            "outptu: no such key (did you mean 'output'?); known are "
            "model, data, review, training, checkpoints, evaluation, tracking, next, output"
        ),
        (
            "model.bass: no such key (did you mean 'base'?); known are "
            "base, revision, tuning, adapter, stack, lora, dtype, attention, gradient_checkpointing"
        ),
        "model.base is missing: expected the base model: a folder, or a name on the hub",
        "model.tuning = 3: expected one of 'qlora', 'lora', 'full'",
        "data.new[0].limit = -1: expected the most documents to take, a whole number, 1 or more, or null",
        "review.alpha = 0: expected a number above 0, by which the perplexity thresholds are multiplied",
        "training.schedule = 'liner' (did you mean 'linear'?): expected one of 'linear', 'cosine', 'constant'",
    ]


def test_what_is_missing_is_told():
    assert [line.partition(" is missing")[0] for line in faults_of({})] == ["model.base", "data.old", "data.new"]


def test_settings_that_clash_are_told_together():
    told = faults_of(
        LEAST, "model.tuning=full", "model.adapter=x", "data.max_length=99999", "review={scheduler: ppl, order: epoch}"
    )
    assert [line.split(" =")[0].split(" is")[0] for line in told] == [
        "review.old.order",
        "review.new.order",
        "training.micro_batch_tokens",
        "model.adapter",
    ]
    clusters = "data.clusters = 3 with {}: expected null, since clusters stand for sources where none are told apart"
    assert faults_of(LEAST, "data.clusters=3", "data.source_column=topic") == [
        clusters.format("data.source_column = 'topic'")
    ]
    named = "data.old=[{path: a, source: one}, {path: b, source: two}]"
    assert faults_of(LEAST, "data.clusters=3", named) == [clusters.format("several named sources")]
    assert load_recipe(LEAST, ["data.clusters=3", named.replace("two", "one")]).data.clusters == 3
    both = {**LEAST, "review": {"order": "epoch", "old": {"order": "uniform"}, "scheduler": "uniform"}}
    assert faults_of(both) == ["review.order = 'epoch' and review.old.order = 'uniform': keep one of the two"]


FILES = {
    "broken": (b"model: {base: b\ndata: 3\n", r"line 2, column 5: no YAML: .*expected ',' or '}'"),
    "tabs": (b"model:\n\tbase: b\n", r"line 2, column 1: no YAML: .*found character '\\t'"),
    "twice": (b"output: a\nmodel: {base: b}\noutput: c\n", "line 3: the key 'output' is there twice, first in line 1"),
    "empty": (b"# nothing\n", "it holds nothing: expected sections, such as model, data"),
    "a list": (b"- a\n- b\n", r"it holds \['a', 'b'\]: expected sections"),
    "latin-1": (b"output: caf\xe9\n", r"not UTF-8 text \(byte 11\): expected a YAML file, saved as UTF-8"),
    "binary": (b"\x00\x01", "no YAML: unacceptable character"),
    "python": (
        b"output: !!python/object/apply:os.system [ls]\n",
        "line 1, column 9: no YAML: could not determine a con",
    ),
    "deep": (b"[" * 9000, "no YAML: .*recursion|no YAML:"),
    "long": (b"output: " + b"9" * 5000, "no YAML: Exceeds the limit"),
    "odd key": (b"? [a]\n: 1\n", "no YAML: found unhashable key"),
    "itself": (b"&a {output: *a}\n", "model.base is missing"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_recipe_is_refused_with_its_name_and_line(case, tmp_path):
    content, message = FILES[case]
    (tmp_path / "r.yaml").write_bytes(content)
    with pytest.raises(OptionError, match=message) as error:
        load_recipe(tmp_path / "r.yaml")
    assert f"in the recipe {tmp_path / 'r.yaml'}:" in str(error.value)


# --- round trips --------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
TRICKY = st.sampled_from(
    ["1e-4", "null", "yes", "2024-01-01", "=", "<<", "a: b", "- x", "0\x85", "a\u2028b", "'", "#", "12", " x", "é\n"]
)
NAME = TEXT | TRICKY
SHARE = st.floats(0, 0.99)
POSITIVE = st.floats(1e-9, 1e9)
COUNT = st.integers(1, 10**6)
SOURCES = st.lists(st.fixed_dictionaries({"path": NAME}, optional={"source": NAME, "limit": COUNT}), min_size=1)
THRESHOLDS = st.lists(POSITIVE, min_size=5, max_size=5, unique=True).map(sorted)


def among(names):
    return st.sampled_from(list(names))


def section(**keys):
    return st.fixed_dictionaries({}, optional=keys)


def told_of_what(recipe):
    """With what its thresholds are of, where it has some."""
    review = recipe.get("review", {})
    if {"alpha", "thresholds"} & review.keys():
        review["recall"] = "absolute"
    return recipe


RECIPE = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"base": NAME},
            optional={
                "revision": NAME,
                "tuning": among(["qlora", "lora"]),
                "adapter": NAME,
                "dtype": among(DTYPES),
                "attention": among(ATTENTION),
                "lora": section(r=COUNT, alpha=POSITIVE, dropout=SHARE, target_modules=NAME | st.lists(NAME)),
            },
        ),
        "data": st.fixed_dictionaries(
            {"old": NAME | SOURCES | st.none(), "new": NAME | SOURCES},
            optional={
                "text_column": NAME,
                "source_column": NAME | st.none(),
                "id_column": NAME,
                "date_column": NAME | st.none(),
                "max_length": st.integers(4, 16384),
                "holdout": SHARE,
                "supersedes": NAME | st.none(),
            },
        ),
    },
    optional={
        "review": section(
            scheduler=among(["srt", "leitner"]),
            preset=among(["auto", "paper"]),
            retention=among(["normal", "high"]),
            old_fraction=SHARE,
            alpha=POSITIVE,
            thresholds=THRESHOLDS,
            max_interval=COUNT,
            reference=among(["best", "base"]) | st.none(),
            decks=among(DECKS) | st.none(),
            underfull=among(["short", "ahead"]) | st.none(),
            old=section(order=among(ORDERS[:3]) | st.none(), quiz=st.integers(0, 64) | st.none()),
            new=section(order=among(ORDERS) | st.none()),
        ),
        "training": section(
            steps=COUNT | st.just("one_pass"),
            batch_size=COUNT,
            learning_rate=POSITIVE,
            schedule=among(SCHEDULES),
            seed=st.integers(0, 2**32 - 1),
        ),
        "tracking": section(**{"with": st.lists(among(TRACKERS))}),
        "evaluation": section(every=COUNT | st.none()),
        "output": NAME,
    },
).map(told_of_what)


@given(RECIPE)
@settings(max_examples=60, deadline=None)
def test_what_is_dumped_loads_to_an_equal_recipe(tmp_path_factory, written):
    """From a file, from plain YAML, from JSON; and the same text again."""
    recipe = load_recipe(written)
    file = tmp_path_factory.getbasetemp() / "r.yaml"
    file.write_text(dump(recipe), encoding="utf-8", newline="")
    assert load_recipe(file) == recipe
    assert load_recipe(json.loads(json.dumps(recipe.as_dict()))) == recipe
    assert dump(load_recipe(file)) == dump(recipe)
    assert changed(recipe, load_recipe(file)) == []


@given(RECIPE, RECIPE)
@example(
    {"model": {"base": ";\xa0"}, "data": {"old": None, "new": "0"}},
    {"model": {"base": "\xa0@"}, "data": {"old": None, "new": "0"}},
)
@settings(max_examples=25, deadline=None)
def test_every_difference_names_an_override_that_undoes_it(saved, asked):
    """What `changed` says, given on the command line, makes the saved recipe of the one that was asked for."""
    saved, asked = load_recipe(saved), load_recipe(asked)
    here = asked.as_dict()
    for line in changed(saved, asked):
        [override] = shlex.split(re.search(r"\(its value: (.*)\)$", line, re.DOTALL)[1])
        key, _, value = override.partition("=")
        *path, last = key.split(".")
        part = here
        for name in path:
            part = part[name]
        part[last] = yaml.safe_load(value)
    assert changed(saved, load_recipe(here)) == []


@given(st.dictionaries(NAME | among(LEAST), st.recursive(NAME | st.none() | st.floats() | st.booleans(), st.lists)))
@settings(max_examples=50, deadline=None)
def test_whatever_is_given_is_a_recipe_or_an_option_error(given_):
    with pytest.raises(OptionError):
        load_recipe(given_)


# --- an adapter that is continued ---------------------------------------------------------------------------------


def test_an_adapter_that_is_continued_keeps_its_shape(tmp_path):
    """Where the recipe does not name it; what it names stands, and is compared when the adapter is loaded."""
    config = {"r": 4, "lora_alpha": 12, "use_dora": True, "use_rslora": False, "lora_dropout": 0.5}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    given_ = {"model": {"base": "b", "adapter": str(tmp_path)}, "data": {"old": "a", "new": "b"}}
    lora = load_recipe(given_).model.lora
    assert (lora.r, lora.alpha, lora.use_dora, lora.use_rslora, lora.dropout) == (4, 12, True, False, 0.0)
    assert load_recipe(given_, ["model.lora.r=8"]).model.lora.r == 8
    assert load_recipe({**given_, "model": {"base": "b"}}).model.lora.r == 16


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_an_adapter_whose_shape_cannot_be_read_is_left_to_the_model(tmp_path, content):
    if content is not None:
        (tmp_path / "adapter_config.json").write_text(content)
    given_ = {"model": {"base": "b", "adapter": str(tmp_path)}, "data": {"old": "a", "new": "b"}}
    assert load_recipe(given_).model.lora.r == 16


# --- going on -----------------------------------------------------------------------------------------------------

FREE = {
    "model.attention",
    "model.gradient_checkpointing",
    "data.old",
    "data.new",
    "data.packing",
    "data.supersedes",
    "review.preset",
    "review.retention",
    "review.counts",
    "training.micro_batch_tokens",
    "checkpoints.every",
    "checkpoints.keep",
    "evaluation.every",
    "evaluation.suites",
    "tracking.with",
    "next.adapter",
    "next.keep",
    "next.horizon",
    "output",
}


def test_what_a_resume_may_change_is_this_and_has_a_reason():
    assert {dotted for dotted, reason in module._FREE.items() if reason} == FREE
    assert len(module._FREE) == 67


CHANGES = [
    "model.base=c",
    "model.lora.r=8",
    "data.max_length=64",
    "data.holdout=0.1",
    "review.old_fraction=0.3",
    "review.scheduler=cpt",
    "review.new.order=overdue",
    "training.batch_size=8",
    "training.steps=5",
    "training.schedule=cosine",
    "training.learning_rate=1",
    "training.seed=5",
]


def test_what_changed_is_told_with_both_values():
    for change in CHANGES:
        key = change.partition("=")[0]
        [line] = changed(load(), load(change))
        assert line.startswith(f"{key} is "), line
    assert changed(load(), load("training.batch_size=8", "model.revision=main")) == [
        "model.revision is main here and null in the checkpoint (its value: model.revision=null)",
        "training.batch_size is 8 here and 512 in the checkpoint (its value: training.batch_size=512)",
    ]


def test_what_is_free_is_not_told():
    free = load(
        "checkpoints={every: 1, keep: 1}",
        "training.micro_batch_tokens=9000",
        "tracking.with=[wandb]",
        "evaluation.every=2",
        "data.packing=false",
        "model.attention=eager",
        "output=x",
    )
    assert changed(load(), free) == []


# --- the length of a run, and its learning rate -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_new", "fraction", "batch", "steps"),
    [(31_729, 0.2, 512, 78), (71, 0.29, 100, 1), (72, 0.29, 100, 2), (7, 0.3, 10, 1), (8, 0.3, 10, 2), (0, 0.2, 8, 0)],
)
def test_one_pass_is_as_many_steps_as_the_paper_takes(n_new, fraction, batch, steps):
    """Exactly: (1 − 0.3)·10 is 7, where floats would make of 7 examples a second step or not, as they please."""
    recipe = load(f"review.old_fraction={fraction}", f"training.batch_size={batch}")
    assert steps_of(recipe, n_new) == steps
    assert steps_of(load("training.steps=9"), n_new) == 9


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 10), (3, 10), (10, 10), (200, 78), (9, 10), (5, 1), (0, 1)])
def test_the_learning_rate_is_that_of_transformers(schedule, warmup, steps):
    """Step by step, to the last digit but one."""
    import torch
    import transformers

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    kwargs = {} if schedule == "constant" else {"num_training_steps": steps}
    make = getattr(transformers, f"get_{schedule}_schedule_with_warmup")
    reference = make(optimizer, num_warmup_steps=warmup, **kwargs).lr_lambdas[0]
    factor = learning_rate_factor(schedule, warmup, steps)
    for t in range(steps):
        assert factor(t) == pytest.approx(reference(t), rel=1e-12, abs=1e-15)
    assert all(0 <= factor(t) <= 1 for t in range(steps + 2))


def test_a_warmup_longer_than_the_run_is_told():
    """With the largest rate that a step really has."""
    note = warmup_note(load(), 78)
    assert note == (
        "training.warmup_steps = 200 is longer than the run of 78 steps: the learning rate peaks at 3.85e-05, 38.5 % "
        "of training.learning_rate"
    )
    factor = learning_rate_factor("linear", 200, 78)
    assert max(map(factor, range(78))) == 77 / 200
    assert warmup_note(load(), 200) is warmup_note(load(), 10**6) is warmup_note(load(), 0) is None


# --- the recipes that are shipped ---------------------------------------------------------------------------------

SHIPPED = sorted(RECIPES.glob("*.yaml"))
LAUNCHED = [*SHIPPED, *sorted((RECIPES / "accelerate").glob("*.yaml"))]


def header(path):
    return re.split(r"^[^#]", path.read_text(), maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_recipe_loads_as_its_header_launches_it(path):
    """Its command names the file, and its overrides, like the commonest ones, are overrides that it takes."""
    [command] = re.findall(r"# Launch:  (.*)", header(path))
    srt_peft, train, name, *overrides = command.split()
    assert (srt_peft, train, name) == ("srt-peft", "train", path.name)
    assert load_recipe(path, overrides).review == load_recipe(path).review
    [often] = re.findall(r"# Often changed:  (.*)", header(path))
    common = re.findall(r"[\w.]+=[^\s)]+", often)
    assert common
    for override in common:
        assert load_recipe(path, [override]) != load_recipe(path)


@pytest.mark.parametrize("path", LAUNCHED, ids=lambda p: p.stem)
def test_a_header_says_how_to_launch_and_what_it_takes(path):
    top = header(path)
    assert all(f"# {word}:  " in top for word in ("Launch", "Needs", "Often changed"))
    assert path.name in top
    assert "GiB of its memory" not in top or "computed, not measured" in top


def test_the_papers_recipe_is_the_papers():
    """Appendix B's table: the defaults, and the paper's preset written out, whatever the texts are."""
    recipe = load_recipe(RECIPES / "llama32_3b_full.yaml")
    assert resolve(recipe, sources=9) == recipe
    assert recipe.review == resolve(load("review.preset=paper"), sources=9).review
    assert recipe.training == load().training
    assert (recipe.model.tuning, recipe.data.max_length) == ("full", 2048)
    assert changed(recipe, replace(recipe, output="x")) == []


def test_the_memory_that_recipes_need_is_what_the_formula_gives():
    """Each row of recipes/README.md, recomputed, with T as in the recipe and the sum as in its header."""
    rows = re.findall(
        r"^\| (\w+) \|" + r" (\d+) \|" * 7 + r" ([\d.]+) \|$", (RECIPES / "README.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 4
    for name, *numbers, told in rows:
        linear, embed, adapter, layers, h, f, tokens = map(int, numbers)
        recipe = load_recipe(RECIPES / f"{name}.yaml")
        weights, row = 18 * (linear + embed), 24 * h + 8 * f
        if recipe.model.tuning == "qlora":
            weights, row = 0.52 * linear + 4 * embed + 10 * adapter, 48 * h + 12 * f
        needed = (weights + tokens * (2 * layers * h + row)) / 2**30 + 1.5
        assert math.isclose(needed, float(told), abs_tol=0.05)
        assert recipe.training.micro_batch_tokens == tokens
        assert f"{told} GiB of its memory, computed, not measured" in header(RECIPES / f"{name}.yaml")


@pytest.mark.parametrize(("name", "kind"), [("one_gpu", "NO"), ("ddp", "MULTI_GPU"), ("fsdp2", "FSDP")])
def test_accelerate_takes_its_configs(name, kind):
    """As accelerate itself loads them; no key is unknown to it, and FSDP is the second."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    config = load_config_from_file(str(RECIPES / f"accelerate/{name}.yaml"))
    assert config.distributed_type == kind
    assert config.num_processes == (1 if kind == "NO" else 2)
    flags = {action.dest for action in launch_command_parser()._actions}
    assert set(config.fsdp_config) <= flags
    assert config.fsdp_config.get("fsdp_version", 2) == 2


def test_no_scheduler_is_forgotten():
    """A recipe may ask for each of them; `match` needs the log of another run."""
    for name in SCHEDULERS:
        counts = ["review.counts=runs/a/review/log"] if name == "match" else []
        assert load(f"review.scheduler={name}", *counts).review.scheduler == name
    assert isinstance(load(), Recipe)
