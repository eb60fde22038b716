"""Forgetting in the life of a run: stopped, forgotten from, gone on with, loaded, and followed by the next update."""

import json
import random
import shutil

import pytest

from srt_peft import ReviewState, StateError, cli
from srt_peft.lifecycle import choosing
from srt_peft.lifecycle.following import follow
from srt_peft.lifecycle.forget import forget
from srt_peft.training import checkpoint
from srt_peft.training.loop import train
from tests.lifecycle.forgetful import pools_of, rows_of, tokens_of, traces
from tests.training.test_loop import recipe, world  # noqa: F401 - a fixture


@pytest.fixture
def named(world, tmp_path, monkeypatch):  # noqa: F811
    """Texts whose documents have names, and a cache of their own."""
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    for name in ("old", "new"):
        lines = [json.loads(line) for line in (world / f"{name}.jsonl").read_text().splitlines()]
        rows = [{**row, "id": f"{name}-{i}", "topic": "ab"[i % 2]} for i, row in enumerate(lines)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [f"data.{name}={tmp_path / f'{name}.jsonl'}" for name in ("old", "new")]


SETTINGS = ("checkpoints.keep=9", "data.source_column=topic", "evaluation.every=null")


def chosen(folder):
    (folder / "ids.txt").write_text("old-3\nnew-4\nnew-9\n")
    return folder / "ids.txt"


def test_a_stopped_run_forgets_goes_on_is_loaded_and_followed(world, named, tmp_path):  # noqa: F811
    """Also by a run that shares its texts, which is told to follow; nobody comes back in the next update."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    runs = [tmp_path / "one", tmp_path / "two"]
    asked = [recipe(world, run, *SETTINGS, *named, f"training.seed={i}") for i, run in enumerate(runs)]
    for run, each in zip(runs, asked, strict=True):
        assert train(each) == 0
        shutil.rmtree(checkpoint.newest(run)[0])
    names = ["old-3", "new-4", "new-9"]
    gone = rows_of(runs[0], names)
    tokens = tokens_of(runs[0], gone)
    assert cli.main(["forget", str(runs[0]), "--ids", str(chosen(tmp_path)), "--yes"]) == 0
    assert traces(runs[0], gone, tokens) == []
    assert len(checkpoint.all_of(runs[0])) == 2
    assert train(asked[0], resume=True) == 0
    with pytest.raises(StateError, match=f"srt-peft forget {runs[1]}"):
        train(asked[1], resume=True)
    assert cli.main(["forget", str(runs[1]), "--yes"]) == 0
    assert train(asked[1], resume=True) == 0
    for run in runs:
        assert cli.main(["audit", str(run)]) == 0
        for path in checkpoint.all_of(run):
            base = AutoModelForCausalLM.from_pretrained(world / "base")
            assert PeftModel.from_pretrained(base, path) is not None
    again = (tmp_path / "new.jsonl").read_text().splitlines() + (tmp_path / "old.jsonl").read_text().splitlines()
    fresh = [json.dumps({"id": f"w-{i}", "topic": "a", "text": f"week {i} brings {i * i} things"}) for i in range(12)]
    lines = [*again, *fresh, *again]
    random.Random(0).shuffle(lines)
    (tmp_path / "w2.jsonl").write_text("".join(f"{line}\n" for line in lines))
    after, made = follow(runs[0], [str(tmp_path / "w2.jsonl")], out=tmp_path / "three")
    assert made.lost == 0
    assert train(after) == 0
    assert traces(tmp_path / "three", gone, tokens) == []
    pools = pools_of(tmp_path / "three")
    fresh = sum(len(pools["new", part]) for part in ("train", "held_out"))
    assert fresh == 12, "who was there before is not new, and who was forgotten is nobody"


def test_clusters_and_references_are_carried_over(world, named, tmp_path):  # noqa: F811
    """Clusters are those of the texts as they were, less those who are gone: the run goes on with its decks."""
    pytest.importorskip("sklearn")
    settings = ("checkpoints.keep=9", "evaluation.every=null", "data.clusters=3")
    asked, run = recipe(world, tmp_path / "one", *settings, *named), tmp_path / "one"
    assert train(asked) == 0
    shutil.rmtree(checkpoint.newest(run)[0])
    assert list((tmp_path / "home/references").glob("*.safetensors"))
    before, clusters = (
        ReviewState.open(checkpoint.newest(run)[0] / "srt_state"),
        set((tmp_path / "home/clusters").iterdir()),
    )
    gone = rows_of(run, ["old-3", "new-4", "new-9"])
    forget([run], choosing.by_ids(chosen(tmp_path)), agreed=lambda _: True)
    assert traces(run, gone, []) == []
    assert not clusters & set((tmp_path / "home/clusters").iterdir())
    assert not list((tmp_path / "home/references").glob("*.safetensors"))
    state = ReviewState.open(checkpoint.newest(run)[0] / "srt_state")
    decks = {row.tobytes(): deck for row, deck in zip(before.identity, before.deck, strict=True)}
    assert [decks[row.tobytes()] for row in state.identity] == state.deck.tolist()
    assert train(asked, resume=True) == 0
