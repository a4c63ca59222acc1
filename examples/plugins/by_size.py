"""A sampler: so many clients in each round, drawn without replacement; who holds more samples is asked more often.

$ coterie run fedavg --sampler ./examples/plugins/by_size.py:BySize:3
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.errors import require
from coterie.rng import numpy_stream
from coterie.rounds.sampler import Sampler


@dataclass(frozen=True)
class BySize(Sampler):
    """Each draw takes one of those that are left, with a probability in proportion to its training samples."""

    clients: int = 5

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"clients = {self.clients}: must be at least 1")

    def count(self, clients: int) -> int:
        """That number, or all."""
        return min(self.clients, clients)

    def asked(self, federation: Federation, there: Tensor, round: int) -> Tensor:
        """Drawn in the order of keys, so that relabelled clients are asked in the same rounds."""
        by_key = there[torch.argsort(federation.keys[there])]
        sizes = federation.sizes[by_key].clamp(min=1).double().numpy()
        stream = numpy_stream(federation.seed, "by size", round)
        drawn = stream.choice(len(by_key), self.count(len(by_key)), replace=False, p=sizes / sizes.sum())
        return by_key[torch.from_numpy(drawn)].sort().values
