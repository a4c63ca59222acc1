"""pFedFDA: classifiers follow from class means and a covariance, which each client moves towards its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.views import BatchView
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size
from coterie.errors import require
from coterie.maths.discriminant import SMALL, Distribution, answers
from coterie.methods.base import Method, require_classes
from coterie.rng import torch_stream


def discriminant_loss(batch: BatchView) -> Tensor:
    """CE of the classifier that follows from everybody's statistics and the client's class shares: `[B]`."""
    distribution, log_priors = batch.value(Distribution.name), batch.value("log_priors")
    return batch.task.loss(answers(batch.features, distribution, log_priors), batch.labels)


@dataclass(frozen=True)
class PFedFDA(Method):
    """Personalized federated learning via feature distribution adaptation (McLaughlin and Su, 2024).

    Everybody shares the extractor θ, class means M [C, d] and a covariance Σ [d, d] of features; classifiers follow,

        b_c = log π_c − ½ M_c·A_c,    A = Σ'⁻¹ M,    Σ' = (1 − ε)Σ + ε tr(Σ)/d · I,

    π the client's class shares (+ε). With that, held constant, clients train θ on CE. Then they take means M̂_c (of
    classes with more than `folds` samples, M_c else) and covariance Σ̂ (+ `ridge` · I) of their own training features,
    and send

        β_M M̂ + (1 − β_M) M,    β_Σ Σ̂ + (1 − β_Σ) Σ,

    β ∈ [0, 1] of least CE on samples left out, in `folds` turns, by ten steps of L-BFGS-B from ½; 0 with too little
    data. Server: means by data size, of θ and both.

    The authors' code adds 1, not ε, to the diagonal of Σ̂ (`ridge=1`). Tested: the classifier of the client's own β, M̂
    and Σ̂, taken anew with the model that is tested. The model's own classifier is not used.

    >>> PFedFDA(betas=1)
    PFedFDA(folds=2, betas=1, ridge=0.0001)
    """

    folds: int = 2
    betas: int = 2
    ridge: float = SMALL

    paper: ClassVar[str] = "McLaughlin and Su, NeurIPS 2024"
    extra_cost: ClassVar[str] = (
        "after training and before each test a pass over the training data and a search for β; d equations a batch"
    )
    shared: ClassVar[str] = "extractor"
    predicts_with_samples: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.folds >= 2, f"folds = {self.folds}: must be at least 2")
        require(self.betas in (1, 2), f"betas = {self.betas}: must be 2, or 1 for means and covariance together")
        require(self.ridge > 0, f"ridge = {self.ridge}: must be greater than 0")

    @property
    def measurement(self) -> Distribution:
        """What clients measure."""
        return Distribution(self.folds, self.betas, self.ridge)

    def check(self, federation: Federation) -> None:
        """Features are averaged by class."""
        require_classes(federation, "pfedfda")

    def init(self, federation: Federation) -> None:
        """Random means, a covariance of one; what clients know of their own classes."""
        width = federation.feature_width
        means = torch.rand(federation.classes, width, generator=torch_stream(federation.seed, "class means"))
        federation.add_value(Distribution.name, torch.cat([means, torch.eye(width)]))
        counts = federation.class_counts.double()
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1) + SMALL
        log_priors = (shares / shares.sum(1, keepdim=True)).log().float()
        federation.add_value("log_priors", log_priors, per_client=True, held_by="client")

    def recipe(self, federation: Federation) -> Recipe:
        """The extractor trains; then features are measured."""
        return (Phase("extractor", terms=(discriminant_loss,)), Measure(self.measurement))

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Means of extractors and of distributions."""
        weights, sent = by_size(uploads), uploads.measured[Distribution.name]
        yield Mix(weights, "extractor")
        yield Put(Distribution.name, torch.tensordot(weights[0], sent.double(), 1).to(sent.dtype))

    def predict(self, batch: BatchView) -> Tensor:
        """The client's own classifier."""
        return answers(batch.features, self.measurement.of(batch, *batch.own_samples), batch.value("log_priors"))
