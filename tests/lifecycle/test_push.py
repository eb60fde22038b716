"""An update is pushed to a hub that the real client talks to, and goes on from there."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import transformers
from huggingface_hub import ModelCard

from srt_peft import ReviewState, cli
from srt_peft.data import pool as pools
from srt_peft.data.history import open_history
from srt_peft.lifecycle import pushed
from srt_peft.lifecycle.following import follow
from srt_peft.review import ReviewLog, files
from srt_peft.review.files import Lock
from srt_peft.training.loop import train
from tests.data.helpers import prose
from tests.lifecycle import loopback
from tests.lifecycle.test_next import last, texts_of, week
from tests.training.test_loop import ROOT, metrics, recipe, world  # noqa: F401 - a fixture

# The client hands a file to its HTTP library by a name that this would rather not hear any more.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "me/adapter"
SETTINGS = (
    "training.steps=4",
    "training.batch_size=10",
    "checkpoints.every=4",
    "evaluation.every=4",
    "data.holdout=0.2",
    "review.old_fraction=0.5",
    "data.supersedes=supersedes",
)
NAMES = ("letters", "diary")


def called_so(text):
    """An id that is found again wherever it turns up."""
    return f"docname-{pools.identity_of(text).hex()}"


def documents(path, texts, replaced=()):
    """Rows with ids, the first of which replace others."""
    rows = [{"id": called_so(text), "text": text} for text in texts]
    for row, other in zip(rows, replaced, strict=False):
        row["supersedes"] = called_so(other)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def corpus():
    """What there was before the first update."""
    return {"letters": week(0, 30), "diary": [text.title() for text in week(40, 24)]}


@pytest.fixture(scope="module")
def texts(world):  # noqa: F811
    """All files of the updates: two sources of old text, two weeks of new."""
    folder = world / "texts"
    folder.mkdir()
    for name, rows in corpus().items():
        documents(folder / f"{name}.jsonl", rows)
    for number in (1, 2):
        documents(folder / f"w{number}.jsonl", week(number, 24), week(0, 30)[4 * number : 4 * number + 4])
    return folder


def update(world, texts, run, *more):  # noqa: F811
    old = ", ".join(f"{{path: {texts / name}.jsonl, source: {name}}}" for name in NAMES)
    given = (f"data.old=[{old}]", f"data.new={texts / 'w1.jsonl'}", "model.lora.r=4")
    assert train(recipe(world, world / run, *SETTINGS, *given, *more)) == 0
    return world / run


@pytest.fixture(scope="module")
def first(world, texts):  # noqa: F811
    return update(world, texts, "weeks-01")


@pytest.fixture(scope="module")
def second(first, texts):
    """The update after it, of which some old text was let go."""
    asked, made = follow(first, [str(texts / "w2.jsonl")], overrides=["next.keep=40"])
    assert made.let_go > 10
    assert train(asked) == 0
    return first.with_name("weeks-02")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with loopback.running() as server:
        loopback.connect(monkeypatch, server.url, tmp_path)
        monkeypatch.setattr("time.sleep", lambda _: None)
        yield server


def called(capsys, *words, code=0):
    """What a command says, on one line."""
    capsys.readouterr()
    assert cli.main([*map(str, words)]) == code
    told = capsys.readouterr()
    return " ".join((told.out + told.err).split())


def made(capsys, run, out, state, *more):
    called(capsys, "push", run, REPO, "--dry-run", "--out", out, "--with-state", state, *more)
    return out


# --- what is pushed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", pushed.WITH_STATE)
def test_no_text_no_id_and_no_path_is_in_any_byte(first, world, texts, tmp_path, capsys, state):  # noqa: F811
    """Neither five words of it, nor its tokens, nor a document's name; its hash only where it was asked for."""
    out = made(capsys, first, tmp_path / "out", state)
    raw = b"\n".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    every = [row for rows in (*corpus().values(), week(1, 24)) for row in rows]
    for text in every:
        words = text.split()
        for i in range(len(words) - 4):
            assert " ".join(words[i : i + 5]).encode() not in raw
    assert b"docname" not in raw
    assert str(world).encode() not in raw
    assert str(Path.home()).encode() not in raw
    look = ReviewState.open(last(first) / "srt_state")
    tokenizer = transformers.AutoTokenizer.from_pretrained(world / "base")
    for text in texts_of(first):
        assert np.asarray(tokenizer(text)["input_ids"], np.int32).tobytes() not in raw
    found = sum(row.tobytes() in raw or row.tobytes().hex().encode() in raw for row in look.identity)
    assert found == (look.n if state == "full" else 0)
    names = {path.name for path in out.iterdir()}
    assert ("srt_state" in names, "review.json" in names) == (state == "full", state != "none")


