"""FedGH: the server trains one classifier on what everybody's classes look like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.measures import ClassMeans
from coterie.client.recipe import Measure, Phase, Recipe
from coterie.core.exchange import Action, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method, require_classes
from coterie.rng import torch_stream


@dataclass(frozen=True)
class FedGH(Method):
    """FedGH: heterogeneous federated learning with generalized global header (Yi et al., 2023).

    Clients minimise CE(θ_k, φ_k) from φ_k = φ, keep θ_k, and send the mean feature of each of their classes, taken
    with the trained model over all their training data. The server takes `server_epochs` of descent steps
    φ ← φ − `server_lr` · ∇CE(φ(means), classes) on these, shuffled, in batches of `server_batch` (both the run's
    unless given). φ replaces every client's classifier; the trained φ_k are dropped.

    The server's classifier is a row of its own: no client's training touches it. It computes in evaluation mode,
    with plain descent and a constant rate.

    Tested as received: (θ_k, φ); as trained: (θ_k, φ_k). A client that sits a round out keeps θ_k and gets the
    newest φ. Everybody starts from the common initial model. `server_epochs=0` leaves φ as it was.

    >>> FedGH(server_lr=0.1)
    FedGH(server_lr=0.1, server_epochs=1, server_batch=None)
    """

    server_lr: float | None = None
    server_epochs: int = 1
    server_batch: int | None = None

    paper: ClassVar[str] = "Yi et al., ACM MM 2023"
    extra_cost: ClassVar[str] = "one pass for class means; server: a classifier trained on them"
    shared: ClassVar[str] = "classifier"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.server_lr is None or self.server_lr > 0, f"server_lr = {self.server_lr}: must be greater than 0")
        require(self.server_epochs >= 0, f"server_epochs = {self.server_epochs}: must not be negative")
        require(
            self.server_batch is None or self.server_batch >= 1,
            f"server_batch = {self.server_batch}: must be at least 1",
        )

    def check(self, federation: Federation) -> None:
        """Features are averaged by class."""
        require_classes(federation, "fedgh")

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training, then mean features by class."""
        return (Phase(), Measure(ClassMeans()))

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """No parameters."""
        return {}

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The server's rate and batches."""
        run = federation.training
        return {"server_lr": self.server_lr or run.lr, "server_batch": self.server_batch or run.batch}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Train the classifier on the class means, in an order that does not depend on the clients' labels."""
        federation = uploads.federation
        means = uploads.measured["class_means"][torch.argsort(federation.keys[uploads.cohort])]
        known = ~means.isnan().any(2)  # NaN: a class that the client does not have
        row = federation["model"].rows(federation.everyone[:1], federation.layout.columns("classifier"))[0]
        row = self.trained_head(federation, row.cpu(), means[known], known.nonzero()[:, 1])
        yield Put("model", row[None], group="classifier")

    def trained_head(self, federation: Federation, row: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """The classifier `row [|classifier|]` after its steps on `features [n, d]`."""
        stream = torch_stream(federation.seed, "server-head", federation.round)
        rate = self.server_lr or federation.training.lr
        for _ in range(self.server_epochs):
            order = torch.randperm(len(labels), generator=stream)
            for part in order.split(self.server_batch or federation.training.batch):
                row = row.detach().requires_grad_()
                loss = federation.task.loss_mean(federation.head_output(row, features[part]), labels[part])
                row = row - rate * torch.autograd.grad(loss, row)[0]
        return row.detach()
