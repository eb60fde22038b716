"""What happens to runs in a person's hands: two at once, moved, changed, with texts that overlap, or gone wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import transformers

from srt_peft import LockedError, OptionError, ReviewState, SRTError
from srt_peft.data import Corpus, Pool
from srt_peft.training.base import load_tokenizer
from srt_peft.training.loop import train
from srt_peft.training.texts import corpora
from tests.data.helpers import prose
from tests.training.test_loop import ROOT, command, logged, metrics, recipe, world  # noqa: F401 - a fixture


def said(capsys):
    return " ".join(capsys.readouterr().err.split())


# --- held out, and never trained on ---------------------------------------------------------------------------------


def revised(world):  # noqa: F811
    """Two snapshots of the same documents, each with its last paragraph rewritten in the newer one."""
    for name in ("before", "after"):
        texts = [prose(3, seed=300 + i) + "\n\n" + prose(3, seed=400 + i + 500 * (name == "after")) for i in range(60)]
        (world / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return f"data.old={world / 'before.jsonl'}", f"data.new={world / 'after.jsonl'}"


def test_held_out_text_is_trained_on_in_neither_pool(world, tmp_path, capsys):  # noqa: F811
    """A document that was revised is held out of one snapshot and trained on in the other: its examples leave."""
    snapshots = revised(world)
    asked = recipe(world, tmp_path / "run", *snapshots, "data.holdout=0.3", "data.max_length=24", "training.steps=1")
    corpus, held_out = corpora(asked, load_tokenizer(asked.model.base))
    trained = {row.tobytes() for row in corpus.identity}
    for pool in held_out.values():
        assert len(pool)
        assert not trained & {row.tobytes() for row in pool.identity}
        texts = [pool.text(i) for i in range(len(pool))]
        assert all(len(row) == length for row, length in zip(pool, pool.lengths, strict=True))
        assert len(set(texts)) == len(texts)
    whole = Pool.open(held_out["new"].folder)
    left = len(whole) - len(held_out["new"])
    assert left > 0, "the snapshots overlap, else this shows nothing"
    train(asked)
    assert f"{left} more were held out of data.new, and are trained on in the other text" in said(capsys)


def test_a_pool_of_some_rows_has_their_tokens_and_texts(tmp_path):
    pool = Pool.create(tmp_path / "pool", [[1, 2, 3], [4], [5, 6], [7, 8]], ["a", "bee", "", "dü"])
    some = pool.only(np.array([0, 2, 3]))
    assert [row.tolist() for row in some] == [[1, 2, 3], [5, 6], [7, 8]]
    assert [some.text(i) for i in range(3)] == ["a", "", "dü"]
    assert np.array_equal(some.identity, pool.identity[[0, 2, 3]])
    some.check_valid()
    assert len(Corpus(pool, pool).unseen(pool)) == 0


def test_without_held_out_text_there_is_no_perplexity(world, tmp_path, capsys):  # noqa: F811
    train(recipe(world, tmp_path / "run", "data.holdout=0", "evaluation.every=1", "training.steps=2"))
    assert "no text is held out whose perplexity could be measured" in said(capsys)
    assert [line["step"] for line in metrics(tmp_path / "run")] == [0, 1]


@pytest.mark.parametrize(("batch", "told"), [(4, True), (5, False)])
def test_a_batch_without_room_for_old_ones_is_told(world, tmp_path, capsys, batch, told):  # noqa: F811
    """⌊0.2·4⌋ is 0: an update that nobody meant to be without replay."""
    train(recipe(world, tmp_path / "run", f"training.batch_size={batch}", "training.steps=1"))
    assert ("no slot is kept for old ones" in said(capsys)) is told
    (drawn,) = [line["old"] for line in metrics(tmp_path / "run") if "old" in line]
    assert (drawn == 0) is told


def test_it_is_told_what_the_texts_became(world, tmp_path, capsys):  # noqa: F811
    train(recipe(world, tmp_path / "run", "training.steps=1"))
    pool = Pool.open(tmp_path / "run/pools/old/train")
    told = f"old: 60 documents (0 empty) make {len(pool)} examples of {pool.lengths.sum():,} tokens"
    assert told in said(capsys)


# --- ppl ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["true", "false"])
def test_ppl_begins_with_what_the_base_finds_hardest(world, tmp_path, packing):  # noqa: F811
    """Every example has the base's own NLL before the first draw, and the first draw is of the highest."""
    run, chosen = tmp_path / "run", ("review.scheduler=ppl", "training.warmup_steps=1", f"data.packing={packing}")
    train(recipe(world, run, *chosen, "training.steps=1", "training.learning_rate=1e-9"))
    state = ReviewState.open(run / "checkpoints/step-00000001/srt_state")
    asked = recipe(world, run)
    corpus, _ = corpora(asked, load_tokenizer(asked.model.base))
    model = transformers.AutoModelForCausalLM.from_pretrained(world / "base").eval()
    theirs = []
    with torch.no_grad():
        for i in range(len(corpus)):
            ids = torch.tensor(np.array(corpus[i], dtype=np.int64))[None]
            theirs.append(model(ids, labels=ids).loss.item())
    assert state.signal == pytest.approx(np.array(theirs), rel=1e-4)
    drawn = np.flatnonzero(state.visits)
    old, new = drawn[drawn < state.n_old], drawn[drawn >= state.n_old]
    for part, ids in ((slice(0, state.n_old), old), (slice(state.n_old, None), new)):
        assert ids.size
        assert state.signal[ids].min() >= np.sort(state.signal[part])[-ids.size] - 1e-6


