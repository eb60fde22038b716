"""Which of the harness's tasks a name stands for, and where they take their data from.

A name is one of BROAD, or a task, a group or a tag of the harness, or a folder of tasks. Groups come apart into single
tasks as the harness itself takes them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from srt_peft.errors import OptionError, SRTError, did_you_mean
from srt_peft.evaluation.broad_data import PLACE, LocalData, brings_its_own, settled


class Benchmark(NamedTuple):
    """What the harness calls it, its examples in a prompt, and the metric (with its filter) that is its figure."""

    task: str
    num_fewshot: int
    metric: str
    filter: str


BROAD = {
    "mmlu": Benchmark("mmlu", 5, "acc", "none"),
    "bbh": Benchmark("bbh_cot_fewshot", 3, "exact_match", "get-answer"),
    "gsm8k": Benchmark("gsm8k", 5, "exact_match", "strict-match"),
    "piqa": Benchmark("piqa", 0, "acc", "none"),
}
"""The columns of the paper's tab:broad, in its order. BBH has its chains of thought in the prompt. GSM8K's other
filter, flexible-extract, and PIQA's other metric, acc_norm, stand in each record under `metrics`."""
_FOLDERS = ("mmlu/default", "bbh/cot_fewshot", "gsm8k", "piqa")
"""Where the harness keeps these four: to index all its fourteen thousand tasks takes ten seconds."""


class Task(NamedTuple):
    """A task of the harness, loaded, and how it is told of."""

    split: str
    task: Any
    benchmark: Benchmark | None
    note: str | None


def loaded(names: Iterable[str], shots: int | None, data_root: str | Path | None) -> dict[str, list[Task]]:
    """The tasks behind each name, with their data."""
    asked, folders = _asked(names)
    manager = _manager(asked, folders)
    leaves = {name: _leaves(task, manager.task_index) for name, task in asked.items()}
    notes = _point(leaves, manager.task_index, LocalData(data_root), shots) if data_root is not None else {}
    found: dict[str, list[Task]] = {}
    seen: set[str] = set()
    for name, task in asked.items():
        try:
            tasks = manager.load([task])["tasks"]
        except (OSError, ValueError, RuntimeError, ImportError, AttributeError, KeyError) as error:
            raise SRTError(
                f"{name}: its data or its configuration could not be loaded ({reason(error)}). Check the connection, "
                "or name a folder with copies of the data (data-root)."
            ) from error
        benchmark = BROAD.get(name)
        found[name] = []
        for leaf, each in tasks.items():
            if leaf in seen:
                continue
            seen.add(leaf)
            _set_shots(each, benchmark.num_fewshot if benchmark and shots is None else shots)
            figures(each, benchmark)
            found[name].append(Task(name if benchmark else leaf, each, benchmark, notes.get(leaf)))
    return found


def _set_shots(task: Any, shots: int | None) -> None:
    """The harness's own rule: a task that says 0 keeps it; one that says nothing has none."""
    given = task.get_config("num_fewshot")
    if given != 0:
        task.set_config("num_fewshot", shots if shots is not None else given or 0)


def _asked(names: Iterable[str]) -> tuple[dict[str, str], list[Path]]:
    """Each name to what the harness calls it, and the folders of tasks among the names."""
    from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]  # noqa: PLC0415

    asked: dict[str, str] = {}
    folders = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            folders.append(path)
            found = TaskManager(include_path=str(path), include_defaults=False)
            if broken := _broken(path):
                raise OptionError("the tasks", broken)
            if not found.all_tasks:
                raise OptionError("the tasks", [f"{name} has no task in it: expected YAML files with `task: NAME`"])
            asked |= {inner: inner for inner in [*found.all_groups, *found.all_subtasks]}
        else:
            asked[name] = BROAD[name].task if name in BROAD else name
    return asked, folders


def _broken(folder: Path) -> list[str]:
    """The harness leaves out what it cannot read without a word; a task that is missing must be told."""
    from lm_eval.tasks._yaml_loader import load_yaml  # type: ignore[import-untyped]  # noqa: PLC0415
    from yaml import YAMLError  # type: ignore[import-untyped]  # noqa: PLC0415

    faults = []
    for path in sorted(folder.rglob("*.yaml")):
        try:
            load_yaml(path, resolve_func=False)
        except (YAMLError, ValueError, OSError) as error:
            faults.append(f"{path} is no task ({reason(error)}): mend it, or take it away")
    return faults


