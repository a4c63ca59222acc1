"""Quantity skew: clients that differ in how much they hold, and in nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.partition.dirichlet import batch_of, log_gamma_draws, proportional
from coterie.partition.least import first_accepted, least_samples, repair, repaired
from coterie.partition.rule import (
    Rule,
    Shares,
    cut,
    require_enough_samples,
    require_skew,
)
from coterie.partition.split import Indices
from coterie.rng import numpy_stream


@dataclass(frozen=True)
class Quantity(Rule):
    """Draw the clients' sizes from Dirichlet(alpha) and deal out shuffled samples: unequal sizes, equal kinds.

    The quantity skew of Li et al., "Federated learning on non-IID data silos" (ICDE 2022). The official training and
    test sets are merged. Draws are repeated until every client has `least` samples; after 1,000 rejected draws the one
    with the largest minimum is kept and random samples move from the largest clients to those in want, which
    `Partition.notes` tells. `least=None` stands for 40, or half the mean client size N/K where that is smaller.

    >>> import torch
    >>> data = Dataset("toy", torch.zeros(600, 1), torch.arange(600) % 3, classes=3)
    >>> part = Quantity(clients=4, alpha=0.5, least=20)(data, seed=0)
    >>> sizes = part.sizes + [len(test) for test in part.test]
    >>> int(sizes.sum()), bool(sizes.min() >= 20), bool(sizes.max() > 2 * sizes.min())
    (600, True, True)
    """

    clients: int = 20
    alpha: float = 0.5
    least: int | None = None

    name: ClassVar[str] = "quantity"

    def __post_init__(self) -> None:
        require_skew(self.clients, self.alpha, self.least)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Draw the sizes, shuffle everything and cut it; repair what no draw could satisfy."""
        require_enough_samples(self.clients, dataset)
        least, notes = least_samples(self.least, self.clients, len(dataset))
        sizes_stream = numpy_stream(seed, "partition:quantity")

        def draw(draws: int) -> Indices:
            logs = log_gamma_draws(sizes_stream, self.alpha, (draws, self.clients))
            return proportional(logs, len(dataset))[:, None]

        counts, draws = first_accepted(draw, least, batch_of(self.clients))
        stream = numpy_stream(seed, "partition:quantity:shuffle")
        pools = cut(stream.permutation(len(dataset)).astype(np.int64), counts[0])
        if counts.min() < least:
            notes.append(repaired(draws, repair(pools, least, stream)))
        return Shares(pools=pools, notes=tuple(notes), resolved={"least": least})
