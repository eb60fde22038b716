"""A run that goes on: by a version that knows more, on other decks, and with references that it lacks."""

import json
import shutil

import numpy as np
import pytest

from srt_peft import OptionError, ReviewState, load_scheduler, make_scheduler
from srt_peft.review import files
from srt_peft.training import checkpoint
from srt_peft.training.loop import train
from tests.training.test_loop import SAME, metrics, recipe, world  # noqa: F401 - a fixture
from tests.training.test_plan import superseding
from tests.training.test_references import home, of_the_base, passes, reference  # noqa: F401 - a fixture

SHORT = ("training.steps=8", "evaluation.every=null")
HALF, FINAL = "checkpoints/step-00000004", "checkpoints/step-00000008"


def halved(whole, to):
    """A copy of a run, as it was after four of its eight steps."""
    shutil.copytree(whole, to, symlinks=True)
    shutil.rmtree(to / FINAL)
    return to


def two_sources(world, names=("one", "two"), cut=30):  # noqa: F811
    """The old text in two sources, whose rows name them; and the new text in the first."""
    for file in ("old", "new"):
        rows = [json.loads(line) for line in (world / f"{file}.jsonl").read_text().splitlines()]
        told = [{**row, "topic": names[file == "old" and i >= cut]} for i, row in enumerate(rows)]
        (world / f"topics-{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    return [f"data.{file}={world / f'topics-{file}.jsonl'}" for file in ("old", "new")] + ["data.source_column=topic"]


# --- by a version that knows more -----------------------------------------------------------------------------------

LATER = {
    "review": {"decks", "deck_floor", "reference", "reference_sample", "retention"},
    "old": {"quiz", "quiz_every", "quiz_tokens", "explore"},
    "data": {"source_column", "id_column", "date_column", "clusters"},
}
"""The keys that recipes did not have before a preset stood for anything, by section."""


def older(run):
    """Make the checkpoint of a run under the paper's preset what a version without decks would have written."""
    folder = run / HALF
    trainer = folder / "trainer/trainer.json"
    saved = json.loads(trainer.read_text())
    review, data = saved["recipe"]["review"], saved["recipe"]["data"]
    for section, name in ((review, "review"), (review["old"], "old"), (data, "data")):
        for key in LATER[name]:
            del section[key]
    saved["identity"].pop("decks")
    trainer.write_text(json.dumps(saved))
    with load_scheduler(folder / "srt_state") as ours:
        state = ours.state
        theirs = make_scheduler("srt", old=state.n_old, new=state.n_new, batch_size=10, identity=state.identity)
        for name, column in theirs.state.columns.items():
            column[...] = state.columns[name]
    shutil.rmtree(folder / "srt_state")
    theirs.save(folder / "srt_state")
    said = json.loads((folder / "srt_state/state.json").read_text())
    for key in ("extras", "check"):
        del said[key]
    for key in {*LATER["review"], *LATER["old"]} & said["scheduler"]["options"].keys():
        del said["scheduler"]["options"][key]
    files.write_manifest(folder / "srt_state", said)
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    manifest["files"] = {name: checkpoint.described(folder / name) for name in manifest["files"]}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))


def test_a_run_from_before_there_were_decks_goes_on_as_the_papers(world, tmp_path):  # noqa: F811
    """Without changes allowed, to the same bytes; its text has two decks now, of which it knew nothing."""
    asked = (*SHORT, "review.preset=paper")
    train(recipe(world, tmp_path / "whole", *asked))
    run = halved(tmp_path / "whole", tmp_path / "part")
    older(run)
    assert train(recipe(world, run, *asked), resume=True) == 0
    ours, theirs = (ReviewState.open(at / FINAL / "srt_state").columns for at in (run, tmp_path / "whole"))
    assert ours.keys() < theirs.keys()
    assert all(np.array_equal(column, theirs[name], equal_nan=True) for name, column in ours.items())
    assert (run / FINAL / SAME[0]).read_bytes() == (tmp_path / "whole" / FINAL / SAME[0]).read_bytes()


def test_what_such_a_run_could_have_said_is_compared(world, tmp_path):  # noqa: F811
    """Another preset is a change; that its text has decks is none."""
    train(recipe(world, tmp_path / "whole", *SHORT, "review.preset=paper"))
    run = halved(tmp_path / "whole", tmp_path / "part")
    older(run)
    with pytest.raises(OptionError) as told:
        train(recipe(world, run, *SHORT), resume=True)
    assert "review.recall is relative here and absolute in the checkpoint" in str(told.value)
    assert "the decks" not in str(told.value)


