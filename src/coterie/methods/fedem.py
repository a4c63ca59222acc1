"""FedEM: several models for everybody; each client mixes their answers by shares that it learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.terms import received_of
from coterie.client.views import BatchView, ClientView
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.errors import require
from coterie.maths.clusters import other_start
from coterie.methods.base import Method, require_classes

LEAST = 1e-12  # the least share, so that logarithms stay finite


@dataclass(frozen=True)
class MixtureLoss:
    """Σ_m q_m(x) CE(h_m(x), y), `[B]`: q from the models as received, held constant."""

    slots: tuple[str, ...]

    @property
    def received(self) -> tuple[str, ...]:
        """Whose models it looks at as they were received, besides the first."""
        return tuple(map(received_of, self.slots[1:]))

    def __call__(self, batch: BatchView) -> Tensor:
        """Each model has the gradient of its own share."""
        losses = [batch.task.loss(batch.under(received_of(slot)).logits, batch.labels) for slot in self.slots]
        weights = responsibilities(torch.stack(losses, 1).detach(), batch.value("model_shares"))
        outputs = [batch.logits, *(batch.under(slot).logits for slot in self.slots[1:])]
        trained = [batch.task.loss(one, batch.labels) for one in outputs]
        return (weights * torch.stack(trained, 1)).sum(1)


@dataclass(frozen=True)
class ModelShares:
    """The measurement: the mean of q over the client's training samples, `[M]`."""

    slots: tuple[str, ...]

    name: ClassVar[str] = "model_shares"

    def __call__(self, worker: ClientView) -> Tensor:
        """With the models as received, before they train."""
        own = worker.problem.train[worker.client]
        with torch.no_grad():
            logits = [worker.model(slot).head(worker.features(own, slot)) for slot in self.slots]
            losses = [worker.problem.task.loss(one, worker.problem.labels[own]) for one in logits]
        return responsibilities(torch.stack(losses, 1), worker.value("model_shares")).mean(0).cpu()


@dataclass(frozen=True)
class FedEM(Method):
    """Federated multi-task learning under a mixture of distributions (Marfoq et al., 2021).

    There are M models h_m for everybody; client k has shares π_k. E: for each of its training samples, with the models
    as received, q(m) ∝ π_km e^{−CE(h_m(x), y)}. M: π_km ← the mean of q(m) over its samples; h_m trains on
    Σ_m q(m) CE(h_m(x), y). Server: h_m ← Σ_k n_k/Σn · h_mk for every m.

    π_k starts even and never leaves its client; the first model starts as the common initial one, the others as that
    with the elements of each tensor in another order, since models that are alike would stay so. One model is FedAvg.
    Tested: Σ_m π_km softmax(h_m(x)), whose logarithm is the output; π_k is that of the client's last E-step, which
    counts from the end of the round on.

    >>> FedEM(models=2)
    FedEM(models=2)
    """

    models: int = 3

    paper: ClassVar[str] = "Marfoq et al., NeurIPS 2021"
    extra_cost: ClassVar[str] = (
        "training M models, and two passes more through each: one to weigh samples, one for shares"
    )

    def __post_init__(self) -> None:
        require(self.models >= 1, f"models = {self.models}: must be at least 1")

    @property
    def slots(self) -> tuple[str, ...]:
        """The models' slots."""
        return ("model", *(f"model{number}" for number in range(2, self.models + 1)))

    def check(self, federation: Federation) -> None:
        """Probabilities of classes are mixed."""
        require_classes(federation, "fedem")

    def init(self, federation: Federation) -> None:
        """The other models, each with a start of its own, and even shares."""
        for number, slot in enumerate(self.slots[1:], 1):
            federation.add_slot(slot, shared="all", fill=other_start(federation, number))
        even = torch.full((federation.clients, self.models), 1 / self.models)
        federation.add_value("model_shares", even, per_client=True, held_by="client")

    def recipe(self, federation: Federation) -> Recipe:
        """Shares of the received models, then all models at once."""
        also = dict.fromkeys(self.slots[1:], "all")
        return (Measure(ModelShares(self.slots), keep=True), Phase(also=also, terms=(MixtureLoss(self.slots),)))

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """All models."""
        return dict.fromkeys(self.slots, "all")

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """A mean for each model."""
        for slot in self.slots:
            yield Mix(by_size(uploads), target=slot, of=slot)

    def predict(self, batch: BatchView) -> Tensor:
        """The logarithm of the mixture."""
        answers = torch.stack([batch.under(slot).logits.log_softmax(1) for slot in self.slots])
        shares = batch.value("model_shares").clamp(min=LEAST).log()
        return (answers + shares[:, None, None]).logsumexp(0)


def responsibilities(losses: Tensor, shares: Tensor) -> Tensor:
    """q(m) ∝ π_m e^{−loss_m}, row by row: `[n, M]`.

    >>> responsibilities(torch.tensor([[0.0, 0.0], [0.0, 1e9]]), torch.tensor([0.25, 0.75]))
    tensor([[0.2500, 0.7500],
            [1.0000, 0.0000]])
    """
    return (shares.clamp(min=LEAST).log() - losses).softmax(1)
