"""An engine: clients train side by side in threads of this process, each at a seat of its own.

$ coterie run fedavg --engine ./examples/plugins/threads.py:Threads --workers 2
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch
from torch import Tensor

from coterie.client.effort import effort_columns
from coterie.client.model import AnyDropout
from coterie.client.problem import Problem
from coterie.client.scores import Score, Seen, TrainingScores
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.engines import Engine, EngineOptions, Trained, Work
from coterie.engines.base import NOBODY, PeersOf, do_test, do_work, empty_rows
from coterie.errors import require
from coterie.methods import Method


class Threads(Engine):
    """As many seats as threads: whoever is free takes the next client, and writes to that client's row alone."""

    name = "threads"

    def __init__(self, problem: Problem, method: Method, seed: int, workers: int = 2) -> None:
        self._task = problem.task
        self._seats: SimpleQueue[Worker] = SimpleQueue()
        for _ in range(workers):
            self._seats.put(Worker(problem, method, seed))
        self._threads = ThreadPoolExecutor(workers)

    @classmethod
    def create(cls, problem: Problem, method: Method, seed: int, options: EngineOptions) -> Threads:
        """`--workers` says how many threads. Dropout draws from a generator that threads would share."""
        drops = any(isinstance(layer, AnyDropout) and layer.p > 0 for layer in problem.module.modules())
        require(not drops, "engine = threads: the model has dropout; use engine='processes'")
        return cls(problem, method, seed, options.workers or 2)

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        """Results are put together in the order of the cohort, whoever is done first."""
        trained = Trained(empty_rows(federation, work, len(cohort)))
        training = TrainingScores(self._task, len(cohort))

        def one(position: int):
            seat, seen = self._seats.get(), Seen()
            rows = [(slot, matrix[position]) for slot, matrix in trained.rows.items()]
            try:
                return do_work(seat, federation, int(cohort[position]), work, rows, seen), seen, seat.effort.now()
            finally:
                self._seats.put(seat)

        measured: dict[str, list[Tensor]] = {name: [] for name in work.measured}
        efforts = []
        for position, ((found, score, seconds), seen, effort) in enumerate(self._threads.map(one, range(len(cohort)))):
            training.take(position, seen)
            efforts.append(effort)
            for name, value in found.items():
                measured[name].append(value)
            if score is not None:
                trained.scores.append(score)
            trained.test_seconds += seconds
            self.tell(position + 1)
        trained.measured = {name: torch.stack(values) for name, values in measured.items()}
        trained.training, trained.efforts = training.sums(), effort_columns(efforts)
        return trained

    def test(
        self, federation: Federation, clients: Tensor, keep_scores: bool = False, peers: PeersOf = NOBODY
    ) -> list[Score]:
        """One after the other: a test is short."""
        seat = self._seats.get()
        try:
            return do_test(seat, federation, clients.tolist(), keep_scores, peers)
        finally:
            self._seats.put(seat)

    def close(self) -> None:
        """No thread is left behind."""
        self._threads.shutdown()
