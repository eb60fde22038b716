"""SRTSFTTrainer: TRL's SFTTrainer, with a schedule in place of a sampler.

    from srt_peft.integrations.trl import SRTSFTTrainer

    trainer = SRTSFTTrainer(model=…, args=SFTConfig(…), old_dataset=old, new_dataset=new, review={…})

Text, prompt and completion, messages: TRL prepares them as ever, both datasets as one, and a column keeps the ids while
it does. Where TRL drops an example (its completion lies beyond max_length), it is in neither pool, and that is told.
The signal is over what the loss is over: with completion-only loss, the completion's tokens.

Packing glues examples together before they are drawn, and so is refused. `padding_free=True` computes no padding,
either, and is exact: what is drawn is laid into one row once it is drawn.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trl.trainer.sft_trainer import SFTTrainer

from srt_peft.errors import OptionError
from srt_peft.integrations.draws import Both
from srt_peft.integrations.mixin import SRTMixin

__all__ = ["SRTSFTMixin", "SRTSFTTrainer"]

COLUMN = "srt_id"
_LOGGER = logging.getLogger("srt_peft")


class SRTSFTMixin(SRTMixin):
    """The mixin over SFTTrainer, or over one of your own that descends from it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """What SFTTrainer takes, but for train_dataset; the rest as in SRTMixin."""
        _check(kwargs.get("args", args[1] if len(args) > 1 else None))
        super().__init__(*args, **kwargs)

    def _srt_joined(self, old: Any, new: Any) -> Any:
        from datasets import concatenate_datasets  # type: ignore[import-untyped]  # noqa: PLC0415 - heavy

        Both(old, new)  # refuses what cannot be indexed
        whole = concatenate_datasets(_alike({"old_dataset": old, "new_dataset": new}))
        return whole.add_column(COLUMN, np.arange(len(whole)))

    def _srt_found(self, old: int, new: int) -> tuple[NDArray[np.integer] | None, tuple[int, int]]:
        """TRL may have shuffled what it prepared, and dropped some: ids number the rest, in the order of both."""
        prepared: Any = self.train_dataset
        given = np.asarray(prepared[COLUMN])
        self.train_dataset = prepared.remove_columns(COLUMN)
        n_old = int((given < old).sum())
        if given.size < old + new:
            _LOGGER.warning(
                "SFTTrainer dropped %d of %d old and %d of %d new examples, of which max_length leaves nothing to "
                "learn; they are not scheduled.", old - n_old, old, new - (given.size - n_old), new,
            )  # fmt: skip
        return np.argsort(given), (n_old, int(given.size) - n_old)


def _alike(parts: dict[str, Any]) -> list[Any]:
    """The datasets that hold anything, once they are known to have the same columns."""
    from datasets import Dataset  # noqa: PLC0415 - heavy

    made = {
        name: Dataset.from_list(part) if isinstance(part, list) else part for name, part in parts.items() if len(part)
    }
    faults = [
        f"{name} is a {type(part).__name__}: expected a datasets.Dataset, or a list of rows"
        for name, part in made.items()
        if not isinstance(part, Dataset)
    ]
    if not faults:
        columns = {name: sorted(part.column_names) for name, part in made.items()}
        if len({tuple(names) for names in columns.values()}) > 1:
            told = ", and ".join(f"{name} has the columns {', '.join(names)}" for name, names in columns.items())
            faults.append(f"{told}: expected the same in both. Remove or rename some (Dataset.rename_column)")
        faults += [f"{name} has a column {COLUMN!r}, which is ours" for name in columns if COLUMN in columns[name]]
    if faults:
        raise OptionError("the datasets", faults)
    return list(made.values())


def _check(config: Any) -> None:
    """What of SFTConfig cannot be kept."""
    faults = []
    if getattr(config, "packing", False):
        faults.append(
            "args.packing = True glues examples together before they are drawn: none has an id or a signal of its "
            "own. Expected False. padding_free=True (with max_length=None, on examples that are cut already) has "
            "no padding, either, and is exact; `srt-peft train` packs what it draws"
        )
    if getattr(config, "loss_type", "nll") == "chunked_nll":
        faults.append(
            "args.loss_type = 'chunked_nll' gives one loss for a whole batch, and none of its tokens': expected "
            "'nll', which in TRL 1.16 makes no logits, either"
        )
    if faults:
        raise OptionError("SRTSFTTrainer", faults)


class SRTSFTTrainer(SRTSFTMixin, SFTTrainer):
    """SFTTrainer, with old_dataset, new_dataset and review in place of train_dataset."""
