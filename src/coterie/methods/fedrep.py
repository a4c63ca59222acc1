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

    Each of the two trains for the run's epochs unless told otherwise, so that no part of the model has fewer steps
    than under another method; the paper has 10 and 1, a widespread reading 1 and the run's. The classifier trains
    on features computed once, in evaluation mode. With `personal`, as in FedPer, other groups take its place: FedAlt of
    Pillutla et al. (2022).

    Tested: (θ, φ_k). A client that sits a round out keeps φ_k and gets the newest θ; before it first takes part
    φ_k is the common initial classifier.

    >>> FedRep(head_epochs=4)
    FedRep(personal='classifier', head_epochs=4, body_epochs=None)
    """

    head_epochs: int | None = None
    body_epochs: int | None = None

    paper: ClassVar[str] = "Collins et al., ICML 2021"
    extra_cost: ClassVar[str] = "one pass for features, training a classifier on them"

    def __post_init__(self) -> None:
        require(
            self.head_epochs is None or self.head_epochs >= 0,
            f"head_epochs = {self.head_epochs}: must not be negative (0: the extractor alone)",
        )
        require(
            self.body_epochs is None or self.body_epochs >= 1,
            f"body_epochs = {self.body_epochs}: must be at least 1",
        )

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The epochs of both."""
        run = federation.training.epochs
        head = run if self.head_epochs is None else self.head_epochs
        return {"head_epochs": head, "body_epochs": self.body_epochs or run}

    def recipe(self, federation: Federation) -> Recipe:
        """First what is personal, then what is shared."""
        body = Phase(train=self.shared, epochs=self.body_epochs, stream=0)
        if self.head_epochs == 0:
            return (body,)
        return (Phase(train=self.personal, epochs=self.head_epochs, stream=1), body)
