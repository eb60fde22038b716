"""What a caller hands in, ids and signals, as arrays in the order of what they answer; and how it is told otherwise."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srt_peft.errors import ProtocolError
from srt_peft.review.chance import Ids


def matched(
    what: str, expected: Ids, step: int, ids: ArrayLike, nll: ArrayLike
) -> tuple[Ids | slice, NDArray[np.float32]]:
    """Where each of the expected ids stands in `ids`, and the signals in the order of the expected."""
    given, signal = arrays(f"{what}()", ids, nll)
    if given.shape != signal.shape or given.ndim != 1:
        raise ProtocolError(
            f"{what}() got ids of shape {given.shape} and signals of shape {signal.shape}: expected one signal for "
            f"each of the {expected.size} ids of step {step}."
        )
    if np.array_equal(given, expected):
        return slice(None), signal
    order = np.argsort(given, kind="stable")
    if not np.array_equal(given[order], expected):
        raise ProtocolError(_difference(what, expected, step, given))
    return order, signal[order]


def arrays(what: str, ids: ArrayLike, nll: ArrayLike) -> tuple[Ids, NDArray[np.float32]]:
    """Ids and signals as arrays, or a ProtocolError that says which of them is none."""
    given = np.asarray(ids)
    if given.size and given.dtype.kind not in "iu":
        raise ProtocolError(f"{what} got ids of dtype {given.dtype}: expected whole numbers, such as draw.ids.")
    try:
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            signal = np.asarray(nll).astype(np.float32)
    except (TypeError, ValueError, RuntimeError, Warning) as error:
        raise ProtocolError(
            f"{what} got signals that are no numbers ({error}): expected NLL in nats, as floats; from a torch tensor, "
            "nll.detach().float().cpu()."
        ) from None
    return given.astype(np.int64), signal


def _difference(what: str, expected: Ids, step: int, given: NDArray[Any]) -> str:
    asked, from_ = ("drawn", "draw") if what == "review" else ("asked", "quiz")
    strangers, missing = np.setdiff1d(given, expected), np.setdiff1d(expected, given)
    parts = []
    if strangers.size:
        parts.append(f"{strangers.size} ids that were not {asked} (the first is {strangers[0]})")
    if missing.size:
        parts.append(f"{missing.size} {asked} ids are missing (the first is {missing[0]})")
    if not parts:
        parts.append("some ids more than once")
    return (
        f"{what}() of step {step} does not match its {from_}: {', and '.join(parts)}. Expected its "
        f"{expected.size} ids, all of them, once each, in any order."
    )
