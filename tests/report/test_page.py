"""What stands on the page, and what it costs; test_browser opens it."""

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from srt_peft import OptionError, ReviewLog, ReviewState, cli
from srt_peft.commands.report import draw
from srt_peft.data.pool import Pool
from srt_peft.errors import DamagedError
from srt_peft.report import words
from srt_peft.report.page import write
from srt_peft.report.read import read_run
from srt_peft.review.census import count
from tests.report.conftest import HOSTILE

KNOWN_BY = ("Which flag has", "window.bad", "src=x")


class Parts(HTMLParser):
    """The scripts of a page, and every attribute that names an address."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.addresses, self.ids, self.inside = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.addresses += [attrs[name] for name in ("src", "href", "action", "data", "poster") if name in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.inside = tag == "script" and attrs.get("type") != "application/json"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


@pytest.fixture
def copy(run, tmp_path):
    """The run, to be spoilt."""
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def without_library(page):
    """The page but for its scripts."""
    return re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)


def test_training_leaves_a_page_of_one_file(run):
    """Two scripts, which its policy names by their hashes; no address; under 6 MB."""
    page = run / "report.html"
    text = page.read_text()
    parts = Parts(text)
    assert page.stat().st_size < 6e6
    assert parts.addresses == ["data:,"]
    assert len(parts.ids) == len(set(parts.ids))
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in parts.scripts]
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', text)[1]
    assert re.findall(r"sha256-([\w+/=]+)", policy) == hashes
    assert len(hashes) == 2
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_every_picture_has_a_question_and_its_figures(run):
    text = without_library(run / "report.html")
    pictures = re.findall(r"<figure.*?</figure>", text, flags=re.DOTALL)
    assert len(pictures) >= 11
    for picture in pictures:
        assert 'role="img" aria-label=' in picture
        assert len(re.search(r"<p id=.*?>(.*?)</p>", picture)[1]) > 40
        assert picture.count("<tr>") >= 2
        data = json.loads(re.search(r"<script type=.*?>(.*?)</script>", picture, flags=re.DOTALL)[1])
        assert any(len(trace["y"]) for trace in data["data"])


def test_what_the_page_says_is_what_the_run_did(run):
    """The draws, the last held-out perplexity, and the hardest examples in their order."""
    text = html.unescape(without_library(run / "report.html"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    old, new = (sum(line.get(pool, 0) for line in lines) for pool in ("old", "new"))
    assert f"{words.percent(old / (old + new))} (ρ 50" in text
    assert f"<dt>reviews</dt><dd>{old + new:,}</dd>" in text
    for pool in ("old", "new"):
        last = [line for line in lines if f"held_out_{pool}_nll" in line][-1][f"held_out_{pool}_nll"]
        assert f"<dt>held out, {pool}</dt><dd>{words.perplexity(last)}</dd>" in text
    state = ReviewState.open(run / "review/state")
    order = np.argsort(-state.signal[: state.n_old], kind="stable")[:12]
    section = text[text.index("The hardest examples") :].partition("<h3>new")[0]
    assert [int(i) for i in re.findall(r"example ([\d,]+) ·", section)] == order.tolist()
    pool = Pool.open(run / "pools/old/train")
    assert all(pool.text(int(i)) in section for i in order)


def test_texts_are_escaped(run):
    text = without_library(run / "report.html")
    assert html.escape(HOSTILE) in text
    assert HOSTILE not in text
    assert "<img" not in text


def test_without_texts_there_is_none_in_the_file(run, tmp_path):
    """Not in any form: the bytes are searched."""
    assert cli.main(["report", str(run), "--no-text", "--out", str(tmp_path / "page.html")]) == 0
    content = (tmp_path / "page.html").read_bytes()
    assert b"Their texts were left out" in content
    assert b"returns after" in content
    there = (run / "report.html").read_bytes()
    for known in KNOWN_BY:
        assert known.encode() not in content
    assert KNOWN_BY[0].encode() in there


def test_what_is_missing_is_left_out_and_told(copy):
    """No log, a torn line of metrics, texts that are gone."""
    (copy / "review/log").unlink()
    shutil.rmtree(copy / "pools")
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "lo')
    text = without_library(write(copy))
    assert "1 torn lines of metrics.jsonl are left out" in text
    assert "There is no review log" in text
    assert "The texts of old are not shown" in text
    assert "Training loss" in text
    assert "Forgetting curves" not in text


def test_a_run_that_has_not_ended_can_be_looked_at(copy):
    """Nobody vouches for its state yet."""
    with ReviewState.open(copy / "review/state", "r+"):
        assert "Intervals" in without_library(write(copy))


def test_a_run_before_its_first_step(tmp_path):
    """A state, a recipe, and nothing else yet."""
    ReviewState.create(3, 0, folder=tmp_path / "review/state").close()
    (tmp_path / "recipe.yaml").write_text("model: {base: b}\nreview: {scheduler: srt, old_fraction: 0.2}\n")
    (tmp_path / "metrics.jsonl").write_text("")
    assert "new examples</dt><dd>none" in without_library(write(tmp_path))


def test_steps_at_which_nothing_was_drawn(copy):
    """They have a loss of 0 that is none."""
    lines = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    none = {"loss": 0.0, "tokens": 0, "old": 0, "new": 0}
    told = [line | none if "loss" in line and line["step"] >= 20 else line for line in lines]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    course = read_run(copy).course
    assert course.empty == 10
    assert np.isnan(course.loss[20:]).all()
    assert (course.loss[:20] > 0).all()


@pytest.mark.parametrize("words", [["report", "nowhere"], ["report", "."]])
def test_what_is_no_run_is_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert "expected the folder of a run or of a comparison" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_one_page_cannot_be_two(run, capsys):
    assert cli.main(["report", str(run), str(run), "--out", "x.html"]) == 2
    assert "--out = x.html: expected one RUN with it" in capsys.readouterr().err


def test_a_page_that_cannot_be_written(run, tmp_path):
    with pytest.raises(OptionError, match="No such file or directory: expected a file that can be written"):
        write(run, out=tmp_path / "no/such/page.html")


def test_without_plotly_it_is_told_how_to_get_it(run, monkeypatch, capsys):
    """`report` refuses; what has just been trained is only told of."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert cli.main(["report", str(run)]) == 2
    assert "pip install 'srt-peft[report]'" in capsys.readouterr().err
    draw(run)
    assert "pip install 'srt-peft[report]', then `srt-peft report" in capsys.readouterr().err


