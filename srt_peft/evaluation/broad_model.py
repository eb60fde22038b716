"""The model as EleutherAI's harness sees it: asked in batches sized to memory, and no question twice.

The harness hands over all the prompts of a benchmark at once and wants all the answers back. Between the two stands
`Remembering`: what was answered before is taken from a file, the rest is asked a batch at a time, longest first, and
written down as it comes. So a kill costs the batch under way, the estimate errs on the safe side, and running out of
memory shows in the first batches, where a batch is halved and asked again.

The prompts are built for the whole benchmark in every case, since the examples in them are drawn one after another:
asking only the questions that are left would give them other examples.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance  # type: ignore[import-untyped]
from lm_eval.api.model import LM  # type: ignore[import-untyped]
from lm_eval.models.huggingface import HFLM  # type: ignore[import-untyped]
from lm_eval.models.utils import normalize_gen_kwargs  # type: ignore[import-untyped]
from torch import nn
from tqdm import tqdm

from srt_peft.errors import DamagedError, SRTError
from srt_peft.training.model import spare

_LOGITS = 2 << 30
"""Bytes that a batch's logits may take: the harness holds them whole, and their log-softmax beside them."""


class Answers:
    """What one model has answered, a line each; a last line that a kill has torn is cut off."""

    def __init__(self, path: Path) -> None:
        """Open the file of this model, or begin it."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        try:
            self.known: dict[str, Any] = dict(map(json.loads, content[:whole].decode().splitlines()))
        except (ValueError, TypeError):
            raise DamagedError(f"{path} is damaged: a line in it is no answer. Delete it to ask again.") from None
        if whole < len(content):
            with path.open("rb+") as file:
                file.truncate(whole)

    def add(self, keys: Sequence[str], answers: Sequence[Any]) -> None:
        """Keep these, on disk too."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(pair) + "\n" for pair in zip(keys, answers, strict=True))
        self.known.update(zip(keys, answers, strict=True))


class Remembering(LM):  # type: ignore[misc]
    """A model that the harness may ask anything any number of times."""

    def __init__(self, model: nn.Module, tokenizer: Any, answers: Answers, budget: int) -> None:
        """`budget` is how many tokens a batch may have."""
        super().__init__()
        # The harness ties the head to the embeddings. They are tied since they were loaded, and with adapters on them
        # to tie them again fails, or undoes what was trained.
        model.tie_weights = lambda: None  # type: ignore[assignment]
        try:  # with a copy, since the harness gives a tokenizer without padding some
            self.hf = HFLM(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=1)
        finally:
            del model.tie_weights
            spare(model)
        self.tokenizer = self.hf.tokenizer
        self.tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True  # told by us
        self.answers = answers
        self.budget = budget
        self.name = ""
        self.cut: dict[tuple[str | None, int | None], int] = {}
        """How many tokens of the prompt for a task's document did not fit in the context: its beginning is left out."""
        self.shortened: dict[str | None, int] = {}
        """How long a task's answers may be, where the context is too short for what the task allows."""
        self._length: Callable[[str], int] = lru_cache(1024)(lambda text: len(self.hf.tok_encode(text)))
        size = int(getattr(model.config, "vocab_size", 0) or len(tokenizer))
        self._of_logits = _LOGITS // (8 * size)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """(log-likelihood, whether it is what the model would say) of each continuation."""
        lengths = [sum(map(self._length, request.args)) for request in requests]
        self._note_cut(requests, lengths, [self.hf.max_length + 1] * len(requests))
        found = self._asked("loglikelihood", requests, lengths, min(self.budget, self._of_logits))
        return [(score, greedy) for score, greedy in found]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """The log-likelihood of each text, window by window."""
        lengths = [self._length(request.args[0]) for request in requests]
        return self._asked("loglikelihood_rolling", requests, lengths, min(self.budget, self._of_logits))

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """What the model says to each prompt, up to the task's stop."""
        context = self.hf.max_length
        fitting, room, lengths = [], [], []
        for request in requests:
            prompt, settings = request.args
            longest = normalize_gen_kwargs(settings, self.hf.max_gen_toks)["max_gen_toks"]
            if longest >= context:
                longest = self.shortened[request.task_name] = context // 2
                settings = {**settings, "max_gen_toks": longest}
            fitting.append(replace(request, arguments=(prompt, settings)))
            room.append(context - longest)
            lengths.append(self._length(prompt))
        self._note_cut(requests, lengths, room)
        most = [min(n, r) + context - r for n, r in zip(lengths, room, strict=True)]
        return self._asked("generate_until", fitting, most, self.budget)

    def _note_cut(self, requests: Sequence[Instance], lengths: Sequence[int], room: Sequence[int]) -> None:
        for request, length, most in zip(requests, lengths, room, strict=True):
            if length > most:
                self.cut[request.task_name, request.doc_id] = length - most

    def _asked(self, what: str, requests: Sequence[Instance], lengths: Sequence[int], budget: int) -> list[Any]:
        """The answers, in order: known ones, and the rest in batches."""
        nth: Counter[str] = Counter()
        keys = []
        for request in requests:
            asked = json.dumps([what, *request.args], ensure_ascii=False, default=str)
            keys.append(blake2b(f"{nth[asked]} {asked}".encode(), digest_size=16).hexdigest())
            nth[asked] += 1  # a task that samples asks the same several times, and wants several answers
        # Continuations of one prompt stay together: the harness then reads the prompt once.
        prompts: dict[str, list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            if keys[i] not in self.answers.known:
                prompts[request.args[0]].append(i)
        left = sorted(prompts.values(), key=lambda mine: -max(lengths[i] for i in mine))
        total = sum(map(len, left))
        with tqdm(total=total, desc=self.name, unit="answer", delay=2, disable=None, leave=False) as bar:
            while left:
                rows = max(1, budget // max(1, min(max(lengths[i] for i in left[0]), self.hf.max_length)))
                batch, left = left[:rows], left[rows:]
                if not self._batch(what, [(keys[i], requests[i]) for mine in batch for i in mine], len(batch)):
                    budget, left = self._halved(len(batch), budget, rows), batch + left
                    continue
                bar.update(sum(map(len, batch)))
        return [self.answers.known[key] for key in keys]

    def _batch(self, what: str, asked: Sequence[tuple[str, Instance]], rows: int) -> bool:
        """Ask and keep; False where memory did not suffice."""
        self.hf.batch_size_per_gpu = rows
        try:
            found = getattr(self.hf, what)([request for _, request in asked])
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return False
        for answer in found:
            score = answer[0] if what == "loglikelihood" else answer
            if isinstance(score, float) and not math.isfinite(score):
                raise SRTError(
                    f"The model gave no finite score in {self.name}: its weights are damaged, or its precision is too "
                    "low for it. Check the checkpoint, or choose another precision."
                )
        self.answers.add([key for key, _ in asked], found)
        return True

    def _halved(self, rows: int, budget: int, fitting: int) -> int:
        if rows == 1:
            raise SRTError(
                f"Memory does not suffice for a single question of {self.name}. Load the model in 4 bits, or ask "
                "fewer examples in a prompt (num_fewshot)."
            )
        return budget * (rows // 2) // fitting
