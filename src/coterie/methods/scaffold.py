"""SCAFFOLD: control variates take the drift out of local steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.client.recipe import Keep, Phase, Recipe
from coterie.client.terms import Linear
from coterie.core.exchange import Action, ClientRows, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import by_size, normalised, uniform
from coterie.errors import require, unknown
from coterie.methods.base import Method

WEIGHTS = ("uniform", "size")


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """SCAFFOLD: stochastic controlled averaging for federated learning (Karimireddy et al., 2020).

    Client: w ← w − η(∇CE(w) − c_k + c); after S steps c_k⁺ = c_k − c + (w_t − w_k)/(S·η), option II of the paper.
    Server: w ← w_t + η_g · mean_k(w_k − w_t) over the cohort; c = mean of all clients' last c_k, which is
    c + |cohort|/K · mean(c_k⁺ − c_k). All controls start at zero, so the first round is FedAvg's.

    Both means are uniform as in the paper; `weights="size"` takes both by data size (the two must agree, or the
    corrections do not cancel). The estimate of c_k holds for plain SGD only: other optimisers, momentum and
    clipping are refused. Clients send c_k⁺ itself; they receive w and c. A client that sits out keeps its c_k.
    Tested: the global model.

    >>> SCAFFOLD(weights="size")
    SCAFFOLD(server_lr=1.0, weights='size')
    """

    server_lr: float = 1.0
    weights: str = "uniform"

    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    extra_cost: ClassVar[str] = "twice the traffic; a control row for every client"

    def __post_init__(self) -> None:
        require(self.server_lr > 0, f"server_lr = {self.server_lr}: must be greater than 0")
        if self.weights not in WEIGHTS:
            raise unknown("weights", self.weights, WEIGHTS)

    def check(self, federation: Federation) -> None:
        """Plain SGD alone makes (w_t − w_k)/(S·η) the mean gradient."""
        training = federation.training
        require(training.optimizer == "sgd", f"optimizer = {training.optimizer}: scaffold needs 'sgd'")
        require(training.momentum == 0, f"momentum = {training.momentum}: scaffold needs plain SGD, momentum 0")
        require(training.clip == 0, f"clip = {training.clip}: scaffold needs whole gradients, clip 0")

    def init(self, federation: Federation) -> None:
        """c_k of everybody, and c."""
        federation.add_slot("control", "parameters", fill=0.0)
        federation.add_slot("mean_control", "parameters", shared="parameters", fill=0.0)

    def recipe(self, federation: Federation) -> Recipe:
        """Every gradient is corrected by c − c_k; then the new controls, and what is sent has gone η_g of the way."""
        phase = Phase(row_terms=(Linear("control", -1.0), Linear("mean_control")))
        stretched = () if self.server_lr == 1 else (Keep("model", lambda rows: rows.relaxed(self.server_lr)),)
        return (phase, Keep("control", new_controls), *stretched)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The model and the client's control."""
        return {"model": "all", "control": "parameters"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The mean model of the cohort, the mean control of everybody."""
        federation, even = uploads.federation, self.weights == "uniform"
        yield Mix(uniform(len(uploads.cohort)) if even else by_size(uploads))
        everybody = uniform(federation.clients) if even else normalised(federation.sizes[None])
        yield Mix(everybody, "parameters", source="control", target="mean_control")


def new_controls(rows: ClientRows) -> Tensor:
    """c_k − c + (w_t − w_k)/(S·η): `[m, |parameters|]`; a client without a step keeps its c_k."""
    federation = rows.federation
    steps = federation.steps(rows.cohort).to(federation.initial.device)
    rate = federation.training.rate(federation.round, federation.rounds)
    drift = rows.before(group="parameters") - rows.after(group="parameters")
    mean_gradient = drift / (steps.clamp(min=1) * rate)[:, None]
    correction = mean_gradient - rows.before("mean_control", "parameters")
    return rows.before("control", "parameters") + correction * (steps > 0)[:, None]