def test_a_page_that_fails_does_not_fail_the_run(copy, capsys):
    (copy / "review/log").write_bytes(b"no log")
    with pytest.raises(DamagedError):
        write(copy)
    draw(copy)
    assert "The page with pictures was not written; `srt-peft report" in capsys.readouterr().err


def test_the_census_counts_every_example(tmp_path):
    """Against the columns, in both pools."""
    chance = np.random.default_rng(0)
    with ReviewState.create(700, 300, folder=tmp_path) as state:
        state.columns["visits"][:] = chance.integers(0, 40, 1000)
        state.columns["interval"][:] = 2 ** chance.integers(0, 30, 1000)
        state.columns["ease"][:] = chance.integers(130, 900, 1000)
        state.suspend(range(5))
        found = count(state)
        seen = state.visits > 0
        assert found.seen == (seen[:700].sum(), seen[700:].sum())
        assert (found.examples, found.suspended, found.ease_width) == ((700, 300), 5, 0.5)
        for pool, rows in enumerate((slice(0, 700), slice(700, 1000))):
            mine = seen[rows]
            visits, interval, ease = (values[rows] for values in (state.visits, state.interval, state.ease))
            assert found.visits[pool, :3].tolist() == [
                (visits == 0).sum(),
                (visits == 1).sum(),
                (visits // 2 == 1).sum(),
            ]
            assert found.visits[pool].sum() == visits.size
            assert found.interval[pool, 7] == (interval[mine] == 128).sum()
            assert found.ease[pool, 4] == ((ease[mine] >= 2) & (ease[mine] < 2.5)).sum()
            assert found.interval[pool].sum() == found.ease[pool].sum() == mine.sum()


def test_a_long_run_makes_a_small_page(tmp_path, run):
    """1e5 steps over 1e6 examples: as many points as a short one, and it says so."""
    shutil.copy(run / "recipe.yaml", tmp_path)
    ReviewState.create(500_000, 500_000, folder=tmp_path / "review/state").close()
    ids = np.arange(1000)
    with ReviewLog(tmp_path / "review/log", "a") as log:
        for step in range(0, 100_000, 500):
            log.append(step, (ids * 997 + step) % 1_000_000, np.full(1000, 3.0), np.full(1000, 4), 500_000)
    line = {"loss": 3.0, "tokens": 9, "seconds": 0.1, "old": 2, "new": 8, "due_old": 5, "due_new": 6}
    with (tmp_path / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps({"step": step, **line}) + "\n" for step in range(100_000))
    page = write(tmp_path)
    assert page.stat().st_size < 6e6
    assert "Each point is the mean of 417 steps." in without_library(page)


TOLD = {
    words.number: [
        (0, "0"), (0.5, "0.500"), (-12.345, "−12.35"), (123.4, "123.4"), (12345.6, "12,346"), (1e12, "1.00e+12"),
        (4e-5, "4.00e−05"), (float("nan"), "–"), (float("inf"), "∞"), (None, "–"),
    ],
    words.whole: [(1234, "1,234"), (2.5, "2.5"), (float("nan"), "–")],
    words.percent: [(0.2013, "20.1\u202f%"), (1, "100\u202f%"), (None, "–"), (-0.5, "−50\u202f%")],
    words.perplexity: [(0, "1.000"), (1e6, "∞"), (None, "–")],
    words.duration: [(1.26, "1.3 s"), (200, "3 min 20 s"), (3900, "1 h 5 min")],
}  # fmt: skip


@pytest.mark.parametrize(("say", "value", "told"), [(say, *case) for say, cases in TOLD.items() for case in cases])
def test_numbers_are_told_as_a_person_reads_them(say, value, told):
    assert say(value) == told


def test_a_report_needs_no_torch():
    code = "import sys; from srt_peft.report import charts, contest, page; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_page_goes_where_a_link_leads_and_never_in_the_place_of_a_device(run, tmp_path):
    """Links stay links; /dev/null, a folder and a pipe stay what they are."""
    (tmp_path / "real.html").write_text("before")
    (tmp_path / "link.html").symlink_to("real.html")
    os.mkfifo(tmp_path / "pipe")
    assert write(run, out=tmp_path / "link.html") == (tmp_path / "real.html").resolve()
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text().startswith("<!doctype html>")
    (tmp_path / "null").symlink_to("/dev/null")
    for place, what in (
        ("/dev/null", "no file, but a device"),
        ("null", "no file"),
        ("pipe", "or a pipe"),
        (".", "a folder"),
    ):
        with pytest.raises(OptionError, match=f"is {what}|{what}.*: expected the name of a file"):
            write(run, out=tmp_path / place)
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("scheduler", ["cpt", "match"])
def test_no_share_is_held_against_what_its_scheduler_does_not_aim_at(scheduler, copy):
    recipe = (copy / "recipe.yaml").read_text()
    (copy / "recipe.yaml").write_text(recipe.replace("scheduler: srt", f"scheduler: {scheduler}"))
    assert "old in the draws" in without_library(write(copy))
    assert "(ρ" not in without_library(copy / "report.html")


def test_a_log_that_lacks_steps_is_told(copy):
    """Set aside as damaged, or cut: what is drawn of it is a part."""
    with ReviewLog(copy / "review/log", "a") as log:
        log.truncate(20)
    assert "The review log lacks 10 of 30 steps: its pictures show the others." in without_library(write(copy))


def test_damage_is_named_with_a_remedy(copy):
    """A log whose steps go back, and a recipe that is none."""
    content = (copy / "review/log").read_bytes()
    (copy / "review/log").write_bytes(content + content[64:80])
    with pytest.raises(DamagedError, match=r"its steps go back.* Move it elsewhere, and the page is drawn without it"):
        write(copy)
    (copy / "review/log").unlink()
    write(copy)
    (copy / "recipe.yaml").write_text("model: {base: [")
    with pytest.raises(DamagedError, match=r"recipe\.yaml is damaged \("):
        write(copy)
