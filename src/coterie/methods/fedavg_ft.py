"""FedAvgFT: one model for everybody, which every client trains a little on its own data before it uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from coterie.client.recipe import Phase, Recipe
from coterie.core.federation import Federation
from coterie.errors import require
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg followed by each client's own training: fine-tuning, the baseline to beat (for one: Yu et al., 2020).

    Rounds are FedAvg's. Whenever a client is to use the model w that it received, it trains a copy of it, plainly,
    for `tune_epochs` at rate `tune_lr` (None: the run's; the run's schedule scales both) to ŵ_k, and predicts with
    w + `step` · (ŵ_k − w): all of the way at 1, none of it at 0, which is FedAvg. Batch-norm statistics go as far.
    Nothing of this travels. `step` is best chosen by validation: a part of the way is often ahead of all of it.

    Tested: that copy, at both moments. As received it begins with the newest w, also at clients that sat out the
    round. As trained it begins with what the client's training in the round ended with, and so has trained twice.
    A client whose copy is not finite is named and tested without it.

    >>> FedAvgFT(step=0.5)
    FedAvgFT(tune_epochs=None, tune_lr=None, step=0.5)
    """

    tune_epochs: int | None = None
    tune_lr: float | None = None
    step: float = 1.0

    paper: ClassVar[str] = "Yu et al., arXiv 2002.04758"
    extra_cost: ClassVar[str] = "training before each test"

    def __post_init__(self) -> None:
        require(
            self.tune_epochs is None or self.tune_epochs >= 0,
            f"tune_epochs = {self.tune_epochs}: must not be negative (0: no tuning)",
        )
        require(self.tune_lr is None or self.tune_lr > 0, f"tune_lr = {self.tune_lr}: must be greater than 0")
        require(0 <= self.step <= 1, f"step = {self.step}: must lie in [0, 1] (0: the model as received, 1: as tuned)")

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """How long clients train their copy, and at what rate."""
        run = federation.training
        return {
            "tune_epochs": run.epochs if self.tune_epochs is None else self.tune_epochs,
            "tune_lr": self.tune_lr or run.lr,
        }

    def tune(self, federation: Federation) -> Recipe:
        """A client's own training, of which it goes a part of the way."""
        if self.tune_epochs == 0 or self.step == 0:
            return ()
        return (Phase(epochs=self.tune_epochs, lr=self.tune_lr, stream=1, reach=self.step),)
