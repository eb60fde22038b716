"""SRTMixin: the schedule inside a Hugging Face Trainer, which stays what it is.

    draw     a window of accumulation micro-batches is a draw, and an optimiser step: see `draws`
    signal   read from what the model returns in compute_loss, whoever wrote that: see `signals`
    review   after the window's last micro-batch, with the signals of all ranks, before the optimiser's step
    save     with the model, in srt_state/ beside it; with the best model comes the review state that it had
    resume   the state is the checkpoint's, and the batches that Trainer skips are empty

Loss, precision, accumulation, logs, callbacks and evaluation are Trainer's own. An epoch is one pass over new text,
⌈n_new / ((1 − ρ)·B)⌉ steps; `max_steps` counts steps, as ever. A draw with nobody in it takes no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from srt_peft.errors import OptionError, StateError
from srt_peft.integrations.draws import IDS, Both, Numbered, loader_of
from srt_peft.integrations.refusals import check_arguments, check_class, check_trainer
from srt_peft.integrations.reviewing import scheduler_of
from srt_peft.integrations.signals import Watch, example_nll, unknown
from srt_peft.integrations.windows import Windows
from srt_peft.review import Scheduler, load_scheduler

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object

STATE = "srt_state"


class SRTMixin(_Base):
    """`class Mine(SRTMixin, MyTrainer)`: old_dataset, new_dataset and review in place of train_dataset."""

    srt: Scheduler
    """The scheduler; its state is `trainer.srt.state`."""

    def __init__(
        self,
        *args: Any,
        old_dataset: Any = None,
        new_dataset: Any = None,
        review: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """What the trainer takes, but for train_dataset; `review` is as a recipe's section of that name."""
        check_class(type(self))
        if new_dataset is None or kwargs.get("train_dataset") is not None or len(args) > 3:
            fault = "expected new_dataset (what to learn) and old_dataset (what to retain, or None), no train_dataset"
            raise OptionError(type(self).__name__, [fault])
        given = kwargs.get("args", args[1] if len(args) > 1 else None)
        if given is not None:
            check_arguments(given)
        old = [] if old_dataset is None else old_dataset
        kwargs["train_dataset"] = self._srt_joined(old, new_dataset)
        super().__init__(*args, **kwargs)
        check_arguments(self.args)
        check_trainer(self)
        self._srt_rows, (n_old, n_new) = self._srt_found(len(old), len(new_dataset))
        micro, accumulation, ranks = (
            self.args.train_batch_size,
            self.args.gradient_accumulation_steps,
            self.args.world_size,
        )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        self.srt = scheduler_of(review, old=n_old, new=n_new, batch_size=micro * accumulation * ranks, seed=seed)
        rank, device = self.args.process_index, self.args.device
        self._srt_windows = Windows(self.srt, accumulation, rank=rank, ranks=ranks, device=device)
        self._srt_logged = dict(self._srt_windows.told)

    # --- the draw -----------------------------------------------------------------------------------------------

    def _srt_joined(self, old: Any, new: Any) -> Any:
        """Both datasets as the one that the trainer is made with."""
        return Both(old, new)

    def _srt_found(self, old: int, new: int) -> tuple[NDArray[np.integer] | None, tuple[int, int]]:
        """In which row of `train_dataset` each id stands, None where in its own; and how many are old and new."""
        return None, (old, new)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The draws, one window after the other."""
        dataset, collator = self.train_dataset, self.data_collator
        if hasattr(dataset, "column_names"):
            dataset = self._remove_unused_columns(dataset, description="Training")
        else:
            collator = self._get_collator_with_removed_columns(collator, description="Training")
        numbered, pin = Numbered(dataset, self._srt_rows), self.args.dataloader_pin_memory
        return loader_of(self._srt_windows, numbered, collator, self.label_names, pin=pin)

    # --- the review ---------------------------------------------------------------------------------------------

    def example_nll(self, outputs: Any, inputs: Mapping[str, Any], k: int) -> torch.Tensor:
        """The mean NLL of each of the k examples of a micro-batch. Override it for a model of a kind of its own."""
        label = self.label_names[0] if len(self.label_names) == 1 else "labels"
        return example_nll(outputs, inputs, k, label=label, shifts=_shifts(self.model))

    def training_step(self, model: torch.nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Trainer's own step, watched; after a window's last, the review."""
        ids = inputs.pop(IDS)
        if int(ids[0]) < 0:
            loss = torch.zeros((), device=self.args.device)
        else:
            k, given = len(ids), dict(inputs)  # compute_loss may take labels out, and put things in
            self.current_gradient_accumulation_steps = self._srt_windows.real
            with Watch(model, lambda outputs: self.example_nll(outputs, given, k)) as watch:
                loss = super().training_step(model, inputs, *args, **kwargs)
            if watch.nll is None:
                raise unknown("compute_loss did not call the model that it was given")
            if watch.nll.shape != (k,):
                raise unknown(f"example_nll gave a tensor of shape {tuple(watch.nll.shape)} for {k} examples")
            self._srt_windows.note(ids, watch.nll)
        self._srt_windows.passed(lambda signals: self.accelerator.reduce(signals, "sum"))
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Beside the loss, since it was last told: the shares of old examples and of lapses; and the clock."""
        told, before = self._srt_windows.told, self._srt_logged
        examples = told["examples"] - before["examples"]
        if "loss" in logs and examples:
            logs["srt_old"], logs["srt_lapses"] = ((told[k] - before[k]) / examples for k in ("old", "lapses"))
            logs["srt_step"] = self.srt.state.step
            self._srt_logged = dict(told)
        super().log(logs, *args, **kwargs)

    # --- save and resume ----------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:  # noqa: FBT001, FBT002
        """The model, and the review state beside it: in a checkpoint, before it is pushed, and others rotated away."""
        if self.args.should_save:
            folder = Path(output_dir or str(self.args.output_dir)) / STATE
            folder.mkdir(parents=True, exist_ok=True)
            self.srt.save(folder)
        super().save_model(output_dir, _internal_call)

    def train(
        self,
        resume_from_checkpoint: str | PathLike[str] | bool | None = None,  # noqa: FBT001 - Trainer's own
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Trainer's own; on resume the review state is the checkpoint's."""
        from transformers.trainer_utils import get_last_checkpoint  # noqa: PLC0415 - heavy

        if args or kwargs.get("trial") is not None:
            raise OptionError("SRTTrainer", ["trial: a search over settings would share one review state. Use a loop"])
        if isinstance(resume_from_checkpoint, PathLike):
            resume_from_checkpoint = fspath(resume_from_checkpoint)
        elif resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(str(self.args.output_dir)) or True  # type: ignore[no-untyped-call]
        self._srt_windows.void()
        self._srt_windows.skip = 0
        if isinstance(resume_from_checkpoint, str):
            self._srt_load(resume_from_checkpoint)
            if not self.args.ignore_data_skip:
                self._srt_windows.skip = _steps(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, **kwargs)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.state.best_model_checkpoint is not None:
            self._srt_load(self.state.best_model_checkpoint)

    def _srt_load(self, checkpoint: str) -> None:
        folder = Path(checkpoint) / STATE
        if not folder.is_dir():
            raise StateError(
                f"{checkpoint} has no {STATE}/: it was not made by this trainer, or was not written whole. Resume from "
                "one that has; or begin a new run with its model, and all examples unseen."
            )
        self._srt_windows.void()
        with load_scheduler(folder) as saved:
            self.srt.load_state_dict(saved.state_dict())


def _steps(checkpoint: str) -> int:
    """How many steps Trainer counts in a checkpoint."""
    from transformers.trainer import TRAINER_STATE_NAME  # noqa: PLC0415 - heavy
    from transformers.trainer_callback import TrainerState  # noqa: PLC0415 - heavy

    state = Path(checkpoint) / TRAINER_STATE_NAME
    return TrainerState.load_from_json(str(state)).global_step if state.is_file() else 0


def _shifts(model: Any) -> bool:
    """Whether the model predicts the next token, so that its labels are one place further than its logits."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss  # noqa: PLC0415 - heavy

    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder = not getattr(getattr(causal, "config", None), "is_encoder_decoder", False)
    return decoder and LOSS_MAPPING.get(str(getattr(causal, "loss_type", None))) is ForCausalLMLoss
