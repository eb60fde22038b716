"""Per-example NLL and the loss: against whole logits, against Hugging Face's loss, packed, padded and alone."""

import copy
import logging

import peft
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from srt_peft.errors import SRTError
from srt_peft.training import nll as module
from srt_peft.training.nll import (
    causal_lm,
    head_path,
    linear_nll,
    logits_at,
    packs_exactly,
    predicted,
    summarise,
    token_nll,
)
from tests.training.families import Batch, examples, gradients, packed, padded, tiny, twin

# PEFT asks transformers in words that it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


FAMILIES = ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "cohere", "granite", "phi"]
THROUGH_LOGITS = {"gemma2", "cohere", "granite", "phi"}
ROWS = [[0, 3, 1], [2, 4]]


def by_example(model, batch, k):
    """The NLLs of each example, in order."""
    nll, example = token_nll(model, batch)
    assert nll.dtype == torch.float32
    return [nll[example == i] for i in range(k)]


def close(mine, theirs, tolerance=1e-5):
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a.double(), b.double(), atol=tolerance, rtol=tolerance)


def same_gradients(mine, theirs, tolerance=1e-5):
    assert mine.keys() == theirs.keys()
    for name, gradient in mine.items():
        assert torch.allclose(gradient, theirs[name], atol=tolerance, rtol=tolerance), name


# --- one forward pass ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_nll_is_that_of_each_example_alone(family, attention):
    """Packed or padded, in one row or several, each example's NLLs are those of its own logits."""
    if family == "phi" and attention == "eager":
        pytest.skip("one is enough for a head with a bias")
    model, tokens = tiny(family, attention=attention), examples()
    alone = twin(model, tokens)
    assert alone[0].std() > 0.1  # else any answer would do
    assert head_path(model).path == ("logits" if family in THROUGH_LOGITS else "linear")
    for batch in (padded(tokens), packed(tokens, ROWS), packed(tokens, [[4, 3, 2, 1, 0]])):
        close(by_example(model, batch, len(tokens)), alone)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_hugging_face(family):
    """The token mean's gradients equal `model(labels=…)`'s, padded and packed."""
    model, tokens = tiny(family), examples()
    batch = padded(tokens)
    model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        labels=batch.input_ids.masked_fill(batch.example < 0, -100),
    ).loss.backward()
    theirs = gradients(model)
    for mine in (batch, packed(tokens, ROWS)):
        nll, _ = token_nll(model, mine)
        nll.mean().backward()
        same_gradients(gradients(model), theirs)


def test_no_gradient_is_kept_where_none_is_asked_for():
    model = tiny("llama").eval()
    with torch.no_grad():
        nll, _ = token_nll(model, padded(examples()))
    assert not nll.requires_grad


def test_training_without_dropout_agrees_with_evaluation():
    batch = packed(examples(), ROWS)
    for family in ("llama", "gemma2"):
        model = tiny(family)
        training, _ = token_nll(model.train(), batch)
        evaluation, _ = token_nll(model.eval(), batch)
        assert torch.equal(training.detach(), evaluation.detach())


def test_gradient_checkpointing_changes_nothing():
    model, batch = tiny("llama"), packed(examples(), ROWS)
    plain, _ = token_nll(model, batch)
    plain.sum().backward()
    before = gradients(model)
    model.activation_checkpointing_enable({"use_reentrant": False})
    again, _ = token_nll(model, batch)
    again.sum().backward()
    assert torch.equal(plain, again)
    same_gradients(gradients(model), before)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_autocast_to_bfloat16(family):
    """NLL stays float32 and near the exact one; gradients reach the float32 weights."""
    model, batch = tiny(family), packed(examples(), ROWS)
    exact, _ = token_nll(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        nll, _ = token_nll(model, batch)
    assert nll.dtype == torch.float32
    assert (nll - exact).abs().max() < 0.2
    nll.sum().backward()
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients(model).values())


def test_a_model_in_bfloat16_gives_nll_in_float32():
    """Not rounded to bfloat16 on the way: the values do not all fit in its 8 bits."""
    nll, _ = token_nll(tiny("llama", dtype=torch.bfloat16), padded(examples()))
    assert nll.dtype == torch.float32
    assert not torch.equal(nll, nll.bfloat16().float())


