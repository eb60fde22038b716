"""Hugging Face Trainer with a schedule. What differs from a script that you have is marked with an arrow.

python examples/trainer.py            # again: goes on from its newest checkpoint
"""

import argparse

import tiny
from transformers import DataCollatorForLanguageModeling, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from srt_peft.integrations.trainer import SRTTrainer  # ← in place of transformers.Trainer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", default="runs/example-trainer")
parser.add_argument("--steps", type=int, default=20)
given = parser.parse_args()

tokenizer = tiny.tokenizer()
old, new = ([tokenizer(text + "<end>") for text in texts] for texts in (tiny.OLD, tiny.NEW))
trainer = SRTTrainer(
    model=tiny.model(),
    args=TrainingArguments(
        output_dir=given.out,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=given.steps,
        learning_rate=3e-3,
        logging_steps=5,
        save_steps=10,
        report_to="none",
    ),
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    old_dataset=old,  # ← in place of train_dataset: what to retain,
    new_dataset=new,  # ← what to learn,
    review={"old_fraction": 0.25},  # ← and how, as in a recipe's review section
)
trainer.train(resume_from_checkpoint=get_last_checkpoint(given.out))
seen = trainer.srt.state.visits > 0
print(f"{trainer.state.global_step} steps; {seen[:20].sum()} of 20 old and {seen[20:].sum()} of 32 new examples seen")
