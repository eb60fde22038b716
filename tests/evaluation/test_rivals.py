"""The contest: its runs are ordinary, equal but for their scheduler, and nothing is lost however it is stopped."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from srt_peft import OptionError, ReviewLog, make_scheduler
from srt_peft.data.pool import Pool
from srt_peft.errors import DamagedError, LockedError
from srt_peft.evaluation import rivals, suites
from srt_peft.evaluation.evaluate import labels_of
from srt_peft.evaluation.exposure import exposure_of, over_seeds
from srt_peft.evaluation.targets import target_of
from srt_peft.review.files import Lock
from srt_peft.training import run
from srt_peft.training.loop import train
from srt_peft.training.preset import resolve
from srt_peft.training.recipe import load_recipe
from tests.evaluation import world as facts

ROOT = Path(__file__).parents[2]
NAMES, SEEDS, STEPS, BATCH = ["uniform", "srt", "match"], [0, 1], 6, 16


def asked_of(world):
    return suites.parse([f"qa={world / 'questions.jsonl'}"])


def recipe_of(world, **changes):
    training = {"steps": STEPS, "batch_size": BATCH, **changes.pop("training", {})}
    given = facts.recipe(world, world / "unused", data={"old": str(world / "old.jsonl")}, training=training)
    review = {"preset": "paper"}  # whose shares of old are its own
    return given | {"checkpoints": {"every": 2, "keep": 1}, "review": review} | changes


def contest(world, folder, names=NAMES, seeds=SEEDS, say=lambda _: None, **changes):
    recipe = load_recipe(recipe_of(world, **changes))
    return rivals.contest(recipe, entries=names, seeds=seeds, asked=asked_of(world), folder=folder, say=say)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The base, its facts, and the recipe as a file."""
    folder = tmp_path_factory.mktemp("world")
    facts.build(folder, n_old=60, n_new=20)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe_of(folder)))
    before = os.environ.get("SRT_PEFT_HOME")
    os.environ["SRT_PEFT_HOME"] = str(folder / "home")
    yield folder
    os.environ.pop("SRT_PEFT_HOME") if before is None else os.environ.update(SRT_PEFT_HOME=before)


@pytest.fixture(scope="module")
def held(world):
    """A contest that was never stopped."""
    return contest(world, world / "held")


def saved(folder):
    """What contest.json says, timings apart."""
    document = json.loads((folder / "contest.json").read_text())
    for compute in (*(one["compute"] for one in document["runs"]), *document["compute"].values()):
        compute.pop("seconds")
    return document


def counts(folder, name, seed):
    return ReviewLog(folder / name / f"seed-{seed}" / "review" / "log").counts()


# --- what is equal, and what is not ---------------------------------------------------------------------------------


def test_runs_are_equal_but_for_scheduler_and_seed(held):
    """Each is a run's folder as `train` makes it; all have the same steps, and the recipe but for three keys."""
    recipes = {}
    for name in NAMES:
        for seed in SEEDS:
            place = held.folder / name / f"seed-{seed}"
            assert (place / "checkpoints" / f"step-{STEPS:08d}" / "MANIFEST.json").is_file()
            assert len((place / "metrics.jsonl").read_text().splitlines()) == STEPS
            recipes[name, seed] = yaml.safe_load((place / "recipe.yaml").read_text())
    for (name, seed), recipe in recipes.items():
        assert recipe["training"].pop("seed") == seed
        assert recipe.pop("output") == str(held.folder / name / f"seed-{seed}")
        assert recipe["review"].pop("scheduler") == name
        assert (recipe["review"].pop("counts") is None) == (name != "match")
    assert all(recipe == recipes["srt", 0] for recipe in recipes.values())


