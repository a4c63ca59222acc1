"""FedSelect: each client keeps the elements that change most in its training, and shares all others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Keep, Measure, Phase, Recipe
from coterie.client.views import Batches, ClientView, TrainerView
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.mixing import uniform
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method


def whole(worker: ClientView) -> Tensor:
    """The client's mask over its whole row: `[P]`."""
    layout, mask = worker.problem.layout, worker.value("mask")
    row = mask.new_zeros(layout.width)
    layout.columns("all").put(row, mask)
    return row


@dataclass(frozen=True)
class MaskedSteps:
    """Steps of the elements that are the client's own, or of all others; whatever optimisers do, the rest stays."""

    own: bool

    def __call__(self, trainer: TrainerView, batches: Batches) -> None:
        """One step a batch."""
        mask = whole(trainer.worker)
        moves = [part.columns.take(mask) == self.own for part in trainer.parts]
        for batch in batches:
            trainer.gradient(batch)
            before = [part.row.clone() for part in trainer.parts]
            trainer.step()
            for part, free, row in zip(trainer.parts, moves, before, strict=True):
                part.row.copy_(torch.where(free, part.row, row))


@dataclass(frozen=True)
class Mask:
    """The measurement: which elements were the client's own in this round, `[|all|]` bool; it travels as bits."""

    name: ClassVar[str] = "own_elements"

    def __call__(self, worker: ClientView) -> Tensor:
        """As the round began."""
        return worker.value("mask").cpu()


@dataclass(frozen=True)
class NextMask:
    """The measurement: those, and of each weight tensor the share of the others that has changed most: `[|all|]`."""

    share: float
    limit: float

    name: ClassVar[str] = "mask"

    def __call__(self, worker: ClientView) -> Tensor:
        """Changes since the mask last grew; a tensor of which more than `limit` is the client's own stays as it is."""
        layout, mask = worker.problem.layout, whole(worker)
        change = (worker.model("model").row - worker.received("snapshot")).abs()
        for entry in layout.entries:
            own = mask[entry.start : entry.stop]  # a view
            if entry.is_buffer or len(entry.shape) < 2 or float(own.double().mean()) > self.limit:
                continue
            (others,) = torch.where(~own)
            count = len(others) - round((1 - self.share) * len(others))
            most = change[entry.start : entry.stop][others].sort(descending=True, stable=True).indices[:count]
            own[others[most]] = True
        return layout.columns("all").take(mask).cpu()


@dataclass(frozen=True)
class FedSelect(Method):
    """FedSelect: personalized federated learning with customized selection of parameters (Tamirisa et al., 2024).

    Client k has a mask m_k over the elements of its model, 1 where they are its own; none is in the beginning. In each
    of `alternations` turns it trains its own elements with all others held, then the others with its own held, each for
    the run's epochs. Server, element by element, over the clients of the round:

        u = Σ_k (1 − m_k) ⊙ w_k / Σ_k (1 − m_k),    w_k ← m_k ⊙ w_k + (1 − m_k) ⊙ u.

    In rounds every + 1, 2·every + 1, … each mask grows for the rounds that follow: of the elements of each weight
    tensor that are not the client's own, it takes the `share` that has changed most since it last grew, unless more
    than `limit` of the tensor is its own. Biases and norms stay shared.

    Batch-norm statistics stay local. With partial participation all of it is about the cohort. `share=0` is FedAvg with
    even weights among those who take part. The authors test at `trained`.

    >>> FedSelect(share=0.1)
    FedSelect(share=0.1, limit=0.8, every=3, alternations=1)
    """

    share: float = 0.25
    limit: float = 0.8
    every: int = 3
    alternations: int = 1

    paper: ClassVar[str] = "Tamirisa et al., CVPR 2024"
    extra_cost: ClassVar[str] = "the run's epochs `alternations` times, twice that once masks have grown; masks as bits"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, f"share = {self.share}: must lie in [0, 1]")
        require(0 <= self.limit <= 1, f"limit = {self.limit}: must lie in [0, 1]")
        require(self.every >= 1, f"every = {self.every}: must be at least 1")
        require(self.alternations >= 1, f"alternations = {self.alternations}: must be at least 1")

    def init(self, federation: Federation) -> None:
        """Empty masks, and what models were when they last grew."""
        nothing = torch.zeros(federation.clients, federation.layout.columns("all").size, dtype=torch.bool)
        federation.add_value("mask", nothing, per_client=True, held_by="client")
        federation.add_slot("snapshot", "all", held_by="client")

    def recipe(self, federation: Federation) -> Recipe:
        """Own elements and others in turns, own ones as soon as there can be some; in some rounds a larger mask."""
        phases: list[Phase] = []
        for turn in range(self.alternations):
            if federation.round > self.every + 1:
                phases += [
                    Phase(rule=MaskedSteps(True), stream=2 * turn + 1),
                    Phase(rule=MaskedSteps(False), stream=2 * turn),
                ]
            else:
                phases.append(Phase(stream=2 * turn))
        grown: Recipe = (
            Measure(NextMask(self.share, self.limit), keep=True),
            Keep("snapshot", lambda rows: rows.after()),
        )
        grows = federation.round > 1 and (federation.round - 1) % self.every == 0
        return (*phases, Measure(Mask()), *(grown if grows else ()))

    def uploads(self, federation: Federation) -> dict[str, str]:
        """The whole model (and the mask): the server makes each client's row."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Element by element, the mean of those who share it, for those who share it."""
        others = ~uploads.measured[Mask.name]
        yield Mix(uniform(len(others)), gate=others, source_gate=others)
