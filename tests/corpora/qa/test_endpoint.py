"""A model behind an address: what it answers badly, and that nothing of what it answered is lost."""

import email.utils
import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import srt_peft
from srt_peft.corpora.qa import asking, endpoint, making
from srt_peft.corpora.qa.checks import Draft
from srt_peft.corpora.qa.drafts import Drafts
from srt_peft.corpora.qa.endpoint import Endpoint
from srt_peft.corpora.qa.items import Item
from srt_peft.errors import DamagedError, LockedError, OptionError, SRTError
from tests.corpora.qa import world
from tests.corpora.qa.service import (
    KEY,
    busy_and_torn,
    cut_off,
    drips,
    fenced,
    hangs,
    obliging,
    prose,
    serving,
    status,
    torn,
)
from tests.corpora.qa.test_making import run


@pytest.fixture
def folder(tmp_path):
    return world.build(tmp_path / "towns", trained=3, held=4)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(endpoint, "WAIT", 0.01)


def items(count=1):
    said = "Kestrel Bay has 4,210 inhabitants."
    return [Item(str(i), "d", "Kestrel Bay", None, "new", said, 0, len(said)) for i in range(count)]


def asking_at(service, *, timeout=5.0, concurrency=1, key=KEY):
    return Endpoint(service.url, "some-model", key=key, timeout=timeout, concurrency=concurrency)


def make(folder, service, n=4, out="qa.jsonl", **options):
    return making.make(folder, folder / out, n, lambda _: asking_at(service, **options), 0, {})


def test_questions_are_asked_for_and_read(folder):
    with serving() as service:
        outcomes = make(folder, service, concurrency=3)
    assert {split: len(one.made) for split, one in outcomes.items()} == {"old": 4, "new": 4}
    rows = world.rows(folder / "qa.jsonl")
    assert {row["maker"] for row in rows} == {"some-model"}
    assert all(row["choices"]["ABCD".index(row["answer"])] in row["passage"] for row in rows)
    assert {headers["Authorization"] for headers in service.headers} == {f"Bearer {KEY}"}
    assert not any(KEY in path.read_text() for path in folder.iterdir())


@pytest.mark.parametrize(
    "deed",
    [status(429), status(503), status(500), status(429, Retry_After="nan"), cut_off, torn, hangs, drips, busy_and_torn],
)
def test_what_may_pass_is_tried_again(deed):
    with serving(deed, deed) as service:
        ((_, made),) = asking_at(service, timeout=0.5).drafts(items())
    assert isinstance(made, Draft)
    assert len(service.asked) == 3


def test_waiting_is_as_long_as_the_service_asks_for():
    """In seconds or as a date; where it says nothing, ever longer."""
    date = email.utils.formatdate(time.time() + 2.6, usegmt=True)
    with serving(
        status(429, Retry_After="1"), status(503, Retry_After=date), status(429, Retry_After="soon")
    ) as service:
        begun = time.monotonic()
        ((_, made),) = asking_at(service).drafts(items())
        took = time.monotonic() - begun
    assert isinstance(made, Draft)
    assert 1.5 < took < 6


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        (status(429), "429 Too Many Requests (no), 3 times in a row. What was answered is kept"),
        (status(429, Retry_After="86400"), "asks for 86,400 s of patience. What was answered is kept"),
        (status(401, f"bad key {KEY}"), "401 Unauthorized (bad key ***). Put the key into the environment variable"),
        (status(404), "404 Not Found (no). Look whether the address"),
        (status(302, Location="http://127.0.0.1:1/"), "302 Found"),
        (status(200, f"<html>{KEY}"), "no chat completion (<html>***). Expected the address"),
        (status(200, '{"choices": []}'), "no chat completion"),
        (cut_off, "breaks the connection off (RemoteDisconnected), 3 times"),
        (hangs, "does not answer within 0.3 s, 3 times"),
    ],
)
def test_what_will_not_pass_ends_in_words(folder, deed, told, monkeypatch):
    """What was answered before is kept, and not asked for again; the key is told to nobody."""
    monkeypatch.setattr(endpoint, "TRIES", 3)
    with serving(*[obliging] * 2, *[deed] * 3) as service:
        with pytest.raises(SRTError) as failed:
            make(folder, service, timeout=0.3)
        assert told in str(failed.value)
        assert KEY not in str(failed.value)
        assert not (folder / "qa.jsonl").exists()
        assert len(world.rows(folder / "qa.jsonl.drafts")) == 1 + 2
        service.deeds, first, asked = [], subjects(service)[:2], len(service.asked)
        make(folder, service)
        assert len(world.rows(folder / "qa.jsonl")) == 8
        assert not set(first) & set(subjects(service)[asked:])