def test_through_peft():
    """LoRA, with the head frozen: values and gradients as of the logits path."""
    model = peft.get_peft_model(tiny("llama"), peft.LoraConfig(target_modules="all-linear", init_lora_weights=False))
    batch = packed(examples(), ROWS)
    assert head_path(model).path == "linear"
    assert causal_lm(model) is model.base_model.model
    mine, _ = token_nll(model, batch)
    mine.sum().backward()
    found = gradients(model)
    logits = model(
        input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=None, use_cache=False
    ).logits
    where = predicted(batch.example)
    theirs = F.cross_entropy(logits.flatten(0, 1)[where], batch.input_ids.flatten()[where + 1], reduction="none")
    theirs.sum().backward()
    close([mine], [theirs])
    same_gradients(found, gradients(model))
    assert all("lora" in name for name in found)


class Wrapper(nn.Module):
    """As DDP does: `module` inside, and outputs that are copies."""

    def __init__(self, model):
        super().__init__()
        self.module = model

    def forward(self, **inputs):
        out = self.module(**inputs)
        out.logits = out.logits.clone()
        return out


def test_through_a_wrapper_that_copies_what_the_model_returns():
    model, batch = tiny("llama"), padded(examples())
    nll, _ = token_nll(Wrapper(model), batch)
    assert torch.equal(nll, token_nll(model, batch)[0])
    assert head_path(Wrapper(model)).path == "linear"
    nll.sum().backward()
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_the_head_is_as_it_was_afterwards():
    """Also when the forward pass fails, and when something else (accelerate) had replaced its forward."""
    model, batch = tiny("llama"), padded(examples())
    token_nll(model, batch)
    assert "forward" not in model.lm_head.__dict__
    batch.input_ids[0, 0] = 10_000
    with pytest.raises(IndexError):
        token_nll(model, batch)
    assert "forward" not in model.lm_head.__dict__
    batch.input_ids[0, 0] = 1
    before = model.lm_head.forward
    model.lm_head.forward = before
    token_nll(model, batch)
    assert model.lm_head.__dict__["forward"] is before


# --- logits at some positions -------------------------------------------------------------------------------------


def plain_logits(model, batch):
    """Those of the model as anyone calls it."""
    return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits.flatten(0, 1)


def heads(model):
    """At how many positions the head makes logits, each time that it is called."""
    seen = []
    head = causal_lm(model).get_output_embeddings()
    head.register_forward_hook(lambda _, given, made: seen.append(made.shape[:-1].numel()))
    return seen


@pytest.mark.parametrize("family", [*FAMILIES, "mamba"])
def test_logits_at_some_positions_are_those_of_the_whole(family):
    """In any order, twice too; with soft caps, scales and biases; and the head makes no others."""
    model, batch = tiny(family).eval(), padded(examples())
    where = torch.tensor([3, 2, 31, 30, 3])
    with torch.no_grad():
        whole = plain_logits(model, batch)
        made = heads(model)
        found = logits_at(model, batch, where)
    assert torch.allclose(found, whole[where], atol=1e-5)
    assert made == [len(where)]
    assert "forward" not in causal_lm(model).get_output_embeddings().__dict__


@pytest.mark.parametrize("count", [1, 12])
def test_logits_of_one_row(count):
    """Where as many are asked for as the row is long, and where one is."""
    model, batch = tiny("llama").eval(), padded(examples([12]), more=0)
    where = torch.arange(12).flip(0)[:count]
    with torch.no_grad():
        assert torch.allclose(logits_at(model, batch, where), plain_logits(model, batch)[where], atol=1e-5)


def test_logits_of_a_head_in_4_bits_under_an_adapter():
    """NF4 and LoRA everywhere, the head too: whatever the head is, its own forward makes the logits."""
    bnb = pytest.importorskip("bitsandbytes")
    model = tiny("llama")
    for module_, name in [(m, n) for m in model.modules() for n, c in m.named_children() if type(c) is nn.Linear]:
        plain = getattr(module_, name)
        quantised = bnb.nn.Linear4bit(plain.in_features, plain.out_features, bias=False, quant_type="nf4")
        quantised.load_state_dict(plain.state_dict())
        setattr(module_, name, quantised.to("cpu"))
    targets = ["q_proj", "down_proj", "lm_head"]
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, init_lora_weights=False))
    batch, where = padded(examples()), torch.tensor([5, 0, 29])
    with torch.no_grad():
        made = heads(model)
        found = logits_at(model, batch, where)
        assert made == [3]
        assert torch.allclose(found, plain_logits(model, batch)[where], atol=1e-5)
        with model.disable_adapter():
            assert not torch.allclose(logits_at(model, batch, where), found, atol=1e-2)


