"""What a person sees of a run while it lasts, and how they stop it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from tqdm import tqdm

from srt_peft.data.stream import Step
from srt_peft.review import Review
from srt_peft.training.folder import METRICS, rewind_metrics
from srt_peft.training.ranks import as_one
from srt_peft.training.run import Setup

MOST_DECKS = 64
"""Of more decks than this, metrics.jsonl says nothing: a line would be longer than all the rest of it."""

_BAR = "{n_fmt}/{total_fmt} |{bar:8}| {elapsed}<{remaining}{postfix}"
_QUIET = 60.0
"""Seconds between two lines where there is no terminal for a bar."""


class Stop:
    """SIGINT and SIGTERM ask the run to save and leave after this step; asked twice, it is left at once.

    `interrupts` is for a run that others follow: asked to stop, even in the last step or its save, none begins.
    """

    def __init__(self, *, tell: bool, interrupts: bool = False) -> None:
        self.tell, self.interrupts = tell, interrupts
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        for other, handler in self._before.items():
            signal.signal(other, handler)
        if self.tell:  # past Python's buffers, which may be in use where the signal came
            os.write(2, b"\nStopping after this step, once it is saved. Once more leaves at once.\n")

    def asked(self, accelerator: Accelerator) -> bool:
        """Whether any rank was asked to stop."""
        flag = torch.tensor(float(self.signal is not None), device=accelerator.device)
        return bool(accelerator.reduce(flag, "sum") > 0)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.interrupts and self.signal is not None:
            raise KeyboardInterrupt


class Metrics:
    """A line a step in metrics.jsonl, the trackers, and a progress bar with what a person watches."""

    def __init__(self, setup: Setup, steps: int) -> None:
        self.setup, self.steps = setup, steps
        self.begun = setup.scheduler.state.step
        self.path = setup.folder / METRICS
        self.drawn = np.zeros(2, dtype=np.int64)

    def __enter__(self) -> Metrics:
        with as_one(self.setup.accelerator):
            if self.setup.main:
                rewind_metrics(self.setup.folder, self.begun)
                self.file = self.path.open("a")
        for made in self.setup.passes:  # those of a resume lie behind its checkpoint: from there again, they are anew
            self._write({"step": self.begun or -1, **made})
        disable = None if self.setup.main else True
        self.bar = tqdm(
            total=self.steps,
            initial=self.begun - self.setup.texts.first,
            disable=disable,
            dynamic_ncols=True,
            bar_format=_BAR,
            smoothing=0.1,
        )
        self.told = time.monotonic()
        return self

    def note(
        self, step: Step, review: Review, *, loss: float, norm: float, learning_rate: float, started: float
    ) -> None:
        """What one step did."""
        draw, seconds = step.draw, time.perf_counter() - started
        n_new = draw.ids.size - draw.n_old
        self.drawn += (draw.n_old, n_new)
        line = {
            "step": draw.step,
            "loss": loss,
            "learning_rate": learning_rate,
            "gradient_norm": norm,
            "old": draw.n_old,
            "new": n_new,
            "due_old": draw.due[0],
            "due_new": draw.due[1],
            "lapses": review.lapses,
            "not_finite": review.not_finite,
            "tokens": step.n_tokens,
            "seconds": round(seconds, 4),
            **self._asked(step, review),
            **self._decks(step),
        }
        self._write(line)
        share = draw.n_old / max(draw.ids.size, 1)
        short = tqdm.format_sizeof
        told = (
            f"loss {loss:.3f}, {short(step.n_tokens / seconds)} tok/s, old {share:.0%}, "
            f"due {short(draw.due[0])}+{short(draw.due[1])}, lapses {review.lapses}"
        )
        self.bar.set_postfix_str(told, refresh=False)
        self.bar.update()
        if (
            self.bar.disable and time.monotonic() - self.told > _QUIET
        ):  # no terminal, but perhaps a log that is followed
            self.told = time.monotonic()
            self.setup.say(f"step {draw.step + 1 - self.setup.texts.first} of {self.steps}: {told}", progress=True)

    def _asked(self, step: Step, review: Review) -> dict[str, int]:
        """The quiz before the step, where there is one at all."""
        if not self.setup.scheduler.options.quiz:
            return {}
        return {"asked": step.draw.asked, "forward_only_tokens": step.asked_tokens, "passed": review.passed}

    def _decks(self, step: Step) -> dict[str, list[float]]:
        """How many old slots each deck got, and what it was found to have lost, in the order of decks.json."""
        deck, forgetting = self.setup.texts.deck, self.setup.scheduler.state.forgetting
        if forgetting is None or forgetting.size > MOST_DECKS:
            return {}
        slots = np.bincount(deck[step.draw.ids[: step.draw.n_old]], minlength=forgetting.size)
        return {"slots": slots.tolist(), "forgetting": [round(f, 5) for f in forgetting.tolist()]}

    def held_out(self, step: int, nll: dict[str, float]) -> None:
        """Perplexity on text that is never trained on."""
        self._write({"step": step, **{f"held_out_{name}_nll": value for name, value in nll.items()}})
        told = ", ".join(f"{name} {np.exp(min(value, 700.0)):.2f}" for name, value in nll.items())
        self.setup.say(f"step {step + 1}: held-out perplexity {told}")

    def scores(self, step: int, evaluate: Callable[[Setup, int], dict[str, float]]) -> None:
        """What the recipe's suites find; the main process asks, and the others wait."""
        means: dict[str, float] = {}
        with as_one(self.setup.accelerator):
            if self.setup.main:
                means = evaluate(self.setup, step + 1)
        self._write({"step": step, **{f"score/{name}": value for name, value in means.items()}})
        self.setup.say(f"step {step + 1}: " + ", ".join(f"{name} {value:.4g}" for name, value in means.items()))

    def _write(self, line: dict[str, Any]) -> None:
        if self.setup.main:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
        self.setup.accelerator.log({k: v for k, v in line.items() if k != "step"}, step=line["step"])

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.setup.main:
            self.file.close()
