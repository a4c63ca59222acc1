"""A topology: attached to a federation, where every mix is made among neighbours.

With A who hears whom (everybody hears itself), a method's W becomes, for each learner i,

    rows         W'_ij = W_ij A_ij / Σ_l W_il A_il
    metropolis   W'_ij = 1 / (1 + max(d_i, d_j)) for neighbours, d_i how many of them i has, and W'_ii what is missing

among the clients whose rows are mixed; the latter stands for the mean of all, whatever its weights. No row is shared
any more: each client has one of its own, also of what a method shares otherwise. Whoever hears nobody keeps what it
has.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from coterie.core.attached import Blocks
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.methods.base import Method
from coterie.rounds.delivery import require_mixes_alone
from coterie.rounds.listeners import Note
from coterie.rounds.stages import Clients, Course, Stage
from coterie.topology.graph import links_of, metropolis, reaches_all, spectral_gap
from coterie.topology.options import Neighbours

log = logging.getLogger("coterie")

MOST = 3000
"""Clients, up to which a spectral gap is computed: beyond, it takes minutes."""


class Graph(Note, frozen=True):
    """The graph along which a round mixed, and how fast what one client knows spreads on it."""

    says: str
    gap: float | None  # with everybody present; none if it was not computed


@dataclass(frozen=True)
class Topology(Stage):
    """A run's topology, as mixes ask for it (`coterie.core.attached.Reduction`)."""

    settings: Neighbours
    clients: Clients
    seed: int
    name: ClassVar[str] = "topology"
    spans_learners: ClassVar[bool] = False
    lacking: ClassVar[str] = "which neighbours alone do not make; use one that does no more than mix, such as fedavg"

    @classmethod
    def of(cls, settings: Neighbours, clients: Clients) -> Topology:
        """The topology that a run asks for."""
        return cls(settings, clients, int(getattr(settings, "seed", 0)))

    @property
    def spoken(self) -> str:
        """What was asked for, as it was given."""
        return f"topology = '{self.settings.topology}'"

    @cached_property
    def links(self) -> Tensor:
        """Who hears whom, without oneself: `[K, K]` bool."""
        return links_of(self.settings.topology, self.clients.keys, self.clients.names, self.seed)

    def attach(self, federation: Federation) -> None:
        """From now on nothing is shared, and mixes are made among neighbours."""
        federation.reduction, federation.apart = self, True

    def check(self, method: Method, federation: Federation) -> None:
        """Refuse a method in which others reach a client by other ways than mixes, and say what the graph is like."""
        require_mixes_alone(method, federation)
        log.info("%s", self._says(federation))
        if not reaches_all(self.links):
            log.warning("%s: not everybody can be reached from everybody; some never hear of others", self.spoken)

    def note(self, federation: Federation, course: Course) -> Graph:
        """What the graph is like."""
        return Graph(self._says(federation), self._gap(federation))

    def _gap(self, federation: Federation) -> float | None:
        """The spectral gap with everybody present."""
        if len(self.links) > MOST:
            return None
        if "gap" not in self.__dict__:
            self.__dict__["gap"] = spectral_gap(self.links, federation.sizes.clamp(min=1), self.settings.topology_rule)
        gap: float = self.__dict__["gap"]
        return gap

    def _says(self, federation: Federation) -> str:
        gap = self._gap(federation)
        said = "was not computed for so many clients" if gap is None else f"is {gap:.3g} with everybody present"
        return (
            f"topology {self.settings.topology}, weights {self.settings.topology_rule}: {len(self.links)} clients, "
            f"{int(self.links.sum()) // 2} links; the spectral gap {said}"
        )

    # What mixes ask.

    def weights(self, weights: Tensor, learners: Tensor | None, sources: Tensor, blocks: Blocks, what: str) -> Tensor:
        """The method's weights among neighbours: a row for each learner, all 0 if it hears nobody."""
        if learners is None:  # of no columns: nothing is shared
            return weights
        heard = self.links[learners][:, sources] | (learners[:, None] == sources)
        if self.settings.topology_rule == "metropolis":
            mean = bool((weights == weights[:1]).all()) and bool((weights > 0).all())
            require(mean, f"{what} is no mean of all, which topology_rule = metropolis stands for; use rows")
            return metropolis(self.links, learners, sources)
        masked = weights.double().expand(len(learners), -1) * heard
        total = masked.sum(1, keepdim=True)
        return masked / total.where(total > 0, 1)

    def reduce(self, weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weighted means."""
        return weights @ rows, None
