"""The page on which a person reviews questions: a server for this machine alone, and one page that needs no other.

    GET  /TOKEN/            the page
    GET  /TOKEN/questions   the questions, with what was decided of each
    POST /TOKEN/decide      {"id", "decision", "seen", …}: on the disk before it is answered

It listens on 127.0.0.1. The token is random and stands in the address that is printed: other users of the machine do
not have it. A page of the web that the browser shows at the same time could send requests here; so the Host must be
ours (a name that was made to point here is not), and so must be the Origin of what is posted. The page's policy allows
its own script and style by their hashes and no address but this server, and texts are only ever set as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Lock
from typing import Any

from srt_peft.corpora.qa.decisions import ACCEPT, EDIT, KINDS, UNDO, Decisions, Row, as_asked, digest, edited
from srt_peft.errors import OptionError

_MOST = 1 << 20
_HERE = "127.0.0.1"


class Page(ThreadingHTTPServer):
    """Serves one file's questions until it is told to end."""

    daemon_threads = True

    def __init__(self, decisions: Decisions, port: int = 0) -> None:
        try:
            super().__init__((_HERE, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError("corpus review", [f"--port = {port}: {reason}. Name another, or 0 for any"]) from None
        self.decisions = decisions
        self.token = secrets.token_urlsafe(18)
        self.one_at_a_time = Lock()
        self.hosts = {f"{name}:{self.server_port}" for name in (_HERE, "localhost")}
        self.content, self.policy = _page(decisions.path.name)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{_HERE}:{self.server_port}/{self.token}/"

    def handle_error(self, *_: Any) -> None:
        """A tab that was closed is no fault of the server's."""


class _Handler(BaseHTTPRequestHandler):
    server: Page
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """The page, or the questions."""
        path = self._ours()
        if path == "":
            self._answer(200, self.server.content, "text/html; charset=utf-8")
        elif path == "questions":
            self._json(200, _told(self.server.decisions))
        elif path is not None:
            self._json(404, {"faults": ["there is nothing here"]})

    def do_POST(self) -> None:
        """A decision."""
        path, origin = self._ours(), self.headers.get("Origin", "")
        if path is None:
            return
        size = self.headers.get("Content-Length", "")
        is_json = self.headers.get_content_type() == "application/json"
        if path != "decide" or not is_json or origin.removeprefix("http://") not in self.server.hosts:
            self._json(403, {"faults": ["only the page itself may decide"]})
        elif not (size.isdecimal() and int(size) <= _MOST):
            self._json(413, {"faults": ["that is no decision"]})
        else:
            with self.server.one_at_a_time:
                self._json(*_decided(self.server.decisions, self.rfile.read(int(size))))

    def log_message(self, *_: Any) -> None:
        """Say nothing: the address has the token in it."""

    def _ours(self) -> str | None:
        """The path behind the token; None, and an answer, where host or token are not ours."""
        token, slash, path = self.path.removeprefix("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if slash and known and self.headers.get("Host", "") in self.server.hosts:
            return path
        self._json(403, {"faults": ["open the address that srt-peft has printed"]})
        return None

    def _json(self, status: int, said: Mapping[str, Any]) -> None:
        self._answer(status, json.dumps(said).encode(), "application/json")

    def _answer(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        if status in (403, 413):  # the body was not read
            self.send_header("Connection", "close")
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", self.server.policy)
        self.end_headers()
        self.wfile.write(content)


_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


# --- what is said ---------------------------------------------------------------------------------------------------


def _told(decisions: Decisions) -> Row:
    state = decisions.state()
    return {
        "questions": [_shown(row, state.get(row["id"])) for row in decisions.rows],
        "history": [row["id"] for row in decisions.history],
    }


def _shown(row: Mapping[str, Any], said: Mapping[str, Any] | None) -> Row:
    """A question as the page shows it; its passage in three parts, of which the second supports it."""
    start, end = row["support"]
    passage = row["passage"]
    now = as_asked(row, said)
    return {
        **{name: row.get(name, "") for name in ("id", "split", "title", "kind", "maker", "document", "source", "was")},
        **now,
        "seen": digest(now),
        "passage": [passage[:start], passage[start:end], passage[end:]],
        "decision": said["decision"] if said is not None else None,
    }


def _decided(decisions: Decisions, raw: bytes) -> tuple[int, Row]:
    """Take a decision, or say what is wrong with it."""
    try:
        said = json.loads(raw)
        row, decision, seen = decisions.by_id[said["id"]], said["decision"], said["seen"]
        if decision not in KINDS:
            raise ValueError  # noqa: TRY301 - it is told like any other
    except (ValueError, LookupError, TypeError):
        return 400, {"faults": ["that is no decision on a question of this file"]}
    held = decisions.state().get(row["id"])
    if seen != digest(as_asked(row, held)):
        return 409, {"faults": ["this question was edited in another window"]}
    told: Row = {"id": row["id"], "decision": decision}
    if decision == ACCEPT and held is not None and held["decision"] == EDIT:
        told |= {"decision": EDIT, **as_asked(row, held)}  # what is shown is the edit, and that is what is accepted
    if decision == EDIT:
        clean, faults, doubts = edited(row, said)
        despite = said.get("despite") is True
        if faults or (doubts and not despite):
            return 422, {"faults": faults, "doubts": doubts}
        told |= clean | ({"despite": doubts} if doubts else {})
    if decision == UNDO and held is None:
        return 409, {"faults": ["there is nothing to take back"]}
    try:
        decisions.decide(told)
    except OSError as error:
        return 500, {"faults": [f"{decisions.path} cannot be written ({error.strerror})"]}
    return 200, {"question": _shown(row, decisions.state().get(row["id"]))}


def _page(name: str) -> tuple[bytes, str]:
    """The page, and the policy that it is sent with."""
    here = files("srt_peft.corpora.qa")
    body, style, script = (here.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    policy = (
        f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    parts = {"STYLE": style, "SCRIPT": script, "NAME": escape(name)}
    for part, text in parts.items():
        body = body.replace(f"{{{{{part}}}}}", text)
    return body.encode(), policy


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
