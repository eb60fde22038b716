"""A model behind an OpenAI-compatible address: POST URL/chat/completions, asked for one question at a time.

    answer                          what is done
    a chat completion with JSON     read
    a chat completion with prose    asked again with what was wrong, `ASKED` times in all; then counted
    429, 5xx, no answer, cut off    tried again after 1, 2, 4 … s, or after what Retry-After says; `TRIES` in all
    anything else                   the end, in words: another try would not help

Whatever ends it, the answers so far are kept by whoever asked. The key comes from the environment, goes into one
header, and nowhere else: an answer that repeats it is told without it, and a redirect, which would carry it along, is
refused.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

import srt_peft
from srt_peft.corpora.qa import asking
from srt_peft.corpora.qa.checks import Draft
from srt_peft.corpora.qa.items import Item
from srt_peft.errors import OptionError, SRTError

ASKED = 3
"""How often one statement is asked about, until an answer is no prose."""
TRIES = 6
"""How often a request is sent, until it is answered."""
WAIT = 1.0
"""Seconds before the second try; twice as many before each next one."""
PATIENCE = 600.0
"""Seconds that Retry-After may ask for; for more, nobody watches."""
_BUSY = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_MOST = 1 << 22
_LONGEST = 86_400
_PROSE = f"no question in {ASKED} replies of the model"


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Go nowhere else: the key would go along."""


class Endpoint:
    """Asks a model at an address; several statements at once."""

    keeps = True
    """Its answers cost time or money: each is kept as soon as it is there."""

    def __init__(self, url: str, model: str, *, key: str | None, timeout: float, concurrency: int) -> None:
        key = (key or "").strip()
        if wrong := faults(url, key, timeout, concurrency):
            raise OptionError("corpus qa", wrong)
        base = url.rstrip("/")
        self.url = base if base.endswith("/chat/completions") else f"{base}/chat/completions"
        self.model, self.concurrency = model, concurrency
        self.name = model
        self._key, self._timeout = key, timeout
        self._open = urllib.request.build_opener(_Stay).open
        self._stop = Event()

    def about(self) -> dict[str, Any]:
        """What makes its answers: another model's are not mixed with them, wherever it is served."""
        return {"maker": "endpoint", "model": self.model, "task": asking.TASK}

    def drafts(self, items: Sequence[Item]) -> Generator[tuple[Item, Draft | str]]:
        """A question of each, or why there is none, as they come in."""
        todo: SimpleQueue[Item] = SimpleQueue()
        done: SimpleQueue[tuple[Item, Draft | str | Exception]] = SimpleQueue()
        self._stop = Event()
        for item in items:
            todo.put(item)
        for _ in range(min(self.concurrency, len(items))):
            # Daemons: after Ctrl-C nobody waits for an answer that is a minute away.
            Thread(target=self._work, args=(todo, done), daemon=True).start()
        failed: Exception | None = None
        try:
            for _ in range(len(items)):
                item, found = done.get()
                if isinstance(found, _GoneError):
                    continue
                if isinstance(found, Exception):
                    failed = failed or found
                else:
                    yield item, found
        finally:
            self._stop.set()
        if failed is not None:
            raise failed

    def _work(self, todo: SimpleQueue[Item], done: SimpleQueue[tuple[Item, Draft | str | Exception]]) -> None:
        while True:
            try:
                item = todo.get_nowait()
            except Empty:
                return
            try:
                done.put((item, self._asked(item)))
            except Exception as error:  # noqa: BLE001 - it is raised where the answers are read
                self._stop.set()  # nobody asks any more; answers that are under way are still taken
                done.put((item, error))

    def _asked(self, item: Item) -> Draft | str:
        messages = asking.messages(item)
        for _ in range(ASKED):
            reply = self._reply(messages)
            found = asking.read(reply, item)
            if isinstance(found, Draft):
                return found
            # Of an empty reply nothing can be said, and many services refuse a turn of the model's that is empty.
            said = asking.again(reply[:2000], found) if reply.strip() else []
            messages = [*asking.messages(item), *said]
        return _PROSE

    # --- one request ------------------------------------------------------------------------------------------------

    def _reply(self, messages: Sequence[Mapping[str, str]]) -> str:
        """What the model says, however often that must be asked for."""
        wait, why = WAIT, ""
        for left in reversed(range(TRIES)):
            if self._stop.is_set():
                raise _GoneError
            try:
                return self._once(messages)
            except _BusyError as busy:
                why = busy.why
                pause = wait if busy.after is None else busy.after
                if pause > PATIENCE:
                    raise self._failed(f"{why}, and asks for {pause:,.0f} s of patience", _LATER) from None
                if left:
                    self._stop.wait(pause)
                wait *= 2
        raise self._failed(f"{why}, {TRIES} times in a row", _LATER)

    def _once(self, messages: Sequence[Mapping[str, str]]) -> str:
        body = json.dumps({"model": self.model, "messages": list(messages)}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": f"srt-peft/{srt_peft.__version__}"}
        request = urllib.request.Request(self.url, body, headers)  # noqa: S310 - `faults` has seen its scheme
        if self._key:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        try:
            with self._open(request, timeout=self._timeout) as answer:
                raw = self._whole(answer, time.monotonic() + self._timeout)
                if answer.length:  # which is what should have come, and did not
                    raise _BusyError("breaks its answer off")
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except TimeoutError:
            raise _BusyError(f"does not answer within {self._timeout:g} s") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise _BusyError(f"does not answer within {self._timeout:g} s") from None
            raise _BusyError(f"cannot be reached ({error.reason})") from None
        except (http.client.HTTPException, OSError) as error:  # ssl.SSLError is of the latter, and no ConnectionError
            raise _BusyError(f"breaks the connection off ({type(error).__name__})") from None
        return self._content(raw)

    def _whole(self, answer: Any, until: float) -> bytes:
        """All of an answer: a socket's own limit is for each piece, and a drip of blanks would keep it for ever."""
        raw = b""
        while len(raw) < _MOST and (piece := answer.read1(1 << 16)):
            raw += piece
            if time.monotonic() > until:
                raise TimeoutError
        return raw

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        said = ""
        with suppress(http.client.HTTPException, OSError):  # the status alone says enough
            said = self._quiet(self._whole(error, time.monotonic() + self._timeout).decode(errors="replace"))
        told = f"answers {error.code} {error.reason}" + (f" ({said:.200})" if said else "")
        if error.code in _BUSY:
            return _BusyError(told, _seconds(error.headers.get("Retry-After")))
        return self._failed(told, _REMEDIES.get(error.code, "Look whether address and model are right"))

    def _content(self, raw: bytes) -> str:
        try:
            said = json.loads(raw)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError):
            began = self._quiet(raw.decode(errors="replace"))
            remedy = "Expected the address of a chat/completions service, such as http://localhost:8000/v1"
            raise self._failed(f"answers with no chat completion ({began:.120})", remedy) from None
        return said if isinstance(said, str) else ""

    def _quiet(self, text: str) -> str:
        """A text of theirs on one line, without our key."""
        return " ".join((text.replace(self._key, "***") if self._key else text).split())

    def _failed(self, what: str, remedy: str) -> SRTError:
        return SRTError(f"{self.url} {what}. {remedy}.")


