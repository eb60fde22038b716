"""The review page, as other programs on the machine and a real browser meet it."""

import http.client
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import srt_peft
from srt_peft.corpora.qa.decisions import Decisions, as_asked, decisions_of, digest
from srt_peft.corpora.qa.page import Page
from srt_peft.errors import OptionError
from tests.corpora.qa import world
from tests.corpora.qa.service import running
from tests.corpora.qa.test_making import run
from tests.report.browser import Browser, found

HOSTILE = """</script><script>window.bad = 1</script><img src=x onerror="window.bad = 1"> & é 😀"""
HOME = str(Path(srt_peft.__file__).parent.parent)


def row(number):
    said, before = f"Number {number} is it.", f"{HOSTILE} before. "
    return {
        "question": f"{HOSTILE} Which number?", "choices": [HOSTILE, "22", "33", str(number)], "answer": "D",
        "split": "new", "id": f"q{number}", "document": HOSTILE, "title": f"{HOSTILE} {number}",
        "kind": "number", "maker": HOSTILE, "passage": f"{before}{said} After {HOSTILE}",
        "support": [len(before), len(before) + len(said)], "was": HOSTILE,
    }  # fmt: skip


@pytest.fixture
def questions(tmp_path):
    """Six questions, of which everything that a stranger wrote would do harm if it were not escaped."""
    path = tmp_path / "questions.jsonl"
    world.write(path, [row(number) for number in range(100, 106)])
    return path


@contextmanager
def serving(questions):
    with closing(Decisions(questions, writing=True)) as decisions, running(Page(decisions)) as page:
        yield page


# --- other programs -------------------------------------------------------------------------------------------------


def ask(page, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=5)
    told = {"Host": f"127.0.0.1:{page.server_port}", **{k.replace("_", "-"): v for k, v in headers.items()}}
    connection.request(method, path, body, told)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, dict(answer.headers)


def post(page, said, **headers):
    if isinstance(said, dict) and said.get("id") in page.decisions.by_id:
        now = as_asked(page.decisions.by_id[said["id"]], page.decisions.state().get(said["id"]))
        said = {"seen": digest(now), **said}
    ours = {"Content_Type": "application/json", "Origin": f"http://127.0.0.1:{page.server_port}", **headers}
    return ask(page, "POST", f"/{page.token}/decide", said if isinstance(said, bytes) else json.dumps(said), **ours)[0]


def test_only_who_knows_the_address_is_let_in(questions):
    """Not without the token, and not by another name for this machine."""
    with serving(questions) as page:
        assert ask(page, "GET", f"/{page.token}/")[0] == 200
        assert ask(page, "GET", f"/{page.token}/questions", Host=f"localhost:{page.server_port}")[0] == 200
        for path in ("/", "/x/", f"/{page.token}", f"/{page.token[:-1]}/"):
            assert ask(page, "GET", path)[0] == 403
        assert ask(page, "GET", f"/{page.token}/questions", Host=f"evil.example:{page.server_port}")[0] == 403
        assert ask(page, "GET", f"/{page.token}/../etc/passwd")[0] == 404
        assert page.server_address[0] == "127.0.0.1"


def test_only_the_page_itself_decides(questions):
    """What another site's page could send is refused, and so is what is no decision."""
    good = {"id": "q100", "decision": "accept"}
    with serving(questions) as page:
        assert post(page, good, Origin="http://evil.example") == 403
        assert post(page, good, Origin="null") == 403
        assert post(page, good, Content_Type="text/plain") == 403
        assert post(page, good, Host="evil.example") == 403
        assert post(page, good, Content_Length=str(1 << 30)) == 413
        for bad in (
            b"nonsense",
            b"[]",
            b'{"id": "q100", "decision": "accept"}',
            {"id": "q1", "decision": "accept"},
            {"id": "q100", "decision": "burn"},
            {},
        ):
            assert post(page, bad) == 400
        assert post(page, {"id": "q100", "decision": "undo"}) == 409
        assert post(page, {"id": "q100", "decision": "edit"}) == 422
        assert decisions_of(questions).read_bytes() == b""
        assert post(page, good) == 200
        assert [row["id"] for row in world.rows(decisions_of(questions))] == ["q100"]


