"""FedProx: FedAvg whose clients are held near the model they received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import Proximal
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Federated optimization in heterogeneous networks (Li et al., 2020).

    Clients minimise CE(w) + (μ/2)‖w − w_t‖², w_t the model as received; the server is FedAvg's. μ = 0 is FedAvg.

    >>> FedProx(mu=0.1)
    FedProx(mu=0.1)
    """

    mu: float = 0.01

    paper: ClassVar[str] = "Li et al., MLSys 2020"

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"mu = {self.mu}: must not be negative")

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training with a pull towards the received model."""
        return (Phase(row_terms=(Proximal(self.mu),) if self.mu else ()),)
