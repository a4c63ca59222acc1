"""How a server or a site stands, for people (a page), supervisors (`/health`) and monitors (`/metrics`).

Read-only, for this machine alone unless its owner says otherwise, and without PyTorch: launchers run for days.
"""

from __future__ import annotations

import ipaddress
import json
import math
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from coterie.errors import CoterieError, PassingError, require
from coterie.report.html import CHARTS, html_page

KIND = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "coterie_"


@dataclass
class Gauge:
    """A number that has a name, a meaning and, for each set of labels, a value; a counter if it only ever grows."""

    name: str
    help: str
    counter: bool = False
    values: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def at(self, value: float | None, **labels: str) -> Gauge:
        """Add a value; one that is not known is left out."""
        if value is not None and math.isfinite(value):
            self.values.append((labels, value))
        return self


def prometheus_text(gauges: Iterable[Gauge]) -> str:
    r"""All values, each number with its meaning and kind.

    >>> round = Gauge("round", "Rounds that are over.").at(3)
    >>> print(prometheus_text([round, Gauge("accuracy", "At a site.").at(0.5, site='the "old" one')]), end="")
    # HELP coterie_round Rounds that are over.
    # TYPE coterie_round gauge
    coterie_round 3
    # HELP coterie_accuracy At a site.
    # TYPE coterie_accuracy gauge
    coterie_accuracy{site="the \"old\" one"} 0.5
    """
    lines = []
    for gauge in gauges:
        if gauge.values:
            name = PREFIX + gauge.name
            lines += [f"# HELP {name} {gauge.help}", f"# TYPE {name} {'counter' if gauge.counter else 'gauge'}"]
            lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in gauge.values]
    return "".join(f"{line}\n" for line in lines)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


HOST, OFF = "127.0.0.1", "off"
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class StatusSource(Protocol):
    """Whoever knows how something stands. Asked from several threads."""

    @property
    def title(self) -> str:
        """What the page is about."""

    @property
    def script(self) -> str:
        """The asset that draws the page."""

    def content(self) -> Mapping[str, Any]:
        """All that the page shows, as plain values."""

    def problem(self) -> str:
        """What is wrong at this moment; empty if all is well."""

    def gauges(self) -> list[Gauge]:
        """Numbers for monitors."""


class Reply(NamedTuple):
    """What is answered to a request."""

    text: str
    kind: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


NO_PAGE = Reply("there is no such page", status=HTTPStatus.NOT_FOUND)


class ReadOnlyServer(ThreadingHTTPServer):
    """Answers requests by their path: `pages` has a function for each. Use it as a context."""

    daemon_threads = True

    def __init__(self, pages: Mapping[str, Callable[[], Reply]], host: str = HOST, port: int = 0) -> None:
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


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: ReadOnlyServer
    server_version, sys_version = "Coterie", ""
    timeout = 20

    def do_GET(self) -> None:
        if self.server.names is not None and self.headers.get("Host") not in self.server.names:
            self._answer(Reply(f"this page is for {HOST} alone", status=HTTPStatus.FORBIDDEN))
            return
        page = self.server.pages.get(urlsplit(self.path).path)
        self._answer(NO_PAGE if page is None else page())

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


class StatusServer(ReadOnlyServer):
    """Serves the page of a source, what it shows as JSON, its health and its numbers."""

    def __init__(self, source: StatusSource, host: str = HOST, port: int = 0) -> None:
        self._source = source
        self._page = html_page({"title": source.title}, (*CHARTS, "standing.js", source.script), "; connect-src 'self'")
        pages = {
            "/": lambda: Reply(self._page, HTML),
            "/status": lambda: Reply(json.dumps(source.content(), allow_nan=False), JSON),
            "/health": lambda: self._health(),
            "/metrics": lambda: Reply(prometheus_text(source.gauges()), KIND),
        }
        super().__init__(pages, host, port)

    def _health(self) -> Reply:
        problem = self._source.problem()
        health = {"status": "failing" if problem else "ok", **({"problem": problem} if problem else {})}
        return Reply(json.dumps(health), JSON, HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK)


def status_address(text: str) -> tuple[str, int] | None:
    """Host and port of `--status`; none where it is switched off.

    >>> status_address("127.0.0.1:9464"), status_address("[::1]:0"), status_address("off")
    (('127.0.0.1', 9464), ('::1', 0), None)
    """
    if text == OFF:
        return None
    host, _, port = text.rpartition(":")
    whole = bool(host) and port.isdecimal() and int(port) < 65536 and "/" not in host
    require(whole, f"status = {text}: must be HOST:PORT, such as {HOST}:9464, or {OFF}")
    return host.removeprefix("[").removesuffix("]"), int(port)


@contextmanager
def served_status(source: StatusSource, address: tuple[str, int] | None) -> Iterator[StatusServer | None]:
    """Answer from threads of this process while inside."""
    if address is None:
        yield None
        return
    try:
        server = StatusServer(source, *address)
    except CoterieError as error:  # a port that is taken now may be free when a supervisor tries again
        raise PassingError(f"status: {error}") from None
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
