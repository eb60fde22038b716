"""`python -m eval.study`: a tiny grid end to end, a kill and a failure in the middle, and what its tables add up."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml

import eval.study
from eval.study import aims, cells, controls, figures, pictures, plan, table, texts, worlds
from eval.study.figures import Against, Block, Line, One
from srt_peft import make_scheduler
from srt_peft.errors import OptionError
from srt_peft.evaluation.paired import student
from tests.evaluation import world

ROOT = Path(eval.study.__file__).parents[2]
FACTS = {"kind": "facts", "people": 8, "added": 3, "changed": 4, "taught": 3, "steps": 3}


def begun(*words, home, wait=True):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "SRT_PEFT_HOME": str(home)}
    command = [sys.executable, "-m", "eval.study", *map(str, words)]
    if wait:
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def grid(folder, rows, **given):
    about = {"seeds": "5", "tuning": ["full"], "rows": rows, "worlds": {"tiny": FACTS}, **given}
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(about), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where the bases of facts are kept: they are made once for all these tests."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder as the README says, small: few documents each, and a base that knows nothing."""
    folder = tmp_path_factory.mktemp("data")
    made = folder / "world"
    made.mkdir()
    world.build(made, n_old=20, n_new=10, steps=1)
    words = [line["text"] for line in map(json.loads, (made / "old.jsonl").read_text().splitlines())]
    for source in (*texts.OLD.values(), *texts.NEW.values()):
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        year = "new" if "2024" in source.path else "old"
        said = [f"{year} {source.path} {i} {' '.join(np.roll(words, i)[:4].tolist())}" for i in range(40)]
        rows = [{"id": f"page {i}", "text": text, "question": text, "answer": "4"} for i, text in enumerate(said)]
        content = {
            ".gz": "".join(json.dumps(row) + "\n" for row in rows),
            "tinystories_sample.txt": "<|endoftext|>".join(said),
            "input.txt": "\n\n".join(said),
        }
        told = next(content[name] for name in content if path.name.endswith(name)).encode()
        path.write_bytes(gzip.compress(told) if path.suffix == ".gz" else told)
    base = folder / texts.BASE
    base.parent.mkdir(parents=True)
    (made / "base").rename(base)
    return folder


# --- run ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_grid_is_run_once_and_again_costs_nothing(home, data, tmp_path):
    """Facts, text, clusters, two processes: all figures are there, compute is matched, and no weights are left."""
    rows = [
        {"name": "cpt", "entry": "cpt"},
        {"name": "uniform-epoch", "entry": "uniform-epoch"},
        {"name": "match", "entry": "match", "with": "paper"},
        {"name": "auto-quiz", "entry": "auto-quiz", "control": "shuffled-quality"},
        {"name": "more", "entry": "uniform-epoch", "compute_of": "auto-quiz"},
    ]
    text = {"kind": "text", "new": "factbook", "steps": 2, "taught": 2, "pieces": 30, "sources": "shuffled",
            "old": {"stories": 20, "factbook": 20, "peps": 10}}  # fmt: skip
    both = {name: {**one, "tuning": ["full"]} for name, one in (("tiny", FACTS), ("mixture", text))}
    both["clustered"] = {**both["mixture"], "sources": "clusters", "rows": ["auto-quiz"]}
    path = grid(tmp_path, rows, worlds=both, tuning=["lora"])  # which none has
    words = ("run", "--grid", path, "--data", data, "--jobs", 2, "--output", tmp_path / "out")
    done = begun(*words, home=home)
    assert done.returncode == 0, done.stderr
    assert "11 cells, 11 of them to do in 2 processes" in done.stderr
    found = {str(p.relative_to(tmp_path / "out" / "cells")): p for p in (tmp_path / "out" / "cells").rglob("*.json")}
    assert sorted(found) == sorted(
        f"{w}/full/{row}/5.json"
        for w, only in (("tiny", None), ("mixture", None), ("clustered", ["auto-quiz"]))
        for row in only or ("cpt", "uniform-epoch", "match", "auto-quiz", "more")
    )
    assert not list((tmp_path / "out" / "cells").rglob("*.safetensors"))
    assert not (tmp_path / "out" / "scratch").exists()

    for name in ("tiny", "mixture"):
        quiz, plain, more = (
            json.loads(found[f"{name}/full/{row}/5.json"].read_text()) for row in ("auto-quiz", "uniform-epoch", "more")
        )
        assert quiz["forward_only_tokens"] > 0 == plain["forward_only_tokens"]
        a_step = plain["tokens_trained"] / plain["steps"]
        assert abs(more["steps"] - cells.cost(quiz, "full") / a_step) <= 0.5
    for place in ("mixture/full/cpt/5.json", "clustered/full/auto-quiz/5.json"):  # asked by what they truly are
        assert set(json.loads(found[place].read_text())["groups"]["old"]) == {"stories", "factbook", "peps"}
    assert set(json.loads(found["tiny/full/cpt/5.json"].read_text())["groups"]["new"]) == {"changed", "added"}

    before = {name: p.stat().st_mtime_ns for name, p in found.items()}
    again = begun(*words, home=home)
    assert "11 cells, 0 of them to do" in again.stderr
    assert {name: p.stat().st_mtime_ns for name, p in found.items()} == before

    told = begun("table", "--grid", path, "--output", tmp_path / "out", home=home)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("| match |") == 4, "a row and its difference, in two worlds"
    assert re.search(r"Base, held-out less replayed: .*stories [+−]\d", told.stdout)


