"""pFedSim: warm up together, then learn extractors from clients with similar classifiers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.core.mixing import by_size, identity, normalised
from coterie.core.training import StatsPolicy
from coterie.errors import require, unknown
from coterie.maths.similarity import class_cosines, require_weight_matrix
from coterie.methods.base import Method

SIMILARITIES = ("code", "paper")
MOST = 1 - 2**-23  # a peer's cosine stays below 1, by what float32 resolves: an equal one weighs 15.9, not infinity
SELF = -math.log(1e-4)  # the published code's weight of the client itself, 9.21


@dataclass(frozen=True)
class PFedSim(Method):
    """pFedSim: similarity-aware model aggregation towards personalized federated learning (arXiv 2305.15706).

    The first ⌊ρT⌋ rounds are FedAvg; everybody starts the rest from its model. Then a client of the cohort
    receives the extractor Σ_j Φ_ij ω_j / Σ_j Φ_ij over all stored models (4) and keeps its classifier.
    Φ_ij follows from the cosines of the classifiers' rows, class by class; pairs are renewed when both took
    part in a round, all others keep their last value, 0 at first. The server stores every client's model:
    K rows and a K × K matrix.

    Paper and published code differ: `similarity="paper"` is −mean_c log(1 − max(0, cos_c)) with weight 1 for
    the client itself, `"code"` is −log(1 − max(0, mean_c cos_c)) with −log 1e-4 ≈ 9.21; `self_weight`
    overrides it. A peer's cosines are capped at 1 − 2⁻²³, which float32 resolves: an equal classifier weighs 15.9.
    Tested as in the paper at the moment `trained`: every client with its last trained model.

    >>> PFedSim(rho=0.3)
    PFedSim(rho=0.3, similarity='code', self_weight=None)
    """

    rho: float = 0.5
    similarity: str = "code"
    self_weight: float | None = None

    paper: ClassVar[str] = "pFedSim, arXiv 2305.15706"
    extra_cost: ClassVar[str] = "server stores every model and a K × K matrix"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(0 <= self.rho <= 1, f"rho = {self.rho}: must lie in [0, 1]")
        if self.similarity not in SIMILARITIES:
            raise unknown("similarity", self.similarity, SIMILARITIES)
        require(
            self.self_weight is None or self.self_weight > 0,
            f"self_weight = {self.self_weight}: must be greater than 0",
        )

    def check(self, federation: Federation) -> None:
        """Clients are compared by their classifiers' weights."""
        require_pairs("pfedsim", federation.clients, "similarities", each=16)
        require_weight_matrix(federation, "pfedsim")

    def init(self, federation: Federation) -> None:
        """Nobody is known to be similar yet."""
        nobody = identity(federation.clients) * self.weight_of_self
        federation.add_value("similarity", nobody, per_client=True, held_by="server")

    @property
    def weight_of_self(self) -> float:
        """Φ_ii, never computed from cosines."""
        if self.self_weight is not None:
            return self.self_weight
        return SELF if self.similarity == "code" else 1.0

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The whole model in both phases."""
        return {"model": "all"}

    def warming_up(self, federation: Federation) -> bool:
        """Whether the round belongs to the first ⌊ρT⌋."""
        return federation.round <= self.warm_up_rounds(federation)

    def warm_up_rounds(self, federation: Federation) -> int:
        """⌊ρT⌋."""
        return math.floor(self.rho * federation.rounds + 1e-9)

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """Φ_ii, and how long the warm-up takes."""
        return {"self_weight": self.weight_of_self, "warm_up_rounds": self.warm_up_rounds(federation)}

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix]:
        """Eq. (4), when a client downloads; as long as nobody is similar it changes nothing."""
        if not self.warming_up(federation):
            yield Mix(normalised(federation.values["similarity"][clients]), "extractor", source="model")

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """FedAvg for everybody while warming up; then renew the similarities within the cohort."""
        federation, cohort = uploads.federation, uploads.cohort
        if self.warming_up(federation):
            yield Mix(by_size(uploads), to="everyone")
            return
        if len(cohort) > 1:
            matrix = federation.layout.classifier_weights[-1]
            weights = uploads.rows(matrix.columns).view(len(cohort), *matrix.shape)
            renewed = federation.values["similarity"].clone()
            renewed[cohort[:, None], cohort] = self.similarities(weights)
            renewed.fill_diagonal_(self.weight_of_self)
            yield Put("similarity", renewed)

    def similarities(self, weights: Tensor) -> Tensor:
        """Φ of classifiers `[m, C, d]`, (3): `[m, m]`; the diagonal means nothing."""
        classes = weights.shape[1]
        if self.similarity == "code":
            capped = (cosine.clamp(max=MOST) for cosine in class_cosines(weights))
            mean = sum(capped, torch.tensor(0.0)) / classes
            return -torch.log(1 - mean.clamp(min=0))
        logs = (torch.log(1 - cosine.clamp(0, MOST)) for cosine in class_cosines(weights))
        return -sum(logs, torch.tensor(0.0)) / classes