def test_decks_that_appear_are_a_change(world, tmp_path):  # noqa: F811
    """Of a run that had one, and so kept none."""
    asked = (*SHORT, *two_sources(world, names=("one", "one")), "review.decks=off", "review.reference=best")
    train(recipe(world, tmp_path / "run", *asked))
    assert "deck" not in ReviewState.open(tmp_path / "run" / FINAL / "srt_state").columns
    shutil.rmtree(tmp_path / "run" / FINAL)
    two_sources(world)
    with pytest.raises(OptionError, match=r"the division into decks is .* \(other sources, or other clusters\)"):
        train(recipe(world, tmp_path / "run", *asked), resume=True)


def test_a_review_state_is_not_put_on_other_decks(world, tmp_path):  # noqa: F811
    """Even where changes are allowed: what each has lost is of the decks as they were. Other names are none."""
    asked = (*SHORT, *two_sources(world))
    train(recipe(world, tmp_path / "whole", *asked))
    run = halved(tmp_path / "whole", tmp_path / "part")
    two_sources(world, cut=20)
    with pytest.raises(OptionError, match=r"in other decks .* Begin a new run with another output"):
        train(recipe(world, run, *asked), resume=True, allow_changes=True)
    two_sources(world, names=("eins", "zwei"))
    assert train(recipe(world, run, *asked), resume=True, allow_changes=True) == 0


def test_its_summary_is_the_same_file(world, tmp_path):  # noqa: F811
    """Also where options are by pool, which a checkpoint sorts."""
    asked = (*SHORT, "review.old.order=epoch")
    train(recipe(world, tmp_path / "whole", *asked))
    run = halved(tmp_path / "whole", tmp_path / "part")
    train(recipe(world, run, *asked), resume=True)
    assert (run / "summary.json").read_bytes() == (tmp_path / "whole/summary.json").read_bytes()


# --- with references that it lacks ----------------------------------------------------------------------------------


def withdrawn(world, tmp_path, *more):  # noqa: F811
    """A run half-way, in which some examples were superseded, and its recipe without what replaced them; one deck."""
    named = [f"{key}=[{{path: {path}, source: all}}]" for key, path in (s.split("=") for s in superseding(world))]
    base = (*SHORT, *named, "review.reference=base", *more)
    train(recipe(world, tmp_path / "whole", *base, "data.supersedes=supersedes"))
    gone = json.loads((tmp_path / "whole/summary.json").read_text())["superseded"]
    run = halved(tmp_path / "whole", tmp_path / "part")
    assert np.isnan(reference(run, step=4)[gone]).all()
    return recipe(world, run, *base), run, gone


def test_who_is_superseded_no_more_is_scored_by_the_base(world, tmp_path):  # noqa: F811
    """With the adapter off, though it has learned; once in the metrics, though the resume was itself resumed."""
    asked, run, gone = withdrawn(world, tmp_path, "training.learning_rate=0.05")
    for _ in range(2):
        shutil.rmtree(run / FINAL, ignore_errors=True)
        train(asked, resume=True, allow_changes=True)
    found = reference(run, step=8)
    assert found[gone] == pytest.approx(of_the_base(world, asked)[gone], rel=1e-4)
    assert [(line["step"], line["examples"]) for line in passes(run)] == [(-1, found.size - len(gone)), (4, len(gone))]


def test_where_the_beginning_is_gone_the_first_signal_serves(world, tmp_path, capsys):  # noqa: F811
    """A continued adapter has moved on: nobody is scored by what is no beginning, and that is told."""
    train(recipe(world, tmp_path / "first", *SHORT))
    adapter = tmp_path / "first" / FINAL
    asked, run, gone = withdrawn(world, tmp_path, f"model.adapter={adapter}", "review.old_fraction=0.8")
    capsys.readouterr()
    train(asked, resume=True, allow_changes=True)
    told = " ".join(capsys.readouterr().err.split())
    assert f"{len(gone)} old examples have no reference, and the model that this run began from is here no more" in told
    assert "scores" not in told.partition("What the schedule was")[0]
    assert len(passes(run)) == 1
    state = ReviewState.open(run / FINAL / "srt_state")
    once = np.array(gone)[state.visits[gone] == 1]
    assert once.size
    assert np.array_equal(state.reference[once], state.signal[once])
    assert np.isnan(state.reference[np.array(gone)[state.visits[gone] == 0]]).all()


def test_a_quiz_that_comes_on_resume_has_its_references(world, tmp_path):  # noqa: F811
    """Who was reviewed keeps the best so far; the base scores the others."""
    train(recipe(world, tmp_path / "whole", *SHORT))
    run = halved(tmp_path / "whole", tmp_path / "part")
    seen = np.isfinite(reference(run, step=4))
    assert not passes(run)
    asked = recipe(world, run, *SHORT, "review.retention=high")
    assert train(asked, resume=True, allow_changes=True) == 0
    [made] = passes(run)
    assert made["examples"] == np.count_nonzero(~seen)
    assert reference(run, step=8)[~seen] == pytest.approx(of_the_base(world, asked)[~seen], rel=1e-4)
    assert all(line["asked"] for line in metrics(run) if line["step"] >= 4 and "loss" in line)
