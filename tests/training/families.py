"""Tiny models of real architectures, random but for the seed, and rows of tokens to show them."""

from dataclasses import dataclass

import torch
import transformers
from torch import nn

WORDS = 97
SIZE = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
# No token of ours is special, so that nothing is masked in silence.
PLAIN = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": 0}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZE, **HEADS, **PLAIN),
    "qwen2": lambda: transformers.Qwen2Config(**SIZE, **HEADS, **PLAIN),
    "qwen3": lambda: transformers.Qwen3Config(**SIZE, **HEADS, **PLAIN),
    "gemma2": lambda: transformers.Gemma2Config(**SIZE, **HEADS, **PLAIN, final_logit_softcapping=2.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZE, **HEADS, **PLAIN, sliding_window=16),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ),
    "cohere": lambda: transformers.CohereConfig(**SIZE, **HEADS, **PLAIN, logit_scale=0.25),
    "granite": lambda: transformers.GraniteConfig(**SIZE, **HEADS, **PLAIN, logits_scaling=4.0),
    "phi": lambda: transformers.PhiConfig(
        **SIZE, num_attention_heads=4, max_position_embeddings=64, **PLAIN, resid_pdrop=0.0, embd_pdrop=0.0
    ),
    "mamba": lambda: transformers.MambaConfig(**SIZE, state_size=4, **PLAIN),
}  # fmt: skip


def tiny(family, *, attention="sdpa", dtype=torch.float32):
    """A model of the family whose head is large enough that its NLLs differ from one another."""
    torch.manual_seed(0)
    attention = {"gemma2": "eager", "mamba": None}.get(family, attention)  # the only ones that they have
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](), attn_implementation=attention, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model.train()


@dataclass
class Batch:
    """What the collator hands to the loop, written out anew."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    example: torch.Tensor


def examples(lengths=(7, 1, 12, 5, 9), seed=0):
    """Random tokens, a tensor an example."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, WORDS, (n,), generator=generator) for n in lengths]


def padded(tokens, *, more=2):
    """A row an example, padded on the right, some columns wider than need be."""
    pad = nn.utils.rnn.pad_sequence
    ids = pad([*tokens, torch.zeros(max(map(len, tokens)) + more, dtype=torch.long)], batch_first=True)[:-1]
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    mask = torch.stack([positions[0] < len(t) for t in tokens]).long()
    example = torch.arange(len(tokens))[:, None].expand_as(ids).masked_fill(mask == 0, -1)
    return Batch(ids, positions, mask, example)


def packed(tokens, rows):
    """`rows` says which examples stand in each row; what a row lacks is padding, at position 0."""
    length = max(sum(len(tokens[i]) for i in row) for row in rows)
    ids, positions = torch.zeros((2, len(rows), length), dtype=torch.long)
    example = torch.full((len(rows), length), -1)
    for r, row in enumerate(rows):
        at = 0
        for i in row:
            n = len(tokens[i])
            ids[r, at : at + n], positions[r, at : at + n], example[r, at : at + n] = tokens[i], torch.arange(n), i
            at += n
    return Batch(ids, positions, None, example)


def twin(model, tokens):
    """The naive twin: each example alone, its logits whole; (NLLs, one tensor an example)."""
    found = []
    for t in tokens:
        logits = model(input_ids=t[None]).logits[0, :-1].double()
        found.append(-logits.log_softmax(-1).gather(1, t[1:, None])[:, 0])
    return found


def gradients(model):
    """The gradients of all that trains, by name; they are cleared."""
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found
