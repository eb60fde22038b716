"""A file of questions: what it may hold, what is told of what it may not, and what it gives away."""

import gzip
import json
import re
import subprocess
import sys

import pytest

from srt_peft.errors import OptionError
from srt_peft.evaluation.questions import MODES, Question, load_questions, prompt_of, trivial

GOOD = {"question": "Who rang?", "choices": ["Anna", "Boris", "nobody"], "answer": "B", "split": "old"}
NEW = {**GOOD, "question": "Who slept?", "split": "new"}


def write(path, rows):
    """A line a row; texts and bytes as they are."""
    lines = [
        row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row in rows
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def told(path, rows, **options):
    """The faults, without the title."""
    with pytest.raises(OptionError) as caught:
        load_questions(write(path, rows), **options)
    return list(caught.value.faults)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "qa.jsonl"


def test_questions_are_read_as_they_stand(file):
    """Letters and indices, spaces around texts, blank lines, other keys, no source."""
    rows = [
        GOOD,
        "",
        {**NEW, "question": " Who slept?\n", "choices": [" x ", "y"], "answer": 0, "source": "bell.md", "id": 7},
    ]
    assert load_questions(write(file, rows)) == [
        Question(1, "Who rang?", ("Anna", "Boris", "nobody"), 1, "old", None),
        Question(3, "Who slept?", ("x", "y"), 0, "new", "bell.md"),
    ]


@pytest.mark.parametrize("form", ["plain", "gz", "crlf", "bom"])
def test_the_forms_that_a_file_may_have(tmp_path, form):
    content = "".join(json.dumps(row) + ("\r\n" if form == "crlf" else "\n") for row in (GOOD, NEW)).encode()
    path = tmp_path / ("qa.jsonl.gz" if form == "gz" else "qa.jsonl")
    path.write_bytes({"gz": gzip.compress, "bom": b"\xef\xbb\xbf".__add__}.get(form, bytes)(content))
    assert [question.line for question in load_questions(path)] == [1, 2]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"answer": [0, 1]}, r"answer = \[0, 1\]: two right answers, or a list of one; expected an index from 0 to 2"),
        ({"answer": 3}, "answer = 3 for 3 choices: expected an index from 0 to 2 or a letter from A to C"),
        ({"answer": -1}, "answer = -1 for 3 choices"),
        ({"answer": "D"}, "answer = 'D' for 3 choices"),
        ({"answer": "b"}, "answer = 'b' for 3 choices"),
        ({"answer": ""}, "answer = '' for 3 choices"),
        ({"answer": "AB"}, "answer = 'AB' for 3 choices"),
        ({"answer": True}, "answer = True for 3 choices"),
        ({"answer": 1.0}, "answer = 1.0 for 3 choices"),
        ({"answer": None}, "answer = None for 3 choices"),
        ({"answer": "Boris"}, "answer = 'Boris' is a choice's text: .* which is B"),
        ({"choices": ["Anna", "Boris", "Boris "]}, "two right answers: B and C are both 'Boris'"),
        ({"choices": ["Anna", "a b", "a  b"]}, "two right answers: B and C differ in spaces only .* 'a  b'"),
        ({"choices": ["a b", "Boris", "a  b"]}, "duplicate choices: A and C differ in spaces only .* 'a  b'"),
        ({"choices": ["Anna", "Boris", "Anna"]}, r"duplicate choices: A and C are both 'Anna'\. Give another"),
        ({"choices": ["Anna", "Boris", " "]}, "choice C = ' ': expected text that is not empty"),
        ({"choices": ["Anna", "Boris", 3]}, "choice C = 3, a int: expected text"),
        ({"choices": ["Anna", "Boris", "\ud83d"]}, "choice C = .* half of a character"),
        ({"choices": ["Boris"], "answer": 0}, "choices are 1: expected 2 to 26"),
        ({"choices": [str(i) for i in range(27)]}, "choices are 27: expected 2 to 26"),
        ({"choices": "AB"}, "choices = 'AB': expected a list of 2 to 26 texts"),
        ({"question": ""}, "question = '': expected text that is not empty"),
        ({"question": None}, "question = None, a NoneType: expected text"),
        ({"split": "odl"}, r"split = 'odl': expected 'old' or 'new' \(did you mean 'old'\?\)"),
        ({"split": ["old"]}, r"split = \['old'\]: expected"),
        ({"source": "\udc00"}, "source = .* half of a character"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(file, change, fault):
    """And nothing else of that question."""
    (only,) = told(file, [GOOD, NEW, {**GOOD, "question": "Who else?", **change}])
    assert re.match(f"line 3: {fault}", only), only


def test_a_missing_key_is_told_with_what_it_may_have_been_called(file):
    row = {("anwser" if key == "answer" else key): value for key, value in GOOD.items() if key != "split"}
    expected = "expected a JSON object with question, choices, answer, split"
    assert told(file, [row, NEW]) == [
        f"line 1: has no 'answer' (did you mean 'anwser'?): {expected}",
        f"line 1: has no 'split': {expected}",
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "line 2: is not JSON"),
        ("[1]", "line 2: is a list: expected a JSON object with question"),
        ("[" * 100_000, "line 2: is not JSON"),
        (json.dumps(GOOD)[:-1] + ', "answer": 0}', "line 2: has 'answer' twice: expected it once"),
        ('{"question": "Qui a sonné?"}'.encode("latin1"), r"line 2: is not UTF-8 \(byte 0xe9 in column 25\)"),
    ],
)
def test_what_is_no_question_at_all(file, line, fault):
    (only,) = told(file, [GOOD, line, NEW])
    assert re.match(fault, only), only


