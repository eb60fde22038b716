"""An OpenAI-compatible service on this machine, which answers as it is told to."""

import json
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-very-secret"


def question(statement, number):
    """What an obliging model would ask: for the statement's last figure."""
    figure = re.findall(r"\d[\d,.]*\d|\d", statement)[-1]
    asked = statement.replace(figure, "which figure") + f" ({number})"
    digits = [f"{figure[:-1]}{d}" for d in "0123456789" if f"{figure[:-1]}{d}" != figure]
    return json.dumps({"question": asked, "right": figure, "wrong": digits[number % 5 :][:3]})


class Service(ThreadingHTTPServer):
    """`deeds` are done first, one a request: a function of the handler; then questions are answered."""

    daemon_threads = True

    def __init__(self, deeds):
        super().__init__(("127.0.0.1", 0), Handler)
        self.deeds, self.asked, self.headers, self.lock = list(deeds), [], [], threading.Lock()
        self.delay = 0.0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_):
        """A client that was killed is no fault of the service's."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions"
        with self.server.lock:
            self.server.asked.append(body["messages"])
            self.server.headers.append(dict(self.headers))
            deed = self.server.deeds.pop(0) if self.server.deeds else None
        if deed is not None:
            deed(self, body["messages"]) if deed is obliging else deed(self)
            return
        time.sleep(self.server.delay)
        self.oblige(body["messages"])

    def oblige(self, messages):
        self.chat(question(re.search(r"Statement: (.*)", messages[1]["content"])[1], len(self.server.asked)))

    def do_GET(self):
        raise AssertionError("nobody asks for that")

    def chat(self, text):
        self.answer(200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}))

    def answer(self, status, text, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        """Say nothing."""


def obliging(handler, messages):
    handler.oblige(messages)


def prose(handler):
    handler.chat("What a lovely passage! I would ask about the bridge.")


def fenced(handler):
    handler.chat('Sure:\n```json\n{"question": "Which {x}", "right": 5, "wrong": ["1", "2", "3"]}\n``` Anything else?')


def cut_off(handler):
    handler.close_connection = True
    handler.connection.close()


def torn(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def drips(handler):
    """Blanks without end, each in time."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(20):
        handler.wfile.write(b" ")
        time.sleep(0.1)


def busy_and_torn(handler):
    """Too many requests, of which it does not come to say why."""
    handler.send_response(429)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    time.sleep(1.0)


def hangs(handler):
    time.sleep(1.5)


def status(code, text="no", **headers):
    return lambda handler: handler.answer(code, text, **headers)


@contextmanager
def running(server):
    """A server, served by a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serving(*deeds):
    return running(Service(deeds))
