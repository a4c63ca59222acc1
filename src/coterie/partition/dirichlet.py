"""The practical label skew: each class is dealt out over the clients in Dirichlet proportions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coterie.data.dataset import Dataset
from coterie.errors import require
from coterie.partition.rule import (
    Rule,
    Shares,
    by_class,
    cut,
    require_alpha,
    require_count,
    require_enough_samples,
)
from coterie.partition.split import Indices
from coterie.rng import numpy_stream

DRAWS = 1000
USUAL_LEAST = 40
NUMBERS_PER_BATCH = 200_000


def log_gamma_draws(stream: np.random.Generator, alpha: float, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Logarithms of Gamma(alpha) variables; normalised along an axis they are Dirichlet proportions.

    In logarithms nothing underflows, however small alpha is: proportions can be renormalised over any
    subset of the clients, and the result is the exact Dirichlet distribution on that subset. The identity
    is Gamma(α) = Gamma(α + 1) · U^(1/α).
    """
    return np.log(stream.standard_gamma(alpha + 1, shape)) - stream.standard_exponential(shape) / alpha


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
        require_count("clients", self.clients)
        require_alpha(self.alpha)
        if self.least is not None:
            require_count("least", self.least)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Draw the counts, shuffle each class and cut it; repair what no draw could satisfy."""
        require_enough_samples(self.clients, dataset)
        least = self._least(len(dataset))
        classes = self.groups(dataset)
        class_sizes = np.array([len(samples) for samples in classes])
        counts, draws = self._draw(class_sizes, least, numpy_stream(seed, f"partition:{self.name}"))
        stream = numpy_stream(seed, f"partition:{self.name}:shuffle")
        slices = [cut(stream.permutation(samples), row) for samples, row in zip(classes, counts, strict=True)]
        pools = [np.concatenate(pieces) for pieces in zip(*slices, strict=True)]
        notes = []
        if self.least is None and least < USUAL_LEAST:
            notes.append(f"least = {least}: half the mean client size, which is below {USUAL_LEAST}")
        if counts.sum(0).min() < least:
            moved = _repair(pools, least, stream)
            notes.append(f"repaired after {draws} draws: moved {moved} samples")
        return Shares(pools=pools, notes=tuple(notes), resolved={"least": least})

    def groups(self, dataset: Dataset) -> list[Indices]:
        """What is dealt out, one after the other: the samples of every class."""
        return by_class(dataset)

    def _least(self, samples: int) -> int:
        mean = samples // self.clients
        if self.least is None:
            # Two samples make a training and a test sample, so ask for them wherever they exist.
            return min(USUAL_LEAST, max(mean // 2, min(2, mean)))
        require(
            self.least <= mean,
            f"least = {self.least}: must be at most {mean}: {self.clients} clients share {samples} samples",
        )
        return self.least

    def _draw(self, class_sizes: Indices, least: int, stream: np.random.Generator) -> tuple[Indices, int]:
        """The first draw of counts `[C, K]` that gives everybody `least`, else the best; draws made."""
        batch = int(np.clip(NUMBERS_PER_BATCH // (len(class_sizes) * self.clients), 1, 100))
        best, best_minimum, made = np.empty(0, np.int64), -1, 0
        while made < DRAWS:
            counts = self._counts(class_sizes, min(batch, DRAWS - made), stream)
            minima = counts.sum(1).min(1)
            accepted = np.flatnonzero(minima >= least)
            if len(accepted):
                return counts[accepted[0]], made + int(accepted[0]) + 1
            if minima.max() > best_minimum:
                best, best_minimum = counts[minima.argmax()], int(minima.max())
            made += len(counts)
        return best, made

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
            weights = np.where(closed & self.cap, -np.inf, logs[:, c])
            ends = np.cumsum(np.exp(weights - weights.max(1, keepdims=True)), axis=1)
            # Divided by its own last entry the sum ends at exactly 1: rounding gives closed clients nothing.
            cuts = (ends / ends[:, -1:] * size).astype(np.int64)
            counts[:, c] = np.diff(cuts, prepend=0, axis=1)
            held += counts[:, c]
        return counts


def _repair(pools: list[Indices], least: int, stream: np.random.Generator) -> int:
    """Move random samples from the client that is then largest until everybody has `least`; how many."""
    sizes = np.array([len(pool) for pool in pools])
    shuffled: dict[int, list[int]] = {}
    received: dict[int, list[int]] = {}
    for client in np.flatnonzero(sizes < least).tolist():
        received[client] = []
        while sizes[client] < least:
            donor = int(sizes.argmax())
            if donor not in shuffled:
                shuffled[donor] = stream.permutation(pools[donor]).tolist()
            received[client].append(shuffled[donor].pop())
            sizes[donor] -= 1
            sizes[client] += 1
    for donor, rest in shuffled.items():
        pools[donor] = np.array(rest, dtype=np.int64)
    for client, samples in received.items():
        pools[client] = np.concatenate([pools[client], np.array(samples, dtype=np.int64)])
    return sum(map(len, received.values()))
