"""Forgetting: examples vanish from texts, states, logs and caches, and nobody brings them back.

    RUN/forgotten/
      pending.json         what was begun and is not done: it holds identities, and is there for as long as that
      tombstones.json      what was forgotten, as keyed hashes
      receipt-0001.json    what was done: no text, and no hash that could be told without the key

What is to be done is worked out, and checked, before anything is changed. Then `pending.json` is written, and as long
as it is there nobody trains on the run. Each deed is known by what the files hold, or by the hash of the file as it
was, and so may be done again: whoever finds a `pending.json` completes it. It is removed last.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from srt_peft.data import clusters, history, supersedes, tombstones
from srt_peft.data.corpus import Corpus
from srt_peft.data.ingest import home
from srt_peft.data.pool import Pool
from srt_peft.data.sources import looks_like_a_path
from srt_peft.data.tombstones import FORGOTTEN, Tombstones
from srt_peft.errors import DamagedError, OptionError
from srt_peft.lifecycle import erasing
from srt_peft.lifecycle.choosing import WHAT, Chosen, Holder, look
from srt_peft.lifecycle.erasing import Leaving
from srt_peft.lifecycle.holders import adapters, holding, known
from srt_peft.review import ReviewState, files
from srt_peft.training import checkpoint, summary
from srt_peft.training.folder import DECKS, METRICS, PENDING, POOLS, RECIPE, REVIEW, SUMMARY, check_run, replace
from srt_peft.training.keys import Recipe
from srt_peft.training.recipe import load_recipe
from srt_peft.training.texts import identified

FORMAT, VERSION = "srt_peft forgetting", 1
Choose = Callable[[Sequence[Holder], Tombstones], Chosen]
Plan = dict[str, Any]


def forget(
    runs: Sequence[Path], choose: Choose | None, *, agreed: Callable[[list[Plan]], bool]
) -> list[tuple[Path, Plan]]:
    """Forget in these runs who is chosen, once a person has agreed to the plans; the receipts.

    Without a choice it is whoever was forgotten elsewhere. Either way, what was begun before is completed first.
    """
    with _held(runs) as root:
        receipts = [(run, receipt) for run in runs for receipt in complete(run, root)]
        holders = [look(run) for run in runs]
        stones = tombstones.load(root)
        for run in runs:
            stones |= tombstones.read(run / FORGOTTEN / tombstones.FILE)
        chosen = elsewhere(holders, stones) if choose is None else choose(holders, stones)
        if not chosen.identities:
            if choose is None or receipts or chosen.before:
                return receipts
            raise OptionError(WHAT, [f"{chosen.how} chooses nobody in {', '.join(map(str, runs))}"])
        chosen = _everywhere(root, chosen)
        plans = [plan(holder, chosen, stones, root, runs) for holder in holders]
        if not agreed([one for one in plans if one["report"]["examples"]]):
            return receipts
        erasing.check_idle_cache(root)
        begun = [run for run, one in zip(runs, plans, strict=True) if one["report"]["examples"]]
        for run, one in zip(runs, plans, strict=True):
            if run in begun:
                tombstones.write(run / FORGOTTEN / PENDING, files.vouched(one))
        return receipts + [(run, receipt) for run in begun for receipt in complete(run, root)]


@contextmanager
def _held(runs: Sequence[Path]) -> Iterator[Path]:
    """Nobody trains on these runs, and nobody else forgets, meanwhile; the home of the caches."""
    root = home()
    with ExitStack() as stack:
        for run in runs:
            check_run(run, WHAT)
            lock = files.Lock(run / REVIEW / "state" / "lock", f"The run in {run}")
            stack.callback(lock.release)
        root.mkdir(parents=True, exist_ok=True)
        lock = files.Lock(root / "forgetting.lock", f"What is cached in {root}")
        stack.callback(lock.release)
        yield root


def elsewhere(holders: Sequence[Holder], stones: Tombstones) -> Chosen:
    """Whoever was forgotten in other runs, and is here yet."""
    found = set[bytes]()
    for holder in holders:
        rows = holder.identities
        found |= {row.tobytes() for row in rows[stones.of("examples", rows)]}
        for _, _, pool in holder.pools:
            found |= {row.tobytes() for row in pool.identity[stones.of("documents", pool.key)]}
    return Chosen("what was forgotten elsewhere", frozenset(found), frozenset())


def _everywhere(root: Path, chosen: Chosen) -> Chosen:
    """The same, with what documents that were named have become in other cuttings, as far as these are cached."""
    found = set(chosen.identities)
    for folder in erasing.groups_of(root) if chosen.documents else ():
        for part in erasing.PARTS:
            if (folder / part).is_dir():
                pool = Pool.open(folder / part)
                found |= {i.tobytes() for i, k in zip(pool.identity, pool.key, strict=True)
                          if k.tobytes() in chosen.documents}  # fmt: skip
    return Chosen(chosen.how, frozenset(found), chosen.documents)


# --- what is to be done ---------------------------------------------------------------------------------------------


def plan(holder: Holder, chosen: Chosen, stones: Tombstones, root: Path, runs: Sequence[Path]) -> Plan:
    """All that must be known to forget them in a run, even after a kill; or why it cannot be."""
    bare = Leaving(chosen.identities, frozenset(), stones)
    gone = bare.of(holder.state_identity)
    _check_texts(holder, bare, gone)
    _check_left(holder, gone)
    for path in checkpoint.all_of(holder.run):
        try:
            checkpoint.check(path)
        except DamagedError as error:
            fault = f"{error} What is in it cannot be written anew: restore it from a copy, or remove it"
            raise OptionError(WHAT, [fault]) from None
    for folder in holder.folders.values():
        if (folder / history.FILE).is_file() and folder.parent not in [run.resolve() for run in runs]:
            fault = f"{holder.run}/{POOLS} leads to {folder}, the history of another run: give {folder.parent} as well"
            raise OptionError(WHAT, [fault])
    names = holder.names(bare) | holder.buried(stones)
    others = holding(root, holder, bare, runs)
    once = {}
    for name in (f"{REVIEW}/log", METRICS):
        if (holder.run / name).is_file():
            once[name] = checkpoint.hashed(holder.run / name)
    count = len(list((holder.run / FORGOTTEN).glob("receipt-*.json")))
    key = tombstones.key(stones)
    report = holder.report(bare, gone) | {
        "adapters": adapters(holder, bare, known(root, holder, runs)),
        "run": str(holder.run),
        "shared": [str(other) for other in others],
        "sources": sorted({source.path for source in (*holder.recipe.data.old, *holder.recipe.data.new)
                           if not (Path(source.path) / history.FILE).is_file()}),
    }  # fmt: skip
    return {
        "format": FORMAT,
        "version": VERSION,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "how": chosen.how,
        "identities": sorted(row.hex() for row in chosen.identities),
        "documents": sorted(row.hex() for row in chosen.documents),
        "names": sorted(row.hex() for row in names),
        "key": key.hex(),
        "rows": np.flatnonzero(gone).tolist(),
        "n": int(gone.size),
        "decks": holder.decks,
        "once": once,
        "receipt": count + 1,
        "report": report,
    }


def _check_texts(holder: Holder, leaving: Leaving, gone: NDArray[np.bool_]) -> None:
    """Refuse a run whose state follows other texts than those that its links lead to."""
    if holder.state is None:
        return
    identity = holder.corpus.identity
    if not np.array_equal(identity[~leaving.of(identity)], holder.state_identity[~gone]):
        raise DamagedError(
            f"The texts in {holder.run / POOLS} are not those that its review state follows, so what is left could not "
            "be gone on with. Restore them from a copy."
        )


def _check_left(holder: Holder, gone: NDArray[np.bool_]) -> None:
    """Refuse to leave a pool without anybody to draw."""
    for name, there in holder.live():
        if there.any() and not (there & ~gone).any():
            fault = (
                f"that is every example of the {name} pool of {holder.run} that can be drawn, and the run could not "
            )
            raise OptionError(WHAT, [f"{fault}go on: choose fewer, or remove the run, if all of it is to go"])


# --- doing it -------------------------------------------------------------------------------------------------------


def pending(run: Path) -> Plan | None:
    """What was begun in a run and is not done."""
    path = run / FORGOTTEN / PENDING
    if not path.is_file():
        return None
    raw = path.read_bytes()
    try:
        said = json.loads(raw)
    except ValueError:
        said = None
    if (
        not isinstance(said, dict)
        or files.vouched(said) != raw
        or (said["format"], said["version"]) != (FORMAT, VERSION)
    ):
        raise DamagedError(f"{path} is damaged, or of another version. Restore it from a copy.")
    return said


def complete(run: Path, root: Path) -> list[Plan]:
    """Do what a run's `pending.json` asks for, wherever it was interrupted; its receipt, if there was one."""
    erasing.sweep(root, [run])
    asked = pending(run)
    if asked is None:
        return []
    hexed = {name: [bytes.fromhex(row) for row in asked[name]] for name in ("identities", "documents", "names")}
    stones = tombstones.made(
        bytes.fromhex(asked["key"]), examples=hexed["identities"], documents=hexed["documents"], names=hexed["names"]
    )
    leaving = Leaving(frozenset(hexed["identities"]), frozenset(hexed["names"]), stones)
    deeds = list(_deeds(run, root, asked, leaving))
    with tqdm(total=len(deeds), desc="forgetting", unit="folder", delay=2, disable=None, leave=False) as bar:
        for deed in deeds:
            deed()
            bar.update()
    return [_receipt(run, asked, stones)]


