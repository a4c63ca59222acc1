"""Ditto: a model of one's own, held near the global one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import Proximal
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Ditto(FedAvg):
    """Ditto: fair and robust federated learning through personalization (Li et al., 2021).

    The global model w is FedAvg's. Besides, client k minimises CE(v_k) + (λ/2)‖v_k − w_t‖² over a model v_k of its
    own, for `personal_epochs` (None: the run's epochs), w_t the global model as received. v_k never travels; its
    batch-norm statistics are its own, those of w are averaged.

    Which of the two trains first makes no difference, as the anchor is w_t either way; both see the samples in the
    same order. λ = 0 makes v_k Local's model, and w is FedAvg's whatever λ.

    Tested: v_k. It starts as the common initial model and changes only in rounds in which its client takes part.

    >>> Ditto(lam=0.5)
    Ditto(lam=0.5, personal_epochs=None)
    """

    lam: float = 1.0
    personal_epochs: int | None = None

    paper: ClassVar[str] = "Li et al., ICML 2021"
    extra_cost: ClassVar[str] = "training a second model"
    tested: ClassVar[str] = "personal"

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam = {self.lam}: must not be negative")
        require(
            self.personal_epochs is None or self.personal_epochs >= 1,
            f"personal_epochs = {self.personal_epochs}: must be at least 1",
        )

    def init(self, federation: Federation) -> None:
        """A whole model for everybody, statistics included."""
        federation.add_slot("personal", federation.layout.everything, held_by="client")

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The epochs of the personal model."""
        return {"personal_epochs": self.personal_epochs or federation.training.epochs}

    def recipe(self, federation: Federation) -> Recipe:
        """The global model as in FedAvg, then one's own with a pull towards what was received."""
        pull = (Proximal(self.lam, anchor="model"),) if self.lam else ()
        return (Phase(stream=0), Phase(slot="personal", epochs=self.personal_epochs, row_terms=pull, stream=0))
