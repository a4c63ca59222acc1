"""Whole runs at the same time, each in a worker process.

A worker is told a run's configuration (TOML) and where to keep it, and answers with its rounds, its warnings and its
summary: all of it JSON texts on a pipe of its own. So nothing is unpickled, and a worker that is killed while it
writes spoils nobody else's messages.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from coterie.compare.cell import Summary, perform
from coterie.compare.worker import Message, send, serve
from coterie.engines.processes.pool import UNGUARDED
from coterie.errors import CoterieError
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.partition import PARTITIONS
from coterie.processes import interrupts_held_back
from coterie.registry import Registry, reference_to
from coterie.rounds.listeners import Listener
from coterie.rounds.report import RoundReport
from coterie.runs.experiment import Experiment, experiment_from
from coterie.setup.config import complete, to_toml

log = logging.getLogger("coterie")

GUARD = "put what the script does under 'if __name__ == \"__main__\":'"


@dataclass(frozen=True)
class Run:
    """A run among others: an experiment, its seed included, by name, where it is kept, and how far it goes for now.

    `listeners` are names: a new one of each is made for every run, wherever it takes place.

    >>> str(Run("fedavg", Experiment(seed=3)))
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

    def begun(self, run: Run) -> None:
        """A run begins."""
        ...

    def round_done(self, run: Run, round: int, received: float | None) -> None:
        """A round is over; `received` is the mean accuracy of the received models, where they were tested."""
        ...

    def ended(self, run: Run, summary: Summary) -> None:
        """A run is over."""
        ...

    def failed(self, run: Run, error: Exception) -> None:
        """A run broke off. What this raises ends all the others too; otherwise they go on."""
        ...


class CannotStartError(Exception):
    """No worker process could start, and no run has begun; the message says why."""


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    run: Run | None = None


def obstacle(experiment: Experiment) -> str | None:
    """Why an experiment cannot run in a worker process; nothing if it can.

    >>> obstacle(Experiment()) is None
    True
    >>> obstacle(Experiment(engine="processes"))
    "engine 'processes' shares the cores out by itself"
    """
    if experiment.engine not in ("auto", "serial", "stacked"):
        return f"engine '{experiment.engine}' shares the cores out by itself"
    own = "it uses Python objects of its own (data, model, partition or method)"
    method, rule, model = type(experiment.method), type(experiment.partition), experiment.model
    known = _known_everywhere(METHODS, method, METHODS.name_of(method))
    known = known and _known_everywhere(PARTITIONS, rule, PARTITIONS.name_of(rule))
    if isinstance(model, str):
        known = known and _known_everywhere(MODELS, MODELS[model].build, model)
    if not known:
        return own
    try:
        repeated = experiment_from(tomllib.loads(to_toml(complete(experiment))))
    except (CoterieError, TypeError):
        return own
    return None if repeated == experiment else own


def _known_everywhere(registry: Registry[Any], thing: object, name: str | None) -> bool:
    """Whether a worker finds something too: what was only added to a registry exists in this process alone."""
    built_in = getattr(thing, "__module__", "").startswith("coterie.")
    return built_in or reference_to(thing) is not None or (name is not None and registry.origin(name) is not None)


def run_one_by_one(runs: Sequence[Run], watcher: Watcher) -> None:
    """Run everything in this process."""
    for run in runs:
        watcher.begun(run)
        try:
            summary = perform(run.experiment, run.directory, [_Tell(run, watcher), *run.listeners], run.until)
        except (CoterieError, OSError) as error:
            watcher.failed(run, error)
        else:
            watcher.ended(run, summary)


class _Tell(Listener):
    """Tells a watcher of the rounds of a run in this process."""

    def __init__(self, run: Run, watcher: Watcher) -> None:
        self._run, self._watcher = run, watcher

    def round(self, report: RoundReport) -> None:
        received = None if report.received is None else report.received.mean
        self._watcher.round_done(self._run, report.round, received)


