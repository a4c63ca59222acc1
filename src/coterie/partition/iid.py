"""The homogeneous case: every client draws from the same distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.partition.rule import Rule, Shares, require_count, require_enough_samples
from coterie.rng import numpy_stream


@dataclass(frozen=True)
class Iid(Rule):
    """Shuffle all samples and deal them out evenly: every client sees every class.

    The official training and test sets are merged; sizes differ by at most one.

    >>> import torch
    >>> data = Dataset("toy", torch.zeros(10, 1), torch.arange(10) % 2, classes=2)
    >>> part = Iid(clients=3)(data, seed=0)
    >>> [len(train) + len(test) for train, test in zip(part.train, part.test)]
    [4, 3, 3]
    """

    clients: int = 20

    name: ClassVar[str] = "iid"

    def __post_init__(self) -> None:
        require_count("clients", self.clients)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Deal out the shuffled samples."""
        require_enough_samples(self.clients, dataset)
        shuffled = numpy_stream(seed, "partition:iid").permutation(len(dataset))
        return Shares(pools=np.array_split(shuffled, self.clients))
