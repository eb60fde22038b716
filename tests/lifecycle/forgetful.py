"""Runs to forget from, made without a model: texts, states, logs and checkpoints are real, the weights are not."""

import json
import random
from hashlib import blake2b
from pathlib import Path

import numpy as np

from srt_peft import ReviewState, make_scheduler
from srt_peft.data import Corpus, Pool, supersedes
from srt_peft.data.ingest import home
from srt_peft.data.pool import key_of
from srt_peft.lifecycle.following import Ended, left_by
from srt_peft.lifecycle.past import make
from srt_peft.review import ReviewLog
from srt_peft.training import checkpoint, summary
from srt_peft.training.folder import DECKS, RECIPE, link_pools, replace
from srt_peft.training.recipe import dump, load_recipe
from srt_peft.training.texts import read
from tests.data.helpers import byte_bpe, prose


def rows(count, seed, topics=("a", "b")):
    """Documents, some of them long enough to be cut, each with a name, a topic and a date."""
    rng = random.Random(seed)
    return [
        {"id": f"{seed}-{i}", "text": prose(rng.choice([1, 1, 4]), seed=1000 * seed + i), "topic": rng.choice(topics),
         "date": f"2026-0{rng.randint(1, 9)}-11"}
        for i in range(count)
    ]  # fmt: skip


def write(path, documents):
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(path)


def recipe_of(run, old, new, *overrides):
    values = {
        "model": {"base": "nothing", "tuning": "lora"},
        "data": {
            "old": old, "new": new, "max_length": 24, "holdout": 0.1, "source_column": "topic", "date_column": "date",
        },
        "training": {"steps": 8, "batch_size": 8},
        "review": {"preset": "paper"},
        "output": str(run),
    }  # fmt: skip
    return load_recipe(values, overrides)


def begin(recipe, *, decks=True):
    """What `train` does before the first step, as far as there is no model in it."""
    run, texts = run_of(recipe), read(recipe, byte_bpe())
    run.mkdir(parents=True, exist_ok=True)
    replace(run / RECIPE, dump(recipe))
    replace(run / DECKS, summary.listed(texts.decks, texts.deck, texts.corpus.n_old, texts.words))
    link_pools(run, {"old": texts.corpus.old, "new": texts.corpus.new})
    replace(run / supersedes.FILE, supersedes.dumped(texts.pairs).decode())
    return texts


def run_of(recipe):
    return Path(recipe.output)


def trained(recipe, steps=8, every=4, seed=0):
    """A run of a few steps, with signals that nobody can foresee."""
    run, texts = run_of(recipe), begin(recipe)
    rng = np.random.default_rng(seed)
    scheduler = make_scheduler(
        "srt", old=texts.corpus.n_old, new=len(texts.corpus.new), batch_size=8, old_fraction=0.4,
        identity=texts.corpus.identity, deck=texts.deck if len(texts.decks) > 1 else None, seed=seed,
        folder=run / "review/state", log=run / "review/log",
        past=None if texts.past is None else texts.past.state(texts.decks),
    )  # fmt: skip
    scheduler.state.supersede(texts.superseded)
    with scheduler, (run / "metrics.jsonl").open("w") as metrics:
        for done in range(1, steps + 1):
            draw = scheduler.draw()
            scheduler.review(draw.ids, rng.uniform(1, 9, draw.ids.size))
            slots = np.bincount(texts.deck[draw.ids[: draw.n_old]], minlength=len(texts.decks)).tolist()
            metrics.write(json.dumps({"step": draw.step, "loss": 1.0, "slots": slots}) + "\n")
            if done % every == 0:
                t = scheduler.state.step
                checkpoint.save(run, t, {
                    "": lambda to: (to / "adapter_model.safetensors").write_bytes(b"weights"),
                    "srt_state": scheduler.save,
                    "trainer": lambda to, t=t: (to / "trainer.json").write_text(json.dumps({
                        "step": t, "recipe": recipe.as_dict(), "asked": recipe.as_dict(),
                        "identity": {"base": "b", **texts.identity}})),
                })  # fmt: skip
    kept = {"superseded": texts.superseded.tolist(), "superseded_texts": []}
    (run / "summary.json").write_text(json.dumps(kept))
    (run / "report.html").write_text(texts.corpus.text(0))
    return run


def world(folder, monkeypatch, seed=0, old=40, new=40, *overrides):
    """A run in a home of its own."""
    monkeypatch.setenv("SRT_PEFT_HOME", str(folder / "home"))
    documents = {"old": rows(old, 2 * seed + 1), "new": rows(new, 2 * seed + 2)}
    paths = [write(folder / f"{name}.jsonl", documents[name]) for name in documents]
    recipe = recipe_of(folder / "run", *paths, *overrides)
    return trained(recipe, seed=seed), documents, recipe


def pools_of(run):
    return {(name, part): Pool.open(run / "pools" / name / part) for name in ("old", "new") for part in
            ("train", "held_out")}  # fmt: skip


def corpus_of(run):
    found = pools_of(run)
    return Corpus(found["old", "train"], found["new", "train"])


def snapshot(run):
    """All that is known of each example, by its text: in each checkpoint, in the log, and which pool it is in."""
    found = {}
    for path in checkpoint.all_of(run):
        state = ReviewState.open(path / "srt_state")
        corpus = corpus_of(run)
        names = [deck["name"] for deck in json.loads((run / "decks.json").read_text())]
        for i in range(state.n):
            c = state.columns
            row = [c[name][i].item() for name in ("due", "interval", "ease", "repetitions", "visits", "suspended")]
            deck = names[c["deck"][i]] if "deck" in c else None
            found[path.name, corpus.text(i), i >= state.n_old] = (*row, deck, repr(float(c["signal"][i])))
    with ReviewLog(run / "review/log") as log:
        told = [(int(r["step"]), corpus.text(int(r["id"])), int(r["quality"]), int(r["pool"]))
                for r in log.records() if r["id"] >= 0]  # fmt: skip
    pools = {key: [pool.text(i) for i in range(len(pool))] for key, pool in pools_of(run).items()}
    return found, told, pools


def traces(run, texts, tokens):
    """The files under a run and the home in which there is a text, its token ids, or its hash."""
    wanted = list(tokens)
    for text in texts:
        hashed = blake2b(text.encode(), digest_size=16).digest()
        wanted += [text.encode(), json.dumps(text).encode(), hashed, hashed.hex().encode()]
    paths = [path for folder in (run, home()) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted({str(path) for path in paths for raw in [path.read_bytes()] if any(w in raw for w in wanted)})


def tokens_of(run, texts):
    """The token ids of these texts, as a pool has them."""
    found = []
    for text in texts:
        for pool in pools_of(run).values():
            rows_ = [i for i in range(len(pool)) if pool.text(i) == text]
            if rows_:
                found.append(np.asarray(pool[rows_[0]]).astype("<i4").tobytes())
                break
    return found


def following(run, recipe, out, new, seed=1, **more):
    """The next update of a run, on top of its history."""
    newest = checkpoint.newest(run)[0]
    last = Ended(run, newest, recipe, {}, 8)
    make(left_by(last, ()), out / "history", keep="all", horizon=8)
    after = recipe_of(out, str(out / "history"), new)
    return trained(after, seed=seed, **more), after


def rows_of(run, names):
    """The texts of all examples of the documents that are called so."""
    keys = {key_of(name) for name in names}
    return [p.text(i) for p in pools_of(run).values() for i in range(len(p)) if p.key[i].tobytes() in keys]
