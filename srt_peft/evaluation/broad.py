"""Broad capabilities: MMLU, BBH, GSM8K, PIQA, and any other task of EleutherAI's harness.

An update must not cost what it never meant to touch. The paper measures these four with the harness ("Broad capability
benchmark accuracy", tab:broad) and says neither how many examples the prompts have nor which metric is shown. Ours are
the customary ones, in `broad_tasks.BROAD`, and each record names its own.

The harness does the asking: its prompts, its filters, its metrics, through `lm_eval.simple_evaluate`. Ours is what a
name stands for (`broad_tasks`), where the data lies (`broad_data`), what the model is asked with and what is remembered
(`broad_model`), and a record for each question. A mean over a benchmark's records is the harness's own figure: MMLU and
BBH are means over questions.

Nothing from the hub is executed: data alone is loaded, and into our own cache. A task folder of one's own may name
functions (`!function`): that is one's own code, and it runs.
"""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from srt_peft.data.ingest import home
from srt_peft.errors import OptionError, SRTError
from srt_peft.evaluation.broad_tasks import BROAD, Task, figures, loaded, reason
from srt_peft.evaluation.records import Record, key_of

BUDGET = 16_384
"""Tokens in a batch."""

_log = logging.getLogger(__name__)


def score(
    model: Any,
    tokenizer: Any,
    *,
    answers: Path,
    tasks: Sequence[str] = tuple(BROAD),
    limit: int | None = None,
    num_fewshot: int | None = None,
    data_root: str | Path | None = None,
    budget: int = BUDGET,
    done: Collection[str] = (),
) -> Iterator[Record]:
    """A record for each question that is not done yet: task by task, in the harness's order.

    `tasks` are names of BROAD, of the harness's tasks, groups and tags, and paths of folders of tasks. `limit` is for
    each of the harness's tasks: MMLU has 57 of them, BBH 27. `num_fewshot` replaces the examples in a prompt wherever
    a task does not insist on none. `answers` is a file for this model alone: what it has answered, and will not be
    asked again after a kill.
    """
    _check(tasks, limit, num_fewshot)
    from srt_peft.evaluation.broad_model import Answers, Remembering  # noqa: PLC0415 - the harness: seconds
    from srt_peft.training.model import spare  # noqa: PLC0415 - torch: seconds

    with _ours():
        asked = loaded(tasks, num_fewshot, data_root)
    lm = None
    training = model.training
    try:
        for name, mine in asked.items():
            keys = {t.task.task_name: _keys(t.task, limit) for t in mine}
            left = [t for t in mine if not set(keys[t.task.task_name]) <= set(done)]
            if not left:
                continue
            with _ours():
                lm = lm or Remembering(model, tokenizer, Answers(answers), budget)
                lm.name = name
                found = _evaluated(lm, [t.task for t in left], limit, name)
            _say(name, left, lm)
            for each in left:
                leaf = each.task.task_name
                for record in _records(each, found["samples"][leaf], keys[leaf], lm):
                    if record["key"] not in done:
                        yield record
    finally:
        model.train(training)
        spare(model)


def _check(tasks: Sequence[str], limit: int | None, num_fewshot: int | None) -> None:
    faults = [
        f"{name} = {value!r}: expected a whole number, {least} or more, or none"
        for name, value, least in (("limit", limit, 1), ("num_fewshot", num_fewshot, 0))
        if value is not None and (type(value) is not int or value < least)
    ]
    if not tasks:
        faults.append("tasks: expected one or more names, such as " + ", ".join(BROAD))
    if faults:
        raise OptionError("the broad suite", faults)


def _keys(task: Any, limit: int | None) -> list[str]:
    """The key of each question that is asked: its content, in this task, after so many examples."""
    nth: Counter[str] = Counter()
    keys = []
    for question in islice(task.eval_docs, limit):
        content = json.dumps(question, sort_keys=True, ensure_ascii=False, default=str)
        # Benchmarks repeat themselves: the second of two equal questions is another one.
        keys.append(key_of("broad", task.task_name, content, task.config.num_fewshot, nth[content]))
        nth[content] += 1
    return keys


# --- one evaluation -------------------------------------------------------------------------------------------


