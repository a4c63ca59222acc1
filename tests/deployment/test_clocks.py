"""A site whose clock is off is told so, instead of being refused without a word."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from coterie.deployment.flower.site_processes import clock_problem


class Refusing(http.server.BaseHTTPRequestHandler):
    """A server that has nothing at any address, and says when."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    listening.server_close()


@pytest.mark.parametrize(
    ("off", "words"),
    [(0.0, ""), (-200.0, ""), (120.0, "s ahead of the server's; at most 5 s"), (-900.0, "s behind the server's")],
)
def test_a_clock_that_is_off_is_named(server: str, off: float, words: str) -> None:
    found = clock_problem(server, None, now=lambda: time.time() + off)
    assert bool(found) == bool(words)
    assert words in found


def test_nobody_who_answers_is_no_problem_of_the_clock() -> None:
    assert clock_problem("127.0.0.1:9", None) == ""
