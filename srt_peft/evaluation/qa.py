"""Source-grounded questions, in modes: the right answer is to be the likeliest.

    letter   value = 1 where the right letter is the likeliest                     (the harness's acc)
    text     value = 1 where the right text is the likeliest a character           (the harness's acc_norm)
             acc   = 1 where the right text is the likeliest as a whole            (the harness's acc)

Each mode has its own records, and so has each blind mode, in which the question is left out: what is scored there
above chance, the choices give away by themselves. `questions.trivial` has the baselines that need no model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn
from tqdm import tqdm

from srt_peft.errors import OptionError, SRTError, did_you_mean
from srt_peft.evaluation.likelihood import Asked, Encoded, encode, log_likelihoods
from srt_peft.evaluation.questions import MODES, TOLD, Question, prompt_of
from srt_peft.evaluation.records import Record

BUDGET = 16_384
"""Tokens in a batch."""


def score(
    model: nn.Module,
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    modes: Sequence[str] = MODES,
    budget: int = BUDGET,
    done: Collection[str] = (),
) -> Iterator[Record]:
    """A record for each question and mode that is not done yet: mode by mode, longest prompts first.

    All prompts of all modes are tokenised and checked before the first is scored.
    """
    unknown = [f"{mode!r}: expected {', '.join(MODES)}{did_you_mean(mode, MODES)}" for mode in set(modes) - set(MODES)]
    if unknown:
        raise OptionError("the modes of the qa suite", unknown)
    keys = {mode: [question.key(mode) for question in questions] for mode in modes}
    skip = {mode: {i for i, key in enumerate(keys[mode]) if key in done} for mode in modes}
    encoded = _encoded(model, tokenizer, questions, [mode for mode in modes if len(skip[mode]) < len(questions)])
    total, begun = len(questions) * len(modes), sum(map(len, skip.values()))
    with tqdm(total=total, initial=begun, desc="qa", unit="answer", delay=2, disable=None, leave=False) as bar:
        for mode, mine in encoded.items():
            for i, found in log_likelihoods(model, mine, budget=budget, skip=skip[mode]):
                yield _record(questions[i], mode, keys[mode][i], found)
                bar.update()


def _encoded(
    model: nn.Module, tokenizer: Any, questions: Sequence[Question], modes: Sequence[str]
) -> dict[str, Encoded]:
    """What is asked in each mode, as tokens; or all that this model cannot be asked."""
    encoded: dict[str, Encoded] = {}
    faults: dict[str, None] = {}
    for mode in modes:
        try:
            encoded[mode] = encode(model, tokenizer, [Asked(f"line {q.line}", *prompt_of(q, mode)) for q in questions])
        except OptionError as error:  # told together; a fault is often that of several modes
            faults |= dict.fromkeys(error.faults)
    if faults:
        raise OptionError("the questions for this model", list(faults), most=TOLD)
    return encoded


def _record(question: Question, mode: str, key: str, found: list[float]) -> Record:
    if not all(map(math.isfinite, found)):
        raise SRTError(
            f"The model gave no finite score for the question in line {question.line}: its weights are damaged, or its "
            "precision is too low for it. Check the checkpoint, or choose another precision."
        )
    text = mode.startswith("text")
    likeliest = int(np.argmax(found))
    lengths = [len(choice) for choice in question.choices]
    choice = int(np.argmax(np.divide(found, lengths))) if text else likeliest
    return {
        "key": key,
        "suite": "qa",
        "mode": mode,
        "split": question.split,
        "value": float(choice == question.answer),
        "weight": 1.0,
        **({"acc": float(likeliest == question.answer)} if text else {}),
        "line": question.line,
        "source": question.source,
        "answer": question.answer,
        "choice": choice,
        "log_likelihoods": found,
    }
