"""The paper's tables: transcribed, described by recipes that load, and reproduced end to end at demo scale."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path

import pytest

from eval.paper import materials, printed, sentences, skills
from eval.paper.__main__ import main
from eval.paper.figures import HERE, Figure, paper_of
from eval.paper.tables import TABLES, chosen
from srt_peft.demo import base, world
from srt_peft.demo.base import Shape, made
from srt_peft.errors import OptionError
from srt_peft.evaluation.broad_data import LocalData
from srt_peft.evaluation.probes import load_probes
from srt_peft.training.recipe import load_recipe

ROOT = Path(__file__).parents[1]
COMBINED = [name for name, table in TABLES.items() if "combined" in paper_of(name).metrics]


def quietly(_):
    """A run's progress, which nobody reads."""


# --- the paper's side -----------------------------------------------------------------------------------------------


def test_each_table_has_a_folder_and_each_folder_is_a_table():
    """classes is a command of its own, without recipes."""
    folders = {path.name for path in HERE.iterdir() if (path / "paper.json").exists()}
    assert folders == {*TABLES, "classes"}
    for name in TABLES:
        assert {"README.md", "demo.yaml", "paper.yaml"} <= {path.name for path in (HERE / name).iterdir()}


@pytest.mark.parametrize("name", COMBINED)
def test_combined_is_the_mean_of_old_and_new_or_a_slip_of_the_papers(name):
    """Rounded means of rounded figures differ by a tenth at most (by 1 in whole perplexities); the rest is listed."""
    paper = paper_of(name)
    first, second, _ = paper.metrics
    most = 1.0 if name == "temporalwiki" else 0.1
    differ = {
        (panel, row)
        for panel, rows in paper.panels.items()
        for row, cells in rows.items()
        if abs(cells["combined"].value - (cells[first].value + cells[second].value) / 2) > most + 1e-9
    }
    assert differ == {(slip.panel, slip.row) for slip in paper.slips}


def test_the_overheads_follow_from_the_times_and_the_slip_from_the_tokens():
    rows = paper_of("overhead").panels[""]
    wall, step, rate = rows["wall-clock, s"], rows["s a step"], rows["tokens a second"]
    for row, other in (("% over cpt", "cpt"), ("% over uniform", "uniform")):
        for name, figure in rows[row].items():
            assert figure.value == pytest.approx((wall[name].value / wall[other].value - 1) * 100, abs=0.05)
    wrong = {name for name in step if abs(4096 / step[name].value / rate[name].value - 1) > 0.001}
    assert wrong == {slip.metric for slip in paper_of("overhead").slips} == {"cpt"}


def test_the_sweeps_share_the_papers_default_with_its_main_table():
    """α = 1 and E0 = 2.5 are the run of the main table; ρ = 0.2 differs on old by the slip that is listed."""
    main_table = paper_of("temporal_qa").panels
    for name in ("thresholds", "ease"):
        panel = paper_of(name).panels["TinyLlama, code"]
        assert panel[TABLES[name].default] == main_table["TinyLlama, code"]["srt"]
    ratio = paper_of("ratio").panels["TinyLlama, Wikipedia"]["20/80"]
    assert {**ratio, "old": Figure(49.0, 2.1)} == main_table["TinyLlama, Wikipedia"]["srt"]


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name].values])
def test_a_sweep_varies_what_the_papers_rows_say(name):
    table, paper = TABLES[name], paper_of(name)
    assert list(table.values) == list(paper.panels[paper.first])
    assert table.default in table.values
    shares = {row: float(row.partition("/")[0]) / (100 if "/" in row else 1) for row in table.values}
    assert dict(table.values) == shares


@pytest.mark.parametrize("scale", ["demo", "paper"])
@pytest.mark.parametrize("name", TABLES)
def test_every_recipe_loads_with_everything_that_is_set_on_it(name, scale):
    table = TABLES[name]
    for value in table.values.values() or [None]:
        more = [f"{table.key}={value}"] if table.key else []
        recipe = load_recipe(HERE / name / f"{scale}.yaml", more)
        assert recipe.model.tuning == "full"
        assert recipe.review.preset == "paper"


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name].asks])
def test_the_paper_scale_has_the_appendix_hyperparameters(name):
    given = load_recipe(HERE / name / "paper.yaml").as_dict()
    training = {
        "steps": "one_pass", "batch_size": 512, "micro_batch_tokens": 16384, "learning_rate": 1e-4,
        "schedule": "linear", "warmup_steps": 200, "weight_decay": 0.001, "max_grad_norm": 1.0, "seed": 0,
    }  # fmt: skip
    assert given["training"] == training
    assert (given["model"]["dtype"], given["model"]["gradient_checkpointing"]) == ("bfloat16", True)
    assert given["data"]["max_length"] == 2048
    review = {"scheduler": "srt", "old_fraction": 0.2, "initial_ease": 2.5, "min_ease": 1.3, "alpha": 1.0,
              "recall": "absolute", "underfull": "short", "thresholds": None}  # fmt: skip
    assert review.items() <= given["review"].items()


