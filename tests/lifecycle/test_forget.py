"""What is forgotten is nowhere, what is left is as it was, and nobody brings the one back or loses the other."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft import OptionError, ReviewState, cli, load_scheduler
from srt_peft.data import Pool
from srt_peft.data.history import open_history
from srt_peft.data.ingest import home
from srt_peft.errors import LockedError, StateError
from srt_peft.lifecycle import choosing, following as lifecycle_following
from srt_peft.lifecycle.following import Ended, follow, left_by
from srt_peft.lifecycle.forget import forget
from srt_peft.lifecycle.leeches import suspend
from srt_peft.lifecycle.past import make
from srt_peft.review import ReviewLog
from srt_peft.training import checkpoint
from srt_peft.training.folder import check_idle, check_remembered, replace
from srt_peft.training.recipe import dump
from tests.data.helpers import byte_bpe, prose
from tests.lifecycle.forgetful import (
    begin,
    corpus_of,
    following,
    pools_of,
    recipe_of,
    rows,
    rows_of,
    snapshot,
    tokens_of,
    traces,
    trained,
    world,
    write,
)  # fmt: skip


def forgotten(*words, code=0):
    assert cli.main(["forget", *map(str, words)]) == code


def ids(folder, *names):
    (folder / "ids.txt").write_text("".join(f"{name}\n" for name in names))
    return folder / "ids.txt"


def sources(folder):
    return [str(folder / f"{name}.jsonl") for name in ("old", "new")]


def audited(run, code=0):
    assert cli.main(["audit", str(run)]) == code


def less(before, gone):
    """The naive removal: whatever is told of somebody who is gone is left out, and nothing else."""
    state, told, pools = before
    return (
        {key: value for key, value in state.items() if key[1] not in gone},
        [record for record in told if record[1] not in gone],
        {key: [text for text in texts if text not in gone] for key, texts in pools.items()},
    )


def same_as_anew(run, recipe):
    """What is cached is what its sources become, with nothing cached; and a checkpoint goes on from there."""

    def told():
        return [(p.fingerprint, p.key.tobytes(), {row.tobytes() for row in p.known}) for p in pools_of(run).values()]

    cached = told()
    shutil.rmtree(home() / "pools")
    texts = begin(recipe)
    assert told() == cached
    newest, faults = checkpoint.newest(run)
    assert faults == []
    saved = json.loads((newest / "trainer/trainer.json").read_text())["identity"]
    assert {name: saved.get(name) for name in ("corpus", "decks", "supersedes")} == {
        name: texts.identity.get(name) for name in ("corpus", "decks", "supersedes")
    }
    with load_scheduler(newest / "srt_state") as scheduler:
        assert np.array_equal(scheduler.state.identity, texts.corpus.identity)
        if scheduler.state.deck is not None:
            assert np.array_equal(scheduler.state.deck, texts.deck)
        for _ in range(3):
            draw = scheduler.draw()
            scheduler.review(draw.ids, np.full(draw.ids.size, 2.0))


# --- what is left, and what is not ------------------------------------------------------------------------------


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_what_is_left_is_what_a_naive_removal_leaves(seed, data):
    """Pools, states of all checkpoints, decks and the log; for any corpus, and any choice."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        run, documents, recipe = world(folder, patch, seed % 1000, 25 + seed % 20, 30)
        names = [row["id"] for part in documents.values() for row in part]
        chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=12, unique=True))
        before, gone = snapshot(run), rows_of(run, chosen)
        tokens = tokens_of(run, gone)
        forgotten(run, "--ids", ids(folder, *chosen), "--yes")
        assert snapshot(run) == less(before, set(gone))
        assert traces(run, gone, tokens) == []
        audited(run)
        same_as_anew(run, recipe)


def test_the_byte_search_sees_what_is_there(tmp_path, monkeypatch):
    """Before anything is forgotten it finds text, tokens and hashes, in pools and in states."""
    run, documents, _ = world(tmp_path, monkeypatch)
    gone = [text for row in documents["new"][:9] for text in rows_of(run, [row["id"]])]
    found = " ".join(traces(run, gone, tokens_of(run, gone)))
    assert "pools" in found
    assert "srt_state" in found
    assert "review/state" in found


