"""Stands in for one of Flower's commands: has the forkserver run it, and waits for its end.

Run as a script of its own, `forkserver_client.py SOCKET COMMAND …`, by whoever looks for the command in `PATH`. Where
no forkserver listens at the socket, the command itself is started. Only the standard library is used: this must start
quickly.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import chdir, suppress


def main() -> None:
    """Hand the words over and wait until whoever took them has gone."""
    path, command, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    with socket.socket(socket.AF_UNIX) as forkserver:
        folder, _, name = path.rpartition("/")
        try:
            with chdir(folder):  # the names of such sockets are short
                forkserver.connect(name)
        except OSError:
            os.execv(command, [command, *words])
        with suppress(ConnectionError):
            forkserver.sendall(json.dumps(words).encode())
            forkserver.shutdown(socket.SHUT_WR)
            forkserver.recv(1)


if __name__ == "__main__":
    main()