# --- what is printed ------------------------------------------------------------------------------------------------


def outcome(name, ours):
    return printed.Outcome(name, TABLES[name].title, "demo", ours, paper_of(name), ("A sentence.",))


def test_each_figure_of_the_paper_is_printed_once_beside_ours():
    ours = {"here": {"srt": {"old": Figure(87.65, 1.94, 0.31), "new": Figure(9), "combined": Figure(48.3)}}}
    text = printed.told(outcome("temporal_qa", ours), "terminal")
    assert "87.7 ± 1.9 (± 0.3)" in text
    for panel in paper_of("temporal_qa").panels.values():
        for cells in panel.values():
            for figure in cells.values():
                assert f"{figure.value:.1f} ± {figure.sd:.1f}" in text
    assert text.count("49.0 ± 2.1") == 1
    assert text.rstrip().endswith("the mean of 17.4 and 14.8 is 16.1.")


@pytest.mark.parametrize(
    ("name", "style", "row"),
    [
        ("temporalwiki", "markdown", "| base | 1,961 | 2,263 | 2,112 |"),
        ("thresholds", "latex", r"1.5 & 4.8 $\pm$ 1.1 & 5.4 $\pm$ 1.0 & 5.1 $\pm$ 0.9 \\"),
        ("overhead", "terminal", "% over cpt – +10.8 +14.7"),
    ],
)
def test_tables_are_written_in_each_style(name, style, row):
    text = printed.told(outcome(name, {}), style)
    assert row in " ".join(text.split())
    assert "A sentence." in text


def test_a_sweeps_sentence_says_who_is_best_and_that_it_is_no_difference():
    steady = {row: {"combined": Figure(80.0 + i / 10, runs=(80.0, 80 + i / 5))} for i, row in enumerate(("a", "b"))}
    assert sentences._paired(steady["b"]["combined"], steady["a"]["combined"]).endswith("no more than seeds explain")
    apart = Figure(90.0, runs=(90.0, 90.1)), Figure(80.0, runs=(80.0, 80.2))
    assert sentences._paired(*apart).endswith(": a difference")
    assert sentences._paired(Figure(1.0, runs=(1.0,)), Figure(0.5, runs=(0.5,))) == "+0.5 points, with one seed"


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_table_that_is_not_there_is_told_with_the_one_that_was_meant(capsys):
    assert main(["tresholds"]) == 2
    told = capsys.readouterr().err
    assert "'tresholds' is no table (did you mean 'thresholds'?)" in told
    assert all(name in told for name in TABLES)
    assert chosen("all") == list(TABLES)


def test_what_is_missing_at_the_papers_scale_is_told_at_once(tmp_path, monkeypatch, capsys):
    """Before a model is loaded: each file by name, what it must be, and how it is named."""
    monkeypatch.chdir(tmp_path)
    assert main(["temporal_qa", "--scale", "paper", "data.new=mine.jsonl"]) == 2
    told = capsys.readouterr().err
    assert "its corpora and questions were not released" in told
    assert "data.old: wiki_old.jsonl does not exist" in told
    assert "31,729 Wikipedia articles" in told
    assert "data.new: mine.jsonl does not exist" in told
    assert "--questions = wiki_questions.jsonl: no such file or folder: expected JSONL with question" in told


def test_all_of_the_papers_scale_is_refused_together_and_each_file_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError) as error:
        materials.check(list(TABLES), materials.Brought())
    names = ("wiki_old", "wiki_new", "code_old", "code_new", "wiki_questions", "code_questions", "probes")
    assert len(error.value.faults) == len(names)
    assert all(any(f" {name}" in fault for fault in error.value.faults) for name in names)


def test_what_was_brought_is_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("code_old.jsonl", "code_new.jsonl", "mine.jsonl"):
        Path(name).write_text('{"text": "a"}\n')
    brought = materials.Brought(questions="mine.jsonl")
    materials.check(["ease"], brought)
    assert materials.paper("ease", brought).asked == [("qa", "mine.jsonl")]


# --- what is made ---------------------------------------------------------------------------------------------------


