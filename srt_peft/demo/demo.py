"""`srt-peft demo`: a base that knows a world, updates of it under several schedulers, and what these keep and learn.

The contest is `evaluation.rivals`, as in `srt-peft compare`; here stand its recipe and what it means in plain words.

    as it comes    100 people; a base of 0.5 M parameters; 5 schedulers x 3 seeds x 200 steps of 20: at most 3 minutes
                   on two cores, the first time
    --quick        24 people; a smaller base; 1 seed x 60 steps: a minute, and less to see

Questions are asked by text, and not by letter: a base of this size has never learned what a letter stands for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from srt_peft.demo import world
from srt_peft.demo.base import HOLDOUT, MAX_LENGTH, Shape, made
from srt_peft.evaluation import outcome, rivals, scoreboard, suites
from srt_peft.evaluation.compare import COMBINED, Standing
from srt_peft.evaluation.evaluate import told as results_told
from srt_peft.evaluation.exposure import unequal
from srt_peft.evaluation.paired import Difference, Differences, sign_of, student
from srt_peft.evaluation.rivals import Contest
from srt_peft.evaluation.verdict import number
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe

CHANCE = 25
"""In %: a question has four answers to choose from."""
ENTRIES = ("cpt", "uniform", "uniform-epoch", "paper", "auto")
RATES = {"lora": 1e-2, "qlora": 1e-2, "full": 2e-3}
"""The ways to tune, and the learning rate of each."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the world is and its base, and how many steps an update has."""

    sizes: world.Sizes = field(default_factory=world.Sizes)
    shape: Shape = field(default_factory=Shape)
    steps: int = 200


FULL = Scale()
QUICK = Scale(sizes=world.Sizes(people=24, added=8, changed=20), shape=Shape(steps=250), steps=60)


def demo(
    output: Path,
    *,
    tuning: str,
    entries: Sequence[str],
    seeds: Sequence[int],
    scale: Scale,
    say: Callable[[str], None],
    supersedes: bool = True,
) -> Contest:
    """World, base and contest; what is there already is neither made nor run again."""
    outcome.check_place(output)  # before a base learns for a minute
    with _small():
        folder = made(world.make(0, scale.sizes), scale.shape, say)
        return rivals.contest(
            recipe_of(folder, tuning, scale, supersedes=supersedes),
            entries=entries,
            seeds=seeds,
            asked=suites.parse([f"qa-text={folder / 'world' / 'questions.jsonl'}"]),
            folder=output,
            say=say,
        )