def test_the_words_of_clusters_stay_here(world, texts, tmp_path, capsys):  # noqa: F811
    run = update(world, texts, "clustered", f"data.old={texts / 'letters.jsonl'}", "data.clusters=2")
    words = {word for deck in json.loads((run / "decks.json").read_text()) for word in deck.get("words", [])}
    plain = made(capsys, update(world, texts, "plain", f"data.old={texts / 'letters.jsonl'}"), tmp_path / "p", "full")
    out = made(capsys, run, tmp_path / "out", "full")
    told, usual = ([p.read_text() for p in f.rglob("*") if p.suffix in {".md", ".json", ".svg"}] for f in (out, plain))
    telling = {word for word in words if not re.search(rf"\b{word}\b", " ".join(usual), re.IGNORECASE)}
    assert len(telling) > 5
    assert not [word for word in telling if re.search(rf"\b{word}\b", " ".join(told), re.IGNORECASE)]


def test_statistics_add_up_and_say_nothing_of_few(first, tmp_path, capsys):
    """Counts a pool and a deck, against the state and the log; a deck of a few is counted with others."""
    out = made(capsys, first, tmp_path / "out", "anonymous")
    told, state = json.loads((out / "review.json").read_text()), ReviewState.open(last(first) / "srt_state")
    with ReviewLog(first / "review/log") as log:
        records = log.records()
    seen = state.visits > 0
    for name, rows in (("old", slice(0, state.n_old)), ("new", slice(state.n_old, None))):
        pool = told["pools"][name]
        assert pool["examples"] == seen[rows].size
        assert pool["seen"] == seen[rows].sum() == sum(pool["intervals_from"].values())
        chosen = records[np.isin(records["id"], np.arange(state.n)[rows])]
        assert pool["qualities"] == np.bincount(chosen["quality"], minlength=6).tolist()
    assert [deck["name"] for deck in told["decks"]] == ["letters", "diary", "w1.jsonl"]
    assert sum(deck["examples"] for deck in told["decks"]) == state.n
    assert [deck["forgetting"] for deck in told["decks"]] == pytest.approx(state.forgetting, abs=1e-5, nan_ok=True)


def test_few_examples_of_a_deck_are_counted_with_others(first):
    from srt_peft.lifecycle.following import ended, left_by

    left = left_by(ended(first), ())
    state = ReviewState.restore(last(first) / "srt_state")
    state.columns["deck"][:] = np.where(np.arange(state.n) < 3, 1, np.where(np.arange(state.n) < 12, 2, 0))
    found = pushed.statistics(type(left)(**{**vars(left), "state": state}))
    assert [(deck["name"], deck["examples"]) for deck in found["decks"]] == [
        ("letters", state.n - 12),
        ("other decks, together", 12),
    ]
    state.columns["deck"][3:12] = 0
    found = pushed.statistics(type(left)(**{**vars(left), "state": state}))
    told = [(deck["name"], deck["examples"]) for deck in found["decks"]]
    assert told == [("other decks, together", state.n)], "else the pools less the decks would be the few"


def test_the_same_run_gives_the_same_bytes(first, tmp_path, capsys):
    """Else an upload that broke off would begin anew."""
    found = []
    for name in ("a", "b"):
        out = made(capsys, first, tmp_path / name, "full")
        found.append({p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()})
    assert found[0] == found[1]


