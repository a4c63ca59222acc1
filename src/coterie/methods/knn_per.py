"""kNN-Per: one model for everybody; each client answers by its own samples as well, those that lie nearest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.views import BatchView
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.methods.base import require_classes
from coterie.methods.fedavg import FedAvg

LEAST = 1e-12  # the least probability of a class, so that losses stay finite


@dataclass(frozen=True)
class KNNPer(FedAvg):
    """Personalized federated learning through local memorization (Marfoq et al., 2022).

    The model is FedAvg's. When client k is tested, its memory is (z_i, y_i) of all its own training samples, and

        p(c) = λ Σ_{i ∈ N(x)} [y_i = c] e^{−δ_i} / Σ_{i ∈ N(x)} e^{−δ_i} + (1 − λ) softmax(w(x))_c,

    N(x) the `neighbours` of least δ_i = ‖z − z_i‖²/(d · scale), all features those of the model that is tested. The
    outputs are log p. λ = 0 is FedAvg.

    Probabilities are mixed, not outputs. The paper finds λ for each client on its validation samples; here it is one
    for all. Nothing of the memory is sent; newcomers need no training, since their own samples are the memory.
    Tested: the mixture, with the global model at `received`, with the client's trained one at `trained`.

    >>> KNNPer(lam=0.3)
    KNNPer(lam=0.3, neighbours=10, scale=1.0)
    """

    lam: float = 0.5
    neighbours: int = 10
    scale: float = 1.0

    paper: ClassVar[str] = "Marfoq et al., ICML 2022"
    predicts_with_samples: ClassVar[bool] = True
    extra_cost: ClassVar[str] = "before each test a pass over the training data, and distances to all of its samples"

    def __post_init__(self) -> None:
        require(0 <= self.lam <= 1, f"lam = {self.lam}: must lie in [0, 1]")
        require(self.neighbours >= 1, f"neighbours = {self.neighbours}: must be at least 1")
        require(self.scale > 0, f"scale = {self.scale}: must be greater than 0")

    def check(self, federation: Federation) -> None:
        """Neighbours vote for classes."""
        require_classes(federation, "knn-per")

    def init(self, federation: Federation) -> None:
        """λ of everybody: each client's answers are its own, though the model is not."""
        federation.add_value("votes", torch.full((federation.clients,), self.lam), per_client=True, held_by="client")

    def predict(self, batch: BatchView) -> Tensor:
        """The logarithm of the mixture."""
        shares = batch.logits.softmax(1)
        mixed = torch.lerp(shares, self.votes(batch, shares.shape[1]), batch.value("votes"))
        return mixed.clamp(min=LEAST).log()

    def votes(self, batch: BatchView, classes: int) -> Tensor:
        """What the nearest of the client's training samples say: `[B, C]`, rows sum to one."""
        memory, labels = batch.own_samples
        # Differences, not inner products: those lose the digits that separate near samples.
        apart = torch.cdist(batch.features, memory, compute_mode="donot_use_mm_for_euclid_dist").square()
        distances, nearest = apart.topk(min(self.neighbours, len(memory)), largest=False)
        kernel = (-distances / (memory.shape[1] * self.scale)).softmax(1)
        return kernel.new_zeros(len(kernel), classes).scatter_add_(1, labels[nearest], kernel)
