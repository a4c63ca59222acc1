"""MOON: features stay near the global model's and away from those of the client's last model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from coterie.client.recipe import Keep, Phase, Recipe
from coterie.client.terms import RECEIVED, task_loss
from coterie.client.views import BatchView
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.methods.fedavg import FedAvg

# All that features are made of: running statistics too, where they stay with their client.
SEEN = "extractor + stats"


@dataclass(frozen=True)
class ModelContrast:
    """μ · −log(e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ})); zero without a last model."""

    weight: float
    temperature: float

    def __call__(self, batch: BatchView) -> Tensor:
        """The term for every sample, `[B]`; as softplus of the difference it cannot overflow."""
        to_received = cosine_similarity(batch.features, batch.under(RECEIVED).features)
        to_previous = cosine_similarity(batch.features, batch.under("previous").features)
        contrast = softplus((to_previous - to_received) / self.temperature)
        return self.weight * (batch.rounds_taken > 0) * contrast


@dataclass(frozen=True)
class MOON(FedAvg):
    """Model-contrastive federated learning (Li et al., 2021).

    Clients minimise CE(w) + μ · mean(−log[e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ})]):
    z are the features of the model in training, z_glob those of the model as received, z_prev those of the
    client's own model as its last training left it, both frozen and in evaluation mode. The server is FedAvg's.

    The paper adds a projection of two layers to the model and contrasts its output; here the extractor's output
    is contrasted, so that every method trains the same model. Its μ is 5 on CIFAR-10, 1 on the others. μ = 0 is
    FedAvg. In a client's first round both frozen models are the same and the term would be the constant μ log 2:
    it is left out. A client that sits out keeps its last model. Tested: the global model.

    >>> MOON(mu=5.0)
    MOON(mu=5.0, temperature=0.5)
    """

    mu: float = 1.0
    temperature: float = 0.5

    paper: ClassVar[str] = "Li et al., CVPR 2021"
    extra_cost: ClassVar[str] = "two more forward passes a batch; every client's last extractor"

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"mu = {self.mu}: must not be negative")
        require(self.temperature > 0, f"temperature = {self.temperature}: must be greater than 0")

    def init(self, federation: Federation) -> None:
        """Everybody's last extractor."""
        federation.add_slot("previous", SEEN, held_by="client")

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training with the contrast, once anybody can have a last model; the trained model is the next one."""
        contrast = (ModelContrast(self.mu, self.temperature),) if self.mu and federation.round > 1 else ()
        return (Phase(terms=(task_loss, *contrast)), Keep("previous", lambda rows: rows.after(group=SEEN)))
