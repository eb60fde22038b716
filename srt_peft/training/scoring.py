"""Passes from which nothing is learned: references, first looks, quizzes and held-out text. Each is counted.

reference    the model that the update begins from scores old examples before the first step, so that forgetting can be
             told from difficulty: the base, or, where an adapter is continued, the base with that adapter, since what
             it has learned can be forgotten, too. It is kept in ${SRT_PEFT_HOME:-~/.cache/srt-peft}/references, by
             the base, the adapter, the text and the precision.
             In the middle of a run a reference may be lacking, as it was resumed with other settings, or an example is
             superseded no more. The base is still there below a new adapter, which is switched off. A continued adapter
             has moved on, and so has a base that is trained itself: then only the cache knows, and who is not in it
             goes without (see `review.reading`).
first look   `ppl` scores every example before the first draw.
quiz         a few old examples are scored before a draw.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from srt_peft.data.collate import Batch, collate, cut
from srt_peft.data.ingest import home
from srt_peft.data.pool import Pool
from srt_peft.data.stream import Asked, Examples
from srt_peft.review import files
from srt_peft.training.figures import reference_tokens
from srt_peft.training.model import evaluating
from srt_peft.training.nll import summarise, token_nll
from srt_peft.training.ranks import from_main

if TYPE_CHECKING:
    from srt_peft.training.run import Setup

AT_ONCE = 1 << 14
"""Examples that are cut into micro-batches at once, where many are gone through."""

_LOGGER = logging.getLogger("srt_peft")
Ids = NDArray[np.int64]
Signals = NDArray[np.float64]


def batches(setup: Setup, examples: Examples, ids: Ids, most: int | None = None) -> Iterator[Batch]:
    """These examples, each once, or the first tokens of each: this rank's part of them."""
    data, training = setup.recipe.data, setup.recipe.training
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        tokens = [examples[i][:most] for i in some.tolist()]
        micro = cut(list(map(len, tokens)), training.micro_batch_tokens, packing=data.packing, row=data.max_length)
        for rows in micro[setup.accelerator.process_index :: setup.accelerator.num_processes]:
            yield collate(rows, tokens, some, pad=setup.tokenizer.pad_token_id)


def scored(setup: Setup, ids: Ids, what: str, most: int | None = None) -> Signals:
    """The mean NLL of each of these examples of the corpus, in ascending order of their ids, with a bar."""
    found = torch.zeros(ids.size, dtype=torch.float64, device=setup.accelerator.device)
    hidden = None if setup.main and not setup.terse else True
    with evaluating(setup.model), tqdm(total=ids.size, desc=what, unit="example", disable=hidden, delay=2) as bar:
        for batch in batches(setup, setup.corpus, ids, most):
            found[np.searchsorted(ids, batch.ids.numpy())] = _means(setup, batch)
            bar.update(len(batch.ids) * setup.accelerator.num_processes)
    return over_ranks(setup, found)


def answer(setup: Setup, asked: Asked) -> Signals:
    """The mean NLL of each example of a quiz, in the order of its ids."""
    found = torch.zeros(asked.ids.size, dtype=torch.float64, device=setup.accelerator.device)
    with evaluating(setup.model):
        for batch in asked.batches:
            found[np.searchsorted(asked.ids, batch.ids.numpy())] = _means(setup, batch)
    return over_ranks(setup, found)


def _means(setup: Setup, batch: Batch) -> torch.Tensor:
    with setup.autocast():
        nll, example = token_nll(setup.model, batch.to(setup.accelerator.device))
    return summarise(nll, example, len(batch.ids))[0].double()


def over_ranks(setup: Setup, signals: torch.Tensor) -> Signals:
    """Each example's signal, from whichever rank forwarded it: the others have zeros there."""
    whole: Signals = setup.accelerator.reduce(signals, "sum").cpu().numpy()
    return whole


def held_out(setup: Setup, pool: Pool) -> float:
    """The token-mean NLL of held-out text, which is never trained on."""
    total = torch.zeros(2, dtype=torch.float64, device=setup.accelerator.device)
    with evaluating(setup.model):
        for batch in batches(setup, pool, np.arange(len(pool))):
            with setup.autocast():
                nll, _ = token_nll(setup.model, batch.to(setup.accelerator.device))
            total[0] += nll.double().sum()
            total[1] += nll.numel()
    nll_sum, count = setup.accelerator.reduce(total, "sum").tolist()
    return float(nll_sum / max(count, 1.0))


# --- before the first step ------------------------------------------------------------------------------------------


def first_passes(setup: Setup) -> None:
    """What the scheduler must know before its first draw; and what it lacks, where a run goes on."""
    if setup.recipe.review.scheduler == "ppl":
        if setup.scheduler.state.step == setup.texts.first:
            first_look(setup)
    elif setup.scheduler.options.refers and setup.scheduler.options.reference == "base":
        reference(setup)


def first_look(setup: Setup) -> None:
    """Score every example before the first draw, forward only: `ppl` begins with what the base finds hardest."""
    ids = np.arange(len(setup.corpus))
    setup.say(f"ppl: the base scores each of the {ids.size:,} examples once, before the first draw.")
    started = time.perf_counter()
    setup.scheduler.prime(ids, scored(setup, ids, "first look"))
    _count(setup, "first look", int(setup.corpus.lengths.sum()), ids, started)


