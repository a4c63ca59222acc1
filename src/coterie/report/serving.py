"""The page that follows runs, served to this machine alone: read-only, and to nobody who came by another name."""

from __future__ import annotations

import threading
from http import HTTPStatus
from pathlib import Path

from coterie.report.html import html_page
from coterie.report.readonly import HTML, JSON, ReadOnlyServer, Reply, query_value
from coterie.report.watching import Watch

SCRIPTS = ("kit.js", "scheme.js", "curves.js", "clients.js", "learning.js", "watch.js")
# Seconds between two pieces that are read, in which others can be answered, and when there was nothing to read.
BETWEEN, IDLE = 0.002, 1.0


class WatchServer(ReadOnlyServer):
    """Serves the page, what is known of all runs, and of one. Use it as a context, and `serve_forever`."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.watch = Watch(folder)
        self.page = html_page({"title": f"Runs in {folder}"}, SCRIPTS, "; connect-src 'self'")
        pages = {
            "/": lambda _: Reply(self.page, HTML),
            "/runs": lambda _: Reply(self.watch.overview(), JSON),
            "/run": self._run,
        }
        super().__init__(pages, port=port)

    def _run(self, query: str) -> Reply:
        # A name is looked up among the runs that were found; it is never made into a path.
        found = self.watch.details(query_value(query, "name"))
        return Reply(found or "{}", JSON, HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK)

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
