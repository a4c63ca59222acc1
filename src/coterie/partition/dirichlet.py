"""The practical label skew: each class is dealt out over the clients in Dirichlet proportions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coterie.data.dataset import Dataset
from coterie.partition.least import first_accepted, least_samples, repair, repaired
from coterie.partition.rule import (
    Rule,
    Shares,
    by_class,
    cut,
    require_enough_samples,
    require_skew,
)
from coterie.partition.split import Indices
from coterie.rng import numpy_stream

NUMBERS_PER_BATCH = 200_000


def log_gamma_draws(stream: np.random.Generator, alpha: float, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Logarithms of Gamma(alpha) variables; normalised along an axis they are Dirichlet proportions.

    In logarithms nothing underflows, however small alpha is: proportions can be renormalised over any
    subset of the clients, and the result is the exact Dirichlet distribution on that subset. The identity
    is Gamma(α) = Gamma(α + 1) · U^(1/α).
    """
    return np.log(stream.standard_gamma(alpha + 1, shape)) - stream.standard_exponential(shape) / alpha


def proportional(logs: npt.NDArray[np.float64], size: int) -> Indices:
    """So many samples dealt out in the proportions whose logarithms are given, many draws at once: `[draws, K]`.

    Clients of logarithm −∞ get nothing.

    >>> proportional(np.log([[1.0, 3.0, 4.0]]), 16).tolist(), proportional(np.array([[0.0, -np.inf]]), 5).tolist()
    ([[2, 6, 8]], [[5, 0]])
    """
    ends = np.cumsum(np.exp(logs - logs.max(1, keepdims=True)), axis=1)
    # Divided by its own last entry the sum ends at exactly 1: rounding gives clients without a share nothing.
    cuts: Indices = (ends / ends[:, -1:] * size).astype(np.int64)
    return np.diff(cuts, prepend=0, axis=1)


def batch_of(numbers: int) -> int:
    """How many draws of so many numbers are made at once."""
    return int(np.clip(NUMBERS_PER_BATCH // numbers, 1, 100))


@dataclass(frozen=True)
class Dirichlet(Rule):
    """Deal out each class over the clients in Dirichlet(alpha) proportions: small alpha, few classes each.

    The official training and test sets are merged. With `cap`, a client that already holds N/K samples
    takes no further class. Draws are repeated until every client has `least` samples; after 1,000 rejected
    draws the one with the largest minimum is kept and random samples move from the largest clients to those
    in want, which `Partition.notes` tells. `least=None` stands for 40, or half the mean client size N/K
    where that is smaller; a number that is given is taken at its word.

    >>> import torch
    >>> data = Dataset("toy", torch.zeros(600, 1), torch.arange(600) % 3, classes=3)
    >>> part = Dirichlet(clients=5, alpha=0.1, least=20)(data, seed=0)
    >>> part.clients, sum(map(len, part.train + part.test))
    (5, 600)
    """

    clients: int = 20
    alpha: float = 0.1
    cap: bool = True
    least: int | None = None

    name: ClassVar[str] = "dirichlet"
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_skew(self.clients, self.alpha, self.least)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Draw the counts, shuffle each class and cut it; repair what no draw could satisfy."""
        require_enough_samples(self.clients, dataset)
        least, notes = least_samples(self.least, self.clients, len(dataset))
        classes = self.groups(dataset)
        class_sizes = np.array([len(samples) for samples in classes])
        draw = partial(self._counts, class_sizes, stream=numpy_stream(seed, f"partition:{self.name}"))
        counts, draws = first_accepted(draw, least, batch_of(len(class_sizes) * self.clients))
        stream = numpy_stream(seed, f"partition:{self.name}:shuffle")
        slices = [cut(stream.permutation(samples), row) for samples, row in zip(classes, counts, strict=True)]
        pools = [np.concatenate(pieces) for pieces in zip(*slices, strict=True)]
        if counts.sum(0).min() < least:
            notes.append(repaired(draws, repair(pools, least, stream)))
        return Shares(pools=pools, notes=tuple(notes), resolved={"least": least})

    def groups(self, dataset: Dataset) -> list[Indices]:
        """What is dealt out, one after the other: the samples of every class."""
        return by_class(dataset)

    def _counts(self, class_sizes: Indices, draws: int, stream: np.random.Generator) -> Indices:
        """Samples of each class for each client, many independent draws at once: `[draws, C, K]`."""
        logs = log_gamma_draws(stream, self.alpha, (draws, len(class_sizes), self.clients))
        counts = np.zeros(logs.shape, dtype=np.int64)
        held = np.zeros((draws, self.clients), dtype=np.int64)
        for c, size in enumerate(class_sizes):
            if size == 0:
                continue
            # Before the last sample is dealt out somebody holds less than the mean, so one client is open.
            closed = held * self.clients >= class_sizes.sum()
            counts[:, c] = proportional(np.where(closed & self.cap, -np.inf, logs[:, c]), size)
            held += counts[:, c]
        return counts
