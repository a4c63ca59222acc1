"""APPLE: clients learn whom to follow, and how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.views import Batches, ClientView, TrainedPart, TrainerView
from coterie.core.exchange import Action, Mix, Peers, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.machine import require_pairs
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method


@dataclass(frozen=True)
class FollowingSteps:
    """The step rule of APPLE: one gradient, at the personal model, moves the core model and the relations."""

    rate: float
    pull: float

    def __call__(self, trainer: TrainerView, batches: Batches) -> None:
        """The personal model is mixed anew for every batch."""
        worker = trainer.worker
        peers, rows = worker.peers()
        shares = worker.value("shares")
        known = torch.tensor([*peers, worker.client], device=shares.device)
        relations = (
            worker.value("relations") if int(worker.federation.rounds_taken[worker.client]) else shares
        ).clone()
        target = shares[known]
        # Nobody has heard of these yet: what they would weigh goes to the client's own core.
        strangers = torch.ones_like(relations, dtype=torch.bool)
        strangers[known] = False
        elsewhere = relations[strangers].sum()
        pairs = list(
            zip(
                (part for part in trainer.parts if part.slot == "model"),
                (part for part in trainer.parts if part.slot == "personal"),
                strict=True,
            )
        )
        for batch in batches:
            _mix(pairs, rows, relations[known], elsewhere)
            trainer.gradient(batch)
            slopes = rows.new_zeros(len(known))
            for core, personal in pairs:
                slopes[:-1] += rows[:, core.span[0] : core.span[1]] @ personal.grad
                slopes[-1] += core.row @ personal.grad
                core.grad.copy_((relations[worker.client] + elsewhere) * personal.grad)
            trainer.step()  # moves the personal parts too, but these are mixed anew
            pulls = self.pull * (relations[known] - target)
            relations[known] -= self.rate * trainer.factor * (slopes + pulls)
        _mix(pairs, rows, relations[known], elsewhere)
        # Only the personal model sees data: its running statistics are those of the core as well.
        stats = worker.problem.layout.columns("stats")
        stats.put(worker.model("model").row, stats.take(worker.model("personal").row))
        worker.notes["relations"] = relations


def _mix(pairs: Sequence[tuple[TrainedPart, TrainedPart]], rows: Tensor, relations: Tensor, elsewhere: Tensor) -> None:
    """Personal = Σ_j p_j · core_j: the peers' cores are `rows [n, P]`, the client's own comes last."""
    for core, personal in pairs:
        others = relations[:-1] @ rows[:, core.span[0] : core.span[1]]
        personal.row.copy_(others + (relations[-1] + elsewhere) * core.row)


@dataclass(frozen=True)
class Relations:
    """The measurement: a client's relations after training, `[K]`."""

    name: ClassVar[str] = "relations"

    def __call__(self, worker: ClientView) -> Tensor:
        """As the step rule left them."""
        return worker.notes["relations"]


@dataclass(frozen=True)
class APPLE(Method):
    """Adapt to adaptation: learning personalization for cross-silo federated learning (Luo and Wu, 2022).

    Client k holds a core model c_k and relations p_k; its personal model is w_k = Σ_j p_kj c_j. With g the gradient
    of CE at w_k, on each batch c_k ← c_k − η p_kk g and p_kj ← p_kj − η_p(⟨g, c_j⟩ + λ(r) μ (p_kj − n_j/n)),
    λ(r) = (cos(πr/L) + 1)/2 for rounds r = 0, 1, … below L = `horizon` · T, then 0. The server passes cores on.

    p_k starts at n_j/n, is not normalised, may become negative and never leaves its client, so the mix is not
    among the recorded ones. Every client downloads the core of everybody who has taken part (the paper's bound on
    downloads is left out); before somebody has, its weight goes to the client's own core and is not trained.
    Running statistics are never mixed.

    Tested: w_k as the client's last training left it, at both moments. In the first round all cores are equal and
    there is nothing to download.

    >>> APPLE(mu=0.5)
    APPLE(mu=0.5, lr_relations=0.001, horizon=0.2)
    """

    mu: float = 0.1
    lr_relations: float = 1e-3
    horizon: float = 0.2

    paper: ClassVar[str] = "Luo and Wu, IJCAI 2022"
    extra_cost: ClassVar[str] = "downloads everybody's model; two passes over K rows a batch"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"
    tested: ClassVar[str] = "personal"

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"mu = {self.mu}: must not be negative")
        require(self.lr_relations >= 0, f"lr_relations = {self.lr_relations}: must not be negative")
        require(0 <= self.horizon <= 1, f"horizon = {self.horizon}: must lie in [0, 1]")

    def check(self, federation: Federation) -> None:
        """A number for every pair of clients must fit into memory."""
        require_pairs("apple", federation.clients, "relations", each=8)

    def init(self, federation: Federation) -> None:
        """Personal models besides the cores; everybody's share of the data, from which relations start."""
        federation.add_slot("personal", federation.layout.everything, held_by="client")
        federation.add_value("shares", federation.sizes / federation.sizes.sum(), told=True)
        nobody = torch.zeros(federation.clients, federation.clients)
        federation.add_value("relations", nobody, per_client=True, held_by="client")

    def pull(self, federation: Federation) -> float:
        """λ(r)μ: how strongly relations are held near the data sizes."""
        elapsed, horizon = federation.round - 1, self.horizon_rounds(federation)
        return self.mu * (math.cos(math.pi * elapsed / horizon) + 1) / 2 if elapsed < horizon else 0.0

    def horizon_rounds(self, federation: Federation) -> float:
        """For how many rounds relations are held near the data sizes."""
        return self.horizon * federation.rounds

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """The horizon in rounds."""
        return {"horizon_rounds": self.horizon_rounds(federation)}

    def recipe(self, federation: Federation) -> Recipe:
        """Core and personal model in the same steps; the client keeps its relations."""
        rule = FollowingSteps(self.lr_relations, self.pull(federation))
        return (Phase(slot="personal", also={"model": "all"}, rule=rule), Measure(Relations(), keep=True))

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """The core model."""
        return {"model": "all"}

    def deliver(self, federation: Federation, clients: Tensor) -> Iterable[Mix | Peers]:
        """The cores of everybody else who has one to show."""
        shown = federation.everyone[federation.taken_part].tolist()
        yield Peers(lambda client: [peer for peer in shown if peer != client])

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Nothing is mixed here; whoever joined changes the shares."""
        sizes = uploads.federation.sizes
        shares = sizes / sizes.sum()
        if not torch.equal(shares, uploads.federation.values["shares"]):
            yield Put("shares", shares)