class _BusyError(Exception):
    """Another try may help."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.why, self.after = why, after


class _GoneError(Exception):
    """Nobody waits for it any more."""


_LATER = "What was answered is kept: run the same command again, later, and it goes on"
_REMEDIES = {
    400: "It refuses the request: look whether the model is one that chats",
    401: "Put the key into the environment variable that --api-key-env names",
    403: "Look whether the key may use this model",
    404: "Look whether the address ends as it should, often in /v1, and whether the model is there",
}


def _seconds(said: str | None) -> float | None:
    """What Retry-After says: seconds, or a date."""
    if said is None:
        return None
    with suppress(ValueError):
        return max(0.0, float(said))  # in this order "nan" comes to nothing
    try:
        return max(email.utils.parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def _is_plain(text: str, other: str = "") -> bool:
    """Whether a header or a request's line can carry it; the host may have letters of its own."""
    rest = text.replace(other, "", 1)
    return rest.isascii() and not any(c.isspace() or not c.isprintable() for c in text)


def faults(url: str, key: str, timeout: float, concurrency: int) -> list[str]:
    """Why nobody can be asked so; of a key that no header can carry not a word, as http.client would say it."""
    found = []
    try:
        parts = urllib.parse.urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        usable = (
            parts.scheme in ("http", "https") and bool(host) and (parts.port or 1) > 0 and _is_plain(url, parts.netloc)
        )
    except ValueError:
        usable = False
    if not usable:
        found.append(f"--endpoint = {url}: expected an address such as http://localhost:8000/v1")
    elif parts.username or parts.password or parts.query:
        found.append("--endpoint has a password or a query in it: put the key into an environment variable")
    if not _is_plain(key):
        found.append(
            "--api-key-env names a key with a space, a line's end or a letter beyond ASCII in it: copy it anew"
        )
    if not 0 < timeout <= _LONGEST:
        found.append(f"--timeout = {timeout:g}: expected seconds, more than 0, and a day at most")
    if concurrency < 1:
        found.append(f"--concurrency = {concurrency}: expected 1 or more")
    return found
