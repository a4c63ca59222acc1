"""The forkserver of a site or a server: keeps Flower loaded, so that its process for an app starts at once.

Run as `python -m coterie.deployment.flower.forkserver SOCKET COMMAND`. A SuperExec starts the command
`flwr-clientapp` for every message to a site, and `flwr-serverapp` for a run, which is a second and a half of importing
before anything happens. It finds the command through `PATH`, where a script of ours stands first (`stand_in`): that
hands its words to the forkserver, which has imported everything once and forks. What runs then is Flower's own command,
found by its public name; without a forkserver it is started as ever.

Flower gives a process half a minute to say that it is there, and then starts another, as often as it takes. On a
machine that is far too busy none of them would be there in time, and all of them together make it busier.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from coterie.deployment.channel import listening
from coterie.deployment.flower import forkserver_client
from coterie.deployment.flower.commands import loaded
from coterie.deployment.flower.processes import flower_command
from coterie.files import private_folder

CLIENT_APP, SERVER_APP = "flwr-clientapp", "flwr-serverapp"
READY = "the forkserver is there"
MOST_WORDS = 64 << 10  # bytes
PATIENCE = 10.0  # seconds for the words of a command


def forkserver_words(forkserver: Path, command: str) -> list[str]:
    """The arguments of `python -m` that start a forkserver for one of Flower's commands."""
    return ["coterie.deployment.flower.forkserver", str(forkserver), command]


def surroundings() -> dict[str, str]:
    """What the environment of a forkserver has besides: it forks, and so must have no threads."""
    return {"OPENBLAS_NUM_THREADS": "1"}


def stand_in(folder: Path, forkserver: Path, command: str) -> Path:
    """Write the script that stands in for Flower's command into a folder of its own, to be put first into `PATH`."""
    script = private_folder(folder) / command
    words = [sys.executable, "-I", "-S", forkserver_client.__file__, str(forkserver), flower_command(command)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    return folder


def _reap(_number: int, _frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def called(listener: socket.socket) -> tuple[list[str], socket.socket]:
    """Wait to be called, for ever, and fork at every call. Only the new process returns: with the words of its command,
    and with the connection that it must hold until its end, for which the caller waits.
    """
    signal.signal(signal.SIGCHLD, _reap)
    gc.freeze()  # what is shared with forked processes stays shared
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return _words(connection), connection
        connection.close()


def _words(connection: socket.socket) -> list[str]:
    connection.settimeout(PATIENCE)
    content = b""
    while piece := connection.recv(MOST_WORDS):
        content += piece
        if len(content) > MOST_WORDS:
            sys.exit("too many words")
    return [str(word) for word in json.loads(content)]


def main() -> None:
    """Load the command, then run it whenever it is asked for."""

    path, name = sys.argv[1:]
    command, listener = loaded(name), listening(Path(path))
    print(READY, flush=True)
    words, connection = called(listener)
    sys.argv = [name, *words]
    with connection:
        command()


if __name__ == "__main__":
    main()
