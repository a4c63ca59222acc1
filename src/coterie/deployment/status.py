"""How a server or a site stands, for people (a page), supervisors (`/health`) and monitors (`/metrics`).

Read-only, for this machine alone unless its owner says otherwise, and without PyTorch: launchers run for days.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Protocol

from coterie.deployment.prometheus import KIND, Gauge, prometheus_text
from coterie.errors import CoterieError, PassingError, require
from coterie.report.html import html_page
from coterie.report.readonly import HOST, HTML, JSON, ReadOnlyServer, Reply

OFF = "off"
SCRIPTS = ("kit.js", "scheme.js", "curves.js", "clients.js", "quality.js", "learning.js", "standing.js")


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


class StatusServer(ReadOnlyServer):
    """Serves the page of a source, what it shows as JSON, its health and its numbers."""

    def __init__(self, source: StatusSource, host: str = HOST, port: int = 0) -> None:
        self._source = source
        self._page = html_page({"title": source.title}, (*SCRIPTS, source.script), "; connect-src 'self'")
        pages = {
            "/": lambda _: Reply(self._page, HTML),
            "/status": lambda _: Reply(json.dumps(source.content(), allow_nan=False), JSON),
            "/health": lambda _: self._health(),
            "/metrics": lambda _: Reply(prometheus_text(source.gauges()), KIND),
        }
        super().__init__(pages, host, port)

    def _health(self) -> Reply:
        problem = self._source.problem()
        told = {"status": "failing" if problem else "ok", **({"problem": problem} if problem else {})}
        return Reply(json.dumps(told), JSON, HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK)


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