def test_what_is_no_decision_is_refused_where_nothing_is_asserted(questions):
    """`python -O` takes assertions out of the code."""
    code = (
        "import sys; from pathlib import Path; from srt_peft.corpora.qa import decisions, page; "
        "held = decisions.Decisions(Path(sys.argv[1]), writing=True); row = held.rows[0]; "
        "seen = decisions.digest(decisions.as_asked(row, None)); "
        "said = page.json.dumps({'id': row['id'], 'decision': 'burn', 'seen': seen}); "
        "print(page._decided(held, said.encode())[0])"
    )
    line = [sys.executable, "-O", "-c", code, str(questions)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": HOME})
    assert done.stdout == "400\n"
    assert decisions_of(questions).read_bytes() == b""


def test_the_page_may_load_nothing_from_elsewhere(questions):
    with serving(questions) as page:
        _, content, headers = ask(page, "GET", f"/{page.token}/")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"
    assert b"http" not in content
    assert b"{{" not in content


def test_what_the_disk_does_not_take_is_no_decision(questions):
    """Neither now nor later: the next one that fits is the next line."""
    told, limits = {"id": "q100", "decision": "accept"}, resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(questions) as page:
        assert post(page, told) == 200
        before = decisions_of(questions).read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
        try:
            assert post(page, {"id": "q101", "decision": "reject"}) == 500
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert decisions_of(questions).read_bytes() == before
        assert post(page, {"id": "q102", "decision": "accept"}) == 200
    assert [row["id"] for row in world.rows(decisions_of(questions))] == ["q100", "q102"]


def test_a_port_that_is_taken_is_told(questions):
    with serving(questions) as page:
        other = Decisions(questions)
        for port in (page.server_port, 70000, -1):
            with pytest.raises(OptionError, match=f"--port = {port}"):
                Page(other, port)


# --- a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if found() is None:
        pytest.skip("no Chromium here: on Debian `apt-get install chromium` brings it")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


HERE = "document.documentElement.dataset.here"
COUNTS = "document.getElementById('counts').textContent"
SAID = "document.getElementById('said').textContent"


def visit(browser, url):
    browser.events.clear()
    browser.ask("Page.navigate", url="about:blank")
    browser.ask("Page.navigate", url=url)
    browser.until("document.documentElement?.dataset.ready === 'yes'")


def press(browser, key, *, ctrl=False):
    for kind in ("keyDown", "keyUp"):
        text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, modifiers=2 * ctrl, **text)


def write(browser, place, text):
    """Put a text where a person would."""
    browser.run(f"document.querySelector({place!r}).select()")
    browser.ask("Input.insertText", text=text)


