"""What a model is told to write, and what is read out of its reply.

A model names the right choice and the wrong ones, and no letters: those are dealt afterwards, so that a model's
favourite letter is nobody's clue.
"""

from __future__ import annotations

import json
from typing import Any

from srt_peft.corpora.qa.checks import Draft
from srt_peft.corpora.qa.items import Item
from srt_peft.corpora.qa.words import telling, words

TASK = (
    "You write multiple-choice questions in the style of MMLU. Each tests one fact, which its statement gives, and is "
    "asked without the passage: name what it is about, and never speak of a passage or text. The right answer stands "
    "in the passage word for word, as short as it can be. The three wrong answers are of the same kind, length and "
    "style, plausible, clearly wrong, and do not stand in the passage. The question does not contain its answer."
)
REPLY = 'Reply with one JSON object and nothing else: {"question": "…", "right": "…", "wrong": ["…", "…", "…"]}'
_EXPECTED = "a JSON object with question, right and three wrong"


def told(item: Item) -> str:
    """The passage and the statement to ask of."""
    parts = [f"Title: {item.title}", f"Passage:\n{item.passage}", f"Statement: {item.statement}"]
    if item.was is not None:
        parts.append(f"Before it was updated, the statement was: {item.was}\nAsk for what has changed.")
    return "\n\n".join(parts)


def messages(item: Item) -> list[dict[str, str]]:
    """A chat that asks for a question as JSON."""
    return [{"role": "system", "content": f"{TASK}\n\n{REPLY}"}, {"role": "user", "content": told(item)}]


def again(reply: str, fault: str) -> list[dict[str, str]]:
    """What is said to a reply that cannot be read."""
    return [
        {"role": "assistant", "content": reply},
        {"role": "user", "content": f"That is no question: {fault}. {REPLY}"},
    ]


def read(reply: str, item: Item) -> Draft | str:
    """The question of a reply, wherever in it the object stands; or what is wrong with it."""
    row = _first_object(reply)
    if row is None:
        return f"expected {_EXPECTED}, not prose"
    question, right, wrong = (row.get(name) for name in ("question", "right", "wrong"))
    if not (isinstance(question, str) and isinstance(right, str | int | float) and isinstance(wrong, list)):
        return f"expected {_EXPECTED}; there is {', '.join(map(str, row)) or 'nothing'}"
    if not all(isinstance(one, str | int | float) for one in wrong):
        return f"expected {_EXPECTED}, each a text"
    return written(question, str(right), tuple(map(str, wrong)), item)


def written(question: str, right: str, wrong: tuple[str, ...], item: Item) -> Draft:
    """A model's question; one that names nothing of its title is given that, as it is asked without the passage."""
    question = " ".join(question.split())
    if not set(telling(item.title)) & set(words(question)):
        question = f"{item.title}: {question}"
    return Draft(question, " ".join(right.split()), tuple(" ".join(one.split()) for one in wrong))


def _first_object(reply: str) -> dict[str, Any] | None:
    decoder, at = json.JSONDecoder(), reply.find("{")
    while at >= 0:
        try:
            row, _ = decoder.raw_decode(reply, at)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            return row
        at = reply.find("{", at + 1)
    return None
