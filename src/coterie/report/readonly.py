"""Pages that can be looked at and not changed, served to this machine alone unless told otherwise. Free of PyTorch."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from coterie.errors import CoterieError

HOST = "127.0.0.1"
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class Reply(NamedTuple):
    """What is answered to a request."""

    text: str
    kind: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


NO_PAGE = Reply("there is no such page", status=HTTPStatus.NOT_FOUND)


class ReadOnlyServer(ThreadingHTTPServer):
    """Answers requests by their path: `pages` has a function of the query for each. Use it as a context."""

    daemon_threads = True

    def __init__(self, pages: Mapping[str, Callable[[str], Reply]], host: str = HOST, port: int = 0) -> None:
        self.pages, self.host = pages, host
        try:
            self.address_family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise CoterieError(f"port = {port}: cannot be used on {host} ({error}); name another, or none") from None
        # Whoever gives this machine another name, as web pages of others may, is not answered.
        local = {f"{name}:{self.server_port}" for name in (HOST, "localhost", "[::1]")}
        self.names = local if _is_local(host) else None

    @property
    def address(self) -> str:
        """Where the pages are."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.server_port}/"


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def query_value(query: str, name: str) -> str:
    """A value in the query of a request.

    >>> query_value("name=deep%2Fone", "name")
    'deep/one'
    """
    return "".join(parse_qs(query).get(name, []))


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: ReadOnlyServer
    server_version, sys_version = "Coterie", ""
    timeout = 20

    def do_GET(self) -> None:
        if self.server.names is not None and self.headers.get("Host") not in self.server.names:
            self._answer(Reply(f"this page is for {HOST} alone", status=HTTPStatus.FORBIDDEN))
            return
        asked = urlsplit(self.path)
        page = self.server.pages.get(asked.path)
        self._answer(NO_PAGE if page is None else page(asked.query))

    def _refuse(self) -> None:
        self._answer(Reply("pages can be looked at, not changed", status=HTTPStatus.METHOD_NOT_ALLOWED))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _answer(self, reply: Reply) -> None:
        content = reply.text.encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *values: object) -> None:
        """Nothing: a page that asks every other second would fill the terminal."""
