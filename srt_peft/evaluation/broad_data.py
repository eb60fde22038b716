"""Local copies of the benchmarks' data: found by their names, read as they were released, checked row by row.

    mmlu/dev.jsonl  mmlu_test.jsonl.gz        rows {subject, question, choices, answer}
    mmlu/test/anatomy_test.csv                the original release: question, A, B, C, D, letter, and no header
    mmlu/anatomy/test-00000-of-00001.parquet  the hub's folders
    bbh/snarks.json                           the original release: {"examples": [{input, target}]}
    gsm8k/train.jsonl  gsm8k_test.jsonl       rows {question, answer}
    piqa/valid.jsonl  piqa/valid-labels.lst   the original release; or rows {goal, sol1, sol2, label}
    NAME/test.jsonl                           any other task's or dataset's, with the columns that the task reads

Where the split that a task is scored on is not there, another takes its place, and it is said. Where the examples of
a prompt would then be the questions that are scored, the prompt has none: the model would be shown the answers.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.errors import OptionError

Row = dict[str, Any]
Splits = dict[str, list[Row]]

PLACE = "the benchmarks' data"
_DEPTH = 4
"""How many folders deep is looked."""
_SPLIT = r"(?P<split>train|validation|valid|val|dev|test)"
_FILE = r"(?:[-_.]\d{5}-of-\d{5})?\.(?P<kind>jsonl|ndjson|json|csv|parquet)(?:\.gz)?$"
_START = r"(?<![a-z0-9])"
"""So that kmmlu is not taken for mmlu."""
_STAND_IN = ("test", "validation", "dev", "train")
"""In this order for a split that is not there."""


# --- the benchmarks -------------------------------------------------------------------------------------------


def _mmlu(row: Row) -> Row | str:
    choices = row.get("choices", [row.get(letter) for letter in "ABCD"])
    answer = str(row.get("answer")).strip().upper()
    answer = {"A": "0", "B": "1", "C": "2", "D": "3"}.get(answer, answer)
    good = isinstance(row.get("question"), str) and isinstance(choices, list) and len(choices) == 4
    if not (good and all(isinstance(c, str) for c in choices) and answer in {"0", "1", "2", "3"}):
        return "expected a question, choices (a list of four, or A, B, C, D), and an answer from 0 to 3 or A to D"
    return {"question": row["question"], "subject": row.get("subject"), "choices": choices, "answer": int(answer)}


def _gsm8k(row: Row) -> Row | str:
    if isinstance(row.get("question"), str) and "#### " in str(row.get("answer")):
        return {"question": row["question"], "answer": row["answer"]}
    return "expected a question, and an answer with its number after ####"


def _piqa(row: Row) -> Row | str:
    texts = {name: row.get(name) for name in ("goal", "sol1", "sol2")}
    if all(isinstance(text, str) for text in texts.values()) and str(row.get("label")) in {"0", "1"}:
        return {**texts, "label": int(row["label"])}
    return "expected goal, sol1, sol2 and a label of 0 or 1, in the row or on the same line of the -labels.lst beside"


def _bbh(row: Row) -> Row | str:
    if isinstance(row.get("input"), str) and isinstance(row.get("target"), str):
        return {"input": row["input"], "target": row["target"]}
    return "expected an input and a target"


def _any(row: Row) -> Row | str:
    return row


class Layout(NamedTuple):
    """Where the files of a benchmark may lie, what its rows are, and how that is told."""

    paths: tuple[str, ...]
    check: Callable[[Row], Row | str]
    wanted: str
    split: Mapping[str, str]
    """What its files call the splits that its tasks ask for by another name."""
    columns: tuple[str, ...] = ()
    """Of a CSV file without a header."""


_VALIDATION = {"val": "validation", "valid": "validation"}
LAYOUTS = {
    "mmlu": Layout(
        (
            rf"{_START}mmlu/(?:data/)?(?P<subset>\w+)/{_SPLIT}{_FILE}",
            rf"{_START}mmlu/(?:data/)?(?:test|dev|val)/(?P<subset>\w+)_{_SPLIT}{_FILE}",
            rf"{_START}mmlu[/_-](?:mmlu[_-])?{_SPLIT}{_FILE}",
        ),
        _mmlu,
        "mmlu_{test,dev}.jsonl, mmlu/{test,dev}.jsonl, mmlu/test/SUBJECT_test.csv, mmlu/SUBJECT/test.parquet",
        _VALIDATION,
        ("question", "A", "B", "C", "D", "answer"),
    ),
    "gsm8k": Layout(
        (
            rf"{_START}gsm8k/(?:main/)?(?:gsm8k[_-])?{_SPLIT}{_FILE}",
            rf"{_START}gsm8k[_-]{_SPLIT}{_FILE}",
            rf"grade_school_math/data/{_SPLIT}{_FILE}",
        ),
        _gsm8k,
        "gsm8k/{train,test}.jsonl, gsm8k_{train,test}.jsonl",
        {},
    ),
    "piqa": Layout(
        (
            rf"{_START}(?:piqa|physicaliqa[^/]*)/(?:data/|plain_text/)?(?:piqa[_-])?{_SPLIT}{_FILE}",
            rf"{_START}piqa[_-]{_SPLIT}{_FILE}",
        ),
        _piqa,
        "piqa/{train,valid}.jsonl with piqa/{train,valid}-labels.lst, piqa_{train,validation}.jsonl",
        {**_VALIDATION, "dev": "validation"},
    ),
    "bbh": Layout(
        (rf"{_START}(?:bbh|big[-_]bench[-_]hard)/(?:bbh/)?(?P<subset>\w+)(?:/{_SPLIT})?{_FILE}",),
        _bbh,
        "bbh/TASK.json, bbh/TASK/test.parquet",
        {},
    ),
}
DATASETS = {
    "cais/mmlu": "mmlu",
    "hails/mmlu_no_train": "mmlu",
    "openai/gsm8k": "gsm8k",
    "gsm8k": "gsm8k",
    "baber/piqa": "piqa",
    "ybisk/piqa": "piqa",
    "piqa": "piqa",
    "SaylorTwift/bbh": "bbh",
    "lukaemon/bbh": "bbh",
}
"""The datasets that the harness's tasks name, by what they are copies of."""
_ON_DISK = {"json", "csv", "parquet", "text", "arrow"}
"""What a task names as its dataset if it brings its files itself."""


