"""FedDBE: each client keeps the bias of its own features, so that the shared extractor need not learn it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.terms import task_loss
from coterie.client.views import BatchView, ClientView
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.errors import require
from coterie.methods.base import Method

OFFSET = "classifier.offset"


class Shifted(nn.Module):
    """A classifier of features that an offset is added to."""

    def __init__(self, own: nn.Module, features: int) -> None:
        super().__init__()
        self.own, self.offset = own, nn.Parameter(torch.zeros(features))

    def forward(self, features: Tensor) -> Tensor:
        """What the classifier says to z + p."""
        out: Tensor = self.own(features + self.offset)
        return out


@dataclass(frozen=True)
class MeanPull:
    """(κ/2d)‖m − z̄‖² for every sample, m the running mean of features: no pull where nobody has measured z̄ yet."""

    strength: float
    momentum: float

    def __call__(self, batch: BatchView) -> Tensor:
        """m ← (1 − μ)m + μ · the batch's mean; what came before has no gradient."""
        mean = batch.shares @ batch.features
        if self.momentum < 1:
            before = batch.notes.get("mean_features", torch.zeros_like(mean))
            mean = (1 - self.momentum) * before + self.momentum * mean
            batch.notes["mean_features"] = mean.detach()
        common = batch.value("mean_features")
        pull = torch.where(common.isnan(), 0.0, mean - common.nan_to_num()).square().mean() / 2
        return self.strength * pull.expand(len(batch.labels))


@dataclass(frozen=True)
class MeanFeatures:
    """The measurement: the mean of the extractor's output over the client's training samples, `[d]`."""

    name: ClassVar[str] = "mean_features"

    def __call__(self, worker: ClientView) -> Tensor:
        """In evaluation mode."""
        return worker.train_features().mean(0)


@dataclass(frozen=True)
class FedDBE(Method):
    """Eliminating domain bias for federated learning in representation space (Zhang et al., 2023).

    Client k adds an offset p_k of its own to its features, which starts as zero and never leaves it. Round 1 is the
    initialisation: clients train by CE alone, without p_k, and send nothing but the mean z̄_k of their features
    afterwards; z̄ = Σ_k n_k/Σn · z̄_k, and what they trained is thrown away. From round 2 on they minimise

        CE(φ(z + p_k), y) + κ · (1/2d)‖m − z̄‖²,    m ← (1 − μ)m + μ · mean_batch z, starting from 0 each round,

    over (θ, φ) and p_k, and the server averages (θ, φ) by data size. With κ = 0 and `lr_offset=0` that is FedAvg a
    round later. p_k trains at the run's rate unless `lr_offset` says otherwise, by the run's optimiser (the authors:
    SGD without momentum).

    z̄_k is the mean over all training samples, with the extractor as trained, in evaluation mode; the authors' code
    takes the running mean m, which for μ = 1 is that of the last batch. Clients that sit out round 1 have no part in z̄.
    Tested: φ(f(x) + p_k) with the model as received.

    >>> FedDBE(kappa=1.0, momentum=0.1)
    FedDBE(kappa=1.0, momentum=0.1, lr_offset=None)
    """

    kappa: float = 50.0
    momentum: float = 1.0
    lr_offset: float | None = None

    paper: ClassVar[str] = "Zhang et al., NeurIPS 2023"
    extra_cost: ClassVar[str] = "round 1 measures the mean of features and moves no model"
    shared: ClassVar[str] = f"all - {OFFSET}"

    def __post_init__(self) -> None:
        require(self.kappa >= 0, f"kappa = {self.kappa}: must not be negative")
        require(0 <= self.momentum <= 1, f"momentum = {self.momentum}: must lie in [0, 1]")
        require(self.lr_offset is None or self.lr_offset >= 0, f"lr_offset = {self.lr_offset}: must not be negative")

    def classifier(self, own: nn.Module, features: int, outputs: int) -> nn.Module:
        """The model's own, behind the offset."""
        return Shifted(own, features)

    def init(self, federation: Federation) -> None:
        """Nobody knows the mean of features yet."""
        federation.add_value("mean_features", torch.full((federation.feature_width,), torch.nan))

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The offset's rate."""
        return {"lr_offset": federation.training.lr if self.lr_offset is None else self.lr_offset}

    def recipe(self, federation: Federation) -> Recipe:
        """Round 1: plain training and the mean of features; later model and offset at once."""
        if federation.round <= 1:
            return (Phase(self.shared), Measure(MeanFeatures()))
        pulls = (MeanPull(self.kappa, self.momentum),) if self.kappa and self.momentum else ()
        return (Phase(terms=(task_loss, *pulls), rates={OFFSET: self.resolved(federation)["lr_offset"]}),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """No model in round 1."""
        return {"model": self.shared if federation.round > 1 else ""}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The mean of features once, then that of models."""
        weights = by_size(uploads)
        if uploads.federation.round > 1:
            yield Mix(weights, self.shared)
        else:
            means = uploads.measured[MeanFeatures.name]
            yield Put("mean_features", (weights[0] @ means.double()).to(means.dtype))
