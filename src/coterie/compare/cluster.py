"""Whole runs on the machines of a Ray cluster: each is one task, wherever there is room for it.

The main process alone writes to the directories of runs: nodes are sent what there is of a run and send back what comes
of it, so they need no folder in common. Ray pickles between machines, so a cluster must be trusted like this machine.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.compare.cluster_node import Inbox, Outbox, carry_out, versions
from coterie.compare.one_run import kept_summary
from coterie.compare.workers import Message, PlannedRun, Watcher, take_in, task_of
from coterie.data.archives import DATA
from coterie.engines.ray.session import RaySession, fetched
from coterie.engines.remote import DEATHS
from coterie.errors import CoterieError, PassingError, described, require
from coterie.files import LockedError, locked
from coterie.runs.directory import RunDirectory, lock_of
from coterie.setup.identity import on_any_machine

log = logging.getLogger("coterie")

# Seconds after which it is looked again how many machines there are, and which runs others are at.
LOOK_AGAIN = 5.0
# Messages of a run that may wait to be read here.
AHEAD = 8
# Seconds after which it is said that no run has begun, and so many times as much until it is said again.
TOLD_AFTER, TOLD_LATER = 10.0, 5
# Seconds after which nobody waits for room any longer: those of this variable of the environment.
WAIT, USUAL_WAIT = "COTERIE_CLUSTER_WAIT", 1800.0
NOWHERE = "not yet placed"
ALIKE = "every node needs the same Coterie, PyTorch and Python"


@dataclass(eq=False)
class _ClusterRun:
    """A run that waits or is on the cluster; the lock of its directory is ours as long as it is there."""

    run: PlannedRun
    begun: bool = False
    waits_for_others: bool = False
    lost: int = 0  # so often
    messages: Any = None  # Ray's generator of references
    where: str = NOWHERE
    lock: ExitStack = field(default_factory=ExitStack)
    inbox: Inbox | None = None

    @property
    def cpus(self) -> int:
        """The CPUs that it has on its node: as many as threads."""
        return self.run.experiment.threads or 1

    @property
    def gpus(self) -> int:
        """The GPUs that it has there."""
        return 1 if self.run.experiment.device.startswith("cuda") else 0


def run_on_cluster(runs: Sequence[PlannedRun], address: str, jobs: int, watcher: Watcher) -> None:
    """Run everything on a cluster, in the given order, at most `jobs` at a time (0: as many as it has room for).

    What is finished is read, what was begun is carried on. A run whose node is lost is carried on elsewhere from the
    last checkpoint that has arrived; one that was lost three times has failed. An interrupt, or a failure if the
    watcher says so, ends all of them.
    """
    require(not address.startswith("ray://"), f"cluster = '{address}': must be HOST:PORT or 'auto', on a machine of it")
    session = RaySession(address, option="cluster")
    dispatch = _Dispatch(session, runs, jobs, watcher)
    try:
        dispatch.require_room()
        dispatch.perform()
    except PassingError as error:
        if any(run.directory is not None for run in runs):
            error.add_note("the same again carries on from what has arrived, also without a cluster, on this machine")
        raise
    finally:
        dispatch.stop()
        session.close()


class _Dispatch:
    """Who is where: runs that wait, and those on the cluster by Ray's generator of their messages."""

    def __init__(self, session: RaySession, runs: Sequence[PlannedRun], jobs: int, watcher: Watcher) -> None:
        self._session, self._ray, self._jobs, self._watcher = session, session.ray, jobs, watcher
        self._waiting = [_ClusterRun(run) for run in runs]
        self._under_way: dict[Any, _ClusterRun] = {}
        self._versions = versions()
        self._most_cpus = max((entry.cpus for entry in self._waiting), default=1)
        self._room, self._looked = 0, -LOOK_AGAIN
        self._patience = _Patience(session)

    def require_room(self) -> None:
        """An error if there is a run for which no machine is large enough: it would wait for ever."""
        cpus, gpus = self._session.most("CPU"), self._session.most("GPU")
        for entry in self._waiting:
            device = entry.run.experiment.device
            require(
                entry.cpus <= max(cpus, 1), f"threads = {entry.cpus}: the cluster's machines have at most {cpus:g} CPUs"
            )
            require(entry.gpus <= gpus, f"device = {device}: no machine of the cluster has a GPU")

    def perform(self) -> None:
        """Have everything done."""
        while self._waiting or self._under_way:
            while len(self._under_way) < self._places() and self._begin_next():
                pass
            if self._under_way:
                for messages in self._heard():
                    self._listen(self._under_way[messages])
                placed = any(entry.where != NOWHERE for entry in self._under_way.values())
                self._patience.check(placed or not self._under_way, self._most_cpus)
            elif self._waiting:  # others are at all that are left
                time.sleep(1)

    def _heard(self) -> list[Any]:
        """Wait for a message for a while; whoever has one."""
        first, others = self._ray.wait(list(self._under_way), num_returns=1, timeout=LOOK_AGAIN)
        if not first or not others:
            return list(first)
        more, _ = self._ray.wait(others, num_returns=len(others), timeout=0)
        return [*first, *more]  # all of them, since one that talks much would keep the others waiting

    def stop(self) -> None:
        """End what is under way."""
        for entry in list(self._under_way.values()):
            self._cancel(entry)

    def _places(self) -> int:
        """How many runs may be on the cluster now: its machines come and go."""
        if time.monotonic() - self._looked >= LOOK_AGAIN:
            self._looked = time.monotonic()
            self._room = max(int(self._session.total("CPU") // self._most_cpus), 1)
        return self._jobs or self._room

    def _begin_next(self) -> bool:
        """Begin the first run at which nobody else is; whether there was one."""
        for place, entry in enumerate(self._waiting):
            if self._alone_at(entry):
                del self._waiting[place]
                self._begin(entry)
                return True
        return False

    def _alone_at(self, entry: _ClusterRun) -> bool:
        directory = entry.run.directory
        if directory is None:
            return True
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            entry.lock.enter_context(locked(lock_of(directory)))
        except LockedError:
            if not entry.waits_for_others:
                log.warning("%s: another process is at this run; waiting for it", directory)
            entry.waits_for_others = True
            return False
        return True

    def _begin(self, entry: _ClusterRun) -> None:
        run = entry.run
        if not entry.begun:
            entry.begun = True
            self._watcher.begun(run)
        try:
            kept = None if run.directory is None else kept_summary(run.experiment, run.directory, run.until)
            if kept is None:
                entry.inbox = None if run.directory is None else Inbox(run.directory)
                entry.where = NOWHERE
                entry.messages = self._session.asked(lambda: self._submit(entry))
                self._under_way[entry.messages] = entry
                return
        except (CoterieError, OSError) as error:
            entry.lock.close()
            self._watcher.failed(run, error)
            return
        entry.lock.close()
        self._watcher.ended(run, kept)

    def _submit(self, entry: _ClusterRun) -> Any:
        run = entry.run
        parcels = [] if run.directory is None else [self._ray.put(parcel) for parcel in Outbox(run.directory).news()]
        environment = {name: os.environ[name] for name in (DATA,) if name in os.environ}
        kind = self._ray.remote(
            num_cpus=entry.cpus,
            num_gpus=entry.gpus,
            max_retries=0,  # lost ones are seen to here
            num_returns="streaming",
            _generator_backpressure_num_objects=AHEAD,
        )(_on_a_node)
        task = {**task_of(run), "identity": on_any_machine(run.experiment.prepare().identity)}
        return kind.remote(task, parcels, environment, str(Path.cwd()))

    def _listen(self, entry: _ClusterRun) -> None:
        errors = self._ray.exceptions
        try:
            message: Message = self._ray.get(next(entry.messages))
        except errors.RayTaskError as error:
            self._fail(entry, f"a node cannot run it ({described(error)}); {ALIKE}")
        except (errors.RayError, StopIteration) as error:
            self._lose(entry, type(error).__name__)
        else:
            self._take_in(entry, message)

    def _take_in(self, entry: _ClusterRun, message: Message) -> None:
        try:
            match message:
                case {"where": where, "versions": found}:
                    entry.where = where
                    differing = [
                        f"{name} {found[name]}" for name, ours in self._versions.items() if found[name] != ours
                    ]
                    require(not differing, f"{where} has {' and '.join(differing)}; {ALIKE}")
                    return
                case {"file": _} | {"gone": _}:
                    assert entry.inbox is not None
                    entry.inbox.take(message)
                    return
                case {"summary": summary} if entry.run.directory is not None:
                    arrived = RunDirectory(entry.run.directory).summary()
                    whole = json.dumps(arrived, sort_keys=True) == json.dumps(summary, sort_keys=True)
                    require(whole, f"{entry.run.directory} has not arrived whole from {entry.where}")
        except (CoterieError, OSError) as error:
            self._fail(entry, str(error))
            return
        if "round" not in message and "warning" not in message:
            self._release(entry)
        take_in(entry.run, message, self._watcher)

    def _lose(self, entry: _ClusterRun, ending: str) -> None:
        """A run's node or process is gone: it is carried on from what has arrived of it."""
        entry.lost += 1
        if entry.lost == DEATHS:
            hint = "is there enough memory for the runs of a node? fewer jobs need less"
            self._fail(entry, f"lost {DEATHS} times, the last at {entry.where} ({ending}); {hint}")
            return
        log.warning("%s: lost at %s (%s); carried on elsewhere", entry.run, entry.where, ending)
        self._release(entry)
        self._waiting.insert(0, entry)

    def _fail(self, entry: _ClusterRun, why: str) -> None:
        self._cancel(entry)
        self._watcher.failed(entry.run, CoterieError(f"{entry.run}: {why}"))

    def _cancel(self, entry: _ClusterRun) -> None:
        with suppress(Exception):  # it may be over, or Ray itself
            self._ray.cancel(entry.messages, force=True)
        self._release(entry)

    def _release(self, entry: _ClusterRun) -> None:
        del self._under_way[entry.messages]
        entry.lock.close()


class _Patience:
    """How long runs have waited for room on a cluster, where none has any; says so now and then, and gives up."""

    def __init__(self, session: RaySession) -> None:
        self._session, self._since, self._next = session, time.monotonic(), TOLD_AFTER
        given = os.environ.get(WAIT, "")
        usable = not given or (given.isascii() and given.isdecimal())
        require(usable, f"{WAIT} = '{given}': must be a whole number of seconds")
        self._limit = float(given or USUAL_WAIT)

    def check(self, placed: bool, cpus: int) -> None:
        """Is told whether a run has found room, and otherwise how many CPUs it needs; an error when time is up."""
        self._session.require_head()
        now = time.monotonic()
        if placed:
            self._since, self._next = now, TOLD_AFTER
            return
        waited = now - self._since
        if waited < min(self._next, self._limit):
            return
        machines = f"{self._session.free('CPU'):g} of the cluster's {self._session.total('CPU'):g} CPUs are free"
        why = f"no run has begun for {waited:.0f} s ({machines}, a run needs {cpus})"
        if waited >= self._limit:
            raise PassingError(f"{self._session.where}: {why}; {WAIT}=SECONDS waits longer")
        self._next *= TOLD_LATER
        log.warning("%s: %s; waiting, for %g s at most (%s says how long)", self._session.where, why, self._limit, WAIT)


def _on_a_node(task: Message, parcels: Sequence[Any], environment: Mapping[str, str], cwd: str) -> Iterator[Message]:
    """What a node does: fetches the files that there are of a run, one after the other, and does the run."""
    yield from carry_out(task, map(fetched, parcels), environment, cwd)
