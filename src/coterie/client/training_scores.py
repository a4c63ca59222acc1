"""How models do on the samples that they are being trained on: scored from outputs that training computed anyway."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.task import Task
from coterie.core.task.base import SAMPLES
from coterie.devices import exact

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
        # Sums by client that are fetched together in the end, wherever they lie.
        self._waiting: dict[str, list[tuple[int, Tensor]]] = {}

    def take(self, client: int, seen: Seen) -> None:
        """Take what the client at a place of the cohort saw in its last epoch.

        Each client's outputs are scored by themselves: a sample's loss may differ in its last bit with the samples
        beside it, and which clients share a worker must not show in what is recorded.
        """
        if not seen:
            return
        outputs, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        self._samples[client] += len(labels)
        for name, values in self._scored(outputs, labels).items():
            self._waiting.setdefault(name, []).append((client, exact(values).sum()))

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
        owners = owners[real]
        self._samples += np.bincount(owners, minlength=self._clients)
        for name, values in self._scored(outputs, labels).items():
            total = self._total(name)
            total += np.bincount(owners, values.cpu().double().numpy()[real], self._clients)

    def _scored(self, outputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        with torch.no_grad():
            return self._task.scores(outputs, labels)

    def _total(self, name: str) -> npt.NDArray[np.float64]:
        return self._totals.setdefault(name, np.zeros(self._clients))

    def sums(self) -> list[TrainingSums]:
        """Every client's sums; `samples` is 0 for one whose steps put nothing out."""
        for name, found in self._waiting.items():
            clients, values = zip(*found, strict=True)
            np.add.at(self._total(name), list(clients), torch.stack(values).cpu().numpy())
        self._waiting = {}
        return [
            {**{name: float(totals[client]) for name, totals in self._totals.items()}, SAMPLES: int(samples)}
            for client, samples in enumerate(self._samples)
        ]
