"""From a corpus to a file of questions: statement by statement until there are enough, then checked as a set.

    QUESTIONS.jsonl            what `srt-peft eval --suite qa=FILE` reads, with the passage and more beside it
    QUESTIONS.manifest.json    inputs with hashes, options, what was left out for what reason, versions, the file's hash
    QUESTIONS.jsonl.drafts     what a model has answered, so that nothing is asked twice; a larger --n goes on from it

Makers are asked for as many questions as are missing, and a few more, in an order that the seed decides. So a model is
asked about no more statements than it takes, and the same answers make the same file.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import srt_peft
from srt_peft.corpora.folder import dumped, line_of
from srt_peft.corpora.qa.checks import Draft, Grounds, faults_of
from srt_peft.corpora.qa.chosen import Made, choose, rows_of_set
from srt_peft.corpora.qa.cloze import STOCK
from srt_peft.corpora.qa.drafts import Drafts
from srt_peft.corpora.qa.items import SPLITS, Corpus, Item, hold_apart, items_of, read
from srt_peft.corpora.writing import bar
from srt_peft.errors import OptionError, SRTError
from srt_peft.review.files import sync

SPARE = 1.25
"""How many statements are asked about for a question that is missing: some answers fail the checks."""
HOPELESS = 100
"""Answers of which one at least must pass the checks: more of them would be paid for in vain."""
READ = "its statement stands in a training text"


class Maker(Protocol):
    """Whoever writes questions."""

    name: str
    keeps: bool
    """Whether an answer is worth keeping at once: it took time, or money."""

    def about(self) -> dict[str, Any]:
        """What its answers depend on."""

    def drafts(self, items: Sequence[Item]) -> Generator[tuple[Item, Draft | str]]:
        """A question of each item, or why there is none."""


@dataclass
class Outcome:
    """What came of a split."""

    wanted: int
    statements: int
    made: list[Made] = field(default_factory=list)
    asked: int = 0
    left: Counter[str] = field(default_factory=Counter)


def make(
    folder: Path, out: Path, n: int, maker_of: Callable[[Corpus], Maker], seed: int, options: Mapping[str, Any]
) -> dict[str, Outcome]:
    """Questions on a corpus, n of each split, into a file; what came of each split."""
    if wrong := faults(out, n):
        raise OptionError("corpus qa", wrong)
    corpus = read(folder)
    items, left_out = items_of(corpus, seed)
    seen = hold_apart(corpus, [item for split in SPLITS for item in items[split]], STOCK)
    outcomes = {}
    for split in SPLITS:
        kept = [item for item in items[split] if item.id not in seen]
        outcomes[split] = Outcome(n, len(kept), left=Counter({READ: len(items[split]) - len(kept)}))
        items[split] = kept
    maker = maker_of(corpus)
    out.parent.mkdir(parents=True, exist_ok=True)
    made_from = {**maker.about(), "corpus": corpus.files}
    if maker.keeps:
        with closing(Drafts(drafts_of(out), made_from)) as drafts:
            _fill(outcomes, items, maker, drafts)
    else:
        _fill(outcomes, items, maker, None)
    _write(out, corpus, outcomes, seed, {**options, **maker.about()}, left_out, by_model=maker.keeps)
    return outcomes


def faults(out: Path, n: int) -> list[str]:
    """Why no such file can be made."""
    found = []
    if n < 1:
        found.append(f"--n = {n}: expected 1 question of each split, or more")
    if out.exists() or out.is_symlink():
        goes_on = (
            " (what a model has answered is kept beside it, and not asked for again)" if drafts_of(out).exists() else ""
        )
        found.append(f"--out = {out}: is there already; name another file, or remove it{goes_on}")
    if out.suffix != ".jsonl":
        found.append(f"--out = {out}: expected a name that ends in .jsonl")
    return found


def drafts_of(out: Path) -> Path:
    """Where the answers for a questions file are kept."""
    return out.with_name(f"{out.name}.drafts")


def manifest_of(out: Path) -> Path:
    """Where the manifest of a questions file stands."""
    return out.with_suffix(".manifest.json")


# --- asking until there are enough ----------------------------------------------------------------------------------


def _fill(
    outcomes: Mapping[str, Outcome], items: Mapping[str, Sequence[Item]], maker: Maker, drafts: Drafts | None
) -> None:
    kept: dict[str, Draft | str] = {} if drafts is None else drafts.by_item
    told: Counter[str | None] = Counter()
    total = sum(min(o.wanted, o.statements) for o in outcomes.values())
    with bar(total, f"questions by {maker.name}", "question", progress=True) as shown:
        while True:
            batch: list[Item] = []
            for split, outcome in outcomes.items():
                _choose(outcome, items[split], kept, maker.name)
                missing = outcome.wanted - len(outcome.made)
                more = max(int(missing * SPARE), missing) if maker.keeps else outcome.statements
                batch += items[split][outcome.asked : outcome.asked + more] if missing else []
                outcome.asked = min(outcome.asked + more, outcome.statements) if missing else outcome.asked
            if not batch:
                return
            shown.n = sum(len(outcome.made) for outcome in outcomes.values())
            shown.refresh()
            with closing(maker.drafts([item for item in batch if item.id not in kept])) as answers:
                for item, found in answers:
                    if drafts is not None:
                        drafts.add(item.id, found)
                    kept[item.id] = found
                    fault = _fault_of(item, found)
                    told[fault] += 1
                    shown.update(fault is None)
                    if maker.keeps and told.total() >= HOPELESS and not told[None]:
                        raise _hopeless(maker.name, told)


def _fault_of(item: Item, found: Draft | str) -> str | None:
    """Why an answer is no question; None where it is one."""
    return found if isinstance(found, str) else next(faults_of(found, Grounds(item.title, item.passage)), None)


def _hopeless(maker: str, faults: Counter[str | None]) -> SRTError:
    told = ", ".join(f"{count:,} {fault}" for fault, count in faults.most_common() if fault)
    return SRTError(
        f"Of {faults.total():,} answers of {maker} none passes the checks ({told}). Have another model ask, or none: "
        "without --model questions are made from the diffs."
    )


def _choose(outcome: Outcome, items: Sequence[Item], kept: Mapping[str, Draft | str], maker: str) -> None:
    """The set of all that was asked so far, and why the rest is not in it."""
    left: Counter[str] = Counter({READ: outcome.left[READ]})
    passed = []
    for item in items[: outcome.asked]:
        found = kept[item.id]
        if (fault := _fault_of(item, found)) is not None:
            left[fault] += 1
        elif isinstance(found, Draft):
            passed.append(Made(item, found, maker))
    outcome.made, unfit = choose(passed, outcome.wanted)
    outcome.left = +(left + unfit)


# --- writing --------------------------------------------------------------------------------------------------------


def _write(
    out: Path,
    corpus: Corpus,
    outcomes: Mapping[str, Outcome],
    seed: int,
    options: Mapping[str, Any],
    left_out: Mapping[str, int],
    *,
    by_model: bool,
) -> None:
    made = [one for split in SPLITS for one in outcomes[split].made]
    if not made:
        told = "; ".join(f"{split}: {reasons_of(outcome)}" for split, outcome in outcomes.items())
        raise OptionError("corpus qa", [f"{corpus.folder} yields no question ({told}): {remedy(by_model=by_model)}"])
    rows = [row for split in SPLITS for row in rows_of_set(outcomes[split].made, seed)]
    text = "".join(map(line_of, rows)).encode()
    manifest = {
        "command": "corpus qa",
        "inputs": {str(corpus.folder / name): about for name, about in corpus.files.items()},
        "options": dict(options),
        "counts": {
            split: {
                "wanted": one.wanted, "made": len(one.made), "statements": one.statements, "asked": one.asked,
                "kinds": dict(sorted(Counter(made.draft.kind for made in one.made).items())),
                "left_out": dict(one.left.most_common()),
            } for split, one in outcomes.items()
        },
        "no_statement": dict(left_out),
        "versions": {"srt-peft": srt_peft.__version__, "python": platform.python_version()},
        "outputs": {out.name: {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}},
    }  # fmt: skip
    put(manifest_of(out), dumped(manifest))
    put(out, text)


def put(path: Path, content: bytes) -> None:
    """A file in one step: whole on the disk before its name is there."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync(path.parent)


def remedy(*, by_model: bool) -> str:
    """What brings more questions."""
    return f"make the corpus with a larger --held-out, or have {'another' if by_model else 'a'} model ask"


def reasons_of(outcome: Outcome) -> str:
    """Why there are no more."""
    told = [f"{count:,} {reason}" for reason, count in outcome.left.most_common()]
    return f"{outcome.statements:,} statements" + "".join(f"; {one}" for one in told)
