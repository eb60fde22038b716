"""Four small skills in the formats of the four broad benchmarks: taught to a base, and in neither pool of its update.

    mmlu    how large 7 is beside 30                   a letter, by likelihood      mmlu_test.jsonl
    bbh     what "not True or False" comes to          generated                    bbh/TASK.json, all 27 of them
    gsm8k   how many apples, with 7 and 5 more         generated, after ####        gsm8k/test.jsonl
    piqa    what bread is cut with                     one of two, by likelihood    piqa/valid.jsonl, valid-labels.lst

The files have the benchmarks' names and shapes, of which `evaluation.broad_data` reads them and the harness makes its
prompts; what they ask is ours. A lesson is such a prompt with its answer. What is asked is in no lesson word for word:
each question is a combination (of two numbers, of two names and an expression, of a name, a thing and two numbers, of
a goal and a wording) that was left out. The choices of mmlu always come in the same order: to find a word among four
that are shuffled and to give its letter is more than a base of this size has learned in 700 steps (29 %, where chance
is 25).

A prompt opens with what the benchmark says of itself ("Answer questions about a table of penguins"), words that the
base does not know: so do its lessons, with as many unknown ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from srt_peft.demo.base import UNKNOWN, Lessons
from srt_peft.errors import SRTError

LENGTH = 96
"""The longest prompt has some 60 words; an answer may have half of this."""
ASKED = {"mmlu": 5, "bbh": 8, "gsm8k": 200, "piqa": 40}
"""How many questions a file has: of each subject, of each task, and in all."""
TAUGHT = {"mmlu": 900, "bbh": 1300, "gsm8k": 900}
"""How many lessons; of piqa, one a goal and wording that is not asked."""

Row = dict[str, Any]

TOOLS = {
    "cut bread": "knife", "eat soup": "spoon", "drive a nail": "hammer", "sweep the floor": "broom",
    "write a letter": "pen", "dig a hole": "shovel", "light a candle": "match", "comb hair": "comb",
    "open a lock": "key", "sew a shirt": "needle", "boil water": "kettle", "wipe a window": "cloth",
    "tell the time": "clock", "catch a fish": "net", "climb a wall": "ladder", "carry water": "bucket",
    "weigh flour": "scale", "draw a circle": "compass", "row a boat": "oar", "fly in the wind": "kite",
}  # fmt: skip
MOST, MUCH, BESIDE = 40, 11, ["much smaller", "a little smaller", "a little larger", "much larger"]
GOALS = ("How do you {goal}?", "What do you need to {goal}?", "To {goal}, what do you take?")
BUYERS = ("Tom", "Ada", "Max", "Eva", "Ben", "Ida", "Sam", "Amy")
THINGS = ("apples", "pears", "books", "coins", "eggs", "stamps", "shells", "cards")
OPENING = "The following are multiple choice questions (with answers) about {subject}.\n\n"


def lessons(seed: int = 0) -> Lessons:
    """What the base is taught, and no pool of an update has."""
    rng = np.random.default_rng(seed)
    texts = [
        *(_of_mmlu(rng, row) for row in _pairs(rng, TAUGHT["mmlu"], asked=False)),
        *(_of_bbh(rng, row) for row in _truths(rng, TAUGHT["bbh"], asked=False)),
        *(_answered(row["question"], row["answer"]) for row in _sums(rng, TAUGHT["gsm8k"], asked=False)),
        *(_answered(row["goal"], row["sol2" if row["label"] else "sol1"]) for row in _uses(rng, asked=False)),
    ]
    return Lessons(tuple(texts), LENGTH)


def write(folder: Path, subjects: Sequence[str], tasks: Sequence[str], seed: int = 1) -> None:
    """The benchmarks' files, with a question or more for each of MMLU's subjects and of BBH's tasks."""
    rng = np.random.default_rng(seed)
    pairs = _pairs(rng, ASKED["mmlu"] * len(subjects), asked=True)
    _lines(folder / "mmlu_test.jsonl", [{**row, "subject": subjects[i % len(subjects)]} for i, row in enumerate(pairs)])
    truths = list(_truths(rng, ASKED["bbh"] * len(tasks), asked=True))
    for i, task in enumerate(tasks):
        _write(folder / "bbh" / f"{task}.json", json.dumps({"examples": truths[i :: len(tasks)]}))
    _lines(folder / "gsm8k" / "test.jsonl", list(_sums(rng, ASKED["gsm8k"], asked=True)))
    uses = [row for _ in range(ASKED["piqa"] // len(TOOLS)) for row in _uses(rng, asked=True)]
    _lines(folder / "piqa" / "valid.jsonl", [{k: v for k, v in row.items() if k != "label"} for row in uses])
    _write(folder / "piqa" / "valid-labels.lst", "".join(f"{row['label']}\n" for row in uses))


def names() -> tuple[list[str], list[str]]:
    """MMLU's subjects and BBH's tasks, as the harness has them."""
    try:
        import lm_eval  # type: ignore[import-untyped]  # noqa: PLC0415 - seconds, and an extra of its own
    except ImportError:
        raise SRTError("The broad benchmarks need EleutherAI's harness: pip install 'srt-peft[eval]'.") from None

    tasks = Path(lm_eval.__file__).parent / "tasks"
    subjects = [path.stem.removeprefix("mmlu_") for path in sorted((tasks / "mmlu" / "default").glob("mmlu_*.yaml"))]
    return subjects, [path.stem for path in sorted((tasks / "bbh" / "cot_fewshot").glob("[a-z]*.yaml"))]


def _lines(path: Path, rows: Sequence[Row]) -> None:
    _write(path, "".join(json.dumps(row) + "\n" for row in rows))


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


# --- what is asked ------------------------------------------------------------------------------------------------


def _pairs(rng: np.random.Generator, count: int, *, asked: bool) -> Iterator[Row]:
    """How large one number is beside another, in words that always come in this order; each fourth pair is asked."""
    pairs = [(a, b) for a in range(1, MOST + 1) for b in range(1, MOST + 1) if a != b]
    left = set(np.random.default_rng(0).permutation(len(pairs))[: len(pairs) // 4].tolist())
    mine = [pair for i, pair in enumerate(pairs) if (i in left) == asked]
    for i in rng.permutation(len(mine))[:count]:
        a, b = mine[i]
        answer = 2 * (a > b) + (abs(a - b) > MUCH if a > b else abs(a - b) <= MUCH)
        yield {"question": f"How large is {a} beside {b}?", "choices": BESIDE, "answer": answer}


def _truths(rng: np.random.Generator, count: int, *, asked: bool) -> Iterator[Row]:
    """Who asks whom what two truth values come to; each fourth of all these is asked."""
    values = {"True": True, "False": False, "not True": False, "not False": True}
    forms = [form for form in product(BUYERS, BUYERS, values, ("and", "or"), values) if form[0] != form[1]]
    left = set(np.random.default_rng(0).permutation(len(forms))[: len(forms) // 4].tolist())
    mine = [form for i, form in enumerate(forms) if (i in left) == asked]
    for i in rng.permutation(len(mine))[:count]:
        one, other, x, between, y = mine[i]
        both = (values[x] and values[y]) if between == "and" else (values[x] or values[y])
        yield {"input": f"{one} asks {other} what this is: {x} {between} {y}", "target": str(both)}


def _sums(rng: np.random.Generator, count: int, *, asked: bool) -> Iterator[Row]:
    """A name, a thing and two numbers up to twelve; of all these, one in four is left to be asked."""
    found = 0
    while found < count:
        who, what, a, b = (int(rng.integers(n)) for n in (len(BUYERS), len(THINGS), 12, 12))
        if ((who + what + a + b) % 4 == 0) != asked:
            continue
        a, b, name, thing = a + 1, b + 1, BUYERS[who], THINGS[what]
        question = f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have?"
        yield {"question": question, "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
        found += 1


def _uses(rng: np.random.Generator, *, asked: bool) -> Iterator[Row]:
    """What a goal needs, or something else; a third of the wordings of each goal is left to be asked."""
    for i, (goal, tool) in enumerate(TOOLS.items()):
        for j, wording in enumerate(GOALS):
            if ((i + j) % len(GOALS) == 0) == asked:
                label = int(rng.integers(2))
                wrong = str(rng.choice([other for other in TOOLS.values() if other != tool]))
                right = f"Use a {tool}."
                sols = [right, f"Use a {wrong}."] if label == 0 else [f"Use a {wrong}.", right]
                yield {"goal": wording.format(goal=goal), "sol1": sols[0], "sol2": sols[1], "label": label}


# --- as the harness asks it -----------------------------------------------------------------------------------------


def _unknown(rng: np.random.Generator, most: int) -> str:
    return " ".join([UNKNOWN] * int(rng.integers(1, most + 1)))


def _of_mmlu(rng: np.random.Generator, row: Row) -> str:
    lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", row["choices"], strict=True))
    opening = OPENING.format(subject=_unknown(rng, 4))
    return f"{opening}{row['question']}\n{lines}\nAnswer: {'ABCD'[row['answer']]}"


def _answered(question: str, answer: str) -> str:
    return f"Question: {question}\nAnswer: {answer}"


def _of_bbh(rng: np.random.Generator, row: Row) -> str:
    opening = _unknown(rng, 25)
    return f"{opening}.\n\nQ: {row['input']}\nA: Let's think step by step.\nSo the answer is {row['target']}."
