"""What a finished run gives: numbers, and every client's model as an ordinary module."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.evaluate import Floats
from coterie.experiment import Prepared
from coterie.federation import Federation
from coterie.history import History
from coterie.local import Worker


@dataclass(frozen=True)
class MomentAccuracy:
    """Accuracy at one moment: `mean` and `weighted` hold `best`, `last` and `last5`; `by_client [K]` is the last."""

    mean: dict[str, float]
    weighted: dict[str, float]
    by_client: Floats

    def __str__(self) -> str:
        last, best, last5 = (self.mean[at] for at in ("last", "best", "last5"))
        return f"mean {last:.4f} (best {best:.4f}, last five {last5:.4f})"


@dataclass(frozen=True)
class Accuracy:
    """Accuracy at both moments."""

    received: MomentAccuracy
    trained: MomentAccuracy

    def __str__(self) -> str:
        return f"received: {self.received}\n trained: {self.trained}"


@dataclass(frozen=True)
class Result:
    """A finished run."""

    prepared: Prepared
    federation: Federation
    history: History
    summary: dict[str, Any]

    def accuracy(self) -> Accuracy:
        """Accuracy by moment, by mean, by round, by client."""
        moments = {
            moment: MomentAccuracy(**means, by_client=self._by_client(moment))
            for moment, means in self.history.accuracy().items()
        }
        return Accuracy(**moments)

    def model(self, client: int) -> nn.Module:
        """An ordinary module with the weights that the method tests for a client, as received after the last round.

        Where the method tests a tuned copy, the copy is tuned here too.
        """
        prepared, tested = self.prepared, self.prepared.method.tested
        worker = Worker(prepared.problem(), prepared.method, self.federation.seed)
        with torch.random.fork_rng(devices=[]):
            worker.seat(self.federation, client)
            worker.train(prepared.method.tune(self.federation))
        row = worker.network("model").row.clone()
        self.federation[tested].columns.put(row, self.federation[tested].columns.take(worker.network(tested).row))
        module = copy.deepcopy(prepared.problem_base.module)
        return prepared.problem_base.layout.load(module, row).eval()

    def predict(self, client: int, inputs: torch.Tensor) -> torch.Tensor:
        """The classes that a client's model gives for `inputs [n, ...]`: `[n]`."""
        with torch.no_grad():
            logits: torch.Tensor = self.model(client)(inputs)
            return logits.argmax(1)

    def _by_client(self, moment: str) -> Floats:
        line = self.history.lines[-1][moment]
        return np.array(line["accuracy"])