@contextlib.contextmanager
def _small() -> Iterator[None]:
    """What befits so small a model: one thread, and no bars for the loading of its twenty matrices.

    A second thread gains little; where other work shares the machine, it waits for a core at every product, and the
    demo has taken more than ten minutes in place of one and a half.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with rivals.no_bars():
            yield
    finally:
        torch.set_num_threads(threads)


def recipe_of(folder: Path, tuning: str, scale: Scale, *, supersedes: bool = True) -> Recipe:
    """One update of the base; each entry of the contest sets its own scheduler.

    Old texts of facts that have changed are set aside, as the new texts name them: replayed, they fight the update.
    """
    return load_recipe({
        "model": {
            "base": str(folder / "base"), "tuning": tuning, "lora": {"r": 8, "alpha": 16}, "dtype": "float32",
            "gradient_checkpointing": False,
        },
        "data": {
            "old": str(folder / "world" / "old.jsonl"), "new": str(folder / "world" / "new.jsonl"),
            "max_length": MAX_LENGTH, "holdout": HOLDOUT, "source_column": "source",
            "supersedes": "supersedes" if supersedes else None,
        },
        "review": {"scheduler": "srt", "old_fraction": 0.2},
        "training": {
            "steps": scale.steps, "batch_size": 20, "micro_batch_tokens": 4096, "learning_rate": RATES[tuning],
            "warmup_steps": 20,
        },
        "checkpoints": {"every": scale.steps, "keep": 1},
        "evaluation": {"every": scale.steps // 5},
    })  # fmt: skip


# --- what is told -------------------------------------------------------------------------------------------------


def told(contest: Contest, style: str) -> str:
    """What each scored, and what it means; as JSON, the contest as it is."""
    if style == "json":
        return rivals.told(contest, style)
    parts = [results_told(contest.results, style)]
    if len(contest.entries) > len(ENTRIES):
        parts.append(f"{scoreboard.cost(style, contest.compute)}\n")
    rho = contest.recipe.review.old_fraction
    lines = [*meaning(contest), *(unequal(contest.exposure, contest.compute, rho) if contest.runs else ())]
    return "\n".join([*parts, "".join(f"% {line}\n" if style == "latex" else f"{line}\n" for line in lines)])


def meaning(contest: Contest) -> Iterator[str]:
    """The table in plain words, step by step, whatever came of it; "answers", as a guess would be right as well."""
    for one in contest.failed:
        yield f"{one.entry}, seed {one.seed}, has failed and stands in no table: {one.reason}"
    scored = {standing.label: standing for each in contest.results[:1] for standing in each.comparison.standings}
    references = [name for name in contest.references if name in scored and name != "cpt"]
    if "cpt" not in scored or not references:
        return
    better = max(references, key=lambda name: scored[name].scores[COMBINED].mean)
    found = next(each for each in contest.differences if each.reference == better)
    beside = {row.split: row for row in found.rows if row.label == "cpt"}
    yield (
        f"The base answers {_percent(scored[rivals.BASE], 'old')} of the questions about old facts that still hold "
        f"(guessing: {CHANCE} %). Having learned the new texts alone (cpt), it answers {_answers(scored['cpt'])}: "
        f"{_lost(scored['cpt'])}."
    )
    form = f"{better}, the better form of it here" if len(references) > 1 else better
    yield (
        f"With {100 * contest.recipe.review.old_fraction:.0f} % of each batch old texts, whichever come ({form}), it "
        f"answers {_answers(scored[better])}: {_replay(_loss(scored['cpt']), beside['old'])}."
    )
    for name, how in _SCHEDULES.items():
        if name in scored:
            share = contest.exposure[name]["realised_old_share"]["mean"] or 0.0
            yield (
                f"With {how} ({name}; {100 * share:.0f} % of those drawn were old), it answers "
                f"{_answers(scored[name])}: {_against(found, name)}."
            )
    yield from _worst(contest, [better, *_SCHEDULES])
    yield from _best(found, scored)
    seeds = min((len(row.seeds) for row in found.rows), default=len(contest.seeds))
    yield (
        f"{_SEEDS.get(seeds, 'Level is what chance explains, of seeds or of questions.')} This is one world, one base, "
        f"{seeds} seed{'s' if seeds > 1 else ''}: another base may shift every row, and rows that are close may change "
        "places."
    )


_SCHEDULES = {
    "paper": "the texts that are due, as the paper has it",
    "auto": "old slots shared by what each source has lost, in shuffled epochs",
}
_LOSS = {1: "it forgets", 0: "no clear loss", -1: "nothing is lost"}
_SOFTER = {-1: "replay softens it", 0: "no clear sign that replay softens it", 1: "replay makes it worse"}
_BESIDE = {-1: "more of the old than cpt", 0: "no clear difference from cpt on the old", 1: "less of the old than cpt"}
"""By the sign of cpt against the reference on old: where cpt forgets, and where it does not."""
_SIGNS = {-1: "worse", 0: "level", 1: "better"}
_TOGETHER = {COMBINED: "both together"}
_SEEDS = {
    1: "One seed: what is said speaks of other questions to these very trainings, and not of other trainings.",
    2: "Two seeds cannot tell whether other trainings would agree, unless they hardly differ: what they leave open is "
    "called undecided.",
}


def _loss(cpt: Standing) -> int:
    """Whether what is lost of the old counts, by the rule that the differences between entries follow."""
    effect = cpt.effects["old"]
    low, high = student(effect.difference.runs)
    return sign_of(effect.p, (low, effect.difference.low), (high, effect.difference.high))


def _lost(cpt: Standing) -> str:
    """What became of the old; where two trainings agree, no more than that is said."""
    runs, sign = cpt.effects["old"].difference.runs, _loss(cpt)
    if sign == 0 and len(runs) == 2:
        return "both trainings forget" if min(runs) > 0 else "two seeds cannot tell whether it forgets"
    return _LOSS[sign]


def _replay(loss: int, beside: Difference) -> str:
    """What replay does to what cpt has lost."""
    if beside.sign == 0 and len(beside.seeds) == 2:
        return "two seeds cannot tell whether that is more of the old than with cpt"
    return (_SOFTER if loss > 0 else _BESIDE)[beside.sign]


def _sign(row: Difference) -> str:
    return "undecided" if row.sign == 0 and len(row.seeds) == 2 else _SIGNS[row.sign]


def _percent(standing: Standing, split: str) -> str:
    return f"{100 * standing.scores[split].mean:.0f} %"


def _answers(standing: Standing) -> str:
    return f"{_percent(standing, 'new')} about the new facts and {_percent(standing, 'old')} about the old"


def _against(found: Differences, label: str) -> str:
    """How an entry stands beside the reference, on each split."""
    parts = [
        f"{_sign(row)} on {_TOGETHER.get(row.split, row.split)} ({number(100 * row.mean, 'points', '+')})"
        for row in found.rows
        if row.label == label
    ]
    return f"against {found.reference}, in points, {', '.join(parts)}"


def _worst(contest: Contest, names: Sequence[str]) -> Iterator[str]:
    """The source that each has lost the most of: what decks are for, and too few questions for more than a hint."""
    for found in contest.sources[:1]:
        told = [
            f"{row.label} {100 * (row.sources[row.worst]['mean'] or 0.0):.0f} points of {row.worst}"
            for row in found.rows
            if row.label in names
        ]
        sizes = ", ".join(f"{name} {count}" for name, count in found.questions.items())
        yield f"Where the most was lost, by source: {', '.join(told)} (questions: {sizes})."


def _best(found: Differences, scored: dict[str, Standing]) -> Iterator[str]:
    """Who leads where more take part than are told of already."""
    updates = [standing for label, standing in scored.items() if label != rivals.BASE]
    if len(updates) <= len(ENTRIES):
        return
    first = max(updates, key=lambda standing: standing.scores[COMBINED].mean)
    beside = "" if first.label == found.reference else f", {_against(found, first.label)}"
    yield f"First of {len(updates)} on both together is {first.label} ({_percent(first, COMBINED)}){beside}."