def brings_its_own(config: Mapping[str, Any]) -> bool:
    """Whether a task's data is here without our doing."""
    path = config.get("dataset_path")
    return path is None or bool(config.get("custom_dataset")) or path in _ON_DISK or Path(path).exists()


class LocalData:
    """The files under a folder, and the benchmarks that are found among them."""

    def __init__(self, root: str | Path) -> None:
        """Look through the folder; nothing is read before it is asked for."""
        self.root = Path(root).expanduser().resolve()
        if not self.root.is_dir():
            raise OptionError(PLACE, [f"data-root = {str(root)!r}: expected a folder that exists. Name one"])
        self.files = list(_files(self.root))
        self._read: Callable[[str], dict[str | None, Splits]] = cache(self._gathered)

    def splits(self, config: Mapping[str, Any]) -> Splits | str:
        """The rows of a task's dataset, by split; or what was looked for and is not here."""
        path, subset = str(config["dataset_path"]), config.get("dataset_name")
        kind = DATASETS.get(path)
        if kind is None:
            return self._of_another(str(config["task"]), path, subset)
        found = self._read(kind)
        table, mine = found.get(None, {}), found.get(str(subset).lower(), {})
        if kind == "mmlu":
            table = {split: [row for row in rows if row["subject"] == subset] for split, rows in table.items()}
        rows = {split: rows for split, rows in {**table, **mine}.items() if rows}
        return (
            rows or f"{config['task']}: nothing under {self.root} is called {LAYOUTS[kind].wanted} (perhaps with .gz)"
        )

    def _gathered(self, kind: str) -> dict[str | None, Splits]:
        return self._matching(LAYOUTS[kind])

    def _of_another(self, task: str, path: str, subset: str | None) -> Splits | str:
        names = dict.fromkeys([task, path.rpartition("/")[2], path.replace("/", "___")])
        patterns = []
        for name in map(re.escape, names):
            inner = f"(?:{re.escape(subset)}/)?" if subset else ""
            patterns += [rf"{_START}{name}/{inner}{_SPLIT}{_FILE}", rf"{_START}{name}[_-]{_SPLIT}{_FILE}"]
        found = self._matching(Layout(tuple(patterns), _any, "", _VALIDATION)).get(None)
        wanted = ", ".join(f"{name}/{{test,validation,train}}.jsonl" for name in names)
        return found or f"{task}: nothing under {self.root} is called {wanted}, or .json, .csv, .parquet, .gz"

    def _matching(self, layout: Layout) -> dict[str | None, Splits]:
        """Subset and split to rows. Whatever an earlier pattern has found is not taken from a later one's file."""
        found: dict[str | None, Splits] = defaultdict(dict)
        for pattern in layout.paths:
            mine: dict[str | None, Splits] = defaultdict(lambda: defaultdict(list))
            for file in self.files:
                match = re.search(pattern, file.as_posix(), re.IGNORECASE)
                if not match or file.name.startswith("auxiliary"):
                    continue
                named = match.groupdict()
                split = (named.get("split") or "test").lower()
                subset = (named.get("subset") or "").lower()
                rows = checked(file, layout)
                mine[None if subset in {"", "all"} else subset][layout.split.get(split, split)] += rows
            for subset_, splits in mine.items():
                found[subset_] = {**splits, **found.get(subset_, {})}
        return dict(found)


