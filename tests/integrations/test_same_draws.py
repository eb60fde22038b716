"""One schedule, four loops: ours, SRTTrainer, TRL's and a bare one make the same draws, and the same losses."""

import json
from types import SimpleNamespace

import pytest
import torch
import transformers

from srt_peft import make_scheduler
from srt_peft.training import loop, run
from srt_peft.training.recipe import load_recipe
from tests.integrations.worlds import (
    N_NEW,
    N_OLD,
    NEW,
    OLD,
    RATE,
    REVIEW,
    STEPS,
    THRESHOLDS,
    B,
    arguments,
    losses,
    made,
    masked,
    needs_trl,
    padded,
    tokenizer,
)  # fmt: skip
from tests.training.families import tiny


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Texts whose tokens are those of OLD and NEW, end mark included, and a base."""
    folder = tmp_path_factory.mktemp("world")
    for name, part in (("old", OLD), ("new", NEW)):
        texts = [" ".join(f"w{i}" for i in row["input_ids"]) for row in part]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tiny("llama").save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(folder / "home"))
        yield folder


def sgd(model, *, learning_rate, **_):
    return torch.optim.SGD(model.parameters(), lr=learning_rate)


@pytest.fixture
def ours(world, tmp_path, watched):
    """Our loop: its losses, and the examples as it cut them; its draws are in `watched`."""

    def found(review, *overrides):
        values = {
            "model": {"base": str(world / "base"), "tuning": "full", "dtype": "float32",
                      "gradient_checkpointing": False},
            "data": {"old": str(world / "old.jsonl"), "new": str(world / "new.jsonl"), "max_length": 40, "holdout": 0},
            "review": review,
            "training": {"steps": STEPS, "batch_size": B, "micro_batch_tokens": 60, "warmup_steps": 0, "seed": 3,
                         "schedule": "constant", "learning_rate": RATE, "weight_decay": 0, "max_grad_norm": 1e9},
            "output": str(tmp_path / "ours"),
        }  # fmt: skip
        kept = SimpleNamespace()
        learn = loop.learn

        def watching(setup, *args):
            kept.old, kept.new = (
                [{"input_ids": setup.corpus[i].tolist()} for i in ids]
                for ids in (range(N_OLD), range(N_OLD, N_OLD + N_NEW))
            )
            return learn(setup, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "make_optimizer", sgd)
            patch.setattr(loop, "learn", watching)
            assert loop.train(load_recipe(values, overrides)) == 0
        lines = [json.loads(line) for line in (tmp_path / "ours" / "metrics.jsonl").read_text().splitlines()]
        kept.losses = [line["loss"] for line in lines]
        kept.ids, kept.signals = list(watched.ids), list(watched.signals)
        watched.clear()
        return kept

    return found


def same(mine, watched, theirs):
    """The same draws, signals and losses."""
    assert watched.ids == mine.ids
    for here, there in zip(watched.signals, mine.signals, strict=True):
        assert here == pytest.approx(there, rel=1e-5)
    assert theirs == pytest.approx(mine.losses, rel=1e-5)


PRESETS = {"paper": REVIEW, "auto": {"old_fraction": 0.3}}


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("preset", PRESETS)
def test_trainer_draws_and_learns_as_our_loop_does(ours, tmp_path, watched, preset, accumulation):
    mine = ours(PRESETS[preset])
    trainer = made(tmp_path, accumulation, PRESETS[preset], old_dataset=mine.old, new_dataset=mine.new)
    trainer.train()
    same(mine, watched, losses(trainer))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_so_it_does_where_both_pack(ours, tmp_path, watched, accumulation):
    """Our packed rows, and transformers' flattened ones."""
    mine = ours(REVIEW, "data.packing=true")
    collator = transformers.DataCollatorWithFlattening()
    trainer = made(tmp_path, accumulation, data_collator=collator, old_dataset=mine.old, new_dataset=mine.new)
    trainer.train()
    same(mine, watched, losses(trainer))


@needs_trl
@pytest.mark.parametrize("padding_free", [False, True])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_so_does_trl(ours, tmp_path, watched, accumulation, padding_free):
    from trl import SFTConfig

    from srt_peft.integrations.trl import SRTSFTTrainer

    mine = ours(REVIEW)
    more = {
        "padding_free": padding_free,
        "max_length": None,
        "bf16": False,
        "completion_only_loss": True,
        "loss_type": "nll",
    }
    args = arguments(tmp_path, accumulation, SFTConfig, **more)
    trainer = made(
        tmp_path, kind=SRTSFTTrainer, args=args, old_dataset=masked(mine.old), new_dataset=masked(mine.new),
        data_collator=None, processing_class=tokenizer(),
    )  # fmt: skip
    trainer.train()
    same(mine, watched, losses(trainer))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_so_does_a_bare_loop(ours, watched, accumulation):
    mine = ours(REVIEW)
    examples, model, found = mine.old + mine.new, tiny("llama"), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    s = make_scheduler("srt", old=N_OLD, new=N_NEW, batch_size=B, old_fraction=0.3, stagger=2, underfull="ahead",
                       thresholds=THRESHOLDS, seed=3)  # fmt: skip
    for _ in range(STEPS):
        draw, nll, total = s.draw(), [], 0.0
        n_targets = sum(len(examples[i]["input_ids"]) - 1 for i in draw.ids)
        for part in draw.ids.reshape(accumulation, -1):
            batch = padded([examples[i] for i in part])
            labels = batch["labels"][:, 1:]
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
            token = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
            (token.sum() / n_targets).backward()
            nll += (token.sum(1) / (labels != -100).sum(1)).tolist()
            total += token.sum().item()
        s.review(draw.ids, nll)
        optimizer.step()
        optimizer.zero_grad()
        found.append(total / n_targets)
    same(mine, watched, found)