def _deeds(run: Path, root: Path, asked: Plan, leaving: Leaving) -> Iterator[Callable[[], None]]:
    """All that is done, in order."""
    own = [(run / POOLS / name).resolve() for name in ("old", "new") if (run / POOLS / name).exists()]
    past = run / history.FOLDER
    groups = [folder for folder in dict.fromkeys((*own, *(p.resolve() for p in erasing.groups_of(root))))
              if not (folder / history.FILE).is_file()]  # fmt: skip
    yield lambda: _bury(run, root, leaving.stones)
    for folder in groups:
        yield lambda folder=folder: erasing.cached(root, folder, leaving, own=folder in own)  # type: ignore[misc]
    if (past / history.FILE).is_file():
        yield lambda: erasing.past(root, past, leaving)
    yield lambda: _log(run, asked)
    if own:  # else the run was prepared, and is not begun
        yield lambda: _states(run, asked, leaving)
    yield lambda: _drop(run, root)


def _bury(run: Path, root: Path, stones: Tombstones) -> None:
    path = run / FORGOTTEN / tombstones.FILE
    tombstones.keep(root, stones)
    tombstones.write(path, (tombstones.read(path) | tombstones.load(root)).dumped())


def _log(run: Path, asked: Plan) -> None:
    """The review log, and what is said of it: ids have no meaning of their own, so this is done once."""
    gone = np.zeros(asked["n"], bool)
    gone[asked["rows"]] = True
    _once(run / REVIEW / "log", asked["once"].get(f"{REVIEW}/log"), lambda path: erasing.reviews(path, gone))
    for left in (run / REVIEW).glob("log.damaged-*"):
        left.unlink()


