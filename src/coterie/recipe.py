"""How a row is trained locally: phases, each with the groups it trains, its rates and its loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from coterie.errors import require, unknown

if TYPE_CHECKING:
    from coterie.local import Batch, Trainer

# A loss term gives one value per sample of the batch, [B]; the engine takes the mean.
Term = Callable[["Batch"], Tensor]


class RowTerm(Protocol):
    """A part of the objective that depends on the row alone, given by its gradient."""

    def gradient(self, row: Tensor, anchor: Callable[[str], Tensor]) -> Tensor:
        """The gradient `[n]` at the trained columns `row [n]`; `anchor(slot)` gives the same columns elsewhere."""
        ...


StepRule = Callable[["Trainer", Iterator["Batch"]], None]


def cross_entropy(batch: Batch) -> Tensor:
    """The classification loss: `[B]`."""
    return torch.nn.functional.cross_entropy(batch.logits, batch.labels, reduction="none")


def plain_steps(trainer: Trainer, batches: Iterator[Batch]) -> None:
    """One optimiser step a batch."""
    for batch in batches:
        trainer.gradient(batch)
        trainer.step()


@dataclass(frozen=True)
class Phase:
    """A stretch of local training.

    `train` names the groups that move, `slot` the row they belong to; `also` names groups of other slots
    that move along in the same steps. `epochs` and `lr` default to the
    run's; `rates` gives groups a rate of their own. If only (part of) the classifier is trained, the
    extractor's features are computed once, in evaluation mode, and every epoch runs on them. Phases of
    different `stream` (by default their position in the recipe) see the samples in different orders. Without
    `terms`, the gradient is that of `row_terms` alone.

    >>> Phase(train="classifier", epochs=1).slot
    'model'
    """

    train: str = "all"
    slot: str = "model"
    also: Mapping[str, str] = field(default_factory=dict)
    epochs: int | None = None
    lr: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    terms: tuple[Term, ...] = (cross_entropy,)
    row_terms: tuple[RowTerm, ...] = ()
    rule: StepRule = plain_steps
    stream: int | None = None

    def __post_init__(self) -> None:
        require(
            bool(self.terms or self.row_terms),
            f"a phase that trains '{self.train}' of slot '{self.slot}' has no objective; give it terms or row_terms",
        )


Recipe = tuple[Phase, ...]


def trained_slots(recipe: Recipe) -> tuple[str, ...]:
    """The slots whose rows a recipe trains.

    >>> trained_slots((Phase(also={"teacher": "classifier"}), Phase()))
    ('model', 'teacher')
    """
    return tuple(dict.fromkeys(slot for phase in recipe for slot in (phase.slot, *phase.also)))


SCHEDULES = ("constant", "exponential", "cosine")


@dataclass(frozen=True)
class Training:
    """The run's settings of local training, which phases may override.

    >>> Training(lr=0.1, schedule="exponential", decay=0.5).rate(round=3, rounds=10)
    0.025
    """

    epochs: int = 5
    batch: int = 32
    lr: float = 0.01
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0
    schedule: str = "constant"
    decay: float = 1.0

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"epochs = {self.epochs}: must be at least 1")
        require(self.batch >= 1, f"batch = {self.batch}: must be at least 1")
        require(self.lr > 0, f"lr = {self.lr}: must be greater than 0")
        require(0 <= self.momentum < 1, f"momentum = {self.momentum}: must lie in [0, 1)")
        require(self.weight_decay >= 0, f"weight_decay = {self.weight_decay}: must not be negative")
        require(self.clip >= 0, f"clip = {self.clip}: must not be negative (0: no clipping)")
        require(0 < self.decay <= 1, f"decay = {self.decay}: must lie in (0, 1]")
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        if self.optimizer not in OPTIMISERS:
            raise unknown("optimizer", self.optimizer, OPTIMISERS)
        require(
            self.momentum == 0 or self.optimizer in ("sgd", "rmsprop"),
            f"momentum = {self.momentum}: optimizer '{self.optimizer}' takes none (sgd and rmsprop do)",
        )
        require(
            self.weight_decay == 0 or self.optimizer != "rprop",
            f"weight_decay = {self.weight_decay}: optimizer 'rprop' takes none",
        )

    def factor(self, round: int, rounds: int) -> float:
        """By how much the schedule scales every rate in a round, counted from 1."""
        if self.schedule == "exponential":
            return float(self.decay ** (round - 1))
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))
        return 1.0

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round, counted from 1."""
        return self.lr * self.factor(round, rounds)


# Optimisers that update each element on its own, so that a row may be trained as one flat tensor.
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
}
