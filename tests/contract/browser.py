"""A real headless Chromium, driven over its debugging pipe: what a page looks like, says and asks for."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
WAIT_S: Final = 60.0
_ONTO_3_AND_4: Final = """
import fcntl, os, sys
high = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 20) for word in sys.argv[1:3]]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and answers on 4; the shell cannot name those above 9."""


def program() -> str | None:
    """The browser of this host, or None."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One page. `events` are all messages the browser sent by itself."""

    def __init__(self, inward: int, outward: int) -> None:
        self._inward, self._outward = inward, outward
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        """Open the page and listen to what it says and loads."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, file: Path, *, width: int, scheme: Literal["light", "dark"]) -> None:
        """Load a file at a width in CSS pixels, in one colour scheme, and wait until it is there."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )  # fmt: skip
        self.call("Page.navigate", url=file.absolute().as_uri())
        end = time.monotonic() + WAIT_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < end, "the page never finished loading"
            self.events.append(self._message())

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions, since `open`."""
        found = []
        for event in self.events:
            method, given = event.get("method"), event.get("params", {})
            if method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                found.append(given["entry"]["text"])
            elif method == "Runtime.exceptionThrown":
                found.append(str(given["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning"):
                found.append(str(given["args"]))
        return found

    def requests(self) -> list[str]:
        """Every URL the page asked for since `open`."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._outward, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") != self._number:
                self.events.append(answer)
                continue
            assert "error" not in answer, f"{method}: {answer['error']}"
            return dict(answer["result"])

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._inward], [], [], WAIT_S)
            assert ready, "the browser went silent"
            part = os.read(self._inward, 1 << 16)
            assert part, "the browser ended"
            self._rest += part
        whole, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(whole))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with one empty page, gone when the block ends."""
    found = program()
    assert found is not None, "no chromium: ./inv test --install installs it"
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="haloforge-browser-") as profile:
        process = subprocess.Popen(
            [
                sys.executable, "-c", _ONTO_3_AND_4, str(to_read), str(from_write), found, "--headless=new",
                "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
                "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
                f"--user-data-dir={profile}", "about:blank",
            ],
            pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        try:
            page = Browser(from_read, to_write)
            page.attach()
            yield page
        finally:
            os.close(to_write)
            os.close(from_read)
            process.kill()
            process.wait()
            _settle(Path(profile))


def _settle(profile: Path) -> None:
    """Child processes of a killed browser may still write; wait until they stopped."""
    for _ in range(50):
        before = set(profile.rglob("*"))
        time.sleep(0.05)
        if before == set(profile.rglob("*")):
            return
