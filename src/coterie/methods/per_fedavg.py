"""Per-FedAvg: a model that becomes good at any client within a few steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.client.recipe import Phase, Recipe
from coterie.client.views import Batches, BatchView, TrainerView
from coterie.core.federation import Federation
from coterie.devices import draw_again, drawn_state
from coterie.errors import require, unknown
from coterie.methods.fedavg import FedAvg

PIECES = {"FO": 2, "HF": 3}  # how many disjoint pieces of a batch a step of each variant needs


@dataclass(frozen=True)
class MetaSteps:
    """The step rule of Per-FedAvg, on disjoint pieces b₁, b₂ (and b₃) of each batch."""

    alpha: float
    variant: str
    delta: float

    def __call__(self, trainer: TrainerView, batches: Batches) -> None:
        """One step a batch; a batch too small to be cut is passed over."""
        alpha, place = self.alpha * trainer.factor, trainer.worker.model("model").row.device
        least = 2 if trainer.worker.problem.skip_single_samples else 1
        for batch in batches:
            pieces = batch.split(PIECES[self.variant])
            if len(pieces[-1].labels) < least:
                continue
            start = [part.row.clone() for part in trainer.parts]
            inner = gradient_at(trainer, pieces[0], start)
            direction = gradient_at(trainer, pieces[1], moved(start, inner, -alpha))
            if self.variant == "HF":
                # Both see the same dropout: its noise, divided by δ, would drown the difference.
                dropout = drawn_state(place)
                above = gradient_at(trainer, pieces[2], moved(start, direction, self.delta))
                draw_again(place, dropout)
                below = gradient_at(trainer, pieces[2], moved(start, direction, -self.delta))
                direction = moved(direction, moved(above, below, -1.0), -alpha / (2 * self.delta))
            for part, row, gradient in zip(trainer.parts, start, direction, strict=True):
                part.row.copy_(row)
                part.grad.copy_(gradient)
            trainer.step()


def moved(rows: list[Tensor], directions: list[Tensor], length: float) -> list[Tensor]:
    """`rows + length · directions`, part by part."""
    return [row.add(direction, alpha=length) for row, direction in zip(rows, directions, strict=True)]


def gradient_at(trainer: TrainerView, batch: BatchView, rows: list[Tensor]) -> list[Tensor]:
    """The gradient on a batch if the trained parts were `rows`; the parts stay there."""
    for part, row in zip(trainer.parts, rows, strict=True):
        part.row.copy_(row)
    trainer.gradient(batch.under(batch.slot))
    return [part.grad.clone() for part in trainer.parts]


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """Personalized federated learning with theoretical guarantees: a meta-learning approach (Fallah et al., 2020).

    Clients minimise L(w − α∇L(w)), the loss after one step of their own. `variant="FO"` (first order):
    w ← w − β∇L(w − α∇L(w; b₁); b₂). `"HF"` adds the Hessian as a difference of gradients:
    g = ∇L(w − α∇L(w; b₁); b₂), w ← w − β(g − (α/2δ)[∇L(w + δg; b₃) − ∇L(w − δg; b₃)]). The server is FedAvg's,
    by data size: the paper's mean is uniform, but a comparison with FedAvg is then about the meta-learning alone.

    b₁, b₂ (and b₃) are disjoint: the halves (thirds) of each batch of the run, so that clients of any size train
    and an epoch is still one pass. α and β are the run's lr unless given (the paper takes α = 0.01, β = 0.001);
    the run's schedule scales both. Tested: the model after `tune_epochs` (None: the run's) of plain training at rate
    α at the client, at both moments; clients that sit out are tested with the newest global model, tuned likewise.

    >>> PerFedAvg(alpha=0.05)
    PerFedAvg(alpha=0.05, beta=None, variant='FO', delta=0.001, tune_epochs=None)
    """

    alpha: float | None = None
    beta: float | None = None
    variant: str = "FO"
    delta: float = 1e-3
    tune_epochs: int | None = None

    paper: ClassVar[str] = "Fallah et al., NeurIPS 2020"
    extra_cost: ClassVar[str] = "HF: a third more passes; training before each test"

    def __post_init__(self) -> None:
        require(self.alpha is None or self.alpha > 0, f"alpha = {self.alpha}: must be greater than 0")
        require(self.beta is None or self.beta > 0, f"beta = {self.beta}: must be greater than 0")
        require(self.delta > 0, f"delta = {self.delta}: must be greater than 0")
        require(
            self.tune_epochs is None or self.tune_epochs >= 0,
            f"tune_epochs = {self.tune_epochs}: must not be negative",
        )
        if self.variant not in PIECES:
            raise unknown("variant", self.variant, PIECES)

    def resolved(self, federation: Federation) -> Mapping[str, int | float]:
        """Both rates, which are the run's unless given, and how long clients tune."""
        run = federation.training
        epochs = run.epochs if self.tune_epochs is None else self.tune_epochs
        return {"alpha": self.alpha or run.lr, "beta": self.beta or run.lr, "tune_epochs": epochs}

    def recipe(self, federation: Federation) -> Recipe:
        """Meta-learning steps."""
        alpha = self.alpha or federation.training.lr
        return (Phase(lr=self.beta, rule=MetaSteps(alpha, self.variant, self.delta)),)

    def tune(self, federation: Federation) -> Recipe:
        """What the model was trained for: a little training at its client."""
        return () if self.tune_epochs == 0 else (Phase(epochs=self.tune_epochs, lr=self.alpha, stream=1),)
