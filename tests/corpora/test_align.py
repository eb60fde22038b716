"""Which document became which."""

from srt_peft.corpora.align import align
from srt_peft.corpora.documents import Document
from tests.corpora.worlds import prose


def documents(*said):
    return {key: Document(key, title, text) for key, title, text in said}


def aligned(old, new):
    found = align(documents(*old), documents(*new))
    return [(a and a.key, b and b.key) for a, b in found.pairs], dict(found.by)


LONG = prose(1, 30)


def test_by_key_whatever_they_say():
    assert aligned([("a", "A", "One text."), ("b", "B", "Two.")], [("b", "X", "Other words."), ("a", "A", "1")]) == (
        [("a", "a"), ("b", "b")],
        {"key": 2},
    )


def test_by_title_whatever_its_writing_where_they_are_alike():
    old = [("1", "The_Old  Bridge", LONG), ("2", "README", "all of this is about boats and their fares in winter")]
    new = [("9", "the old bridge", LONG + prose(2, 6)), ("8", "README", "sheep were counted here by two people, twice")]
    assert aligned(old, new) == ([("1", "9"), ("2", None), (None, "8")], {"title": 1})


def test_a_title_that_several_have_says_nothing():
    old = [("1", "Intro", LONG), ("2", "Intro", prose(5, 30))]
    assert aligned(old, [("3", "Intro", prose(6, 30))])[0] == [("1", None), ("2", None), (None, "3")]


def test_a_rename_is_found_by_what_it_says_and_the_most_alike_are_paired():
    old = [("a.md", "A", LONG), ("b.md", "B", prose(3, 30))]
    edited = LONG.replace("river", "stream", 2)
    new = [("copy.md", "C", LONG[: len(LONG) * 3 // 4]), ("moved.md", "M", edited), ("x.md", "X", prose(4, 30))]
    pairs, by = aligned(old, new)
    assert pairs == [("a.md", "moved.md"), ("b.md", None), (None, "copy.md"), (None, "x.md")]
    assert by == {"content": 1}


def test_of_short_texts_only_the_same_was_renamed():
    assert aligned([("a", "A", "To do.")], [("b", "B", "To do.")])[1] == {"content": 1}
    assert aligned([("a", "A", "To do.")], [("b", "B", "To do, soon.")])[1] == {}


def test_a_rename_is_found_where_words_have_no_spaces_between_them():
    text = "桥是石头做的，它是由市长在五月建造的。船只每天从城里出发两次，水流强的地方要走半个小时。"
    assert aligned([("旧", "旧", text)], [("新", "新", text.replace("五月", "六月"))])[1] == {"content": 1}
