"""What was saved of a scheduler, held against the one that takes it over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from srt_peft.errors import DamagedError, OptionError
from srt_peft.review.files import Columns
from srt_peft.review.options import Options, plain
from srt_peft.review.state import ReviewState


def check_columns(options: Options, state: ReviewState) -> None:
    """Refuse a state that lacks what the options need, or has other room for it."""
    needed = {"reference": options.refers, "prefix": options.quiz_tokens is not None, "deck": options.decks != "off"}
    lacking = [name for name, wanted in needed.items() if wanted and name not in state.columns]
    room = state.columns["asked"].size if "asked" in state.columns else 0
    if lacking or (options.asked and room != options.asked):
        fault = f"these options need {' and '.join(lacking) or f'room for {options.asked} asked examples'}"
        raise OptionError("the scheduler", [f"{fault}, which this state was made without. {_ANEW}"])


_ANEW = (
    "Set them as they were; or make a new scheduler, in training by a run with another output, and with model.adapter "
    "set to the newest checkpoint"
)


def taken(settings: Mapping[str, Any], state: ReviewState, saved: Mapping[str, Any]) -> tuple[int, Columns]:
    """(how many are old, columns) of a `state_dict`, once its settings and examples are known to be these."""
    try:
        theirs, n_old, columns = saved["scheduler"], saved["n_old"], dict(saved["columns"])
        told = {"scheduler": theirs["name"], **Options(**plain(theirs["options"])).as_dict()}
        columns = {name: np.array(column) for name, column in columns.items()}
        n = len(columns["due"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"this is no state_dict of a scheduler ({type(error).__name__}: {error}).") from None
    ours = {"scheduler": settings["name"], **settings["options"]}
    changed = _differences(ours, told, state, (n_old, n - n_old), columns)
    if changed:
        raise OptionError("load_state_dict: the scheduler was made with other settings or examples", changed)
    return n_old, columns


def _differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], state: ReviewState, sizes: tuple[Any, Any], columns: Columns
) -> list[str]:
    changed = [
        f"{name} is {value!r} here and {theirs.get(name)!r} in the saved state"
        for name, value in ours.items()
        if value != theirs.get(name)
    ]
    here = (state.n_old, state.n_new)
    if here != sizes:
        changed.append(f"(old, new) is {here} here and {sizes} in the saved state")
    kinds = [{k: (c.dtype, c.shape) for k, c in of.items()} for of in (state.columns, columns)]
    if not changed and kinds[0] != kinds[1]:
        wrong = sorted(k for k in kinds[0] | kinds[1] if kinds[0].get(k) != kinds[1].get(k))
        changed.append(f"the columns {', '.join(wrong)} are not of the types and sizes that they have here")
    elif not changed and not np.array_equal(state.columns.get("identity", 0), columns.get("identity", 0)):
        changed.append("the content hashes (identity) are those of other examples")
    return changed