def test_ppl_resumed_is_not_scored_again(world, tmp_path, capsys):  # noqa: F811
    """What the first look found is in the state; a run that goes on draws as if it had never stopped."""
    chosen = ("review.scheduler=ppl", "checkpoints.every=3", "training.steps=6")
    train(recipe(world, tmp_path / "whole", *chosen))
    shutil.copytree(tmp_path / "whole", tmp_path / "part", symlinks=True)
    shutil.rmtree(tmp_path / "part/checkpoints/step-00000006")
    assert "scores each of the" in said(capsys)
    train(recipe(world, tmp_path / "part", *chosen), resume=True)
    assert "scores each of the" not in said(capsys)
    assert metrics(tmp_path / "part") == metrics(tmp_path / "whole")
    final = "checkpoints/step-00000006/srt_state/columns-0.safetensors"
    assert (tmp_path / "part" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()


# --- going wrong ----------------------------------------------------------------------------------------------------


def test_a_gradient_that_is_no_number_ends_the_run(world, tmp_path):  # noqa: F811
    """One such step would make every weight NaN, and the checkpoints after it push out the good ones."""
    run = tmp_path / "run"
    spoiled = ("training.learning_rate=1e30", "training.warmup_steps=0", "checkpoints.every=1")
    with pytest.raises(SRTError, match=r"The gradient of step \d+ is \w+, .* nothing was learned"):
        train(recipe(world, run, *spoiled))
    losses = [line["loss"] for line in metrics(run) if "loss" in line]
    assert np.all(np.isfinite(losses))
    assert max((run / "checkpoints").iterdir()).name == f"step-{len(losses):08d}"


def test_two_runs_at_once_in_one_folder(world, tmp_path):  # noqa: F811
    """The second is refused, before and after the first checkpoint, and the first ends as if there was none."""
    run = tmp_path / "run"
    path = command(world, run, "checkpoints.every=4", "training.steps=60")[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "srt_peft", "train", path],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not logged(run):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)  # somewhere on its way
        for resume in (False, True):
            with pytest.raises(LockedError, match="is being written by another process"):
                train(recipe(world, run), resume=resume)
        process.send_signal(signal.SIGCONT)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
    assert [line["step"] for line in metrics(run) if "loss" in line] == list(range(60))


