"""The plain engine: one client after the other, in this process."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.client.scores import Score, Seen, TrainingScores
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.devices import PROCESSOR
from coterie.engines.base import NOBODY, Engine, EngineOptions, PeersOf, Trained, Work, do_test, do_work, empty_rows
from coterie.methods.base import Method


class Serial(Engine):
    """Clients train one by one; PyTorch may use several threads for each."""

    name = "serial"
    uses_device = True
    rows_on_device = True

    def __init__(self, problem: Problem, method: Method, seed: int, device: str = PROCESSOR) -> None:
        self.worker = Worker(problem.on(device), method, seed)

    @classmethod
    def create(cls, problem: Problem, method: Method, seed: int, options: EngineOptions) -> Serial:
        """The engine on the device that the run names."""
        return cls(problem, method, seed, options.device)

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        """Have every client of the cohort do the work."""
        trained = Trained(empty_rows(federation, work, len(cohort)))
        found: dict[str, list[Tensor]] = {name: [] for name in work.measured}
        training = TrainingScores(self.worker.problem.task, len(cohort))
        for position, client in enumerate(cohort.tolist()):
            rows = [(slot, matrix[position]) for slot, matrix in trained.rows.items()]
            seen: Seen = []
            measured, score, seconds = do_work(self.worker, federation, client, work, rows, seen)
            training.take(position, seen)
            trained.efforts.append(self.worker.effort)
            for name, value in measured.items():
                found[name].append(value)
            if score is not None:
                trained.scores.append(score)
            trained.test_seconds += seconds
            self.tell(position + 1)
        trained.scores = Score.brought_back(trained.scores)
        trained.measured = {name: torch.stack(values).cpu() for name, values in found.items()}
        trained.training = training.sums()
        return trained

    def test(
        self, federation: Federation, clients: Tensor, keep_scores: bool = False, peers: PeersOf = NOBODY
    ) -> list[Score]:
        """Score the clients' models, one after the other."""
        return Score.brought_back(do_test(self.worker, federation, clients.tolist(), keep_scores, peers))