def test_equal_seeds_begin_with_equal_weights(world, tmp_path):
    """With a learning rate that moves nothing, what is saved is what was begun with."""
    still = {"steps": 1, "learning_rate": 1e-30, "weight_decay": 0.0}
    contest(world, tmp_path, ["cpt", "srt"], training=still)
    first = {}
    for name in ("cpt", "srt"):
        for seed in SEEDS:
            weights = load_file(tmp_path / name / f"seed-{seed}/checkpoints/step-00000001/adapter_model.safetensors")
            first[name, seed] = np.concatenate([w.ravel() for key, w in sorted(weights.items()) if "lora_A" in key])
    assert np.array_equal(first["cpt", 0], first["srt", 0])
    assert np.array_equal(first["cpt", 1], first["srt", 1])
    assert not np.array_equal(first["srt", 0], first["srt", 1])


def test_match_draws_as_srt_did_step_by_step(held):
    for seed in SEEDS:
        (_, srt), (_, match) = counts(held.folder, "srt", seed), counts(held.folder, "match", seed)
        assert np.array_equal(match, srt)
        assert srt.sum() > 0
    differ = [counts(held.folder, name, 0)[1].tolist() for name in ("srt", "uniform")]
    assert differ[0] != differ[1], "the control would show nothing"


def test_a_run_follows_the_counts_it_was_begun_with(held):
    """The log may be moved, but what it counts is a part of what the run is."""
    recipe = (held.folder / "match" / "seed-0" / "recipe.yaml").read_text()
    log = held.folder / "moved"
    log.write_bytes((held.folder / "srt" / "seed-0" / "review" / "log").read_bytes())
    assert train(load_recipe(yaml.safe_load(recipe), [f"review.counts={log}"]), resume=True) == 0
    log.write_bytes((held.folder / "uniform" / "seed-0" / "review" / "log").read_bytes())
    with pytest.raises(OptionError, match=r"the log of counts is \w+ now and \w+ in the checkpoint \(another run"):
        train(load_recipe(yaml.safe_load(recipe), [f"review.counts={log}"]), resume=True)
    log.unlink()


def test_the_control_s_runs_are_one_condition(held, world, tmp_path):
    """Although each follows a log of its own: those of one condition's runs, even where all of it has moved."""

    def labels(home, *others):
        return labels_of([target_of(str(home / name / f"seed-{seed}")) for name in NAMES for seed in SEEDS] + [*others])

    both = [str(held.folder / name / "seed-0") for name in NAMES for _ in SEEDS]
    assert labels(held.folder) == both
    shutil.copytree(held.folder, tmp_path / "moved", symlinks=True)
    shutil.rmtree(tmp_path / "moved" / "srt" / "seed-1")  # where its log was when it was trained, it is still
    assert (
        labels_of([target_of(str(tmp_path / "moved" / "match" / f"seed-{s}")) for s in SEEDS])
        == [str(tmp_path / "moved" / "match" / "seed-0")] * 2
    )
    given = yaml.safe_load((held.folder / "match" / "seed-0" / "recipe.yaml").read_text())
    log = held.folder / "uniform" / "seed-0" / "review" / "log"
    assert train(load_recipe(given, [f"review.counts={log}", f"output={tmp_path / 'other'}"])) == 0
    assert labels(held.folder, target_of(str(tmp_path / "other"))) == [*both, str(tmp_path / "other")]


def test_a_log_that_is_too_short_to_match(held, tmp_path):
    log = held.folder / "srt" / "seed-0" / "review" / "log"
    given = yaml.safe_load((held.folder / "match" / "seed-0" / "recipe.yaml").read_text())
    more = load_recipe(given, [f"training.steps={STEPS + 1}", f"review.counts={log}", f"output={tmp_path / 'run'}"])
    with pytest.raises(OptionError, match=f"has the steps 0 to {STEPS - 1}: expected all of this run's, 0 to {STEPS}"):
        train(more)


# --- stopped, and gone on with ----------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from srt_peft import cli
from srt_peft.training import run

save = run.save

def killing(setup, step):
    save(setup, step)
    if setup.folder.parts[-2:] == ("srt", "seed-1") and step == 4:
        os.kill(os.getpid(), signal.SIGKILL)

