"""What is seen in a statement, and what it is called."""

import pytest

from srt_peft.corpora.qa.values import number_of, values_of
from srt_peft.corpora.qa.words import stands_in


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("Population: 43,576,691 (July 2021 est.)", [("number", "43,576,691")]),
        ("GDP: $12.3 billion (2021 est.)", [("number", "$12.3 billion")]),
        ("Growth rate: -1.25% (2021 est.) country comparison", [("number", "-1.25%")]),
        ("Built in 1898, opened on 3 May 1901.", [("year", "1898"), ("date", "3 May 1901")]),
        ("Chief of state: President Anna Berg (since 12 May 2024)", [("name", "President Anna Berg")]),
        ("The treaty was signed by Anna van der Berg and Kara C. McDonald in Bergen.",
         [("name", "Anna van der Berg and Kara C. McDonald"), ("name", "Bergen")]),
        ("Telephone: [370] (5) 266-5500", []),
        ("Python 3.11.2 was released on 2023-02-08.", [("date", "2023-02-08")]),
        ("Post-History: 16-Jul-2020, as of 2.x", [("date", "16-Jul-2020")]),
        ("Nobody said anything at all.", []),
        ("The 7th of 12-year plans", [("number", "12")]),
        ("Members: 1, 2, 3, 4, 5, 6, 7, 8, 9", []),
    ],
)  # fmt: skip
def test_values_are_found(statement, found):
    """Dates of estimates, version numbers, dialling codes, lists and what opens a sentence are none."""
    assert [(value.kind, value.text) for value in values_of(statement)] == found


def test_a_value_knows_its_place():
    statement = "Population: 43,576,691 of 5 million"
    for value in values_of(statement):
        assert statement[value.start : value.end] == value.text
        assert value.label == "population"


def test_numbers_written_alike_have_one_shape():
    shapes = [
        values_of(f"Value: {text} in all")[0].shape for text in ("1,234", "56,789,123", "12.5%", "7.25%", "7%", "08")
    ]
    assert shapes[0] == shapes[1]
    assert shapes[2] == shapes[3]
    assert len(set(shapes)) == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [("1,234", 1234), ("$12.3 billion", 12.3e9), ("−3.5%", -3.5), ("US$5 thousand", 5000), ("Anna", None), ("08", 8)],
)
def test_numbers_are_read(text, value):
    assert number_of(text) == value


@pytest.mark.parametrize(
    ("part", "whole", "there"),
    [
        ("5", "1.5 million", False),
        ("5", "5,000", False),
        ("5", "5.", True),
        ("5", "a 5, b", True),
        ("Berg", "Bergen", False),
        ("anna  berg", "ANNA BERG’s", True),
        ("10–20", "10-20", True),
        ("", "x", False),
    ],
)
def test_a_part_stands_in_a_text_as_whole_words(part, whole, there):
    assert stands_in(part, whole) is there
