"""`srt-peft plan`, and the summary of a run: the same sentences, before and after."""

import json
import os
import shutil
from pathlib import Path

import pytest

from srt_peft import cli
from srt_peft.data.pool import key_of
from srt_peft.training.loop import train
from srt_peft.training.recipe import dump
from tests.training.test_loop import metrics, recipe, world  # noqa: F401 - a fixture


def plan(world, capsys, *words, code=0):  # noqa: F811
    """What `srt-peft plan` prints of the world's recipe: (stdout, stderr)."""
    path = world / "plan.yaml"
    path.write_text(dump(recipe(world, world / "planned")))
    assert cli.main(["plan", str(path), *words]) == code
    return capsys.readouterr()


def test_it_says_what_the_update_comes_to(world, capsys):  # noqa: F811
    out, _ = plan(world, capsys)
    assert "review.preset: auto stands for old.order: rounds" in out
    assert "12 steps of 10 examples:" in out
    assert "Most old examples are not visited" in out
    assert "data.old is one source" in out
    assert not (world / "planned").exists()


def test_it_writes_the_texts_cache_and_nothing_else(world, tmp_path, capsys, monkeypatch):  # noqa: F811
    """Of the run's folder nothing, no references; and the base's weights are not even read."""
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("a model"))
    plan(world, capsys, "review.retention=high", f"output={tmp_path / 'run'}")
    assert os.listdir(tmp_path) == ["home"]  # noqa: PTH208
    assert [path.name for path in Path(tmp_path / "home").iterdir()] == ["pools"]


def test_programs_read_it_too(world, capsys):  # noqa: F811
    out, _ = plan(world, capsys, "--format", "json", "review.retention=high", "training.warmup_steps=99")
    told = json.loads(out)
    assert set(told) == {"review", "figures", "notes", "said"}
    assert told["review"]["old"]["quiz"] == 4
    assert told["figures"]["steps"] == told["figures"]["known"] == 12
    assert any(line.startswith("The quiz costs") for line in told["said"])
    assert "training.warmup_steps = 99 is longer than the run" in told["said"][-1]