def test_all_faults_of_a_line_are_told(file):
    row = {"question": 3, "choices": ["x", "y", ""], "answer": 9, "split": "former"}
    assert [fault.split(": ")[1][:12] for fault in told(file, [GOOD, row, NEW])] == [
        "question = 3", "split = 'for", "choice C = '", "answer = 9 f",
    ]  # fmt: skip


def test_twenty_faults_are_told_and_the_others_counted(file):
    with pytest.raises(OptionError) as caught:
        load_questions(write(file, [{**GOOD, "question": f"{i}?", "answer": 7} for i in range(1025)]))
    title, *lines = str(caught.value).split("\n  ")
    assert title == f"1,025 faults in the questions of {file}:"
    assert len(lines) == 21
    assert lines[19].startswith("line 20: answer = 7")
    assert lines[20] == "and 1,005 more"


def test_a_question_that_stands_twice(file):
    """Whatever the order of its choices; with another right answer it has two. Other choices make another question."""
    again = {**GOOD, "question": "Who  rang?", "choices": ["Boris", "nobody", "Anna"]}
    rows = [GOOD, {**again, "answer": 0}, {**again, "answer": 1}, NEW]
    again, contradicts = told(file, rows)
    assert again == "line 2: asks what line 1 asks: expected each question once. Remove one"
    assert contradicts == (
        "line 3: asks what line 1 asks, with another right answer ('Boris' there, 'nobody' here): expected one. "
        "Say in the question what tells them apart"
    )
    assert len(load_questions(write(file, [GOOD, {**GOOD, "choices": ["Carl", "Dora"], "split": "new"}]))) == 2


def test_a_fact_that_changed_is_asked_in_both_splits(file):
    """With the answer of each: that is what an update is for."""
    changed = {**GOOD, "answer": 0, "split": "new"}
    old, new = load_questions(write(file, [GOOD, changed]))
    assert old.answer != new.answer
    assert old.key("text") != new.key("text")


def test_choices_that_differ_in_case_are_two(file):
    row = {**GOOD, "choices": ["parseJSON", "parseJson", "parse_json"], "answer": 1}
    assert len(load_questions(write(file, [row, NEW]))) == 2