def _evaluated(lm: Any, tasks: Sequence[Any], limit: int | None, name: str) -> Any:
    """What the harness makes of these tasks. It seeds all random numbers: ours are put back."""
    import lm_eval  # type: ignore[import-untyped]  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]  # noqa: PLC0415

    empty = TaskManager(include_defaults=False)  # the tasks are loaded, and its index takes ten seconds
    devices = [lm.hf.device] if lm.hf.device.type == "cuda" else []
    before, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one that the harness seeds
    try:
        with torch.random.fork_rng(devices):
            return lm_eval.simple_evaluate(lm, tasks=list(tasks), limit=limit, bootstrap_iters=0, task_manager=empty)
    except (AssertionError, ValueError) as error:
        raise SRTError(f"{name}: the harness refused to go on ({reason(error)}).") from error
    finally:
        random.setstate(before)
        np.random.set_state(numpys)  # noqa: NPY002


def _records(each: Task, samples: Iterable[Mapping[str, Any]], keys: Sequence[str], lm: Any) -> Iterator[Record]:
    """A record for each question: its figure, and all that the harness tells about it."""
    name, shots = each.task.task_name, each.task.config.num_fewshot
    questions: dict[int, list[Mapping[str, Any]]] = {}
    for sample in samples:
        questions.setdefault(sample["doc_id"], []).append(sample)
    for i, mine in sorted(questions.items()):
        filters = {sample["filter"]: sample for sample in mine}
        chosen = each.benchmark.filter if each.benchmark else mine[0]["filter"]
        metric = next((m for m in figures(each.task, each.benchmark) if m in filters[chosen]["metrics"]), None)
        value = filters[chosen][metric] if metric else None
        if not isinstance(value, (int, float)):
            raise SRTError(f"{name}: no single number for a question, but {value!r:.60}. Choose another task.")
        record = {
            "suite": "broad",
            "key": keys[i],
            "split": each.split,
            "value": float(value),
            "weight": 1.0,
            "task": name,
            "metric": f"{metric},{chosen}",
            "num_fewshot": shots,
            "doc_id": i,
            "target": filters[chosen]["target"],
            "responses": filters[chosen]["resps"],
            "filtered": {filter_: sample["filtered_resps"] for filter_, sample in filters.items()},
            "metrics": {f"{m},{filter_}": sample[m] for filter_, sample in filters.items() for m in sample["metrics"]},
        }
        if each.note:
            record["note"] = each.note
        if cut := lm.cut.get((name, i)):
            record["cut"] = cut
        yield json.loads(json.dumps(record, default=str))


def _say(name: str, tasks: Sequence[Task], lm: Any) -> None:
    """What a reader of the figures must know, once for a benchmark."""
    for note in dict.fromkeys(each.note for each in tasks if each.note):
        _log.warning("%s: %s", name, note)
    leaves = {each.task.task_name for each in tasks}
    if cut := [tokens for (leaf, _), tokens in lm.cut.items() if leaf in leaves]:
        _log.warning(
            "%s: %d prompts are longer than the model's context of %d tokens, by up to %d: what is too "
            "much is left out at their beginning",
            *(name, len(cut), lm.hf.max_length, max(cut)),
        )
    if short := [most for leaf, most in lm.shortened.items() if leaf in leaves]:
        _log.warning("%s: answers end after %d tokens, half of the model's context", name, min(short))


@contextmanager
def _ours() -> Iterator[None]:
    """The harness without its bars and its log, and with what it downloads in our cache."""
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415
    from tqdm import tqdm  # noqa: PLC0415

    def hidden(*args: Any, **kwargs: Any) -> Any:
        return tqdm(*args, **{**kwargs, "disable": True})

    root = home()
    # None of these has an argument that reaches it.
    instead = {
        ("huggingface_hub.constants", "HF_HUB_CACHE"): str(root / "hub"),
        ("datasets.config", "HF_DATASETS_CACHE"): root / "datasets",
        ("datasets.config", "DOWNLOADED_DATASETS_PATH"): root / "datasets" / "downloads",
        ("datasets.config", "EXTRACTED_DATASETS_PATH"): root / "datasets" / "downloads" / "extracted",
        ("lm_eval.api.task", "tqdm"): hidden,
        ("lm_eval.api.model", "tqdm"): hidden,
        ("lm_eval.models.huggingface", "tqdm"): hidden,
        ("lm_eval.evaluator", "get_git_commit_hash"): lambda: None,  # which complains wherever there is no repository
    }
    log = logging.getLogger("lm_eval")
    with ExitStack() as stack:
        for (module, name), value in instead.items():
            there = import_module(module)
            stack.callback(setattr, there, name, getattr(there, name))
            setattr(there, name, value)
        if not datasets.are_progress_bars_disabled():
            stack.callback(datasets.enable_progress_bars)
            datasets.disable_progress_bars()
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)
        yield
