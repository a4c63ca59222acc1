"""FedDyn: each client's objective is bent so that its optimum agrees with everybody's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.client.recipe import Keep, Phase, Recipe
from coterie.client.terms import Linear, Proximal
from coterie.core.exchange import Action, ClientRows, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import uniform
from coterie.errors import require
from coterie.methods.base import Method


@dataclass(frozen=True)
class FedDyn(Method):
    """Federated learning based on dynamic regularization (Acar et al., 2021).

    Client: min CE(w) − ⟨g_k, w⟩ + (α/2)‖w − w_t‖², then g_k ← g_k − α(w_k − w_t), a dual of its own.
    Server: h ← h − (α/K) Σ_k (w_k − w_t) over the cohort; w ← mean_k w_k − h/α, means being uniform.

    g_k and h start at zero: the first local round is FedProx's with μ = α. g_k never leaves its client and rests
    while that sits out; h is the server's. Running statistics of batch norm are averaged. Published code clips
    gradients at 10: set the run's clip. Tested: the global model w, which need not lie between the clients'.

    >>> FedDyn(alpha=0.1)
    FedDyn(alpha=0.1)
    """

    alpha: float = 0.01

    paper: ClassVar[str] = "Acar et al., ICLR 2021"
    extra_cost: ClassVar[str] = "a dual row for every client, one for the server"

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"alpha = {self.alpha}: must be greater than 0")

    def init(self, federation: Federation) -> None:
        """g_k of everybody, and h."""
        federation.add_slot("dual", "parameters", fill=0.0, held_by="client")
        federation.add_slot("server_dual", "parameters", shared="parameters", fill=0.0, held_by="server")

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training with the linear and the quadratic term; the dual then goes against the displacement."""
        return (Phase(row_terms=(Linear("dual", -1.0), Proximal(self.alpha))), Keep("dual", self.new_duals))

    def new_duals(self, rows: ClientRows) -> Tensor:
        """g_k − α(w_k − w_t): `[m, |parameters|]`."""
        displacement = rows.after(group="parameters") - rows.before(group="parameters")
        return rows.before("dual", "parameters") - self.alpha * displacement

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The mean model, moved by the server's dual."""
        federation, taking_part = uploads.federation, len(uploads.cohort)
        anyone, parameters = federation.everyone[:1], federation.layout.columns("parameters")
        before = federation["model"].rows(anyone, parameters)
        mean = uploads.rows(parameters).mean(0, keepdim=True)
        step = self.alpha * taking_part / federation.clients * (mean - before)
        dual = federation["server_dual"].rows(anyone) - step
        yield Mix(uniform(taking_part))
        yield Put("server_dual", dual, group="parameters")
        yield Put("model", mean - dual / self.alpha, group="parameters")