def run_in_parallel(runs: Sequence[Run], jobs: int, watcher: Watcher) -> None:
    """Run everything in `jobs` worker processes, in the given order, each with one PyTorch thread unless set.

    An interrupt ends all workers, and so does the failure of a run (an error, the death of its worker) if the watcher
    says so; otherwise the others go on.
    """
    waiting = list(reversed(runs))
    workers: list[_Worker] = []
    ready = False
    try:
        while len(workers) < min(jobs, len(runs)):
            workers.append(_start())
        while workers:
            for worker in _heard(workers):
                message = _received(worker)
                if message is None:
                    workers.remove(worker)
                    failed, reason = worker.run, _bury(worker)
                    if failed is not None:
                        watcher.failed(failed, CoterieError(f"{failed}: {reason}"))
                        workers += [_start()] if waiting else []
                    elif not workers and waiting:
                        raise CoterieError(f"jobs = {jobs}: {reason}") if ready else CannotStartError(reason)
                    continue
                ready = True
                if worker.run is not None and take_in(worker.run, message, watcher):
                    worker.run = None
                if worker.run is None and waiting:
                    _deal(worker, waiting.pop(), watcher)
                elif worker.run is None:
                    workers.remove(worker)
                    _stop([worker])
    finally:
        _stop(workers)


def _start() -> _Worker:
    main = getattr(sys.modules["__main__"], "__file__", None)
    if main is not None and getattr(sys.modules["__main__"], "__spec__", None) is None and not Path(main).is_file():
        raise CannotStartError(f"they import the main script, and {main} is no file")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), name="coterie run", daemon=True)
    try:
        with interrupts_held_back():
            process.start()
    except AssertionError as error:  # multiprocessing's own check of daemonic processes
        ours.close()
        raise CannotStartError(str(error)) from None
    finally:
        theirs.close()
    return _Worker(process, ours)


def _heard(workers: Sequence[_Worker]) -> list[_Worker]:
    """Wait until something happens; the workers that said something or died."""
    handles: list[Connection | int] = [worker.connection for worker in workers]
    handles += [worker.process.sentinel for worker in workers]
    happened = wait(handles)
    return [worker for worker in workers if worker.connection in happened or worker.process.sentinel in happened]


def _received(worker: _Worker) -> Message | None:
    """What a worker said; nothing if it is dead and has no last words."""
    try:
        if not worker.connection.poll():
            return None
        message: Message = json.loads(worker.connection.recv_bytes())
    except (EOFError, OSError):
        return None
    return message


def take_in(run: Run, message: Message, watcher: Watcher) -> bool:
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


def task_of(run: Run) -> Message:
    """What a worker is told to do for a run."""
    # The run's configuration says what it was run with, so that it can be repeated.
    experiment = replace(run.experiment, threads=run.experiment.threads or 1)
    config = to_toml({**complete(experiment), "protocol": experiment.protocol})
    out = None if run.directory is None else str(run.directory)
    return {"config": config, "out": out, "until": run.until, "listeners": run.listeners}


def _deal(worker: _Worker, run: Run, watcher: Watcher) -> None:
    worker.run = run
    watcher.begun(run)
    with suppress(OSError):  # it has died, which will be noticed
        send(worker.connection, task_of(run))


def _bury(worker: _Worker) -> str:
    """Let go of a dead worker, and say how it ended."""
    worker.process.join(5)
    code = worker.process.exitcode
    _stop([worker])
    ending = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    if worker.run is not None:
        hint = "; is there enough memory for several runs at once? jobs=1 needs the least" if code == -9 else ""
        return f"its worker process died ({ending}){hint}"
    if code == UNGUARDED:
        return f"they import the script: {GUARD}"
    return f"a worker process died without a run ({ending})"


def _stop(workers: list[_Worker]) -> None:
    """End workers, busy or not: they own nothing."""
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(5)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.connection.close()
        worker.process.close()
    workers.clear()


def leave_if_imported_by_a_worker() -> None:
    """End a worker process whose import of an unguarded main script has come to start runs by itself."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(UNGUARDED)
