"""Our step against Hugging Face's `Trainer`: on the same global batch, the same loss and the same gradients.

Ours is the real `train()`, watched at the moment when the optimiser is about to step. Theirs is the real `Trainer`,
given the examples that our review log says were drawn, padded, at accumulation 1, 2 and 4.
"""

import functools
import gc
import itertools
import json
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from srt_peft import ReviewLog
from srt_peft.data.collate import cut
from srt_peft.training import loop
from srt_peft.training.nll import head_path
from srt_peft.training.recipe import load_recipe
from tests.training.families import WORDS, tiny

FAMILIES = ["llama", "qwen3", "gemma2", "gemma3", "gpt2"]
B, ROW = 10, 40
LENGTHS = {  # of the examples, end mark counted: some far shorter than others; or no two fit in a row
    "varied": (2, ROW),
    "alike": (ROW // 2 + 1, ROW),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Models this small only wait for each other's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()  # Trainer collects garbage as it begins, which takes long where pytest and torch have so much
    yield
    gc.unfreeze()
    torch.set_num_threads(before)


# --- one world ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two corpora of random words, a token a word; a cache of their own."""
    folder = tmp_path_factory.mktemp("against")
    rng = np.random.default_rng(0)
    for name, (low, high) in LENGTHS.items():
        for pool, n in (("old", 30), ("new", 60)):
            lengths = rng.integers(low, high, n, endpoint=True) - 1
            texts = [" ".join(f"w{i}" for i in rng.integers(1, WORDS, length)) for length in lengths]
            (folder / f"{name}-{pool}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(folder / "home"))
        yield folder


def base_of(world, family):
    """Where the family's model and a tokenizer of whole words lie."""
    folder = world / f"base-{family}"
    if not folder.exists():
        tiny(family).save_pretrained(folder)
        words = Tokenizer(models.WordLevel({"</s>": 0, **{f"w{i}": i for i in range(1, WORDS)}}, unk_token="</s>"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(folder)
    return folder


# --- ours ---------------------------------------------------------------------------------------------------------


def ours(world, output, family, corpus="varied", *overrides):
    """A real run: what was drawn (by the log), the micro-batches, gradients and losses of each step."""
    values = {
        "model": {"base": str(base_of(world, family)), "tuning": "full", "dtype": "float32",
                  "gradient_checkpointing": False},
        "data": {**{pool: str(world / f"{corpus}-{pool}.jsonl") for pool in ("old", "new")}, "max_length": ROW,
                 "holdout": 0},
        "review": {"preset": "paper", "stagger": 1},
        "training": {"steps": 1, "batch_size": B, "micro_batch_tokens": 10_000, "warmup_steps": 0,
                     "schedule": "constant", "weight_decay": 0, "max_grad_norm": 1e9},
        "output": str(output),
    }  # fmt: skip
    run = SimpleNamespace(batches=[], gradients=[])
    one_step, update = loop.one_step, loop.update

    def watched_step(setup, stream, step, *args, **kwargs):
        run.setup = setup
        run.batches.append([batch.ids.tolist() for batch in step.batches])
        return one_step(setup, stream, step, *args, **kwargs)

    def watched_update(setup, step, learning_rate):
        run.gradients.append(gradients(setup.model))
        return update(setup, step, learning_rate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "one_step", watched_step)
        patch.setattr(loop, "update", watched_update)
        assert loop.train(load_recipe(values, overrides)) == 0
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    run.losses, run.norms = ([line[key] for line in lines] for key in ("loss", "gradient_norm"))
    run.log = ReviewLog(output / "review/log").records()
    run.draws = [run.log["id"][run.log["step"] == t].tolist() for t in range(len(lines))]
    run.examples = [[torch.tensor(run.setup.corpus[i].tolist()) for i in draw] for draw in run.draws]
    return run


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# --- theirs -------------------------------------------------------------------------------------------------------


class Watched(transformers.Trainer):
    """Trainer, and what it found: each optimiser step's loss and gradients, these before they are clipped."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.losses, self.gradients = [], []

    def training_step(self, model, inputs, num_items_in_batch=None):
        if len(self.losses) == self.state.global_step:
            self.losses.append(0.0)
            self.gradients.append({})
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.losses[-1] += loss.item()
        self.gradients[-1] = gradients(model)  # of the window so far
        return loss


def padded(examples):
    """A row an example. The first token is no target, which older versions of Trainer would have counted as one."""
    ids = torch.nn.utils.rnn.pad_sequence([e["input_ids"] for e in examples], batch_first=True)
    real = torch.arange(ids.shape[1]) < torch.tensor([[len(e["input_ids"])] for e in examples])
    labels = ids.masked_fill(~real, -100)
    labels[:, 0] = -100
    return {"input_ids": ids, "attention_mask": real.long(), "labels": labels}


def theirs(world, model, batches, accumulation=1, **options):
    """A real Trainer's run over the global batches, in order, one optimiser step each."""
    arguments = transformers.TrainingArguments(
        output_dir=str(world / "trainer"), max_steps=len(batches), train_sampling_strategy="sequential",
        per_device_train_batch_size=-(-B // accumulation), gradient_accumulation_steps=accumulation, use_cpu=True,
        **{"weight_decay": 0.0, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", **options}, save_strategy="no",
        report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    rows = [{"input_ids": tokens} for batch in batches for tokens in batch]
    trainer = Watched(model=model, args=arguments, train_dataset=rows, data_collator=padded)
    trainer.train()
    assert len(trainer.losses) == len(batches)
    return trainer


def load(world, family):
    return transformers.AutoModelForCausalLM.from_pretrained(base_of(world, family), dtype=torch.float32)


@pytest.fixture(scope="module")
def reference(world):
    """For a family and a corpus: a run of ours in one micro-batch, and Trainer's gradients at each accumulation."""

    @functools.cache
    def found(family, corpus):
        whole = ours(world, world / f"whole-{family}-{corpus}", family, corpus, "data.packing=false")
        runs = [theirs(world, load(world, family), whole.examples, accumulation) for accumulation in (1, 2, 4)]
        return whole, runs

    return found


# --- the proof ----------------------------------------------------------------------------------------------------


def same(mine, other, tolerance=1e-5):
    """Each parameter's gradient, relative to its largest entry."""
    assert mine.keys() == other.keys()
    for name, gradient in other.items():
        assert gradient.any(), name
        assert (mine[name] - gradient).abs().max() <= tolerance * gradient.abs().max(), name


def budget_for(count, lengths, packing):
    """The least `micro_batch_tokens` with which a draw of these lengths makes so many micro-batches."""
    return next(b for b in range(ROW, 1000) if len(cut(lengths, b, packing=packing, row=ROW)) == count)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize(("corpus", "count"), [("varied", 1), ("varied", 2), ("varied", 4), ("alike", B)])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_trainer(world, reference, tmp_path, family, corpus, count, packing):
    """To 1e-5, into however many micro-batches the draw was cut, packed or padded, and however Trainer cut it."""
    whole, trainers = reference(family, corpus)
    budget = budget_for(count, [len(tokens) for tokens in whole.examples[0]], packing)
    cuts = (f"data.packing={str(packing).lower()}", f"training.micro_batch_tokens={budget}")
    mine = ours(world, tmp_path / "run", family, corpus, *cuts)
    assert mine.draws == whole.draws
    assert [len(draw) for draw in mine.draws] == [B]
    assert len(mine.batches[0]) == count
    assert sorted(itertools.chain.from_iterable(mine.batches[0])) == mine.draws[0]
    assert head_path(mine.setup.model).path == ("logits" if family == "gemma2" else "linear")
    for trainer in trainers:
        assert mine.losses == pytest.approx(trainer.losses, rel=1e-5)
        same(mine.gradients[0], trainer.gradients[0])


def test_the_loss_is_the_token_mean_of_what_was_reviewed(reference):
    """Not the mean of the examples' means: these differ here, so the comparison above tells the one from the other."""
    for corpus in LENGTHS:
        whole, _ = reference("llama", corpus)
        targets = np.array([len(tokens) - 1 for tokens in whole.examples[0]])
        by_token = np.average(whole.log["signal"], weights=targets)
        assert whole.losses[0] == pytest.approx(by_token, rel=1e-6)
        assert abs(whole.log["signal"].mean() / by_token - 1) > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_adapters_gradients_are_those_of_trainer(world, tmp_path, family):
    """LoRA through PEFT, whose B is no longer zero; ours with gradient checkpointing, packed, in four micro-batches."""
    torch.manual_seed(1)
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM",
        target_modules="all-linear",
        r=4,
        init_lora_weights=False,
        fan_in_fan_out=family == "gpt2",
    )
    peft.get_peft_model(load(world, family), lora).save_pretrained(tmp_path / "adapter")
    tuning = ("model.tuning=lora", f"model.adapter={tmp_path / 'adapter'}", "model.gradient_checkpointing=true")
    mine = ours(world, tmp_path / "run", family, "varied", *tuning, "training.micro_batch_tokens=78")
    assert len(mine.batches[0]) == 4
    model = peft.PeftModel.from_pretrained(load(world, family), tmp_path / "adapter", is_trainable=True)
    trainer = theirs(tmp_path, model, mine.examples, accumulation=2)
    assert all("lora_" in name for name in mine.gradients[0])
    assert mine.losses == pytest.approx(trainer.losses, rel=1e-5)
    same(mine.gradients[0], trainer.gradients[0])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_five_steps_of_adamw_are_those_of_trainer(world, tmp_path, family):
    """With weight decay, and a clip that bites: Trainer, fed the draws of our review log, goes the same way."""
    rate, decay, clip = 1e-3, 0.1, 0.5
    asked = [f"learning_rate={rate}", f"weight_decay={decay}", f"max_grad_norm={clip}", "steps=5"]
    mine = ours(world, tmp_path / "run", family, "varied", "training.micro_batch_tokens=78",
                *(f"training.{setting}" for setting in asked))  # fmt: skip
    assert [len(draw) for draw in mine.draws] == [B] * 5
    trainer = theirs(
        tmp_path, load(world, family), mine.examples, accumulation=2,
        learning_rate=rate, weight_decay=decay, max_grad_norm=clip,
    )  # fmt: skip
    assert min(mine.norms) > clip
    assert mine.losses == pytest.approx(trainer.losses, rel=1e-4)
    start, here, there = (told_apart(model) for model in (load(world, family), mine.setup.model, trainer.model))
    for name, weights in there.items():
        assert (here[name] - weights).abs().max() < 0.01 * (weights - start[name]).abs().max(), name


def told_apart(model):
    """The weights, but for GPT-2's key biases: no loss depends on them, and Adam makes strides of rounding errors."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return {n: torch.cat(w.chunk(3)[::2]) if n.endswith("c_attn.bias") else w for n, w in weights.items()}