MISTAKES = {
    "model.base=nobody/no-such-model": "is neither a folder here nor a model that the hub gives",
    "data.new=gone.jsonl": "gone.jsonl does not exist",
    "review.decks=many": "review.decks = 'many': expected one of",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_what_cannot_be_planned_is_told(world, capsys, monkeypatch, override):  # noqa: F811
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    _, err = plan(world, capsys, override, code=2)
    assert MISTAKES[override] in err


def superseding(world):  # noqa: F811
    """Texts with names, of which the new say which old ones they replace."""
    for name in ("old", "new"):
        rows = [json.loads(line) for line in (world / f"{name}.jsonl").read_text().splitlines()]
        for i, row in enumerate(rows):
            row["id"] = f"{name}-{i}"
            row["supersedes"] = f"old-{i}" if name == "new" and i < 9 else None
        (world / f"named-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [f"data.{name}={world / f'named-{name}.jsonl'}" for name in ("old", "new")]


def test_a_run_ends_with_its_figures(world, tmp_path, capsys):  # noqa: F811
    """As its metrics have them; and with the texts of the first that were superseded, of which the file has all ids."""
    asked = recipe(world, tmp_path / "run", *superseding(world), "data.supersedes=supersedes")
    train(asked)
    err = capsys.readouterr().err
    told = json.loads((tmp_path / "run/summary.json").read_text())
    lines = [line for line in metrics(tmp_path / "run") if "loss" in line]
    figures = told["figures"]
    assert (figures["measured"], figures["known"], figures["steps"]) == (True, 12, 12)
    assert figures["trained_tokens"] == sum(line["tokens"] for line in lines)
    assert figures["old"]["visits"] == pytest.approx(sum(line["old"] for line in lines) / figures["old"]["examples"])
    assert figures["superseded"] == len(told["superseded"]) > 5
    assert len(told["superseded_texts"]) == 5
    assert all(text in err for text in (*told["superseded_texts"], *told["said"], "What the schedule was:"))
    assert "Rehearsed" not in err


def test_what_was_planned_is_what_was_drawn(world, tmp_path):  # noqa: F811
    """The rehearsal draws by the recipe's own scheduler, and where all is recalled that draws alike."""
    from srt_peft.training.base import load_tokenizer
    from srt_peft.training.preset import resolve
    from srt_peft.training.rehearsal import pools_of, rehearse
    from srt_peft.training.texts import read

    kind = ["review.recall=relative", "review.thresholds=[90,91,92,93,94]"]  # nothing counts as lost
    asked = recipe(world, tmp_path / "run", *kind)
    train(asked)
    texts = read(asked, load_tokenizer(asked.model.base))
    found = rehearse(resolve(asked, texts.sources), pools_of(asked, texts))
    figures = json.loads((tmp_path / "run/summary.json").read_text())["figures"]
    for pool, side in (("old", found.old), ("new", found.new)):
        ours = figures[pool]
        assert (ours["visits"], ours["never"]) == (side.visits, side.never)
        assert ours["backlog"] == list(side.backlog)
    assert figures["trained_tokens"] == found.trained_tokens


def test_of_a_log_that_lacks_steps_nobody_is_said_to_be_unvisited(world, tmp_path):  # noqa: F811
    """A damaged log is set aside on resume, and the new one begins there; what the metrics know stays whole."""
    run = tmp_path / "run"
    train(recipe(world, run, "training.steps=8"))
    whole = json.loads((run / "summary.json").read_text())["figures"]
    shutil.rmtree(run / "checkpoints/step-00000008")
    (run / "review/log").write_bytes(b"torn")
    train(recipe(world, run, "training.steps=8"), resume=True)
    part = json.loads((run / "summary.json").read_text())["figures"]
    assert (part["known"], part["old"]["never"]) == (8, None)
    assert whole["old"]["never"] is not None
    assert part["old"]["visits"] == whole["old"]["visits"]


def test_one_of_many_runs_says_nothing_and_keeps_it(world, tmp_path, capsys):  # noqa: F811
    train(recipe(world, tmp_path / "run", "training.steps=2"), terse=True)
    assert "What the schedule was" not in capsys.readouterr().err
    assert json.loads((tmp_path / "run/summary.json").read_text())["said"]


def test_what_no_longer_holds_is_not_measured(world, tmp_path, capsys):  # noqa: F811
    """A superseded document's held-out pieces are left out, by the run and by the suite, and that is told."""
    from srt_peft.training.base import load_tokenizer
    from srt_peft.training.texts import corpora, read

    named = [*superseding(world), "data.holdout=0.3"]
    asked = recipe(world, tmp_path / "run", *named, "data.supersedes=supersedes")
    tokenizer = load_tokenizer(asked.model.base)
    gone = {key_of(f"old-{i}") for i in range(9)}
    before = read(recipe(world, tmp_path / "run", *named), tokenizer).held_out["old"]
    held = sum(row.tobytes() in gone for row in before.key)
    assert 0 < held < len(before)
    texts = read(asked, tokenizer)
    for after in (texts.held_out["old"], corpora(asked, tokenizer)[1]["old"]):
        assert (len(after), texts.outdated) == (len(before) - held, held)
        assert not gone & {row.tobytes() for row in after.key}
        assert after.fingerprint != before.fingerprint
    out = plan(world, capsys, *named, "data.supersedes=supersedes").out
    assert f"; {len(after)} more are held out, " in out
    assert f"{held} held-out examples of data.old are of superseded documents" in out
    assert "word for word" not in out


def test_what_supersedes_names_and_cannot_mean_alone_is_told(world, capsys):  # noqa: F811
    """Names that documents share, and what is gone that promoted rows name; ids without a text are told as before."""
    named = superseding(world)
    path = world / "named-old.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[20]["id"], rows[30]["supersedes"] = "old-3", ["left-last-year", "long-gone"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = plan(world, capsys, *named, "data.supersedes=supersedes", "data.holdout=0").out
    assert "all who bear them are set aside: 'old-3' is 2 documents." in out
    assert (
        "2 documents that old texts once replaced are not in data.old any more, so nothing of them is set aside: "
        "'left-last-year', 'long-gone'."
    ) in out


def test_documents_with_one_name_and_two_texts_are_told(world, capsys):  # noqa: F811
    """Unless it is said who replaces whom."""
    named = superseding(world)
    rows = (world / "named-new.jsonl").read_text().replace('"new-1', '"old-1')
    (world / "named-new.jsonl").write_text(rows)
    assert "11 documents of data.new are called as one of data.old" in " ".join(plan(world, capsys, *named).out.split())
    assert "are called as" not in plan(world, capsys, *named, "data.supersedes=supersedes").out