def test_logits_of_models_that_use_their_head_otherwise():
    """Twice, on flattened states, or not by name: then whole logits are made, and they are right all the same."""

    class Twice(type(tiny("llama"))):
        def forward(self, **inputs):
            self.lm_head(torch.zeros(1, 32))
            return super().forward(**inputs)

    batch, where = padded(examples()), torch.tensor([5, 0, 29])
    for change in ({"__class__": Twice}, {"get_output_embeddings": lambda: None}):
        model = tiny("llama").eval()
        for name, value in change.items():
            setattr(model, name, value)
        with torch.no_grad():
            found = logits_at(model, batch, where)
            assert torch.allclose(found, plain_logits(model, batch)[where], atol=1e-5)


def test_logits_of_a_model_that_returns_too_few():
    class Short(type(tiny("llama"))):
        def forward(self, **inputs):
            return super().forward(**inputs, logits_to_keep=1)

    model = tiny("llama")
    model.__class__ = Short
    with pytest.raises(SRTError, match=r"Short returned logits of shape .* expected one row of logits for each token"):
        logits_at(model, padded(examples()), torch.tensor([5, 0, 29]))


# --- what counts --------------------------------------------------------------------------------------------------


def test_what_is_predicted():
    """Not across examples, not into padding, not past the row."""
    example = torch.tensor([[0, 0, 0, 1, 2, 2], [3, -1, -1, 4, 4, -1]])
    assert predicted(example).tolist() == [0, 1, 4, 9]


def test_an_example_of_one_token_has_mean_0_and_count_0():
    tokens = examples()
    nll, example = token_nll(tiny("llama"), padded(tokens))
    mean, count = summarise(nll, example, len(tokens))
    assert count.tolist() == [len(t) - 1 for t in tokens]
    assert mean[1] == 0
    assert (mean.dtype, count.dtype, mean.requires_grad) == (torch.float32, torch.int64, False)
    for i in (0, 2, 3, 4):
        assert mean[i].item() == pytest.approx(nll[example == i].mean().item(), rel=1e-6)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_nothing_to_predict_is_no_error(family):
    """As for a rank that has less to do than the others: an empty NLL whose backward pass gives zeros."""
    model = tiny(family)
    nll, example = token_nll(model, padded(examples([1, 1]), more=0))
    assert nll.shape == example.shape == (0,)
    nll.sum().backward()
    found = gradients(model)
    assert len(found) == len(list(model.parameters()))
    assert not any(g.any() for g in found.values())
    mean, count = summarise(nll.detach(), example, 2)
    assert mean.tolist() == count.tolist() == [0, 0]


def test_a_mean_over_many_tokens_keeps_its_digits():
    """1e6 tokens of 0.1: a float32 sum would drift."""
    mean, _ = summarise(torch.full((1_000_000,), 0.1), torch.zeros(1_000_000, dtype=torch.long), 1)
    assert mean.item() == torch.tensor(0.1).item()


# --- the head, in chunks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("chunk", [1, 301 * 7, 301 * 64, 10**9])
def test_chunks_agree_with_the_plain_path(chunk, trains, monkeypatch):
    """Values and gradients of hidden states and head, for any weighting of the tokens, whatever the chunk."""
    monkeypatch.setattr(module, "_ROWS", 100)
    torch.manual_seed(0)
    hidden, weight, target = torch.randn(50, 16), torch.randn(301, 16), torch.randint(301, (50,))
    by_token = torch.rand(50)
    found = []
    for path in ("ours", "plain"):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_(trains)
        ours = path == "ours"
        nll = linear_nll(h, w, target, chunk=chunk) if ours else F.cross_entropy(h @ w.T, target, reduction="none")
        (nll * by_token).sum().backward()
        found.append((nll.detach(), h.grad, w.grad if trains else torch.zeros(())))
    close(*found)


def test_a_frozen_trunk_trains_the_head_alone():
    hidden, weight = torch.randn(5, 4), torch.randn(9, 4, requires_grad=True)
    target = torch.arange(5)
    linear_nll(hidden, weight, target).sum().backward()
    (theirs,) = torch.autograd.grad(F.cross_entropy(hidden @ weight.T, target, reduction="sum"), weight)
    assert torch.allclose(weight.grad, theirs, atol=1e-5)


