"""The worker's side of runs in parallel: it is told configurations, and answers with rounds, warnings and summaries."""

from __future__ import annotations

import json
import logging
import tomllib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from coterie.compare.cell import perform
from coterie.errors import CoterieError
from coterie.one_core import use_one_core
from coterie.processes import depend_on_parent
from coterie.rounds.listeners import Listener
from coterie.rounds.report import RoundReport
from coterie.runs.experiment import experiment_from

log = logging.getLogger("coterie")

Message = dict[str, Any]
"""Plain values: they travel as JSON."""


Tell = Callable[[Message], None]
"""Sends a message to the main process."""


def serve(connection: Connection) -> None:
    """A worker process: does one run after the other until the main process hangs up or is gone."""
    depend_on_parent()
    use_one_core()

    def tell(message: Message) -> None:
        send(connection, message)

    try:
        with warnings_told(tell):
            tell({"ready": True})
            while True:
                task = json.loads(connection.recv_bytes())
                tell(answer(task, tell))
    except (EOFError, OSError):
        return


def answer(task: Message, tell: Tell, listeners: Sequence[Listener] = ()) -> Message:
    """Do the run of a task, tell of its rounds, and give the last message there is about it."""
    try:
        experiment = experiment_from(tomllib.loads(task["config"]))
        directory = None if task["out"] is None else Path(task["out"])
        heard = [_Messenger(tell), *listeners, *task["listeners"]]
        return {"summary": perform(experiment, directory, heard, task["until"], task.get("identity"))}
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> Message:
    """What is told of an error that is being handled: mistakes are the user's to mend and need no traceback."""
    if isinstance(error, CoterieError | OSError):
        return {"mistake": " ".join(str(error).split())}
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return {"error": text, "details": traceback.format_exc()}


class _Messenger(Listener):
    """Sends the rounds to the main process."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def round(self, report: RoundReport) -> None:
        received = None if report.received is None else report.received.mean
        self._tell({"round": report.round, "received": received})


@contextmanager
def warnings_told(tell: Tell) -> Iterator[None]:
    """While inside, what is logged as a warning is told to the main process, and to nobody here."""
    handler, propagated = _Warnings(tell), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


class _Warnings(logging.Handler):
    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell({"warning": record.getMessage()})


def send(connection: Connection, message: Message) -> None:
    """Send a message to the other side."""
    connection.send_bytes(json.dumps(message).encode())
