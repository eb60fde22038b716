"""Small real tokenizers, trained here, and a text to feed them."""

import functools
import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

WORDS = (  # noqa: SIM905 - a list of forty strings reads worse
    "the river rose and the old bridge of stone held while people carried lamps over it in the night because "
    "nobody could say whether morning would find a town there or only water Anna counted boats Boris counted sheep"
).split()
CHAT = (
    "{% for m in messages %}{% if m['role'] == 'ghost' %}{{ raise_exception('no ghosts') }}{% endif %}"
    "<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
)
TURNS = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
"""A template that refuses nobody."""


def prose(sentences, seed=0):
    """Sentences in lines and paragraphs, never the same twice."""
    rng = random.Random(seed)
    parts = []
    for i in range(sentences):
        words = rng.choices(WORDS, k=rng.randint(3, 14))
        parts.append(f"{' '.join(words).capitalize()} {seed}-{i}{rng.choice('.!?')}")
        parts.append(rng.choice([" ", " ", " ", "\n", "\n\n"]))
    return "".join(parts).strip()


def _trained(model, pre, decoder, trainer, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoder
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([prose(400, seed) for seed in range(3)], trainer)
    return tokenizer


@functools.cache
def byte_bpe():
    """As GPT-2 and Qwen have it: any byte can be said, and there is no BOS."""
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = _trained(models.BPE(), pre, decoders.ByteLevel(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@functools.cache
def spaced_bpe():
    """As Llama 2 has it: a space is put before each text, unknown characters become bytes, BOS and EOS."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    tokenizer = _trained(
        models.BPE(byte_fallback=True, unk_token="<unk>"),
        pre_tokenizers.Split(" ", "merged_with_next"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        trainer,
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    )
    found = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    found.chat_template = CHAT
    return found


class Letters(PreTrainedTokenizer):
    """A slow tokenizer: a token a character, and no word on where tokens begin."""

    def __init__(self, **kwargs):
        self.table = {"<eos>": 0, "<unk>": 1}
        super().__init__(eos_token="<eos>", unk_token="<unk>", **kwargs)

    @property
    def vocab_size(self):
        return 2 + 0x3000

    def get_vocab(self):
        return dict(self.table)

    def _tokenize(self, text, **kwargs):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.table.get(token, 2 + ord(token[0]) % 0x3000)

    def _convert_id_to_token(self, index):
        return chr(index - 2)
