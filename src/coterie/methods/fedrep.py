"""FedRep: many steps on the classifier that stays, few on the extractor that travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from coterie.client.recipe import Phase, Recipe
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """Exploiting shared representations for personalized federated learning (Collins et al., 2021).

    φ_k ← `head_epochs` of descent on CE(θ, φ_k) with θ frozen, then θ_k ← `body_epochs` on CE(θ, φ_k) with φ_k
    frozen; θ ← Σ_k n_k/Σn · θ_k. φ_k never leaves the client, nor do batch-norm statistics. The paper's mean is
    uniform; this is the published code's, and FedPer's, so that the two differ in local training alone.

    The paper trains 10 and 1 epochs, the defaults. `body_epochs=None` stands for the run's epochs (with
    `head_epochs=1`: the widespread reading). The classifier trains on features computed once, in evaluation mode.

    Tested: (θ, φ_k). A client that sits a round out keeps φ_k and gets the newest θ; before it first takes part
    φ_k is the common initial classifier.

    >>> FedRep(head_epochs=4)
    FedRep(head_epochs=4, body_epochs=1)
    """

    head_epochs: int = 10
    body_epochs: int | None = 1

    paper: ClassVar[str] = "Collins et al., ICML 2021"
    extra_cost: ClassVar[str] = "one pass for features, training a classifier on them"

    def __post_init__(self) -> None:
        require(self.head_epochs >= 0, f"head_epochs = {self.head_epochs}: must not be negative")
        require(
            self.body_epochs is None or self.body_epochs >= 1,
            f"body_epochs = {self.body_epochs}: must be at least 1",
        )

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The epochs of the extractor."""
        return {"body_epochs": self.body_epochs or federation.training.epochs}

    def recipe(self, federation: Federation) -> Recipe:
        """First the classifier, then the extractor."""
        body = Phase(train="extractor", epochs=self.body_epochs, stream=0)
        return (Phase(train="classifier", epochs=self.head_epochs, stream=1), body) if self.head_epochs else (body,)
