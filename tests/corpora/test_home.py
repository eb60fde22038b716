"""What corpus commands write goes home where `~` is typed, also where the shell leaves it, as in `--out=~/corpora`."""

import pytest

from srt_peft import cli
from srt_peft.corpora.qa.decisions import digest
from tests.corpora.qa import world
from tests.corpora.qa.test_making import run
from tests.corpora.texts import jsonl
from tests.corpora.wikis import element, written


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where everything is there already."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").touch()
    for name in ("old", "new"):
        jsonl(tmp_path / f"{name}.jsonl", {"id": 1, "text": name})
        written(tmp_path, name, [element(1, "A", name)])
    world.build(tmp_path / "towns", held=4)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("text", ["--old=~/old.jsonl", "--new=~/new.jsonl", "--out=~/there.jsonl"]),
        ("wikipedia", ["--old=~/old.xml", "--new=~/new.xml", "--out=~/there.jsonl"]),
        ("code", ["--repos=~", "--out=~/there.jsonl"]),
        ("qa", ["--from=~/towns", "--out=~/there.jsonl"]),
        ("review", ["there.jsonl", "--export=~/there.jsonl"]),
    ],
)
def test_home_is_found(home, capsys, command, words):
    assert cli.main(["corpus", command, *words]) == 2
    told = capsys.readouterr().err
    assert f"= {home}/there.jsonl: " in told
    assert "there already" in told


def test_questions_are_made_and_kept_at_home(home):
    """Where an export goes need not be there yet."""
    run("qa", "--from=~/towns", "--n=2")
    made = home / "towns/questions.jsonl"
    rows = world.rows(made)
    decisions = [{"id": row["id"], "of": digest(row), "decision": "accept"} for row in rows]
    world.write(made.with_suffix(".decisions.jsonl"), decisions)
    run("review", "~/towns/questions.jsonl", "--export=~/kept/these/few.jsonl")
    assert len(world.rows(home / "kept/these/few.jsonl")) == len(rows)


def test_where_there_is_no_such_user_the_name_is_a_path(home):
    assert "~nobody-of-that-name/held-out.jsonl is not there" in run("qa", "--from=~nobody-of-that-name", code=2)
