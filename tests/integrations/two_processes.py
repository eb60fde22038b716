"""Run by torchrun in test_processes: the world of the tests over processes; the first prints what was drawn."""

import json
import sys

import transformers

from srt_peft.review import Scheduler
from tests.integrations.worlds import arguments, losses, made

transformers.logging.set_verbosity_error()
folder, accumulation, per_device, sft, resume, short = sys.argv[1], *map(int, sys.argv[2:7])
seen, review = [], Scheduler.review


def watching(self, ids, nll):
    seen.append([self.state.step, list(map(int, ids)), list(map(float, nll))])
    return review(self, ids, nll)


Scheduler.review = watching
more = {"per_device_train_batch_size": per_device, "save_strategy": "steps", "save_steps": 4}
if sft:
    from trl import SFTConfig

    from srt_peft.integrations.trl import SRTSFTTrainer
    from tests.integrations.worlds import tokenizer

    args = arguments(folder, accumulation, SFTConfig, max_length=None, bf16=False, loss_type="nll", **more)
    own = {"kind": SRTSFTTrainer, "data_collator": None, "processing_class": tokenizer()}
else:
    args, own = arguments(folder, accumulation, **more), {}
if short:  # five of new are due at first, in a window of eight micro-batches
    own |= {"old_dataset": None, "review": {"preset": "paper", "stagger": 8, "old_fraction": 0.0}}
trainer = made(folder, args=args, **own)
trainer.train(resume_from_checkpoint=bool(resume) or None)
if trainer.args.process_index == 0:
    print("FOUND", json.dumps({"drawn": seen, "losses": losses(trainer), "ranks": trainer.args.world_size}))  # noqa: T201 - for the test