@pytest.mark.parametrize("way", ["match", "source", "before", "identity", "number"])
def test_each_way_to_choose(tmp_path, monkeypatch, way):
    run, documents, _ = world(tmp_path, monkeypatch)
    pools, corpus = pools_of(run), corpus_of(run)
    every = [(row, pool.text(i), pool) for pool in pools.values() for i, row in enumerate(pool.identity)]
    row = documents["new"][2]
    word = re.findall(r"\d+-0", row["text"])[0]
    chosen = {
        "match": ("--match", word),
        "source": ("--source", "b"),
        "before": ("--before", "2026-03-01"),
        "identity": ("--ids", ids(tmp_path, corpus.identity[7].tobytes().hex())),
        "number": ("--ids", ids(tmp_path, "7")),
    }[way]
    topics = {r["id"]: r for part in documents.values() for r in part}
    mine = {
        "match": {text for _, text, _ in every if word in text},
        "source": {t for r in topics.values() if r["topic"] == "b" for t in rows_of(run, [r["id"]])},
        "before": {t for r in topics.values() if r["date"] < "2026-03-01" for t in rows_of(run, [r["id"]])},
    }.get(way, {corpus.text(7)})
    assert mine
    before = snapshot(run)
    forgotten(run, *chosen, "--yes")
    assert snapshot(run) == less(before, mine)
    assert traces(run, sorted(mine), []) == []
    told = json.loads((run / "forgotten/receipt-0001.json").read_text())
    assert told["how"] == {"identity": "--ids", "number": "--ids"}.get(way, f"--{way}")
    assert told["examples"] == len(mine)


