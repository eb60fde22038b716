"""Each example's mean NLL, from what the model returned in the forward pass that made the loss. There is no second one.

    outputs                        labels                     an example is        its signal
    logits (rows, length, words)   (rows, length)             a row                mean over its targets
    the same, in one row           with position_ids          what begins at 0     mean over its targets
    log_probs (rows, length − 1)   TRL's fused head           either of these      mean over its targets
    logits (rows, classes)         (rows,) whole numbers      a row                −log p of its class

Targets are the labels that are not −100, so that completion-only loss gives the NLL of completions. Whatever else is
done to the loss (label smoothing, weights, a penalty), the signal stays the plain NLL: it says how well the example was
known, not what was minimised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from srt_peft.errors import OptionError
from srt_peft.training.nll import CHUNK, summarise

IGNORED = -100


class Watch:
    """What the first forward pass with a graph gives while this lasts: the one that the loss is made of."""

    def __init__(self, model: nn.Module, read: Callable[[Any], Tensor]) -> None:
        self.nll: Tensor | None = None
        self._model, self._read = model, read

    def __enter__(self) -> Watch:
        self._handle = self._model.register_forward_hook(self._see)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._handle.remove()

    def _see(self, _model: nn.Module, _given: Any, outputs: Any) -> None:
        if self.nll is None and torch.is_grad_enabled():
            self.nll = self._read(outputs).detach()


def example_nll(outputs: Any, inputs: Mapping[str, Any], k: int, *, label: str = "labels", shifts: bool) -> Tensor:
    """The mean NLL of each of the micro-batch's k examples, in its order, detached.

    `shifts` says that the model predicts the next token: the logits at p are of the label at p + 1.
    """
    labels = inputs.get(label)
    if not isinstance(labels, Tensor):
        raise unknown(f"the batch has no tensor {label!r}")
    log_probs, logits = (_field(outputs, name) for name in ("log_probs", "logits"))
    with torch.no_grad():
        if log_probs is not None:
            return _of_tokens(-log_probs.detach(), _shifted(labels, log_probs, inputs), inputs, k)
        if logits is None:
            raise unknown("the model returned neither logits nor log_probs")
        logits = logits.detach()
        labels = labels.to(logits.device)
        if logits.ndim == 2 and labels.shape == (k,) and not labels.is_floating_point():
            return F.cross_entropy(logits.float(), labels, reduction="none").double()
        if logits.ndim != 3 or logits.shape[:2] != labels.shape:
            raise unknown(f"logits of shape {tuple(logits.shape)} and {label} of shape {tuple(labels.shape)}")
        if shifts:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return _of_tokens(_token_nll(logits, labels), labels, inputs, k)


def _field(outputs: Any, name: str) -> Tensor | None:
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    return found if isinstance(found, Tensor) else None


def _shifted(labels: Tensor, log_probs: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """The labels that TRL's fused head was given its log-probabilities for."""
    if "shift_labels" not in inputs and labels.shape[1] == log_probs.shape[1] + 1:
        labels = labels[:, 1:]
    if labels.shape != log_probs.shape:
        raise unknown(f"log_probs of shape {tuple(log_probs.shape)} and labels of shape {tuple(labels.shape)}")
    return labels.to(log_probs.device)


def _token_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """The NLL of each label under its logits, 0 where there is none; a chunk of logits in float32 at a time."""
    found = torch.zeros(labels.shape, dtype=torch.float32, device=logits.device)
    for row, (of, target) in enumerate(zip(logits, labels, strict=True)):
        for part in torch.split(torch.arange(len(target), device=target.device), max(1, CHUNK // of.shape[-1])):
            found[row, part] = F.cross_entropy(of[part].float(), target[part], ignore_index=IGNORED, reduction="none")
    return found


def _of_tokens(nll: Tensor, labels: Tensor, inputs: Mapping[str, Any], k: int) -> Tensor:
    """The mean of each example; `nll` and `labels` are aligned, and may lack the row's first place."""
    example = _examples(labels, inputs, k).to(nll.device)
    counts = (labels != IGNORED) & (example < k)
    return summarise(nll[counts], example[counts], k)[0].double()


def _examples(labels: Tensor, inputs: Mapping[str, Any], k: int) -> Tensor:
    """Which of the k examples each label belongs to."""
    rows, length = labels.shape
    if rows == k:
        return torch.arange(k, device=labels.device)[:, None].expand_as(labels)
    positions = inputs.get("position_ids")
    if rows != 1 or not isinstance(positions, Tensor) or positions.shape[0] != 1:
        raise unknown(f"{k} examples lie in {rows} rows")
    example = (positions[0] == 0).cumsum(0) - 1
    if int(example[-1]) + 1 < k:
        raise unknown(f"{k} examples lie in a row in which position_ids begin {int(example[-1]) + 1} times")
    return example[None, -length:]


def unknown(what: str) -> OptionError:
    """Where no signal can be read off, and what to do."""
    fault = (
        f"{what}, so no example's NLL can be read off the forward pass. Expected logits with labels, a row an example, "
        "or examples flattened into one row with position_ids. Losses that never make logits (fused cross-entropy: "
        "use_liger_kernel, loss_type='chunked_nll') must be switched off; for a model of another kind subclass the "
        "trainer, and let example_nll(outputs, inputs, k) return the k mean NLLs"
    )
    return OptionError("the signal", [fault])