def test_gradients_by_finite_differences():
    """Exact to what float32 inside allows."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    hidden.requires_grad_()
    weight.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda h, w: linear_nll(h, w, torch.tensor([0, 3, 6, 2]), chunk=14).double(),
        (hidden, weight), eps=1e-2, atol=1e-3, rtol=1e-3, nondet_tol=0,
    )  # fmt: skip


def test_extreme_logits_stay_finite():
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.0]])
    nll = linear_nll(hidden, weight, torch.tensor([0, 0]))
    assert nll.tolist() == [0.0, 2e4]
    nll.sum().backward()
    assert hidden.grad.isfinite().all()


def test_no_tensor_of_tokens_by_vocabulary_exists(monkeypatch):
    """Watched from below: no operation, forward or backward, returns as much as a quarter of the logits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in torch.utils._pytree.tree_leaves(out):
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.numel())
            return out

    model = tiny("llama")
    batch = packed(examples([50] * 40), [[i] for i in range(40)])
    whole = 40 * 49 * 97
    with Watch():
        token_nll(model, batch, chunk=97 * 32)[0].sum().backward()
    assert largest < whole
    linear = []
    for n in (64, 512):
        hidden, weight = torch.randn(n, 4, requires_grad=True), torch.randn(5000, 4, requires_grad=True)
        largest = 0
        with Watch():
            linear_nll(hidden, weight, torch.zeros(n, dtype=torch.long), chunk=5000 * 16).sum().backward()
        linear.append(largest)
    assert linear == [5000 * 16] * 2


# --- the choice ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("gemma2", "final_logit_softcapping is 2.0"),
        ("cohere", "logit_scale is 0.25"),
        ("granite", "logits_scaling is 4.0"),
        ("phi", "the head has a bias"),
    ],
)
def test_why_the_logits_path(family, reason):
    assert head_path(tiny(family)) == ("logits", reason)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2"])
def test_the_linear_path_where_logits_are_a_product(family):
    assert head_path(tiny(family)) == ("linear", "the logits are the head's weight times the hidden states")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"target_modules": ["lm_head"]}, "Linear"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "ModulesToSaveWrapper"),
    ],
)
def test_an_adapter_on_the_head_takes_the_logits_path(options, kind):
    """And what it adds is in the NLL and in the gradients."""
    model = peft.get_peft_model(tiny("llama"), peft.LoraConfig(**options, init_lora_weights=False))
    assert head_path(model) == ("logits", f"the head is a {kind}, not a plain Linear")
    tokens = examples()
    close(by_example(model, padded(tokens), len(tokens)), twin(model, tokens))
    token_nll(model, padded(tokens))[0].sum().backward()
    assert any("lm_head" in name for name in gradients(model))


def test_a_model_that_does_something_unknown_to_its_logits_is_found_out(caplog):
    """No configuration names it: the first pass notices, tells it once, and takes the logits path from then on."""

    class Odd(type(tiny("llama"))):
        def forward(self, **inputs):
            out = super().forward(**inputs)
            out.logits = out.logits * 0.5
            return out

    model, tokens = tiny("llama"), examples()
    model.__class__ = Odd
    assert head_path(model).path == "linear"
    with caplog.at_level(logging.WARNING, "srt_peft"):
        for _ in range(2):
            close(by_example(model, padded(tokens), len(tokens)), twin(model, tokens))
    assert [r.message for r in caplog.records] == [
        "the loss goes through whole logits, and takes more memory: Odd changes its logits after the head."
    ]
    assert head_path(model) == ("logits", "Odd changes its logits after the head")
    assert head_path(copy.deepcopy(model)).path == "linear"  # it was that model that was found out


def test_a_model_that_returns_too_few_logits_is_refused():
    class Short(type(tiny("llama"))):
        def forward(self, **inputs):
            return super().forward(**inputs, logits_to_keep=1)

    model = tiny("llama")
    model.__class__ = Short
    with pytest.raises(SRTError, match=r"Short returned logits of shape .* expected one row of logits for each token"):
        token_nll(model, padded(examples()))


def test_a_model_without_output_embeddings_takes_the_logits_path():
    model = tiny("llama")
    model.get_output_embeddings = lambda: None
    assert head_path(model).reason == "the model names no output embeddings"


# --- packing, tried -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_models_pack_exactly(family, attention):
    model = tiny(family, attention=attention)
    assert packs_exactly(model)
    assert model.training


def test_a_state_space_model_does_not_pack():
    """Its state runs on from one example into the next."""
    assert not packs_exactly(tiny("mamba"))


def test_a_state_space_model_is_right_when_padded():
    model, tokens = tiny("mamba"), examples()
    close(by_example(model, padded(tokens), len(tokens)), twin(model, tokens), 1e-4)


def test_example_may_stay_where_it_is():
    """The protocol is four tensors; nothing else of a batch is looked at."""
    assert set(Batch.__dataclass_fields__) == {"input_ids", "position_ids", "attention_mask", "example"}
