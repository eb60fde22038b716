"""The reference pass: the base itself scores old examples once, whatever is trained; and it is counted."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
import transformers

from srt_peft import ReviewState
from srt_peft.training.base import load_tokenizer
from srt_peft.training.loop import train
from srt_peft.training.texts import corpora
from tests.training.test_loop import metrics, recipe, world  # noqa: F401 - a fixture

ASKED = ("review.reference=base", "training.steps=1", "training.warmup_steps=1", "evaluation.every=null")


def reference(run, step=1):
    """The references as the first checkpoint has them: of old examples, no review has moved them."""
    state = ReviewState.open(run / f"checkpoints/step-{step:08d}/srt_state")
    return np.array(state.columns["reference"][: state.n_old])


def passes(run):
    return [line for line in metrics(run) if "pass" in line]


def of_the_base(world, asked):  # noqa: F811
    """The mean NLL of each old example, by Transformers, one at a time."""
    corpus, _ = corpora(asked, load_tokenizer(asked.model.base))
    model = transformers.AutoModelForCausalLM.from_pretrained(world / "base").eval()
    with torch.no_grad():
        ids = (torch.tensor(np.array(corpus[i], dtype=np.int64))[None] for i in range(corpus.n_old))
        return np.array([model(row, labels=row).loss.item() for row in ids])


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A cache of references of its own, beside the texts that were tokenised once."""
    shared = os.environ["SRT_PEFT_HOME"]
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    if os.path.isdir(shared):  # noqa: PTH112 - as the variable has it
        shutil.copytree(shared, tmp_path / "home", ignore=shutil.ignore_patterns("references"))
    return tmp_path / "home" / "references"


def test_an_adapter_that_is_continued_is_off_while_the_base_is_asked(world, tmp_path):  # noqa: F811
    """The references are those of the bare base, although the adapter has learned to say otherwise."""
    train(recipe(world, tmp_path / "first", "training.steps=8", "training.learning_rate=0.05", "evaluation.every=null"))
    adapter = tmp_path / "first/checkpoints/step-00000008"
    asked = recipe(world, tmp_path / "run", *ASKED, f"model.adapter={adapter}")
    train(asked)
    assert reference(tmp_path / "run") == pytest.approx(of_the_base(world, asked), rel=1e-4)
    state = ReviewState.open(tmp_path / "run/checkpoints/step-00000001/srt_state")
    drawn = np.flatnonzero(state.visits[: state.n_old])
    assert np.abs(state.signal[drawn] - reference(tmp_path / "run")[drawn]).max() > 0.05, "the adapter was on again"


def test_it_is_kept_and_counted_all_the_same(world, tmp_path, home, capsys):  # noqa: F811
    """The second run scores nothing; its compute is told as that of the first, with what was found."""
    for name in ("one", "two"):
        train(recipe(world, tmp_path / name, *ASKED))
    said = capsys.readouterr().err
    assert said.count("The base scores") == 1
    [first], [second] = passes(tmp_path / "one"), passes(tmp_path / "two")
    n = reference(tmp_path / "one").size
    assert (first.pop("found_in_cache"), second.pop("found_in_cache")) == (0, n)
    assert first == second
    assert (first["pass"], first["step"], first["examples"]) == ("reference", -1, n)
    assert np.array_equal(reference(tmp_path / "one"), reference(tmp_path / "two"))
    assert len(list(home.iterdir())) == 1
    figures = json.loads((tmp_path / "two/summary.json").read_text())["figures"]
    assert [(made["name"], made["examples"]) for made in figures["passes"]] == [("reference", n)]


@pytest.mark.parametrize("harm", ["truncated", "altered", "another's"])
def test_a_cache_that_is_damaged_or_anothers_is_made_anew(world, tmp_path, home, caplog, harm):  # noqa: F811
    """With a word; and what is trained on is the same."""
    train(recipe(world, tmp_path / "one", *ASKED))
    [kept] = home.iterdir()
    whole = kept.read_bytes()
    told = {
        "truncated": whole[:-9],
        "altered": whole[:-1] + bytes([whole[-1] ^ 1]),
        "another's": whole.replace(b'\\"text\\": \\"', b'\\"text\\": \\"'[:-1] + b"'"),
    }[harm]
    assert told != whole
    kept.write_bytes(told)
    train(recipe(world, tmp_path / "two", *ASKED))
    assert "cannot be used" in caplog.text
    assert "made anew" in caplog.text
    caplog.clear()
    train(recipe(world, tmp_path / "three", *ASKED))
    assert "made anew" not in caplog.text, "what was made anew is whole"
    assert np.array_equal(reference(tmp_path / "one"), reference(tmp_path / "two"))


def test_another_base_text_or_precision_has_references_of_its_own(world, tmp_path, home):  # noqa: F811
    """None is taken for another's."""
    base = shutil.copytree(world / "base", tmp_path / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    model.save_pretrained(base)
    runs = [
        ("as it is",),
        ("base", f"model.base={base}"),
        ("text", "data.max_length=32"),
        ("dtype", "model.dtype=bfloat16"),
    ]
    for count, (name, *change) in enumerate(runs, 1):
        train(recipe(world, tmp_path / name, *ASKED, *change))
        assert len(list(home.iterdir())) == count
    plain, other = (reference(tmp_path / name) for name in ("as it is", "base"))
    assert np.abs(plain - other).max() > 0.01


def test_a_sample_is_so_many_of_each_deck(world, tmp_path):  # noqa: F811
    """The others have none; whoever is in the sample is in it by its content, not by its place."""
    lines = (world / "old.jsonl").read_text().splitlines()
    for name, some in (("some", lines[:45]), ("few", lines[45:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(some) + "\n")
    sources = ", ".join(f"{{path: {tmp_path / name}.jsonl, source: {name}}}" for name in ("some", "few"))
    asked = recipe(world, tmp_path / "run", *ASKED, f"data.old=[{sources}]", "review.reference_sample=4")
    train(asked)
    listed = json.loads((tmp_path / "run/decks.json").read_text())
    assert [deck["name"] for deck in listed] == ["some", "few", "new.jsonl"]
    state = ReviewState.open(tmp_path / "run/checkpoints/step-00000001/srt_state")
    known = np.flatnonzero(np.isfinite(state.columns["reference"][: state.n_old]))
    assert np.bincount(state.columns["deck"][known], minlength=3).tolist() == [4, 4, 0]
    assert passes(tmp_path / "run")[0]["examples"] == 8


def test_a_run_that_goes_on_does_not_ask_again(world, tmp_path, home, capsys):  # noqa: F811
    """What the base said is in the review state, and the cache may be gone."""
    more = ("review.reference=base", "evaluation.every=null", "training.steps=8")
    train(recipe(world, tmp_path / "whole", *more))
    shutil.copytree(tmp_path / "whole", tmp_path / "part", symlinks=True)
    shutil.rmtree(tmp_path / "part/checkpoints/step-00000008")
    shutil.rmtree(home)
    capsys.readouterr()
    train(recipe(world, tmp_path / "part", *more), resume=True)
    assert "The base scores" not in capsys.readouterr().err
    assert not home.exists()
    assert metrics(tmp_path / "part") == metrics(tmp_path / "whole")
    final = "checkpoints/step-00000008/srt_state/columns-0.safetensors"
    assert (tmp_path / "part" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()