# --- going on with changes ------------------------------------------------------------------------------------------


def test_changes_that_are_allowed_are_made(world, tmp_path):  # noqa: F811
    """Another scheduler, another share and another batch are drawn with, and not only written down."""
    run = tmp_path / "run"
    train(recipe(world, run, "training.steps=4"))
    changes = ("review.scheduler=uniform", "review.old_fraction=0.5", "training.batch_size=8", "training.steps=8")
    assert train(recipe(world, run, *changes), resume=True, allow_changes=True) == 0
    assert [(line["old"], line["new"]) for line in metrics(run) if "loss" in line][4:] == [(4, 4)] * 4
    saved = json.loads((run / "checkpoints/step-00000008/srt_state/state.json").read_text())["scheduler"]
    assert (saved["name"], saved["options"]["batch_size"]) == ("uniform", 8)


def test_a_review_state_is_not_put_on_other_texts(world, tmp_path):  # noqa: F811
    """Even where changes are allowed; the same number of examples is no excuse."""
    run = tmp_path / "run"
    train(recipe(world, run, "training.steps=4"))
    other = world / "other.jsonl"
    other.write_text((world / "new.jsonl").read_text().replace("BRIDGE", "BRIBES"))
    with pytest.raises(OptionError, match="other examples than those of the checkpoint's review state"):
        train(recipe(world, run, f"data.new={other}", "training.steps=8"), resume=True, allow_changes=True)


def test_a_run_that_was_moved_goes_on_where_it_lies(world, tmp_path):  # noqa: F811
    """`train RUN/recipe.yaml --resume` means that run, wherever its recipe says it was."""
    before, after = tmp_path / "before", tmp_path / "it's hère"
    train(recipe(world, before, "training.steps=4", "checkpoints.every=2"))
    shutil.rmtree(before / "checkpoints/step-00000004")
    before.rename(after)
    done = subprocess.run(
        [sys.executable, "-m", "srt_peft", "train", str(after / "recipe.yaml"), "--resume"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Going on from" in done.stderr
    assert (after / "checkpoints/step-00000004/MANIFEST.json").is_file()
    assert not before.exists()


def test_a_home_is_meant_by_a_tilde(world, tmp_path, monkeypatch):  # noqa: F811
    """In every place that a recipe names, as in the texts' paths; and none is made that is called so."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(world / "base", tmp_path / "base")
    asked = recipe(world, "~/run", "model.base=~/base", "training.steps=1")
    assert (asked.output, asked.model.base) == (str(tmp_path / "run"), str(tmp_path / "base"))
    assert train(asked) == 0
    assert (tmp_path / "run/checkpoints/step-00000001").is_dir()


def test_what_a_killed_save_left_goes_with_the_next(world, tmp_path):  # noqa: F811
    """Also where it is of a step that is not saved again: it may be gigabytes."""
    left = tmp_path / "run/checkpoints/.step-00000003.part"
    (left / "trainer").mkdir(parents=True)
    train(recipe(world, tmp_path / "run", "training.steps=1"))
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000001"]


# --- what is printed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_the_lines_that_load_the_result_do(world, tmp_path, capsys, tuning):  # noqa: F811
    """As printed, whatever the folder is called; and a base that was trained whole may use its cache again."""
    train(recipe(world, tmp_path / 'it\'s "here"', f"model.tuning={tuning}", "training.steps=1"))
    lines = [line[4:] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    names: dict = {}
    exec("\n".join(lines), names)
    assert names["model"].config.use_cache is True


def test_asked_to_stop_it_answers_at_once(world, tmp_path):  # noqa: F811
    """A step may take a minute, and nobody should ask twice for want of an answer."""
    run = tmp_path / "run"
    path = command(world, run, "training.steps=100000")[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "srt_peft", "train", path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Stopping after this step, once it is saved. Once more leaves at once." in err
    assert "Stopped after" in out