def test_a_review_with_the_keys(browser, questions, tmp_path):
    """Accept, edit, reject, undo; reload, and end the server: nothing is lost, and nothing else was loaded."""
    with serving(questions) as page:
        visit(browser, page.url)
        assert browser.run(HERE) == "q100"
        press(browser, "a")
        browser.until(f"{HERE} === 'q101' && {SAID} === 'Saved: accepted.'")
        press(browser, "e")
        browser.until("document.activeElement.id === 'edit-question'")
        write(browser, "#edit-question", "Which number <i>is it</i>, before or after?")
        for i, choice in enumerate(("7", "8", "9", "101")):
            write(browser, f"#edit-choices label:nth-of-type({i + 1}) input[type=text]", choice)
        press(browser, "Enter", ctrl=True)
        browser.until(f"{HERE} === 'q102' && {SAID} === 'Saved.'")
        press(browser, "r")
        press(browser, "r")
        browser.until(f"{HERE} === 'q104'")
        press(browser, "u")
        browser.until(f"{HERE} === 'q103' && {SAID} === 'Taken back.'")
        press(browser, "j")
        browser.until(f"{HERE} === 'q104'")
        press(browser, "k")
        browser.until(f"{HERE} === 'q103'")
        assert browser.run(COUNTS) == "3 of 6 decided: 1 accepted, 1 edited, 1 rejected"
        visit(browser, page.url)
        assert browser.run(HERE) == "q103"
        assert browser.run(COUNTS) == "3 of 6 decided: 1 accepted, 1 edited, 1 rejected"
        assert browser.complaints() == []
        assert all(url.startswith((page.url, "about:")) for url in browser.loaded())
    said = [(row["id"], row["decision"]) for row in world.rows(decisions_of(questions))]
    assert said == [("q100", "accept"), ("q101", "edit"), ("q102", "reject"), ("q103", "reject"), ("q103", "undo")]
    with serving(questions) as page:
        visit(browser, page.url)
        assert browser.run(COUNTS) == "3 of 6 decided: 1 accepted, 1 edited, 1 rejected"
        press(browser, "u")
        browser.until(f"{HERE} === 'q102' && {SAID} === 'Taken back.'")
    run("review", questions, "--export", tmp_path / "kept.jsonl")
    kept = {row["id"]: row for row in world.rows(tmp_path / "kept.jsonl")}
    assert kept.keys() == {"q100", "q101"}
    assert kept["q101"]["question"] == "Which number <i>is it</i>, before or after?"
    assert sorted(kept["q101"]["choices"]) == ["101", "7", "8", "9"]


def test_what_strangers_wrote_is_text(browser, questions):
    """Shown as it was written, and never run; the support is marked, characters beyond the BMP notwithstanding."""
    with serving(questions) as page:
        visit(browser, page.url)
        for key in ("e", "Escape", "a", "j", "f"):
            press(browser, key)
        browser.until(f"{COUNTS}.startsWith('1 of 6')")
        assert browser.run("typeof window.bad") == "undefined"
        assert browser.run("document.querySelectorAll('main img, main script').length") == 0
        assert browser.run("document.getElementById('passage').textContent").startswith(HOSTILE)
        assert browser.run("document.querySelector('#passage mark').textContent") in {
            f"Number {n} is it." for n in range(100, 106)
        }
        assert HOSTILE in browser.run("document.getElementById('question').textContent")
        assert browser.run("document.querySelector('#choices li span').textContent") == HOSTILE
        assert browser.complaints() == []


def test_an_edit_that_is_wrong_is_not_saved(browser, questions):
    """A fault of form stays until it is mended; what the passage does not say is saved when it is said twice."""
    with serving(questions) as page:
        visit(browser, page.url)
        press(browser, "e")
        browser.until("document.activeElement.id === 'edit-question'")
        write(browser, "#edit-question", "Which number is it, before or after?")
        write(browser, "#edit-choices label:nth-of-type(1) input[type=text]", "22")
        press(browser, "Enter", ctrl=True)
        faults = "document.getElementById('faults').textContent"
        browser.until(f"{faults}.includes('choices that say the same')")
        write(browser, "#edit-choices label:nth-of-type(1) input[type=text]", "44")
        write(browser, "#edit-choices label:nth-of-type(4) input[type=text]", "55")
        press(browser, "Enter", ctrl=True)
        browser.until(f"{faults}.includes('not borne out by the passage. Save again')")
        assert decisions_of(questions).read_bytes() == b""
        press(browser, "Enter", ctrl=True)
        browser.until(f"{HERE} === 'q101'")
    (row,) = world.rows(decisions_of(questions))
    assert row["despite"] == ["right choice not borne out by the passage"]
    assert row["choices"] == ["44", "22", "33", "55"]


def edit_to(browser, text):
    press(browser, "e")
    browser.until("document.activeElement.id === 'edit-question'")
    write(browser, "#edit-question", text)
    write(browser, "#edit-choices label:nth-of-type(1) input[type=text]", "44")


