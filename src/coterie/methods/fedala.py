"""FedALA: each client learns, element by element, how much of the global model to take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.batch import Batch
from coterie.client.recipe import Keep, Phase, Recipe
from coterie.client.terms import task_loss
from coterie.client.views import Batches, ClientView, TrainerView
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.layout import Layout
from coterie.errors import require
from coterie.methods.fedavg import FedAvg
from coterie.rng import torch_stream

WINDOW = 10  # the passes whose losses tell whether the first aggregation has settled
MOST_PASSES = 100


@dataclass(frozen=True)
class AdaptiveAggregation:
    """The step rule of the aggregation: blends a client's last model with the one that it received."""

    rate: float
    share: float
    settled: float

    def __call__(self, trainer: TrainerView, _: Batches) -> None:
        """At most once a visit: a model that was trained since is tested as it is."""
        worker = trainer.worker
        rounds = int(worker.federation.rounds_taken[worker.client])
        if rounds == 0 or "blended" in worker.notes:
            return
        worker.notes["blended"] = torch.ones(1)
        worker.model("model").mode(False)
        model = [part for part in trainer.parts if part.slot == "model"]
        blends = [part.row for part in trainer.parts if part.slot == "blend"]
        last = [worker.received("previous")[slice(*part.span)] for part in model]
        received = [worker.received()[slice(*part.span)] for part in model]

        def blend() -> None:
            for part, before, new, share in zip(model, last, received, blends, strict=True):
                part.row.copy_(torch.lerp(before, new, share))

        blend()
        samples = self.samples(trainer)
        features = worker.features(samples) if trainer.head_only else None
        losses: list[float] = []
        for _pass in range(MOST_PASSES if rounds == 1 else 1):
            batch_losses: list[Tensor] = []
            for batch in batches_of(worker, samples, features):
                trainer.gradient(batch)
                batch_losses.append(task_loss(batch).detach().sum())
                for part, before, new, share in zip(model, last, received, blends, strict=True):
                    share.sub_(self.rate * part.grad * (new - before)).clamp_(0, 1)
                blend()
            losses.append(sum(torch.stack(batch_losses).cpu().tolist()) / len(samples))
            if len(losses) > WINDOW and torch.tensor(losses[-WINDOW:]).std(correction=0) < self.settled:
                break

    def samples(self, trainer: TrainerView) -> Tensor:
        """The share of the client's training samples on which the blend is learnt, in random order: `[n]`."""
        worker = trainer.worker
        samples_held = worker.problem.train[worker.client]
        stream = torch_stream(worker.seed, "aggregation", worker.federation.round, worker.key)
        chosen = torch.randperm(len(samples_held), generator=stream)[: math.ceil(self.share * len(samples_held) - 1e-9)]
        return samples_held[chosen.to(samples_held.device)]


def batches_of(worker: ClientView, samples: Tensor, features: Tensor | None) -> Iterator[Batch]:
    """The samples in order, with their features if these are at hand."""
    size = worker.problem.training.batch
    for start in range(0, len(samples), size):
        part = slice(start, start + size)
        yield Batch(worker, "model", samples[part], None if features is None else features[part])


@dataclass(frozen=True)
class FedALA(FedAvg):
    """FedALA: adaptive local aggregation for personalized federated learning (Zhang et al., 2023).

    Before it trains, a client replaces the received model w by ŵ: ŵ = w outside `adapted`, and
    ŵ = w_k + (w − w_k) ⊙ a in it, w_k its own model as its last training left it. a starts at 1, is learnt on
    `share` of the training samples by a ← clip(a − η_a ∇L(ŵ) ⊙ (w − w_k), 0, 1) a batch, and is kept. The server
    is FedAvg's.

    A client that has never trained takes w as it is; the first time after that, passes go on until the losses of
    the last 10 vary by less than `settled` (at least 11 passes, at most 100), later there is one pass. `adapted`
    is a group rather than a number of layers; the paper's default is the last layer. Batch norm runs in
    evaluation mode while a is learnt. η_a = 0 is FedAvg.

    Tested: ŵ at the moment `received` (every client aggregates with the newest w on a copy, also one that sat
    out), w_k at `trained`.

    >>> FedALA(share=0.5)
    FedALA(eta=1.0, share=0.5, adapted='classifier', settled=0.1)
    """

    eta: float = 1.0
    share: float = 0.8
    adapted: str = "classifier"
    settled: float = 0.1

    paper: ClassVar[str] = "Zhang et al., AAAI 2023"
    extra_cost: ClassVar[str] = "a pass over `share` of the data before training and before each test, 11 or more once"

    def __post_init__(self) -> None:
        require(self.eta >= 0, f"eta = {self.eta}: must not be negative")
        require(0 < self.share <= 1, f"share = {self.share}: must be greater than 0 and at most 1")
        require(self.settled > 0, f"settled = {self.settled}: must be greater than 0")

    def columns(self, layout: Layout) -> Columns:
        """The parameters that are blended."""
        return layout.columns(self.adapted) & layout.columns("parameters")

    def check(self, federation: Federation) -> None:
        """There must be something to blend."""
        require(bool(self.columns(federation.layout)), f"adapted = {self.adapted}: holds no parameters")

    def init(self, federation: Federation) -> None:
        """w_k and a of everybody."""
        columns = self.columns(federation.layout)
        federation.add_slot("previous", columns, held_by="client")
        federation.add_slot("blend", columns, fill=1.0, held_by="client")

    def tune(self, federation: Federation) -> Recipe:
        """The aggregation."""
        rule = AdaptiveAggregation(self.eta, self.share, self.settled)
        return (Phase(train=self.adapted, also={"blend": self.adapted}, rule=rule),)

    def recipe(self, federation: Federation) -> Recipe:
        """The aggregation, then plain training; what was trained is blended with the next model that is received."""
        columns = self.columns(federation.layout)
        return (*self.tune(federation), Phase(stream=0), Keep("previous", lambda rows: rows.after(group=columns)))
