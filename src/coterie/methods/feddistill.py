"""FedDistill: clients share what they answer to each class, and no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from coterie.client.measures import mean_by_class, mean_of_owners
from coterie.client.recipe import Measure, Phase, Recipe
from coterie.client.terms import task_loss
from coterie.client.views import BatchView, ClientView
from coterie.core.exchange import Action, Put, Uploads
from coterie.core.federation import Federation
from coterie.core.training import StatsPolicy
from coterie.errors import require
from coterie.methods.base import Method, require_classes


@dataclass(frozen=True)
class ClassLogits:
    """The mean logits of each class in the client's training data, NaN for classes that it does not have: `[C, C]`."""

    name: ClassVar[str] = "class_logits"
    of_classes: ClassVar[bool] = True

    def __call__(self, worker: ClientView) -> Tensor:
        """Measure with the trained model, in evaluation mode."""
        samples = worker.problem.train[worker.client]
        with torch.no_grad():
            logits = worker.model("model").head(worker.train_features())
        return mean_by_class(logits, worker.problem.labels[samples], worker.federation.classes)


@dataclass(frozen=True)
class ClassTeacher:
    """weight · CE(softmax(global logits of y), softmax(own logits)); zero for classes without global logits (NaN)."""

    weight: float

    def __call__(self, batch: BatchView) -> Tensor:
        """The term for every sample: `[B]`. KL differs by a constant and has the same gradient."""
        taught = batch.value("class_logits")[batch.labels]
        known = ~taught.isnan().any(1)
        loss = -(softmax(taught.nan_to_num(), 1) * log_softmax(batch.logits, 1)).sum(1)
        return self.weight * torch.where(known, loss, 0.0)


@dataclass(frozen=True)
class FedDistill(Method):
    """Communication-efficient on-device machine learning: federated distillation (Jeong et al., 2018).

    Clients minimise CE(w_k) + λ·CE(softmax(ḡ_y), softmax(g(x))), ḡ_y the global logits of the sample's class. They
    send the mean logits of each of their classes, taken with the trained model over all their training data; ḡ_j
    is the mean of those over the clients of this round that have class j. A class that nobody has keeps its ḡ.

    The paper leaves a client's own logits out of the mean it is taught (`leave_out_own=True`); code in use does not.

    Tested: w_k, which never travels. In the first round nobody is taught. A client that sits a round out keeps w_k.
    λ = 0 is Local.

    >>> FedDistill(lam=0.5)
    FedDistill(lam=0.5, leave_out_own=False)
    """

    lam: float = 1.0
    leave_out_own: bool = False

    paper: ClassVar[str] = "Jeong et al., arXiv 1811.11479"
    extra_cost: ClassVar[str] = "one pass for class logits"
    shared: ClassVar[str] = ""
    stats: ClassVar[StatsPolicy] = "local"

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam = {self.lam}: must not be negative")

    def check(self, federation: Federation) -> None:
        """Logits are averaged by class."""
        require_classes(federation, "feddistill")

    def init(self, federation: Federation) -> None:
        """Nothing to teach yet."""
        each_client = (federation.clients,) if self.leave_out_own else ()
        nothing = torch.full((*each_client, federation.classes, federation.classes), torch.nan)
        federation.add_value("class_logits", nothing, per_client=self.leave_out_own)

    def recipe(self, federation: Federation) -> Recipe:
        """Everything trains, taught by the others' logits; then mean logits by class."""
        terms = (task_loss, ClassTeacher(self.lam)) if self.lam else (task_loss,)
        return (Phase(terms=terms), Measure(ClassLogits()))

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """No parameters."""
        return {}

    def exchange(self, uploads: Uploads) -> Iterable[Action]:
        """Mean logits, for everybody or for each client without its own."""
        logits, before = uploads.measured["class_logits"], uploads.federation.values["class_logits"]
        if not self.leave_out_own:
            yield Put("class_logits", mean_of_owners(logits, before))
            return
        has, said = ~logits.isnan(), logits.nan_to_num(nan=0.0).double()
        owners, sums = (part.sum(0).repeat(len(before), 1, 1) for part in (has, said))
        owners[uploads.cohort], sums[uploads.cohort] = owners[uploads.cohort] - has.long(), sums_of_others(said)
        yield Put("class_logits", torch.where(owners > 0, sums / owners, before.double()).to(before.dtype))


def sums_of_others(values: Tensor) -> Tensor:
    """For each row of `values [m, ...]` the sum of all others: `[m, ...]`.

    Nothing is taken away from a total again: a row that is far larger than all others would take them with it.

    >>> sums_of_others(torch.tensor([1.0, 1e30, 2.0]))
    tensor([1.0000e+30, 3.0000e+00, 1.0000e+30])
    """
    nothing = torch.zeros_like(values[:1])
    above = torch.cat([nothing, values.cumsum(0)[:-1]])
    below = torch.cat([values.flip(0).cumsum(0).flip(0)[1:], nothing])
    return above + below
