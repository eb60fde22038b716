"""The generated world: its facts, its texts and its questions."""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from statistics import median

import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import OptionError
from srt_peft.demo import world
from srt_peft.demo.base import END, UNKNOWN, tokenizer_of
from srt_peft.evaluation.questions import load_questions, prompt_of


def facts_of(people, pool):
    """How many facts the sources tell of so many people."""
    return sum(len(t.attributes) * math.ceil(people * getattr(t, pool)) for t in world.TOPICS.values())


@st.composite
def sizes(draw):
    people = draw(st.integers(1, 40))
    may = facts_of(people, "old") - 2 * people  # all but origins
    return world.Sizes(people=people, added=draw(st.integers(0, 15)), changed=draw(st.integers(0, may)))


worlds = st.builds(world.make, st.integers(0, 2**32), sizes())


def told(facts):
    return {(fact.person, fact.attribute): fact.value for fact in facts}


def asked_about(made):
    """Each question with the (person, attribute) that it asks about; a question's wording names both."""
    by = {
        world.question_of(world.Fact(person, attribute, "")): (person, attribute)
        for person, attribute in {**told(made.old), **told(made.new)}
    }
    return [(row, by[row["question"]]) for row in made.questions]


@given(worlds)
def test_what_is_asked_stands_in_no_text(made):
    """Of either snapshot, with whatever answer; the fact's other question does."""
    texts = world.texts([*made.old, *made.new])
    everything = "\n".join(texts)
    for row, (person, attribute) in asked_about(made):
        other = world.question_of(world.Fact(person, attribute, ""), held_out=False)
        assert other != row["question"]
        assert row["question"] not in everything
        assert f"Question: {other}\nAnswer: {row['choices'][row['answer']]}" in texts


@given(worlds)
def test_answers_are_what_holds_now_and_splits_are_disjoint(made):
    """Everything that holds is asked once: in the new split if it is new, and in the old one if it has stayed."""
    old, new = told(made.old), told(made.new)
    holds = {**old, **new}
    split = {"old": set(old) - set(new), "new": set(new)}
    asked = asked_about(made)
    assert Counter(key for _, key in asked) == Counter(dict.fromkeys(holds, 1))
    for row, key in asked:
        assert key in split[row["split"]]
        assert row["choices"][row["answer"]] == holds[key]
        assert len(set(row["choices"])) == 4
        assert set(row["choices"]) <= set(world.ATTRIBUTES[key[1]].values)
        if key in old and key in new:
            assert old[key] != new[key]
            assert old[key] in row["choices"]
            assert world.ATTRIBUTES[key[1]].changes


@given(st.integers(0, 2**32), sizes())
def test_a_world_has_the_sizes_that_were_asked_for(seed, asked):
    made = world.make(seed, asked)
    people = {fact.person for fact in made.old}
    assert len(people) == asked.people
    assert len(made.old) == facts_of(asked.people, "old")
    assert len(made.new) == asked.changed + facts_of(asked.added, "added")
    assert len({fact.person for fact in made.new} - people) == asked.added
    assert len(set(world.texts([*made.old, *made.new]))) == 4 * (len(made.old) + len(made.new))


@settings(max_examples=20)
@given(worlds)
def test_the_vocabulary_has_every_word(made):
    """Of texts and questions, and of the frame that they are asked in."""
    tokenizer = tokenizer_of([UNKNOWN, END, *world.vocabulary()])
    texts = world.texts([*made.old, *made.new]) + [
        f"Question: {row['question']}\nAnswer: {choice}" for row in made.questions for choice in row["choices"]
    ]
    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    assert not any(unknown in ids for ids in tokenizer(texts)["input_ids"])