@pytest.mark.slow
def test_killed_it_goes_on_and_leaves_no_process(home, tmp_path):
    """SIGKILL after the first cell: the workers end, what is there stays, and the same command does the rest."""
    path = grid(tmp_path, [{"name": "cpt", "entry": "cpt"}], seeds="1-5")
    words = ("run", "--grid", path, "--jobs", 1, "--output", tmp_path / "out")
    process = begun(*words, home=home, wait=False)
    place = tmp_path / "out" / "cells" / "tiny" / "full" / "cpt"
    wait_for(lambda: list(place.glob("*.json")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    there = {p.name: p.stat().st_mtime_ns for p in place.glob("[0-9]*.json")}
    assert 1 <= len(there) < 5
    wait_for(lambda: not workers_at(tmp_path))
    done = begun(*words, home=home)
    assert done.returncode == 0, done.stderr
    now = {p.name: p.stat().st_mtime_ns for p in place.glob("[0-9]*.json")}
    assert sorted(now) == [f"{seed}.json" for seed in range(1, 6)]
    assert now | there == now, "finished cells are not run again"
    assert not (tmp_path / "out" / "scratch").exists()


def workers_at(folder):
    """Processes of this test's run that live: their scratch folders bear their numbers."""
    return [p.name for p in (folder / "out" / "scratch").glob("*") if Path(f"/proc/{p.name}").exists()]


def wait_for(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def test_a_failing_cell_is_told_at_the_end_and_stops_no_other(home, tmp_path):
    rows = [
        {"name": "broken", "entry": "uniform", "overrides": ["training.learning_rate=1e30"]},
        {"name": "uniform", "entry": "uniform"},
        {"name": "as broken", "entry": "uniform", "compute_of": "broken"},
        {"name": "cpt", "entry": "cpt"},
    ]
    out = tmp_path / "out"
    done = begun("run", "--grid", grid(tmp_path, rows), "--jobs", 1, "--output", out, home=home)
    assert done.returncode == 1
    assert "failed: cells/tiny/full/broken/5.json: SRTError: " in done.stderr
    assert "failed: cells/tiny/full/as-broken/5.json: It needs cells/tiny/full/broken/5.json" in done.stderr
    assert "2 cells done, 2 failed." in done.stderr
    assert {p.parent.name for p in (out / "cells").rglob("*.json")} == {"uniform", "cpt"}
    assert len(list((out / "failed").iterdir())) == 1


def test_a_cell_of_another_row_is_none_of_this_one(tmp_path):
    """A row whose overrides were changed is run anew: the file is of what was asked then."""
    cell = next(plan.load(grid(tmp_path, [{"name": "a", "entry": "cpt"}])).cells())
    (tmp_path / cell.place).parent.mkdir(parents=True)
    (tmp_path / cell.place).write_text(json.dumps({"asked": cell.asked, "seconds": 1}))
    assert cells.held(cell, tmp_path)
    other = replace(cell, row=replace(cell.row, overrides=("training.weight_decay=0.1",)))
    assert cells.held(other, tmp_path) is None


# --- the grid -------------------------------------------------------------------------------------------------------


def test_the_grid_that_is_kept_is_sound():
    for quick in (False, True):
        made = plan.load(quick=quick)
        places = [cell.place for cell in made.cells()]
        assert len(set(places)) == len(places)
    assert len(plan.load().seeds) == 5


def test_all_that_is_wrong_with_a_grid_is_told_at_once(tmp_path):
    rows = [{"name": "a", "entry": "cpd"}, {"name": "b", "entry": "cpt", "compute_of": "c", "overides": []}]
    path = grid(tmp_path, rows, worlds={"w": {**FACTS, "kind": "fact"}}, tuning=["qlora"])
    with pytest.raises(OptionError) as error:
        plan.load(path, only=["v"])
    for fault in ("'cpd' is no entry", "compute_of = 'c'", "overides", "kind = 'fact'", "'qlora'", "--only v"):
        assert fault in str(error.value)
    for content, told in (
        ("", "lacks seeds, tuning, rows, worlds"),
        ("rows: []", "lacks seeds"),
        ("a: [", "expected a"),
    ):
        (tmp_path / "g.yaml").write_text(content)
        with pytest.raises(OptionError, match=told):
            plan.load(tmp_path / "g.yaml")
    with pytest.raises(OptionError, match="No such file"):
        plan.load(tmp_path / "absent")
    with pytest.raises(OptionError, match="5-9"):
        plan.load(grid(tmp_path, [{"name": "a", "entry": "cpt"}]), seeds="9-5")


# --- the texts ------------------------------------------------------------------------------------------------------


def test_what_is_replayed_is_a_sample_of_what_was_taught_and_every_second_page_is_replaced(data, tmp_path):
    def count(text):
        return len(text.split())

    texts.write_taught(data, count, tmp_path / "taught.jsonl")
    texts.write_pools(data, {"stories": 8, "factbook": 8}, ("factbook", 30), count, tmp_path, shuffled=True)
    taught, old, new = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("taught", "old", "new")
    )
    assert {row["text"] for row in old} < {row["text"] for row in taught}
    assert sorted(row["deck"] for row in old) == sorted(row["source"] for row in old)
    assert [row["deck"] for row in old] != [row["source"] for row in old]
    pages = [row["id"] for row in old if row["source"] == "factbook"]
    assert {name for row in new for name in row["supersedes"] or []} == set(pages[::2])


def test_a_document_is_cut_between_words_and_nothing_of_it_is_lost():
    said = "a word " * 400 + "x" * 1500
    parts = list(texts._parts(said))
    assert max(map(len, parts)) <= texts.LONGEST
    assert "".join(parts).replace(" ", "") == said.replace(" ", "")
    assert all(part.endswith(("word", "a")) for part in parts[:4])


# --- the control ----------------------------------------------------------------------------------------------------


def test_shuffled_quality_deals_out_what_was_lost_among_those_of_a_draw():
    """The same amounts above the references, of others; and nothing is spoiled once it is over."""
    n = 40
    s = make_scheduler(
        "srt", old=n, new=n, batch_size=20, old_fraction=0.5, seed=3, recall="relative", reference="base"
    )
    reference = np.linspace(1, 4, n)
    s.prime(np.arange(n), reference)
    draw = s.draw()
    lost = np.where(draw.ids < n, draw.ids / 100, 0.0)
    nll = np.append(reference, np.linspace(2, 3, n))[draw.ids] + lost
    dealt = controls.dealt(s, draw.ids, nll, 0)
    old = draw.ids < n
    held = reference[draw.ids[old]]
    np.testing.assert_allclose(np.sort(dealt[old] - held), np.sort(lost[old]), atol=1e-6)
    assert not np.allclose(dealt[old], nll[old])
    np.testing.assert_allclose(np.sort(dealt[~old]), np.sort(nll[~old]))
    turned = controls.dealt(s, draw.ids[::-1], nll[::-1], 0)
    np.testing.assert_allclose(turned[::-1], dealt)
    plain = type(s).review
    with controls.spoiled("shuffled-quality"):
        assert type(s).review is not plain
        s.review(draw.ids, nll)
    assert type(s).review is plain


# --- the tables -----------------------------------------------------------------------------------------------------


def cell(after, *, new=2.0, forward=0, tokens=900):
    """A cell's file: sources a and b of 3 and 1 of weight, where the base had 1.0 and 2.0 nats, and 3.0 of new."""
    old = {
        name: {"n": 2, "weight": w, "base": b, "after": x}
        for (name, w, b), x in zip((("a", 3.0, 1.0), ("b", 1.0, 2.0)), after, strict=True)
    }
    return {
        "metric": "nll", "tokens_trained": tokens, "forward_only_tokens": forward, "old_share": 0.2,
        "groups": {"old": old, "new": {"n": {"n": 4, "weight": 4.0, "base": 3.0, "after": new}}},
    }  # fmt: skip


def test_a_cells_figures():
    """Losses are 100 and 300 thousandths: 200 in the mean of sources, 150 in that of tokens; 1,000 are gained."""
    found = figures.one(cell([1.1, 2.3], forward=300), "lora")
    assert found.sources == pytest.approx({"a": 100, "b": 300})
    assert (found.mean, found.weighted, found.new) == pytest.approx((200, 150, 1000))
    assert (found.both, found.combined) == pytest.approx((400, 425))
    assert found.compute == pytest.approx(900 + 150)
    right = cell([0.9, 1.7], new=4.0) | {"metric": "accuracy"}
    found = figures.one(right, "full")
    assert (found.mean, found.new) == pytest.approx((20, 100)), "of accuracy, less is a loss"


def line(name, *losses, new=(100.0, 100.0, 100.0), compute=100.0):
    ones = [
        One(sources={"a": a, "b": b}, mean=(a + b) / 2, weighted=(3 * a + b) / 4, new=n, changed=None, share=0.2,
            compute=compute)
        for (a, b), n in zip(losses, new, strict=True)
    ]  # fmt: skip
    return Line(name, dict(enumerate(ones)))


@pytest.fixture
def block():
    world = plan.World(name="mixture", kind="text", steps=100)
    lines = [
        line("cpt", (90, 200), (80, 210), (100, 190)),
        line("uniform", (60, 120), (60, 120), (60, 120)),
        line("uniform-epoch", (40, 100), (42, 104), (38, 96)),
        line("auto", (30, 70), (36, 68), (30, 66), new=(98.0, 99.0, 100.0), compute=110.0),
    ]
    return Block(world, "lora", "nll", {"a": 3, "b": 1, "new": 4}, {one.name: one for one in lines})


def test_rows_are_held_against_the_better_uniform_seed_by_seed(block):
    assert block.better.name == "uniform-epoch"
    assert block.lines["auto"].worst == "b"
    worst = figures.against(block.lines["auto"], block.better, "worst")
    low, high = student([30.0, 36.0, 30.0])
    assert worst == Against(32.0, pytest.approx(low), pytest.approx(high), 3)
    assert figures.against(block.lines["auto"], block.better, "new").mean == pytest.approx(-1.0)
    assert block.compute(block.lines["auto"]) == pytest.approx(1.1)
    less = replace(block.lines["auto"], by_seed={7: block.lines["auto"].by_seed[0]})
    assert figures.against(less, block.better, "mean") is None, "they have no seed in common"


def test_the_aims_say_what_is_reached_and_what_is_missed(block):
    told = "\n".join(aims.told([block]))
    assert "reached: mixture, lora: worst 68.0 against 100.0: 32 % lower, aim 20 %: +32.0" in told
    assert "reached: mixture, lora: mean 50.0 against 70.0: 29 % lower, aim 10 %: +20.0" in told
    assert "reached: mixture, lora: new, aim −5 or better: −1.0" in told
    slow = replace(block, lines={**block.lines, "auto": line("auto", (45, 101), (40, 100), (41, 99), new=(90, 91, 92))})
    told = "\n".join(aims.told([slow]))
    assert told.count("missed: ") == 3
    assert "reached" not in told
    asked = replace(block, lines={**block.lines, "decks: off, quiz": line("", (36, 90), (38, 94), (34, 86))})
    told = "\n".join(aims.told([asked]))
    assert "reached: mixture, lora: all of old, decks: off, quiz: +5.5" in told
    assert "all of old, auto-quiz" not in told, "it is not there"
    wrong = replace(block, world=replace(block.world, sources="shuffled"))
    assert "Wrong sources" in "\n".join(aims.told([wrong]))
    assert "Mixed old text" not in "\n".join(aims.told([wrong]))


def test_a_table_has_each_row_with_its_spread_and_its_interval(block, tmp_path):
    told = list(table._block(block, tmp_path))
    rows = {row.split("|")[1].strip(): row for row in reversed(told) if row.startswith("| ")}
    assert "| 50.0 ± 2.0 | 68.0 ± 2.0 b |" in rows["auto"]
    assert rows["auto"].endswith("| 20 % | 1.10 |")
    against = [row for row in told if row.startswith("| auto")][1]
    assert against.startswith("| auto | **+32.0** (+23.4 to +40.6) |")


def test_a_picture_has_a_mark_a_measure_for_each_row_that_is_not_far_off(block):
    """The better uniform is the line itself, and `cpt` would leave no room for the others."""
    drawn = ET.fromstring(pictures.picture(block))
    names = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"uniform", "auto", "mixture, lora: against uniform-epoch, thousandths of a nat a token, 3 seeds"} <= names
    assert not {"cpt", "uniform-epoch"} & names
    marks = [one for one in drawn.iter("{http://www.w3.org/2000/svg}circle") if one.get("r") == "3.5"]
    assert len(marks) == 2 * 4
    line = next(one.get("d") for one in drawn.iter("{http://www.w3.org/2000/svg}path") if "V" in one.get("d"))
    zero = float(line[1:].partition(",")[0])
    at = [float(one.get("cx")) for one in marks]  # the rows in order: uniform, and then auto
    assert all(x <= zero for x in at[:4]), "with replacement is worse on all of it"
    assert all(x > zero for x in at[4:7]), "auto has lost less on all of old"
    assert pictures.picture(replace(block, lines={"cpt": block.lines["cpt"]})) == "", "there is no uniform"


def test_what_a_group_lost_is_told_of_all_that_was_asked_and_nothing_else():
    asked = {
        "k1": {"split": "old", "group": "a", "weight": 3.0, "base": 1.0},
        "k2": {"split": "old", "group": "a", "weight": 1.0, "base": 2.0},
        "k3": {"split": "new", "group": "n", "weight": 1.0, "base": 5.0},
    }
    records = [{"key": key, "value": value} for key, value in (("k1", 2.0), ("k2", 4.0), ("k3", 4.0))]
    found = cells.grouped(asked, records)
    assert found["old"]["a"] == {"n": 2, "weight": 4.0, "base": 1.25, "after": 2.5}
    assert found["new"]["n"]["after"] == 4.0
    with pytest.raises(Exception, match="1 of 3 things were not asked"):
        cells.grouped(asked, records[1:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--data", "nowhere"], "lacks tinystories/tinystories_sample.txt, factbook/"),
        (["run", "--only", "fact-small"], "did you mean 'facts-small'?"),
        (["run", "--jobs", "0"], "--jobs = 0: expected 1 or more"),
    ],
)
def test_what_is_wrong_is_named(words, message, tmp_path):
    done = begun(*words, "--output", tmp_path / "out", home=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_seeds_share_bases_in_turn():
    five = plan.World(name="w", kind="facts", steps=1, bases=5)
    assert worlds.base_key(five, 100) == worlds.base_key(five, 105) != worlds.base_key(five, 101)
