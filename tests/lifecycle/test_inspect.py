"""What `inspect` says, against a naive replay of the log; and leeches set aside, which a resume honours."""

import collections
import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from srt_peft import LockedError, OptionError, ReviewLog, ReviewState, cli
from srt_peft.lifecycle import inspect, leeches
from srt_peft.review import files
from srt_peft.training import checkpoint
from srt_peft.training.loop import train
from tests.training.test_loop import ROOT, command, logged, recipe, world  # noqa: F401 - a fixture

STEPS = 12


@pytest.fixture(scope="module")
def run(world):  # noqa: F811
    """Few examples, so that they come again; whatever the base's text is not lapses."""
    for name in ("old", "new"):
        texts = (world / f"{name}.jsonl").read_text().splitlines()[:6]
        rows = [{**json.loads(line), "id": f"{name}-{i}"} for i, line in enumerate(texts)]
        (world / f"few-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert train(few(world, world / "few")) == 0
    return world / "few"


PAPER = ("review.preset=paper", "review.alpha=0.02")


def few(world, output, *more, review=PAPER):  # noqa: F811
    texts = [f"data.{name}={world / f'few-{name}.jsonl'}" for name in ("old", "new")]
    chosen = ("review.old_fraction=0.5", "data.holdout=0", "training.batch_size=16", "checkpoints.keep=9")
    return recipe(world, output, *texts, *chosen, *review, *more)


def replayed(run, before):
    """The naive twin: every example's reviews, walked by the rule as the paper writes it, in floats."""
    reviews = collections.defaultdict(list)
    with ReviewLog(run / "review/log") as log:
        for step, i, signal, quality, *_ in log.records().tolist():
            if i >= 0 and step < before:
                reviews[i].append([step, signal, quality])
    for each in reviews.values():
        ease, n, interval = 2.5, 0, 1
        for review in each:
            q = review[2]
            ease = max(1.3, round(ease + 0.1 - (5 - q) * (0.08 + 0.02 * (5 - q)), 2))
            n = n + 1 if q >= 3 else 0
            interval = {0: 1, 1: 1, 2: 6}.get(n, -(-interval * round(100 * ease) // 100))
            review += [ease, n, interval, review[0] + interval]
    return reviews


def said(capsys, *words, code=0):
    assert cli.main(["inspect", *map(str, words)]) == code
    return capsys.readouterr().out


@pytest.mark.parametrize("at", [None, 4])
def test_the_figures_are_those_of_a_naive_replay(run, capsys, at):
    """Of the newest checkpoint, and of an earlier one, for which the log is read up to its step."""
    step = at or STEPS
    twin = replayed(run, step)
    found = json.loads(said(capsys, run, "--json", *(["--at", at] if at else [])))
    state = ReviewState.open(run / f"checkpoints/step-{step:08d}/srt_state")
    assert found["step"] == step
    for name, ids in (("old", range(state.n_old)), ("new", range(state.n_old, state.n))):
        pool, seen = found["pools"][name], [i for i in ids if i in twin]
        due = sum((twin[i][-1][-1] if i in twin else state.due[i]) <= step for i in ids)
        assert pool == {
            "examples": len(ids), "seen": len(seen), "never_seen": len(ids) - len(seen), "due": due, "slots": 8,
            "backlog": round(due / 8, 2), "reviews": sum(len(twin[i]) for i in seen),
            "lapses": sum(review[2] < 3 for i in seen for review in twin[i]), "suspended": 0, "superseded": 0,
        }  # fmt: skip
        intervals = collections.Counter(twin[i][-1][5].bit_length() - 1 for i in seen)
        told = {b["from"].bit_length() - 1: b[name] for b in found["intervals"] if b[name]}
        assert told == intervals
        for b in found["eases"]:
            assert b[name] == sum(b["from"] <= twin[i][-1][3] <= b["to"] for i in seen)
    assert sum(pool["lapses"] for pool in found["pools"].values()) > 0
    assert max(len(each) for each in twin.values()) > (2 if at is None else 0), "some come again, else it shows little"


def test_the_table_has_the_numbers_of_the_json_and_fits(run, capsys, monkeypatch):
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        for words in ((), ("--hardest", 5), ("--leeches", 1), ("--example", 3)):
            lines = said(capsys, run, *words).splitlines()
            assert max(map(len, lines[1:])) <= max(columns, 75), words
    pools = json.loads(said(capsys, run, "--json"))["pools"]
    table = {line[:18].strip(): line[18:].split() for line in said(capsys, run).splitlines()[2:11]}
    for title, key in (("due now", "due"), ("lapses", "lapses"), ("never seen", "never_seen")):
        assert table[title] == [str(pools["old"][key]), str(pools["new"][key])]


def test_each_example_has_its_whole_history(run, capsys):
    """For every example of the run: step, NLL, quality, and the state after it, as the twin has them."""
    twin, seen = replayed(run, STEPS), inspect.look(run)
    for i in range(seen.state.n):
        found = inspect.history(seen, i)
        assert found["whole"]
        assert found["text"] == seen.corpus.text(i)
        keys = ("step", "nll", "quality", "ease", "repetitions", "interval", "due")
        for told, naive in zip(found["reviews"], twin[i], strict=True):
            assert [told[key] for key in keys] == pytest.approx(naive, abs=1e-5)
        assert (found["visits"], found["ease"]) == (len(twin[i]), twin[i][-1][3] if twin[i] else 2.5)


def test_an_example_is_named_by_row_identity_or_document(run, capsys):
    seen = inspect.look(run)
    one = inspect.row(seen, 3)
    assert one["source"] == "few-old.jsonl"
    for name in ("3", one["identity"], one["identity"].upper()):
        assert inspect.named(seen, name).tolist() == [3]
    corpus = seen.corpus
    for pool, name, first in ((corpus.old, "old-2", 0), (corpus.new, "new-2", corpus.n_old)):
        found = inspect.named(seen, name)
        assert (found - first).tolist() == np.flatnonzero(pool.document == 2).tolist()
        assert len(json.loads(said(capsys, run, "--json", "--example", name))["examples"]) == found.size > 0
    for nobody in ("nobody", "0" * 32, str(seen.state.n), "-1", ""):
        with pytest.raises(OptionError, match="is nobody here: expected an id from 0 to"):
            inspect.named(seen, nobody)


def test_a_log_that_lacks_reviews_is_not_replayed_as_if_it_had_them(run, tmp_path):
    """What cannot be known is None, and the last state is the state's own."""
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    twin = replayed(run, STEPS)
    path = tmp_path / "run/review/log"
    records = path.read_bytes()
    with ReviewLog(path) as log:
        late = int((log.records()["step"] < 4).sum())
    path.write_bytes(records[:64] + records[64 + 16 * late :])
    seen = inspect.look(tmp_path / "run")
    i = max(twin, key=lambda i: len(twin[i]))
    assert twin[i][0][0] < 4
    found = inspect.history(seen, i)
    assert not found["whole"]
    assert all(review["ease"] is None for review in found["reviews"][:-1])
    last = found["reviews"][-1]
    assert [last["ease"], last["interval"], last["due"]] == [twin[i][-1][k] for k in (3, 5, 6)]


def test_the_hardest_are_the_hardest(run, world, tmp_path):  # noqa: F811
    """By lapses where no reference is kept; else by how far the NLL lies above it."""
    twin, seen = replayed(run, STEPS), inspect.look(run)
    by, rows = inspect.hardest(seen, 5)
    keys = [(sum(review[2] < 3 for review in each), each[-1][1]) for each in twin.values()]
    assert by == "lapses, then NLL"
    assert [row["lapses"] for row in rows] == [lapses for lapses, _ in sorted(keys, reverse=True)[:5]]
    train(few(world, tmp_path / "run", review=("review.recall=relative",)))
    seen = inspect.look(tmp_path / "run")
    by, rows = inspect.hardest(seen, 4)
    state = seen.state
    above = np.where(state.visits > 0, state.signal - state.reference, -np.inf)
    assert "above its reference" in by
    assert [state.signal[r["id"]] - state.reference[r["id"]] for r in rows] == pytest.approx(np.sort(above)[::-1][:4])


def test_a_run_that_trains_now_is_read_as_it_changes(world, run, tmp_path, capsys):  # noqa: F811
    """Its live state and not a checkpoint; nothing of it is disturbed, and nothing of it may be changed."""
    live = tmp_path / "live"
    texts = [f"data.{name}={world / f'few-{name}.jsonl'}" for name in ("old", "new")]
    path = command(world, live, *texts, "training.steps=100000", "checkpoints.every=3")[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "srt_peft", "train", path], cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while logged(live) < 7:
            time.sleep(0.05)
        assert inspect.running(live)
        for _ in range(20):
            found = json.loads(said(capsys, live, "--json"))
            assert found["state"] == str(live / "review/state")
            assert found["step"] >= 7
            said(capsys, live, "--hardest", 3)
            said(capsys, live, "--example", 1)
        before = [path.name for path in checkpoint.all_of(live)]
        with pytest.raises(LockedError, match="is being written by another process"):
            leeches.suspend(live, 1)
        assert before
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    assert not inspect.running(live)
    assert json.loads(said(capsys, live, "--json"))["state"].endswith("srt_state")


# --- leeches --------------------------------------------------------------------------------------------------------


def counted(run, least):
    twin = replayed(run, STEPS)
    return {i for i, each in twin.items() if sum(review[2] < 3 for review in each) >= least}


def threshold(run):
    """One that some reach, and not all."""
    return max(n for n in range(1, 9) if counted(run, n))


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def test_leeches_are_set_aside_listed_and_taken_back(copy, capsys):
    """In the newest checkpoint, which is whole before and after; nothing else of it changes by a byte."""
    least = threshold(copy)
    expected, newest = counted(copy, least), copy / f"checkpoints/step-{STEPS:08d}"
    files_of = lambda: {p: p.read_bytes() for p in newest.rglob("*") if p.is_file() and "srt_state" not in p.parts}  # noqa: E731
    before, columns = files_of(), ReviewState.open(newest / "srt_state").columns
    assert {row["id"] for row in json.loads(said(capsys, copy, "--leeches", least, "--json"))["leeches"]} == expected
    done = json.loads(said(capsys, copy, "--leeches", least, "--suspend-leeches", "--json"))
    assert {row["id"] for row in done["set_aside"]} == expected
    checkpoint.check(newest)
    state = ReviewState.open(newest / "srt_state")
    assert set(np.flatnonzero(state.suspended).tolist()) == expected
    for name in columns.keys() - {"suspended"}:
        assert state.columns[name].tobytes() == columns[name].tobytes(), name
    after = files_of()
    assert after.keys() == before.keys()
    assert {path.name for path in before if before[path] != after[path]} == {"MANIFEST.json"}
    assert files.read_manifest(newest / "srt_state")["scheduler"]["name"] == "srt"
    pools = json.loads(said(capsys, copy, "--json"))["pools"]
    assert pools["old"]["suspended"] + pools["new"]["suspended"] == len(expected)
    assert "(by request)" in said(capsys, copy, "--leeches", least)
    assert json.loads(said(capsys, copy, "--leeches", least, "--suspend-leeches", "--json"))["set_aside"] == []
    back = json.loads(said(capsys, copy, "--revive", "--json"))
    assert {row["id"] for row in back["revived"]} == expected
    assert not ReviewState.open(newest / "srt_state").suspended.any()
    checkpoint.check(newest)


def test_a_resumed_run_never_draws_who_is_set_aside(copy, world):  # noqa: F811
    least = threshold(copy)
    gone = {row["id"] for row in leeches.suspend(copy, least)}
    assert gone
    assert train(few(world, copy, "training.steps=24"), resume=True, allow_changes=True) == 0
    with ReviewLog(copy / "review/log") as log:
        records = log.records()
    later = records[records["step"] >= STEPS]
    assert later["step"].max() == 23
    assert not gone & set(later["id"].tolist())
    assert set(np.flatnonzero(ReviewState.open(copy / "checkpoints/step-00000024/srt_state").suspended)) == gone


def test_a_pool_is_never_left_empty(copy):
    with pytest.raises(OptionError, match=r"that is every example of the .*new pool, and nobody would be left to draw"):
        leeches.suspend(copy, 1)
    assert not ReviewState.open(copy / f"checkpoints/step-{STEPS:08d}/srt_state").suspended.any()


KILLED = """
import os, signal, sys
from pathlib import Path
from srt_peft.lifecycle import leeches
real, left = {call}, [{moment}]
def dies(*arguments, **named):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **named)
{call} = dies
leeches.suspend(Path(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("call", "moment"),
    [("os.link", 0), ("os.link", 3), ("os.fsync", 1), ("os.fsync", 9), ("Path.rename", 0), ("Path.rename", 1),
     ("__import__('shutil').rmtree", 0)],
)  # fmt: skip
def test_killed_anywhere_the_checkpoint_is_whole(copy, call, moment):
    """SIGKILL in the middle: it is as it was, or as it was to be; a second call finishes, and leaves nothing beside."""
    least = threshold(copy)
    expected = counted(copy, least)
    code = KILLED.format(call=call.replace("__import__('shutil')", "leeches.checkpoint.shutil"), moment=moment)
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy), str(least)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    newest, faults = checkpoint.newest(copy)
    assert (newest.name, faults) == (f"step-{STEPS:08d}", [])
    found = set(np.flatnonzero(ReviewState.open(newest / "srt_state").suspended).tolist())
    assert found in (set(), expected)
    leeches.suspend(copy, least)
    newest, _ = checkpoint.newest(copy)
    assert set(np.flatnonzero(ReviewState.open(newest / "srt_state").suspended).tolist()) == expected
    if not found:
        assert not [path.name for path in newest.parent.iterdir() if path.name.startswith(".")]


def test_a_full_disk_leaves_the_checkpoint_as_it_was(copy, monkeypatch):
    from srt_peft import StateError

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ReviewState, "snapshot", lambda *_, **__: full())
    with pytest.raises(StateError, match=r"could not be revised .No space left on device.; it is as it was"):
        leeches.suspend(copy, threshold(copy))
    checkpoint.check(copy / f"checkpoints/step-{STEPS:08d}")
    assert not [path.name for path in (copy / "checkpoints").iterdir() if path.name.startswith(".")]


# --- what is refused ------------------------------------------------------------------------------------------------

REFUSED = {
    "two questions": (["--hardest", "3", "--example", "1"], "--example and --hardest: expected one of them"),
    "a number that names nobody": (["--hardest", "0"], "--hardest = 0: expected a whole number, 1 or more"),
    "a step that is not kept": (["--at", "5"], "keeps no checkpoint of that step: expected one of 4, 8, 12"),
    "a change of the past": (["--revive", "--at", "4"], "it is the newest checkpoint that is changed"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_mistakes_are_told(run, capsys, mistake):
    words, told = REFUSED[mistake]
    assert cli.main(["inspect", str(run), *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_without_texts_or_log_the_rest_is_said(copy, capsys):
    """As of a checkpoint that was copied elsewhere alone."""
    lone = copy.parent / f"step-{STEPS:08d}"
    shutil.move(copy / "checkpoints" / lone.name, lone)
    found = json.loads(said(capsys, lone, "--json"))
    assert found["pools"]["old"]["lapses"] is None
    assert found["pools"]["old"]["seen"] > 0
    assert "its text is not there" in said(capsys, lone, "--example", "0")
    assert cli.main(["inspect", str(lone), "--leeches"]) == 2
    assert "has no review log" in capsys.readouterr().err
