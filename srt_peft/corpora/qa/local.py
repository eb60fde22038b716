"""A Transformers model in a folder, held to the format: it writes one field at a time, each on a line of its own.

    Question: …⏎   Right answer: …⏎   Wrong answer 1: …⏎   Wrong answer 2: …⏎   Wrong answer 3: …⏎

The names of the fields are ours, and so is their order: a model only fills them. No field can be empty (until there is
a letter or figure, tokens that end a line or show nothing are forbidden), and each ends with its line or at its limit.
So any model at all answers in the format; whether what it says is a question, the checks find out. Decoding is greedy;
a wrong answer that was there already is drawn anew, from a seed that is the statement's own.
"""
# ruff: noqa: PLC0415 - torch and transformers take seconds to import

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from srt_peft.corpora.qa import asking
from srt_peft.corpora.qa.checks import Draft, meant
from srt_peft.corpora.qa.items import Item
from srt_peft.errors import OptionError

QUESTION, CHOICE = 80, 24
"""Tokens of a field, at most."""
AGAIN = 4
"""How often a wrong answer is written that was there already."""
FIELDS = ("Question:", "Right answer:", "Wrong answer 1:", "Wrong answer 2:", "Wrong answer 3:")
_LONG = "passage and question do not fit the model"


class Local:
    """Has a model on this machine write questions."""

    keeps = True

    def __init__(self, model: str, seed: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                model, trust_remote_code=False, use_safetensors=True, dtype="auto"
            )
        except (OSError, ValueError) as error:
            fault = f"--model = {model}: is no model that Transformers loads ({' '.join(str(error).split()):.200})"
            remedy = (
                "expected a folder with config.json, a tokenizer and *.safetensors; or --endpoint with a model's name"
            )
            raise OptionError("corpus qa", [f"{fault}: {remedy}"]) from None
        self._model = loaded.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._seed, self._from = seed, model
        self.name = Path(model).name
        limit = getattr(self._model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        self._limit = limit if isinstance(limit, int) and limit > 0 else 1 << 20
        self._mute, self._ends = self._kinds_of_tokens()

    def about(self) -> dict[str, Any]:
        """What makes its answers."""
        folder = Path(self._from)
        files = {p.name: p.stat().st_size for p in sorted(folder.glob("*.safetensors"))} if folder.is_dir() else {}
        return {"maker": "local", "model": self._from, "files": files, "seed": self._seed, "task": asking.TASK}

    def drafts(self, items: Sequence[Item]) -> Generator[tuple[Item, Draft | str]]:
        """A question of each, or why there is none."""
        for item in items:
            yield item, self._draft(item)

    def _draft(self, item: Item) -> Draft | str:
        """All five fields; without the passage if there is no room for it, and without the task if need be."""
        room = QUESTION + 4 * CHOICE
        alone = f"Title: {item.title}\n\nStatement: {item.statement}"
        for text in (self._opening(asking.told(item)), self._opening(alone), f"{alone}\n\n"):
            if len(self._encoded(text)) + room + 40 <= self._limit:
                return self._written(text, item)
        return _LONG

    def _written(self, text: str, item: Item) -> Draft:
        fields: list[str] = []
        for name in FIELDS:
            text += name
            line = self._line(text, QUESTION if not fields else CHOICE)
            for turn in range(AGAIN if len(fields) > 1 else 0):
                if meant(line) not in map(meant, fields[1:]):
                    break
                line = self._line(text, CHOICE, f"{self._seed} {item.id} {name} {turn}")
            fields.append(line)
            text += f" {line}\n"
        question, right, *wrong = fields
        return asking.written(question, right, tuple(wrong), item)

    def _opening(self, shown: str) -> str:
        """All that stands before the first field; as the model's own turn, where it is one that chats."""
        form = "Write five lines: " + " … ".join(FIELDS) + " …"
        if self._tokenizer.chat_template is None:
            return f"{asking.TASK}\n\n{shown}\n\n"
        said = [{"role": "user", "content": f"{asking.TASK}\n\n{form}\n\n{shown}"}]
        return str(self._tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))

    # --- one line ---------------------------------------------------------------------------------------------------

    def _line(self, text: str, most: int, chance: str | None = None) -> str:
        """What the model writes on, up to the end of the line: greedily, or drawn by this chance."""
        import torch

        generator = torch.Generator().manual_seed(_number(chance)) if chance is not None else None
        device = self._model.device
        feed = torch.tensor([self._encoded(text)], device=device)
        whole, past = feed, None
        written: list[int] = []
        with torch.inference_mode():
            for _ in range(most):
                out = self._model(input_ids=feed, past_key_values=past, use_cache=True)
                past = getattr(out, "past_key_values", None)
                logits = out.logits[0, -1].float().cpu()
                if not self._tokenizer.decode(written).strip():
                    logits[self._mute] = -torch.inf
                if generator is None:
                    token = int(logits.argmax())
                else:
                    token = int(torch.multinomial(logits.softmax(0), 1, generator=generator))
                if token in self._ends:
                    break
                written.append(token)
                feed = torch.tensor([[token]], device=device)
                whole = torch.cat([whole, feed], dim=1)
                feed = whole if past is None else feed
        return str(self._tokenizer.decode(written, skip_special_tokens=True)).strip()

    def _encoded(self, text: str) -> list[int]:
        chats = self._tokenizer.chat_template is not None  # a template writes the special tokens itself
        return list(self._tokenizer(text, add_special_tokens=not chats, verbose=False).input_ids)

    def _kinds_of_tokens(self) -> tuple[Any, set[int]]:
        """Tokens that no field may begin with, and those that end one."""
        import torch

        size = self._model.get_output_embeddings().weight.shape[0]
        known = min(len(self._tokenizer), size)
        texts = self._tokenizer.batch_decode([[i] for i in range(known)])
        special = set(self._tokenizer.all_special_ids)
        ends = {i for i, text in enumerate(texts) if "\n" in text} | special | set(range(known, size))
        blank = {i for i, text in enumerate(texts) if not any(c.isalnum() for c in text)}
        return torch.tensor(sorted(ends | blank), dtype=torch.long), ends


def _number(chance: str) -> int:
    return int.from_bytes(hashlib.blake2b(chance.encode(), digest_size=7).digest())