def reference(setup: Setup) -> None:
    """Score old examples with the model of the beginning, whose memory of them forgetting is measured against."""
    ids, most = _to_refer(setup), setup.scheduler.options.quiz_tokens
    if not ids.size:
        return
    known = from_main(_kept(setup) if setup.main else None)
    lacking = ids if known is None else ids[np.isnan(known["nll"][ids])]
    beginning, started = _beginning(setup), time.perf_counter()
    if lacking.size and beginning is None:
        setup.say(
            f"{lacking.size:,} old examples have no reference, and the model that this run began from is here no more: "
            "each is held against its first signal from now on, or its deck's mean."
        )
        ids, lacking = np.setdiff1d(ids, lacking), lacking[:0]
    elif lacking.size and beginning is not None:
        who = "The base" if setup.recipe.model.adapter is None else "The base with the adapter that is continued"
        setup.say(f"{who} scores {lacking.size:,} of {setup.corpus.n_old:,} old examples once: the reference.")
        known = known or {name: np.full(setup.corpus.n_old, np.nan) for name in ("nll", "prefix")}
        with beginning:
            known["nll"][lacking] = scored(setup, lacking, "reference")
            if most is not None:
                known["prefix"][lacking] = scored(setup, lacking, "reference, first tokens", most)
        if setup.main:
            _keep(setup, known)
    if known is not None and ids.size:
        setup.scheduler.prime(ids, known["nll"][ids], prefix=None if most is None else known["prefix"][ids])
        tokens = reference_tokens(setup.corpus.lengths[ids], most)
        _count(setup, "reference", tokens, ids, started, found_in_cache=int(ids.size - lacking.size))


def _count(setup: Setup, what: str, tokens: int, ids: Ids, started: float, **more: int) -> None:
    """Note a pass as compute: what was found in the cache was computed as well, if by another run."""
    seconds = round(time.perf_counter() - started, 4)
    made = {"pass": what, "examples": int(ids.size), "forward_only_tokens": tokens, "seconds": seconds, **more}
    setup.passes.append(made)


def _to_refer(setup: Setup) -> Ids:
    """The old examples that lack a reference: of all of them, or of as many of each deck as the recipe asks for."""
    state, sample = setup.scheduler.state, setup.recipe.review.reference_sample
    lacks = np.isnan(state.columns["reference"][: state.n_old])
    lacks &= ~np.isinf(state.columns["signal"][: state.n_old])  # who was scored, and gave no number, is not asked again
    ids = np.flatnonzero(~state.suspended[: state.n_old])
    if sample is not None:
        by_hash = np.ascontiguousarray(setup.corpus.old.identity[:, :8]).view("<u8").ravel()[ids]
        deck = np.zeros(ids.size, int) if state.deck is None else state.deck[ids]
        order = np.lexsort((by_hash, deck))
        rank = np.arange(ids.size) - np.searchsorted(deck[order], deck[order])
        ids = np.sort(ids[order[rank < sample]])
    return ids[lacks[ids]]


def _beginning(setup: Setup) -> contextlib.AbstractContextManager[Any] | None:
    """Within it, the model is the one that the update begins from; None where that has been trained since."""
    model = setup.recipe.model
    if model.tuning != "full" and model.adapter is None:
        off: contextlib.AbstractContextManager[Any] = setup.model.disable_adapter()  # type: ignore[operator]
        return off
    return contextlib.nullcontext() if setup.scheduler.state.step == setup.texts.first else None


# --- the references that are kept -----------------------------------------------------------------------------------


def _place(setup: Setup) -> tuple[Path, dict[str, Any]]:
    """Where the references lie, and what they are of."""
    model, options = setup.recipe.model, setup.scheduler.options
    told = {
        "base": setup.identity["base"],
        "text": setup.corpus.old.fingerprint,
        "precision": [model.dtype, model.tuning == "qlora"],
        "first_tokens": options.quiz_tokens,
    }
    if "adapter" in setup.identity:
        told["adapter"] = setup.identity["adapter"]
    name = hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=12).hexdigest()
    return home() / "references" / f"{name}.safetensors", told


def _kept(setup: Setup) -> dict[str, Signals] | None:
    """The references of an earlier run, or None; what is damaged, or of another base, is only a cache."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - used only here

    path, told = _place(setup)
    if not path.exists():
        return None
    try:
        with safe_open(path, "np") as file:
            about, found = file.metadata(), {name: file.get_tensor(name) for name in ("nll", "prefix")}
        of = json.loads(about["of"])
        whole = all(column.shape == (setup.corpus.n_old,) for column in found.values())
        if of == told and whole and about["check"] == str(files.checksums(found)):
            return {name: column.astype(np.float64) for name, column in found.items()}
        reason = f"it is of another {' and '.join(k for k in told if of.get(k) != told[k]) or 'content than it says'}"
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error)
    _LOGGER.warning("The references in %s cannot be used (%s), and are made anew.", path, reason)
    return None


def _keep(setup: Setup, found: dict[str, Signals]) -> None:
    from safetensors.numpy import save_file  # noqa: PLC0415 - used only here

    path, told = _place(setup)
    columns = {name: column.astype(np.float32) for name, column in found.items()}
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(
            columns, beside, metadata={"of": json.dumps(told, sort_keys=True), "check": str(files.checksums(columns))}
        )
        beside.replace(path)
    except OSError as error:  # the run has what it needs: only the next one will score again
        beside.unlink(missing_ok=True)
        _LOGGER.warning("The references could not be kept in %s (%s).", path.parent, error.strerror or error)