run.save = killing
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_killed_in_the_middle_and_gone_on_with(world, held):
    """By the command line: the same contest.json as that of a contest that was never stopped."""
    words = ["compare", str(world / "recipe.yaml"), "--schedulers", ",".join(NAMES), "--seeds", "2", "--format", "json"]
    words += ["--suite", f"qa={world / 'questions.jsonl'}", "--output", str(world / "killed")]
    settings = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], check=False, **settings)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = saved(world / "killed")
    assert not before["complete"]
    assert [(one["entry"], one["seed"]) for one in before["runs"]] == [
        ("uniform", 0), ("uniform", 1), ("srt", 0), ("match", 0),
    ]  # fmt: skip

    done = subprocess.run([sys.executable, "-m", "srt_peft", *words], check=False, **settings)
    assert done.returncode == 0, done.stderr
    assert saved(world / "killed") == saved(held.folder)
    assert json.loads(done.stdout) == json.loads((world / "killed" / "contest.json").read_text())
    assert "Run 4 of 6: uniform, seed 1 is there already." in done.stderr
    assert "Going on from" in done.stderr
    assert "Run 5 of 6: srt, seed 1." in done.stderr
    assert "Run 6 of 6: match, seed 1; about" in done.stderr


def test_interrupted_it_saves_and_says_how_to_go_on(world, tmp_path, monkeypatch):
    """As Ctrl-C and a cluster's SIGTERM: the run under way is saved after its step, and gone on with."""
    said, real = [], run.save

    def interrupted(setup, step):
        real(setup, step)
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        contest(world, tmp_path, ["cpt"], [0], said.append)
    assert f"What was done is kept in {tmp_path}: the same command goes on from there." in said[-1]
    assert [p.name for p in (tmp_path / "cpt/seed-0/checkpoints").iterdir()] == ["step-00000003"]
    monkeypatch.undo()
    found = contest(world, tmp_path, ["cpt"], [0])
    assert found.complete
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_done_it_trains_nothing_and_more_seeds_join(world, tmp_path):
    """The same folder serves more seeds and schedulers: what is there stays."""
    contest(world, tmp_path, ["cpt"], [0])
    manifest = tmp_path / "cpt/seed-0/checkpoints" / f"step-{STEPS:08d}" / "MANIFEST.json"
    before, alone = manifest.stat().st_mtime_ns, saved(tmp_path)
    said = []
    contest(world, tmp_path, ["cpt"], [0], said.append)
    assert "Run 1 of 1: cpt, seed 0 is there already." in said
    assert saved(tmp_path) == alone
    more = contest(world, tmp_path, ["cpt"], [0, 3])
    assert [one.seed for one in more.runs] == [0, 3]
    assert manifest.stat().st_mtime_ns == before


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_folder_of_another_comparison_is_refused(world, held, tmp_path):
    """By name, with both values, and with nothing touched."""
    before = (held.folder / "contest.json").read_bytes()

    def refusal(at=held.folder, **changes):
        with pytest.raises(OptionError) as error:
            contest(world, at, **changes)
        return str(error.value)

    other = refusal(training={"learning_rate": 0.01})
    assert f"the comparison's folder {held.folder}" in other
    assert "training.learning_rate is 0.01 here and 0.02 there" in other
    assert "which holds another comparison (name another --output, or remove this one" in other
    assert other.startswith("1 fault in ")
    (tmp_path / "more.jsonl").write_text((world / "new.jsonl").read_text() + '{"text": "one more"}\n')
    data = recipe_of(world)["data"] | {"new": str(tmp_path / "more.jsonl")}
    assert "the corpus is " in refusal(data=data)
    data = recipe_of(world)["data"]
    named = refusal(data=data | {"new": [{"path": data["new"], "source": "week"}]})
    assert "the division into decks is " in named
    questions, kept = world / "questions.jsonl", (world / "questions.jsonl").read_text()
    questions.write_text("\n".join(kept.splitlines()[:-1]) + "\n")
    assert "what qa asks is questions " in refusal()
    questions.write_text(kept)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "contest.json").write_text('{"format": "srt_peft contest"}')
    with pytest.raises(
        DamagedError, match=r"contest.json is damaged \(it has no .* Remove it and run the same comparison again"
    ):
        contest(world, tmp_path / "torn")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    assert "it holds thesis.tex and no contest.json: expected a new or empty one" in refusal(tmp_path / "mine")
    assert (held.folder / "contest.json").read_bytes() == before


