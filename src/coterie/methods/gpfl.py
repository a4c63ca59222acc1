"""GPFL: a valve lets features through for everybody, which class embeddings guide, or for the client's classifier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import RECEIVED
from coterie.client.views import BatchView
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method, require_classes


class Valved(nn.Module):
    """A classifier behind a conditional valve, and an embedding of each class."""

    def __init__(self, own: nn.Module, features: int, outputs: int) -> None:
        super().__init__()
        self.own, self.embedding = own, nn.Parameter(torch.randn(outputs, features))
        self.scale, self.shift = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.LayerNorm(features)) for _ in range(2)
        )

    def forward(self, features: Tensor, condition: Tensor | None = None, answer: str = "outputs") -> Tensor:
        """The `answer` asked for: outputs, valved features, the embedding, or half its and the valve's squared norm."""
        if answer == "embedding":
            return self.embedding
        if answer == "decay":
            trained = (self.embedding, *self.scale.parameters(), *self.shift.parameters())
            return torch.stack([one.square().sum() for one in trained]).sum() / 2
        given = torch.zeros_like(self.embedding[0]) if condition is None else condition
        valved = ((self.scale(given) + 1) * features + self.shift(given)).relu()
        out: Tensor = valved if answer == "valved" else self.own(valved)
        return out


def conditions(batch: BatchView, slot: str) -> tuple[Tensor, Tensor, Tensor]:
    """The E of a slot `[C, d]`, and what sets the valve: g and p_k `[d]`, its even mean and that by class shares."""
    embedding = batch.head(slot, answer="embedding")
    return embedding, embedding.mean(0), batch.value("class_shares") @ embedding


@dataclass(frozen=True)
class GuidedLoss:
    """CE(φ(CoV(z; p_k)), y) + CE(cos(CoV(z; g), E), y) + λ‖CoV(z; g) − E°_y‖ + (μ/2)‖(E, Γ)‖², `[B]`."""

    lam: float
    mu: float
    per_sample: bool

    def __call__(self, batch: BatchView) -> Tensor:
        """The distance is that of the whole batch, the same for each of its samples, unless it is taken by sample."""
        received, common, own = conditions(batch, RECEIVED)
        valved = batch.head(batch.slot, condition=common, answer="valved")
        cosines = normalize(valved) @ normalize(batch.head(batch.slot, answer="embedding")).T
        losses = batch.task.loss(batch.head(batch.slot, condition=own), batch.labels)
        losses = losses + cross_entropy(cosines, batch.labels, reduction="none")
        if self.lam:
            apart = valved - received[batch.labels]
            if not self.per_sample:  # samples that are padding do not count
                apart = (apart * (batch.shares > 0)[:, None]).flatten()
            losses = losses + self.lam * torch.linalg.vector_norm(apart, dim=-1)
        return losses + self.mu * batch.head(batch.slot, answer="decay") if self.mu else losses


@dataclass(frozen=True)
class GPFL(Method):
    """GPFL: simultaneously learning global and personalized feature information (Zhang et al., 2023).

    Everybody shares the extractor θ, class embeddings E [C, d] and a conditional valve Γ,

        CoV(z; c) = ReLU((γ(c) + 1) ⊙ z + β(c)),    γ, β each LayerNorm(ReLU(linear map)),

    and keeps its classifier φ_k. With E° = E as received, g the mean of its rows, p_k = Σ_c n_k^c/n_k · E°_c, clients
    minimise

        CE(φ_k(CoV(z; p_k)), y) + CE(cos(CoV(z; g), E), y) + λ‖CoV(z; g) − E°_y‖ + (μ/2)‖(E, Γ)‖²

    over all of it. Server: means of (θ, E, Γ) by data size. The norm is that of the whole batch, as in the authors'
    code; `per_sample=True` takes each sample's. Batch-norm statistics stay local.
    Tested: φ_k(CoV(f(x); p_k)), p_k of the E that is tested.

    >>> GPFL(mu=0.0)
    GPFL(lam=0.01, mu=0.0, per_sample=False)
    """

    lam: float = 0.01
    mu: float = 0.1
    per_sample: bool = False

    paper: ClassVar[str] = "Zhang et al., ICCV 2023"
    extra_cost: ClassVar[str] = "the valve twice a batch, C·d + 2d² + 6d numbers more"
    shared: ClassVar[str] = "all - classifier.own"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam = {self.lam}: must not be negative")
        require(self.mu >= 0, f"mu = {self.mu}: must not be negative")

    def check(self, federation: Federation) -> None:
        """Classes have embeddings."""
        require_classes(federation, "gpfl")

    def classifier(self, own: nn.Module, features: int, outputs: int) -> nn.Module:
        """The model's own, behind the valve."""
        return Valved(own, features, outputs)

    def init(self, federation: Federation) -> None:
        """What clients know of their own classes."""
        counts = federation.class_counts.float()
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
        federation.add_value("class_shares", shares, per_client=True, held_by="client")

    def recipe(self, federation: Federation) -> Recipe:
        """Everything trains at once."""
        return (Phase(terms=(GuidedLoss(self.lam, self.mu, self.per_sample),)),)

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """A mean of all but classifiers."""
        yield Mix(by_size(uploads), self.shared)

    def predict(self, batch: BatchView) -> Tensor:
        """The client's classifier, the valve set for the client."""
        return batch.head(batch.slot, condition=conditions(batch, batch.slot)[2])