def _files(root: Path) -> list[Path]:
    found = []
    for folder, inner, names in os.walk(root):
        here = Path(folder)
        deep = len(here.relative_to(root).parts) >= _DEPTH
        inner[:] = [] if deep else sorted(name for name in inner if not name.startswith("."))
        found += [here / name for name in sorted(names)]
    return found


# --- reading --------------------------------------------------------------------------------------------------


def checked(path: Path, layout: Layout) -> list[Row]:
    """The rows of a file, each as its benchmark wants it; what is wrong is told with its line."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rows = _READERS[path.with_suffix("").suffix.lower() if path.suffix == ".gz" else path.suffix.lower()](
            raw, layout.columns
        )
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        raise OptionError(PLACE, [f"{path} cannot be read ({error}): bring it again"]) from error
    if layout.check is _piqa:
        labels = path.with_name(f"{path.name.partition('.')[0]}-labels.lst")
        if labels.is_file():
            given = labels.read_text(encoding="utf-8").split()
            if len(given) != len(rows):
                fault = f"{labels} has {len(given)} labels, and {path.name} {len(rows)} rows: expected as many"
                raise OptionError(PLACE, [fault])
            rows = [(where, row | {"label": label}) for (where, row), label in zip(rows, given, strict=True)]
        elif not any("label" in row for _, row in rows) and "test" in path.name:
            return []  # the original's test set has no labels: nothing can be scored on it
    good: list[Row] = []
    faults: list[str] = []
    for where, row in rows:
        made = layout.check(row) if isinstance(row, dict) else "expected an object"
        if isinstance(made, str):
            faults.append(f"{path}, {where}: {made}")
        else:
            good.append(made)
    if faults:
        more = [f"and {len(faults) - 5} more like these"] if len(faults) > 5 else []
        raise OptionError(PLACE, faults[:5] + more)
    return good


Numbered = list[tuple[str, Any]]


def _json_lines(raw: bytes, columns: Sequence[str]) -> Numbered:  # noqa: ARG001 - one face for all readers
    rows = []
    for number, line in enumerate(raw.decode("utf-8-sig").split("\n"), 1):
        if line.strip():
            try:
                rows.append((f"line {number}", json.loads(line)))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return rows


def _json(raw: bytes, columns: Sequence[str]) -> Numbered:
    """A list; {"examples": [...]}, as BIG-Bench has it; or JSON lines, which often go by this name."""
    try:
        found = json.loads(raw.decode("utf-8-sig"))
    except ValueError:
        return _json_lines(raw, columns)
    rows = found.get("examples", [found]) if isinstance(found, dict) else found
    return [(f"item {number}", row) for number, row in enumerate(rows, 1)]


def _csv(raw: bytes, columns: Sequence[str]) -> Numbered:
    lines = csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline=""), strict=True)
    rows = [(f"line {lines.line_num}", row) for row in lines if row]
    headed = not columns or (bool(rows) and columns[0] in rows[0][1])
    names = rows.pop(0)[1] if headed and rows else columns
    return [(where, dict(zip(names, row, strict=False))) for where, row in rows]


def _parquet(raw: bytes, columns: Sequence[str]) -> Numbered:  # noqa: ARG001
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 - 0.2 s

    return [(f"row {number}", row) for number, row in enumerate(pq.read_table(io.BytesIO(raw)).to_pylist())]


_READERS: dict[str, Callable[[bytes, Sequence[str]], Numbered]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


# --- what a task makes of it ----------------------------------------------------------------------------------


def settled(config: Mapping[str, Any], rows: Splits, shots: int | None) -> tuple[Row, str | None]:
    """What changes in a task's configuration to use these rows, and what there is to say about it."""
    asked = config.get("num_fewshot")
    asked = asked if asked == 0 or shots is None else shots  # a task that says 0 means it: the harness's own rule
    names = ("training_split", "validation_split", "test_split", "fewshot_split")
    given = {name: config.get(name) for name in names}
    shown_as = dict(config.get("fewshot_config") or {})
    scored = given["test_split"] or given["validation_split"]
    here = scored if scored in rows else next((s for s in _STAND_IN if s in rows), next(iter(rows)))
    shown = next((s for s in (shown_as.get("split"), *map(given.get, (names[3], *names[:2]))) if s), scored)
    bare = bool(asked) and "samples" not in shown_as and (shown not in rows or shown == here != scored)

    changed: Row = {name: None for name, split in given.items() if split and split not in rows}
    if here != scored:
        changed["test_split"] = here
    if shown_as.get("split", shown) not in rows:
        changed["fewshot_config"] = {k: v for k, v in shown_as.items() if k != "split"}
    if bare:
        changed["num_fewshot"] = 0
    said = [] if here == scored else [f"there is no {scored} split, so it is scored on {here}"]
    if bare and shown == here:
        said.append("zero-shot, since the examples would be among the questions that are scored")
    elif bare:
        said.append(f"zero-shot, since there is no {shown} split to take examples from")
    return changed, ", ".join(said) or None
