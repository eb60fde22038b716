"""The command from end to end, without a model; and what evaluation makes of the file."""

import hashlib
import io
import json
from collections import defaultdict
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import srt_peft
from srt_peft import cli
from srt_peft.evaluation.questions import load_questions, trivial
from tests.corpora.qa import world


def run(*words, code=0):
    """What the command says, in this process: another one takes a third of a second to start."""
    told = io.StringIO()
    with redirect_stdout(told), redirect_stderr(told):
        ended = cli.main(["corpus", *map(str, words)])
    assert ended == code, told.getvalue()
    assert "not foreseen" not in told.getvalue()
    return told.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = world.build(tmp_path_factory.mktemp("making") / "towns", held=40)
    return folder, run("qa", "--from", folder, "--n", 60)


def test_evaluation_reads_them_and_no_baseline_beats_chance(made):
    """Sixty of each split, of held-out documents alone; without a model nobody gets more than luck."""
    folder, told = made
    assert "old: 60 of 60 questions" in told
    questions = load_questions(folder / "questions.jsonl")
    assert len(questions) == 120
    assert {question.source for question in questions} == {"towns"}
    scores = defaultdict(list)
    for record in trivial(questions):
        scores[record["mode"], record["split"]].append(record["value"])
    assert len(scores) == 6
    for found in scores.values():
        assert abs(sum(found) / 60 - 0.25) <= 0.07


def test_a_row_says_where_it_is_from(made):
    folder, _ = made
    held = {row["id"]: row for row in world.rows(folder / "held-out.jsonl")}
    for row in world.rows(folder / "questions.jsonl"):
        assert row["passage"] in held[row["document"]][row["split"]]
        start, end = row["support"]
        assert row["choices"]["ABCD".index(row["answer"])] in row["passage"][start:end]
        assert ("was" in row) <= (row["split"] == "new")
        assert row["maker"] == "cloze"


def test_the_manifest_vouches_for_the_file(made):
    folder, _ = made
    manifest = json.loads((folder / "questions.manifest.json").read_text())
    for path, about in (*manifest["inputs"].items(), *((folder / n, a) for n, a in manifest["outputs"].items())):
        raw = Path(path).read_bytes()
        assert about == {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert manifest["counts"]["new"]["made"] == 60
    assert manifest["options"]["n"] == 60
    assert manifest["versions"]["srt-peft"] == srt_peft.__version__


def test_what_cannot_be_made_is_made_as_far_as_it_goes(tmp_path):
    """How many, and why no more."""
    folder = world.build(tmp_path / "towns", held=2)
    told = run("qa", "--from", folder, "--n", 50, "--out", tmp_path / "few.jsonl")
    old, new = (sum(row["split"] == split for row in world.rows(tmp_path / "few.jsonl")) for split in ("old", "new"))
    assert f"old: {old} of 50 questions" in told
    assert f"new: {new} of 50 questions" in told
    assert 0 < old < 50
    assert "There are no more: make the corpus with a larger --held-out" in told


def test_all_that_is_wrong_with_a_command_is_told(made, tmp_path):
    folder, _ = made
    assert "is there already" in run("qa", "--from", folder, code=2)
    told = run("qa", "--from", folder, "--n", 0, "--out", tmp_path / "x.txt", code=2)
    assert "--n = 0" in told
    assert "ends in .jsonl" in told
    assert "held-out.jsonl is not there" in run("qa", "--from", tmp_path, code=2)
    told = run("qa", "--from", folder, "--out", tmp_path / "x.jsonl", "--endpoint", "http://localhost:1/v1", code=2)
    assert "--model is missing" in told


def test_who_cannot_be_asked_is_told_before_the_corpus_is_read(tmp_path):
    """With all else that is wrong; the corpus is not even there."""
    words = ["qa", "--from", tmp_path / "none", "--n", 0]
    told = run(*words, "--endpoint", "localhost:1", "--timeout", -1, "--concurrency", 0, code=2)
    for fault in ("--n = 0", "--model is missing", "--endpoint = localhost:1", "--timeout = -1", "--concurrency = 0"):
        assert fault in told
    (tmp_path / "instruct").mkdir()
    told = run(*words, "--model", tmp_path / "instuct", code=2)
    assert "--n = 0" in told
    assert f"--model = {tmp_path}/instuct: is no folder (did you mean 'instruct'?); expected one with config.js" in told
    assert "none" not in told


def test_a_corpus_without_changes_yields_no_new_question(tmp_path):
    """Old ones all the same, and why."""
    folder = world.build(tmp_path / "towns")
    rows = [{**row, "new": row["old"], "changes": []} for row in world.rows(folder / "held-out.jsonl")]
    world.write(folder / "held-out.jsonl", rows)
    told = run("qa", "--from", folder, "--n", 10)
    assert "old: 10 of 10" in told
    assert "new: 0 of 10 questions from 0 statements" in told
    world.write(folder / "held-out.jsonl", [{**row, "old": "Hm.", "new": None} for row in rows])
    told = run("qa", "--from", folder, "--out", tmp_path / "none.jsonl", code=2)
    assert "yields no question" in told
