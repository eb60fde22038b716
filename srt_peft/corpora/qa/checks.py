"""What a question must be: each check has a name, under which its rejections are counted.

    draft      question, right answer, three wrong ones, as a maker or a person wrote them
    grounds    the passage, and in it the statement that it was made of

The first checks (`FORM`) hold for any question. Those of `SUPPORT` ask whether the passage bears it out. They go by
words: the right choice stands in the passage, word for word where it is short, and by most of its telling words and
all of its figures where it is a phrase; a wrong choice does not stand there word for word. That a passage says so does
not make it so, and a wrong choice may be right by what the passage leaves out: that is for the person who reviews.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from srt_peft.corpora.qa.values import number_of
from srt_peft.corpora.qa.words import plain, stands_in, telling, words

MOST = {"question": 800, "choice": 200}
"""Characters."""
BORNE_OUT = 0.75
"""The share of a phrase's telling words that must stand in the passage."""
ASKS_OF = 0.5
"""The share of a question's telling words that must stand in the passage or its title."""
_GAP = "____"


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before its choices have letters."""

    question: str
    right: str
    wrong: tuple[str, ...]
    kind: str = "model"
    """number, year, date or name; of a model's, "model"."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The right one first."""
        return (self.right, *self.wrong)


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a question is made of."""

    title: str
    passage: str


# --- the form -------------------------------------------------------------------------------------------------------


def is_text(draft: Draft, _: Grounds) -> bool:
    """Question and choices are one line of whole characters each, not empty and not endless."""
    parts = [(draft.question, MOST["question"]), *((choice, MOST["choice"]) for choice in draft.choices)]
    return all(text.strip() and len(text) <= most and text.isprintable() for text, most in parts)


def has_four(draft: Draft, _: Grounds) -> bool:
    """Four choices."""
    return len(draft.wrong) == 3


def is_distinct(draft: Draft, _: Grounds) -> bool:
    """No two choices say the same: not in other capitals, spaces or marks, and not as another way to write a number."""
    return len(set(map(meant, draft.choices))) == len(draft.choices)


def meant(choice: str) -> str:
    """What a choice comes to: without articles, and numbers by their value."""
    text = " ".join(word for word in words(choice) if word not in ("a", "an", "the")) or plain(choice)
    number = number_of(choice.strip()) if re.fullmatch(r"\W*[\d.,]+(?: \w+)?\W*", choice.strip()) else None
    if number is None:
        return text
    unit = re.sub(r"thousand|million|billion|trillion|[\d.,\s]", "", plain(choice))
    return f"{number:.12g}{unit}"


def has_one_right(draft: Draft, _: Grounds) -> bool:
    """No choice is part of another as words, and none speaks of the others ("all of the above")."""
    if any(_OF_OTHERS.search(choice) for choice in draft.choices):
        return False
    return not any(stands_in(draft.right, wrong) or stands_in(wrong, draft.right) for wrong in draft.wrong)


_OF_OTHERS = re.compile(
    r"(?i)\b(?:all|none|both|neither|either|any) of "
    r"(?:these|them|the (?:above|following|others?|choices|answers|options))\b"
    r"|\b[A-D] (?:and|or) [A-D]\b"
)


def keeps_its_answer(draft: Draft, _: Grounds) -> bool:
    """The question does not say its answer."""
    return not stands_in(draft.right, draft.question)


def stands_alone(draft: Draft, _: Grounds) -> bool:
    """It can be asked without its passage: it speaks of no text, and opens with no word for what came before."""
    return not (_OF_THE_TEXT.search(draft.question) or _LEANS.search(draft.question))


_OF_THE_TEXT = re.compile(
    r"(?i)\b(?:(?:the|this|above|given) (?:passage|text|excerpt|statement|paragraph|snippet|document|article)"
    r"|the author)\b"
)
_LEANS = re.compile(r"“(?:He|She|It|They|This|These|Those|Such|However|But|His|Her|Its|Their|Also|Then)\b")


# --- the support ----------------------------------------------------------------------------------------------------


def is_borne_out(draft: Draft, grounds: Grounds) -> bool:
    """The right choice stands in the passage; a phrase by most of its telling words and all of its figures."""
    if stands_in(draft.right, grounds.passage):
        return True
    mine, there = telling(draft.right), set(words(grounds.passage))
    figures = [word for word in mine if any(c.isdigit() for c in word)]
    found = sum(word in there for word in mine)
    return len(mine) > 2 and found >= BORNE_OUT * len(mine) and all(word in there for word in figures)


def is_told_apart(draft: Draft, grounds: Grounds) -> bool:
    """No wrong choice stands in the passage."""
    return not any(stands_in(wrong, grounds.passage) for wrong in draft.wrong)


def asks_of_it(draft: Draft, grounds: Grounds) -> bool:
    """The question is about what the passage is about: half of its telling words stand there or in the title."""
    mine = telling(draft.question.replace(_GAP, " "))
    there = set(words(f"{grounds.title} {grounds.passage}"))
    return sum(word in there for word in mine) >= ASKS_OF * len(mine)


Check = Callable[[Draft, Grounds], bool]
FORM: dict[str, Check] = {
    "not four choices": has_four,
    "empty, endless or no single line": is_text,
    "choices that say the same": is_distinct,
    "more than one right choice": has_one_right,
    "says its own answer": keeps_its_answer,
    "leans on a text that is not shown": stands_alone,
}
SUPPORT: dict[str, Check] = {
    "right choice not borne out by the passage": is_borne_out,
    "wrong choice stands in the passage": is_told_apart,
    "not about the passage": asks_of_it,
}


def faults_of(draft: Draft, grounds: Grounds, checks: dict[str, Check] | None = None) -> Iterator[str]:
    """The names of the checks that it fails; of those of the support none, where its form is wrong already."""
    for group in (FORM, SUPPORT) if checks is None else (checks,):
        failed = [name for name, holds in group.items() if not holds(draft, grounds)]
        yield from failed
        if failed:
            return