def _once(path: Path, was: str | None, written: Callable[[Path], bytes]) -> None:
    if was is not None and checkpoint.hashed(path) == was:
        part = path.with_name(f".{path.name}.new")
        part.write_bytes(written(path))
        files.sync(part)
        part.replace(path)
        files.sync(path.parent)


def _states(run: Path, asked: Plan, leaving: Leaving) -> None:
    """The checkpoints and the live state, and what the run says of its decks and of who is superseded."""
    pools = [Pool.open(run / POOLS / name / "train") for name in ("old", "new")]
    corpus, recipe = Corpus(*pools), load_recipe(run / RECIPE)
    said = run / supersedes.FILE
    if said.is_file():
        replace(
            said, supersedes.dumped(supersedes.kept(supersedes.undumped(said.read_bytes()), leaving.names)).decode()
        )
    deck, names, place, words = _decks(run, asked, leaving, corpus, recipe)

    def identity(was: dict[str, str]) -> dict[str, str]:
        pairs = tuple(supersedes.undumped(said.read_bytes())) if said.is_file() else ()
        now = identified(corpus, names, deck, pairs)
        found = {**was, **dict.fromkeys(("corpus", "decks", "supersedes")), **now}
        return {key: value for key, value in found.items() if key in was and value}

    kept = checkpoint.all_of(run)
    for path in kept:
        erasing.saved(path, leaving, identity, place)
    erasing.live(run / REVIEW / "state", leaving, place)
    if place is not None and (place != np.arange(place.size)).any():
        _once(run / METRICS, asked["once"].get(METRICS), lambda path: erasing.redecked(path, place))
    if (run / DECKS).is_file():
        replace(run / DECKS, summary.listed(names, deck, corpus.n_old, words))
    if kept and (run / SUMMARY).is_file():
        summary.amended(run, corpus, np.flatnonzero(ReviewState.open(kept[-1] / "srt_state").superseded))