def test_two_at_once_are_one_too_many(world, held):
    """The second is told, and takes nothing from the first; then the lock is gone with its holder."""
    lock = Lock(held.folder / "lock", "The comparison")
    with pytest.raises(LockedError, match=rf"The comparison in {held.folder} is being written by another process"):
        contest(world, held.folder)
    assert (held.folder / "lock").exists()
    lock.release()
    contest(world, held.folder)
    assert not (held.folder / "lock").exists()


def test_what_cannot_take_part_is_told_at_once(world, tmp_path):
    with pytest.raises(OptionError) as error:
        contest(world, tmp_path / "out", ["unifrom", "match", "match"], [])
    known, schedules = ", ".join(rivals.ENTRIES), "paper, auto, srt, auto-quiz"
    assert error.value.faults == (
        f"'unifrom' is no scheduler (did you mean 'uniform'?); known are {known}",
        "schedulers: match is there more than once: expected each once",
        f"'match' draws as many old and new examples as a schedule does: expected one of {schedules} as well",
        "seeds: expected one or more",
    )
    assert not (tmp_path / "out").exists()


def test_questions_without_an_old_split_are_refused_before_anything_is_trained(world, tmp_path):
    lines = (world / "questions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "new.jsonl").write_text("".join(line for line in lines if json.loads(line)["split"] == "new"))
    asked = suites.parse([f"qa={tmp_path / 'new.jsonl'}"])
    recipe = load_recipe(recipe_of(world))
    with pytest.raises(OptionError, match="split 'old' is empty"):
        rivals.contest(recipe, entries=["cpt"], seeds=[0], asked=asked, folder=tmp_path / "out", say=print)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("7,", [7]), ("0, 5", [0, 5]), ("0", [])])
def test_seeds_are_a_count_or_a_list(text, seeds):
    assert rivals.seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", ",", "three", "1,-2", "1.5"])
def test_seeds_that_are_none(text):
    with pytest.raises(OptionError, match="expected how many, such as 3, or which"):
        rivals.seeds_of(text)


def test_an_order_that_a_scheduler_lacks_is_uniform(world, tmp_path):
    """The recipe's own order where the scheduler knows it, and never a clash."""
    recipe = load_recipe(recipe_of(world, review={"scheduler": "srt", "order": "overdue"}))
    orders = {name: rivals.recipe_of(recipe, name, 0, tmp_path).review.old.order for name in rivals.ENTRIES}
    assert orders == {
        "cpt": "epoch", "uniform": "uniform", "uniform-epoch": "epoch", "ppl": None, "leitner": None,
        "paper": None, "auto": None, "auto-quiz": None, "srt": "overdue", "match": "uniform",
    }  # fmt: skip


def test_who_has_no_schedule_scores_no_references(world, tmp_path):
    """Although the recipe asks for them, as the recipe.yaml of a run under `auto` does."""
    recipe = load_recipe(recipe_of(world, review={"recall": "relative", "reference": "base"}))
    recall = {
        name: rivals.recipe_of(recipe, name, 0, tmp_path).review.recall for name in ("uniform-epoch", "match", "srt")
    }
    assert recall == {"uniform-epoch": None, "match": None, "srt": "relative"}
    recipe = load_recipe(recipe_of(world, review={"recall": "absolute", "alpha": 0.5, "thresholds": [1, 2, 3, 4, 5]}))
    made = {name: rivals.recipe_of(recipe, name, 0, tmp_path).review for name in rivals.ENTRIES}
    assert {name for name, review in made.items() if review.alpha != 1} == {"ppl", "srt"}