def test_the_card_is_of_measured_facts_and_its_code_runs(first, world, texts, tmp_path, capsys, monkeypatch):  # noqa: F811
    called(capsys, "eval", "--compare", first, "--suite", "perplexity")
    out = made(capsys, first, tmp_path / "me/adapter", "full")
    card = ModelCard.load(out / "README.md")
    assert card.data.tags == ["srt-peft", "peft", "continual-pretraining"]
    assert card.data.library_name == "peft"
    measured = [line for line in metrics(first) if "held_out_old_nll" in line]
    scores = {result.dataset_name: result.metric_value for result in card.data.eval_results}
    told = np.exp(measured[-1]["held_out_old_nll"])
    assert scores["perplexity of held-out text, old"] == pytest.approx(told, rel=1e-4)
    before, after = (f"{np.exp(line['held_out_old_nll']):.4g}" for line in (measured[0], measured[-1]))
    assert f"| old | {before} | {after} |" in card.text
    assert re.search(r"\| this update \| Old \| forgetting \| .* to .* \|", card.text)
    summary = json.loads((first / "summary.json").read_text())["figures"]
    assert f"{100 * summary['old_share']:.1f} % of all that was drawn was old" in card.text
    assert "| old | letters | " in card.text
    for picture in re.findall(r"!\[.*\]\((.*)\)", card.text):
        assert ET.parse(out / picture).getroot().tag.endswith("svg")
    shutil.copytree(world / "base", tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    ids = names["tokenizer"]("a text", return_tensors="pt")
    assert names["model"](**ids).logits.isfinite().all()


def test_a_whole_model_is_pushed_with_its_tokenizer_and_its_first_base(world, texts, tmp_path, capsys):  # noqa: F811
    """Also of the second update, whose base is the first one's checkpoint."""
    run = update(world, texts, "whole-01", "model.tuning=full", "training.learning_rate=0.003")
    asked, _ = follow(run, [str(texts / "w2.jsonl")])
    assert train(asked) == 0
    for name in ("whole-01", "whole-02"):
        out = made(capsys, run.with_name(name), tmp_path / name, "full")
        about = pushed.read_about(out)
        assert about["base"]["name"] == "base"
        assert str(world) not in "".join(path.read_text() for path in out.glob("*.json"))
        transformers.AutoModelForCausalLM.from_pretrained(out)
        transformers.AutoTokenizer.from_pretrained(out)
        assert ModelCard.load(out / "README.md").data.library_name == "transformers"


# --- there and back -------------------------------------------------------------------------------------------------


def shuffled(folder, texts):
    """The same texts on another machine: in other files, in another order."""
    folder.mkdir()
    rows = [
        line
        for name in (*NAMES, "w1", "w2")
        for line in (texts / f"{name}.jsonl").read_text().splitlines(keepends=True)
    ]
    random.Random(5).shuffle(rows)
    (folder / "a.jsonl").write_text("".join(rows[:31]))
    (folder / "b.jsonl").write_text("".join(rows[31:]))
    return [word for name in ("a", "b") for word in ("--old", str(folder / f"{name}.jsonl"))]


def compared(here, there):
    """Draws, reviews, states and adapters of two runs are the same."""
    mine, theirs = ([line for line in metrics(run) if "loss" in line] for run in (here, there))
    assert mine == theirs
    assert len(mine) == 4
    logs = []
    for run in (here, there):
        with ReviewLog(run / "review/log") as log:
            logs.append(log.records().tobytes())
    assert logs[0] == logs[1]
    states = [ReviewState.open(last(run) / "srt_state").columns for run in (here, there)]
    assert states[0].keys() == states[1].keys()
    for name in states[0]:
        assert states[0][name].tobytes() == states[1][name].tobytes(), name
    assert texts_of(here) == texts_of(there)
    for name in ("adapter_model.safetensors", "model.safetensors"):
        if (last(here) / name).exists():
            assert (last(here) / name).read_bytes() == (last(there) / name).read_bytes()
    held = [{row.tobytes() for row in open_history(run / "history").held_out.identity} for run in (here, there)]
    assert held[0] == held[1]
    assert states[0]["suspended"].any()
    assert held[0]


def test_pushed_whole_and_gone_on_elsewhere_the_draws_are_those_of_here(second, world, texts, hub, tmp_path, capsys):  # noqa: F811
    """Over a real command line with an empty HOME; some new text is what was held out, known, or let go."""
    new = documents(tmp_path / "w3.jsonl", [*week(3, 24), *week(0, 30), *week(1, 24), *week(2, 24)])
    asked, local = follow(second, [new], out=tmp_path / "here", overrides=["next.keep=all"])
    assert train(asked) == 0
    told = called(capsys, "push", second, REPO, "--with-state", "full")
    assert "(private)" in told
    home = tmp_path / "empty"
    home.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "SRT_", "XDG_"))}
    surroundings = {
        **clean, "HOME": str(home), "HF_ENDPOINT": hub.url, "HF_TOKEN": loopback.TOKEN, "PYTHONPATH": str(ROOT),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip
    shutil.copytree(world / "base", tmp_path / "elsewhere/my-base")
    words = ["next", f"hub:{REPO}", *shuffled(tmp_path / "moved", texts), "--new", new, "--out", "there"]
    done = subprocess.run(
        [sys.executable, "-m", "srt_peft", *words, "model.base=my-base", "next.keep=all"],
        cwd=tmp_path / "elsewhere", env=surroundings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"Update 3 begins at step 8: {local.kept} examples" in " ".join(done.stderr.split())
    assert "for the first time" not in done.stderr, "what was let go is not"
    there = tmp_path / "elsewhere/there"
    compared(tmp_path / "here", there)
    assert not list(home.rglob("srt_state")), "what was fetched of it is gone: the history has it"
    assert not (there / "pushed/srt_state").exists()


def test_a_whole_model_goes_on_as_here(world, texts, hub, tmp_path, capsys, monkeypatch):  # noqa: F811
    run = world / "whole-01"
    if not run.exists():
        update(world, texts, "whole-01", "model.tuning=full", "training.learning_rate=0.003")
    asked, _ = follow(run, [str(texts / "w2.jsonl")], out=tmp_path / "here")
    assert train(asked) == 0
    called(capsys, "push", run, REPO, "--with-state", "full")
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    words = [w for name in (*NAMES, "w1") for w in ("--old", texts / f"{name}.jsonl")]
    called(capsys, "next", f"hub:{REPO}", *words, "--new", texts / "w2.jsonl", "--out", tmp_path / "there")
    compared(tmp_path / "here", tmp_path / "there")
    called(capsys, "push", tmp_path / "there", REPO)
    assert pushed.ABOUT in hub.repos[REPO].at("main")


def test_what_was_held_out_stays_so_whatever_files_it_comes_in(world, texts, hub, tmp_path, capsys, monkeypatch):  # noqa: F811
    """Of few documents one is held out of each corpus, the lowest hash; in one file there would be one of all."""
    run = update(world, texts, "few-away", "data.holdout=0.0001")
    away = pool_texts(run, "held_out")
    assert len(away) == 2
    called(capsys, "push", run, REPO, "--with-state", "full")
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    old = tmp_path / "all.jsonl"
    old.write_text("".join((texts / f"{name}.jsonl").read_text() for name in (*NAMES, "w1")))
    words = ["--old", old, "--new", texts / "w2.jsonl", "--out", tmp_path / "run", "--prepare"]
    told = called(capsys, "next", f"hub:{REPO}", *words, f"model.base={world / 'base'}")
    assert "for the first time" not in told
    held_out = open_history(tmp_path / "run/history").held_out
    assert {held_out.text(i) for i in range(len(held_out))} == away


@pytest.mark.parametrize("state", ["anonymous", "none"])
def test_without_the_state_clock_and_adapter_go_on_and_the_rest_is_told(
    first, world, texts, hub, tmp_path, capsys, monkeypatch, state  # noqa: F811
):  # fmt: skip
    called(capsys, "push", first, REPO, "--with-state", state)
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    out, base = tmp_path / "run", f"model.base={world / 'base'}"
    words = ["--old", texts / "letters.jsonl", "--old", texts / "w1.jsonl", "--new", texts / "w2.jsonl", "--out", out]
    told = called(capsys, "next", f"hub:{REPO}", *words, "--prepare", base)
    assert f"It was pushed with --with-state {state}: the adapter, the clock and the recipe go on." in told
    past = open_history(out / "history")
    state_now = past.state([])
    assert (past.step, past.update) == (4, 1)
    assert not state_now.visits.any()
    assert state_now.due.min() >= 4
    mine = open_history(out / "history").held_out
    away = set(map(mine.text, range(len(mine))))
    kept = pool_texts(first, "held_out")
    assert away <= set(week(0, 30)) | set(week(1, 24))
    assert away & kept, "the same hash decides"
    for name in ("adapter_model.safetensors",):
        assert (out / "pushed" / name).read_bytes() == (last(first) / name).read_bytes()
    assert cli.main(["train", str(out / "recipe.yaml")]) == 0
    assert [line["step"] for line in metrics(out) if "loss" in line] == [4, 5, 6, 7]


def pool_texts(run, part):
    both = [pools.Pool.open(run / "pools" / name / part) for name in ("old", "new")]
    return {pool.text(i) for pool in both for i in range(len(pool))}


def test_a_base_of_the_hub_is_named_by_its_commit(world, texts, hub, tmp_path, capsys, monkeypatch):  # noqa: F811
    """In the card, whose code loads that; the next update is on that commit, though the base has moved on."""
    hub.repos["org/base"] = loopback.Repo(private=False)
    hub.repos["org/base"].commit({path.name: path.read_bytes() for path in (world / "base").iterdir()})
    commit = hub.repos["org/base"].head
    run = tmp_path / "run-1"
    asked = recipe(world, run, *SETTINGS, f"data.old={texts / 'letters.jsonl'}", f"data.new={texts / 'w1.jsonl'}",
                   "model.base=org/base", "data.supersedes=null")  # fmt: skip
    assert train(asked) == 0
    called(capsys, "push", run, REPO, "--with-state", "full")
    card = ModelCard(hub.repos[REPO].at("main")["README.md"].decode())
    assert card.data.base_model == "org/base"
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    assert commit in block
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["model"](**names["tokenizer"]("a text", return_tensors="pt")).logits.isfinite().all()
    moved = {**hub.repos["org/base"].at("main"), "model.safetensors": b"other weights", "new.txt": b""}
    hub.repos["org/base"].commit(moved)
    words = ["--old", texts / "letters.jsonl", "--old", texts / "w1.jsonl", "--new", texts / "w2.jsonl"]
    called(capsys, "next", f"hub:{REPO}", *words, "--out", tmp_path / "run-2")
    assert json.loads((last(tmp_path / "run-2") / "adapter_config.json").read_text())["revision"] == commit
    assert [line["step"] for line in metrics(tmp_path / "run-2") if "loss" in line] == [4, 5, 6, 7]


# --- the hub's answers ----------------------------------------------------------------------------------------------


def contents(run):
    return {path: path.stat().st_mtime_ns for path in run.rglob("*") if "lock" not in path.name}


REFUSED = {
    "no token": (REPO, 2, "no token of the hub is here: expected one that may write. Log in with `hf auth login`"),
    "bad token": (REPO, 1, "The hub does not accept the token (401): expected one that is valid."),
    "no right": ("others/adapter", 1, "The token has no right to others/adapter (403): expected one that may write"),
    "no place": ("nobody/adapter", 1, "The hub knows no such place as nobody/adapter (404)"),
    "no name": ("adapter", 2, "REPO = 'adapter': expected the name of a repository on the hub, as in me/my-adapter"),
    "odd name": ("a/b/c", 2, "REPO = 'a/b/c': expected the name of a repository on the hub"),
    "no network": (REPO, 1, "failed or broke off"),
    "hub is down": (REPO, 1, "The hub answers 500 for me/adapter: try again later."),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_the_hub_refuses_is_told_and_harmless(first, hub, tmp_path, capsys, monkeypatch, why):
    repo, code, told = REFUSED[why]
    if why == "no token":
        loopback.connect(monkeypatch, hub.url, tmp_path, token=None)
    elif why == "bad token":
        loopback.connect(monkeypatch, hub.url, tmp_path, token="hf_bad")
    elif why == "no network":
        loopback.connect(monkeypatch, "http://127.0.0.1:9", tmp_path)
    elif why == "hub is down":
        hub.refuse["/api/models"] = 500
    before = contents(first)
    found = called(capsys, "push", first, repo, code=code)
    assert told in found
    assert "Traceback" not in found
    assert contents(first) == before
    assert not hub.repos
    assert not hub.blobs


def test_a_token_without_the_right_to_a_repository_that_is_there(first, hub, capsys):
    """It may read it, and make nothing of it."""
    hub.repos["others/adapter"] = loopback.Repo(private=True)
    hub.refuse["/api/models/others/adapter/preupload"] = 403
    assert "has no right to others/adapter (403)" in called(capsys, "push", first, "others/adapter", code=1)


def test_an_upload_that_breaks_off_is_completed_by_the_next_call(first, hub, capsys):
    """What was sent is not sent again; until then there is no commit at all, and afterwards there is one."""
    hub.cut = True
    told = called(capsys, "push", first, REPO, "--with-state", "full", code=1)
    assert "broke off" in told
    assert "call again: what was sent or fetched whole is not sent or fetched again" in told
    assert hub.asked["cut"] > 1, "the client tries again by itself"
    assert len(hub.repos[REPO].commits) == 1
    sent = set(hub.blobs)
    assert len(sent) == 2, "the small ones went through"
    hub.cut = False
    hub.asked.clear()
    called(capsys, "push", first, REPO, "--with-state", "full")
    assert hub.asked["upload"] == 1
    assert len(hub.repos[REPO].commits) == 2
    assert {name.rpartition("/")[2] for name in hub.repos[REPO].at("main")} >= {
        "README.md",
        "adapter_model.safetensors",
    }
    hub.asked.clear()
    called(capsys, "push", first, REPO, "--with-state", "full")
    assert (hub.asked["upload"], hub.asked["commit"]) == (0, 0), "nothing has changed"


def test_less_than_before_takes_the_rest_away(first, hub, capsys):
    called(capsys, "push", first, REPO, "--with-state", "full")
    (hub.repos[REPO].at("main"))["notes.txt"] = b"mine"
    told = called(capsys, "push", first, REPO, "--with-state", "none")
    assert "is gone from it, and not from its history of commits" in told
    there = hub.repos[REPO].at("main")
    assert "notes.txt" in there
    assert not [name for name in there if name.startswith("srt_state") or name == "review.json"]


def other(kind, about):
    """What a repository of another base holds."""
    config = json.dumps({"base_model_name_or_path": "big/other"}).encode()
    base = {**about, "base": {**about["base"], "weights": "0" * 32}}
    return {
        "adapter_config": ({"adapter_config.json": config}, "holds an update of 'big/other': expected one of 'base'"),
        "card": ({"README.md": b"---\nbase_model: big/other\n---\n"}, "holds an update of 'big/other'"),
        "weights": ({"model.safetensors": b"x"}, "holds weights, and does not say of which base they are"),
        "ours": ({pushed.ABOUT: files.vouched(base)}, "holds an update of 'base' with other weights (0000"),
    }[kind]


@pytest.mark.parametrize("kind", ["adapter_config", "card", "weights", "ours"])
def test_a_repository_of_another_base_is_refused(first, hub, tmp_path, capsys, kind):
    about = pushed.read_about(made(capsys, first, tmp_path / "out", "none"))
    there, told = other(kind, {k: v for k, v in about.items() if k != "check"})
    hub.repos[REPO] = loopback.Repo(private=True)
    hub.repos[REPO].commit(there)
    assert told in called(capsys, "push", first, REPO, code=2)
    assert hub.repos[REPO].at("main") == there
    assert not hub.blobs


def test_an_empty_repository_and_one_of_this_base_are_taken(first, hub, capsys):
    hub.repos[REPO] = loopback.Repo(private=True)
    hub.repos[REPO].commit({"README.md": b"---\nlicense: mit\n---\n", ".gitattributes": b""})
    called(capsys, "push", first, REPO)
    called(capsys, "push", first, REPO, "--message", "again")
    assert ".gitattributes" in hub.repos[REPO].at("main")


def test_public_is_asked_for_and_nobody_is_here_to_say_yes(first, hub, capsys):
    assert "Nothing was sent." in called(capsys, "push", first, REPO, "--public", code=1)
    assert not hub.repos
    assert "(public)" in called(capsys, "push", first, REPO, "--public", "--yes")
    assert not hub.repos[REPO].private
    told = called(capsys, "push", first, REPO, code=2)
    assert f"REPO = {REPO} is public: expected a private one. Give --public if everybody may read it" in told
    hub.repos[REPO].private = True
    assert "was private, and stays so" in called(capsys, "push", first, REPO, "--public", "--yes")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--out", "x"), "--out = x: expected --dry-run with it"),
        (("--dry-run", "--out", "."), "--out = . exists already: name another, or remove it"),
    ],
)
def test_arguments_that_cannot_be(first, hub, capsys, words, told):
    assert told in called(capsys, "push", first, REPO, *words, code=2)


def test_only_a_finished_run_is_pushed(first, world, hub, tmp_path, capsys):  # noqa: F811
    assert "holds no run: expected a folder" in called(capsys, "push", tmp_path, REPO, code=2)
    shutil.copytree(first, tmp_path / "run", symlinks=True)
    saved = tmp_path / "run/checkpoints"
    for path in saved.iterdir():
        shutil.rmtree(path)
    assert "has no whole checkpoint" in called(capsys, "push", tmp_path / "run", REPO, code=1)
    lock = Lock(first / "review/state/lock", "the run")
    assert "is being written by another process" in called(capsys, "push", first, REPO, code=1)
    lock.release()
    assert not hub.repos


def test_what_a_killed_push_left_goes_with_the_next(first, hub, capsys):
    """It has hashes of texts."""
    left = first / ".push/push/srt_state"
    left.mkdir(parents=True)
    (left / "columns-0.safetensors").write_bytes(b"hashes")
    called(capsys, "push", first, REPO)
    assert not (first / ".push").exists()
    assert not [name for name in hub.repos[REPO].at("main") if "srt_state" in name]


def test_one_push_of_a_run_at_a_time(first, hub, capsys):
    lock = Lock(first / ".push/lock", "the push")
    assert "is being written by another process" in called(capsys, "push", first, REPO, code=1)
    lock.release()
    shutil.rmtree(first / ".push")
    assert not hub.repos


# --- what cannot be gone on with ------------------------------------------------------------------------------------


@pytest.fixture
def there(first, hub, capsys, monkeypatch, tmp_path):
    """The first update, on the hub."""
    called(capsys, "push", first, REPO, "--with-state", "full")
    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return hub.repos[REPO]


def going_on(capsys, world, texts, tmp_path, *words, code, repo=REPO, base="base", old="letters.jsonl"):  # noqa: F811
    given = [f"model.base={world / base}"] if base else []
    before = ["--old", texts / old] if old else []
    more = ["--new", texts / "w2.jsonl", "--out", tmp_path / "out", "--prepare"]
    return called(capsys, "next", f"hub:{repo}", *before, *more, *given, *words, code=code)


def test_another_base_is_refused(there, world, texts, tmp_path, capsys):  # noqa: F811
    config = transformers.AutoConfig.from_pretrained(world / "base")
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(world / "other")
    told = going_on(capsys, world, texts, tmp_path, base="other", code=2)
    assert "expected those of 'base' that hub:me/adapter was made for" in told
    told = going_on(capsys, world, texts, tmp_path, base=None, code=2)
    assert "model.base = 'base' was a folder where hub:me/adapter was pushed, and is none here: expected" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ({"old": None}, 2, "hub:me/adapter without --old: expected the texts that it was trained on"),
        ({"old": "absent.jsonl"}, 2, "absent.jsonl does not exist"),
        ({"old": "w2.jsonl"}, 2, "that the state knows: expected the texts of letters, diary, w1.jsonl"),
        ({"repo": "me/absent"}, 1, "hub:me/absent is not there, or is private and this token may not read it"),
        ({"repo": "me/adapter@v7"}, 2, "hub:me/adapter has no revision 'v7': expected a commit, or a tag"),
        ({"repo": "adapter"}, 2, "REPO = 'hub:adapter': expected the name of a repository on the hub"),
        ({"repo": "me/strange"}, 2, "hub:me/strange has no srt_peft.json: expected what `srt-peft push` has put there"),
    ],
)
def test_what_is_missing_is_told(there, hub, world, texts, tmp_path, capsys, how, code, told):  # noqa: F811
    hub.repos["me/strange"] = loopback.Repo(private=False)
    hub.repos["me/strange"].commit({"adapter_config.json": b"{}"})
    assert told in going_on(capsys, world, texts, tmp_path, code=code, **how)
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "home").rglob("known-0.safetensors")), "no hash of a text stays behind"


