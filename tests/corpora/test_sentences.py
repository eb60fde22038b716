"""Sentences tile their text, and are what a person would call one."""

import random

import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.corpora.sentences import normalised, sentences_of

PIECES = st.sampled_from(
    ["Dr. Smith went. ", "It is 3.5 m! ", "Population: 43\n", "\n\n", "=====\n", " ", "\t", "| a | b |\n", "- item ",
     "“Quoted.” ", "e.g. this\r\n", "日本。", "\u2028", "\0", "x" * 50 + "\n", "```\n", "İ", "é"]
)  # fmt: skip


def said(text):
    return [s.words for s in sentences_of(text)]


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=20).map("".join), st.text(max_size=200)))
def test_they_tile_the_text(text):
    """Joined they are the text; there are none only where the text says nothing."""
    found = sentences_of(text)
    assert "".join(text[s.start : s.end] for s in found) == (text if found else "")
    assert bool(found) == any(c.isalnum() or c == "_" for c in normalised(text))
    assert all(s.words == normalised(text[s.start : s.end]) for s in found)


def test_a_line_is_a_border_and_an_abbreviation_is_none():
    text = "Dr. Smith left the U.S. Army. He was 3.5 m tall.\nPopulation: 43,576,691 (July 2021 est.)\nArea: 5"
    assert said(text) == [
        "Dr. Smith left the U.S. Army.", "He was 3.5 m tall.", "Population: 43,576,691 (July 2021 est.)", "Area: 5",
    ]  # fmt: skip
    assert [s.label for s in sentences_of(text)] == [None, None, "Population", "Area"]


PROSE = (
    "The primary road crosses the river at the old bridge, which was built of stone in the year 1650 by masons from "
    "the north. It fell in the flood of 1871. Since then people have gone by boat, which takes half an hour where the "
    "current is strong, and nobody has thought of building another one."
)


def wrapped(text, width):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


@pytest.mark.parametrize("width", [48, 60, 72, 79, 100])
def test_wrapped_lines_are_one_paragraph(width):
    assert said(wrapped(PROSE, width)) == said(PROSE)
    assert len(said(PROSE)) == 3


def test_a_line_that_was_edited_and_not_filled_anew_goes_on():
    text = (
        "The old bridge, which was built of stone in the year 1650 by masons\nfrom the north of `Bohemia`_ with lamps,"
        "\n`carried`_ over the river by boats, and by\n:role:`sheep`, which nobody counted before the water took it."
    )
    assert len(said(text)) == 1


def test_lines_of_a_list_a_table_and_a_verse_stay_lines():
    for text in (
        "- the first item of this list, which is rather long\n- the second item of it\n- the third",
        "| Name of the river | Length in kilometres |\n|---|---|\n| Danube, which is long | 2850 |",
        ":param x: the length of the river, in kilometres\n:param y: the length of the bridge, in metres, if any",
        "Roses are red\nviolets are blue\nsugar is sweet",
        "Country name - conventional long form: Republic of Benin\nCountry name - former: Dahomey, and more words",
    ):
        assert len(said(text)) == sum(any(c.isalpha() for c in line) for line in text.splitlines())


def test_labels_of_fields_items_and_table_rows():
    text = "- **Licence**: MIT\n| Danube | 2850 |\nSee https://example.org/a: b\nhttp://example.org\nSo: X is. And y: z"
    found = {s.words: (s.label, s.opens) for s in sentences_of(text)}
    assert found["- **Licence**: MIT"] == ("Licence", True)
    assert found["| Danube | 2850 |"] == ("Danube", True)
    assert found["http://example.org"] == (None, True)
    assert found["So: X is."] == ("So", True)
    assert found["And y: z"] == ("So", False)


def test_what_is_the_same_but_for_its_writing():
    assert normalised("“a” – it’s\n\tb") == normalised('"a" - it\'s b')
    assert normalised("Title\n=====") == normalised("Title\n=========") == "Title"
    assert normalised("a\u200bb\ufeff") == "ab"
    assert normalised("e\u0301") == normalised("é")
    assert normalised("x == y --z") == "x == y --z"
    assert normalised("``x`` -- so") == normalised("`x` — so")


def test_any_order_of_words_costs_about_the_same():
    """No pattern goes astray on a long line without an end."""
    rng = random.Random(0)
    text = " ".join(rng.choice(["label", "|", "**", "a" * 40, "-", "1."]) for _ in range(50_000))
    assert sum(s.end - s.start for s in sentences_of(text)) == len(text)