def test_an_empty_split_is_told_unless_the_other_is_asked_for(file):
    (fault,) = told(file, [GOOD])
    assert fault == (
        "split 'new' is empty: all 1 questions are 'old'. Add some: what is forgotten is measured on old ones, what is "
        "learned on new ones"
    )
    assert len(load_questions(file, splits=["old"])) == 1
    assert [q.split for q in load_questions(write(file, [GOOD, NEW]), splits=["new"])] == ["new"]
    assert told(file, ["", " "]) == [f"{file} holds no question: expected one on each line"]


def test_files_that_cannot_be_read(tmp_path):
    write(tmp_path / "questions.jsonl", [GOOD])
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode() * 99)[:-20])
    (tmp_path / "wide.jsonl").write_bytes(json.dumps(GOOD).encode("utf-16"))
    for name, fault in (
        ("question.jsonl", r"does not exist \(did you mean 'questions.jsonl'\?\)"),
        ("torn.jsonl.gz", r"torn.jsonl.gz cannot be read \(Compressed file ended"),
        ("wide.jsonl", r"line 1: .*wide.jsonl is UTF-16. Convert it"),
        (".", "cannot be read .Is a directory"),
    ):
        with pytest.raises(OptionError, match=fault):
            load_questions(tmp_path / name)


# --- asking -------------------------------------------------------------------------------------------------------


def test_the_prompts():
    """MMLU's style, letter for letter."""
    question = Question(1, "Who rang?", ("Anna", "Boris\nGodunov"), 1, "old")
    assert {mode: tuple(prompt_of(question, mode)) for mode in MODES} == {
        "letter": ("Who rang?\nA. Anna\nB. Boris\nGodunov\nAnswer:", (" A", " B")),
        "text": ("Question: Who rang?\nAnswer:", (" Anna", " Boris\nGodunov")),
        "letter-blind": ("A. Anna\nB. Boris\nGodunov\nAnswer:", (" A", " B")),
        "text-blind": ("Answer:", (" Anna", " Boris\nGodunov")),
    }


def test_a_key_is_of_what_was_asked():
    """Not of where it stands; another mode, split, answer or order of choices is something else."""
    one = Question(1, "Who?", ("a", "b"), 0, "old", "x")
    others = [
        Question(1, "Who?", ("a", "b"), 1, "old"),
        Question(1, "Who?", ("b", "a"), 0, "old"),
        Question(1, "Who?", ("a", "b"), 0, "new"),
        Question(1, "What?", ("a", "b"), 0, "old"),
    ]
    assert Question(9, "Who?", ("a", "b"), 0, "old").key("letter") == one.key("letter")
    keys = {question.key(mode) for question in (one, *others) for mode in MODES}
    assert len(keys) == 20
    assert all(re.fullmatch("[0-9a-f]{16}", key) for key in keys)


def test_what_the_trivial_baselines_score():
    """By hand: two longest answers share one point, and each split has its own majority."""
    rows = [
        ("old", ("aa", "b", "c", "d"), 0),
        ("old", ("aa", "bb", "c", "d"), 1),
        ("old", ("a", "b"), 1),
        ("new", ("a", "bbb"), 0),
    ]
    records = list(
        trivial([Question(i, f"{i}?", choices, answer, split) for i, (split, choices, answer) in enumerate(rows)])
    )
    values = {}
    for record in records:
        values.setdefault(record["mode"], []).append(record["value"])
    assert values == {
        "chance": [0.25, 0.25, 0.5, 0.5],
        "majority letter": [0, 1, 1, 1],
        "longest answer": [1, 0.5, 0.5, 0],
    }
    assert [record["split"] for record in records[:4]] == ["old", "old", "old", "new"]
    assert len({record["key"] for record in records}) == 12


def test_reading_questions_loads_no_torch():
    code = (
        "import sys, srt_peft.evaluation.questions; print(*[m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
