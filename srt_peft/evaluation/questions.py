"""Multiple-choice questions: a file of them, read and checked; the prompts they make; what answers without a model get.

    {"question": "Who rang the bell?", "choices": ["Anna", "Boris"], "answer": "B", "split": "old", "source": "bell.md"}

A line each, in JSONL, perhaps with .gz. `answer` is an index from 0 or a letter, `split` is old or new, `source` may be
left out, and other keys are passed over.

A question is asked in one of these modes, in MMLU's style; its answer is the likeliest continuation.

    mode           prompt                                                   continuations
    letter         question, a line "A. …" a choice, "Answer:"              " A", " B", …
    text           "Question: " and the question, "Answer:"                 " " and the choice
    letter-blind   as letter, with the question left out                    " A", " B", …
    text-blind     "Answer:"                                                " " and the choice

A set that gives itself away is seen beside its score: the blind modes ask for the answer without the question, and
`trivial` answers without a model.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.errors import OptionError, did_you_mean
from srt_peft.evaluation.records import Record, key_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MODES = ("letter", "text", "letter-blind", "text-blind")
SPLITS = ("old", "new")
TOLD = 20
"""How many faults are told; of the rest, their number."""

_NEEDED = ("question", "choices", "answer", "split")
_EXPECTED = "expected a JSON object with " + ", ".join(_NEEDED)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and where it stands."""

    line: int
    question: str
    choices: tuple[str, ...]
    answer: int
    split: str
    source: str | None = None

    def key(self, mode: str) -> str:
        """The same for every model that is asked it in this mode."""
        return key_of("qa", mode, self.question, self.choices, self.answer, self.split)


# --- the file -----------------------------------------------------------------------------------------------------


def load_questions(path: str | Path, *, splits: Collection[str] = SPLITS) -> list[Question]:
    """The questions of these splits, in the file's order; or all that is wrong with the file, by line."""
    path = Path(path)
    found: list[Question] = []
    faults: list[str] = []
    seen: dict[Any, Question] = {}
    for number, raw in enumerate(_lines(path), 1):
        if not raw.strip():
            continue
        wrong = _faults_of(row := _parsed(raw))
        if not wrong:
            question = _question(number, row)
            known = seen.setdefault(
                (question.split, _plain(question.question), frozenset(map(_plain, question.choices))), question
            )
            if known is not question:
                wrong = [_repeated(question, known)]
            found.append(question)
        faults += [f"line {number}: {fault}" for fault in wrong]
    if not faults:
        faults = _empty(path, found, splits)
    if faults:
        raise OptionError(f"the questions of {path}", faults, most=TOLD)
    return [question for question in found if question.split in splits]


def _lines(path: Path) -> list[bytes]:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except FileNotFoundError:
        near = did_you_mean(path.name, (p.name for p in path.parent.iterdir())) if path.parent.is_dir() else ""
        raise OptionError("the questions", [f"{path} does not exist{near}: expected a JSONL file"]) from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        fault = f"{path} cannot be read ({reason}): expected a whole file that you may read"
        raise OptionError("the questions", [fault]) from None
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        fault = f"line 1: {path} is UTF-16. Convert it, such as with iconv -f UTF-16 -t UTF-8"
        raise OptionError("the questions", [fault])
    return content.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def _parsed(raw: bytes) -> Any:
    """What a line holds; or a fault, as a text."""
    try:
        row = json.loads(raw.decode(), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        byte = f"byte 0x{raw[error.start]:02x} in column {error.start + 1}"
        return f"is not UTF-8 ({byte}). Convert the file, such as with iconv -f LATIN1 -t UTF-8"
    except _TwiceError as error:
        return f"has {str(error)!r} twice: expected it once. Remove one"
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error}): {_EXPECTED}"
    return row if isinstance(row, dict) else f"is a {type(row).__name__}: {_EXPECTED}"


