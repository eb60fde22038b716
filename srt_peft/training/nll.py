"""Per-example NLL and the loss, from the one forward pass that training makes anyway.

    nll_p = −log softmax(W·h_p)[x_{p+1}]      where p and p + 1 belong to the same example

Which tokens count. A token is predicted from its predecessor in the same example only. So the first token of an
example has no NLL, and padding has none. An example of one token predicts nothing: its count is 0, and its mean
NLL is defined as 0.

Two paths lead from the hidden states h to the NLL, and `head_path` says which one a model takes, and why:

    linear   The logits are exactly W·h. The NLL is computed inside the head's own call, in chunks, so that no
             tensor of (tokens × vocabulary) exists, neither in the forward pass nor in the backward.
    logits   Something else happens on the way: soft-capping, a scale, a bias, LoRA or quantisation on the head.
             The model makes its logits, and the NLL is their cross-entropy.

The linear path calls the whole model, wrappers included, with only the head's `forward` replaced while the call
lasts. So DDP and FSDP see an ordinary forward pass, the head's weight is there when FSDP has gathered it, and no
architecture needs a rule of its own. What the model then returns as its logits must be the NLL that the head gave
it, untouched. Where it is not, the model does something to its logits that `head_path` did not know: this is told
once, and from then on that model takes the logits path.

Not torch.nn.functional.linear_cross_entropy: with bfloat16 inputs it returns the NLL in bfloat16, three digits,
and reviews need more; and on the CPU it takes several times as long (eval/speed/loss_head.py measures both).
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from srt_peft.errors import SRTError

_LOGGER = logging.getLogger("srt_peft")

# Logits that exist at one time: 128 MiB in float32. At a vocabulary of 128k that is 256 tokens, which is about where a
# GPU's matrix product stops waiting for the weight to be read.
CHUNK = 2**25
# Rows of the head's gradient that are summed at one time, so that no second copy of it is ever whole.
_ROWS = 2**14

Path = Literal["linear", "logits"]

# What configurations call the things that their models do to logits, each with the values that leave them as they are.
_ON_LOGITS: dict[str, tuple[float | None, ...]] = {
    "final_logit_softcapping": (None,),  # Gemma
    "logits_soft_cap": (None,),  # RecurrentGemma
    "output_logit_soft_cap": (None,),  # xLSTM
    "logit_scale": (None, 1),  # Cohere
    "logits_scaling": (None, 1),  # Granite
    "lm_head_multiplier": (None, 1),  # Falcon-H1
}
_FOUND_OUT: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


class Batch(Protocol):
    """A micro-batch, as the collator makes it."""

    @property
    def input_ids(self) -> Tensor:
        """Tokens, (rows, length) int64."""

    @property
    def position_ids(self) -> Tensor:
        """Positions, (rows, length) int64, from 0 in each example; packed rows are kept apart by these alone."""

    @property
    def attention_mask(self) -> Tensor | None:
        """None where rows are packed; else 1 for a token and 0 for padding, (rows, length)."""

    @property
    def example(self) -> Tensor:
        """Which of the micro-batch's examples each token belongs to, (rows, length) int64; −1 at padding."""


class HeadPath(NamedTuple):
    """The way from hidden states to NLL that a model takes, and the reason."""

    path: Path
    reason: str


# --- one forward pass -------------------------------------------------------------------------------------------


def token_nll(model: nn.Module, batch: Batch, *, chunk: int = CHUNK) -> tuple[Tensor, Tensor]:
    """(NLL of each predicted token, float32 with its gradient; the example that each belongs to).

    `model` is what the loop trains: a causal language model, bare or inside PEFT, DDP, FSDP or accelerate. `example`
    may stay on the CPU while the rest is on a GPU: then nothing waits for the GPU to learn how many tokens count.
    """
    where = predicted(batch.example)
    example = batch.example.flatten()[where]
    where = where.to(batch.input_ids.device, non_blocking=True)
    example = example.to(where.device, non_blocking=True)
    target = batch.input_ids.flatten()[where + 1]
    if head_path(model).path == "linear":
        nll = _inside_the_head(model, batch, where, target, chunk)
        if nll is not None:
            return nll, example
    logits: Tensor = _forward(model, batch)
    if logits.shape[:-1] != batch.input_ids.shape:
        raise _too_few(model, batch, logits)
    chosen = logits.flatten(0, 1)[where]
    return F.cross_entropy(chosen.float(), target, reduction="none"), example


def predicted(example: Tensor) -> Tensor:
    """The flat positions whose next token is to be predicted: the same example goes on there."""
    goes_on = (example[:, 1:] == example[:, :-1]) & (example[:, 1:] >= 0)
    return F.pad(goes_on, (0, 1)).flatten().nonzero().flatten()


