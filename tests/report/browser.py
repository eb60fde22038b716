"""Chromium over its DevTools pipe: enough to open a page, point at it, and see what it says and what it loads."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 20


def found():
    """Where a Chromium is, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A headless browser and its one page."""

    def __init__(self, home, *, width=1400, height=1000, dark=False):
        ours, theirs = os.pipe(), os.pipe()
        flags = [
            "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--hide-scrollbars", "--disable-background-networking", "--disable-dev-shm-usage",
            f"--user-data-dir={home}", "about:blank",
        ]  # fmt: skip
        script = f'exec "$@" 3<&{theirs[0]} 4>&{ours[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", found(), *flags],
            pass_fds=(theirs[0], ours[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs[0])
        os.close(ours[1])
        self.read, self.write, self.buffer, self.count, self.events = ours[0], theirs[1], b"", 0, []
        self.session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.size(width, height)
        self.system(dark=dark)

    def ask(self, method, **params):
        """One command, and its answer."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            answer = self._next(end)
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self, end):
        while b"\0" not in self.buffer:
            assert select.select([self.read], [], [], max(end - time.monotonic(), 0))[0], "the browser does not answer"
            part = os.read(self.read, 1 << 20)
            assert part, "the browser is gone"
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)

    def run(self, code):
        """The value of an expression in the page; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, code):
        """Wait until it holds."""
        end = time.monotonic() + PATIENCE
        while not (value := self.run(code)):
            assert time.monotonic() < end, f"never came true: {code}"
            time.sleep(0.05)
        return value

    def open(self, path):
        """Open a report, and wait until it is drawn."""
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self.until("document.documentElement?.dataset.ready === 'yes'")

    def size(self, width, height):
        """The window."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def system(self, *, dark):
        """What the system prefers."""
        value = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def point(self, x, y):
        """Move the mouse."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def loaded(self):
        """The addresses that the page has asked for, but for those within it."""
        asked = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "blob:"))]

    def complaints(self):
        """What stands in the console: errors, warnings, violations of the page's policy."""
        told = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                told.append(params["entry"]["text"])
            elif event.get("method") == "Runtime.exceptionThrown":
                told.append(params["exceptionDetails"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                told.append(str(params["args"]))
        return told

    def picture(self, path):
        """A screenshot of the whole page."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        """End it."""
        self.process.terminate()
        self.process.wait(PATIENCE)
        os.close(self.read)
        os.close(self.write)
