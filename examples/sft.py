"""TRL's SFTTrainer with a schedule: prompts and completions, LoRA; the signal is over the completions.

python examples/sft.py                # needs srt-peft[trl]
"""

import argparse

import tiny
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig

from srt_peft.integrations.trl import SRTSFTTrainer  # ← in place of trl.SFTTrainer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="runs/example-sft")
parser.add_argument("--steps", type=int, default=20)
given = parser.parse_args()


def halved(texts):
    """Prompt and completion: "The bridge of a was built" and " in 1700."."""
    cut = [text.partition(" in ") for text in texts]
    return Dataset.from_list([{"prompt": prompt, "completion": word + rest} for prompt, word, rest in cut])


trainer = SRTSFTTrainer(
    model=tiny.model(),
    args=SFTConfig(
        output_dir=given.out,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=given.steps,
        learning_rate=3e-3,
        logging_steps=5,
        max_length=None,
        padding_free=True,
        loss_type="nll",  # the default of TRL 1.9, chunked_nll, tells no token's NLL
        bf16=False,
        report_to="none",
    ),
    processing_class=tiny.tokenizer(),
    peft_config=LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=8),
    old_dataset=halved(tiny.OLD),  # ← in place of train_dataset: what to retain,
    new_dataset=halved(tiny.NEW),  # ← what to learn,
    review={"old_fraction": 0.25},  # ← and how, as in a recipe's review section
)
trainer.train()
trainer.save_model()
print(f"{trainer.state.global_step} steps; the adapter and srt_state/ lie in {given.out}")
