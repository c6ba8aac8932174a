"""Serve the screens to browsers: each visit starts its own process, connected to the page by a web socket."""

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
EXPOSED = "everyone who can reach this address can read these logs: there is no password and no encryption"
PROGRAM = [sys.executable, "-c", "from ncclforensics.cli import run; run()"]


class _Server(Server):
    """Textual's server, with a page that loads nothing from elsewhere, and an origin check for web sockets."""

    async def on_startup(self, app: web.Application) -> None:
        """Print the address of the page."""
        self.console.print(f"ncclforensics at {self.public_url} until ctrl+c", markup=False, highlight=False)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Refuse pages of other origins: any page in a browser can try to connect to loopback."""
        host = urlsplit(f"//{request.host}").hostname
        is_own = request.headers.get("Origin") in (None, f"http://{request.host}", f"https://{request.host}")
        if not is_own or (
            self.host in LOOPBACK and host not in LOOPBACK
        ):  # DNS rebinding: a foreign name may resolve to loopback
            raise web.HTTPForbidden(text=f"open {self.public_url} directly")
        return await super().handle_websocket(request)


def serve(paths: list[str], bind: str, port: int, *, rank_from: str | None, no_color: bool) -> None:
    """Serve the screens until interrupted. Raises UsageError for standard input, which cannot be read per visit."""
    if STDIN in paths:
        raise UsageError("--serve reads the input at every visit, but standard input can be read only once; use files")
    options = [f"--rank-from={rank_from}"] if rank_from is not None else []
    command = [*PROGRAM, "tui", *options, *["--no-color"] * no_color, "--", *paths]
    name = socket.getfqdn() if bind in EVERYWHERE else bind
    url = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    templates = Path(__file__).with_name("templates")
    program = shlex.join(command)
    _Server(program, bind, port, title="ncclforensics", public_url=url, templates_path=templates).serve()
