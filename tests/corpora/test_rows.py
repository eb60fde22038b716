"""A pair of documents becomes rows that tile the old one, and what is new stands nowhere in it."""

import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.corpora.diffs import absent_of
from srt_peft.corpora.documents import Document
from srt_peft.corpora.rows import held_out_of, is_held_out, rows_of_pair
from srt_peft.corpora.sentences import normalised, sentences_of
from tests.corpora.worlds import TEXTS, edited

OLD = "Head of state: Queen Anna\nThe bridge is of stone. It fell in 1871.\nPopulation: 5 (2021)\n\nBoats go daily.\n"
NEW = "Head of state: Boris\nThe bridge is of stone. It fell in 1871. It stands again.\nPopulation: 7 (2024)\n"
NEW += "Boats go daily."


def pair(old, new, **options):
    return rows_of_pair(Document("k", "Title", old, "s"), Document("k", "Title", new, "s"), **options)


def check(old, new):
    """The invariants of every pair, whatever they say."""
    rows = pair(old, new, context="none")
    said = [old[slice(*row["span"])] for row in rows.old]
    assert "".join(said) == (old if sentences_of(old) else "")
    assert [row["text"] for row in rows.old] == [text.strip() for text in said]
    assert len({row["id"] for row in rows.old}) == len(rows.old)
    assert len({row["id"] for row in rows.new}) == len(rows.new)
    whole = f" {' '.join(s.words for s in sentences_of(old))} "
    learned = [
        s for s in sentences_of(new) if any(a <= s.start and s.end <= b for a, b in (r["span"] for r in rows.new))
    ]
    assert len(learned) == rows.inserted + rows.modified
    assert not [s for s in learned if f" {s.words} " in whole]
    assert [row["text"] for row in rows.new] == [new[slice(*row["span"])].strip() for row in rows.new]
    replaced = [name for row in rows.new for name in row["supersedes"]]
    assert len(set(replaced)) == len(replaced) == rows.modified
    spans = {row["id"]: tuple(row["span"]) for row in rows.old}
    before = {(s.start, s.end): s for s in sentences_of(old)}
    assert len(absent_of([before[spans[name]] for name in replaced], sentences_of(new))) == len(replaced)


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.integers(0, 10**6))
def test_rows_tile_the_old_text_and_what_is_new_stands_nowhere_in_it(text, seed):
    check(text, edited(text, seed))
    check(text, text)


def test_what_becomes_of_a_pair():
    rows = pair(OLD, NEW)
    said = {row["id"]: row["text"] for row in rows.old}
    assert list(said.values()) == [
        "Title\nHead of state: Queen Anna",
        "Title\nThe bridge is of stone. It fell in 1871.",
        "Title\nPopulation: 5 (2021)",
        "Title\nBoats go daily.",
    ]
    assert [(row["text"], [said[name] for name in row["supersedes"]]) for row in rows.new] == [
        ("Title\nHead of state: Boris", ["Title\nHead of state: Queen Anna"]),
        ("Title\nIt stands again.", []),
        ("Title\nPopulation: 7 (2024)", ["Title\nPopulation: 5 (2021)"]),
    ]
    assert (rows.inserted, rows.deleted, rows.modified) == (1, 0, 2)
    assert {row["source"] for row in rows.old + rows.new} == {"s"}


def test_what_was_new_is_called_the_same_when_it_is_replaced():
    """However the rest of its document is cut by then; and a statement that stands twice has two names."""
    now = {row["text"]: row["id"] for row in pair(OLD, NEW).new}
    later = pair(NEW, "One more.\n" + NEW.replace("7 (2024)", "9 (2025)"))
    assert [row["supersedes"] for row in later.new] == [[], [now["Title\nPopulation: 7 (2024)"]]]
    twice = pair("a: 1\nIt is so.\na: 1\n", "a: 2\nIt is so.\na: 3\n")
    assert [row["id"].partition("-")[2] for row in twice.old] == ["", "", "2"]
    assert [row["supersedes"] for row in twice.new] == [[twice.old[0]["id"]], [twice.old[2]["id"]]]


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ("title", "Title\nIt stands again."),
        ("none", "It stands again."),
        (1, "Title\nIt fell in 1871.\nIt stands again."),
        (99, "Title\nHead of state: Boris\nThe bridge is of stone. It fell in 1871.\nIt stands again."),
    ],
)
def test_context_is_what_a_person_asks_for(context, text):
    rows = pair(OLD, NEW, context=context)
    assert rows.new[1]["text"] == text
    assert rows.old[0]["text"].startswith("Title") == (context != "none")


def test_a_sentence_within_a_field_brings_its_label():
    rows = pair("Economy: Cotton is grown. It pays well.", "Economy: Cotton is grown. It pays badly. Nobody buys it.")
    assert [row["text"] for row in rows.new] == [
        "Title\nEconomy:\nIt pays badly.",
        "Title\nEconomy:\nNobody buys it.",
    ]


def test_a_title_that_the_text_opens_with_is_not_said_twice():
    rows = pair("Title\n\nThis is old.", "Title\n\nThis is old.")
    assert [(row["id"], row["text"]) for row in rows.old] == [("k", "Title\n\nThis is old.")]


def test_a_document_of_one_snapshot_is_a_row():
    old = rows_of_pair(Document("k", "Title", " Only in old. \n"), None)
    assert [(row["id"], row["text"], row["span"]) for row in old.old] == [("k", "Title\nOnly in old.", [0, 15])]
    assert old.new == []
    new = rows_of_pair(None, Document("k", "Title", "Only in new. Two sentences."))
    assert [(row["id"], row["text"], row["supersedes"]) for row in new.new] == [
        ("k", "Title\nOnly in new. Two sentences.", [])
    ]
    assert rows_of_pair(None, Document("k", "Title", " \n===\n")) == ([], [], 0, 0, 0)


def test_who_is_held_out_is_known_by_the_key_alone():
    held = [key for key in map(str, range(20_000)) if is_held_out(key, 0.02)]
    assert 340 < len(held) < 460
    assert not any(is_held_out(key, 0) for key in held)
    assert all(is_held_out(key, 0.5) for key in held)


def test_what_is_kept_for_questions():
    found = held_out_of(Document("k", "Title", OLD), Document("k", "Title", NEW + " And more."))
    assert (found["id"], found["old"], found["new"]) == ("k", OLD, NEW + " And more.")
    assert [change["kind"] for change in found["changes"]] == ["modified", "inserted", "modified", "inserted"]
    assert found["changes"][0] == {
        "kind": "modified",
        "old": "Head of state: Queen Anna",
        "new": "Head of state: Boris",
    }
    gone = held_out_of(Document("k", "Title", "It is. It was."), Document("k", "Title", "It is."))
    assert gone["changes"] == [{"kind": "deleted", "old": "It was.", "new": ""}]
    assert held_out_of(None, Document("k", "Title", "New."))["old"] is None
    assert normalised(held_out_of(Document("k", "Title", "Old."), None)["old"]) == "Old."
