"""Debian's Chromium without a window, driven over its DevTools protocol; it can resolve no name of another host."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

PROGRAM = "chromium"
TIMEOUT_S = 60


class Page:
    """One tab. `events`: everything it told since it was opened, in order, as (method, parameters)."""

    def __init__(self, connection: websocket.WebSocket) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result. Raises RuntimeError where the browser refuses."""
        number = next(self._numbers)
        self._connection.send(
            json.dumps({"id": number, "method": method, "params": parameters})
        )
        while True:
            message = self._receive()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self._connection.recv())
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message

    def open(
        self,
        path: Path,
        width: int = 1280,
        height: int = 900,
        *,
        dark: bool = False,
        scripts: bool = True,
    ) -> None:
        """Open a file in a window of this size (CSS pixels; a phone's below 600) and wait until it is loaded."""
        self.events.clear()
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{
                "width": width,
                "height": height,
                "deviceScaleFactor": 2 if phone else 1,
                "mobile": phone,
            },
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            self._receive()

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, a promise's once settled. Raises RuntimeError if it throws."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click the middle of the first element of that selector, and let timers and the layout settle."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(
            f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})"
        )
        place = self.value(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({element}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **where)
        time.sleep(0.2)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what the window shows, or the whole page, as PNG."""
        area = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            area = {
                "clip": {
                    "x": 0,
                    "y": 0,
                    "width": size["width"],
                    "height": size["height"],
                    "scale": 1,
                }
            }
        image = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **area
        )
        path.write_bytes(base64.b64decode(image["data"]))

    @property
    def requested(self) -> list[str]:
        """The addresses that the page asked for, without what it brings along itself (data:)."""
        urls = (
            params["request"]["url"]
            for method, params in self.events
            if method == "Network.requestWillBeSent"
        )
        return [url for url in urls if not url.startswith("data:")]

    @property
    def complaints(self) -> list[Mapping[str, Any]]:
        """What stands on the console, uncaught exceptions included."""
        kinds = (
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
        )
        return [params for method, params in self.events if method in kinds]


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Start the browser with its profile in `folder` and yield a tab."""
    arguments = [
        "--headless",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--remote-debugging-port=0",
    ]
    arguments += [
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
    log = folder / "chromium.log"
    announced = folder / "DevToolsActivePort"
    folder.mkdir(parents=True, exist_ok=True)
    announced.unlink(missing_ok=True)
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [PROGRAM, *arguments, f"--user-data-dir={folder}", "about:blank"],
            stdout=sink,
            stderr=sink,
        )
    try:
        port = _port(announced, process)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(
            f"http://127.0.0.1:{port}/json/list", timeout=TIMEOUT_S
        ) as answer:
            tab = next(entry for entry in json.load(answer) if entry["type"] == "page")
        connection = websocket.create_connection(
            tab["webSocketDebuggerUrl"],
            timeout=TIMEOUT_S,
            suppress_origin=True,
            http_no_proxy=["127.0.0.1"],
        )
        try:
            yield Page(connection)
        finally:
            connection.close()
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT_S)


def _port(announced: Path, process: subprocess.Popen[bytes]) -> int:
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        if announced.is_file() and (lines := announced.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise RuntimeError(
        f"{PROGRAM} did not come up: see {announced.with_name('chromium.log')}"
    )
