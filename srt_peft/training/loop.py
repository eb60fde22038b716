"""HOW the model learns: the loop, to be read from top to bottom.

    settings -> data -> model -> scheduler -> for each step: forward, review, backward, update -> save

A step draws its global batch, forwards its micro-batches, and learns from the same forward pass how well each
example was still known. The loss is the token mean over the whole global batch, whatever the accumulation, the
packing or the number of ranks. Nothing here is specific to a scheduler.

What is saved is what cannot be computed: weights, the optimiser's moments, the review state. The learning rate is a
function of the step, and so is chance: every step seeds torch anew from (seed, step, rank).

Ranks are data-parallel: each accumulates the gradients of its own micro-batches, and they are summed once a step.
Not covered here: sharded models.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np
import torch

from srt_peft.data.stream import SRTDataset, Step
from srt_peft.errors import DivergedError
from srt_peft.review import Review
from srt_peft.training import ranks, run, scoring
from srt_peft.training.keys import Recipe
from srt_peft.training.nll import summarise, token_nll
from srt_peft.training.progress import Metrics, Stop
from srt_peft.training.run import Setup
from srt_peft.training.schedule import learning_rate_factor, steps_of, warmup_note

Evaluate = Callable[[Setup, int], dict[str, float]]
"""From a run after so many steps to the means that its suites have found; called by the main process alone."""


def train(
    recipe: Recipe,
    *,
    resume: bool = False,
    allow_changes: bool = False,
    evaluate: Evaluate | None = None,
    terse: bool = False,
    interrupts: bool = False,
) -> int:
    """One update, from the recipe to the saved adapter; the exit code: 0 if it is finished, though asked to stop.

    `terse` is for one of many (see `Setup`), and `interrupts` for one that others follow (see `Stop`).
    """
    with ranks.begun(recipe.tracking.with_, recipe.output) as accelerator:
        setup = run.prepare(recipe, accelerator, resume=resume, allow_changes=allow_changes, terse=terse)
        if setup is None:
            return 0
        steps = steps_of(recipe, len(setup.corpus) - setup.corpus.n_old)
        setup.say(warmup_note(recipe, steps))
        with setup.scheduler:
            scoring.first_passes(setup)
            with Stop(tell=setup.main, interrupts=interrupts) as stop:
                learn(setup, steps, stop, evaluate)
                return run.close(setup, steps)


def learn(setup: Setup, steps: int, stop: Stop, evaluate: Evaluate | None) -> None:
    """Step after step, until the last or until asked to stop; either way, what was learned is saved."""
    recipe = setup.recipe
    factor = learning_rate_factor(recipe.training.schedule, recipe.training.warmup_steps, steps)
    stream = SRTDataset(
        setup.scheduler,
        setup.corpus,
        micro_batch_tokens=recipe.training.micro_batch_tokens,
        packing=recipe.data.packing,
        row=recipe.data.max_length,
        pad=setup.tokenizer.pad_token_id,
        rank=setup.accelerator.process_index,
        ranks=setup.accelerator.num_processes,
        score=partial(scoring.answer, setup),
    )
    every, first = recipe.evaluation.every, setup.texts.first
    with closing(stream), Metrics(setup, steps) as metrics:
        if every and setup.scheduler.state.step == first:  # what is forgotten later is measured from here
            look(setup, metrics, first, evaluate)
        started = time.perf_counter()
        for step in stream if setup.scheduler.state.step < first + steps else ():
            t = step.draw.step
            done = t + 1 - first
            learning_rate = recipe.training.learning_rate * factor(t - first)
            loss, norm, review = one_step(setup, stream, step, learning_rate, last=done == steps)
            metrics.note(step, review, loss=loss, norm=norm, learning_rate=learning_rate, started=started)
            if every and done % every == 0:
                look(setup, metrics, t + 1, evaluate)
            stopping = stop.asked(setup.accelerator)
            if done == steps or stopping or done % recipe.checkpoints.every == 0:
                run.save(setup, t + 1)
            if done == steps or stopping:
                break
            started = time.perf_counter()  # from here on: waiting for a draw, or its quiz, is part of a step


def look(setup: Setup, metrics: Metrics, t: int, evaluate: Evaluate | None) -> None:
    """What held-out text and the recipe's suites say before step t."""
    if setup.held_out:
        metrics.held_out(t - 1, {name: scoring.held_out(setup, pool) for name, pool in setup.held_out.items()})
    if evaluate is not None:
        metrics.scores(t - 1, evaluate)


def one_step(
    setup: Setup, stream: SRTDataset, step: Step, learning_rate: float, *, last: bool
) -> tuple[float, float, Review]:
    """Forward, review, backward, update: the loss, the gradient's norm, and what the review found."""
    accelerator, device = setup.accelerator, setup.accelerator.device
    draw = step.draw
    torch.manual_seed(run.seed_of(setup.recipe.training.seed, draw.step, accelerator.process_index))
    signals = torch.zeros(draw.ids.size, dtype=torch.float64, device=device)
    total = torch.zeros((), dtype=torch.float64, device=device)
    reviewed = None
    for i, host in enumerate(step.batches):
        batch = host.to(device)
        with setup.autocast():
            nll, example = token_nll(setup.model, batch)
        mean, _ = summarise(nll, example, len(host.ids))
        signals[np.searchsorted(draw.ids, host.ids.numpy())] = mean.to(torch.float64)
        total += nll.detach().double().sum()
        if i + 1 == len(step.batches):  # all of this rank is forwarded: the review runs beside the backward pass
            reviewed = stream.review(step, scoring.over_ranks(setup, signals), last=last)
        (nll.sum() / step.n_targets).backward()  # type: ignore[no-untyped-call]
    if reviewed is None:
        reviewed = stream.review(step, scoring.over_ranks(setup, signals), last=last)
    norm = update(setup, draw.step, learning_rate) if step.n_targets else 0.0
    loss = float(accelerator.reduce(total, "sum")) / max(step.n_targets, 1)
    return loss, norm, reviewed.result()


def update(setup: Setup, step: int, learning_rate: float) -> float:
    """Sum the gradients over the ranks, clip, and take the optimiser's step; the norm before clipping."""
    parameters = [p for group in setup.optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    ranks.sum_over(setup.accelerator, [parameter.grad for parameter in parameters])
    norm = torch.nn.utils.clip_grad_norm_(parameters, setup.recipe.training.max_grad_norm)
    if not torch.isfinite(norm):
        raise DivergedError(
            f"The gradient of step {step} is {float(norm)}, and would have spoiled every weight: nothing was learned "
            "from it, and nothing saved.",
            f"Lower training.learning_rate (it was {learning_rate:.3g} here), and go on with --resume --allow-changes "
            "from before the loss went wrong: remove the checkpoints that came later.",
        )
    for group in setup.optimizer.param_groups:
        group["lr"] = learning_rate
    setup.optimizer.step()
    setup.optimizer.zero_grad(set_to_none=True)
    return float(norm)
