"""Model families end to end: with tokenizers of four kinds, tuned by the real `train()`, loaded by others' code.

llama    BPE over characters, bytes where a character is unknown; separate head
qwen3    BPE over bytes; norms on queries and keys
gemma2   Unigram, as Gemma 3; logits are soft-capped, so the loss goes through them
gemma3   Unigram, bytes where a character is unknown; the head is the embedding; sliding and full attention
gpt2     WordPiece; Conv1D layers; the head is the embedding; absolute positions
"""

import functools
import json
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import transformers
from bitsandbytes.nn import Linear4bit
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from srt_peft.data.ingest import ingest
from srt_peft.training.loop import train
from srt_peft.training.recipe import load_recipe
from tests.data.helpers import WORDS, byte_bpe, prose, spaced_bpe

LENGTH = 64
STEPS = 8


# --- the families and their tokenizers ----------------------------------------------------------------------------


@functools.cache
def unigram():
    """As Gemma has it (SentencePiece): spaces are characters of words, unknown characters become bytes."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([prose(400, seed) for seed in range(3)], trainer)
    content = json.loads(tokenizer.to_str())
    content["model"]["byte_fallback"] = True  # which its trainer cannot be told
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    marks = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)


@functools.cache
def word_piece():
    """As BERT's children have it: lower case, pieces of words, and what is unknown is lost."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator([prose(400, seed) for seed in range(3)], trainer)
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)


SIZE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "initializer_range": 0.1}  # fmt: skip
FAMILIES = {
    "llama": (spaced_bpe, lambda ids: transformers.LlamaConfig(**SIZE, **ids)),
    "qwen3": (byte_bpe, lambda ids: transformers.Qwen3Config(**SIZE, **ids)),
    "gemma2": (unigram, lambda ids: transformers.Gemma2Config(**SIZE, **ids, final_logit_softcapping=30.0)),
    "gemma3": (
        unigram,
        lambda ids: transformers.Gemma3TextConfig(
            **SIZE, **ids, sliding_window=16, layer_types=["sliding_attention", "full_attention"]
        ),
    ),
    "gpt2": (
        word_piece,
        lambda ids: transformers.GPT2Config(
            n_embd=64,
            n_layer=2,
            n_head=4,
            n_positions=128,
            initializer_range=0.1,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **ids,
        ),
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """An old text of random words, a new one that tells the first of them over and over, and bases of the old one."""
    folder = tmp_path_factory.mktemp("families")
    verse = WORDS[:9]
    documents = {
        "old": [prose(4, seed=i) for i in range(40)],
        "new": [" ".join((verse * 6)[at:][:length]) for at in range(len(verse)) for length in range(20, 34, 2)],
    }
    for name, texts in documents.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    @functools.cache
    def base(family):
        make, config = FAMILIES[family]
        tokenizer = make()
        torch.manual_seed(0)
        ids = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id,
               "bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}  # fmt: skip
        model = transformers.AutoModelForCausalLM.from_config(config(ids))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
        for i in range(60):
            row = torch.tensor(tokenizer(documents["old"][i % 40])["input_ids"])[None, :100]
            model(row, labels=row).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.save_pretrained(folder / family)
        tokenizer.save_pretrained(folder / family)
        return str(folder / family)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(folder / "home"))
        yield SimpleNamespace(folder=folder, base=base)


# --- an update ----------------------------------------------------------------------------------------------------


def update(world, output, family, tuning):
    """A real run; (its recipe, its metrics)."""
    values = {
        "model": {"base": world.base(family), "tuning": tuning, "dtype": "float32", "gradient_checkpointing": False},
        "data": {
            **{pool: str(world.folder / f"{pool}.jsonl") for pool in ("old", "new")},
            "max_length": LENGTH,
            "holdout": 0.1,
        },
        "review": {"stagger": 1},
        "training": {
            "steps": STEPS, "batch_size": 16, "micro_batch_tokens": 512, "learning_rate": 0.02, "warmup_steps": 0,
        },
        "evaluation": {"every": 1},
        "output": str(output),
    }  # fmt: skip
    recipe = load_recipe(values)
    assert train(recipe) == 0
    return recipe, [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def loaded(recipe, checkpoint):
    """The base and the adapter, by Transformers and PEFT alone."""
    options = {}
    if recipe.model.tuning == "qlora":
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )  # fmt: skip
    base = transformers.AutoModelForCausalLM.from_pretrained(recipe.model.base, dtype=torch.float32, **options)
    model = peft.PeftModel.from_pretrained(base, checkpoint)
    # In eval mode bitsandbytes re-packs weights on some processors, and computes in bfloat16: other numbers than ours.
    return model.train()


def held_out_nll(model, tokenizer, recipe, pool):
    """The token mean over the held-out examples, each forwarded alone, with the model's own loss."""
    sources = [{"path": source.path} for source in getattr(recipe.data, pool)]
    examples = ingest(sources, tokenizer, max_length=LENGTH, holdout=recipe.data.holdout).held_out
    nll, count = 0.0, 0
    with torch.no_grad():
        for i in range(len(examples)):
            ids = torch.tensor(examples[i].tolist())[None]
            targets = ids.shape[1] - 1
            nll, count = nll + model(input_ids=ids, labels=ids).loss.item() * targets, count + targets
    return nll / count


@pytest.mark.parametrize("tuning", ["qlora", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_learns_the_new_text_and_loads_as_it_is(world, tmp_path, family, tuning):
    """New perplexity falls, and what was reported is what Transformers and PEFT find in the checkpoint."""
    recipe, lines = update(world, tmp_path / "run", family, tuning)
    losses = [line["loss"] for line in lines if "loss" in line]
    reported = {
        pool: [line[key] for line in lines if key in line]
        for pool, key in (("old", "held_out_old_nll"), ("new", "held_out_new_nll"))
    }
    assert len(losses) == STEPS
    assert len(reported["old"]) == len(reported["new"]) == 1 + STEPS  # the first is that of the base
    assert np.mean(losses[-2:]) < losses[0] - 0.5
    assert reported["new"][-1] < reported["new"][0] - 0.3

    checkpoint = tmp_path / f"run/checkpoints/step-{STEPS:08d}"
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = loaded(recipe, checkpoint)
    layers = [model.get_submodule(f"base_model.model.{name}").base_layer for name in model.targeted_module_names]
    assert all(isinstance(layer, Linear4bit) == (tuning == "qlora") for layer in layers)
    for pool, told in reported.items():
        assert held_out_nll(model, tokenizer, recipe, pool) == pytest.approx(told[-1], rel=1e-5)
    with model.disable_adapter():
        assert held_out_nll(model, tokenizer, recipe, "new") > reported["new"][-1] + 0.3


def test_the_families_differ_where_they_should(world):
    """Four kinds of tokenizer, which can or cannot say what they never saw; heads of their own, or the embedding."""
    kinds = {}
    for family in FAMILIES:
        base = world.base(family)
        tokenizer = transformers.AutoTokenizer.from_pretrained(base)
        odd = tokenizer.decode(tokenizer("Å☂")["input_ids"])
        config = transformers.AutoConfig.from_pretrained(base)
        kinds[family] = (
            type(tokenizer.backend_tokenizer.model).__name__,
            odd.strip() == "Å☂",
            config.tie_word_embeddings,
        )
    assert kinds == {
        "llama": ("BPE", True, False),
        "qwen3": ("BPE", True, False),
        "gemma2": ("Unigram", True, True),
        "gemma3": ("Unigram", True, True),
        "gpt2": ("WordPiece", False, True),
    }
