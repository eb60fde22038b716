"""The processes of a run: they begin together, fail together, and add up what each has found.

Under `torchrun` or `accelerate launch` each process runs the same program, and whatever is summed over them waits for
all. So what one process may fail at while the others do not (only the main one writes) is done `as_one`. Where one
fails within a step, nobody is left to tell the others: they lose its connection, or the launcher ends them.
"""

from __future__ import annotations

import atexit
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TypeVar

import torch
import transformers
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, gather_object

from srt_peft.errors import SRTError

Found = TypeVar("Found")

PATIENCE = timedelta(days=1)
"""How long processes wait for one that is busy: the main one tokenises and saves alone. A launcher ends them sooner."""

BUCKET = 1 << 24
"""Numbers that are summed at once: a collective costs its latency, and an adapter has hundreds of small gradients."""

_HEARING = 2.0
"""Seconds that a process which has nothing to tell leaves to the one that has, before the launcher sees it fail."""


@contextmanager
def begun(trackers: Sequence[str], project: str) -> Iterator[Accelerator]:
    """The accelerator, and with it the processes' group; only the main one shows what all would show."""
    group = InitProcessGroupKwargs(timeout=PATIENCE)
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(),  # unless told so, several processes without a GPU are each alone
        log_with=[name for name in trackers if name in available()] or None,
        project_dir=project,
        kwargs_handlers=[group],
    )
    # Gloo's threads may still hold tensors, and letting go of one while the interpreter is torn down aborts (SIGABRT).
    # Not ended here, since whoever trains twice in a process needs the group again.
    atexit.register(_end)
    try:
        with nullcontext() if accelerator.is_main_process else _silence():
            yield accelerator
    except BaseException as error:
        if isinstance(error, RuntimeError) and "gloo" in str(error):
            raise SRTError("Another process of this run has ended; it says why, or its launcher does.") from error
        if accelerator.device.type != "cpu":  # NCCL's end waits for the others, who may be waiting for us
            atexit.unregister(_end)
        raise


def available() -> set[str]:
    """The trackers that can be used here."""
    return {str(tracker) for tracker in get_available_trackers()}


def _end() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def _silence() -> Iterator[None]:
    """No warnings and no progress bars, which would be those of the main process once more."""
    level, bars = logging.root.manager.disable, transformers.utils.logging.is_progress_bar_enabled()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def as_one(accelerator: Accelerator) -> Iterator[None]:
    """What one process fails at, all fail at: the first tells why, and the others leave with its exit code.

    All arrive here before any goes on. Within, nothing may be summed over the processes.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised again below, once the others know
        failed = error
    codes = gather_object([getattr(failed, "exit_code", SRTError.exit_code) if failed else 0])
    first = next((rank for rank, code in enumerate(codes) if code), None)
    if first is None:
        return
    if failed is not None and first == accelerator.process_index:
        raise failed
    time.sleep(_HEARING)
    raise SystemExit(codes[first])


def from_main(found: Found) -> Found:
    """What the main process has found, on all of them."""
    told: list[Found] = broadcast_object_list([found])
    return told[0]


def sum_over(accelerator: Accelerator, tensors: Sequence[torch.Tensor]) -> None:
    """Add up each tensor over the processes, in place, with a few large collectives."""
    if accelerator.num_processes == 1:
        return
    for bucket in buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        torch.distributed.all_reduce(flat)
        for tensor, part in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
            tensor.copy_(part.view_as(tensor))


def buckets(tensors: Sequence[torch.Tensor], size: int = BUCKET) -> Iterator[list[torch.Tensor]]:
    """The tensors in their order, as many at a time as are of one type and have at most `size` numbers, or one."""
    bucket: list[torch.Tensor] = []
    held = 0
    for tensor in tensors:
        if bucket and (held + tensor.numel() > size or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, held = [], 0
        bucket.append(tensor)
        held += tensor.numel()
    if bucket:
        yield bucket
