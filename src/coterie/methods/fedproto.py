"""FedProto: clients share what their classes look like, and no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.measures import ClassMeans, class_mean_of_clients, mean_of_owners
from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.terms import PrototypeDistance, task_loss
from coterie.client.views import BatchView
from coterie.core.exchange import Action, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.training import StatsPolicy
from coterie.errors import require, unknown
from coterie.methods.base import Method, require_classes

CHOICES = {"average": ("clients", "samples"), "test_by": ("prototypes", "classifier")}


@dataclass(frozen=True)
class FedProto(Method):
    """FedProto: federated prototype learning across heterogeneous clients (Tan et al., 2022).

    Clients minimise CE(w_k) + λ·‖z − c_y‖²/d, c_y the global prototype of the sample's class; classes without one
    are passed over. They send the mean feature of each of their classes, taken with the trained model over all
    their training data; c_j is the mean of those over the clients of this round that have class j.

    The paper's (6) divides by the clients of a class and weights by its samples, which does not sum to one:
    `average="clients"` counts every client once, as its code does, `"samples"` weights by class counts. A class
    that nobody of the cohort has keeps its prototype.

    Tested: the class of the nearest prototype in feature space (`test_by="classifier"`: the client's classifier).
    In the first round there are no prototypes: the term is zero, and the classifier is tested until there are.
    A client that sits a round out keeps w_k and gets the newest prototypes. λ = 0 trains like Local.

    >>> FedProto(test_by="classifier")
    FedProto(lam=1.0, average='clients', test_by='classifier')
    """

    lam: float = 1.0
    average: str = "clients"
    test_by: str = "prototypes"

    paper: ClassVar[str] = "Tan et al., AAAI 2022"
    extra_cost: ClassVar[str] = "one pass for class means"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam = {self.lam}: must not be negative")
        for option, allowed in CHOICES.items():
            if getattr(self, option) not in allowed:
                raise unknown(option, getattr(self, option), allowed)

    def check(self, federation: Federation) -> None:
        """Features are averaged by class."""
        require_classes(federation, "fedproto")

    def init(self, federation: Federation) -> None:
        """No prototypes yet."""
        federation.add_value("prototypes", torch.full((federation.classes, federation.feature_width), torch.nan))
        if self.average == "samples":
            federation.ask_class_counts()

    def recipe(self, federation: Federation) -> Recipe:
        """Everything trains, features near their prototypes; then mean features by class."""
        near = (PrototypeDistance("prototypes", self.lam),) if self.lam else ()
        return (Phase(terms=(task_loss, *near)), Measure(ClassMeans()))

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """No parameters."""
        return {}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mean prototypes."""
        if self.average == "samples":
            yield Put("prototypes", class_mean_of_clients(uploads))
        else:
            before = uploads.federation.values["prototypes"]
            yield Put("prototypes", mean_of_owners(uploads.measured["class_means"], before))

    def predict(self, batch: BatchView) -> Tensor:
        """Minus the mean squared difference to each prototype; a class that has none is farther than all others."""
        if self.test_by == "classifier":
            return batch.logits
        prototypes = batch.value("prototypes")
        missing = prototypes.isnan().any(1)
        # Differences, not inner products: those lose the digits that separate near prototypes.
        apart = torch.cdist(batch.features, prototypes.nan_to_num(), compute_mode="donot_use_mm_for_euclid_dist")
        distances = apart.square() / prototypes.shape[1]
        beyond = distances.masked_fill(missing, -torch.inf).amax(1, keepdim=True) + 1  # finite, as are losses then
        return torch.where(missing.all(), batch.logits, -torch.where(missing, beyond, distances))