def test_the_skills_files_are_read_as_the_benchmarks_and_nothing_asked_was_taught(tmp_path):
    skills.write(tmp_path, ["anatomy", "virology"], ["snarks", "navigate"])
    data = LocalData(tmp_path)
    taught = "\n".join(skills.lessons().texts)
    found = {
        "mmlu": data.splits({"dataset_path": "cais/mmlu", "dataset_name": "anatomy", "task": "mmlu_anatomy"})["test"],
        "bbh": data.splits({"dataset_path": "SaylorTwift/bbh", "dataset_name": "snarks", "task": "bbh"})["test"],
        "gsm8k": data.splits({"dataset_path": "openai/gsm8k", "dataset_name": "main", "task": "gsm8k"})["test"],
        "piqa": data.splits({"dataset_path": "baber/piqa", "task": "piqa"})["validation"],
    }
    assert {name: len(rows) for name, rows in found.items()} == skills.ASKED
    for name, rows in found.items():
        key = {"mmlu": "question", "bbh": "input", "gsm8k": "question", "piqa": "goal"}[name]
        assert not [row[key] for row in rows if row[key] in taught], name
    assert len({row["answer"] for row in found["mmlu"]}) > 1
    sums = [(row["question"], row["answer"]) for row in found["gsm8k"]]
    numbers = [[int(word) for word in question.replace(".", "").split() if word.isdecimal()] for question, _ in sums]
    assert [int(answer.rpartition("#### ")[2]) for _, answer in sums] == [a + b for a, b in numbers]


def test_the_skills_that_are_taught_are_right():
    """By rules that are written again here."""
    rng = skills.np.random.default_rng(5)
    for row in skills._pairs(rng, 200, asked=True):
        a, b = (int(word) for word in row["question"].rstrip("?").split() if word.isdecimal())
        size = "much" if abs(a - b) > skills.MUCH else "a little"
        assert row["choices"][row["answer"]] == f"{size} {'larger' if a > b else 'smaller'}"
    for row in skills._truths(rng, 100, asked=False):
        assert row["target"] == str(eval(row["input"].partition(": ")[2]))
    for row in skills._uses(rng, asked=True):
        goal = next(goal for goal in skills.TOOLS if goal in row["goal"])
        assert skills.TOOLS[goal] in row["sol2" if row["label"] else "sol1"]


def test_the_probes_ask_what_is_so_now(tmp_path):
    here = world.make(0, world.Sizes(people=6, added=2, changed=5))
    materials._write_probes(here, tmp_path)
    probes = load_probes(tmp_path)
    assert {p.subject for p in probes} == {fact.person for fact in here.old}
    told = set(world.texts([*here.old, *here.new]))
    assert all(f"{p.subject} {p.relation} {p.object}." in told for p in probes)
    new = set(world.texts(here.new))
    changed = {p.split for p in probes if f"{p.subject} {p.relation} {p.object}." in new}
    assert changed == {"changed"}
    assert sum(p.split == "changed" for p in probes) == 5


def test_lessons_are_taught_and_the_demos_own_base_is_what_it_was(tmp_path, monkeypatch):
    """A base with lessons lies in another folder, knows their words, and takes longer texts; without, nothing moves."""
    from transformers import AutoConfig, AutoTokenizer

    monkeypatch.setenv("SRT_PEFT_HOME", str(tmp_path))
    here, shape = world.make(0, world.Sizes(people=2, added=1, changed=1)), Shape(width=16, heads=2, hidden=16, steps=2)
    plain = made(here, shape, quietly)
    taught = made(here, shape, quietly, replace(skills.lessons(), texts=("<unk> Ada asks: 7 + 5 is 12.",)))
    assert plain != taught
    tokenizer = AutoTokenizer.from_pretrained(taught / "base")
    ids = tokenizer("Ada asks: 12.")["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == "Ada asks : 12."
    assert AutoConfig.from_pretrained(taught / "base").max_position_embeddings == skills.LENGTH
    words = [base.UNKNOWN, base.END, *world.vocabulary()]
    own = [base.VERSION, asdict(shape), words, base.MAX_LENGTH, base.HOLDOUT, world.files_of(here)]
    assert plain.name == blake2b(json.dumps(own).encode(), digest_size=8).hexdigest()
    assert {path.name for path in taught.iterdir()} - {path.name for path in plain.iterdir()} == {"lessons.jsonl"}


# --- all of it ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_table_runs_and_is_printed_again_without_running(tmp_path):
    """All seven in their quick form, in one command; asked again, they cost no step."""
    surroundings = {**os.environ, "SRT_PEFT_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [
        sys.executable,
        "-m",
        "eval.paper",
        "all",
        "--quick",
        "--format",
        "json",
        "--output",
        str(tmp_path / "o"),
    ]
    documents = []
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        documents.append(json.loads(done.stdout)["tables"])
    assert " is there already." in done.stderr
    assert ", seed 0; about" not in done.stderr
    assert documents[0] == documents[1]
    for table in documents[0]:
        name = table["table"]
        assert table["sentences"]
        for source, panel in table["ours"].items():
            rows = list(paper_of(name).panels[paper_of(name).first])
            expected = rows if source != "uniform here" else list(TABLES[name].control)
            assert set(expected) - {"ppl"} <= set(panel), (name, source)
    assert [table["table"] for table in documents[0]] == list(TABLES)