def summarise(nll: Tensor, example: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(mean NLL of each of the k examples, detached, float32; how many tokens each predicts, int64).

    An example that predicts nothing has mean 0 and count 0. Sums run in float64 where the device has it: there the
    order of a GPU's additions does not show in the float32 that comes out.
    """
    wide = torch.float32 if nll.device.type == "mps" else torch.float64
    total = torch.zeros(k, dtype=wide, device=nll.device).index_add_(0, example, nll.detach().to(wide))
    count = torch.bincount(example, minlength=k)
    return (total / count.clamp(min=1)).float(), count


def logits_at(model: nn.Module, batch: Batch, where: Tensor) -> Tensor:
    """The model's logits at these flat positions, (n, vocabulary), without making those of the other positions.

    It is the head's own forward that makes them, and the model that goes on with them: so a bias, a quantised or
    adapted head, a soft cap and a scale are all there. A model that does not call its head once, on all that it was
    given, makes whole logits instead.
    """
    head = _head(causal_lm(model))
    shape = batch.input_ids.shape
    if head is not None:
        plain = head.forward
        called: list[bool] = []

        def forward(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
            called.append(hidden.shape[:-1] == shape)
            chosen = hidden.flatten(0, 1)[where.to(hidden.device)][None] if called[-1] else hidden
            return plain(chosen, *args, **kwargs)

        with _replaced(head, forward):
            logits = _forward(model, batch)
        if called == [True] and logits.shape[:-1] == (1, len(where)):
            return logits[0]
    logits = _forward(model, batch)
    if logits.shape[:-1] != shape:
        raise _too_few(model, batch, logits)
    return logits.flatten(0, 1)[where.to(logits.device)]


def _too_few(model: nn.Module, batch: Batch, logits: Tensor) -> SRTError:
    return SRTError(
        f"{type(causal_lm(model)).__name__} returned logits of shape {tuple(logits.shape)} for tokens of shape "
        f"{tuple(batch.input_ids.shape)}: expected one row of logits for each token. srt-peft cannot use it."
    )


# --- the choice -------------------------------------------------------------------------------------------------


def head_path(model: nn.Module) -> HeadPath:
    """Which path the model takes to its NLL, and why: read off its head and configuration, and what runs found out."""
    causal = causal_lm(model)
    obstacle = _FOUND_OUT.get(causal) or _in_the_head(_head(causal)) or _after_the_head(causal)
    if obstacle:
        return HeadPath("logits", obstacle)
    return HeadPath("linear", "the logits are the head's weight times the hidden states")


def _in_the_head(head: Any) -> str | None:
    """What keeps this head from being a plain linear map in floating point, if anything does."""
    if head is None:
        return "the model names no output embeddings"
    # FSDP2 puts a class of its own in front of Linear, so it is the forward that tells a plain linear map.
    if type(head).forward is not nn.Linear.forward:
        return f"the head is a {type(head).__name__}, not a plain Linear"
    if head.bias is not None:
        return "the head has a bias"
    if head.weight.is_meta or not head.weight.is_floating_point():
        return f"the head's weight is {head.weight.dtype} on {head.weight.device}"
    return None


def _after_the_head(causal: Any) -> str | None:
    """What the configuration says is done to the logits, if anything is."""
    text = causal.config.get_text_config()
    values = ((name, getattr(text, name, None), plain) for name, plain in _ON_LOGITS.items())
    return next((f"{name} is {value}" for name, value, plain in values if value not in plain), None)


def causal_lm(model: nn.Module) -> Any:
    """The transformers model inside whatever wraps it: DDP, FSDP, DeepSpeed, torch.compile, PEFT."""
    inner: Any = model
    while True:
        if isinstance(getattr(inner, "_orig_mod", None), nn.Module):
            inner = inner._orig_mod  # noqa: SLF001 - the only name torch.compile has for it
        elif isinstance(getattr(inner, "module", None), nn.Module):
            inner = inner.module
        elif hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        else:
            return inner


def _head(causal: Any) -> Any:
    try:
        return causal.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None


def packs_exactly(model: nn.Module, vocabulary: int | None = None) -> bool:
    """Whether examples packed into one row are kept apart by `position_ids`, found out by trying.

    Two short forward passes: an example's NLL must not change when its neighbour before it does. State-space models
    and those that know no position ids fail, and must be padded instead. The caller sees to it that dropout is off.
    """
    device = next(model.parameters()).device
    words = vocabulary or int(causal_lm(model).config.get_text_config().vocab_size)
    length = 8
    positions = torch.arange(length, device=device).repeat(2)[None]
    example = torch.arange(2, device=device).repeat_interleave(length)[None]
    tokens = (torch.arange(3 * length, device=device) * 7919 + 11) % words
    first, second, same = tokens.view(3, length)
    with torch.no_grad():
        nll = [
            token_nll(model, _Packed(torch.cat([before, same])[None], positions, None, example))[0][length - 1 :]
            for before in (first, second)
        ]
    tolerance = 1e-4 if next(model.parameters()).dtype == torch.float32 else 0.05
    return bool((nll[0] - nll[1]).abs().max() <= tolerance)


class _Packed(NamedTuple):
    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor | None
    example: Tensor


# --- the model's call -------------------------------------------------------------------------------------------


def _forward(model: nn.Module, batch: Batch) -> Tensor:
    """What the model returns as its logits; no cache, since with one transformers takes packed rows for whole ones."""
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False, "return_dict": True}
    if batch.attention_mask is not None:
        inputs["attention_mask"] = batch.attention_mask
    if "position_ids" in inspect.signature(causal_lm(model).forward).parameters:
        inputs["position_ids"] = batch.position_ids
    return cast(Tensor, model(**inputs).logits)


def _inside_the_head(model: nn.Module, batch: Batch, where: Tensor, target: Tensor, chunk: int) -> Tensor | None:
    """The NLL, computed by the head in the model's own forward pass; None where the model changed it afterwards."""
    causal = causal_lm(model)
    head = _head(causal)
    given: list[Tensor] = []

    def forward(hidden: Tensor) -> Tensor:
        if hidden.shape[:-1] != batch.input_ids.shape:
            return F.linear(hidden, head.weight)
        nll = linear_nll(hidden.flatten(0, 1)[where], head.weight, target, chunk=chunk)
        given.append(nll.view(1, -1, 1))  # as many dimensions as logits have
        return given[-1]

    with _replaced(head, forward):
        returned = _forward(model, batch)
    if len(given) == 1 and (
        returned is given[0] or (returned.shape == given[0].shape and torch.equal(returned.detach(), given[0].detach()))
    ):
        return returned.flatten()
    _FOUND_OUT[causal] = f"{type(causal).__name__} changes its logits after the head"
    _LOGGER.warning("the loss goes through whole logits, and takes more memory: %s.", _FOUND_OUT[causal])
    return None


@contextlib.contextmanager
def _replaced(head: nn.Module, forward: Any) -> Iterator[None]:
    """The head with another `forward` while this lasts; what stood on the instance before comes back."""
    before = head.__dict__.get("forward")
    head.forward = forward
    try:
        yield
    finally:
        if before is None:
            del head.forward
        else:
            head.forward = before


# --- the head, in chunks ----------------------------------------------------------------------------------------


def linear_nll(hidden: Tensor, weight: Tensor, target: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """The NLL of each target under softmax(weight · hidden), (n,) float32, at most `chunk` logits at a time.

    Products run in autocast's type where autocast is on; all that follows them, in float32. Where the head is frozen
    (LoRA, QLoRA) the gradient of `hidden` is made in the forward pass, while its chunk of logits is at hand: a token's
    gradient is its own (softmax − onehot)·W times whatever comes back for it. Else chunks are recomputed.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    rows = max(1, chunk // weight.shape[0])
    with torch.autocast(kind, enabled=False):
        if not target.numel():  # nothing to predict, and still part of the graph, as DDP wants it
            return F.linear(hidden.to(weight.dtype), weight).sum(-1).float()
        graph = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
        return cast(Tensor, _HeadNLL.apply(hidden, weight, target, _How(rows, dtype, graph)))  # type: ignore[no-untyped-call]


class _How(NamedTuple):
    rows: int
    dtype: torch.dtype
    graph: bool
    """Whether a backward pass may come."""


class _HeadNLL(torch.autograd.Function):
    """NLL from hidden states and head, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, how: _How) -> Tensor:
        rows, dtype, graph = how
        ahead = graph and not weight.requires_grad
        gradient = torch.empty_like(hidden, dtype=dtype) if ahead else None
        head, lse, nll = weight.to(dtype), [], []
        for start in range(0, len(target), rows):
            part = slice(start, start + rows)
            logits = F.linear(hidden[part].to(dtype), head).float()
            lse.append(logits.logsumexp(-1))
            nll.append(lse[-1] - logits.gather(1, target[part, None])[:, 0])
            if gradient is not None:
                d = _softmax_less_onehot(logits, lse[-1], target[part])
                torch.mm(d.to(dtype), head, out=gradient[part])
        ctx.rows, ctx.dtype, ctx.ahead, ctx.like = rows, dtype, ahead, hidden.dtype
        if ahead:
            ctx.save_for_backward(gradient)
        elif graph:
            ctx.save_for_backward(hidden, weight, target, torch.cat(lse))
        return torch.cat(nll)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.ahead:
            (gradient,) = ctx.saved_tensors
            return ((gradient * grad[:, None]).to(ctx.like), None, None, None)
        hidden, weight, target, lse = ctx.saved_tensors
        head = weight.to(ctx.dtype)
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # In float32, since a sum over chunks in bfloat16 would lose the small ones.
        d_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(target), ctx.rows):
            part = slice(start, start + ctx.rows)
            x = hidden[part].to(ctx.dtype)
            d = _softmax_less_onehot(F.linear(x, head).float(), lse[part], target[part])
            d = d.mul_(grad[part, None]).to(ctx.dtype)
            if d_hidden is not None:
                d_hidden[part] = d @ head
            for columns in range(0, len(weight), _ROWS):
                d_weight[columns : columns + _ROWS] += d[:, columns : columns + _ROWS].T @ x
        return (d_hidden, d_weight.to(weight.dtype), None, None)


def _softmax_less_onehot(logits: Tensor, lse: Tensor, target: Tensor) -> Tensor:
    """∂nll/∂logits, written over the logits."""
    p = logits.sub_(lse[:, None]).exp_()
    return p.scatter_add_(1, target[:, None], p.new_full((len(target), 1), -1.0))
