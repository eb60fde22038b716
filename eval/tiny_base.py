"""A small base model of one's own, to try an update without a download: a tokenizer and a Llama, trained on a text.

    python eval/tiny_base.py --text docs --out runs/tiny-base

A byte-level BPE of at most 2,000 words and a Llama of about a million parameters, on the CPU, in less than a minute.
It is a real base in every respect but its size: `save_pretrained` writes it, and any recipe's `model.base` may name it.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import trange
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

END = "<|end|>"


def texts_of(path: Path) -> list[str]:
    files = sorted(p for p in path.rglob("*") if p.suffix in {".md", ".txt"}) if path.is_dir() else [path]
    texts = [file.read_text(encoding="utf-8") for file in files]
    if not any(map(str.strip, texts)):
        raise SystemExit(f"error: --text {path} holds no text: expected a text file, or a folder with .md or .txt")
    return texts


def tokenizer_of(texts: list[str], words: int) -> Any:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=words, special_tokens=[END], initial_alphabet=letters, show_progress=False)
    inner.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=inner, eos_token=END, pad_token=END)


def base_of(tokens: torch.Tensor, words: int, end: int, args: argparse.Namespace) -> Any:
    """Next-token prediction on random windows of the text."""
    config = LlamaConfig(
        vocab_size=words, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    window = min(128, len(tokens) - 1)
    with trange(args.steps, unit="step") as bar:
        for step in bar:
            starts = torch.randint(len(tokens) - window, (16,))
            batch = torch.stack([tokens[i : i + window] for i in starts.tolist()])
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = (
                    args.learning_rate * min(1, (step + 1) / 20) * (1 + math.cos(math.pi * step / args.steps)) / 2
                )
            optimizer.step()
            optimizer.zero_grad()
            bar.set_postfix_str(f"loss {loss.item():.2f}")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="a text file, or a folder of .md and .txt files")
    parser.add_argument("--out", type=Path, required=True, help="where the base is written")
    parser.add_argument("--words", type=int, default=2000, help="the most words of the tokenizer (default %(default)s)")
    parser.add_argument("--steps", type=int, default=120, help="steps of 16 windows (default %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="its peak (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    texts = texts_of(args.text)
    tokenizer = tokenizer_of(texts, args.words)
    tokens = torch.tensor([i for text in texts for i in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
    model = base_of(tokens, len(tokenizer), tokenizer.eos_token_id, args)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    size = sum(p.numel() for p in model.parameters())
    print(
        f"{args.out}: a Llama of {size:,} parameters over {len(tokenizer):,} words, trained on {len(tokens):,} tokens"
    )


if __name__ == "__main__":
    main()
