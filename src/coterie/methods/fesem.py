"""FeSEM: several centres; each client belongs to the one its model is nearest to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.recipe import Phase, Recipe
from coterie.client.terms import Proximal
from coterie.core.columns import Columns
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.errors import require
from coterie.maths.clusters import lloyd, within_groups
from coterie.maths.similarity import require_weight_matrix
from coterie.methods.base import Method


@dataclass(frozen=True)
class FeSEM(Method):
    """Multi-center federated learning (Xie et al., 2020).

    E-step: client k belongs to the centre q that minimises ‖w_k − c_q‖²; M-step: c_q is the unweighted mean of its
    members' models, which they receive and train from, with CE + (μ/2)‖w − c_q‖² (μ = 0 by default). Distances are
    those of the classifier's weight matrix, as in the published code; there are at most `lloyd_steps` E- and
    M-steps a round, from the last round's centres. Tested: the centre of one's own cluster.

    The paper leaves open what happens to a centre without members: it moves to the client farthest from its own
    centre. All centres start at the common initial model, so that rule makes the first ones too. Unsampled clients
    count with their last uploaded model, receive their centre all the same, and a client that never took part
    receives the mean of everybody's. Batch-norm statistics are averaged with the rest.

    >>> FeSEM(centres=3)
    FeSEM(centres=3, lloyd_steps=5, mu=0.0)
    """

    centres: int = 5
    lloyd_steps: int = 5
    mu: float = 0.0

    paper: ClassVar[str] = "Xie et al., arXiv 2005.01026"
    extra_cost: ClassVar[str] = "server stores every client's last upload"
    shared: ClassVar[str] = ""

    def __post_init__(self) -> None:
        require(self.centres >= 1, f"centres = {self.centres}: must be at least 1")
        require(self.lloyd_steps >= 1, f"lloyd_steps = {self.lloyd_steps}: must be at least 1")
        require(self.mu >= 0, f"mu = {self.mu}: must not be negative")

    def check(self, federation: Federation) -> None:
        """Clients are compared by their classifiers' weights."""
        require_pairs("fesem", federation.clients, "mixing weights", each=24)
        require_weight_matrix(federation, "fesem")

    def compared(self, federation: Federation) -> Columns:
        """The columns that distances are about: the last weight matrix of the classifier."""
        return federation.layout.classifier_weights[-1].columns

    def init(self, federation: Federation) -> None:
        """Last uploads, the centres' compared columns, and who belongs where (−1: not known yet)."""
        federation.add_slot("uploaded", held_by="server", follows="model")
        if federation.layout.classifier_weights:
            first = self.compared(federation).take(federation.initial).double()
            federation.add_value("centres", first.repeat(self.centres, 1), held_by="server")
        federation.add_value("clusters", torch.full((federation.clients,), -1), per_client=True, held_by="server")

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training, held near the centre if wished."""
        return (Phase(row_terms=(Proximal(self.mu),) if self.mu else ()),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The whole model."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Find the clusters, then one mean per cluster."""
        federation = uploads.federation
        known = federation.taken_part
        points = federation["uploaded"].rows(federation.everyone[known], self.compared(federation))
        clusters = federation.values["clusters"].clone()
        clusters[known], centres = lloyd(points.cpu(), federation.values["centres"], self.lloyd_steps)
        weights = within_groups(clusters, known)
        weights[~known] = known.double() / known.sum()
        yield Mix(weights, source="uploaded", to="everyone")
        yield Put("clusters", clusters)
        yield Put("centres", centres)