OWN = {"thresholds": [0.1, 0.2, 0.3, 0.4, 0.5], "recall": "relative", "max_interval": 9, "initial_ease": 2.0}


def test_paper_is_exactly_the_paper_s(world, tmp_path):
    """Whatever the recipe sets of the schedule; and the recipe's own entry has it all."""
    recipe = load_recipe(recipe_of(world, review={"preset": "auto", **OWN, "min_ease": 1.5}))
    size = {"old": 60, "new": 20, "batch_size": BATCH}

    def options(name):
        mine = resolve(rivals.recipe_of(recipe, name, 0, tmp_path), 1)
        return make_scheduler("srt", **size, **mine.scheduler_options()).options

    assert options("paper") == make_scheduler("srt", **size).options
    plain = resolve(load_recipe(recipe_of(world, review={})), 1).scheduler_options()
    assert options("auto") == make_scheduler("srt", **size, **plain).options
    assert {key: getattr(options("srt"), key) for key in OWN} == OWN | {"thresholds": tuple(OWN["thresholds"])}


@pytest.mark.parametrize("review", [{"retention": "high"}, {"old": {"quiz": 4}}, {"recall": "relative"}])
def test_first_tokens_of_a_quiz_are_asked_where_there_is_one(world, tmp_path, review):
    """And are no fault of the entries that have none, which are trained beside."""
    review = {**review, "old": {"quiz": 2, **review.get("old", {}), "quiz_tokens": 3, "quiz_every": 2}}
    recipe = load_recipe(recipe_of(world, review=review))
    kept = {name: rivals.recipe_of(recipe, name, 0, tmp_path).review.old.quiz_tokens for name in rivals.ENTRIES}
    assert {name for name, tokens in kept.items() if tokens} == {"auto-quiz", "srt"}


def test_what_no_entry_can_be_is_told_of_all_together(world, tmp_path):
    """Before any is trained, with who it is of."""
    recipe = load_recipe(recipe_of(world, review={"scheduler": "uniform", "recall": "relative", "alpha": 1.0}))
    broken = replace(recipe, review=replace(recipe.review, alpha=0.5, old_fraction=1.0))
    broken = replace(broken, training=replace(broken.training, steps="one_pass"))
    with pytest.raises(OptionError) as error:
        rivals.contest(broken, entries=["cpt", "srt", "ppl"], seeds=[0, 1], asked=[], folder=tmp_path / "o", say=print)
    assert [fault.partition(": ")[0] for fault in error.value.faults] == ["cpt, srt, ppl", "srt, ppl"]
    assert not (tmp_path / "o").exists()


# --- what is told -----------------------------------------------------------------------------------------------------


def test_exposure_is_what_the_logs_hold(held):
    """Counted again with a set, draw by draw."""
    for one in held.runs:
        pools = held.folder / one.folder / "pools"
        sizes = [len(Pool.open(pools / name / "train")) for name in ("old", "new")]
        records = ReviewLog(held.folder / one.folder / "review" / "log").records()
        seen, again = [set(), set()], [0, 0]
        for record in records[records["id"] >= 0]:
            pool, i = int(record["pool"]), int(record["id"])
            again[pool] += i in seen[pool]
            seen[pool].add(i)
        drawn = [len(seen[p]) + again[p] for p in (0, 1)]
        assert one.exposure == {
            "realised_old_share": drawn[0] / sum(drawn),
            "coverage_old": len(seen[0]) / sizes[0],
            "coverage_new": len(seen[1]) / sizes[1],
            "repeats_old": again[0] / drawn[0],
            "repeats_new": again[1] / drawn[1],
            "empty_steps": int(np.sum(records["id"] < 0)),
        }


