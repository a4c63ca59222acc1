"""FedAS: received extractors are aligned with the client's own; the mean weighs clients by Fisher information."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.batch import Batch
from coterie.client.measures import ClassMeans
from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.terms import PrototypeDistance
from coterie.client.views import ClientView
from coterie.core.columns import Columns
from coterie.core.exchange import Action, Mix, Uploads
from coterie.core.federation import Federation
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method, require_classes


@dataclass(frozen=True)
class FisherTrace:
    """The measurement: Σ_b ‖∇CE(b)‖² over batches b of the client's training data, a number.

    That is the trace of an empirical Fisher information of batches, over all parameters, in evaluation mode; batches
    are cut in the order of the samples.
    """

    name: ClassVar[str] = "fisher_trace"

    def __call__(self, worker: ClientView) -> Tensor:
        """Measure at the trained model."""
        problem, model = worker.problem, worker.model("model")
        model.train_only(problem.layout.trainable)
        parameters = model.parameters_in(problem.layout.trainable)
        assert parameters is not None
        trace = torch.zeros((), dtype=torch.float64, device=model.row.device)
        for part in problem.train[worker.client].split(problem.training.batch):
            batch = Batch(worker, "model", part)
            loss = problem.task.loss_mean(batch.logits, batch.labels)
            trace += torch.stack([one.double().square().sum() for one in torch.autograd.grad(loss, parameters)]).sum()
        model.train_only(Columns())
        return trace.cpu()


@dataclass(frozen=True)
class FedAS(Method):
    """FedAS: bridging inconsistency in personalized federated learning (Yang, Huang and Ye, 2024).

    Client k knows its prototypes P_c, the mean features of its training samples of class c under its own last
    extractor. It aligns the received θ on MSE(f_θ(x), P_y), `align_epochs` at rate `align_lr` (None: the run's; the
    authors' code has 1 and 0.01); then it trains θ and its classifier φ_k as usual, and measures T_k = Σ_batches ‖∇CE‖²
    at the result. Server: θ ← Σ_k T_k θ_k / ΣT. φ_k stays.

    A client that takes part for the first time has no extractor of its own to align with, and does not. The authors'
    code sums, over the classes of a batch, their mean squared errors; here all samples of a batch weigh alike.
    `align_epochs=0` leaves the alignment out. T_k grows with the number of batches, so that large clients weigh more,
    and with a bad fit. Batch-norm statistics stay local. Tested: the mean extractor with φ_k; at `trained` the client's
    own.

    >>> FedAS(align_epochs=1, align_lr=0.01)
    FedAS(align_epochs=1, align_lr=0.01)
    """

    align_epochs: int | None = None
    align_lr: float | None = None

    paper: ClassVar[str] = "Yang et al., CVPR 2024"
    extra_cost: ClassVar[str] = "`align_epochs` on the extractor; a pass for class means, one with gradients for T_k"
    shared: ClassVar[str] = "extractor"
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(
            self.align_epochs is None or self.align_epochs >= 0,
            f"align_epochs = {self.align_epochs}: must not be negative",
        )
        require(self.align_lr is None or self.align_lr > 0, f"align_lr = {self.align_lr}: must be greater than 0")

    def check(self, federation: Federation) -> None:
        """Features are averaged by class."""
        require_classes(federation, "fedas")

    def init(self, federation: Federation) -> None:
        """Nobody has prototypes yet."""
        nothing = torch.full((federation.clients, federation.classes, federation.feature_width), torch.nan)
        federation.add_value(ClassMeans.name, nothing, per_client=True, held_by="client")

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """How long the alignment takes, and at what rate."""
        run = federation.training
        epochs = run.epochs if self.align_epochs is None else self.align_epochs
        return {"align_epochs": epochs, "align_lr": self.align_lr or run.lr}

    def recipe(self, federation: Federation) -> Recipe:
        """Alignment, training, and what both of the next round need: prototypes for the client, T_k for the server."""
        term = PrototypeDistance(ClassMeans.name)
        align = Phase("extractor", epochs=self.align_epochs, lr=self.align_lr, terms=(term,), stream=1)
        aligned = (align,) if self.align_epochs != 0 and federation.round > 1 else ()
        return (*aligned, Phase(stream=0), Measure(ClassMeans(), keep=True), Measure(FisherTrace()))

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """The mean of extractors, weighted by T_k; a plain one if there is nothing to weigh by."""
        traces = uploads.measured[FisherTrace.name].double().clamp(min=0)
        traces = traces if bool(traces.sum() > 0) else torch.ones_like(traces)
        yield Mix((traces / traces.sum())[None], "extractor")
