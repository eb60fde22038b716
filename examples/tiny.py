"""A tiny Llama over bytes and two made-up corpora, so that the examples run anywhere in seconds."""

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

OLD = [f"The bridge of {name} was built in {1700 + 7 * i}." for i, name in enumerate("abcdefghijklmnopqrst")]
NEW = [f"The bridge of {name} was closed in {2026 - i}." for i, name in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef")]


def tokenizer():
    """A token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, **{byte: i + 1 for i, byte in enumerate(alphabet)}}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")


def model():
    """Random, but for the seed."""
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=257, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)
