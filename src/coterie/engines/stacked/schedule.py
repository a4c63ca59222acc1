"""Which samples every client of a stack takes in every step: the serial engine's batches, padded to one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """The steps of clients that train together; those with most steps come first."""

    positions: Tensor  # [S, m, B], among the client's own samples
    shares: Tensor  # [S, m, B], what a sample counts in its batch's mean: 0 where padded
    active: list[int]  # [S], how many clients take each step
    early: list[int]  # [S], how many of these are not in their last epoch yet: the first ones

    @classmethod
    def of(cls, sizes: Sequence[int], streams: Sequence[torch.Generator], epochs: int, batch: int) -> Schedule:
        """Draw every epoch's order from each client's stream.

        >>> schedule = Schedule.of([3, 2], [torch.Generator(), torch.Generator()], epochs=1, batch=2)
        >>> schedule.active, schedule.shares[:, 0].tolist()
        ([2, 1], [[0.5, 0.5], [1.0, 0.0]])
        >>> Schedule.of([3, 2], [torch.Generator(), torch.Generator()], epochs=2, batch=2).early
        [2, 1, 0, 0]
        """
        width = min(batch, max(sizes))
        counts = torch.tensor(sizes)
        a_epoch = (counts + width - 1) // width  # [m] steps
        longest = int(a_epoch.max())
        drawn = torch.zeros(len(sizes), epochs, longest * width, dtype=torch.int64)
        for orders, size, stream in zip(drawn.unbind(), sizes, streams, strict=True):
            for order in orders.unbind():
                torch.randperm(size, generator=stream, out=order[:size])
        step = torch.arange(epochs * longest)[:, None]
        epoch, number = step // a_epoch, step % a_epoch  # [S, m]
        left = torch.where(epoch < epochs, counts - number * width, 0).clamp(0, width)
        shares = (torch.arange(width) < left[..., None]) / left.clamp(min=1)[..., None]
        place = epoch.clamp(max=epochs - 1) * longest + number
        positions = drawn.view(len(sizes), -1, width)[torch.arange(len(sizes)), place]
        return cls(positions, shares, (left > 0).sum(1).tolist(), (epoch < epochs - 1).sum(1).tolist())