def test_what_cannot_be_said_is_none(tmp_path):
    """An empty step is counted; of a pool that was not drawn from there are no repeats."""
    with ReviewLog(tmp_path / "log", "a") as log:
        log.append(0, [2, 3], [1.0, 1.0], [5, 5], 2)
        log.append(1, [], [], [], 2)
        log.append(2, [3], [1.0], [5], 2)
    found = exposure_of(tmp_path / "log", (2, 4))
    assert found == {
        "realised_old_share": 0.0, "coverage_old": 0.0, "coverage_new": 0.5, "repeats_old": None,
        "repeats_new": pytest.approx(1 / 3), "empty_steps": 1,
    }  # fmt: skip
    with ReviewLog(tmp_path / "log", "a") as log:  # in a quiz, both were known, and left alone
        log.append(3, [3, 0, 1], [1.0, 0.1, 0.1], [5, 5, 5], 2, untrained=2)
        log.append(4, [0], [0.1], [5], 2, untrained=1)
    assert exposure_of(tmp_path / "log", (2, 4)) == found | {"repeats_new": 0.5, "empty_steps": 2}
    spread = over_seeds([found, found | {"coverage_new": 1.0}])
    assert spread["repeats_old"] == {"mean": None, "sd": None}
    assert spread["coverage_new"] == {"mean": 0.75, "sd": pytest.approx(0.3535533906)}


def test_a_pass_that_learns_nothing_is_counted(world, tmp_path):
    """`ppl` scores the whole corpus once; and one seed is told to have no spread."""
    found = contest(world, tmp_path, ["ppl", "uniform-epoch"], [0])
    tokens = {name: of["forward_only_tokens"]["mean"] for name, of in found.compute.items()}
    words = sum(len(json.loads(line)["text"].split()) for name in ("old", "new") for line in lines_of(world, name))
    assert 0.8 * words < tokens["ppl"] < 2 * words
    assert tokens["uniform-epoch"] == 0
    shown = rivals.told(found, "terminal")
    share = 100 * tokens["ppl"] / found.compute["ppl"]["tokens_trained"]["mean"]
    told = f"in % of the tokens trained: ppl a first look ({share:.1f} %). The others scored nothing beside."
    assert told in shown
    assert "One seed: no spread between trainings is known" in shown
    assert "one seed: no spread" in shown
    assert found.exposure["uniform-epoch"]["repeats_old"]["mean"] == 0


def lines_of(world, name):
    return (world / f"{name}.jsonl").read_text().splitlines()


def test_every_style_tells_all_of_it(held):
    """Each table, each entry, and the sentences; the folder's table.md is the Markdown."""
    for style in ("terminal", "markdown", "latex"):
        shown = rivals.told(held, style)
        for words in ("against base", "against uniform", "old share", "tokens trained", *NAMES):
            assert words in shown.replace("\\", ""), (style, words)
        assert len(held.sentences) > 3
    assert (held.folder / "table.md").read_text() == rivals.told(held, "markdown")
    assert json.loads(rivals.told(held, "json")) == json.loads((held.folder / "contest.json").read_text())


def test_a_share_that_is_not_rho_is_told(held):
    """New examples are too few to fill their slots, so old takes them: under srt, and match."""
    share = {name: of["realised_old_share"]["mean"] for name, of in held.exposure.items()}
    assert share["uniform"] == pytest.approx(3 / 16)
    assert share["srt"] == share["match"] > 0.3
    [apart, off] = [line for line in held.sentences if line.startswith("The share of old is not")]
    assert apart.startswith(f"The share of old is not equal: 18.8 % with uniform, {100 * share['srt']:.1f} % with srt.")
    assert "`match` would tell" not in apart, "it takes part"
    assert (
        off
        == f"The share of old is not ρ = 20 % with srt {100 * share['srt']:.1f} %, match {100 * share['match']:.1f} %."
    )


def test_contest_json_does_not_alias_the_contest(held):
    """What a reader does with the plain values changes nothing."""
    first = held.as_dict()
    kept = copy.deepcopy(first)
    first["exposure"]["srt"].clear()
    assert held.as_dict() == kept
