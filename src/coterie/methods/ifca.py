"""IFCA: several global models; each client trains the one that fits its data best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.recipe import Measure, Phase, Recipe, plain_steps
from coterie.client.views import Batches, ClientView, TrainerView
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.errors import require, unknown
from coterie.maths.clusters import other_start
from coterie.methods.base import Method

AVERAGES = ("clients", "samples")


@dataclass(frozen=True)
class FromTheBest:
    """The step rule of IFCA: start from the centre of least training loss, then train it as usual, or only take it."""

    centres: tuple[str, ...]
    train: bool = True

    def __call__(self, trainer: TrainerView, batches: Batches) -> None:
        """At most once a visit: a centre that was trained since is tested as it is."""
        worker = trainer.worker
        if "centre" in worker.notes:
            return
        model, travelling = worker.model("model"), worker.problem.layout.columns("all")
        rows = [travelling.take(worker.received(slot)) for slot in self.centres]
        losses = []
        for row in rows:
            travelling.put(model.row, row)
            losses.append(worker.test(worker.problem.train[worker.client]).losses.double().mean())
        best = torch.stack(losses).nan_to_num(nan=torch.inf).argmin().cpu()
        worker.notes["centre"] = best
        travelling.put(model.row, rows[int(best)])
        model.mode(self.train)
        if self.train:
            plain_steps(trainer, batches)


@dataclass(frozen=True)
class Centre:
    """The measurement: which centre a client trained, counted from 0."""

    name: ClassVar[str] = "centre"

    def __call__(self, worker: ClientView) -> Tensor:
        """As the step rule chose."""
        return worker.notes["centre"]


@dataclass(frozen=True)
class IFCA(Method):
    """An efficient framework for clustered federated learning (Ghosh et al., 2020), with averaged models.

    Client k downloads all centres c_1 … c_m, takes the one whose mean loss over its training samples is least (the
    first of equals), trains it and sends it with its number. c_q becomes the mean of the models that were trained from
    it, unweighted as in the paper (`average="samples"`: by data size, so that one centre is FedAvg); one that nobody
    chose stays. Tested: the centre of least training loss, chosen anew among the newest; the trained one at `trained`.

    The first centre starts as the common initial model, the others as that with the elements of each tensor in another
    order, which is as good as another draw. Centres that start unluckily may never be chosen; the paper restarts, and
    so should you, with another seed. Running statistics are averaged with the rest.

    >>> IFCA(centres=4)
    IFCA(centres=4, average='clients')
    """

    centres: int = 2
    average: str = "clients"

    paper: ClassVar[str] = "Ghosh et al., NeurIPS 2020"
    extra_cost: ClassVar[str] = "a pass over the training data for each centre, before training and before each test"
    shared: ClassVar[str] = ""

    def __post_init__(self) -> None:
        require(self.centres >= 1, f"centres = {self.centres}: must be at least 1")
        if self.average not in AVERAGES:
            raise unknown("average", self.average, AVERAGES)

    @property
    def slots(self) -> tuple[str, ...]:
        """The centres' slots."""
        return tuple(f"centre{number}" for number in range(1, self.centres + 1))

    def init(self, federation: Federation) -> None:
        """The centres, each with a start of its own."""
        for number, slot in enumerate(self.slots):
            federation.add_slot(slot, shared="all", fill=other_start(federation, number) if number else None)

    def recipe(self, federation: Federation) -> Recipe:
        """The best centre, trained."""
        return (Phase(rule=FromTheBest(self.slots)), Measure(Centre()))

    def tune(self, federation: Federation) -> Recipe:
        """The best of the newest centres."""
        return (Phase(rule=FromTheBest(self.slots, train=False)),)

    def uploads(self, federation: Federation) -> dict[str, str]:
        """The trained centre."""
        return {"model": "all"}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Each centre the mean of those who trained it."""
        counts = uploads.sizes if self.average == "samples" else torch.ones_like(uploads.sizes)
        for number, slot in enumerate(self.slots):
            weights = counts * (uploads.measured["centre"] == number)
            if bool(weights.any()):
                yield Mix((weights / weights.sum())[None], target=slot)
