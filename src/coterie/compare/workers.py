"""Whole runs at the same time, each in a worker process.

A worker is told a run's configuration (TOML) and where to keep it, and answers with its rounds, its warnings and its
summary: all of it JSON texts on a pipe of its own. So nothing is unpickled, and a worker that is killed while it
writes spoils nobody else's messages.
"""

from __future__ import annotations

import json
import logging
import tomllib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from coterie.compare.one_run import Summary, perform
from coterie.engines import ENGINES
from coterie.errors import CoterieError, described
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.partition import PARTITIONS
from coterie.processes import (
    GUARD,
    UNGUARDED,
    CannotStartError,
    WorkerProcess,
    WorkerProcesses,
    depend_on_parent,
    ending,
    use_one_core,
)
from coterie.registry import Registry, reference_to
from coterie.rounds.listeners import Listener, RoundReport
from coterie.runs.experiment import Experiment, experiment_from
from coterie.setup.config import complete, to_toml

log = logging.getLogger("coterie")

Message = dict[str, Any]
"""Plain values: they travel as JSON."""
Tell = Callable[[Message], None]
"""Sends a message to the main process."""


@dataclass(frozen=True)
class PlannedRun:
    """A run among others: an experiment, its seed included, by name, where it is kept, and how far it goes for now.

    `listeners` are names: a new one of each is made for every run, wherever it takes place.

    >>> str(PlannedRun("fedavg", Experiment(seed=3)))
    'fedavg, seed 3'
    """

    name: str
    experiment: Experiment
    directory: Path | None = None
    until: int | None = None
    listeners: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """The round with which it ends for now."""
        return self.experiment.rounds if self.until is None else min(self.until, self.experiment.rounds)

    @property
    def seed(self) -> int:
        """The experiment's seed."""
        return self.experiment.seed

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


class Watcher(Protocol):
    """Is told of runs: when one begins, after each of its rounds, and when it is over."""

    def begun(self, run: PlannedRun) -> None:
        """A run begins."""
        ...

    def round_done(self, run: PlannedRun, round: int, received: float | None) -> None:
        """A round is over; `received` is the mean accuracy of the received models, where they were tested."""
        ...

    def ended(self, run: PlannedRun, summary: Summary) -> None:
        """A run is over."""
        ...

    def failed(self, run: PlannedRun, error: Exception) -> None:
        """A run broke off. What this raises ends all the others too; otherwise they go on."""
        ...


@dataclass(eq=False)
class _Runner(WorkerProcess):
    """A worker process, and the run that it is at."""

    run: PlannedRun | None = None


def obstacle(experiment: Experiment) -> str | None:
    """Why an experiment cannot run in a worker process; nothing if it can.

    >>> obstacle(Experiment()) is None
    True
    >>> obstacle(Experiment(engine="processes"))
    "engine 'processes' shares the cores out by itself"
    """
    method, rule, model, engine = type(experiment.method), type(experiment.partition), experiment.model, None
    if experiment.engine != "auto":
        engine = ENGINES.find(experiment.engine)
        if engine.has_workers:
            return f"engine '{experiment.engine}' shares the cores out by itself"
    own_objects = "it uses Python objects of its own (data, model, partition, method or engine)"
    known = _known_everywhere(METHODS, method) and _known_everywhere(PARTITIONS, rule)
    known = known and (engine is None or _known_everywhere(ENGINES, engine))
    if isinstance(model, str):
        known = known and _known_everywhere(MODELS, MODELS.find(model).build, model)
    if not known:
        return own_objects
    try:
        repeated = experiment_from(tomllib.loads(to_toml(complete(experiment))))
    except (CoterieError, TypeError):
        return own_objects
    return None if repeated == experiment else own_objects


def _known_everywhere(registry: Registry[Any], thing: object, name: str | None = None) -> bool:
    """Whether a worker finds something too: what was only added to a registry exists in this process alone."""
    name = name or registry.name_of(thing)
    built_in = getattr(thing, "__module__", "").startswith("coterie.")
    return built_in or reference_to(thing) is not None or (name is not None and registry.origin(name) is not None)


