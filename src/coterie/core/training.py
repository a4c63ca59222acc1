"""The settings of local training. Free of PyTorch: the command line's help is made from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from coterie.errors import require, unknown
from coterie.options import setting
from coterie.typed import TypedOptions

StatsPolicy = Literal["mean", "local"]
MemoryFormat = Literal["contiguous", "channels_last"]
MemoryChoice = Literal["auto", "contiguous", "channels_last"]
SCHEDULES = ("constant", "exponential", "cosine")
# Those that update each element on its own, so that a row may be trained as one flat tensor.
OPTIMISERS = (
    "sgd",
    "adam",
    "adamw",
    "adamax",
    "nadam",
    "radam",
    "adagrad",
    "adadelta",
    "rmsprop",
    "asgd",
    "rprop",
)


@dataclass(frozen=True, kw_only=True)
class Training(metaclass=TypedOptions):
    """The run's settings of local training, which phases may override.

    >>> Training(lr=0.1, schedule="exponential", decay=0.5).rate(round=3, rounds=10)
    0.025
    """

    epochs: int = setting(5, "Local epochs per round.", "training")
    batch: int = setting(32, "Batch size.", "training")
    lr: float = setting(0.01, "Learning rate.", "training")
    optimizer: str = setting("sgd", "Local optimiser: sgd, adam, adamw, rmsprop …", "training")
    momentum: float = setting(0.0, "Momentum (of sgd and rmsprop).", "training")
    weight_decay: float = setting(0.0, "Weight decay.", "training")
    clip: float = setting(0.0, "Clip gradients to this norm (0: never).", "training")
    schedule: str = setting("constant", "Learning rate over rounds: constant, exponential or cosine.", "training")
    decay: float = setting(1.0, "The exponential schedule's factor per round.", "training")

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

    @property
    def training(self) -> Training:
        """These settings alone, without what a class that extends them adds."""
        return Training(**{item.name: getattr(self, item.name) for item in fields(Training)})
