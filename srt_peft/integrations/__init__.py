"""A guest in the house that people already live in: the schedule inside other people's training loops.

reviewing  review=dict(…) as a recipe's `review` section has it -> a scheduler
draws      the scheduler's draws as the micro-batches of a loader that is asked, and never runs ahead
signals    a model's outputs -> each example's mean NLL, from the forward pass that made the loss
refusals   what cannot be kept, by name, with what to use instead
mixin      SRTMixin: what is the same over every Trainer
trainer    SRTTrainer, over Hugging Face's Trainer
trl        SRTSFTTrainer, over TRL's SFTTrainer
axolotl    SRTPlugin, which puts the mixin over Axolotl's own trainer
"""