def run_one_by_one(runs: Sequence[PlannedRun], watcher: Watcher) -> None:
    """Run everything in this process."""
    for run in runs:
        watcher.begun(run)
        try:
            rounds = _Rounds(partial(watcher.round_done, run))
            summary = perform(run.experiment, run.directory, [rounds, *run.listeners], run.until)
        except (CoterieError, OSError) as error:
            watcher.failed(run, error)
        else:
            watcher.ended(run, summary)


class _Rounds(Listener):
    """Passes on when a round is over, with the mean score of the received models, where they were tested."""

    def __init__(self, pass_on: Callable[[int, float | None], None]) -> None:
        self._pass_on = pass_on

    def round(self, report: RoundReport) -> None:
        self._pass_on(report.round, None if report.received is None else report.received.mean)


def run_in_parallel(runs: Sequence[PlannedRun], jobs: int, watcher: Watcher) -> None:
    """Run everything in `jobs` worker processes, in the given order, each with one PyTorch thread unless set.

    An interrupt ends all workers, and so does the failure of a run (an error, the death of its worker) if the watcher
    says so; otherwise the others go on.
    """
    waiting = list(reversed(runs))
    workers = WorkerProcesses("coterie run", serve, _Runner)
    ready = False
    try:
        for _ in range(min(jobs, len(runs))):
            workers.start()
        while workers.members:
            for worker in workers.heard():
                message = worker.said(_received)
                if message is None:
                    reason = _reason(workers.bury(worker), worker.run)
                    if worker.run is not None:
                        watcher.failed(worker.run, CoterieError(f"{worker.run}: {reason}"))
                        if waiting:
                            workers.start()
                    elif not workers.members and waiting:
                        raise CoterieError(f"jobs = {jobs}: {reason}") if ready else CannotStartError(reason)
                    continue
                ready = True
                if worker.run is not None and take_in(worker.run, message, watcher):
                    worker.run = None
                if worker.run is None and waiting:
                    _deal(worker, waiting.pop(), watcher)
                elif worker.run is None:
                    workers.end([worker])
    finally:
        workers.stop()


def _received(connection: Connection) -> Message:
    message: Message = json.loads(connection.recv_bytes())
    return message


def _reason(code: int | None, run: PlannedRun | None) -> str:
    """Why a worker process is dead, and what would help."""
    if run is not None:
        hint = "; is there enough memory for several runs at once? jobs=1 needs the least" if code == -9 else ""
        return f"its worker process died ({ending(code)}){hint}"
    if code == UNGUARDED:
        return f"they import the script: {GUARD}"
    return f"a worker process died without a run ({ending(code)})"


def take_in(run: PlannedRun, message: Message, watcher: Watcher) -> bool:
    """Pass on what was told of a run; whether that is over now."""
    match message:
        case {"round": round, "received": received}:
            watcher.round_done(run, round, received)
            return False
        case {"summary": summary}:
            watcher.ended(run, summary)
        case {"mistake": text}:
            watcher.failed(run, CoterieError(f"{run}: {text}"))
        case {"error": text, "details": details}:
            error = RuntimeError(f"{run}: {text}")
            error.add_note(f"In the worker process:\n{details}")
            watcher.failed(run, error)
        case {"warning": text}:
            log.warning("%s: %s", run, text)
            return False
    return True


def task_of(run: PlannedRun) -> Message:
    """What a worker is told to do for a run."""
    # The run's configuration says what it was run with, so that it can be repeated.
    experiment = replace(run.experiment, threads=run.experiment.threads or 1)
    config = to_toml({**complete(experiment), "protocol": experiment.protocol})
    out = None if run.directory is None else str(run.directory)
    return {"config": config, "out": out, "until": run.until, "listeners": run.listeners}


def _deal(worker: _Runner, run: PlannedRun, watcher: Watcher) -> None:
    worker.run = run
    watcher.begun(run)
    with suppress(OSError):  # it has died, which will be noticed
        send(worker.connection, task_of(run))


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
        rounds = _Rounds(lambda round, received: tell({"round": round, "received": received}))
        heard = [rounds, *listeners, *task["listeners"]]
        return {"summary": perform(experiment, directory, heard, task["until"], task.get("identity"))}
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> Message:
    """What is told of an error that is being handled: mistakes are the user's to mend and need no traceback."""
    if isinstance(error, CoterieError | OSError):
        return {"mistake": " ".join(str(error).split())}
    return {"error": described(error), "details": traceback.format_exc()}


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
