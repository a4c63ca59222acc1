"""f-FedAP: clients learn from those whose data look alike to the model; batch norm stays at the client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Phase, Recipe
from coterie.core.exchange import Action, Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.core.mixing import by_size, embedded, identity, normalised
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.maths.channels import ChannelStatistics, channel_count, channel_distances, measured_layers
from coterie.methods.base import Method

TRAVELS = "all - norm"
MOST = 1e14  # the inverse distance of clients that do not differ at all


@dataclass(frozen=True)
class FedAP(Method):
    """Personalized federated learning with adaptive batchnorm for healthcare (Lu et al., 2022): f-FedAP.

    The first ⌊`warm_up`·T⌋ rounds are FedBN. With the resulting models every client measures mean μ and standard
    deviation σ of each output channel of each convolution (fully connected layers, if the model has none) over its
    training data; d_ij = Σ_layers sqrt(‖μ_i − μ_j‖² + ‖σ_i − σ_j‖²), and

        P_ii = m,   P_ij = (1 − m) · (1/d_ij) / Σ_{l≠i} 1/d_il   (1/0 taken as 10¹⁴), computed once.

    From then on a client receives Σ_j P_ij w_j over all stored models, but for batch norm, which stays its own,
    trains, and its model is stored. Tested: `received` the mix that it would download, `trained` the stored model.

    At the end of FedBN all clients store the same model, so any P leaves it as it is: statistics travel with the
    first upload after it. A client that sits that round out is measured when it first takes part again, on FedBN's
    model as well, which it holds until then; it is in nobody's mix before.

    >>> FedAP(warm_up=0.2)
    FedAP(warm_up=0.2, m=0.5)
    """

    warm_up: float = 0.5
    m: float = 0.5

    paper: ClassVar[str] = "Lu et al., IEEE TBD 2022"
    extra_cost: ClassVar[str] = "one pass over the training data, once; server stores every model"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(0 <= self.warm_up <= 1, f"warm_up = {self.warm_up}: must lie in [0, 1]")
        require(0 <= self.m <= 1, f"m = {self.m}: must lie in [0, 1]")

    def check(self, federation: Federation) -> None:
        """Clients are compared by what the extractor's layers put out."""
        require_pairs("fedap", federation.clients, "mixing weights", each=24)
        require(
            bool(measured_layers(federation.layout)),
            "fedap: the extractor has no convolution or fully connected layer to compare clients by",
        )

    def init(self, federation: Federation) -> None:
        """Nobody is measured yet."""
        channels = channel_count(federation.layout)
        unknown = torch.full((federation.clients, 2, channels), torch.nan)
        federation.add_value("statistics", unknown, per_client=True, held_by="server")
        federation.add_value("mixing", identity(federation.clients), per_client=True, held_by="server")

    def warming_up(self, federation: Federation) -> bool:
        """Whether the round belongs to FedBN."""
        return federation.round <= self.warm_up_rounds(federation)

    def warm_up_rounds(self, federation: Federation) -> int:
        """How many rounds belong to FedBN."""
        return math.floor(self.warm_up * federation.rounds + 1e-9)

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """How long FedBN lasts."""
        return {"warm_up_rounds": self.warm_up_rounds(federation)}

    def measures(self, federation: Federation) -> bool:
        """Whether this round's clients send statistics: after FedBN, while somebody's are missing."""
        return not self.warming_up(federation) and not bool(federation.values["statistics"].isfinite().all())

    def recipe(self, federation: Federation) -> Recipe:
        """Plain training; before it channel statistics, where the server lacks them."""
        return (Measure(ChannelStatistics()), Phase()) if self.measures(federation) else (Phase(),)

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """All but batch norm."""
        return {"model": TRAVELS}

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix]:
        """The client's own mix, when it downloads."""
        if not self.warming_up(federation):
            yield Mix(self.mixing(federation, clients), TRAVELS, source="model")

    def mixing(self, federation: Federation, clients: Tensor) -> Tensor:
        """P of some clients `[m, K]`; what was the share of clients who have left since is the others'."""
        shares = federation.values["mixing"][clients]
        alone = shares.sum(1, keepdim=True) == 0
        return normalised(torch.where(alone, identity(federation.clients)[clients], shares))

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """FedBN for everybody at first; then P, as soon as there is something to compute it from."""
        federation, cohort = uploads.federation, uploads.cohort
        if self.warming_up(federation):
            yield Mix(by_size(uploads), TRAVELS, to="everyone")
        elif self.measures(federation):
            statistics = federation.values["statistics"].clone()
            missing = ~statistics[cohort].isfinite().flatten(1).all(1)
            statistics[cohort[missing]] = uploads.measured["channel_statistics"][missing]
            known = federation.everyone[statistics.isfinite().flatten(1).all(1)]
            near = self.nearness(channel_distances(statistics[known], federation.layout))
            yield Put("statistics", statistics)
            yield Put("mixing", embedded(near, known, federation.clients))

    def nearness(self, distances: Tensor) -> Tensor:
        """P of `distances [p, p]`: `[p, p]`."""
        if len(distances) < 2:
            return identity(len(distances))
        inverse = torch.where(distances > 0, 1 / distances, MOST).clamp(max=MOST).fill_diagonal_(0)
        return self.m * identity(len(distances)) + (1 - self.m) * normalised(inverse)
