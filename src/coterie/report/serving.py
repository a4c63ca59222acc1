"""The page that follows runs, served to this machine alone: read-only, and to nobody who came by another name."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from coterie.errors import CoterieError
from coterie.report.page import page
from coterie.report.watching import Watch

HOST = "127.0.0.1"
SCRIPTS = ("kit.js", "scheme.js", "curves.js", "clients.js", "learning.js", "watch.js")
# Seconds between two pieces that are read, in which others can be answered, and when there was nothing to read.
BETWEEN, IDLE = 0.002, 1.0
HTML, JSON = "text/html; charset=utf-8", "application/json"


class WatchServer(ThreadingHTTPServer):
    """Serves the page, what is known of all runs, and of one. Use it as a context, and `serve_forever`."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.watch = Watch(folder)
        self.page = page({"title": f"Runs in {folder}"}, SCRIPTS, "; connect-src 'self'")
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise CoterieError(f"port = {port}: cannot be used ({error}); name another, or none") from None
        # Whoever gives this machine another name, as web pages of others may, is not answered.
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Answer until `shutdown`; meanwhile what runs have written is read, however much there is to begin with."""
        ended = threading.Event()
        reader = threading.Thread(target=self._read, args=(ended,), daemon=True)
        reader.start()
        try:
            super().serve_forever(poll_interval)
        finally:
            ended.set()
            reader.join()

    def _read(self, ended: threading.Event) -> None:
        pause = 0.0
        while not ended.wait(pause):
            try:
                pause = BETWEEN if self.watch.read_on() else IDLE
            except OSError:  # a run that is just being moved or removed
                pause = IDLE

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: WatchServer
    server_version, sys_version = "Coterie", ""
    timeout = 20

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            self._answer(HTTPStatus.FORBIDDEN, "this page is for 127.0.0.1 alone")
            return
        asked = urlsplit(self.path)
        if asked.path == "/":
            self._answer(HTTPStatus.OK, self.server.page, HTML)
        elif asked.path == "/runs":
            self._answer(HTTPStatus.OK, self.server.watch.overview(), JSON)
        elif asked.path == "/run":
            # A name is looked up among the runs that were found; it is never made into a path.
            found = self.server.watch.details("".join(parse_qs(asked.query).get("name", [])))
            known = HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK
            self._answer(known, found or "{}", JSON)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "there is no such page")

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "runs can be looked at, not changed")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
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
