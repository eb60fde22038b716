"""The generated world: its facts, its texts and its questions."""

import hashlib
import json
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


@st.composite
def sizes(draw):
    people = draw(st.integers(1, 40))
    return world.Sizes(people=people, added=draw(st.integers(0, 15)), changed=draw(st.integers(0, 4 * people)))


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
    assert len(made.old) == 6 * asked.people
    assert len(made.new) == asked.changed + 6 * asked.added
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
    assert counts == (360, 1440, 174, 696, 480)
    assert len(world.vocabulary()) == 254
    said = " ".join(world.__doc__.split())
    assert "360 facts in 1,440 old texts and 174 in 696 new ones, 480 questions, 254 words" in said


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
    "nobody": (world.Sizes(people=0), "people = 0, added = 20: expected 1 or more people, 1,600 in all"),
    "more than there are names": (world.Sizes(people=1590), "people = 1590, added = 20"),
    "more changes than facts that may": (world.Sizes(people=2, changed=9), "changed = 9: expected 0 to 8"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_world_that_cannot_be_is_refused(case):
    asked, fault = WRONG[case]
    with pytest.raises(OptionError, match=fault.replace("(", r"\(")):
        world.make(0, asked)
