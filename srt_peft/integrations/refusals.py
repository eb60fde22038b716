"""What a Trainer can do and a schedule cannot keep: refused before training, by name, with what to use instead.

All faults are told at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from srt_peft.errors import OptionError

_ORDER = "the scheduler decides the order. Leave it at its default"
_FIXED = (
    "a step's batch would change in the middle of a run, and the schedule with it. Set it to False, and a batch size"
)

# Each argument with the values that can be kept (what it is where a version lacks it comes first), and the remedy.
_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "train_sampling_strategy": (("random",), f"expected 'random': {_ORDER}"),
    "group_by_length": ((False,), f"expected False: {_ORDER}"),
    "auto_find_batch_size": ((False,), f"expected False: {_FIXED}"),
    "dataloader_num_workers": (
        (0,),
        "expected 0: a worker has a copy of the scheduler, and would draw on without reviews. Tokenise beforehand",
    ),
    "enable_jit_checkpoint": (
        (False,),
        "expected False: it saves between a review and the step that it belongs to. Save by save_steps",
    ),
}


def check_arguments(args: Any) -> None:
    """The training arguments; what the versions at hand do not know cannot be set, either."""
    faults = [
        f"args.{name} = {given!r}: {remedy}"
        for name, (kept, remedy) in _ARGUMENTS.items()
        if (given := getattr(args, name, kept[0])) not in kept
    ]
    if faults:
        raise OptionError("SRTTrainer", faults)


def check_trainer(trainer: Any) -> None:
    """What is known once the trainer is made: processes, and the kernels of the loss."""
    faults = list(_shared_out(trainer))
    if fused(trainer.args):
        faults.append(
            "args.use_liger_kernel = True: its fused cross-entropy never makes the logits that signals are read from. "
            "Set liger_kernel_config={'fused_linear_cross_entropy': False}"
        )
    if faults:
        raise OptionError("SRTTrainer", faults)


def fused(args: Any) -> bool:
    """Whether Liger would replace the head and the loss by a kernel of its own."""
    config = getattr(args, "liger_kernel_config", None) or {}
    return (
        bool(getattr(args, "use_liger_kernel", False)) and config.get("fused_linear_cross_entropy", True) is not False
    )


def _shared_out(trainer: Any) -> Iterator[str]:
    if trainer.args.n_gpu > 1:
        yield (
            f"{trainer.args.n_gpu} GPUs in one process (nn.DataParallel): expected one process a GPU. Launch with "
            "torchrun or `accelerate launch`, or set CUDA_VISIBLE_DEVICES"
        )
    config = getattr(trainer.accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        size = getattr(config, name, 1) or 1
        if size > 1:
            yield f"parallelism_config.{name} = {size}: expected 1; only data-parallel processes share a draw out"
    split = getattr(getattr(trainer.args, "accelerator_config", None), "split_batches", False)
    if split:
        yield "accelerator_config.split_batches = True: expected False; per_device_train_batch_size is what it says"


def check_class(kind: type) -> None:
    """TRL's other trainers learn from pairs and rewards, which have no NLL that would say how well a text is known."""
    for base in kind.__mro__:
        theirs = base.__module__.startswith("trl.") and base.__name__.endswith("Trainer")
        if theirs and base.__name__ not in ("SFTTrainer", "BaseTrainer", "_BaseTrainer"):
            fault = (
                f"{base.__name__} learns from preferences or rewards, not from a text's likelihood: no signal says "
                "how well an example is known. Take SFTTrainer (srt_peft.integrations.trl), or schedule a "
                "loop of your own with make_scheduler and a signal that means something there"
            )
            raise OptionError(kind.__name__, [fault])
