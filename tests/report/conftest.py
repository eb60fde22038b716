"""A small run, trained for real by the command line, whose new texts would do harm if they were not escaped."""

import json

import pytest
import yaml

from srt_peft import cli
from tests.evaluation import world

HOSTILE = """</script><script>window.bad = 1</script><img src=x onerror="window.bad = 1"> & é"""


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Texts, questions, and a base that knows nothing yet."""
    home = world.build(tmp_path_factory.mktemp("world"), n_old=60, n_new=30, steps=1)
    told = world.facts(30, seed=1, letter="B")
    world.write_texts(home / "new.jsonl", [(question, f"{colour} {HOSTILE}") for question, colour in told])
    return home


@pytest.fixture(scope="session")
def recipe(home):
    """Of the run below."""
    return world.recipe(
        home,
        home / "run",
        data={"old": str(home / "old.jsonl"), "max_length": 64},
        training={"steps": 30, "batch_size": 10},
        review={"old_fraction": 0.5},
        evaluation={"every": 10, "suites": []},
    )


@pytest.fixture(scope="session")
def run(home, recipe):
    """The run's folder, with the page that training has left."""
    (home / "recipe.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(recipe))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(home / "cache"))
        assert cli.main(["train", str(home / "recipe.yaml")]) == 0
    return home / "run"


@pytest.fixture(scope="session")
def contest(home, recipe, run):
    """The same recipe under two schedulers, twice each, for a few steps."""
    from srt_peft.evaluation import rivals, suites
    from srt_peft.training.recipe import load_recipe

    short = load_recipe(recipe, ["training.steps=4", "evaluation.every=2", "training.warmup_steps=0"])
    asked = suites.parse([f"qa={home / 'questions.jsonl'}", "perplexity"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SRT_PEFT_HOME", str(home / "cache"))
        rivals.contest(
            short, entries=["cpt", "srt"], seeds=[0, 1], asked=asked, folder=home / "contest", say=lambda _: None
        )
    return home / "contest"
