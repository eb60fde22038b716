"""Questions, tokenizers and tiny models to ask them."""

import functools
import random

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from srt_peft.evaluation.questions import Question
from tests.data.helpers import WORDS, byte_bpe, prose
from tests.training.families import CONFIGS


@functools.cache
def marked_bpe(*, ending=False):
    """As SentencePiece has it for Llama and Gemma: words begin with their space, a text with BOS.

    Or it ends with EOS, too, which no causal model wants when it is asked.
    """
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    inner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    inner.train_from_iterator([prose(400, seed) for seed in range(3)], trainer)
    marks = [("<s>", inner.token_to_id("<s>")), ("</s>", inner.token_to_id("</s>"))]
    inner.post_processor = TemplateProcessing(single="<s> $A </s>" if ending else "<s> $A", special_tokens=marks)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


TOKENIZERS = {"byte": byte_bpe, "marked": marked_bpe}


def model_for(family, tokenizer, *, positions=256, hidden=None):
    """A model of the family for this tokenizer, whose scores differ from one another."""
    config = CONFIGS[family]()
    config.vocab_size = len(tokenizer)
    if hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = positions
    if hidden:
        config.hidden_size, config.intermediate_size, config.head_dim = hidden, hidden, hidden // 4
    attention = {"gemma2": "eager", "mamba": None}.get(family, "sdpa")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model.eval()


def made(n, seed=0):
    """Questions of the words that the tokenizers know, with two to five choices of one to six words."""
    rng = random.Random(seed)

    def words(most):
        return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))

    found = []
    for i in range(n):
        choices = tuple(f"{words(6)} {'é' if k % 2 else k}{k}" for k in range(rng.randint(2, 5)))
        text = f"Where did {words(20)} {i}?" + ("\n  Whose?" if i % 5 == 0 else "")
        found.append(Question(i + 1, text, choices, rng.randrange(len(choices)), ("old", "new")[i % 2], f"{i % 3}.md"))
    return found
