"""A method with a message of its own: clients say how badly the model that they are sent fits them, and weigh by that.

$ coterie run ./examples/plugins/fair_mean.py:FairMean --set q=1
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import coterie as ct
from coterie.client.views import ClientView
from coterie.core.exchange import Action
from coterie.core.mixing import by_size


@dataclass(frozen=True)
class ReceivedLoss:
    """The probe: the mean loss of the model in the seat on the client's training samples, a number."""

    name: ClassVar[str] = "received_loss"

    def __call__(self, worker: ClientView) -> Tensor:
        """Features and classifier as they are, without gradients."""
        labels = worker.problem.labels[worker.problem.train[worker.client]]
        with torch.no_grad():
            outputs = worker.model("model").head(worker.train_features())
        return worker.problem.task.loss_mean(outputs, labels)


@dataclass(frozen=True)
class FairMean(ct.Method):
    """FedAvg whose weights are samples · loss^q, the loss of the model as sent: clients that it fits badly weigh more.

    With q = 0 it is FedAvg.
    """

    q: float = 1.0

    def __post_init__(self) -> None:
        """Weights must not turn round."""
        if self.q < 0:
            raise ct.CoterieError(f"q = {self.q}: must not be negative")

    def recipe(self, federation: ct.Federation) -> tuple[ct.Measure | ct.Phase, ...]:
        """What stands before the first phase is measured on the model as received."""
        return (ct.Measure(ReceivedLoss()), ct.Phase())

    def exchange(self, uploads: ct.Uploads) -> Iterable[Action]:
        """One row of weights for everybody, `[1, m]`; nobody's is 0, also if its loss is."""
        weights = by_size(uploads) * uploads.measured["received_loss"].clamp(min=1e-6) ** self.q
        yield ct.Mix(weights / weights.sum())