@pytest.mark.parametrize("name", ["srt_peft.json", "adapter_model.safetensors", "srt_state/known-0.safetensors"])
def test_what_was_altered_on_the_hub_is_refused(there, world, texts, tmp_path, capsys, name):  # noqa: F811
    altered = dict(there.at("main"))
    altered[name] = altered[name][:-3] + b"xyz"
    there.commit(altered)
    told = going_on(capsys, world, texts, tmp_path, code=1)
    assert f"{name} of hub:{REPO} is not as it was pushed" in told or "srt_peft.json is damaged" in told
    assert not (tmp_path / "out").exists()


def test_what_could_be_code_is_not_fetched_and_no_file_lies_outside(there, hub, world, texts, tmp_path, capsys):  # noqa: F811
    """Whoever wrote the repository; and the recipe's trackers and suites are not those of a stranger."""
    files_there = dict(there.at("main"))
    about = {k: v for k, v in json.loads(files_there[pushed.ABOUT]).items() if k != "check"}
    about["recipe"]["tracking"] = {"with": ["tensorboard"]}
    about["files"]["pytorch_model.bin"] = {"bytes": 4, "sha256": "0" * 64}
    there.commit({**files_there, "pytorch_model.bin": b"code", pushed.ABOUT: files.vouched(about)})
    hub.asked.clear()
    going_on(capsys, world, texts, tmp_path, code=0)
    assert not list(tmp_path.rglob("*.bin"))
    from srt_peft.training.recipe import load_recipe

    assert load_recipe(tmp_path / "out/recipe.yaml").tracking.with_ == ()
    for name in ("../evil.json", "/etc/evil.json"):
        about["files"] = {name: {"bytes": 4, "sha256": "0" * 64}}
        there.commit({**files_there, pushed.ABOUT: files.vouched(about)})
        assert "what it says cannot be" in going_on(capsys, world, texts, tmp_path, code=1)


