"""The engine that cannot stay wrong: real work is timed, and whoever is faster does the rest."""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.effort import joined_columns
from coterie.client.problem import Problem
from coterie.client.scores import Score
from coterie.core.federation import Federation
from coterie.engines.base import NOBODY, Engine, EngineOptions, PeersOf, Trained, Work
from coterie.engines.processes import Processes
from coterie.engines.remote import WorkersFailError
from coterie.engines.serial import Serial
from coterie.engines.shared_memory import shared_memory_lacks
from coterie.methods.base import Method
from coterie.processes import main_can_be_imported

log = logging.getLogger("coterie")

SERIAL, PROCESSES = "serial", "processes"
# Seconds that worker processes must save in the rest of the run to be started: they take memory, and time to start.
WORTH = 5.0

# A contestant is judged by the median of its last measurements: one disturbance does not count, a lasting change does.
REMEMBERED = 3
# Trying the others again may cost this share of the time that the leader has worked since.
PRICE = 0.02
# The first piece of work is slower (memory, kernels); it does not count unless it takes so many seconds.
WARM_UP = 5.0


class Contest:
    """Contestants by name, each with its last paces: seconds for a unit of work.

    >>> contest = Contest()
    >>> for name, seconds in (("serial", 9), ("serial", 2), ("processes", 9), ("processes", 1)):
    ...     contest.observe(name, amount=100, seconds=seconds)
    >>> contest.leader(["serial", "processes"]), contest.choose(["serial", "processes"])
    ('processes', 'processes')
    >>> contest.choose(["serial"])
    'serial'
    """

    def __init__(self) -> None:
        self._paces: dict[str, deque[float]] = {}
        self._warm: set[str] = set()
        self._worked: dict[str, float] = {}  # seconds of the others since a contestant last had a turn
        self._usual = 0.0  # the amount of a piece of work

    def observe(self, name: str, amount: int, seconds: float) -> None:
        """Somebody has done so much in so many seconds."""
        if name not in self._warm:
            self._warm.add(name)
            if seconds < WARM_UP:
                return
        amount = max(amount, 1)
        self._usual = float(amount)
        self._paces.setdefault(name, deque(maxlen=REMEMBERED)).append(seconds / amount)
        for other in self._paces:
            self._worked[other] = 0.0 if other == name else self._worked.get(other, 0.0) + seconds

    def pace(self, name: str) -> float | None:
        """The seconds that a unit of work takes somebody, as far as is known."""
        paces = self._paces.get(name)
        return statistics.median(paces) if paces else None

    def leader(self, names: Sequence[str]) -> str:
        """The fastest of some; one that is not known yet comes first of all."""
        return min(names, key=lambda name: self.pace(name) or 0.0)

    def choose(self, names: Sequence[str]) -> str:
        """Who is to do the next piece: the leader, or now and then another, to see whether that is still so."""
        leader = self.leader(names)
        best = self.pace(leader)
        for other in names:
            pace = self.pace(other)
            if other == leader or pace is None or best is None:
                continue
            lost = (pace - best) * self._usual
            if lost < PRICE * self._worked[other]:
                return other
        return leader


