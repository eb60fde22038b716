"""SRTPlugin: Axolotl's own trainer, with a schedule in place of a sampler.

    plugins: [srt_peft.integrations.axolotl.SRTPlugin]
    datasets:                                  # what to learn, as ever
      - {path: this_week.jsonl, type: completion}
    srt_old_datasets:                          # what to retain, in the same form
      - {path: last_month.jsonl, type: completion}
    srt_review: {old_fraction: 0.2}            # as in a recipe

The plugin has Axolotl load and tokenise each of the two, notes which rows are which, and gives it SRTMixin over its own
trainer. `sample_packing` glues examples together before they are drawn, and is refused; `batch_flattening` is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from srt_peft.errors import OptionError
from srt_peft.integrations.mixin import SRTMixin
from srt_peft.integrations.reviewing import scheduler_of, steps_of_a_pass

if TYPE_CHECKING:
    _Plugin = object
else:
    from axolotl.integrations.base import BasePlugin as _Plugin

COLUMN = "srt_old"


class SRTArgs(BaseModel):  # type: ignore[misc, unused-ignore] # pydantic may be without types
    """What a config may say to the plugin."""

    srt_old_datasets: list[dict[str, Any]] | None = None
    srt_review: dict[str, Any] | None = None


class SRTPlugin(_Plugin):  # type: ignore[misc, unused-ignore] # Any where Axolotl is
    """Two corpora and a schedule, in a config."""

    def get_input_args(self) -> str:
        """Where Axolotl finds what a config may say."""
        return "srt_peft.integrations.axolotl.SRTArgs"

    def register(self, cfg: Any) -> None:
        """Refuse what cannot be kept, before anything is loaded."""
        check(cfg)

    def get_training_args(self, cfg: Any) -> dict[str, Any]:  # noqa: ARG002 - Axolotl's own
        """Batches are fetched by the process that draws."""
        return {"dataloader_num_workers": 0, "dataloader_prefetch_factor": None}

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> Any:  # noqa: ARG002, FBT001, FBT002 - Axolotl's own
        """Both corpora as one, each row marked; held out is what Axolotl holds out of the new one."""
        from axolotl.common.datasets import load_datasets  # type: ignore[import-not-found]  # noqa: PLC0415 - heavy
        from datasets import concatenate_datasets  # type: ignore[import-untyped]  # noqa: PLC0415 - heavy

        new = load_datasets(cfg=cfg)
        parts = [new.train_dataset.add_column(COLUMN, np.zeros(len(new.train_dataset), dtype=bool))]
        if cfg.srt_old_datasets:
            old = load_datasets(cfg=type(cfg)({**cfg, **of_old(cfg)})).train_dataset
            parts.insert(0, old.add_column(COLUMN, np.ones(len(old), dtype=bool)))
        new.train_dataset = concatenate_datasets(parts)
        new.total_num_steps = cfg.max_steps or _steps(cfg, len(parts[-1]), len(new.train_dataset))
        return new

    def get_trainer_cls(self, cfg: Any) -> type:
        """SRTMixin over Axolotl's trainer, with this config's review."""
        from axolotl.core.trainers.base import AxolotlTrainer  # type: ignore[import-not-found]  # noqa: PLC0415 - heavy

        return over(AxolotlTrainer, cfg.srt_review)


def check(cfg: Any) -> None:
    """The settings of Axolotl's that cannot be kept."""
    remedy = {
        "sample_packing": "glues examples together before they are drawn: set it to false; batch_flattening: true has "
        "no padding, either, and is exact",
        "curriculum_sampling": "sets the order, and so does the scheduler: set it to false",
        "pretraining_dataset": "is a stream, which cannot be asked for an example again: name it under datasets",
        "streaming": "is a stream, which cannot be asked for an example again: set it to false",
        "rl": "learns from preferences or rewards, not from a text's likelihood: no signal says how well it is known",
        "reward_model": "learns from preferences, not from a text's likelihood",
        "process_reward_model": "learns from rewards, not from a text's likelihood",
        "orpo_alpha": "learns from preferences, not from a text's likelihood",
    }
    faults = [f"{name}: {cfg.get(name)!r} {told}" for name, told in remedy.items() if cfg.get(name)]
    if faults:
        raise OptionError("the Axolotl config", faults)


def of_old(cfg: Any) -> dict[str, Any]:
    """What differs in the config with which the old corpus is loaded: nothing of it is held out."""
    return {"datasets": cfg.srt_old_datasets, "val_set_size": 0, "test_datasets": None, "srt_old_datasets": None}


def over(trainer: type, review: Mapping[str, Any] | None) -> type:
    """SRTMixin over a trainer that is made with one dataset, in which a column says which rows are old."""

    class SRTAxolotlTrainer(SRTMixin, trainer):  # type: ignore[misc]
        """Axolotl's trainer, scheduled."""

        def __init__(self, *args: Any, train_dataset: Any, **kwargs: Any) -> None:
            is_old = np.asarray(train_dataset[COLUMN])
            spare = {COLUMN, "length"} & set(train_dataset.column_names)
            rows = train_dataset.remove_columns(sorted(spare))
            old, new = (rows.select(np.flatnonzero(is_old == which)) for which in (True, False))
            super().__init__(*args, old_dataset=old, new_dataset=new, review=review, **kwargs)

        def _srt_joined(self, old: Any, new: Any) -> Any:
            from datasets import concatenate_datasets  # noqa: PLC0415 - heavy

            return concatenate_datasets([old, new])

    return SRTAxolotlTrainer


def _steps(cfg: Any, new: int, rows: int) -> int:
    """How long the run is, which Axolotl wants to know before there is a trainer: epochs of one pass over new text."""
    ranks = int(cfg.world_size or 1)
    batch = int(cfg.micro_batch_size or 1) * int(cfg.gradient_accumulation_steps or 1) * ranks
    scheduler = scheduler_of(cfg.srt_review, old=rows - new, new=new, batch_size=batch, seed=0)
    return int(np.ceil(float(cfg.num_epochs or 1) * steps_of_a_pass(scheduler.options, new)))