def test_a_download_that_breaks_off_goes_on(there, hub, world, texts, tmp_path, capsys):  # noqa: F811
    """What was fetched whole is not fetched again; nothing is prepared until all is there."""
    hub.refuse[f"/{REPO}/resolve/{there.head}/srt_state"] = 503
    assert "503" in going_on(capsys, world, texts, tmp_path, code=1)
    assert not (tmp_path / "out").exists()
    hub.refuse.clear()
    going_on(capsys, world, texts, tmp_path, code=0)
    assert (tmp_path / "out/history/history.json").is_file()


def test_a_token_that_is_no_good_is_told_when_fetching(there, hub, world, texts, tmp_path, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    assert "The hub does not accept the token (401)" in going_on(capsys, world, texts, tmp_path, code=1)
    loopback.connect(monkeypatch, "http://127.0.0.1:9", tmp_path)
    assert "failed or broke off" in going_on(capsys, world, texts, tmp_path, code=1)
    assert not (tmp_path / "out").exists()


def test_help_names_what_it_does(capsys):
    with pytest.raises(SystemExit):
        cli.main(["push", "--help"])
    told = capsys.readouterr().out
    for word in ("--with-state", "--dry-run", "--public", "srt-peft next hub:me/my-adapter"):
        assert word in told
    assert prose(1, seed=1) not in told
