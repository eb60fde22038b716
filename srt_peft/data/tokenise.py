"""Documents become tokens: how that is planned, done to a batch of sections, and shared by several processes.

A document's sections go to the processes; examples come back in order, so the bytes of a pool do not depend on how
many there were.

Every example opens with BOS where the tokenizer has one: that is what stood at position 0 when the model was
trained. Only the last example of a document ends with EOS: a model must not learn to stop where we happened to cut.
Chat templates write their own marks, and get none of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from srt_peft.data import pool as pools, processes
from srt_peft.data.cutting import Coded, fitted, sections
from srt_peft.data.reading import PLACE, fail
from srt_peft.data.sources import CHECKS, Document
from srt_peft.errors import OptionError, did_you_mean
from srt_peft.review.files import Columns
from srt_peft.review.rows import IDENTITY_BYTES

_BATCH = 1 << 18
_INLINE_BATCHES = 8


@dataclass(frozen=True)
class Plan:
    """How a text becomes tokens."""

    tokenizer: Any
    chat: bool
    max_length: int

    @property
    def marks(self) -> tuple[list[int], list[int]]:
        """What opens each example, and what ends each document."""
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        return ([], []) if self.chat else ([] if bos is None else [bos], [eos])

    @property
    def room(self) -> int:
        """How many tokens of text an example holds."""
        return self.max_length - sum(map(len, self.marks))

    def render(self, content: Any) -> str:
        """The text of a document; that of a chat is written by the tokenizer's template."""
        if not self.chat:
            return str(content)
        # Some templates (Llama 3.2) write today's date unless they are given one: text would change by the day.
        return str(self.tokenizer.apply_chat_template(content, tokenize=False, date_string="26 Jul 2024"))

    def encode(self, texts: Sequence[str]) -> list[Coded]:
        """The ids of each text, with no mark added."""
        found = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [
            Coded(ids, partial(_starts, found.encodings[i] if found.is_fast else None, texts[i], len(ids)))
            for i, ids in enumerate(found["input_ids"])
        ]


