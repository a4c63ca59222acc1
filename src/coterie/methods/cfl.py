"""CFL: one model for a cluster of clients; clusters split where their members pull apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.exchange import Action, ClientRows, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.errors import require, unknown
from coterie.maths.clusters import two_halves, within_groups
from coterie.maths.similarity import cosines
from coterie.methods.base import Method

LINKAGES = ("single", "complete")


def displacement(rows: ClientRows) -> Tensor:
    """Δ_k: the trained model minus the cluster's, which the client started from, `[m, |parameters|]`."""
    # The difference of two numbers that are finite need not be: one client's would be the largest for ever.
    moved = rows.after(group="parameters") - rows.before(group="parameters")
    return moved.clamp_(-torch.finfo(moved.dtype).max, torch.finfo(moved.dtype).max)


@dataclass(frozen=True)
class CFL(Method):
    """Clustered federated learning: model-agnostic distributed multitask optimization (Sattler et al., 2020).

    Clients train from their cluster's model (at first there is one cluster) and Δ_k is what training changed.
    After `warm_up` rounds a cluster c of more than two is split in two if it stands still while members do not:
    ‖mean_c Δ‖ < ε₁ and max_c ‖Δ_k‖ > ε₂. The halves are those whose largest cos(Δ_i, Δ_j) across is least, which is
    single linkage; `linkage="complete"` is what the authors' notebook does. Then w_c ← w_c + mean_c Δ, the
    unweighted mean of the members' models, for each cluster. Tested: the cluster's model.

    ε₁ and ε₂ are the published code's and depend on model and learning rate; with `relative=True` they are
    multiples of the largest ‖mean_c Δ‖ seen so far (about 0.1 and 1 are sensible then). The paper assumes full
    participation. Without it, clusters are judged and split by every member's last Δ; members that never took
    part stay with the larger half, and the cluster's new model, which all its members hold, is the mean over
    this round's. Batch-norm statistics are averaged within the cluster and do not count as part of Δ.

    >>> CFL(relative=True, eps1=0.1, eps2=1.0)
    CFL(eps1=0.1, eps2=1.0, relative=True, warm_up=20, linkage='single')
    """

    eps1: float = 0.4
    eps2: float = 1.6
    relative: bool = False
    warm_up: int = 20
    linkage: str = "single"

    paper: ClassVar[str] = "Sattler et al., TNNLS 2020"
    extra_cost: ClassVar[str] = "server stores every client's last update"
    shared: ClassVar[str] = ""

    def __post_init__(self) -> None:
        require(self.eps1 >= 0, f"eps1 = {self.eps1}: must not be negative (0: clusters never split)")
        require(self.eps2 >= 0, f"eps2 = {self.eps2}: must not be negative")
        require(self.warm_up >= 0, f"warm_up = {self.warm_up}: must not be negative")
        if self.linkage not in LINKAGES:
            raise unknown("linkage", self.linkage, LINKAGES)

    def check(self, federation: Federation) -> None:
        """A number for every pair of clients must fit into memory."""
        require_pairs("cfl", federation.clients, "mixing weights", each=24)

    def init(self, federation: Federation) -> None:
        """Last updates, who belongs to which cluster, and the largest mean update so far."""
        federation.add_slot("update", "parameters", fill=0.0, held_by="server", follows=displacement)
        clusters = torch.zeros(federation.clients, dtype=torch.int64)
        federation.add_value("clusters", clusters, per_client=True, held_by="server")
        federation.add_value("largest", torch.zeros((), dtype=torch.float64), held_by="server")

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The whole model."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Split what has to be split, then one mean per cluster."""
        federation = uploads.federation
        clusters = federation.values["clusters"].clone()
        largest = float(federation.values["largest"])
        for cluster in clusters.unique().tolist():
            members = federation.everyone[(clusters == cluster) & federation.taken_part]
            if not len(members):
                continue
            updates = federation["update"].rows(members)
            mean = float(updates.mean(0, dtype=torch.float64).norm())  # squares of large numbers overflow in float32
            most = float(torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64).max())
            largest = max(largest, mean)
            if self.splits(federation.round, len(members), mean, most, largest):
                halves = two_halves(cosines(updates), self.linkage)
                leaving = members[halves]  # client ids, at whatever level of splitting
                clusters[leaving] = int(clusters.max()) + 1
        here = torch.zeros_like(federation.taken_part)
        here[uploads.cohort] = True
        yield Mix(within_groups(clusters, here), source="model", to="everyone")
        yield Put("clusters", clusters)
        yield Put("largest", torch.tensor(largest, dtype=torch.float64))

    def splits(self, round: int, members: int, mean: float, most: float, largest: float) -> bool:
        """Whether a cluster stands still (`mean` update) while a member does not (`most`)."""
        unit = largest if self.relative else 1.0
        return round > self.warm_up and members > 2 and mean < self.eps1 * unit and most > self.eps2 * unit
