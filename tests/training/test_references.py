"""The reference pass: the model that an update begins from scores old examples once; and it is counted."""

import json
import os
import shutil

import numpy as np
import peft
import pytest
import torch
import transformers

from srt_peft import ReviewState
from srt_peft.training.base import load_tokenizer
from srt_peft.training.loop import train
from srt_peft.training.preset import resolve
from srt_peft.training.rehearsal import pools_of, rehearse
from srt_peft.training.texts import corpora, read
from tests.training.test_loop import metrics, recipe, world  # noqa: F401 - a fixture
from tests.training.test_plan import superseding

ASKED = ("review.reference=base", "training.steps=1", "training.warmup_steps=1", "evaluation.every=null")


def reference(run, step=1):
    """The references as the first checkpoint has them: of old examples, no review has moved them."""
    state = ReviewState.open(run / f"checkpoints/step-{step:08d}/srt_state")
    return np.array(state.columns["reference"][: state.n_old])


def passes(run):
    return [line for line in metrics(run) if "pass" in line]


def of_the_base(world, asked, adapter=None):  # noqa: F811
    """The mean NLL of each old example, by Transformers, one at a time; with an adapter, by PEFT, too."""
    corpus, _ = corpora(asked, load_tokenizer(asked.model.base))
    model = transformers.AutoModelForCausalLM.from_pretrained(world / "base").eval()
    if adapter is not None:
        model = peft.PeftModel.from_pretrained(model, adapter).eval()
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


def test_an_adapter_that_is_continued_is_on_while_old_text_is_scored(world, tmp_path, home, capsys):  # noqa: F811
    """What it has learned can be forgotten; so its references are no other's, nor those of the bare base."""
    train(recipe(world, tmp_path / "first", "training.steps=8", "training.learning_rate=0.05", "evaluation.every=null"))
    adapters = [tmp_path / f"first/checkpoints/step-{step:08d}" for step in (4, 8)]
    for count, adapter in enumerate(adapters, 1):
        asked = recipe(world, tmp_path / str(count), *ASKED, f"model.adapter={adapter}")
        train(asked)
        assert reference(tmp_path / str(count)) == pytest.approx(of_the_base(world, asked, adapter), rel=1e-4)
        assert len(list(home.iterdir())) == count
    assert capsys.readouterr().err.count("The base with the adapter that is continued scores") == 2
    train(recipe(world, tmp_path / "new", *ASKED))
    bare = of_the_base(world, asked)
    assert reference(tmp_path / "new") == pytest.approx(bare, rel=1e-4)
    assert np.abs(bare - reference(tmp_path / "2")).max() > 0.05, "the adapter has learned something"
    train(
        recipe(world, tmp_path / "again", *ASKED, f"model.adapter={shutil.copytree(adapters[1], tmp_path / 'moved')}")
    )
    assert passes(tmp_path / "again")[0]["found_in_cache"] == bare.size


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


def test_where_all_old_text_is_superseded_nobody_is_scored(world, tmp_path):  # noqa: F811
    """And nothing is missed: what is planned can be trained."""
    named, map_ = superseding(world), tmp_path / "map.jsonl"
    map_.write_text(json.dumps({"new": "new-0", "old": [f"old-{i}" for i in range(60)]}) + "\n")
    asked = recipe(world, tmp_path / "run", *ASKED, *named, f"data.supersedes={map_}", "review.retention=high")
    assert train(asked) == 0
    assert not passes(tmp_path / "run")
    assert metrics(tmp_path / "run")[0]["old"] == 0
    texts = read(asked, load_tokenizer(asked.model.base))
    assert texts.superseded.size == texts.corpus.n_old
    assert rehearse(resolve(asked, texts.sources), pools_of(asked, texts)).passes == ()


def split(world, tmp_path):  # noqa: F811
    """Old text of two sources, a large one and a small one."""
    lines = (world / "old.jsonl").read_text().splitlines()
    for name, some in (("some", lines[:45]), ("few", lines[45:])):
        rows = [{**json.loads(line), "id": f"{name}-{i}"} for i, line in enumerate(some)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = ", ".join(f"{{path: {tmp_path / name}.jsonl, source: {name}}}" for name in ("some", "few"))
    return f"data.old=[{sources}]"


QUICK = ASKED[1:]


def test_no_pass_is_made_where_it_cannot_matter(world, tmp_path):  # noqa: F811
    """With two sources it is made; not where no slot is kept for old ones, nor where one source is superseded."""
    sources, map_ = split(world, tmp_path), tmp_path / "map.jsonl"
    map_.write_text(json.dumps({"new": "some-0", "old": [f"few-{i}" for i in range(15)]}) + "\n")
    cases = {
        "two": ([], 1),
        "no share": (["review.old_fraction=0"], 0),
        "less than a slot": (["review.old_fraction=0.05", "review.retention=high"], 0),
        "one left": ([f"data.supersedes={map_}"], 0),
    }
    for name, (change, count) in cases.items():
        train(recipe(world, tmp_path / name, *QUICK, sources, *change))
        assert len(passes(tmp_path / name)) == count, name


@pytest.mark.parametrize("sample", ["null", "5"])
def test_first_tokens_are_counted_beside_the_whole(world, tmp_path, sample):  # noqa: F811
    """By the run to the token; by the plan as well, but for who is in a sample."""
    asked = recipe(
        world, tmp_path / "run", *QUICK, split(world, tmp_path), "review.retention=high", "review.old.quiz_tokens=8",
        f"review.reference_sample={sample}",
    )  # fmt: skip
    train(asked)
    state = ReviewState.open(tmp_path / "run/checkpoints/step-00000001/srt_state")
    texts = read(asked, load_tokenizer(asked.model.base))
    lengths = texts.corpus.lengths[: state.n_old]
    [made] = passes(tmp_path / "run")
    if sample == "null":
        assert made["forward_only_tokens"] == lengths.sum() + np.minimum(lengths, 8).sum()
    else:
        assert made["examples"] * 8 < made["forward_only_tokens"] <= made["examples"] * (lengths.max() + 8)
    [planned] = [
        found for found in rehearse(resolve(asked, texts.sources), pools_of(asked, texts)).passes
        if found.name == "reference"
    ]  # fmt: skip
    assert planned.tokens == pytest.approx(made["forward_only_tokens"], rel=1e-9 if sample == "null" else 0.3)
