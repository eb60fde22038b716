"""The set: no question twice, lengths that give nothing away, letters that say nothing."""

import random

from hypothesis import given, settings, strategies as st

from srt_peft.corpora.qa.checks import Draft
from srt_peft.corpora.qa.chosen import LENGTH, TWICE, Made, by_length, choose, lettered, unlike
from srt_peft.corpora.qa.items import Item


def made(question, right="right", wrong=("wrong", "false", "other")):
    item = Item(str(random.Random(question).random()), "d", "t", None, "old", "p", 0, 1)
    return Made(item, Draft(question, right, wrong), "test")


def of_lengths(number, right, *wrong):
    return made(f"question {number}", "r" * right, tuple(letter * n for letter, n in zip("abc", wrong, strict=True)))


def test_near_duplicates_are_out():
    """The same words, or one answer and most words; but not where each names something that the other does not."""
    told = [
        "What is the capital of Chad on the river Chari?",
        "On the river Chari, what is the capital of Chad?",
        "What is the capital city of Chad on the river Chari?",
        "What is the capital of Mali on the river Niger?",
        "In which year was the treaty of the capital signed?",
    ]
    assert [told.index(one.draft.question) for one in unlike(map(made, told))] == [0, 3, 4]
    assert choose([made(question) for question in told], 9)[1][TWICE] == 2


def test_another_answer_is_another_question():
    """Unless it is asked in the same words."""
    asked = [made("How many men live in the town?", "5"), made("How many women live in the town?", "6")]
    assert len(unlike(asked)) == 2
    assert len(unlike([asked[0], made("How many men live in the town?", "7")])) == 1


def test_a_model_that_always_writes_the_longest_answer_right_is_not_taken():
    """Of a hundred such questions few are left, and each that is not is counted."""
    chosen, left = choose([of_lengths(i, 9, 3, 4, 5) for i in range(100)], 100)
    assert len(chosen) <= 3
    assert left[LENGTH] == 100 - len(chosen)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.integers(1, 12)] * 4), min_size=30, max_size=120), st.integers(1, 120))
def test_lengths_answer_no_more_than_chance(lengths, n):
    """Whatever is offered: longest and shortest are right within a standard error of a quarter."""
    chosen, left = choose([of_lengths(i, *sizes) for i, sizes in enumerate(lengths)], n)
    assert len(chosen) <= n
    assert len(chosen) == n or len(chosen) + left.total() == len(lengths)
    slack = (len(chosen) * 3 / 16) ** 0.5 + 0.75
    for which in (0, 1):
        assert abs(sum(by_length(one.draft)[which] for one in chosen) - len(chosen) / 4) <= slack


def test_letters_are_balanced_and_the_same_each_time():
    """In each block of four every letter is right once; where, the seed decides."""
    drafts = [made(f"question {i}").draft for i in range(42)]
    dealt = lettered(drafts, 5)
    assert dealt == lettered(drafts, 5) != lettered(drafts, 6)
    letters = "".join(answer for _, answer in dealt)
    assert all(set(letters[i : i + 4]) == set("ABCD") for i in range(0, 40, 4))
    for (choices, answer), draft in zip(dealt, drafts, strict=True):
        assert choices["ABCD".index(answer)] == draft.right
        assert sorted(choices) == sorted(draft.choices)
