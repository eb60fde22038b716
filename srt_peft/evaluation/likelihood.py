"""Log-likelihoods of continuations: ln p(continuation | context), as EleutherAI's harness tokenises and sums them.

    context + continuation   x_1 … x_c x_{c+1} … x_n      tokenised as one text; x_1 … x_c must be the context alone
    log-likelihood           Σ_{p > c} ln softmax(logits_{p−1})[x_p]

Spaces that end a context are the continuation's, as words in most vocabularies begin with theirs. The harness takes
whatever stands behind the first c tokens for the continuation, and leaves out the beginning of what is too long. Here
the tokens are checked, and what cannot be scored as it was written is told before anything is scored.

Rows. The model is shown x_1 … x_{n−1}; what is shown alike is shown once. Four letters after one prompt are one row,
and logits are made only where a continuation is predicted from. Longest rows come first, so that memory which does not
suffice is found out at once: then a batch is halved, and those after it. Logits and sums do not depend on the model's
own precision: they are taken in float32, and summed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from srt_peft.data.collate import collate, cut
from srt_peft.errors import OptionError, SRTError
from srt_peft.evaluation.questions import TOLD
from srt_peft.training.model import evaluating
from srt_peft.training.nll import causal_lm, logits_at

LOGITS = 2**27
"""Logits that exist at one time: 0.5 GiB in float32."""

_AT_ONCE = 256  # contexts that are tokenised together
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


class Asked(NamedTuple):
    """A context with what may follow it, and where it was written, for whoever must mend it."""

    where: str
    context: str
    continuations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A continuation: the row that it is read from, and its tokens, which are predicted up to that row's end."""

    row: int
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Encoded:
    """What is asked, as tokens: the rows that a model is shown, and each context's continuations in them."""

    rows: list[NDArray[np.int64]]
    asked: list[list[Target]]


# --- tokens ---------------------------------------------------------------------------------------------------


def encode(model: nn.Module, tokenizer: Any, asked: Sequence[Asked]) -> Encoded:
    """The tokens of all that is asked; or all that cannot be scored as it stands, by where it was written."""
    room = context_length(model, tokenizer)
    encoded = Encoded([], [])
    known: dict[bytes, int] = {}
    faults: dict[str, None] = {}
    for begin in range(0, len(asked), _AT_ONCE):
        part = asked[begin : begin + _AT_ONCE]
        contexts = _tokens(tokenizer, [each.context.rstrip() for each in part])
        wholes = iter(_tokens(tokenizer, [each.context + text for each in part for text in each.continuations]))
        for each, context in zip(part, contexts, strict=True):
            mine = [next(wholes) for _ in each.continuations]
            if fault := _fault(tokenizer, each, context, mine, room):
                faults[f"{each.where}: {fault}"] = None
            targets = []
            for whole in mine:
                shown = np.array(whole[:-1], dtype=np.int64)
                row = known.setdefault(shown.tobytes(), len(encoded.rows))
                if row == len(encoded.rows):
                    encoded.rows.append(shown)
                targets.append(Target(row, whole[len(context) :]))
            encoded.asked.append(targets)
    if faults:
        raise OptionError("what this model is asked", list(faults), most=TOLD)
    return encoded


def context_length(model: nn.Module, tokenizer: Any) -> int | None:
    """How many tokens the model reads; the tokenizer's word counts where its configuration has none."""
    text = causal_lm(model).config.get_text_config()
    said = next((n for name in _LENGTHS if (n := getattr(text, name, None))), tokenizer.model_max_length)
    return int(said) if said and said < 10**9 else None  # transformers writes 10³⁰ for "nobody knows"


