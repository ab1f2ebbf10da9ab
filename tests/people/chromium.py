"""A Chromium without a window, driven through the DevTools protocol over two pipes.

It needs no package: `--remote-debugging-pipe` reads commands from descriptor 3 and writes responses
and events to descriptor 4, as JSON with a zero byte after each.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
LONGEST_SECONDS = 60.0

# Descriptors 3 and 4 may be open already, so both pipes are moved out of the way first.
_START = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
os.dup2(pipes[0], 3), os.dup2(pipes[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def executable() -> str | None:
    """Path of a Chromium, or None if this machine has none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A running Chromium."""

    def __init__(self, path: str, profile: str) -> None:
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()
        flags = ["--headless", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu"]
        flags += ["--disable-dev-shm-usage", "--no-first-run", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(commands), str(replies), path, *flags],
            pass_fds=(commands, replies),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(replies)
        self._buffer = b""
        self._number = 0
        self._pages: dict[str, Page] = {}

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Runs a command; events that arrive meanwhile go to their pages."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            command["sessionId"] = session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (reply := self._next()).get("id") != self._number:
            if reply.get("sessionId") in self._pages:
                self._pages[reply["sessionId"]].event(reply["method"], reply["params"])
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        result: dict[str, Any] = reply["result"]
        return result

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + LONGEST_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._replies], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium did not reply")
            more = os.read(self._replies, 2**20)
            if not more:
                raise RuntimeError("Chromium ended")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    @contextlib.contextmanager
    def page(
        self, width: int = 1200, *, dark: bool = False, still: bool = True
    ) -> Iterator["Page"]:
        """A page with a profile of its own, closed in the end; `still` asks for less motion."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, session["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        wishes = {"color-scheme": "dark" if dark else "light"}
        wishes["reduced-motion"] = "reduce" if still else "no-preference"
        features = [{"name": f"prefers-{name}", "value": value} for name, value in wishes.items()]
        page.call("Emulation.setEmulatedMedia", features=features)
        yield page
        del self._pages[page.session]
        self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        """Ends Chromium."""
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._replies)


class Page:
    """A page of a browser.

    Attributes:
        problems: errors of scripts and of the content security policy.
        urls: addresses that were asked for.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self.session = browser, session
        self.problems: list[str] = []
        self.urls: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Runs a command on this page."""
        return self._browser.call(method, self.session, **parameters)

    def event(self, method: str, parameters: dict[str, Any]) -> None:
        """Keeps what tests look at."""
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.problems.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["source"] != "network":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.urls.append(parameters["request"]["url"])

    def run(self, expression: str) -> Any:
        """Value of an expression in the page; promises are awaited."""
        found = self.call(
            "Runtime.evaluate",
            **{"expression": expression, "awaitPromise": True, "returnByValue": True},
        )
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return found["result"].get("value")

    def open(self, url: str) -> None:
        """Loads a page."""
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def until(self, condition: str, seconds: float = 20.0) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            if time.monotonic() > end:
                said = self.run("document.body.innerText")
                raise AssertionError(f"{condition} is still false; the page says:\n{said}")
            time.sleep(0.05)

    def text(self, name: str) -> str:
        """What the element with an id says."""
        found: str = self.run(f"document.getElementById({json.dumps(name)}).innerText")
        return found

    def key(self, name: str) -> None:
        """Presses and releases a key: Tab, Enter or Escape."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[name]
        press = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": "\r"} if name == "Enter" else {"type": "keyDown"}
        self.call("Input.dispatchKeyEvent", **press, **down)
        self.call("Input.dispatchKeyEvent", **press, type="keyUp")

    def go_to(self, name: str) -> None:
        """Presses Tab until the element with an id has the focus, where it must be visible."""
        for _ in range(40):
            if self.run("document.activeElement.id") == name:
                break
            self.key("Tab")
        else:
            raise AssertionError(f"the keyboard does not reach {name}")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert self.run(outline) == "solid", f"the focus of {name} cannot be seen"

    def press(self, name: str) -> None:
        """Activates the element with an id by the keyboard."""
        self.go_to(name)
        self.key("Enter")

    def type(self, name: str, text: str) -> None:
        """Types into the field with an id, and presses Enter."""
        self.go_to(name)
        self.call("Input.insertText", text=text)
        self.key("Enter")

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])
