"""FedAMP: every client is drawn towards a mix of the models that resemble its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import Proximal
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.maths.similarity import squared_distances
from coterie.methods.base import Method

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class FedAMP(Method):
    """Personalized cross-silo federated learning on non-IID data (Huang et al., 2021).

    Server: u_i = (1 − Σ_{j≠i} ξ_ij) w_i + Σ_{j≠i} ξ_ij w_j with ξ_ij = α e^{−‖w_i − w_j‖²/σ} / σ; where the ξ of a
    client sum to more than one they are divided by their sum, and its own model has no part in its anchor: a run says
    so once if most clients are in that case, as they are in most rounds at the defaults. Client: CE(w) +
    (λ/2α)‖w − u_i‖², from its own w_i, which never is replaced and is what is tested. In round 1 the anchor u_i is the
    common initial model.

    Anchors follow from everybody's last uploaded model; a client that has not taken part yet is in nobody's mix, and
    its own anchor is the initial model, which it has.
    The paper's α may change from round to round; here it is constant. `noop_reg=True` leaves the regulariser out, as a
    widespread implementation does by accident (its term has no gradient): that is local training. Batch-norm
    statistics stay local.

    >>> FedAMP(sigma=10.0)
    FedAMP(alpha=1.0, sigma=10.0, lam=1.0, noop_reg=False)
    """

    alpha: float = 1.0
    sigma: float = 1.0
    lam: float = 1.0
    noop_reg: bool = False

    paper: ClassVar[str] = "Huang et al., AAAI 2021"
    extra_cost: ClassVar[str] = "server stores every model twice (model and anchor) and compares all pairs"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"alpha = {self.alpha}: must be greater than 0")
        require(self.sigma > 0, f"sigma = {self.sigma}: must be greater than 0")
        require(self.lam >= 0, f"lam = {self.lam}: must not be negative")

    def check(self, federation: Federation) -> None:
        """A number for every pair of clients must fit into memory."""
        require_pairs("fedamp", federation.clients, "distances", each=32)

    def init(self, federation: Federation) -> None:
        """What each client is drawn to, and whether the run has said that clients' own models have no part in it."""
        federation.add_slot("anchor")
        federation.add_value("warned", torch.zeros(()), held_by="server")

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training with a pull towards the anchor."""
        strength = 0.0 if self.noop_reg else self.lam / self.alpha
        return (Phase(row_terms=(Proximal(strength, anchor="anchor"),) if strength else ()),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The client's model."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Everybody's anchor from all models known."""
        federation = uploads.federation
        pool = federation.everyone[federation.taken_part]
        rows = federation["model"].rows(pool, federation.layout.columns("parameters"))
        attention = self.attention(squared_distances(rows))
        yield Mix(attention, source="model", sources=pool, target="anchor", to=pool)
        without = int((attention.diagonal() < 1e-9).sum())
        if 2 * without > len(pool) and not bool(federation.values["warned"]):
            log.warning(
                f"fedamp, round {federation.round}: the anchors of {without} of {len(pool)} clients leave their own "
                f"models out (alpha = {self.alpha:g}, sigma = {self.sigma:g}); with alpha/sigma below "
                f"1/{len(pool) - 1} none does"
            )
            yield Put("warned", torch.ones(()))

    def attention(self, distances: Tensor) -> Tensor:
        """The weights of squared `distances [p, p]`: `[p, p]`, what the others leave going to the client itself."""
        others = (self.alpha / self.sigma * torch.exp(-distances.double() / self.sigma)).fill_diagonal_(0)
        others = others / others.sum(1, keepdim=True).clamp(min=1)
        return others + torch.diag((1 - others.sum(1)).clamp(min=0))
