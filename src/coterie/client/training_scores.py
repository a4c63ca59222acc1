"""How models do on the samples that they are being trained on: scored from outputs that training computed anyway."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.task import Task
from coterie.core.task.base import SAMPLES

# Outputs are scored many at a time, which costs next to nothing, but no more numbers than this are kept for it.
MOST_NUMBERS = 1 << 20

Seen = list[tuple[Tensor, Tensor]]
"""Outputs `[B, C]` and labels `[B]` of batches, as a client's steps came to them."""


TrainingSums = Mapping[str, int | float]
"""Sums of a task's quantities over training samples, and under `samples` how many those are."""


class TrainingScores:
    """Sums of a task's quantities over training samples, for every client of a cohort.

    A sample's outputs are those of its last epoch, by the weights just before the step that it was part of: no sample
    is run through a model once more.

    >>> from coterie.core.task import Classification
    >>> scores = TrainingScores(Classification(2), clients=2)
    >>> scores.take(1, [(torch.tensor([[0.0, 4.0], [0.0, 4.0]]), torch.tensor([1, 0]))])
    >>> found = scores.sums()
    >>> found[1]["correct"], found[1]["samples"], found[0]["samples"]
    (1.0, 2, 0)
    """

    def __init__(self, task: Task, clients: int) -> None:
        self._task, self._clients = task, clients
        self._totals: dict[str, npt.NDArray[np.float64]] = {}
        self._samples = np.zeros(clients, np.int64)
        self._waiting: Seen = []
        self._owners: list[tuple[int, int]] = []  # whose the waiting batches are, and of how many samples
        self._numbers = 0

    def take(self, client: int, seen: Seen) -> None:
        """Take what the client at a place of the cohort saw in its last epoch."""
        for outputs, labels in seen:
            self._waiting.append((outputs, labels))
            self._owners.append((client, len(labels)))
            self._numbers += outputs.numel()
        if self._numbers > MOST_NUMBERS:
            self._score_waiting()

    def _score_waiting(self) -> None:
        if self._waiting:
            clients, counts = zip(*self._owners, strict=True)
            outputs, labels = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
            self.add(np.repeat(clients, counts), outputs, labels)
        self._waiting, self._owners, self._numbers = [], [], 0

    def add(
        self,
        owners: npt.NDArray[np.int64],
        outputs: Tensor,
        labels: Tensor,
        real: npt.NDArray[np.bool_] | slice = slice(None),
    ) -> None:
        """Score samples at once: `owners [n]` are places in the cohort, `outputs [n, C]`, `labels [n]`.

        `real [n]` says which of them count; to leave the others out beforehand would take as long as scoring them.
        """
        with torch.no_grad():
            found = self._task.scores(outputs, labels)
        owners = owners[real]
        self._samples += np.bincount(owners, minlength=self._clients)
        for name, values in found.items():
            total = self._totals.setdefault(name, np.zeros(self._clients))
            total += np.bincount(owners, values.cpu().double().numpy()[real], self._clients)

    def sums(self) -> list[TrainingSums]:
        """Every client's sums; `samples` is 0 for one whose steps put nothing out."""
        self._score_waiting()
        return [
            {**{name: float(totals[client]) for name, totals in self._totals.items()}, SAMPLES: int(samples)}
            for client, samples in enumerate(self._samples)
        ]
