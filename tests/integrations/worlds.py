"""What every loop of these tests is given: the same examples, the same tiny model, SGD; and what each of them did."""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from srt_peft.integrations.trainer import SRTTrainer
from srt_peft.review import Scheduler
from tests.training.families import WORDS, tiny

N_OLD, N_NEW, B, STEPS, RATE = 24, 40, 8, 6, 0.05
THRESHOLDS = (80.0, 110.0, 140.0, 170.0, 220.0)  # among the perplexities of the tiny model: all qualities occur
REVIEW = {"preset": "paper", "stagger": 2, "old_fraction": 0.3, "underfull": "ahead", "thresholds": THRESHOLDS}
CHECKPOINTING = next(  # as transformers calls it now, and as it did
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in transformers.TrainingArguments.__dataclass_fields__
)


def rows(n, seed, low=3, high=20):
    """Examples as SFTTrainer and Trainer take them: token ids, none of them special."""
    rng = np.random.default_rng(seed)
    return [{"input_ids": rng.integers(1, WORDS, rng.integers(low, high)).tolist()} for _ in range(n)]


needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed: srt-peft[trl]")
bystanders = [  # what older versions warn of in their own code
    pytest.mark.filterwarnings("ignore:mtime may not be reliable"),
    pytest.mark.filterwarnings("ignore:Could not find a config file in"),
]
OLD, NEW = rows(N_OLD, 0), rows(N_NEW, 1)


def masked(of):
    """The same for SFTTrainer. The first token is no target, which older versions of Trainer would have counted."""
    return [row | {"completion_mask": [0] + [1] * (len(row["input_ids"]) - 1)} for row in of]


def padded(examples):
    """A row an example. The first token is no target, which older versions of Trainer would have counted as one."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(e["input_ids"]) for e in examples], batch_first=True)
    real = torch.arange(ids.shape[1]) < torch.tensor([[len(e["input_ids"])] for e in examples])
    labels = ids.masked_fill(~real, -100)
    labels[:, 0] = -100
    return {"input_ids": ids, "attention_mask": real.long(), "labels": labels}


def tokenizer():
    """A token a word; a message ends with a mark."""
    words = Tokenizer(models.WordLevel({"</s>": 0, **{f"w{i}": i for i in range(1, WORDS)}}, unk_token="</s>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    found.chat_template = "{% for m in messages %}{{ m['content'] }} </s> {% endfor %}"
    return found


def arguments(folder, accumulation=1, kind=transformers.TrainingArguments, **more):
    """Constant SGD, no decay, nothing clipped; a global batch of B."""
    options = {
        "max_steps": STEPS, "per_device_train_batch_size": B // accumulation, "optim": "sgd", "learning_rate": RATE,
        "gradient_accumulation_steps": accumulation, "lr_scheduler_type": "constant", "weight_decay": 0.0,
        "max_grad_norm": 0.0, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
        "dataloader_pin_memory": False, "logging_steps": 1, "seed": 3, CHECKPOINTING: False,
    }  # fmt: skip
    return kind(output_dir=str(folder), **options | more)


def made(folder, accumulation=1, review=REVIEW, *, kind=SRTTrainer, args=None, **more):
    """A trainer over the same world."""
    own = {"model": tiny("llama"), "data_collator": padded, "old_dataset": OLD, "new_dataset": NEW} | more
    return kind(args=args or arguments(folder, accumulation), review=review, **own)


def losses(trainer):
    """What Trainer logged, a loss a step."""
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture
def watched(monkeypatch):
    """Every review that any scheduler is given, in order: its step, ids and signals."""
    seen = SimpleNamespace(steps=[], ids=[], signals=[])
    review = Scheduler.review

    def watching(self, ids, nll):
        seen.steps.append(self.state.step)
        seen.ids.append(np.asarray(ids).tolist())
        seen.signals.append(np.asarray(nll, dtype=np.float64).tolist())
        return review(self, ids, nll)

    monkeypatch.setattr(Scheduler, "review", watching)
    seen.clear = lambda: [part.clear() for part in (seen.steps, seen.ids, seen.signals)]
    return seen
