"""Which samples every client of a stack takes in every step: the serial engine's batches, padded to one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from coterie.client.scores import TrainingScores

# Outputs are scored many at a time, which costs next to nothing, but no more numbers than this are kept for it.
MOST_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Schedule:
    """The steps of clients that train together; those with most steps come first."""

    positions: Tensor  # [S, m, B], among the client's own samples
    shares: Tensor  # [S, m, B], what a sample counts in its batch's mean: 0 where padded
    active: list[int]  # [S], how many clients take each step
    early: list[int]  # [S], how many of these are not in their last epoch yet: the first ones
    counts: list[list[int]]  # [S, m], how many samples every client takes in every step

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        streams: Sequence[torch.Generator],
        epochs: int,
        batch: int,
        skip_single: bool = False,
    ) -> Schedule:
        """Draw every epoch's order from each client's stream; batches of a single sample may be passed over.

        >>> schedule = Schedule.of([3, 2], [torch.Generator(), torch.Generator()], epochs=1, batch=2)
        >>> schedule.active, schedule.shares[:, 0].tolist()
        ([2, 1], [[0.5, 0.5], [1.0, 0.0]])
        >>> Schedule.of([3, 2], [torch.Generator(), torch.Generator()], epochs=2, batch=2).early
        [2, 1, 0, 0]
        >>> Schedule.of([3], [torch.Generator()], epochs=1, batch=2, skip_single=True).counts
        [[2]]
        """
        shape = _shape(tuple(sizes), epochs, batch, skip_single)
        drawn = torch.zeros(len(sizes), epochs, shape.longest, dtype=torch.int64)
        for orders, size, stream in zip(drawn.unbind(), sizes, streams, strict=True):
            for order in orders.unbind():
                torch.randperm(size, generator=stream, out=order[:size])
        width = shape.shares.shape[2]
        positions = drawn.view(len(sizes), -1, width)[torch.arange(len(sizes)), shape.places]
        return cls(positions, shape.shares, shape.active, shape.early, shape.counts)


@dataclass(frozen=True)
class _Shape:
    """All of a schedule that does not depend on what is drawn: where everybody takes part, each round's is the same."""

    longest: int  # the longest client's samples in an epoch, filled up to whole batches
    places: Tensor  # [S, m], which of a client's batches each step takes
    shares: Tensor  # [S, m, B]
    active: list[int]
    early: list[int]
    counts: list[list[int]]


@lru_cache(maxsize=4)
def _shape(sizes: tuple[int, ...], epochs: int, batch: int, skip_single: bool) -> _Shape:
    width = min(batch, max(sizes))
    counts = torch.tensor(sizes)
    steps = (counts + width - 1) // width
    longest = int(steps.max())
    single = counts % width == 1 if width > 1 else torch.ones_like(counts, dtype=torch.bool)
    a_epoch = steps - (single & skip_single).int() * (1 if width > 1 else steps)  # [m] steps
    step = torch.arange(epochs * int(a_epoch.max()))[:, None]
    some = a_epoch.clamp(min=1)
    epoch, number = torch.where(a_epoch > 0, step // some, epochs), step % some  # [S, m]
    left = torch.where(epoch < epochs, counts - number * width, 0).clamp(0, width)
    return _Shape(
        longest=longest * width,
        places=epoch.clamp(max=epochs - 1) * longest + number,
        shares=(torch.arange(width) < left[..., None]) / left.clamp(min=1)[..., None],
        active=(left > 0).sum(1).tolist(),
        early=(epoch < epochs - 1).sum(1).tolist(),
        counts=left.tolist(),
    )


class LastEpoch:
    """Keeps outputs step by step, which costs nothing, and scores those of many steps at once.

    Clients of different size are in their last epoch in different steps; in each, they are neighbours in the stack.
    """

    def __init__(self, schedule: Schedule, samples: Tensor, labels: Tensor, training: TrainingScores) -> None:
        self._schedule, self._samples, self._labels, self._training = schedule, samples, labels, training
        self._steps: list[int] = []
        self._outputs: list[Tensor] = []
        self._numbers = 0

    def take(self, step: int, outputs: Tensor) -> None:
        """Take what the models of the clients that are active in a step put out: `[k, B, C]`."""
        early = self._schedule.early[step]
        if early < len(outputs):
            self._steps.append(step)
            self._outputs.append(outputs[early:])
            self._numbers += outputs.numel()
            if self._numbers > MOST_NUMBERS:
                self.score()

    def score(self) -> None:
        """Score what was taken so far."""
        if not self._steps:
            return
        schedule, clients = self._schedule, self._samples.shape[1]
        # Who was in the last epoch in which step, in the order of the outputs: places in a list of all steps' clients.
        spans = [(step * clients, schedule.early[step], schedule.active[step]) for step in self._steps]
        places = np.concatenate([np.arange(first + early, first + active) for first, early, active in spans])
        chosen = torch.from_numpy(places)
        real = schedule.shares.flatten(0, 1).index_select(0, chosen).flatten() > 0  # what is not padding
        samples = self._samples.flatten(0, 1).index_select(0, chosen.to(self._samples.device)).flatten()
        outputs = torch.cat([one.flatten(0, 1) for one in self._outputs])
        owners = (places % clients).repeat(schedule.shares.shape[2])
        self._training.add(owners, outputs, self._labels[samples], real.numpy())
        self._steps, self._outputs, self._numbers = [], [], 0