def test_a_source_that_is_forgotten_leaves_the_decks_of_the_others_as_they_were(tmp_path, monkeypatch):
    """The first deck goes, so that all others have other numbers; what was measured of them stays theirs."""
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    paths = [write(tmp_path / f"{n}.jsonl", rows(40, n, "abc")) for n in (1, 2)]
    recipe = recipe_of(tmp_path / "run", *paths)
    run = trained(recipe)
    newest = checkpoint.newest(run)[0]
    decks = [deck["name"] for deck in json.loads((run / "decks.json").read_text())]
    slots = [json.loads(line)["slots"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    forgotten(run, "--source", decks[0], "--yes")
    left = [deck["name"] for deck in json.loads((run / "decks.json").read_text())]
    assert sorted(left) == sorted(decks[1:])
    state = ReviewState.open(newest / "srt_state")
    assert state.columns["reviews"].size == 2
    told = [json.loads(line)["slots"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert told == [[line[decks.index(name)] for name in left] for line in slots]
    same_as_anew(run, recipe)


def test_a_history_forgets_and_what_was_there_before_is_not_new_again(tmp_path, monkeypatch):
    """In the second update: old texts, state, log of all updates; whoever comes back is neither new nor held out."""
    first, documents, recipe = world(tmp_path, monkeypatch)
    week = [*rows(20, 9), *documents["new"][:5], *documents["old"][:5]]
    run, after = following(first, recipe, tmp_path / "run-2", write(tmp_path / "w2.jsonl", week))
    drawn = {text for _, text, _, _ in snapshot(first)[1]}
    seen = [row["id"] for part in documents.values() for row in part if set(rows_of(first, [row["id"]])) & drawn]
    chosen = [*seen[:2], *seen[-2:], week[3]["id"]]
    before, gone = snapshot(run), rows_of(run, chosen)
    tokens = tokens_of(run, gone)
    forgotten(run, "--ids", ids(tmp_path, *chosen), "--yes")
    assert snapshot(run) == less(before, set(gone))
    assert traces(run, gone, tokens) == []
    past = open_history(run / "history")
    assert np.array_equal(ReviewState.open(run / "history/state").identity, past.train.identity)
    audited(run)
    same_as_anew(run, after)
    told = json.loads((run / "forgotten/receipt-0001.json").read_text())
    assert told["shared"] == [str(first)], "the run before has them, and is named"
    steps = {step for one in told["adapters"] for step in one["steps"]}
    assert min(steps) < 8, "those of the update before count, too"
    begin(recipe)  # its texts are made again, as the cache was cleared
    forgotten(first, "--yes")
    audited(first)
    assert traces(tmp_path, gone, tokens) == [str(tmp_path / f"{name}.jsonl") for name in ("new", "old", "w2")]


def taught(run, texts):
    """The steps at which a run's own log says that these were trained on."""
    return sorted({step for step, text, _, _ in snapshot(run)[1] if text in texts})


def test_every_adapter_of_the_line_is_told_with_the_steps_of_its_own(tmp_path, monkeypatch):
    """Nobody drew it in the first update, the second did: the first is asked, and the second's adapters are told."""
    first, _, recipe = world(tmp_path, monkeypatch)
    week = write(tmp_path / "w2.jsonl", rows(20, 9))
    second, after = following(first, recipe, tmp_path / "run-2", week)
    here, there = ({text for _, text, _, _ in snapshot(run)[1]} for run in (first, second))
    texts = {pool.text(i) for pool in pools_of(first).values() for i in range(len(pool))}
    late, both = min((there - here) & texts), min(here & there)
    newest = checkpoint.newest(second)[0]
    third = recipe_of(tmp_path / "run-3", *(source.path for source in recipe.data.old), week, f"model.adapter={newest}")
    third = trained(third, seed=5)
    (tmp_path / "run-4/base").mkdir(parents=True)
    make(left_by(Ended(second, newest, after, {}, 8), ()), tmp_path / "run-4/history", keep="all", horizon=8)
    base = f"model.base={tmp_path / 'run-4/base'}"
    asked = recipe_of(tmp_path / "run-4", str(tmp_path / "run-4/history"), str(tmp_path / "w2.jsonl"), base)
    (tmp_path / "run-4/recipe.yaml").write_text(dump(asked))
    for text in (late, both):
        (tmp_path / "one.txt").write_text(blake2b(text.encode(), digest_size=16).hexdigest())
        plans = []
        forget([first], choosing.by_ids(tmp_path / "one.txt"), agreed=lambda found, to=plans: bool(to.extend(found)))
        told = {one["path"]: one["steps"] for one in plans[0]["report"]["adapters"]}
        own = sorted({*taught(first, [text]), *taught(second, [text])})
        assert told[str(newest)] == own
        assert told[str(tmp_path / "run-4/base")] == own
        assert told[str(checkpoint.newest(third)[0])] == sorted({*own, *taught(third, [text])})
        assert (str(checkpoint.newest(first)[0]) in told) == (text == both)
    audited(tmp_path / "run-4")


def test_the_next_update_is_refused_while_the_run_holds_who_was_forgotten_elsewhere(tmp_path, monkeypatch):
    """Else its history would be another copy of them."""
    first, documents, recipe = world(tmp_path, monkeypatch)
    second, _ = following(first, recipe, tmp_path / "run-2", write(tmp_path / "w2.jsonl", rows(20, 9)))
    forgotten(first, "--ids", ids(tmp_path, documents["old"][0]["id"], documents["new"][0]["id"]), "--yes")
    monkeypatch.setattr(lifecycle_following, "_onto", lambda last, given, out: given)
    with pytest.raises(StateError, match=f"srt-peft forget {second}"):
        follow(second, [write(tmp_path / "w3.jsonl", rows(20, 10))], out=tmp_path / "run-3")
    assert not (tmp_path / "run-3").exists()


def test_who_is_forgotten_stays_so_however_the_corpus_is_brought_again(tmp_path, monkeypatch):
    """Reordered, doubled and grown; in a fresh run, in a longer cutting where it was named, and in the next update."""
    run, documents, recipe = world(tmp_path, monkeypatch)
    chosen = [documents["old"][2]["id"], documents["new"][3]["id"]]
    gone = rows_of(run, chosen)
    forgotten(run, "--ids", ids(tmp_path, *chosen), "--yes")
    before = {key: value for key, value in snapshot(run)[0].items() if key[0] == "step-00000008"}
    again = [*documents["new"], *documents["old"], *rows(5, 77)]
    random.Random(0).shuffle(again)
    paths = [write(tmp_path / "again-1.jsonl", again * 2), write(tmp_path / "again-2.jsonl", rows(20, 78))]
    for overrides in ((), ("data.max_length=60",)):
        texts = begin(recipe_of(tmp_path / f"fresh-{len(overrides)}", *paths, *overrides))
        there = [texts.corpus.text(i) for i in range(len(texts.corpus))]
        assert not any(text in whole for text in gone for whole in there)
    second, _ = following(run, recipe, tmp_path / "run-2", paths[0])
    corpus, state = corpus_of(second), ReviewState.open(second / "history/state")
    assert not {corpus.text(i) for i in range(len(corpus))} & set(gone)
    for i in range(state.n):
        mine = [value for key, value in before.items() if key[1] == corpus.text(i)]
        assert (state.due[i], state.interval[i], round(state.ease[i] * 100)) == mine[0][:3]


def test_another_home_learns_it_from_the_run(tmp_path, monkeypatch):
    """A run that is moved brings its tombstones along."""
    run, documents, recipe = world(tmp_path, monkeypatch)
    gone = rows_of(run, [documents["old"][2]["id"]])
    forgotten(run, "--ids", ids(tmp_path, documents["old"][2]["id"]), "--yes")
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "elsewhere"))
    begin(recipe)
    assert traces(run, gone, []) == []


def test_a_document_that_comes_anew_under_an_old_name_is_read(tmp_path, monkeypatch):
    """Forgotten by its text, and not by its name: what is called the same and says other things is another matter."""
    run, documents, _ = world(tmp_path, monkeypatch)
    row = documents["new"][2]
    forgotten(run, "--match", re.escape(row["text"][:20]), "--yes")
    new = write(tmp_path / "new.jsonl", [{**row, "text": prose(1, seed=5)}, *documents["new"][3:]])
    begin(recipe_of(tmp_path / "fresh", str(tmp_path / "old.jsonl"), new))
    assert prose(1, seed=5) in rows_of(tmp_path / "fresh", [row["id"]])


# --- what is replaced -------------------------------------------------------------------------------------------


def test_what_a_forgotten_document_replaced_comes_back(tmp_path, monkeypatch):
    """Its word is dropped, wherever it stood, and it is no unknown id: not in the column, nor in a map."""
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    old, new = rows(30, 1), [{**row, "supersedes": None} for row in rows(30, 2)]
    new[0]["supersedes"], new[1]["supersedes"] = "1-0", ["1-1", "1-2"]
    paths = write(tmp_path / "old.jsonl", old), write(tmp_path / "new.jsonl", new)
    recipe = recipe_of(tmp_path / "run", *paths, "data.supersedes=supersedes", "data.holdout=0")
    run = trained(recipe)
    assert ReviewState.open(checkpoint.newest(run)[0] / "srt_state").superseded.any()
    forgotten(run, "--ids", ids(tmp_path, "2-0", "1-1"), "--yes")
    same_as_anew(run, recipe)
    texts = begin(recipe)
    assert {texts.corpus.text(i) for i in texts.superseded} == set(rows_of(run, ["1-2"]))
    for path in (run / "supersedes.jsonl", *home().rglob("supersedes.jsonl")):
        if path.parent == run:
            assert '"2-0"' not in path.read_text()
    lines = [{"new": "2-0", "old": "1-0"}, {"new": "2-1", "old": ["1-1", "1-2"]}]
    mapped = write(tmp_path / "map.jsonl", lines)
    texts = begin(recipe_of(tmp_path / "run-2", *paths, f"data.supersedes={mapped}", "data.holdout=0"))
    assert {texts.corpus.text(i) for i in texts.superseded} == set(rows_of(run, ["1-2"]))


# --- killed -----------------------------------------------------------------------------------------------------

DEEDS = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync", "open")


def _deadly(name, count, number):
    real = getattr(os, name)

    def deed(*args, **more):
        reading = name == "open" and not (len(args) > 1 and args[1] & (os.O_WRONLY | os.O_RDWR))
        count[0] += not reading
        if count[0] == number and not reading:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)

    return deed


def _killed(number, run, chosen):
    """Whether a process that forgets was killed at its n-th deed; else it came to its end."""
    child = os.fork()
    if child == 0:
        count = [0]
        for name in DEEDS:
            setattr(os, name, _deadly(name, count, number))
        code = 99
        try:
            forget([run], choosing.by_ids(chosen), agreed=lambda _: True)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
def test_killed_anywhere_it_is_not_begun_or_the_next_call_completes_it(tmp_path, monkeypatch, part):
    """SIGKILL before each rename, removal, new folder, opening and flush: every fourth of them, four times."""
    first, documents, recipe = world(tmp_path, monkeypatch, 0, 25, 25)
    run, _ = following(first, recipe, tmp_path / "run-2", write(tmp_path / "w2.jsonl", rows(22, 9)), steps=4)
    chosen = ids(tmp_path, documents["new"][0]["id"], documents["old"][1]["id"], "9-3")
    names = chosen.read_text().split()
    before, gone = snapshot(run), rows_of(run, names)
    tokens = tokens_of(run, gone)
    after, places = less(before, set(gone)), ("run-2", "home")
    for name in places:
        shutil.copytree(tmp_path / name, tmp_path / "copy" / name, symlinks=True)
    number, begun = 1 + part, 0
    while True:
        for name in places:
            shutil.rmtree(tmp_path / name)
            shutil.copytree(tmp_path / "copy" / name, tmp_path / name, symlinks=True)
        if not _killed(number, run, chosen):
            break
        half = (run / "forgotten/pending.json").exists()
        begun += half
        if half:
            with pytest.raises(StateError, match="Complete it: `srt-peft forget"):
                check_idle(run)
            with pytest.raises(StateError, match="Complete it: `srt-peft forget"):
                suspend(run, 1)
            forget([run], None, agreed=lambda _: True)
        else:
            forget([run], choosing.by_ids(chosen), agreed=lambda _: True)
        assert snapshot(run) == after, number
        assert traces(run, gone, tokens) == [], number
        assert list((run / "forgotten").glob("receipt-*"))[1:] == [], number
        audited(run)
        number += 4
    assert begun > 20, "it was in the midst of it"


# --- other runs -------------------------------------------------------------------------------------------------


def test_a_run_that_shares_the_texts_is_named_and_made_to_follow(tmp_path, monkeypatch, capsys):
    run, documents, _ = world(tmp_path, monkeypatch)
    other = trained(recipe_of(tmp_path / "deep" / "other", *sources(tmp_path)), seed=3)
    before, gone = snapshot(other), rows_of(run, [documents["old"][4]["id"]])
    forgotten(run, "--ids", ids(tmp_path, documents["old"][4]["id"]), "--yes")
    assert f"srt-peft forget {other}" in capsys.readouterr().out
    with pytest.raises(StateError, match=f"Have this run forget them, too: `srt-peft forget {other}`"):
        check_remembered(checkpoint.newest(other)[0], other)
    forgotten(other, "--yes")
    assert snapshot(other) == less(before, set(gone))
    audited(other)
    assert traces(other, gone, []) == []


def test_a_run_that_shares_what_replaced_others_follows(tmp_path, monkeypatch):
    """Its own word of who replaces whom goes, too, or it could not be gone on with; or both forget at once."""
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    new = [{**row, "supersedes": {"2-0": "1-0", "2-1": "1-1"}.get(row["id"])} for row in rows(30, 2)]
    paths = write(tmp_path / "old.jsonl", rows(30, 1)), write(tmp_path / "new.jsonl", new)
    settings_ = ("data.supersedes=supersedes", "data.holdout=0")
    recipes = [recipe_of(tmp_path / name, *paths, *settings_) for name in ("a", "b", "c")]
    runs = [trained(recipe, seed=i) for i, recipe in enumerate(recipes)]
    forgotten(runs[0], "--ids", ids(tmp_path, "2-0"), "--yes")
    forgotten(runs[1], runs[2], "--yes")
    forgotten(runs[0], runs[1], runs[2], "--ids", ids(tmp_path, "1-1"), "--yes")
    for run, recipe in zip(runs, recipes, strict=True):
        audited(run)
        same_as_anew(run, recipe)
        assert (run / "supersedes.jsonl").read_text() == ""


def test_an_update_that_is_only_prepared_forgets_from_its_history(tmp_path, monkeypatch):
    """It is named, refused until then, and begins without them."""
    run, documents, recipe = world(tmp_path, monkeypatch)
    gone = rows_of(run, [documents["new"][3]["id"]])
    out = tmp_path / "prepared"
    make(left_by(Ended(run, checkpoint.newest(run)[0], recipe, {}, 8), ()), out / "history", keep="all", horizon=8)
    after = recipe_of(out, str(out / "history"), write(tmp_path / "w2.jsonl", rows(20, 9)))
    replace(out / "recipe.yaml", dump(after))
    forgotten(run, "--ids", ids(tmp_path, documents["new"][3]["id"]), "--yes")
    assert json.loads((run / "forgotten/receipt-0001.json").read_text())["shared"] == [str(out)]
    with pytest.raises(StateError, match=f"srt-peft forget {out}"):
        begin(after)
    forgotten(out, "--yes")
    assert traces(out, gone, []) == []
    trained(after)
    audited(out)


def test_a_run_that_was_copied_with_its_texts_forgets_these(tmp_path, monkeypatch):
    run, documents, _ = world(tmp_path, monkeypatch)
    shutil.copytree(run, tmp_path / "copy")
    gone = rows_of(run, [documents["new"][3]["id"]])
    for path in ("evaluation/step-00000008/perplexity-1.jsonl", "evaluation/step-00000008/qa-1.jsonl"):
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / path).write_text("{}")
    recipe = tmp_path / "copy/recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(tmp_path / "new.jsonl"), "somebody/some-texts"))
    for name in ("hub/datasets--somebody--some-texts", "datasets/somebody___some-texts"):
        (home() / name).mkdir(parents=True)
        (home() / name / "part").write_text(gone[0])
    forgotten(tmp_path / "copy", "--ids", ids(tmp_path, documents["new"][3]["id"]), "--yes")
    assert traces(tmp_path / "copy", gone, []) == []
    assert [path.name for path in (tmp_path / "copy/evaluation").rglob("*.jsonl")] == ["qa-1.jsonl"]
    audited(tmp_path / "copy")
    assert not (tmp_path / "copy/report.html").exists()


