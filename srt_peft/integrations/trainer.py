"""SRTTrainer: Hugging Face's Trainer, with a schedule in place of a sampler.

    from srt_peft.integrations.trainer import SRTTrainer

    trainer = SRTTrainer(model=…, args=…, old_dataset=old, new_dataset=new, review={"old_fraction": 0.2})
    trainer.train()

A trainer of your own takes the mixin: `class Mine(SRTMixin, MyTrainer)`. docs/integrations.md says what is kept.
"""

from __future__ import annotations

from transformers import Trainer

from srt_peft.integrations.mixin import SRTMixin

__all__ = ["SRTMixin", "SRTTrainer"]


class SRTTrainer(SRTMixin, Trainer):
    """Trainer, with old_dataset, new_dataset and review in place of train_dataset."""
