"""The worker's side of runs in parallel: it is told configurations, and answers with rounds, warnings and summaries."""

from __future__ import annotations

import json
import logging
import tomllib
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from coterie.compare.cell import perform
from coterie.errors import CoterieError
from coterie.experiment.experiment import experiment_from
from coterie.processes import depend_on_parent
from coterie.rounds.listeners import Listener
from coterie.rounds.report import RoundReport

log = logging.getLogger("coterie")

Message = dict[str, Any]
"""Plain values: they travel as JSON."""


def serve(connection: Connection) -> None:
    """A worker process: does one run after the other until the main process hangs up or is gone."""
    depend_on_parent()
    torch.set_num_threads(1)
    log.addHandler(_Warnings(lambda text: send(connection, {"warning": text})))
    log.propagate = False
    try:
        send(connection, {"ready": True})
        while True:
            task = json.loads(connection.recv_bytes())
            send(connection, _answer(task, connection))
    except (EOFError, OSError):
        return


def _answer(task: Message, connection: Connection) -> Message:
    try:
        experiment = experiment_from(tomllib.loads(task["config"]))
        directory = None if task["out"] is None else Path(task["out"])
        listeners = [_Messenger(connection), *task["listeners"]]
        return {"summary": perform(experiment, directory, listeners, task["until"])}
    except (CoterieError, OSError) as error:
        return {"mistake": " ".join(str(error).split())}
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return {"error": text, "details": traceback.format_exc()}


class _Messenger(Listener):
    """Sends the rounds to the main process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def round(self, report: RoundReport) -> None:
        received = None if report.received is None else report.received.mean
        send(self._connection, {"round": report.round, "received": received})


class _Warnings(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


def send(connection: Connection, message: Message) -> None:
    """Send a message to the other side."""
    connection.send_bytes(json.dumps(message).encode())