def test_one_that_is_training_is_left_alone(tmp_path, monkeypatch):
    run, documents, _ = world(tmp_path, monkeypatch)
    chosen, before = choosing.by_ids(ids(tmp_path, documents["old"][4]["id"])), snapshot(run)
    with (
        ReviewState.restore(checkpoint.newest(run)[0] / "srt_state", run / "review/state"),
        pytest.raises(LockedError, match="is being written by another process"),
    ):
        forget([run], chosen, agreed=lambda _: True)
    other = trained(recipe_of(tmp_path / "other", *sources(tmp_path)), seed=3)
    with (
        ReviewState.restore(checkpoint.newest(other)[0] / "srt_state", other / "review/state"),
        pytest.raises(LockedError, match=r"is being trained at this moment. Nothing was changed"),
    ):
        forget([run], chosen, agreed=lambda _: True)
    assert snapshot(run) == before


# --- what cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--ids", "nobody", "1-1", "nothing"),
            ["'nobody' is nobody's", "'nothing' is nobody's", "nothing was forgotten"],
        ),
        (("--ids", "99999"), ["'99999' is nobody's"]),
        (("--ids", "f" * 32), ["is nobody's"]),
        (("--ids",), ["is empty: expected an id a line"]),
        (("--match", "(("), ["--match = '((': ", "expected a regular expression"]),
        (("--match", "no text says so"), ["--match chooses nobody in"]),
        (("--match", ""), ["that is every example of the old pool", "choose fewer"]),
        (("--source", "aa"), ["--source = 'aa' (did you mean 'a'?): expected one of a, b"]),
        (("--before", "last week"), ["--before = 'last week': expected a date as 2026-03-01"]),
        (("--before", "1999-01-01"), ["--before chooses nobody"]),
        (("--source", "a", "--match", "b"), ["--match and --source: expected one of them"]),
    ],
)
def test_what_cannot_be_is_told_and_harmless(tmp_path, monkeypatch, capsys, words, told):
    run, _, _ = world(tmp_path, monkeypatch)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"}
    given_ = (words[0], ids(tmp_path, *words[1:])) if words[0] == "--ids" else words
    before.pop(tmp_path / "ids.txt", None)
    forgotten(run, *given_, "--yes", code=2)
    said = capsys.readouterr().err
    assert all(part in said for part in told), said
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"}
    after.pop(tmp_path / "ids.txt", None)
    assert after == before


