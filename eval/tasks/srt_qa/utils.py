"""The questions of a file, by split, as the tasks of this folder have them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict  # type: ignore[import-untyped]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
HOW = "name the file with --metadata questions=FILE.jsonl"


def load(questions: str | None = None, **_: Any) -> DatasetDict:
    """What `--metadata questions=FILE` names; the harness hands over all the other metadata as well."""
    if questions is None:
        raise SystemExit(f"srt_qa has no questions: {HOW}")
    path = Path(questions)
    if not path.is_file():
        raise SystemExit(f"srt_qa: {path} is no file: {HOW}")
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8-sig") as file:
        rows = [(number, json.loads(line)) for number, line in enumerate(file, 1) if line.strip()]
    documents = [
        {
            "question": row["question"].strip(),
            "choices": [choice.strip() for choice in row["choices"]],
            "letters": list(LETTERS[: len(row["choices"])]),
            "answer": LETTERS.index(row["answer"]) if isinstance(row["answer"], str) else row["answer"],
            "split": row["split"],
            "line": number,
        }
        for number, row in rows
    ]
    parts = {split: [d for d in documents if d["split"] == split] for split in ("old", "new")}
    return DatasetDict({split: Dataset.from_list(part) for split, part in parts.items() if part})