def test_an_empty_reply_is_asked_about_again_without_it():
    """A service that refuses an empty turn would end the command otherwise."""
    with serving(lambda handler: handler.chat(""), lambda handler: handler.chat(None)) as service:
        ((_, made),) = asking_at(service).drafts(items())
    assert isinstance(made, Draft)
    assert service.asked[0] == service.asked[1] == service.asked[2]


@pytest.mark.parametrize("key", [f"{KEY}\rx", f"{KEY} x", f"{KEY}é"])
def test_a_key_that_cannot_be_sent_is_not_printed(key):
    """http.client says it in full where a header cannot carry it; the end of a file's line is cut off."""
    with serving() as service:
        with pytest.raises(OptionError, match="--api-key-env names a key with") as refused:
            asking_at(service, key=key)
        assert KEY not in str(refused.value)
        list(asking_at(service, key=f"{KEY}\r\n").drafts(items()))
    assert service.headers[0]["Authorization"] == f"Bearer {KEY}"


def subjects(service):
    """What was asked about, a request each."""
    return [messages[1]["content"] for messages in service.asked]


def test_prose_is_asked_about_again_and_then_counted():
    """Three times in all, each time with what was wrong; an object among prose is read."""
    with serving(prose, fenced) as service:
        ((_, made),) = asking_at(service).drafts(items())
    assert made == Draft("Kestrel Bay: Which {x}", "5", ("1", "2", "3"))
    assert "not prose" in service.asked[1][-1]["content"]
    assert service.asked[1][-2]["role"] == "assistant"
    assert service.asked[1][-2]["content"].startswith("What a lovely passage!")
    with serving(*[prose] * 3) as service:
        ((_, made),) = asking_at(service).drafts(items())
    assert made == "no question in 3 replies of the model"
    assert len(service.asked) == 3


def test_a_model_that_only_chats_yields_nothing_and_that_is_told(folder):
    """Each statement is counted, and none is asked about again."""
    with serving(*[prose] * 1000) as service:
        with pytest.raises(OptionError, match=r"no question .*16 no question in 3 replies") as failed:
            make(folder, service)
        assert "larger --held-out, or have another model ask" in str(failed.value)
        asked = len(service.asked)
        with pytest.raises(OptionError) as again:
            make(folder, service)
        assert str(again.value) == str(failed.value)
        assert len(service.asked) == asked


def test_a_model_that_never_gets_it_right_is_not_paid_for_ever(folder, monkeypatch):
    monkeypatch.setattr(making, "HOPELESS", 5)
    with serving(*[prose] * 1000) as service:
        with pytest.raises(SRTError, match=r"Of 5 answers of some-model none passes the checks \(5 no question in 3"):
            make(folder, service)
        assert len(service.asked) <= 30  # of 84
    assert len(world.rows(folder / "qa.jsonl.drafts")) == 1 + 5


def test_as_few_are_asked_about_as_it_takes(folder):
    """A quarter more than there are questions to make, of each split; a larger n goes on from there."""
    with serving() as service:
        make(folder, service, n=2)
        few = len(service.asked)
        assert few <= 6
        with pytest.raises(OptionError, match="what a model has answered is kept beside it, and not asked for again"):
            make(folder, service, n=3)
        (folder / "qa.jsonl").unlink()
        make(folder, service, n=3)
        assert not set(subjects(service)[:few]) & set(subjects(service)[few:])


@pytest.mark.parametrize(
    "reply",
    [
        "", "[]", "{}", "{" * 5000, '{"question": 5}', '{"question": "a", "right": "b"}',
        '{"question": "a", "right": "b", "wrong": [[]]}', '{"question": null, "right": "b", "wrong": []}',
    ],
)  # fmt: skip
def test_replies_that_are_no_question_are_told_apart(reply):
    assert isinstance(asking.read(reply, items()[0]), str)


def test_a_question_that_names_nothing_is_given_its_title():
    read = asking.read('{"question": "How many live there?", "right": "4", "wrong": ["1", "2", "3"]}', items()[0])
    assert read.question == "Kestrel Bay: How many live there?"


