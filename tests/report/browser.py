"""A Chromium without a window, told what to do over its debugging pipe: needs nothing but the browser."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import PATIENCE, eventually

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Tab:
    """One page of a browser: what it asked of the network, and what it complained of."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def prefer(self, scheme: str) -> None:
        """Light or dark, as a visitor's system would say."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, width: int, height: int) -> None:
        """The size of the window."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, page: Path) -> None:
        """Open a file and wait until it is loaded and its figures are drawn."""
        self.visit(page.resolve().as_uri())

    def visit(self, address: str) -> None:
        """The same for an address."""
        self.events.clear()
        self._call("Page.navigate", url=address)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()
        # Figures are drawn when the browser has laid them out.
        self.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def write(self, text: str) -> None:
        """Text into the field that has the focus."""
        self._call("Input.insertText", text=text)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression holds."""
        assert eventually(lambda: bool(self.ask(f"Boolean({condition})"))), condition

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """Errors and whatever else the page wrote to the console."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], max(end - time.monotonic(), 0))[0], "the browser hangs"
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        if "method" in found:
            self.events.append(found)
        return found


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, which ends with the block."""
    assert CHROMIUM is not None
    to_read, write = os.pipe()
    read, to_write = os.pipe()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run")
    # The browser reads orders from descriptor 3 and answers on 4.
    command = f'exec "$@" 3<&{to_read} 4>&{to_write} 2>/dev/null'
    process = subprocess.Popen(
        ["bash", "-c", command, "browser", CHROMIUM, *options, f"--user-data-dir={profile}"],
        pass_fds=(to_read, to_write),
    )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Tab(write, read)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        os.close(write)
        os.close(read)