class Adaptive(Engine):
    """Trains in this process with one thread, or in worker processes, whichever has been faster of late.

    Both give the same bits, so that results do not depend on who did what. A run begins in this process. Where there is
    enough to do, worker processes start in the meantime, and get their turn when they are ready; from then on the
    faster of the two does the work, and the other has a turn now and then, as machines change. Training and testing
    are judged apart. Where worker processes cannot be (a script without `if __name__ == "__main__":`, classes that
    they cannot import, too little shared memory), this process does everything, and the log says why.
    """

    name = "adaptive"
    has_workers: ClassVar[bool] = True
    main_threads: ClassVar[int] = 1

    def __init__(self, problem: Problem, method: Method, seed: int, workers: int = 0) -> None:
        self._problem = problem
        self._serial = Serial(problem, method, seed)
        self._processes = Processes(problem, method, seed, workers)
        self.mixing_threads = self._processes.mixing_threads
        self.training, self.testing = Contest(), Contest()
        self._ready_for: Federation | None = None  # whom the workers are ready to work for
        self._alone = self._processes.pool.size < 2  # whether there will never be workers
        self._leader = SERIAL

    @classmethod
    def create(cls, problem: Problem, method: Method, seed: int, options: EngineOptions) -> Adaptive:
        """The engine with what the run says about it."""
        return cls(problem, method, seed, options.workers)

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        """Have every client of the cohort do the work."""
        parts: list[Trained] = []
        done = 0
        while done < len(cohort) and self._waits_for_workers(federation, cohort[done:], len(cohort)):
            parts.append(self._train(SERIAL, federation, work, cohort[done : done + 1], done))
            done += 1
        if done < len(cohort):
            chosen = self.training.choose(self._contestants(federation))
            parts.append(self._train(chosen, federation, work, cohort[done:], done))
        self._tell_of_leader(federation)
        return joined(parts)

    def test(
        self, federation: Federation, clients: Tensor, keep_scores: bool = False, peers: PeersOf = NOBODY
    ) -> list[Score]:
        """Score the clients' models as the federation holds them, on their own test data."""
        samples = sum(len(self._problem.test[client]) for client in clients.tolist())
        chosen = self.testing.choose(self._contestants(federation))
        begin = time.perf_counter()
        try:
            scores = self._engine(chosen).test(federation, clients, keep_scores, peers)
        except WorkersFailError as error:
            self._give_up(error)
            return self.test(federation, clients, keep_scores, peers)
        self.testing.observe(chosen, samples, time.perf_counter() - begin)
        return scores

    def close(self) -> None:
        """End the workers, if there are any."""
        self._processes.close()

    def _engine(self, name: str) -> Engine:
        return self._processes if name == PROCESSES else self._serial

    def _contestants(self, federation: Federation) -> Sequence[str]:
        return (SERIAL, PROCESSES) if self._ready_for is federation else (SERIAL,)

    def _train(self, chosen: str, federation: Federation, work: Work, cohort: Tensor, before: int) -> Trained:
        """Have some clients do the work, after so many others of the cohort."""
        engine = self._engine(chosen)
        engine.on_client = None if self.on_client is None else _counting(self.on_client, before)
        begin = time.perf_counter()
        try:
            trained = engine.train(federation, work, cohort)
        except WorkersFailError as error:
            self._give_up(error)
            return self._train(SERIAL, federation, work, cohort, before)
        if chosen == SERIAL or not before:  # the last few of a cohort do not keep all workers busy
            self.training.observe(chosen, self._samples(cohort), time.perf_counter() - begin - trained.test_seconds)
        return trained

    def _samples(self, cohort: Tensor) -> int:
        return sum(len(self._problem.train[client]) for client in cohort.tolist())

    def _waits_for_workers(self, federation: Federation, left: Tensor, cohort: int) -> bool:
        """Whether the next client is trained here, since workers are not ready, or nobody knows if they are needed."""
        if self._alone or self._ready_for is federation:
            return False
        pace = self.training.pace(SERIAL)
        if pace is None:
            return True
        # This cohort's clients that are left, and as many rounds of whole cohorts as are left.
        rounds_left = federation.rounds - federation.round
        samples = self._samples(left) * (1 + rounds_left * cohort / len(left))
        if pace * samples * (1 - 1 / self._processes.pool.size) < WORTH:
            return False
        try:
            self._check_workers(federation)
            if self._processes.prepare(federation):
                self._ready_for = federation
        except WorkersFailError as error:
            self._give_up(error)
        return not self._alone and self._ready_for is not federation

    def _check_workers(self, federation: Federation) -> None:
        """An error if worker processes would not do, as far as that can be told before they start."""
        if self._processes.pool.pids:
            return
        if not main_can_be_imported():
            raise WorkersFailError("the script has no 'if __name__ == \"__main__\":', and workers would import it")
        if lacks := shared_memory_lacks(self._problem, federation):
            raise WorkersFailError(lacks)

    def _give_up(self, error: WorkersFailError) -> None:
        """There will be no workers in this run any more."""
        log.info("engine adaptive: everything is done in this process (%s)", error)
        self._processes.close()
        self._alone, self._ready_for = True, None

    def _tell_of_leader(self, federation: Federation) -> None:
        names = self._contestants(federation)
        leader = self.training.leader(names)
        if leader == self._leader or self.training.pace(leader) is None:
            return
        self._leader = leader
        other = next(name for name in (SERIAL, PROCESSES) if name != leader)
        paces = [1000 * (self.training.pace(name) or 0.0) for name in (leader, other)]
        log.info(
            "round %d: clients train %s from now on: %.3g ms a sample, %s %.3g",
            federation.round,
            "in this process" if leader == SERIAL else "in worker processes",
            paces[0],
            "worker processes" if leader == SERIAL else "this process",
            paces[1],
        )


def _counting(tell: Callable[[int], None], before: int) -> Callable[[int], None]:
    """Tells of clients in addition to those before."""
    return lambda done: tell(before + done)


def joined(parts: Sequence[Trained]) -> Trained:
    """What several parts of a cohort brought, one after the other, as one."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return Trained(
        {slot: torch.cat([part.rows[slot] for part in parts]) for slot in first.rows},
        {name: torch.cat([part.measured[name] for part in parts]) for name in first.measured},
        [score for part in parts for score in part.scores],
        sum(part.test_seconds for part in parts),
        [sums for part in parts for sums in part.training],
        joined_columns([part.efforts for part in parts]),
    )
