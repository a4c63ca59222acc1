"""The plain engine: one client after the other, in this process."""

from __future__ import annotations

from torch import Tensor

from coterie.client.problem import Problem
from coterie.client.scores import Score
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.devices import PROCESSOR
from coterie.engines.base import NOBODY, Engine, EngineOptions, PeersOf, Trained, Work, do_all, do_test, empty_rows
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
        rows = empty_rows(federation, work, len(cohort))
        return do_all(self.worker, federation, work, cohort.tolist(), rows, range(len(cohort)), self.tell)

    def test(
        self, federation: Federation, clients: Tensor, keep_scores: bool = False, peers: PeersOf = NOBODY
    ) -> list[Score]:
        """Score the clients' models, one after the other."""
        return Score.brought_back(do_test(self.worker, federation, clients.tolist(), keep_scores, peers))