def _decks(
    run: Path, asked: Plan, leaving: Leaving, corpus: Corpus, recipe: Recipe
) -> tuple[NDArray[np.uint16], list[str], NDArray[np.int64] | None, list[list[str]]]:
    """(which deck each is of, what they are called, the number that each had before has now, telling words)."""
    k, kept = recipe.data.clusters, checkpoint.all_of(run)
    if k is None or not kept:
        deck, names = corpus.decks
        was = asked["decks"] or names
        return deck, names, np.asarray([names.index(name) if name in names else -1 for name in was], np.int64), []
    state = ReviewState.open(kept[-1] / "srt_state")
    theirs = state.columns.get("deck", np.zeros(state.n, np.uint16))
    deck, names = theirs[~leaving.of(state.columns["identity"])].copy(), asked["decks"]
    before = json.loads((kept[-1] / "trainer" / "trainer.json").read_text())["identity"]["corpus"]
    return deck, names, None, clusters.carry(corpus, k, deck, names, before)


def _drop(run: Path, root: Path) -> None:
    """What is made of the texts, and is made again when it is asked for."""
    (run / "report.html").unlink(missing_ok=True)
    for folder in (run / "evaluation", root / "evaluation"):
        for path in folder.rglob("perplexity-*.jsonl"):
            path.unlink()
    data = load_recipe(run / RECIPE).data
    given = [source.path for source in (*data.old, *data.new)]
    if any(not Path(p).expanduser().exists() and not looks_like_a_path(p, Path(p).expanduser()) for p in given):
        for name in ("datasets", "hub"):
            shutil.rmtree(root / name, ignore_errors=True)


# --- the receipt ----------------------------------------------------------------------------------------------------


def _receipt(run: Path, asked: Plan, stones: Tombstones) -> Plan:
    """Write down what was done, and that it is."""
    (hashes,) = [rows for (_, kind), rows in stones.sets.items() if kind == "examples"]
    receipt = {
        "format": "srt_peft receipt",
        "version": VERSION,
        "begun": asked["begun"],
        "done": datetime.now(UTC).isoformat(timespec="seconds"),
        "how": asked["how"],
        **asked["report"],
        "tombstones": sorted(row.hex() for row in hashes),
        "files": {str(path.relative_to(run)): checkpoint.hashed(path) for path in _vouching(run)},
    }
    tombstones.write(run / FORGOTTEN / f"receipt-{asked['receipt']:04d}.json", files.vouched(receipt))
    (run / FORGOTTEN / PENDING).unlink()
    files.sync(run / FORGOTTEN)
    return receipt


def _vouching(run: Path) -> Iterator[Path]:
    """The files of a run that say what all others must be, and those that nothing else vouches for."""
    parts = [run / POOLS / name / part / "pool.json" for name in ("old", "new") for part in erasing.PARTS]
    yield from (path for path in parts if path.is_file())
    yield from (path / checkpoint.MANIFEST for path in checkpoint.all_of(run))
    names = (f"{history.FOLDER}/{history.FILE}", f"{REVIEW}/log", METRICS, DECKS, SUMMARY, supersedes.FILE)
    yield from (run / name for name in names if (run / name).is_file())
