"""pFedGraph: a collaboration graph from how alike clients' changes are, and how much data each has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.client.recipe import Phase, Recipe
from coterie.core.exchange import Action, ClientRows, Mix, Uploads
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.maths.similarity import cosines
from coterie.methods.base import Method

ALIKE = 0.9  # cosines above this count as 1


@dataclass(frozen=True)
class Towards:
    """−λ⟨ū, w⟩/‖w‖: turns the model towards a direction, which a slot holds."""

    strength: float
    slot: str = "direction"

    whole: ClassVar[bool] = True

    def gradient(self, row: Tensor, anchor: Callable[[str], Tensor]) -> Tensor:
        """−λ(ū − ⟨ū, e⟩e)/‖w‖ with e = w/‖w‖."""
        direction = anchor(self.slot)
        length = torch.linalg.vector_norm(row, dim=-1, keepdim=True).clamp(min=1e-12)
        unit = row / length
        turn: Tensor = (direction - (direction * unit).sum(-1, keepdim=True) * unit) / length
        return -self.strength * turn


@dataclass(frozen=True)
class PFedGraph(Method):
    """Personalized federated learning with inferred collaboration graphs (Ye et al., 2023).

    Server: with Δ_k = w_k − w⁰, the whole change since the common initial model, d_ij = −cos(Δ_i, Δ_j), −1 where below
    −0.9; row i of W is argmin_{x ≥ 0, Σx = 1} ⟨d_i, x⟩ + α‖x − p‖², p_j = n_j/Σn over the cohort, which is the
    projection of p − d_i/(2α) onto the simplex. Then w_i ← Σ_j W_ij w_j and ū_i = Σ_j W_ij w_j/‖w_j‖. Client: CE(w) −
    λ⟨ū_i, w⟩/‖w‖ from its own aggregated w_i; there is no ū in a client's first round.

    α → ∞ with λ = 0 is FedAvg, α → 0 leaves clients that are like nobody else alone. The regulariser's sign is the one
    that turns a model towards its aggregate, as the paper says that it does; the authors' code adds +λ⟨ū_i, w⟩/‖w‖ to
    the loss, which turns it away (a negative `lam` here). All of it is about the cohort: a resting client keeps its w_i
    and ū_i. Norms and cosines are of parameters; batch-norm statistics are mixed with the rest. Tested: w_i.

    >>> PFedGraph(alpha=2.0)
    PFedGraph(alpha=2.0, lam=0.01)
    """

    alpha: float = 0.8
    lam: float = 0.01

    paper: ClassVar[str] = "Ye et al., ICML 2023"
    extra_cost: ClassVar[str] = "server stores every model and its direction, and compares the cohort's pairs"
    shared: ClassVar[str] = ""

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"alpha = {self.alpha}: must be greater than 0")

    def init(self, federation: Federation) -> None:
        """The last uploads with length one, and what each client is turned towards."""
        if self.lam:
            federation.add_slot("unit", "parameters", held_by="server", follows=unit_rows)
            federation.add_slot("direction", "parameters", fill=0.0)

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training with a turn towards the aggregate."""
        return (Phase(row_terms=(Towards(self.lam),) if self.lam and federation.round > 1 else ()),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The client's model."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The graph, and everybody's aggregate."""
        parameters = uploads.federation.layout.columns("parameters")
        changes = uploads.rows(parameters).double() - parameters.take(uploads.federation.initial).double()
        weights = self.graph(cosines(changes), uploads.sizes / uploads.sizes.sum())
        yield Mix(weights, "all")
        if self.lam:
            yield Mix(weights, "parameters", source="unit", sources=uploads.cohort, target="direction")

    def graph(self, similarity: Tensor, shares: Tensor) -> Tensor:
        """W of cosines `[m, m]` and data shares `[m]`: `[m, m]`."""
        distances = -torch.where(similarity > ALIKE, 1.0, similarity)
        return onto_simplex(shares - distances / (2 * self.alpha))


def unit_rows(rows: ClientRows) -> Tensor:
    """Clients' parameters after training, scaled to length one: `[m, n]`."""
    return normalize(rows.after(group="parameters"), dim=1)


def onto_simplex(points: Tensor) -> Tensor:
    """The nearest points with non-negative coordinates that sum to one, row by row: `[m, n]`.

    >>> onto_simplex(torch.tensor([[0.5, 0.5], [2.0, 0.0], [0.4, 0.0]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000],
            [0.7000, 0.3000]])
    """
    falling = points.sort(1, descending=True).values
    excess = (falling.cumsum(1) - 1) / torch.arange(1, points.shape[1] + 1)
    positive = (falling > excess).sum(1, keepdim=True)  # of how many coordinates something is left
    return (points - excess.gather(1, positive - 1)).clamp(min=0)
