"""A headless Chromium, driven over its debugging pipe: what it shows, what it logs, and what keys and clicks do."""

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Page:
    """One page of a browser. `console`: everything that was logged to it, refusals of its own policy included."""

    def __init__(self, receive: int, send: int) -> None:
        self._receive, self._send, self._number, self._session = receive, send, 0, ""
        self._rest = b""
        self.console: list[str] = []
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and return when it has loaded."""
        for url in ("about:blank", path.resolve().as_uri() + fragment):  # a new fragment alone would load nothing
            self._events.clear()
            self.call("Page.navigate", url=url)
            while not any(event["method"] == "Page.loadEventFired" for event in self._events):
                self._note(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of the first element that `selector` finds."""
        found: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
        return found

    def enter(self, selector: str, number: int, value: str) -> None:
        """Set the value of the field with this number among those that `selector` finds, as a person would."""
        self.evaluate(f"""(() => {{
            const field = document.querySelectorAll({json.dumps(selector)})[{number}];
            field.value = {json.dumps(value)};
            for (const name of ["input", "change"]) field.dispatchEvent(new Event(name));
        }})()""")

    def press(self, key: str) -> None:
        """One key, down and up, wherever the focus is."""
        given = {"key": key, "code": key, "windowsVirtualKeyCode": _CODES.get(key, ord(key[0].upper()))}
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **given, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)
        self.settle()

    def settle(self) -> None:
        """Return after the next frame has been drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def look(self, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Size, colour scheme and medium."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of what is in sight, or of the whole page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._receive], [], [], _PATIENCE_S)[0], "the browser says nothing"
            block = os.read(self._receive, 1 << 20)
            assert block, "the browser has ended"
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        self._events.append(message)
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append(str([argument.get("value") for argument in params["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])


_CODES = {
    "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40
}  # fmt: skip

_PATIENCE_S = 60.0

_FREE = 10
"""The browser reads file descriptor 3 and writes to 4: what is moved there must not be in the way."""


@contextmanager
def browsing() -> Iterator[Page]:
    """A page of a browser of its own, which ends with the block."""
    commands, send = os.pipe()
    receive, events = os.pipe()
    given, taken = (fcntl.fcntl(end, fcntl.F_DUPFD, _FREE) for end in (commands, events))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        launch = f'exec "$@" 3<&{given} 4>&{taken} {given}<&- {taken}>&-'
        arguments = ["bash", "-c", launch, "bash", "chromium", *flags, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            arguments, pass_fds=(given, taken), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for end in (commands, events, given, taken):
            os.close(end)
        try:
            yield Page(receive, send)
        finally:
            os.close(send)  # the browser ends with its pipe
            os.close(receive)
            process.terminate()
            process.wait()