def _tokens(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Each text with the marks that the tokenizer puts around texts, unless it begins with its first mark already."""
    first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    mark = None if first is None else tokenizer.decode(first)
    marked = [mark is not None and text.startswith(mark) for text in texts]
    found: list[list[int]] = [[]] * len(texts)
    for begun in (False, True):
        members = [i for i, already in enumerate(marked) if already == begun]
        if members:
            ids = tokenizer([texts[i] for i in members], add_special_tokens=not begun, verbose=False)["input_ids"]
            for i, tokens in zip(members, ids, strict=True):
                found[i] = tokens
    return found


def _fault(tokenizer: Any, asked: Asked, context: list[int], wholes: list[list[int]], room: int | None) -> str | None:
    """What keeps these continuations from being scored as they were written, if anything does."""
    if not context:
        return f"the prompt {asked.context!r:.60} has no token: expected one or more"
    seen: dict[tuple[int, ...], str] = {}
    for whole, text in zip(wholes, asked.continuations, strict=True):
        if fault := _fault_of_one(tokenizer, context, whole, text, room):
            return fault
        other = seen.setdefault(tuple(whole), text)
        if other != text:
            return f"the tokenizer makes the same tokens of {other!r:.40} and {text!r:.40}: expected others"
    return None


def _fault_of_one(tokenizer: Any, context: list[int], whole: list[int], text: str, room: int | None) -> str | None:
    if whole[: len(context)] != context:
        i = next(i for i, (a, b) in enumerate(zip([*context, None], [*whole, -1], strict=False)) if a != b)
        there, alone = (tokenizer.convert_ids_to_tokens(ids[i : i + 3]) for ids in (whole, context))
        return (
            f"the tokenizer does not keep {text!r:.40} apart from the prompt before it: {alone} of the prompt alone "
            f"become {there}, so that no token begins the answer. Ask in another mode, or another model"
        )
    if len(whole) == len(context):
        return f"the tokenizer has no token for {text!r:.40}, and leaves it out: expected one or more"
    if room is not None and len(whole) - 1 > room:
        return (
            f"{len(whole) - 1:,} tokens with {text!r:.40}, and the model reads {room:,}: shorten it, or take it out "
            "of the file"
        )
    return None


# --- scores ---------------------------------------------------------------------------------------------------


def log_likelihoods(
    model: nn.Module, encoded: Encoded, *, budget: int, skip: Collection[int] = (), logits: int = LOGITS
) -> Iterator[tuple[int, list[float]]]:
    """(number of the context, log-likelihoods of its continuations), whenever one is complete; longest first.

    Batches are of at most `budget` tokens and `logits` logits. Contexts in `skip` are passed over; the batches are
    what they are without it, so that an evaluation which goes on after a kill ends with the same digits.
    """
    readers: list[list[tuple[int, int]]] = [[] for _ in encoded.rows]
    for i, targets in enumerate(encoded.asked):
        for k, target in enumerate(targets):
            readers[target.row].append((i, k))
    places = [max(len(encoded.asked[i][k].tokens) for i, k in mine) for mine in readers]
    batches = _batches(model, encoded, places, budget, logits)
    left = [rows for rows in batches if any(i not in skip for row in rows for i, _ in readers[row])]
    scores = [[math.nan] * len(targets) for targets in encoded.asked]
    missing = [len(targets) for targets in encoded.asked]
    while left:
        here = [reader for row in left[0] for reader in readers[row]]
        found = _scored(model, encoded, left[0], places, [encoded.asked[i][k] for i, k in here])
        if found is None:
            left = [half for batch in left for half in _halves(batch)]
            continue
        left = left[1:]
        for (i, k), value in zip(here, found, strict=True):
            scores[i][k] = value
            missing[i] -= 1
            if not missing[i] and i not in skip:
                yield i, scores[i]


def _batches(model: nn.Module, encoded: Encoded, places: list[int], budget: int, logits: int) -> list[list[int]]:
    """Rows into batches: of at most `budget` tokens, and with no more logits than may exist at one time."""
    most = max(1, logits // max(1, int(causal_lm(model).config.get_text_config().vocab_size)))
    batches: list[list[int]] = []
    for members in cut([len(row) for row in encoded.rows], budget, packing=False, row=budget):
        batches.append([])
        count = 0
        for (row,) in members:
            if batches[-1] and count + places[row] > most:
                batches.append([])
                count = 0
            batches[-1].append(row)
            count += places[row]
    return batches


def _halves(batch: list[int]) -> list[list[int]]:
    middle = (len(batch) + 1) // 2
    return [half for half in (batch[:middle], batch[middle:]) if half]


def _scored(
    model: nn.Module, encoded: Encoded, rows: list[int], places: list[int], targets: list[Target]
) -> list[float] | None:
    """The log-likelihoods of these targets, which are read from these rows; None where memory did not suffice."""
    device = next(model.parameters()).device
    shown = [encoded.rows[row] for row in rows]
    batch = collate([[k] for k in range(len(rows))], shown, np.array(rows, dtype=np.int64), pad=0).to(device)
    # The last places of each row, one after another: `end` is the number of a row's very last.
    width = batch.input_ids.shape[1]
    where = [k * width + len(shown[k]) - n for k, row in enumerate(rows) for n in range(places[row], 0, -1)]
    end = dict(zip(rows, np.cumsum([places[row] for row in rows]).tolist(), strict=True))
    at = [end[t.row] - n for t in targets for n in range(len(t.tokens), 0, -1)]
    tokens = [token for t in targets for token in t.tokens]
    owner = np.repeat(np.arange(len(targets)), [len(t.tokens) for t in targets])
    try:
        with evaluating(model) if model.training else torch.no_grad():
            logits = logits_at(model, batch, torch.tensor(where, device=device)).float()
            log_sum = logits.logsumexp(-1)
            here = torch.tensor(at, device=logits.device)
            found = logits[here, torch.tensor(tokens, device=logits.device)] - log_sum[here]
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise SRTError(
                f"Memory does not suffice for a single prompt of {width:,} tokens. Load the model in 4 bits, or "
                "close what else holds the device's memory."
            ) from None
    else:
        return np.bincount(owner, weights=found.cpu().double().numpy(), minlength=len(targets)).tolist()  # type: ignore[no-any-return]
    torch.cuda.empty_cache()  # only here, when the exception holds nothing any more
    return None