def test_as_it_comes_it_is_as_large_as_its_docstring_says():
    made = world.make()
    counts = len(made.old), len(world.texts(made.old)), len(made.new), len(world.texts(made.new)), len(made.questions)
    assert counts == (400, 1600, 160, 640, 500)
    assert len(world.vocabulary()) == 254
    said = " ".join(world.__doc__.split())
    assert "400 facts in 1,600 old texts and 160 in 640 new ones, 500 questions, 254 words" in said
    told = Counter(world.SOURCES[fact.attribute] for fact in made.old)
    assert [told[name] // 20 for name in world.TOPICS] == [10, 6, 3, 1]
    assert "10 : 6 : 3 : 1" in said


def test_values_differ_in_frequency():
    """The commonest value of each attribute is told at least four times as often as the one in the middle."""
    for attribute, about in world.ATTRIBUTES.items():
        counts = Counter(fact.value for fact in world.make().old if fact.attribute == attribute)
        assert max(counts.values()) >= 4 * median(counts[value] for value in about.values)


def test_no_answer_is_told_by_its_length_or_its_kind():
    """Six letters each, and no value of two attributes."""
    values = [value for about in world.ATTRIBUTES.values() for value in about.values]
    assert {len(value) for value in values} == {6}
    assert len(set(values)) == len(values)


def test_a_question_is_read_and_asked_as_the_texts_have_it(tmp_path):
    """The file has no fault, and the prompt and its answer are, word for word, what a text with that question says."""
    made = world.make(3)
    world.write(made, tmp_path)
    lines = [line for name in ("old", "new") for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    texts = {json.loads(line)["text"] for line in lines}
    found = load_questions(tmp_path / "questions.jsonl")
    assert len(found) == len(made.questions)
    assert Counter(question.split for question in found).keys() == {"old", "new"}
    question = found[0]
    prompt = prompt_of(question, "text")
    asked = prompt.context + prompt.continuations[question.answer]
    assert asked not in texts
    fact = next(fact for fact in made.old if world.question_of(fact) == question.question)
    assert asked.replace(question.question, world.question_of(fact, held_out=False)) in texts


def rows_of(made, name):
    return [json.loads(line) for line in world.files_of(made)[f"{name}.jsonl"].splitlines()]


@given(worlds)
def test_a_new_text_names_the_old_ones_of_its_fact_and_no_others(made):
    """All wordings of it, where it has changed; of a person who was added there are none. No two texts share a name."""
    old, new = rows_of(made, "old"), rows_of(made, "new")
    fact_of = {row["id"]: fact for fact, rows in zip(made.old, batched(old, 4), strict=True) for row in rows}
    assert len({row["id"] for row in (*old, *new)}) == len(old) + len(new)
    by_fact = {}
    for name, fact in fact_of.items():
        by_fact.setdefault((fact.person, fact.attribute), []).append(name)
    for fact, rows in zip(made.new, batched(new, 4), strict=True):
        for row in rows:
            assert row["supersedes"] == by_fact.get((fact.person, fact.attribute))
            assert all(fact_of[name].value != fact.value for name in row["supersedes"] or [])


@given(worlds)
def test_a_source_tells_of_its_topic_alone(made):
    """In texts and in questions; of origins there is nothing new."""
    for name, facts in (("old", made.old), ("new", made.new)):
        for fact, rows in zip(facts, batched(rows_of(made, name), 4), strict=True):
            assert {row["source"] for row in rows} == {world.SOURCES[fact.attribute]}
    assert all(fact.attribute in world.TOPICS[world.SOURCES[fact.attribute]].attributes for fact in made.old)
    assert "origins" not in {row["source"] for row in rows_of(made, "new")}
    for row, (_, attribute) in asked_about(made):
        assert row["source"] == world.SOURCES[attribute]


def batched(rows, size):
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def test_what_is_replaced_is_set_aside_as_a_recipe_reads_it(tmp_path):
    """Four texts a changed fact, but for those that are held out; and each source is a deck."""
    from srt_peft.demo import demo
    from srt_peft.training.texts import read

    made = world.make(2, world.Sizes(people=20, added=5, changed=10))
    (tmp_path / "world").mkdir()
    world.write(made, tmp_path / "world")
    tokenizer = tokenizer_of([UNKNOWN, END, *world.vocabulary()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
        honoured, ignored = (
            read(demo.recipe_of(tmp_path, "lora", demo.QUICK, supersedes=given), tokenizer) for given in (True, False)
        )
    changed = {(fact.person, fact.attribute) for fact in made.new} & set(told(made.old))
    gone = {honoured.corpus.text(i) for i in honoured.superseded.tolist()}
    texts = set(world.texts(fact for fact in made.old if (fact.person, fact.attribute) in changed))
    held_out = {honoured.held_out["old"].text(i) for i in range(len(honoured.held_out["old"]))}
    assert len(changed) == 10
    assert gone == texts - held_out
    assert ignored.superseded.size == 0
    assert honoured.decks == list(world.TOPICS)


def test_a_world_is_a_function_of_its_seed():
    """In any process; another seed is another world."""
    code = (
        "import hashlib, json; from srt_peft.demo.world import *;"
        "print(hashlib.sha256(json.dumps(files_of(make(7))).encode()).hexdigest())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    here = json.dumps(world.files_of(world.make(7))).encode()
    assert there.stdout.strip() == hashlib.sha256(here).hexdigest()
    assert world.make(7) != world.make(8)


WRONG = {
    "nobody": (world.Sizes(people=0), "people = 0, added = 30: expected 1 or more people, 1,600 in all"),
    "more than there are names": (world.Sizes(people=1590), "people = 1590, added = 30"),
    "more changes than facts that may": (world.Sizes(people=2, changed=8), "changed = 8: expected 0 to 7"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_world_that_cannot_be_is_refused(case):
    asked, fault = WRONG[case]
    with pytest.raises(OptionError, match=fault.replace("(", r"\(")):
        world.make(0, asked)
