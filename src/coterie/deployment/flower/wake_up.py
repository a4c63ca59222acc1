"""Wake-ups, by which a server's app tells the gateway whom it has sent a message to.

A SuperNode that asks for messages and gets none looks again after three seconds. So the gateway holds such requests
open until there is something to get. What is sent goes to the SuperLink and not through the gateway, which would have
to ask again and again; instead it is told, by a datagram to a socket in the server's private folder. If that does not
come through, no more is lost than time.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path

SOCKET = ".wake-up.socket"
LONGEST = 256  # bytes of a name


def wake(path: Path, site: str) -> None:
    """Say that there is something for a site; nobody need be there to hear it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError), chdir(path.parent):
        sender.setblocking(False)
        sender.sendto(site.encode()[:LONGEST], path.name)


class WakeUp:
    """Hears who is to be woken. Whoever waits under no name is woken by every wake-up."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen while inside."""
        self._path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            before = os.umask(0o177)
            try:
                with chdir(self._path.parent):  # the names of such sockets are short
                    listener.bind(self._path.name)
            finally:
                os.umask(before)
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.add_reader(listener, self._hear, listener)
            try:
                yield
            finally:
                loop.remove_reader(listener)

    @contextmanager
    def awaited(self, site: str) -> Iterator[asyncio.Event]:
        """What is set once a site is woken."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(site, set())
        waiting.add(event)
        try:
            yield event
        finally:
            waiting.discard(event)
            if not waiting:
                self._waiting.pop(site, None)

    def _hear(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            while True:
                site = listener.recv(LONGEST).decode("utf-8", errors="replace")
                for name in {site, ""}:
                    for event in self._waiting.get(name, ()):
                        event.set()
