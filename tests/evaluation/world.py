"""A small world of facts, a base that knows the old ones, updates of it, and questions about all of them."""

import json
import random

import tokenizers
import torch
import transformers

COLOURS = ("red", "blue", "green", "white")


def facts(n, *, seed, letter):
    """`n` places, each with a colour: (question, colour)."""
    chance = random.Random(seed)
    return [(f"Which flag has {letter}{i} ?", chance.choice(COLOURS)) for i in range(n)]


def sentence(question, colour):
    return f"Question: {question}\nAnswer: {colour}"


def write_texts(path, told):
    path.write_text("".join(json.dumps({"text": sentence(*fact)}) + "\n" for fact in told))


def write_questions(path, old, new):
    with path.open("w") as file:
        for split, told in (("old", old), ("new", new)):
            for question, colour in told:
                row = {"question": question, "choices": COLOURS, "answer": COLOURS.index(colour), "split": split}
                file.write(json.dumps({**row, "source": question.split()[-2]}) + "\n")


def tokenizer_of(texts):
    """A word each."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["<unk>", "<end>"], show_progress=False)
    inner.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
    )


def learn(model, tokenizer, texts, *, steps, rate):
    """A few epochs of plain training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        part = [texts[(step * 50 + i) % len(texts)] for i in range(50)]
        batch = tokenizer(part, padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def build(folder, *, n_old=200, n_new=40, steps=240):
    """old.jsonl, new.jsonl, wrong.jsonl (the old facts, contradicted), questions.jsonl, and base/."""
    torch.manual_seed(0)
    old, new = facts(n_old, seed=0, letter="A"), facts(n_new, seed=1, letter="B")
    wrong = [(question, COLOURS[(COLOURS.index(colour) + 1) % 4]) for question, colour in old]
    for name, told in (("old", old), ("new", new), ("wrong", wrong)):
        write_texts(folder / f"{name}.jsonl", told)
    write_questions(folder / "questions.jsonl", old, new)
    letters = ["A", "B", "C", "D", ".", *COLOURS]
    tokenizer = tokenizer_of([*(sentence(*fact) for fact in [*old, *new]), " ".join(letters)])
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    learn(model, tokenizer, [sentence(*fact) for fact in old], steps=steps, rate=1e-2)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder


def recipe(folder, output, **changes):
    """An update of the base by LoRA."""
    data = {"old": None, "new": str(folder / "new.jsonl"), "max_length": 32, "holdout": 0.1, **changes.pop("data", {})}
    training = {
        "steps": 40, "batch_size": 50, "micro_batch_tokens": 4096, "learning_rate": 0.02, "warmup_steps": 2,
        **changes.pop("training", {}),
    }  # fmt: skip
    model = {"base": str(folder / "base"), "tuning": "lora", "dtype": "float32", "gradient_checkpointing": False}
    return {
        "model": model | changes.pop("model", {}), "data": data, "training": training,
        "checkpoints": {"every": 100, "keep": 1}, "output": str(output), **changes,
    }  # fmt: skip
