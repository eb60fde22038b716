"""Each check refuses what it is there for, and nothing else."""

import pytest

from srt_peft.corpora.qa.checks import FORM, SUPPORT, Draft, Grounds, faults_of

GROUNDS = Grounds("Kestrel Bay", "Kestrel Bay has 4,210 inhabitants. Its mayor, Anna Berg, took office on 3 May 2024.")
GOOD = Draft("How many inhabitants does Kestrel Bay have?", "4,210", ("3,950", "4,870", "5,120"))


def but(**changes):
    """The good question with something else in it."""
    kept = {name: getattr(GOOD, name) for name in ("question", "right", "wrong", "kind")}
    return Draft(**{**kept, **changes})


def test_a_good_question_passes():
    assert list(faults_of(GOOD, GROUNDS)) == []


FAULTY = {
    "not four choices": [{"wrong": ("3,950", "4,870")}, {"wrong": ("1", "2", "3", "4")}],
    "empty, endless or no single line": [
        {"question": "  "},
        {"question": "a\nb"},
        {"right": ""},
        {"wrong": ("3,950", "x" * 201, "5,120")},
        {"question": "How \ud83d many inhabitants?"},
        {"question": "How many\u202e inhabitants of Kestrel Bay?"},
    ],
    "choices that say the same": [
        {"wrong": ("3,950", "3950", "5,120")},
        {"wrong": ("3,950", "4210", "5,120")},
        {"right": "1.5 million", "wrong": ("1,500,000", "2 million", "3 million")},
        {"right": "the Oder", "wrong": ("Oder", "Drava", "Isar")},
        {"wrong": ("3,950", "4,870", " 4,870 ")},
    ],
    "more than one right choice": [
        {"right": "Anna Berg", "wrong": ("Mayor Anna Berg", "Boris Conti", "Clara Duval")},
        {"wrong": ("3,950", "4,870", "all of the above")},
        {"wrong": ("3,950", "4,870", "both A and B")},
    ],
    "says its own answer": [{"question": "Kestrel Bay, of 4,210 inhabitants, has how many inhabitants?"}],
    "leans on a text that is not shown": [
        {"question": "According to the passage, how many inhabitants does Kestrel Bay have?"},
        {"question": "Kestrel Bay: what belongs in the gap of “It has ____ inhabitants.”?"},
    ],
    "right choice not borne out by the passage": [
        {"right": "4,211"},
        {"right": "210"},
        {"right": "the office of mayor since 4 May 2024"},
    ],
    "wrong choice stands in the passage": [{"wrong": ("3,950", "4,870", "2024")}],
    "not about the passage": [{"question": "Which planet circles Jupiter fastest among Galilean moons?"}],
}


def test_no_check_is_without_a_case():
    assert FAULTY.keys() == {*FORM, *SUPPORT}


@pytest.mark.parametrize(("name", "changes"), [(name, c) for name, cases in FAULTY.items() for c in cases])
def test_each_fault_is_found_by_its_name(name, changes):
    assert name in list(faults_of(but(**changes), GROUNDS))


@pytest.mark.parametrize(
    "changes",
    [
        {"right": "took office on 3 May 2024 as mayor", "wrong": ("a", "b", "c")},  # in other words
        {"right": "3 May 2024", "wrong": ("3 May 2023", "13 May 2024", "3 June 2024")},  # 3 May 2024 is in none of them
        {"right": "4,210", "wrong": ("4,2100", "14,210", "210")},  # figures, not characters
        {"wrong": ("all of the men", "4 above sea level", "5,120")},
    ],
)
def test_what_only_looks_like_a_fault_is_none(changes):
    assert list(faults_of(but(**changes), GROUNDS)) == []
