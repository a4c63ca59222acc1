"""A worker that starts in no time because it loads no PyTorch; its run's seed says what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import time
import tomllib
from multiprocessing.connection import Connection
from typing import Any

FINE, MISTAKEN, BUGGY, KILLED, ENDLESS = range(5)


def serve(connection: Connection) -> None:
    def send(message: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(message).encode())

    send({"ready": True})
    while True:
        try:
            task = json.loads(connection.recv_bytes())
        except EOFError:
            return
        config = tomllib.loads(task["config"])
        send({"round": 1, "received": 0.5})
        send({"warning": "beware"})
        match config["seed"] % 5:
            case 0:
                send({"summary": {"config": config, "out": task["out"], "pid": os.getpid()}})
            case 1:
                send({"mistake": "lr = 7: too much"})
            case 2:
                send({"error": "KeyError: 'x'", "details": "the worker's traceback"})
            case 3:
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                time.sleep(600)


def leave(connection: Connection) -> None:
    """What a worker does whose import of an unguarded script comes to `compare`."""
    raise SystemExit(73)


def real_serve(connection: Connection) -> None:
    """A real worker, for a script that is to start at once itself."""
    from coterie.compare.workers import serve as real

    real(connection)
