"""Decks, quizzes and passes on a run's page: what metrics.jsonl says of them, held against the log and the pools."""

import json
import shutil

import numpy as np
import pytest
import yaml

from srt_peft import ReviewLog, cli
from srt_peft.data.pool import Pool
from srt_peft.report.charts import of_run
from srt_peft.report.page import write
from srt_peft.report.read import read_course, read_run
from tests.evaluation import world

STEPS = 24


@pytest.fixture(scope="module")
def decked(home, recipe):
    """An update over two sources, small and large, with a quiz before each step."""
    world.write_texts(home / "few.jsonl", world.facts(12, seed=5, letter="C"))
    sources = [{"path": str(home / f"{name}.jsonl"), "source": name} for name in ("old", "few")]
    given = json.loads(json.dumps(recipe)) | {"output": str(home / "decked")}
    given["data"]["old"] = sources
    given["training"]["steps"] = STEPS
    given["review"] = {"old_fraction": 0.5, "retention": "high"}
    (home / "decked.yaml").write_text(yaml.safe_dump(given))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(home / "cache"))
        assert cli.main(["train", str(home / "decked.yaml")]) == 0
    return home / "decked"


def charts_of(folder):
    return {made.name: made for section in of_run(read_run(folder, text=False)) for made in section.charts}


def test_slots_and_quiz_are_what_the_log_says(decked):
    """Who was drawn and who was only asked, by the deck that the pool has them in."""
    course = read_course(decked / "metrics.jsonl", [])
    pool = Pool.open(decked / "pools/old/train")
    with ReviewLog(decked / "review/log") as log:
        old = log.records()
    old = old[(old["pool"] == 0) & (old["id"] >= 0)]
    drawn, asked_only = old[old["untrained"] == 0], old[old["untrained"] == 1]
    by_name = {name: np.count_nonzero(pool.source[drawn["id"]] == i) for i, name in enumerate(pool.sources)}
    new_alone = 0  # a deck as well, which no old slot goes to
    assert course.decks.slots.sum(axis=0).tolist() == [by_name["old"], by_name["few"], new_alone]
    np.testing.assert_array_equal(course.decks.slots.sum(axis=1), course.drawn[:, 0])
    assert course.quiz[:, 0].tolist() == [4 * n for n in course.drawn[:, 0].tolist()]
    assert course.quiz[:, 1].sum() == asked_only.size > 0
    assert read_run(decked, text=False).journal.untrained == asked_only.size


def test_the_pictures_show_all_of_it(decked):
    """However few points a curve has, it stands for every step."""
    made = charts_of(decked)
    lines = [json.loads(line) for line in (decked / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert {"slots", "lost", "quiz"} <= made.keys()
    assert [len(made[name].figure.data) for name in ("lost", "slots")] == [2, 2]
    for g, trace in enumerate(made["lost"].figure.data):
        assert trace.y[-1] == pytest.approx(steps[-1]["forgetting"][g], rel=1e-3, abs=1e-5)
    for point in zip(*(trace.y for trace in made["slots"].figure.data), strict=True):
        assert sum(point) == pytest.approx(1, abs=1e-3)
    asked, passed = (np.mean(trace.y) for trace in made["quiz"].figure.data)
    assert asked == pytest.approx(np.mean([line["asked"] for line in steps]), rel=0.05)
    assert 0 < passed < asked


def test_the_passes_are_counted(decked):
    """The base's over old, and each quiz: in examples, and in tokens beside those trained."""
    text = write(decked).read_text()
    lines = [json.loads(line) for line in (decked / "metrics.jsonl").read_text().splitlines()]
    total = sum(line.get("forward_only_tokens", 0) for line in lines)
    [reference] = [line for line in lines if line.get("pass") == "reference"]
    assert f"<dt>reference pass</dt><dd>{reference['examples']:,} examples</dd>" in text
    assert f"<dt>tokens forward only</dt><dd>{total:,} (" in text
    assert "torn lines" not in text


def test_decks_are_called_by_their_names(decked, tmp_path):
    """As decks.json has them; clusters by their words; without the file, or with another run's, by number."""
    assert [trace.name for trace in charts_of(decked)["lost"].figure.data] == ["old", "few"]
    folder = shutil.copytree(decked, tmp_path / "run", symlinks=True)
    told = [{"name": "a", "old": 60, "new": 0}, {"name": "b", "old": 20, "new": 3, "words": ["flag", "colour"]}]
    told.append({"name": "new", "old": 0, "new": 30})
    cases = {
        json.dumps(told): ["a", "flag, colour"],
        json.dumps(told[:1]): ["deck 1", "deck 2"],
        '[{"na': ["deck 1", "deck 2"],
        '{"decks": 3}': ["deck 1", "deck 2"],
    }
    for content, names in cases.items():
        (folder / "decks.json").write_text(content)
        made = charts_of(folder)
        assert [trace.name for trace in made["lost"].figure.data] == names
        assert [trace.name.partition(" (")[0] for trace in made["slots"].figure.data] == names
    (folder / "decks.json").write_text(json.dumps(told))
    assert charts_of(folder)["slots"].figure.data[0].name == "a (75\u202f% of old)"


def test_a_run_without_them_draws_as_before(run, tmp_path):
    """One old source, as in that run, has nothing to share; lines without such keys are those of older runs."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    gone = [{k: v for k, v in line.items() if k not in ("slots", "forgetting")} for line in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in gone))
    assert read_course(tmp_path / "metrics.jsonl", []).decks is None
    made = charts_of(run)
    assert not {"slots", "lost", "quiz"} & made.keys()
    course = read_course(run / "metrics.jsonl", [])
    assert (course.quiz, course.passes, course.forward_only) == (None, (), 0)


def test_of_many_decks_the_largest_are_shown(tmp_path):
    """And how many are not; 2,000 steps are as few points as 200."""
    line = {"loss": 3.0, "tokens": 9, "seconds": 0.1, "old": 8, "new": 8, "due_old": 5, "due_new": 6}
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(2000):
            slots = np.roll([4, 2, 1, 1, *[0] * 16], 10 if step else 3).tolist()
            file.write(json.dumps({"step": step, **line, "slots": slots, "forgetting": [step / 1e4] * 20}) + "\n")
    decks = read_course(tmp_path / "metrics.jsonl", []).decks
    assert decks.slots.sum() == 2000 * 8
    assert set(range(10, 14)) <= set(decks.largest(8))
    assert decks.left_out(6) == " The 6 decks with the most slots are shown, and 2 are not."
    assert decks.left_out(8) == ""
    assert decks.forgetting[-1, 0] == pytest.approx(0.1995, abs=1e-3)
