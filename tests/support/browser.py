"""Chromium without a window, driven through its DevTools protocol: what a person does with keyboard and eyes."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_SECONDS = 30.0
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Enter": 13, "Tab": 9}


class Page:
    """One tab.

    Attributes:
        errors: what it wrote to the console as an error, and its exceptions.
    """

    def __init__(self, socket: ClientConnection, session: str) -> None:
        self._socket, self._session, self._number = socket, session, 0
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, "sessionId": self._session}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=START_SECONDS))
            self._note(answer)
            if answer.get("id") == self._number and answer.get("sessionId") == self._session:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Load a page and wait until it is drawn."""
        went = self.call("Page.navigate", url=url)
        assert "errorText" not in went, went
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or of what it promises."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 10.0) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not true within {seconds} s: {condition}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """Return the text that an element shows."""
        shown: str = self.evaluate(f"document.querySelector({selector!r}).innerText")
        return shown

    def focus(self, selector: str) -> None:
        """Move the keyboard's focus to an element."""
        self.evaluate(f"document.querySelector({selector!r}).focus()")

    def press(self, key: str) -> None:
        """Press and release a key: one of KEYS."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def type(self, text: str) -> None:
        """Type a text into the element that has the focus."""
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def prefer(self, scheme: str) -> None:
        """Ask for light or dark colours, as the user's system would."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning"):
                self.errors.append(json.dumps(parameters["args"])[:500])
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Start Chromium with an empty profile in this folder; yield a tab. Skip the test where there is no Chromium."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium here (looked for {', '.join(NAMES)})")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    flags += ["--disable-background-networking", "--hide-scrollbars", "--remote-debugging-port=0"]
    process = subprocess.Popen(
        [program, *flags, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with connect(_address(profile, process), max_size=None) as socket:
            yield _tab(socket)
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    port_file, end = profile / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while not port_file.exists() or len(port_file.read_text().split()) < 2:
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        assert time.monotonic() < end, "Chromium did not start"
        time.sleep(0.05)
    port, path = port_file.read_text().split()
    return f"ws://127.0.0.1:{port}{path}"


def _tab(socket: ClientConnection) -> Page:
    def ask(number: int, method: str, **parameters: Any) -> dict[str, Any]:
        socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(socket.recv(timeout=START_SECONDS))).get("id") != number:
            pass
        result: dict[str, Any] = answer["result"]
        return result

    target = ask(1, "Target.createTarget", url="about:blank")["targetId"]
    return Page(socket, ask(2, "Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