def _manager(asked: Mapping[str, str], folders: Sequence[Path]) -> Any:
    """The harness's index of tasks: of the four and of these folders if that is enough, else of all that it has."""
    import lm_eval  # type: ignore[import-untyped]  # noqa: PLC0415
    from lm_eval.tasks import TaskManager  # noqa: PLC0415

    builtin = Path(lm_eval.__file__).parent / "tasks"
    few = [*(str(builtin / folder) for folder in _FOLDERS), *map(str, folders)]
    manager = TaskManager(include_path=few, include_defaults=False)
    if not all(_within(task, manager.task_index) for task in asked.values()):
        manager = TaskManager(include_path=[str(folder) for folder in folders])
    known = [*BROAD, *manager.all_tasks]
    faults = [
        f"{name} is no task, group or tag of the harness, and no folder{did_you_mean(name, known)}: `lm-eval ls tasks` "
        "lists what there is"
        for name, task in asked.items()
        if task not in manager.task_index
    ]
    if faults:
        raise OptionError("the tasks", faults)
    return manager


def _members(name: str, index: Mapping[str, Any]) -> list[str]:
    """What a group or a tag is made of."""
    entry = index[name]
    if entry.kind.name == "TAG":
        return sorted(entry.tags)
    listed = entry.cfg.get("task") if entry.kind.name == "GROUP" else []
    inner = [item if isinstance(item, str) else item.get("task") or item.get("group") for item in listed or []]
    return [item for item in inner if isinstance(item, str)]


def _within(name: str, index: Mapping[str, Any]) -> bool:
    return name in index and all(_within(inner, index) for inner in _members(name, index))


def _leaves(name: str, index: Mapping[str, Any]) -> list[str]:
    """The single tasks that a name stands for; what a group defines within itself is its own business."""
    if name not in index:
        return []
    if index[name].kind.name in {"TASK", "PY_TASK"}:
        return [name]
    return [leaf for inner in _members(name, index) for leaf in _leaves(inner, index)]


def _point(
    leaves: Mapping[str, Sequence[str]], index: Mapping[str, Any], data: LocalData, shots: int | None
) -> dict[str, str]:
    """Have these tasks read local copies; what is to be said of each."""
    import datasets  # type: ignore[import-untyped]  # noqa: PLC0415
    from lm_eval.tasks._yaml_loader import load_yaml  # noqa: PLC0415

    faults: list[str] = []
    notes: dict[str, str] = {}
    seen: set[str] = set()
    for name, mine in leaves.items():
        for leaf in mine:
            entry = index[leaf]
            if leaf in seen or entry.kind.name != "TASK" or brings_its_own(entry.cfg):
                continue
            seen.add(leaf)
            rows = data.splits(entry.cfg)
            if isinstance(rows, str):
                faults.append(rows)
                continue
            wanted = BROAD[name].num_fewshot if name in BROAD and shots is None else shots
            config = load_yaml(entry.yaml_path, resolve_func=True)
            changed, note = settled({"num_fewshot": wanted, **config}, rows, wanted)
            copies = datasets.DatasetDict({split: datasets.Dataset.from_list(held) for split, held in rows.items()})
            entry.cfg = {**config, **changed, "custom_dataset": _handing(copies), "dataset_kwargs": None}
            entry.yaml_path = None  # or the harness would read it again
            if note:
                notes[leaf] = note
    if faults:
        more = [f"and {len(faults) - 5} more tasks"] if len(faults) > 5 else []
        raise OptionError(PLACE, faults[:5] + more)
    return notes


def _handing(rows: Any) -> Callable[..., Any]:
    return lambda **_: rows


def figures(task: Any, benchmark: Benchmark | None) -> list[str]:
    """The metrics that may be a task's figure: means over questions, of which more is better; the first one is."""
    from lm_eval.api.metrics import mean  # type: ignore[import-untyped]  # noqa: PLC0415

    better = task.higher_is_better()
    names = [name for name, how in task.aggregation().items() if how is mean and better.get(name)]
    if benchmark:
        names = [benchmark.metric]
    if not names:
        has = ", ".join(task.aggregation())
        fault = f"{task.task_name} has no metric that is a mean over questions, more of it being better: it has {has}"
        raise OptionError("the tasks", [fault])
    return names


def reason(error: Exception) -> str:
    """What went wrong, in a line: the harness's assertions may have no words."""
    return " ".join(str(error).split())[:300] or type(error).__name__
