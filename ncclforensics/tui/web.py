"""How the screens come up in browsers: each visit is a program of its own, joined to the page by a web socket."""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

from ncclforensics.data.paths import STDIN
from ncclforensics.errors import UsageError

LOOPBACK = ("127.0.0.1", "localhost")
EVERYWHERE = ("0.0.0.0", "::", "")
EXPOSED = "whoever can reach this address reads these logs: there is no password and no encryption"
PROGRAM = [sys.executable, "-c", "from ncclforensics.cli import run; run()"]


class _Server(Server):
    """Textual's, with a page that asks nobody else for anything, and that no other page may join."""

    async def on_startup(self, app: web.Application) -> None:
        """Say where the page is."""
        self.console.print(f"ncclforensics at {self.public_url} until ctrl+c", markup=False, highlight=False)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Any page that a browser shows may try to connect to loopback; only one that came from here may."""
        host = urlsplit(f"//{request.host}").hostname
        is_own = request.headers.get("Origin") in (None, f"http://{request.host}", f"https://{request.host}")
        if not is_own or (self.host in LOOPBACK and host not in LOOPBACK):  # a name of theirs may lead here, too
            raise web.HTTPForbidden(text=f"open {self.public_url} itself")
        return await super().handle_websocket(request)


def serve(paths: list[str], bind: str, port: int, *, rank_from: str | None, no_color: bool) -> None:
    """Serve the screens until interrupted. Raises UsageError for what can be read only once."""
    if STDIN in paths:
        raise UsageError("- can be read only once, and every visit reads: give --serve files")
    options = [f"--rank-from={rank_from}"] if rank_from is not None else []
    command = [*PROGRAM, "tui", *options, *["--no-color"] * no_color, "--", *paths]
    name = socket.getfqdn() if bind in EVERYWHERE else bind
    url = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    templates = Path(__file__).with_name("templates")
    program = shlex.join(command)
    _Server(program, bind, port, title="ncclforensics", public_url=url, templates_path=templates).serve()