def test_an_edit_outlives_what_is_pressed_after_it(browser, questions, tmp_path):
    """Accepted where it is shown, it is kept as it is shown; a window that shows what was before it decides nothing."""
    asked, editor = "document.getElementById('question').textContent", "document.getElementById('editor').hidden"
    with serving(questions) as page:
        visit(browser, page.url)
        edit_to(browser, "Which number is it, before or after?")
        browser.run("document.querySelector('#filter input[value=all]').click()")
        assert browser.run(editor) is False
        press(browser, "Enter", ctrl=True)
        browser.until(f"{SAID} === 'Saved.'")
        for key in "fka":
            press(browser, key)
        browser.until(f"{SAID} === 'Saved: accepted.'")
        press(browser, "k")
        browser.until(f"{HERE} === 'q100'")
        assert browser.run(asked) == "Which number is it, before or after?"
        other = {
            "question": "Which number is it, after or before?",
            "choices": ["44", "22", "33", "100"],
            "answer": "D",
        }
        assert post(page, {"id": "q100", "decision": "edit", "despite": True, **other}) == 200
        press(browser, "a")
        browser.until(f"{SAID}.includes('was edited in another window')")
    run("review", questions, "--export", tmp_path / "kept.jsonl")
    assert [kept["question"] for kept in world.rows(tmp_path / "kept.jsonl")] == [other["question"]]


def test_a_key_that_is_held_down_decides_once(browser, questions):
    with serving(questions) as page:
        visit(browser, page.url)
        for again in (False, True, True):
            browser.ask("Input.dispatchKeyEvent", type="keyDown", key="a", text="a", autoRepeat=again)
        press(browser, "r")
        browser.until(f"{SAID} === 'Saved: rejected.'")
        assert browser.run(COUNTS).startswith("2 of 6")


def test_what_is_not_saved_is_said(browser, questions):
    """The server is gone: the page says so where it is seen, in a small window too, and stays where it is."""
    with serving(questions) as page:
        browser.size(320, 500)
        visit(browser, page.url)
    press(browser, "a")
    browser.until(f"{SAID}.startsWith('Not saved')")
    assert browser.run("document.getElementById('said').getBoundingClientRect().bottom") <= 500
    browser.size(1400, 900)
    assert browser.run(HERE) == "q100"
    assert browser.run(COUNTS).startswith("0 of 6")


def test_it_fits_its_window_and_ends(browser, questions):
    """No scrolling to the side, on a phone either; at the end it says how to go on."""
    with serving(questions) as page:
        for width in (390, 1400):
            browser.size(width, 900)
            visit(browser, page.url)
            assert browser.run("document.documentElement.scrollWidth") <= width
        for _ in range(6):
            press(browser, "a")
        browser.until("!document.getElementById('done').hidden")
        assert "--export" in browser.run("document.getElementById('done').textContent")
        press(browser, "u")
        browser.until(f"{HERE} === 'q105'")


def test_the_command_serves_until_it_is_interrupted(questions):
    """A kill loses no decision that was confirmed; Ctrl-C says where things stand."""
    command = [sys.executable, "-m", "srt_peft", "corpus", "review", str(questions)]
    env = {**os.environ, "PYTHONPATH": HOME}
    for end, decision in ((signal.SIGKILL, "accept"), (signal.SIGINT, "reject")):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        address = process.stdout.readline().split()[1]
        port, token = address.removeprefix("http://127.0.0.1:").rstrip("/").split("/")
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=5)
        headers = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{port}"}
        number = {"accept": 100, "reject": 101}[decision]
        said = {"id": f"q{number}", "decision": decision, "seen": digest(row(number))}
        connection.request("POST", f"/{token}/decide", json.dumps(said), headers)
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(end)
        told = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "undecided 4, accept 1, edit 0, reject 1" in told[0]
    assert [row["id"] for row in world.rows(decisions_of(questions))] == ["q100", "q101"]
