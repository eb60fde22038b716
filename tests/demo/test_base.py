"""The demo's base: it knows the old snapshot, and nothing of the new one; made once."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from srt_peft.demo import world
from srt_peft.demo.base import Shape, made
from srt_peft.evaluation import suites
from srt_peft.evaluation.evaluate import evaluate

SMALL = world.Sizes(people=10, added=4, changed=6), Shape(width=64, heads=2, hidden=192, steps=220, batch=48)


def accuracy(folder, out):
    """Of the base, by split."""
    asked = suites.parse([f"qa-text={folder / 'world' / 'questions.jsonl'}"])
    (result,) = evaluate([str(folder / "base")], asked, suites.Options(), out=out)
    return {split: score.mean for split, score in result.comparison.standings[0].scores.items()}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    sizes, shape = SMALL
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(home))
        yield made(world.make(1, sizes), shape, lambda _: None)


def test_a_small_base_answers_what_no_text_has_asked(small, tmp_path):
    """Old facts in wordings of their own that it never read; the new ones it cannot know."""
    found = accuracy(small, tmp_path)
    assert found["old"] >= 0.9
    assert found["new"] <= 0.5


def test_a_base_is_a_model_like_any_other(small):
    """Whole, and nothing but what it is loaded from: the run that made it is gone."""
    assert sorted(path.name for path in small.iterdir()) == ["base", "world"]
    model, tokenizer = (kind.from_pretrained(small / "base") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert model.config.vocab_size == len(tokenizer) == 256
    text = json.loads((small / "world" / "old.jsonl").read_text().splitlines()[0])["text"]
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert float(model(input_ids=ids, labels=ids).loss.detach()) < 2


def test_what_is_there_is_not_made_again(small):
    """The very same folder, untouched; another world or another shape has one of its own."""
    said, before = [], {path: path.stat().st_mtime_ns for path in small.rglob("*")}
    sizes, shape = SMALL
    assert made(world.make(1, sizes), shape, said.append) == small
    assert said == [f"World and base are there already, in {small}."]
    assert {path: path.stat().st_mtime_ns for path in small.rglob("*")} == before


@pytest.mark.slow
def test_as_it_comes_it_answers_97_percent(tmp_path, monkeypatch):
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path))
    folder = made(world.make(), Shape(), lambda _: None)
    assert accuracy(folder, tmp_path)["old"] >= 0.97