def _starts(encoding: Any, text: str, tokens: int) -> list[int]:
    if encoding is None:  # a slow tokenizer does not say: take them to be of one width
        return [i * len(text) // tokens for i in range(tokens)]
    return [start for start, _ in encoding.offsets]


class Section(NamedTuple):
    """A part of a document, as the processes get it."""

    document: int
    hash: int
    """Of the whole document's content: it decides whether the document is held out."""
    content: Any
    last: bool
    where: str


def plan_of(tokenizer: Any, format: str, max_length: int, holdout: float, workers: int | None) -> Plan:  # noqa: A002
    """The plan that the options make, or all that is wrong with them."""
    faults = []
    if format not in CHECKS:
        faults.append(f"format = {format!r}{did_you_mean(format, CHECKS)}: expected {' or '.join(map(repr, CHECKS))}")
    if type(max_length) is not int or max_length < 4:
        faults.append(f"max_length = {max_length!r}: expected a whole number of tokens, 4 or more")
    if isinstance(holdout, bool) or not isinstance(holdout, (int, float)) or not 0 <= holdout < 1:
        faults.append(f"holdout = {holdout!r}: expected a share from 0 to below 1")
    if workers is not None and (type(workers) is not int or workers < 1):
        faults.append(f"workers = {workers!r}: expected a whole number of processes, 1 or more, or None")
    kind = type(tokenizer).__name__
    if format == "chat" and not getattr(tokenizer, "chat_template", None):
        faults.append(f"format = 'chat': this {kind} has no chat template. Take an instruct model's, or format 'text'")
    if format == "text" and tokenizer.eos_token_id is None:
        faults.append(f"this {kind} has no eos token, which ends a document: set tokenizer.eos_token to one it knows")
    if faults:
        raise OptionError("ingest", faults)
    return Plan(tokenizer, format == "chat", max_length)


def batches_of(documents: Iterable[Document], plan: Plan, advance: Any) -> Iterator[list[Section]]:
    """Sections of documents, in order, in batches of about the same size."""
    batch: list[Section] = []
    size = 0
    width = max(1 << 16, 256 * plan.max_length)
    for number, document in enumerate(documents):
        content = document.content
        text = json.dumps(content, sort_keys=True) if plan.chat else content
        hashed = int.from_bytes(hashlib.blake2b(text.strip().encode(), digest_size=8).digest(), "little")
        parts = list(sections(content, width)) if not plan.chat else [content]
        for i, part in enumerate(parts or [""]):
            batch.append(Section(number, hashed, part, i == len(parts) - 1, document.where))
            size += len(text) // max(len(parts), 1) + 1
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
        advance(len(text))
    if batch:
        yield batch


def tokenise(plan: Plan, batch: Sequence[Section]) -> Columns | str:
    """The examples of some sections as columns, or what was wrong with one (exceptions of ours do not travel)."""
    opening, ending = plan.marks
    ids: list[list[int]] = []
    texts: list[str] = []
    owner: list[int] = []
    try:
        rendered = _rendered(plan, batch)
        for i, parts in enumerate(fitted(rendered, plan.room, plan.encode)):
            for k, (text, found) in enumerate(parts):
                row = opening + found + (ending if batch[i].last and k == len(parts) - 1 else [])
                if found and len(row) > 1:  # one token alone has nothing to be predicted from
                    ids.append(row)
                    texts.append(text)
                    owner.append(i)
    except OptionError as error:
        return error.faults[0]
    raw = [text.encode() for text in texts]
    pick = np.asarray(owner, dtype=np.int64)
    return {
        "length": np.fromiter(map(len, ids), np.int64, len(ids)),
        "size": np.fromiter(map(len, raw), np.int64, len(raw)),
        "document": np.asarray([s.document for s in batch], np.int64)[pick],
        "tokens": np.fromiter(chain.from_iterable(ids), np.int32),
        "text": np.frombuffer(b"".join(raw), np.uint8),
        "identity": np.frombuffer(b"".join(map(pools.identity_of, texts)), np.uint8).reshape(-1, IDENTITY_BYTES),
        "documents": np.asarray([s.document for s in batch], np.int64),
        "hashes": np.asarray([s.hash for s in batch], np.uint64),
    }


def _rendered(plan: Plan, batch: Sequence[Section]) -> list[str]:
    texts = []
    for section in batch:
        try:
            texts.append(plan.render(section.content) if section.content else "")
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's, and may raise what it likes
            fault = f"{section.where}: the chat template refuses these messages ({error}): correct or remove the row"
            raise OptionError(PLACE, [fault]) from None
    return texts


def tokenised(batches: Iterator[list[Section]], plan: Plan, workers: int | None) -> Iterator[Columns]:
    """The columns of each batch, in order; in processes where there is enough to do, or where asked for."""
    head = list(islice(batches, _INLINE_BATCHES))
    count = workers or processes.cores()
    inline = count == 1 or (workers is None and len(head) < _INLINE_BATCHES)
    every = chain(head, batches)
    for found in map(tokenise, _forever(plan), every) if inline else _in_processes(every, plan, count):
        if isinstance(found, str):
            fail(found)
        else:
            yield found


def _forever(plan: Plan) -> Iterator[Plan]:
    while True:
        yield plan


def _in_processes(batches: Iterable[list[Section]], plan: Plan, count: int) -> Iterator[Columns | str]:
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else each process starts a thread a core, and warns of the fork
    try:
        executor = processes.pool(count, _begin, (plan,))
        yield from processes.in_order(executor, count, _tokenise_here, ((batch,) for batch in batches))
    finally:
        if before is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


_here: list[Plan] = []


def _begin(plan: Plan) -> None:
    _here[:] = [plan]


def _tokenise_here(batch: list[Section]) -> Columns | str:
    return tokenise(_here[0], batch)