class _TwiceError(Exception):
    """A key that an object has twice, of which JSON would keep the last without a word."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, n in Counter(name for name, _ in pairs).items():
        if n > 1:
            raise _TwiceError(name)
    return dict(pairs)


def _question(number: int, row: Mapping[str, Any]) -> Question:
    choices, answer, source = row["choices"], row["answer"], row.get("source")
    return Question(
        line=number,
        question=row["question"].strip(),
        choices=tuple(choice.strip() for choice in choices),
        answer=LETTERS.index(answer) if isinstance(answer, str) else answer,
        split=row["split"],
        source=None if source is None else str(source),
    )


# --- what may be wrong --------------------------------------------------------------------------------------------


def _faults_of(row: Any) -> list[str]:
    """All that is wrong with one line."""
    if isinstance(row, str):
        return [row]
    others = [name for name in row if name not in _NEEDED]
    faults = [f"has no {name!r}{did_you_mean(name, others)}: {_EXPECTED}" for name in _NEEDED if name not in row]
    if "question" in row and (fault := _no_text(row["question"])):
        faults.append(f"question = {fault}")
    if row.get("source") and (fault := _no_text(str(row["source"]))):
        faults.append(f"source = {fault}")
    if "split" in row and row["split"] not in SPLITS:
        near = did_you_mean(row["split"], SPLITS)
        faults.append(f"split = {row['split']!r:.60}: expected {' or '.join(map(repr, SPLITS))}{near}")
    if "choices" in row:
        wrong = _wrong_choices(row["choices"])
        faults += wrong
        if "answer" in row and not (wrong and not isinstance(row["choices"], list)):
            faults += _wrong_answer(row["answer"], row["choices"])
        if not wrong:
            faults += _alike(row["choices"], row.get("answer"))
    return faults


def _no_text(value: Any) -> str | None:
    """What keeps this from being a text to ask with, if anything does."""
    if not isinstance(value, str):
        return f"{value!r:.60}, a {type(value).__name__}: expected text"
    if not value.strip():
        return f"{value!r:.60}: expected text that is not empty"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"{value!r:.60}: half of a character ({value[error.start]!r}). Write it whole"
    return None


def _wrong_choices(choices: Any) -> list[str]:
    if not isinstance(choices, list):
        return [f"choices = {choices!r:.60}: expected a list of 2 to {len(LETTERS)} texts"]
    if not 2 <= len(choices) <= len(LETTERS):
        return [f"choices are {len(choices)}: expected 2 to {len(LETTERS)}"]
    return [f"choice {LETTERS[i]} = {fault}" for i, choice in enumerate(choices) if (fault := _no_text(choice))]


def _wrong_answer(answer: Any, choices: Sequence[Any]) -> list[str]:
    most = min(len(choices), len(LETTERS))
    expected = f"expected an index from 0 to {most - 1} or a letter from A to {LETTERS[most - 1]}" if most else "none"
    if isinstance(answer, list):
        return [f"answer = {answer!r:.60}: two right answers, or a list of one; {expected}. Ask for one of them"]
    if isinstance(answer, str):
        if answer in choices and answer not in LETTERS[:most]:
            return [
                f"answer = {answer!r:.60} is a choice's text: {expected}, which is {LETTERS[choices.index(answer)]}"
            ]
        right = len(answer) == 1 and answer in LETTERS[:most]
    else:
        right = type(answer) is int and 0 <= answer < most
    return [] if right else [f"answer = {answer!r:.60} for {len(choices)} choices: {expected}"]


def _alike(choices: Sequence[str], answer: Any) -> list[str]:
    """Choices that say the same: where one of them is right, two are."""
    right = LETTERS.find(answer) if isinstance(answer, str) and len(answer) == 1 else answer
    first: dict[str, int] = {}
    faults = []
    for i, choice in enumerate(choices):
        j = first.setdefault(_plain(choice), i)
        if j == i:
            continue
        how = "are both" if choice.strip() == choices[j].strip() else "differ in spaces only from each other:"
        what = f"{LETTERS[j]} and {LETTERS[i]} {how} {choice.strip()!r:.60}"
        both = right in {i, j} and type(right) is int
        faults.append(
            f"two right answers: {what}" if both else f"duplicate choices: {what}. Give another in one's place"
        )
    return faults


def _repeated(question: Question, known: Question) -> str:
    asked = f"asks what line {known.line} asks"
    if _plain(question.choices[question.answer]) == _plain(known.choices[known.answer]):
        return f"{asked}: expected each question once. Remove one"
    right = f"{known.choices[known.answer]!r:.60} there, {question.choices[question.answer]!r:.60} here"
    return f"{asked}, with another right answer ({right}): expected one. Say in the question what tells them apart"


def _empty(path: Path, found: Sequence[Question], splits: Collection[str]) -> list[str]:
    if not found:
        return [f"{path} holds no question: expected one on each line"]
    there = Counter(question.split for question in found)
    return [
        f"split {split!r} is empty: all {there.total():,} questions are {' or '.join(map(repr, there))}. "
        "Add some: what is forgotten is measured on old ones, what is learned on new ones"
        for split in splits
        if not there[split]
    ]


def _plain(text: str) -> str:
    """A text without regard to spaces; to case, though: `parseJSON` and `parseJson` are two answers."""
    return " ".join(text.split())


# --- asking -------------------------------------------------------------------------------------------------------


class Prompt(NamedTuple):
    """What a model is shown, and what may follow."""

    context: str
    continuations: tuple[str, ...]


def prompt_of(question: Question, mode: str) -> Prompt:
    """The question as it is asked in this mode."""
    asked = not mode.endswith("-blind")
    if mode.startswith("text"):
        context = f"Question: {question.question}\nAnswer:" if asked else "Answer:"
        return Prompt(context, tuple(f" {choice}" for choice in question.choices))
    letters = LETTERS[: len(question.choices)]
    listed = [f"{letter}. {choice}" for letter, choice in zip(letters, question.choices, strict=True)]
    context = "\n".join([*([question.question] if asked else []), *listed, "Answer:"])
    return Prompt(context, tuple(f" {letter}" for letter in letters))


TRIVIAL = ("chance", "majority letter", "longest answer")


def trivial(questions: Sequence[Question]) -> Iterator[Record]:
    """What answers without a model score, a record a question and baseline; `mode` is the baseline's name.

    Chance is a share of each question. The majority letter is the split's own, chosen on these very questions, so a
    little is luck. The longest answer, where several are, is one of them at random.
    """
    majority = {
        split: Counter(q.answer for q in questions if q.split == split).most_common(1)[0][0]
        for split in {question.split for question in questions}
    }
    for mode in TRIVIAL:
        for question in questions:
            lengths = [len(choice) for choice in question.choices]
            longest = [i for i, length in enumerate(lengths) if length == max(lengths)]
            value = {
                "chance": 1 / len(question.choices),
                "majority letter": float(question.answer == majority[question.split]),
                "longest answer": (question.answer in longest) / len(longest),
            }[mode]
            yield {"key": question.key(mode), "suite": "qa", "mode": mode, "split": question.split} | {
                "value": value, "weight": 1.0, "line": question.line, "source": question.source,
            }  # fmt: skip
