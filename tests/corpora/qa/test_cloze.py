"""Questions from the diffs alone."""

from collections import Counter

import pytest

from srt_peft.corpora.qa import making
from srt_peft.corpora.qa.checks import Draft
from srt_peft.corpora.qa.cloze import STOCK, Cloze, Stock, draft, replaced
from srt_peft.corpora.qa.items import Corpus, Document, Item, hold_apart, items_of, read
from srt_peft.corpora.qa.values import number_of
from srt_peft.corpora.qa.words import stands_in
from tests.corpora.qa import world


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Every item of a corpus, and what became of it."""
    corpus = read(world.build(tmp_path_factory.mktemp("cloze") / "towns"))
    items, _ = items_of(corpus, 0)
    every = [item for found in items.values() for item in found]
    hold_apart(corpus, every, STOCK)
    return list(Cloze(corpus).drafts(every))


def test_every_question_asks_for_what_its_statement_says(asked):
    """With the gap filled it is the statement; and almost every statement has a question."""
    made = [(item, one) for item, one in asked if isinstance(one, Draft)]
    assert len(made) > 0.8 * len(asked)
    for item, one in made:
        said = one.question.partition("gap of “")[2].removesuffix("”?")
        assert said.replace("____", one.right).endswith(" ".join(item.statement.split()))
        assert one.question.startswith(item.title)
        assert not any(stands_in(wrong, item.passage) for wrong in one.wrong)
        assert len({*one.choices}) == 4


def test_an_update_is_asked_for_beside_what_it_replaced(asked):
    """The gap is where old and new differ, and the old value is a wrong choice."""
    updated = [(item, one) for item, one in asked if item.was is not None and isinstance(one, Draft)]
    assert updated
    told = Counter(any(stands_in(wrong, item.was) for wrong in one.wrong) for item, one in updated)
    assert told[True] > 0.9 * told.total()
    assert not any(stands_in(one.right, item.was) for item, one in updated)


def test_wrong_numbers_are_written_alike_and_near(asked):
    numbers = [one for _, one in asked if isinstance(one, Draft) and one.kind == "number"]
    assert numbers
    for one in numbers:
        right = number_of(one.right)
        assert {choice[-1] == "%" for choice in one.choices} == {one.right[-1] == "%"}
        assert {"." in choice for choice in one.choices} == {"." in one.right}
        # what was before the update may be anything: it is the old value all the same
        assert sum(not 1 / 5 <= number_of(wrong) / right <= 5 for wrong in one.wrong) <= 1


def test_the_right_number_is_neither_the_middle_nor_the_edge(asked):
    """Each rank is right for at least a tenth."""
    numbers = [one for _, one in asked if isinstance(one, Draft) and one.kind in ("number", "year")]
    ranks = Counter(sorted(map(number_of, one.choices)).index(number_of(one.right)) for one in numbers)
    assert min(ranks[rank] for rank in range(4)) >= len(numbers) / 10


def item(statement, was=None, label=None):
    return Item("1", "d", "Docia", None, "new", statement, 0, len(statement), was, label)


def stock(*texts):
    documents = [Document(str(i), "", None, None, text, ()) for i, text in enumerate(texts)]
    return Stock(Corpus(None, documents, {}))


def test_what_an_update_has_replaced_is_paired_in_order():
    old, new = "Built in 1901 by Anna Berg for 20 families", "Built in 1911 by Anna Berg for 25 families"
    assert [(was.text, now.text) for was, now in replaced(old, new)] == [("20", "25"), ("1901", "1911")]
    assert list(replaced("Anna rose", "5 rose, 7 fell")) == []


def test_another_documents_pair_hides_the_pair_of_old_and_new():
    """Of two close numbers one would be right: so there are two such pairs."""
    changes = ({"kind": "modified", "old": "Sheep: 5,100 in all", "new": "Sheep: 5,250 in all"},)
    other = Document("2", "", None, "Sheep: 5,100 in all", "Sheep: 5,250 in all", changes)
    made = draft(item("Sheep: 4,210 in all", "Sheep: 4,100 in all"), Stock(Corpus(None, [other], {})))
    assert made.right == "4,210"
    assert set(made.wrong) == {"4,100", "5,100", "5,250"}


@pytest.mark.parametrize(
    ("one", "others", "why"),
    [
        (item("Nobody said anything of it at all."), [], "no number, date or name to ask for"),
        (item("They live by the water now.", "They lived by the water."), [], "no number, date or name was updated"),
        (item("The herds are driven by Docian shepherds."), ["driven by Anna", "driven by Boris", "driven by Clara"],
         "no number, date or name to ask for"),
        (item("See `the page of 2020 <https://example.org/5>`_."), [], "code, markup or a link, not prose"),
        (item("Sheep: 4,210 in all"), ["Sheep: 3,900 in all"], "fewer than three values of the same kind elsewhere"),
        (item("Sheep: 4,210 in all, 4,210 of them white"), ["Sheep: 4,100", "Sheep: 4,300", "Sheep: 4,400"],
         "says its own answer"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_says_why(one, others, why):
    assert draft(one, stock(*others)) == why


def test_an_old_value_that_was_only_rounded_is_no_wrong_choice():
    """Both would be right."""
    said, was = "Water: 461.89 billion cubic metres", "Water: 461.888 billion cubic metres"
    made = draft(
        item(said, was), stock(*(f"Water: {n} billion cubic metres" for n in ("300.5", "450.2", "461.5", "610.7")))
    )
    assert sorted(made.wrong) == ["300.5 billion", "450.2 billion", "610.7 billion"]


def test_wrong_dates_are_of_one_time_with_the_right_one():
    """Of four dates of four centuries the right one is known by its century."""
    made = [f"It was built on {n} May {year}." for n, year in ((1, 1441), (2, 1711), (3, 2016), (4, 1951), (5, 1954))]
    one = item("The mill was built on 6 June 1950.")
    assert draft(one, stock(*made)) == "fewer than three values of the same kind elsewhere"
    assert set(draft(one, stock(*made, "It was built on 7 May 1958.")).wrong) == {
        "4 May 1951",
        "5 May 1954",
        "7 May 1958",
    }


@pytest.mark.parametrize(
    ("was", "now", "others"),
    [
        (
            "The fleet left on April 6, 1506.",
            "The fleet left on 6 April 1506.",
            [f"left on {n} May 1506" for n in "123"],
        ),
        (
            "Anna was queen of Judea.",
            "Anna was queen of Judaea.",
            ["queen of Spain", "queen of Egypt", "queen of Nubia"],
        ),
    ],
)
def test_another_spelling_is_no_update(was, now, others):
    """The old one would be right, too; where it is another value, it is asked for."""
    assert draft(item(now, was), stock(*others)) == "no number, date or name was updated"
    assert isinstance(
        draft(item(now, was.replace("April 6", "July 7").replace("Judea", "Galilee")), stock(*others)), Draft
    )


def test_a_label_that_stands_elsewhere_is_put_before_the_gap():
    made = draft(
        item("In all 4,210 sheep are white.", label="Herds"),
        stock(*(f"In all {n} cows are" for n in ("4,100", "4,300", "5,000"))),
    )
    assert "“Herds: In all ____ sheep are white.”" in made.question


def test_the_same_corpus_makes_the_same_file(tmp_path):
    """Byte for byte; another seed, another file."""
    folder = world.build(tmp_path / "towns")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        making.make(folder, tmp_path / f"{name}.jsonl", 10, Cloze, seed, {})
    a, b, c = ((tmp_path / f"{name}.jsonl").read_bytes() for name in "abc")
    assert a == b != c
