"""The settings of local training. Free of PyTorch: the command line's help is made from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from coterie.errors import require, unknown
from coterie.options import setting
from coterie.typed import TypedOptions

StatsPolicy = Literal["mean", "local"]
MemoryFormat = Literal["contiguous", "channels_last"]
MemoryChoice = Literal["auto", "contiguous", "channels_last"]
SCHEDULES = ("constant", "exponential", "cosine")
# Those that update each element on its own, so that a row may be trained as one flat tensor, and what each remembers
# from step to step, as PyTorch calls it; `sgd` does with momentum alone.
OPTIMISERS = {
    "sgd": ("velocity",),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "adamax": ("step", "exp_avg", "exp_inf"),
    "nadam": ("step", "mu_product", "exp_avg", "exp_avg_sq"),
    "radam": ("step", "exp_avg", "exp_avg_sq"),
    "adagrad": ("step", "sum"),
    "adadelta": ("step", "square_avg", "acc_delta"),
    "rmsprop": ("step", "square_avg", "momentum_buffer"),
    "asgd": ("step", "eta", "mu", "ax"),
    "rprop": ("step", "prev", "step_size"),
}


USUAL_PADDING = 4


def epoch_batches(size: int, batch: int, skip_single: bool = False) -> int:
    """How many batches an epoch of so many samples has; a single sample may be no batch.

    >>> epoch_batches(21, 10), epoch_batches(21, 10, skip_single=True), epoch_batches(1, 1, skip_single=True)
    (3, 2, 0)
    """
    whole, rest = divmod(size, batch)
    return whole * (batch > 1) + (rest > 1) if skip_single else whole + (rest > 0)


@dataclass(frozen=True, kw_only=True)
class Training(metaclass=TypedOptions):
    """The run's settings of local training, which phases may override.

    >>> Training(lr=0.1, schedule="exponential", decay=0.5).rate(round=3, rounds=10)
    0.025
    """

    epochs: int | float = setting(5, "Local epochs per round; 0.5 is half of the batches.", "training")
    steps: int = setting(
        0, "Local steps per round in place of epochs: so many batches.", "training", shown="as epochs say"
    )
    batch: int = setting(32, "Batch size.", "training")
    lr: float = setting(0.01, "Learning rate.", "training")
    optimizer: str = setting("sgd", "Local optimiser: sgd, adam, adamw, rmsprop …", "training")
    momentum: float = setting(0.0, "Momentum (of sgd and rmsprop).", "training")
    weight_decay: float = setting(0.0, "Weight decay.", "training")
    keep_optimizer: bool = setting(False, "Clients keep what the optimiser remembers from round to round.", "training")
    augment: str = setting(
        "",
        "Images are seen shifted and mirrored at random: crop:4, flip; joined by +.",
        "training",
        shown="as they are",
    )
    clip: float = setting(0.0, "Clip gradients to this norm (0: never).", "training")
    schedule: str = setting("constant", "Learning rate over rounds: constant, exponential or cosine.", "training")
    decay: float = setting(1.0, "The exponential schedule's factor per round.", "training")

    def __post_init__(self) -> None:
        require(self.epochs > 0, f"epochs = {self.epochs}: must be greater than 0")
        require(self.steps >= 0, f"steps = {self.steps}: must not be negative (0: as epochs say)")
        require(
            not self.steps or self.epochs == Training.epochs,
            f"epochs = {self.epochs}: steps = {self.steps} says how long clients train; leave one of the two out",
        )
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
        _ = self.views
        require(
            not self.keep_optimizer or bool(self.remembered),
            "keep_optimizer = True: optimizer 'sgd' without momentum remembers nothing; set momentum, or leave it out",
        )

    @cached_property
    def views(self) -> tuple[int, bool]:
        """By how many pixels images are shifted at most, and whether half of them are mirrored.

        >>> Training(augment="crop:2+flip").views, Training(augment="crop").views, Training().views
        ((2, True), (4, False), (0, False))
        """
        padding, flips, parts = 0, False, self.augment.split("+") if self.augment else []
        for part in parts:
            word, _, number = part.partition(":")
            known = (part == "flip" and not flips) or (word == "crop" and not padding)
            require(known, f"augment = '{self.augment}': must be crop:4 (so many pixels), flip, or crop:4+flip")
            flips |= part == "flip"
            if word == "crop":
                padding = int(number) if number.isdecimal() else 0 if ":" in part else USUAL_PADDING
                require(
                    0 < padding < 1000, f"augment = '{self.augment}': crop takes a number of pixels, such as crop:4"
                )
        return padding, flips

    def check_inputs(self, shape: Sequence[int]) -> None:
        """Refuse to augment what are no images, or too small ones."""
        padding, _ = self.views
        require(
            not self.augment or len(shape) == 3,
            f"augment = '{self.augment}': is for images [channels, height, width], but samples here have the shape "
            f"{list(shape)}; leave it out",
        )
        require(
            not padding or min(shape[1:]) > padding,
            f"augment = '{self.augment}': crops more than these images of shape {list(shape)} have; use fewer pixels",
        )

    @property
    def remembered(self) -> tuple[str, ...]:
        """What the optimiser remembers of each parameter from step to step.

        >>> Training(momentum=0.9).remembered, Training().remembered
        (('velocity',), ())
        """
        names = OPTIMISERS[self.optimizer]
        return tuple(name for name in names if self.momentum or name not in ("velocity", "momentum_buffer"))

    def steps_of(self, epochs: float | None, an_epoch: int) -> int:
        """How many batches a phase of so many `epochs` has (none: the run's steps or epochs), given those of an epoch.

        A part of a batch is a whole one: half an epoch of five batches has three.

        >>> half, twenty = Training(epochs=0.5), Training(steps=20)
        >>> half.steps_of(None, 5), twenty.steps_of(None, 5), twenty.steps_of(2, 5)
        (3, 20, 10)
        """
        if epochs is None and self.steps:
            return self.steps if an_epoch else 0
        # Rounded first: 0.1 · 30 is a little more than 3.
        return math.ceil(round((self.epochs if epochs is None else epochs) * an_epoch, 9))

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
