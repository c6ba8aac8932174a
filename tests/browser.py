"""Chromium without a window, driven over the pipe of its own protocol: what a page requests, complains of and shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


# The protocol wants its pipes under these two numbers.
_LAUNCHER = "import os, sys; _, r, w, *to = sys.argv; os.dup2(int(r), 3); os.dup2(int(w), 4); os.execv(to[0], to)"


class Browser:
    """One tab. Every answer and event is a JSON object that ends with a NUL."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        down, up = os.pipe(), os.pipe()
        arguments = [*ARGUMENTS, f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, str(down[0]), str(up[1]), str(CHROMIUM), *arguments],
            pass_fds=(down[0], up[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (down[0], up[1]):
            os.close(end)
        self._write, self._read = down[1], up[0]
        self._waiting = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[Json] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Json:
        """Ask for something; what happens meanwhile is kept in `events`."""
        self._number += 1
        wanted = {"id": self._number, "method": method, "params": parameters}
        os.write(self._write, json.dumps(wanted | ({"sessionId": self._session} if self._session else {})).encode())
        os.write(self._write, b"\0")
        while (said := self._next()).get("id") != self._number:
            self.events.append(said)
        assert "error" not in said, said
        result: Json = said["result"]
        return result

    def open(self, page: Path) -> None:
        """Load a page, to its end."""
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """What an expression comes to on the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def requests(self) -> list[str]:
        """All that the page asked for."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[Json]:
        """Errors and warnings on the console."""
        reported = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [event["params"] for event in self.events if event.get("method") in reported]

    def _next(self) -> Json:
        while b"\0" not in self._waiting:
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has gone"
            self._waiting += data
        text, _, self._waiting = self._waiting.partition(b"\0")
        said: Json = json.loads(text)
        return said
