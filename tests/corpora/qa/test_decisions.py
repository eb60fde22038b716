"""What a person has said stands for good, and what comes of it is read by evaluation."""

import json

import pytest

from srt_peft.corpora.qa.checks import FORM, SUPPORT
from srt_peft.corpora.qa.decisions import Decisions, accepted, counts, decisions_of, digest, edited
from srt_peft.errors import DamagedError, LockedError, OptionError
from srt_peft.evaluation.questions import load_questions
from tests.corpora.qa import world
from tests.corpora.qa.test_making import run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = world.build(tmp_path_factory.mktemp("decisions") / "towns")
    run("qa", "--from", folder, "--n", 6)
    return folder / "questions.jsonl"


@pytest.fixture
def questions(made, tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_bytes(made.read_bytes())
    return path


def decided(questions, *said):
    """Decide so, by numbers of questions."""
    decisions = Decisions(questions, writing=True)
    for number, decision, *more in said:
        decisions.decide({"id": decisions.rows[number]["id"], "decision": decision, **dict(*more)})
    state = [(decisions.state().get(row["id"]) or {}).get("decision") for row in decisions.rows]
    decisions.close()
    return state


def test_the_last_word_holds_and_undo_takes_it_back(questions):
    """Across a restart, as in one go; nothing is ever written over."""
    assert decided(questions, (0, "accept"), (1, "reject"), (0, "reject"), (2, "accept"))[:4] == [
        "reject",
        "reject",
        "accept",
        None,
    ]
    before = decisions_of(questions).read_bytes()
    assert decided(questions, (0, "undo"), (1, "undo"))[:4] == ["accept", None, "accept", None]
    assert decisions_of(questions).read_bytes().startswith(before)
    assert decided(questions)[:4] == ["accept", None, "accept", None]


def test_a_torn_line_is_no_decision(questions):
    """A crash in the middle of a write: what was confirmed holds, and the next line is whole."""
    decided(questions, (0, "accept"))
    with decisions_of(questions).open("a") as file:
        file.write('{"id": "')
    assert Decisions(questions).state().keys() == {Decisions(questions).rows[0]["id"]}
    assert decided(questions, (1, "accept"))[:2] == ["accept", "accept"]
    assert len(world.rows(decisions_of(questions))) == 2


def test_decisions_on_other_questions_are_refused(questions):
    rows = world.rows(questions)
    decided(questions, (0, "accept"))
    world.write(questions, [{**rows[0], "question": "Another one?"}, *rows[1:]])
    with pytest.raises(OptionError, match="holds 1 decisions on other questions"):
        Decisions(questions)


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"id": "x"}', '{"id": "x", "of": "y", "decision": "burn"}'])
def test_a_damaged_line_is_named(questions, line):
    decided(questions, (0, "accept"))
    with decisions_of(questions).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DamagedError, match=r"decisions\.jsonl, line 2 is no decision of ours"):
        Decisions(questions, writing=True)


def test_a_line_ends_where_json_lines_end(questions):
    """Not at a separator of Unicode's within a passage, which JSON writes as it is."""
    rows = world.rows(questions)
    rows[0]["passage"] += "\u2028\x85"
    questions.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    assert Decisions(questions).rows == rows


def test_two_reviews_at_once_are_refused(questions):
    first = Decisions(questions, writing=True)
    with pytest.raises(LockedError, match="is open in another review"):
        Decisions(questions, writing=True)
    first.close()
    Decisions(questions, writing=True).close()


@pytest.mark.parametrize("content", ["", "nonsense\n", "{}\n", '{"question": "q"}\n'])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "q.jsonl").write_text(content)
    with pytest.raises(OptionError, match="is no file of `srt-peft corpus qa`"):
        Decisions(tmp_path / "q.jsonl")
    with pytest.raises(OptionError, match="does not exist"):
        Decisions(tmp_path / "none.jsonl")


def test_an_edit_is_checked_as_a_model_is(questions):
    """Its form must be right; what the passage does not bear out is doubted."""
    row = world.rows(questions)[0]
    same = {name: row[name] for name in ("question", "choices", "answer")}
    assert edited(row, same) == (same, [], [])
    twice = {**same, "choices": [row["choices"][0]] * 4}
    assert edited(row, twice)[1:] == (["choices that say the same", "more than one right choice"], [])
    other = {**same, "choices": ["1", "22", "333", "4444"]}
    clean, faults, doubts = edited(row, {**other, "question": same["question"] + "\n "})
    assert (clean, faults) == (other, [])
    assert "right choice not borne out by the passage" in doubts
    for broken in (
        {},
        {**same, "answer": "E"},
        {**same, "answer": 2},
        {**same, "choices": ["a"]},
        {**same, "question": 5},
    ):
        assert edited(row, broken)[1]
    assert {"choices that say the same", "more than one right choice"} <= FORM.keys()
    assert set(doubts) <= SUPPORT.keys()


def test_what_was_kept_is_what_evaluation_reads(questions, tmp_path):
    """Accepted as they were, edited as they are now, rejected and undecided not at all; letters are dealt anew."""
    rows = world.rows(questions)
    news = [i for i, row in enumerate(rows) if row["split"] == "new"]
    change = {"question": "What is asked now?", "choices": ["k", "l", "m", "n"], "answer": "C"}
    decided(questions, *((i, "accept") for i in (0, 1, 2, 3)), (news[0], "edit", change), (news[1], "reject"))
    told = run("review", questions, "--export", tmp_path / "kept.jsonl")
    assert "4 old and 1 new questions, 1 of them edited" in told
    assert f"1 were rejected; {len(rows) - 6} are undecided" in told
    kept = load_questions(tmp_path / "kept.jsonl")
    right = [question.choices[question.answer] for question in kept]
    assert right == [row["choices"]["ABCD".index(row["answer"])] for row in rows[:4]] + ["m"]
    assert {question.answer for question in kept[:4]} == {0, 1, 2, 3}
    assert "is there already" in run("review", questions, "--export", tmp_path / "kept.jsonl", code=2)


def test_without_a_decision_there_is_nothing_to_export(questions, tmp_path):
    assert "was accepted yet" in run("review", questions, "--export", tmp_path / "kept.jsonl", code=1)
    assert not (tmp_path / "kept.jsonl").exists()


def test_a_lopsided_choice_is_told(questions, tmp_path):
    """Whoever keeps only those whose right choice is the longest has made a set that lengths answer."""
    rows = world.rows(questions)
    for row in rows:
        row["choices"] = ["x", "yy", "zzz", "the right one"]
        row["answer"] = "D"
    world.write(questions, rows)
    decided(questions, *((i, "accept") for i in range(len(rows))))
    assert "takes the longest choice" in run("review", questions, "--export", tmp_path / "kept.jsonl")


def test_counts_add_up(questions):
    decided(questions, (0, "accept"), (1, "reject"))
    decisions = Decisions(questions)
    told = counts(decisions.rows, decisions.state())
    assert told == {"undecided": len(decisions.rows) - 2, "accept": 1, "edit": 0, "reject": 1}
    assert len(accepted(decisions.rows, decisions.state())) == 1
    assert json.loads(decisions_of(questions).read_text().splitlines()[0])["of"] == digest(decisions.rows[0])