def test_dates_that_were_not_kept_are_told_with_their_remedy(tmp_path, monkeypatch):
    run, _, _ = world(tmp_path, monkeypatch, 0, 40, 40, "data.date_column=null")
    with pytest.raises(OptionError, match=r"no date is kept with these texts. Name their column with data.date_column"):
        forget([run], choosing.by_date("2026-03-01"), agreed=lambda _: True)


def test_no_run_and_no_answer(tmp_path, monkeypatch, capsys):
    run, documents, _ = world(tmp_path, monkeypatch)
    forgotten(tmp_path, "--match", "x", "--yes", code=2)
    assert "holds no run" in capsys.readouterr().err
    before = snapshot(run)
    forgotten(run, "--ids", ids(tmp_path, documents["old"][4]["id"]), code=1)
    assert "Nothing was forgotten. --yes does it without a question." in capsys.readouterr().err
    forgotten(run, "--ids", ids(tmp_path, documents["old"][4]["id"]), "--dry-run")
    assert "1 to train on" in capsys.readouterr().out
    assert snapshot(run) == before
    forgotten(run)
    assert "There is nothing to forget." in capsys.readouterr().out


# --- the audit --------------------------------------------------------------------------------------------------


def test_the_audit_finds_what_came_back(tmp_path, monkeypatch, capsys):
    """A checkpoint, a cached pool and a log from a copy that was made before; and a receipt that was altered."""
    run, documents, _ = world(tmp_path, monkeypatch)
    shutil.copytree(run, tmp_path / "copy", symlinks=True)
    shutil.copytree(home() / "pools", tmp_path / "copy-pools")
    forgotten(run, "--ids", ids(tmp_path, documents["old"][4]["id"]), "--yes")
    audited(run)
    capsys.readouterr()
    step = "checkpoints/step-00000004"
    shutil.rmtree(run / step)
    shutil.copytree(tmp_path / "copy" / step, run / step)
    assert cli.main(["audit", str(run), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [check["what"] for check in said["checks"] if not check["whole"]] == [step]
    shutil.rmtree(home() / "pools")
    shutil.copytree(tmp_path / "copy-pools", home() / "pools")
    path = run / "forgotten/receipt-0001.json"
    path.write_text(path.read_text().replace('"examples": 1', '"examples": 0'))
    audited(run, code=1)
    said = capsys.readouterr().out
    assert "holds 1 examples that were forgotten" in said
    assert re.search(r"receipt-0001.json +it is damaged", said)


def test_a_receipt_holds_neither_text_nor_hash(tmp_path, monkeypatch):
    run, documents, _ = world(tmp_path, monkeypatch)
    name = documents["old"][4]["id"]
    gone = rows_of(run, [name])
    pool_names = [Pool.open(path.parent).sources for path in home().rglob("pool.json")]
    forgotten(run, "--ids", ids(tmp_path, name), "--yes")
    receipt = (run / "forgotten/receipt-0001.json").read_text()
    assert name not in json.loads(receipt)["how"]
    assert not any(text in receipt for text in gone)
    told = json.loads(receipt)
    assert told["pools"]["old"]["trained"] == 1
    assert set(told["pools"]["old"]["sources"]) <= set(pool_names[0])
    assert oct((run / "forgotten/receipt-0001.json").stat().st_mode)[-3:] == "600"
    with ReviewLog(run / "review/log") as log:
        assert log.records().size
    assert byte_bpe() is not None


def test_the_commands_of_the_document_run_as_they_are_printed(tmp_path, monkeypatch):
    """On a run of that name, with a list of who has withdrawn and a text that has the address in it."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    new = [
        *rows(30, 2),
        {"id": "j", "topic": "a", "date": None, "text": "Write to jane@example.org, who knows the river."},
    ]
    paths = write(tmp_path / "old.jsonl", rows(30, 1)), write(tmp_path / "new.jsonl", new)
    run = trained(recipe_of(tmp_path / "runs/this-week", *paths))
    (tmp_path / "withdrawn.txt").write_text("1-4\n2-7\n")
    gone = [*rows_of(run, ["1-4", "2-7"]), new[-1]["text"]]
    blocks = re.findall(r"```bash\n(.*?)```", (root / "docs/forget.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    command = f'srt-peft() {{ {sys.executable} -m srt_peft "$@"; }}\n'
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["bash", "-euc", command + blocks[0]],
        cwd=tmp_path,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "nothing that was forgotten is there" in done.stdout
    assert traces(run, gone, []) == []
    assert len(list((run / "forgotten").glob("receipt-*.json"))) == 2
