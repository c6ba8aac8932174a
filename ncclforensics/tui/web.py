"""Serve the screens to browsers: each visit starts its own process, connected to the page by a web socket.

Whoever has the address with its token can read the logs. A browser keeps the token as a cookie. Other pages in that
browser can neither join (origin), nor pass as this server under a name of theirs (DNS rebinding: the host is checked),
nor show the page inside of theirs.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from secrets import token_urlsafe
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp_jinja2 import template
from textual_serve.server import Server

from ncclforensics.data.paths import STDIN
from ncclforensics.errors import UsageError
from ncclforensics.inputs import sources

LOOPBACK = ("127.0.0.1", "localhost")
EVERYWHERE = ("0.0.0.0", "::", "")
EXPOSED = "everyone who sees the address with its token, also on the way, can read these logs: nothing is encrypted"
MOST_SESSIONS = 8  # each is a process that holds the run in memory
CONTENT_POLICY = (  # xterm.js writes styles of its own; scripts come from the server or carry the nonce
    "default-src 'none'",
    "script-src 'self' 'nonce-{nonce}'",
    "style-src 'self' 'unsafe-inline'",
    "connect-src 'self' ws: wss:",
    "img-src 'self' data:",
    "font-src 'self' data:",
    "frame-ancestors 'none'",
    "base-uri 'none'",
)
HEADERS = {
    "Content-Security-Policy": "; ".join(CONTENT_POLICY),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PROGRAM = [sys.executable, "-c", "from ncclforensics.cli import run; run()"]


class _Server(Server):
    """Textual's server, for those who have the token, with a page that loads nothing from elsewhere."""

    def __init__(self, command: str, bind: str, port: int, public_url: str) -> None:
        templates = Path(__file__).with_name("templates")
        super().__init__(command, bind, port, "ncclforensics", public_url, templates_path=templates)
        self._token, self._cookie = token_urlsafe(16), f"ncclforensics-{port}"
        self._sessions: set[asyncio.Task[Any]] = set()

    def initialize_logging(self) -> None:
        """Log problems, not every request: the address in it holds the token."""
        super().initialize_logging()
        logging.getLogger("aiohttp.access").setLevel(logging.WARNING)

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._checked)
        app.on_response_prepare.append(self._add_headers)
        return app

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request that was sent to this server by name, and that has the token or asks for a static file."""
        if not self._is_own_name(request.host):
            raise web.HTTPForbidden(text=f"open {self.public_url} directly")
        given = request.query.get("token") or request.cookies.get(self._cookie, "")
        if not request.path.startswith("/static/") and not compare_digest(given.encode(), self._token.encode()):
            raise web.HTTPForbidden(text="open the whole address that `ncclforensics tui --serve` printed")
        response = await handler(request)
        if request.path == "/":
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="Strict")
        return response

    def _is_own_name(self, host: str) -> bool:
        """Whether a request's host is an address, or a name of this machine: a foreign name may resolve to it."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # no host at all, such as `[`
            return False
        own = {"localhost", socket.gethostname().lower(), socket.getfqdn().lower(), self.host.lower()}
        with suppress(ValueError):
            return bool(ip_address(name))
        return name in own

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        nonce = request.get("nonce", "")
        response.headers.update({name: value.format(nonce=nonce) for name, value in HEADERS.items()})

    async def on_startup(self, app: web.Application) -> None:
        """Print the address of the page."""
        address = f"{self.public_url}/?token={self._token}"
        self.console.print(f"ncclforensics at {address} until ctrl+c", markup=False, highlight=False, soft_wrap=True)

    @template("app_index.html")
    async def handle_index(self, request: web.Request) -> dict[str, Any]:
        """Return what the template of the page needs."""
        request["nonce"] = token_urlsafe(16)
        return {"title": self.title, "nonce": request["nonce"]}

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Refuse pages of other origins, and more sessions than the machine may hold."""
        if request.headers.get("Origin") not in (None, f"http://{request.host}", f"https://{request.host}"):
            raise web.HTTPForbidden(text=f"open {self.public_url} directly")
        if len(self._sessions) >= MOST_SESSIONS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_SESSIONS} sessions are open; close one")
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        try:
            return await super().handle_websocket(request)
        finally:
            self._sessions.discard(task)

    async def on_shutdown(self, app: web.Application) -> None:
        """End the sessions, for which aiohttp would wait a minute."""
        for session in self._sessions:
            session.cancel()


def serve(paths: list[str], bind: str, port: int, *, options: list[str]) -> None:
    """Serve the screens until interrupted; each visit runs `tui` with these options and paths.

    Raises UsageError for standard input, which cannot be read per visit, NoInputError if nothing can be read.
    """
    if STDIN in paths:
        raise UsageError("--serve reads the input at every visit, but standard input can be read only once; use files")
    sources.find(paths)
    command = [*PROGRAM, "tui", *options, "--", *paths]
    name = socket.getfqdn() if bind in EVERYWHERE else bind
    url = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    _Server(shlex.join(command), bind, port, url).serve()
