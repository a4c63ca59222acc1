"""APFL: a mixture of a model of one's own and the global one; each client learns how much of which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.views import Batches, ClientView, TrainedPart, TrainerView
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.methods.fedavg import FedAvg

SLOTS = ("mixture", "local", "model")


@dataclass(frozen=True)
class MixtureSteps:
    """The step rule of APFL; `train=False` only makes the mixture anew, as it is tested with a new global model."""

    rate: float = 0.0
    train: bool = True

    def __call__(self, trainer: TrainerView, batches: Batches) -> None:
        """w and v step at once, each with the gradient from before the step; then the mixture follows."""
        worker = trainer.worker
        alpha = worker.notes.get("alpha", worker.value("alpha"))
        mixture, local, model = ([part for part in trainer.parts if part.slot == slot] for slot in SLOTS)
        _mix(mixture, local, model, alpha)
        for number, batch in enumerate(batches if self.train else ()):
            trainer.gradient(batch.under("model"))
            slopes = [part.grad.clone() for part in model]
            trainer.gradient(batch)
            apart = zip(mixture, local, model, strict=True)
            towards = torch.stack([(own.row - shared.row) @ mixed.grad for mixed, own, shared in apart]).sum()
            for mixed, own, shared, slope in zip(mixture, local, model, slopes, strict=True):
                own.grad.copy_(alpha * mixed.grad)
                shared.grad.copy_(slope)
            trainer.step()  # moves the mixture too, but that is made anew
            if number == 0:
                alpha = (alpha - self.rate * trainer.factor * towards).clamp(0, 1)
            _mix(mixture, local, model, alpha)
        worker.notes["alpha"] = alpha


def _mix(mixture: list[TrainedPart], local: list[TrainedPart], model: list[TrainedPart], alpha: Tensor) -> None:
    """v̄ = αv + (1 − α)w."""
    for mixed, own, shared in zip(mixture, local, model, strict=True):
        mixed.row.copy_(alpha * own.row + (1 - alpha) * shared.row)


@dataclass(frozen=True)
class OwnShare:
    """The measurement: a client's α after training, a number."""

    name: ClassVar[str] = "alpha"

    def __call__(self, worker: ClientView) -> Tensor:
        """As the step rule left it."""
        return worker.notes["alpha"].cpu()


@dataclass(frozen=True)
class APFL(FedAvg):
    """Adaptive personalized federated learning (Deng, Kamani and Mahdavi, 2020).

    w is FedAvg's. Client k has a model v_k and a share α_k of its own, and uses the mixture v̄_k = α_k v_k +
    (1 − α_k) w_k. On each batch, w_k ← w_k − η∇CE(w_k) and v_k ← v_k − ηα_k∇CE(v̄_k), both from before the step. In the
    first step of a round also α_k ← clip(α_k − η_α⟨v_k − w_k, ∇CE(v̄_k)⟩, 0, 1), η_α the run's lr unless given
    (`lr_alpha`); η_α = 0 leaves α_k where it starts (`alpha`). α = 0 is FedAvg, α = 1 without adaptation Local.

    v_k and α_k never travel. v_k starts as the common initial model, so in a client's first step nothing tells α from
    any other share. Running statistics of the mixture are those found while it trains, and stay; those of w are
    averaged. Weight decay and momentum act on w_k and v_k.

    Tested: v̄_k, at `received` mixed anew with the new w.

    >>> APFL(alpha=0.25, lr_alpha=0)
    APFL(alpha=0.25, lr_alpha=0.0)
    """

    alpha: float = 0.5
    lr_alpha: float | None = None

    paper: ClassVar[str] = "Deng et al., arXiv 2003.13461"
    extra_cost: ClassVar[str] = "two gradients a batch, of the global model and of the mixture"
    tested: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, f"alpha = {self.alpha}: must lie in [0, 1]")
        require(self.lr_alpha is None or self.lr_alpha >= 0, f"lr_alpha = {self.lr_alpha}: must not be negative")

    def init(self, federation: Federation) -> None:
        """v_k, v̄_k and α_k of everybody."""
        federation.add_slot("local", "parameters", held_by="client")
        federation.add_slot("mixture", federation.layout.everything, held_by="client")
        start = torch.full((federation.clients,), self.alpha)
        federation.add_value("alpha", start, per_client=True, held_by="client")

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The rate of α."""
        return {"lr_alpha": federation.training.lr if self.lr_alpha is None else self.lr_alpha}

    def recipe(self, federation: Federation) -> Recipe:
        """All three in the same steps; the client keeps its share."""
        rule = MixtureSteps(float(self.resolved(federation)["lr_alpha"]))
        return (Phase(slot="mixture", also={"local": "all", "model": "all"}, rule=rule), Measure(OwnShare(), keep=True))

    def tune(self, federation: Federation) -> Recipe:
        """The mixture with the newest global model."""
        return (Phase(slot="mixture", also={"local": "all", "model": "all"}, rule=MixtureSteps(train=False)),)