COMMAND = [sys.executable, "-m", "srt_peft", "corpus", "qa"]
HOME = str(Path(srt_peft.__file__).parent.parent)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_loses_no_answer(folder, end, monkeypatch):
    """Killed in the middle, the same command goes on: nothing is asked about twice, and the file is whole."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("PYTHONPATH", HOME)
    with serving() as service:
        service.delay = 0.1
        command = [
            *COMMAND,
            "--from",
            str(folder),
            "--n",
            "6",
            "--endpoint",
            service.url,
            "--model",
            "m",
            "--concurrency",
            "2",
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while len(service.asked) < 5:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(end)
        told = process.communicate(timeout=20)[1]
        drafts = folder / "questions.jsonl.drafts"
        kept = drafts.read_text().count("\n") - 1
        assert kept >= 2
        if end == signal.SIGINT:
            assert process.returncode == 130
            assert f"{kept} answers are kept in {drafts}: the same command goes on" in told
        with drafts.open("a") as file:
            file.write('{"item": "torn')
        service.delay, asked = 0, len(service.asked)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr + told
    first, later = subjects(service)[:asked], subjects(service)[asked:]
    assert len(set(first) & set(later)) <= 4  # those that were under way, and had just come in
    assert len(set(first) - set(later)) >= kept
    rows = world.rows(drafts)[1:]
    assert len({row["item"] for row in rows}) == len(rows)
    assert "old: 6 of 6 questions" in done.stdout
    assert "new: 6 of 6 questions" in done.stdout


def test_answers_of_another_making_are_refused_by_name(folder):
    with serving() as service:
        make(folder, service, n=1)
        (folder / "qa.jsonl").unlink()
        other = Endpoint(service.url, "other", key=None, timeout=5, concurrency=1)
        with pytest.raises(
            OptionError, match=r"qa.jsonl.drafts holds answers of another making \(model 'some-model'\)"
        ):
            making.make(folder, folder / "qa.jsonl", 1, lambda _: other, 0, {})
        asked = len(service.asked)
    drafts = folder / "qa.jsonl.drafts"
    drafts.write_text(drafts.read_text() + "nonsense\n")
    with serving() as service, pytest.raises(DamagedError, match=f"drafts, line {asked + 2} is no answer of ours"):
        make(folder, service, n=1)


def test_what_the_same_command_meets_again_is_not_said_to_go_on(folder):
    """Answers are kept, but another model's command, a damaged file and one that is held are refused each time."""
    with serving() as service:
        make(folder, service, n=1)
        (folder / "qa.jsonl").unlink()
        words = ("qa", "--from", folder, "--out", folder / "qa.jsonl", "--endpoint", service.url, "--model", "other")
        told = run(*words, code=2)
        drafts = folder / "qa.jsonl.drafts"
        drafts.write_text(drafts.read_text() + "nonsense\n")
        damaged = run(*words, code=1)
        drafts.write_text(drafts.read_text().replace("nonsense\n", ""))
        with closing(Drafts(drafts, json.loads(drafts.read_text().partition("\n")[0])["made_from"])):
            locked = run(*words, code=1)
    assert "holds answers of another making" in told
    assert "is no answer of ours" in damaged
    assert f"{drafts} is being written" in locked
    assert "the same command goes on" not in told + damaged + locked


def test_who_has_a_model_ask_is_not_told_to_have_one_ask(folder):
    with serving() as service:
        told = run("qa", "--from", folder, "--n", 100, "--endpoint", service.url, "--model", "m", "--concurrency", 4)
    assert "There are no more: make the corpus with a larger --held-out, or have another model ask." in told


def test_two_at_once_do_not_mix(folder):
    held = Drafts(folder / "qa.jsonl.drafts", {})
    with serving() as service, pytest.raises(LockedError):
        make(folder, service)
    held.close()


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("localhost:8000", {}, "expected an address such as http"),
        ("file:///etc/passwd", {}, "expected an address such as http"),
        ("http://", {}, "expected an address such as http"),
        ("http://me:secret@host/v1", {}, "put the key into an environment variable"),
        ("http://host/v1?key=secret", {}, "put the key into an environment variable"),
        ("http://host/v1 x", {}, "expected an address such as http"),
        ("http://host/vé", {}, "expected an address such as http"),
        ("http://a..b/v1", {}, "expected an address such as http"),
        ("http://host/v1", {"timeout": 0}, "--timeout = 0: expected seconds"),
        ("http://host/v1", {"timeout": float("inf")}, "--timeout = inf: expected seconds"),
        ("http://host/v1", {"concurrency": 0}, "--concurrency = 0: expected 1 or more"),
    ],
)
def test_what_cannot_be_asked_is_refused(url, options, told):
    with pytest.raises(OptionError) as refused:
        Endpoint(url, "m", key=None, **{"timeout": 1, "concurrency": 1, **options})
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)
