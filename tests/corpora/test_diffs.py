"""What changed, held against a slow and obvious second implementation."""

import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.corpora.diffs import changes_of, in_order, likeness
from srt_peft.corpora.sentences import sentences_of
from tests.corpora import naive
from tests.corpora.worlds import TEXTS, edited


def changed(old, new):
    """The texts of what changed."""
    before, after = sentences_of(old), sentences_of(new)
    found = changes_of(before, after)
    return (
        [after[j].words for j in found.inserted],
        [before[i].words for i in found.deleted],
        [(before[i].words, after[j].words) for i, j in found.modified],
    )


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(0, 10**6))
def test_what_is_new_and_gone_and_replaced_is_so_by_definition(text, seed):
    """New: stands nowhere in the old text. Gone: nowhere in the new. Replaced: gone and new, each at most once."""
    other = edited(text, seed)
    old, new = sentences_of(text), sentences_of(other)
    found = changes_of(old, new)
    gone, fresh = [i for i, _ in found.modified], [j for _, j in found.modified]
    assert sorted(found.inserted + fresh) == [j for j, s in enumerate(new) if not naive.stands(s, old)]
    assert sorted(found.deleted + gone) == [i for i, s in enumerate(old) if not naive.stands(s, new)]
    assert len(set(gone)) == len(gone)
    assert len(set(fresh)) == len(fresh)
    once = naive.labelled_once(old) & naive.labelled_once(new)
    for i, j in found.modified:
        assert old[i].label in once or naive.alike(old[i], new[j]) > 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), max_size=4), st.lists(st.sampled_from("abcdef"), max_size=4))
def test_pairs_are_the_most_alike_of_all_that_cross_nowhere(left, right):
    old = sentences_of("".join(f"one {x} two {x}{x} four.\n" for x in left))
    new = sentences_of("".join(f"one {x} two {x}{x} five.\n" for x in right))
    table = likeness(old, new)
    pairs = in_order(table)
    assert pairs == sorted(pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert sum(table[i, j] for i, j in pairs) == pytest.approx(naive.best_total(old, new))


def test_between_unchanged_sentences_the_pairs_are_those_of_the_textbooks_alignment():
    """Where no sentence stands twice, the longest common subsequence leaves the same gaps."""
    for seed in range(30):
        text = "".join(f"Fact number {seed}-{k} of the book says that {k * 7919 % 100} is so. " for k in range(12))
        old, new = sentences_of(text), sentences_of(edited(text, seed, moving=False))
        found = changes_of(old, new)
        expected = set()
        for left, right in naive.gaps(old, new):
            left = [i for i in left if not naive.stands(old[i], new)]  # noqa: PLW2901
            right = [j for j in right if not naive.stands(new[j], old)]  # noqa: PLW2901
            table = likeness([old[i] for i in left], [new[j] for j in right])
            expected |= {(left[i], right[j]) for i, j in in_order(table)}
        assert set(found.modified) == expected


def test_what_has_moved_is_neither_new_nor_gone():
    first, second = "The bridge fell in the flood. Nobody was hurt.", "The boats go twice a day.\nFare: 2 crowns"
    assert changed(f"{first}\n\n{second}", f"{second}\n\n{first}") == ([], [], [])


def test_wrapped_anew_it_is_the_same():
    """Also where the lines are so ragged that they are not taken for a paragraph."""
    ragged = "The bridge fell in the flood of\n1871 after\nweeks of rain, and Nobody\nwas hurt.\n\nFare: 2"
    assert changed(ragged, " ".join(ragged.split())) == ([], [], [])


def test_a_label_finds_its_line_however_much_it_changed():
    old = "Head of state: Queen Anna\nPopulation: 5 (2021 est.)\nArea: 7"
    new = "Area: 7\nPopulation: 46,123 as of July\nHead of state: President Boris LAMP (since 2023)"
    inserted, deleted, modified = changed(old, new)
    assert (inserted, deleted) == ([], [])
    assert set(modified) == {
        ("Population: 5 (2021 est.)", "Population: 46,123 as of July"),
        ("Head of state: Queen Anna", "Head of state: President Boris LAMP (since 2023)"),
    }


def test_the_field_of_another_year_replaces_nothing():
    inserted, deleted, modified = changed("GDP 2019: $5 billion (2019 est.)", "GDP 2022: $6 billion (2022 est.)")
    assert modified == []
    assert inserted == ["GDP 2022: $6 billion (2022 est.)"]
    assert deleted == ["GDP 2019: $5 billion (2019 est.)"]


def test_a_field_that_was_renamed_is_found_by_its_name_and_not_by_the_form_of_its_value():
    old = "Population: 8,453,550 (July 2021 est.)\nElectricity - from nuclear fuels: 3% of total capacity (2017 est.)\n"
    old += "Youth unemployment, ages 15-24: 8% (2019)"
    new = "Population - total: 8,860,574\nPopulation - female: 4,457,469 (2024 est.)\n"
    new += (
        "Electricity sources - solar: 5% of total capacity (2022 est.)\nYouth unemployment rate (ages 15-24): 9% (2023)"
    )
    inserted, deleted, modified = changed(old, new)
    assert modified == [
        ("Population: 8,453,550 (July 2021 est.)", "Population - total: 8,860,574"),
        ("Youth unemployment, ages 15-24: 8% (2019)", "Youth unemployment rate (ages 15-24): 9% (2023)"),
    ]
    assert [line.split(":")[0] for line in inserted] == ["Population - female", "Electricity sources - solar"]
    assert [line.split(":")[0] for line in deleted] == ["Electricity - from nuclear fuels"]


def test_an_unrelated_sentence_beside_a_rewrite_replaces_nothing():
    old = "The bridge was built in 1650 by masons. Boats go daily."
    new = (
        "A ferry was bought last year with money from taxes. The bridge was rebuilt in 1872 by masons. Boats go daily."
    )
    assert changed(old, new) == (
        ["A ferry was bought last year with money from taxes."],
        [],
        [("The bridge was built in 1650 by masons.", "The bridge was rebuilt in 1872 by masons.")],
    )


@pytest.mark.parametrize(
    ("old", "new", "other"),
    [
        ("它是由市长在五月建造的。", "它是由市长在六月建造的。", "船只每天从城里出发两次。"),
        (
            "それは五月に市長によって建てられた。",
            "それは六月に市長によって建てられた。",
            "船は毎日町から二回出ている。",
        ),
    ],
)
def test_without_spaces_between_words_a_sentence_is_replaced_all_the_same(old, new, other):
    first, last = "桥是石头做的。", "冬天很冷。"
    assert changed(f"{first}{old}{last}", f"{first}{new}{last}") == ([], [], [(old, new)])
    assert changed(f"{first}{old}{last}", f"{first}{other}{last}") == ([other], [old], [])
