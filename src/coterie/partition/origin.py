"""Rules that train on the official training set and test on the official test set, alike in labels."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.errors import require
from coterie.partition.dirichlet import log_gamma_draws
from coterie.partition.partition import Indices
from coterie.partition.rule import Rule, Shares, by_class, require_alpha, require_count
from coterie.rng import numpy_stream

OWN_TEST_SHARE = 0.2


@dataclass(frozen=True)
class ByOrigin(Rule):
    """Abstract: each client draws its label distribution once and samples both official sets by it.

    Clients draw independently of each other and may share samples. Within a client and class no sample
    repeats unless the class is too small. A data set without an official test set is first split 80/20
    within each class, by the seed.
    """

    clients: int = 40
    train_samples: int = 500
    test_samples: int = 100

    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("clients", self.clients)
        require_count("train_samples", self.train_samples)
        require_count("test_samples", self.test_samples)

    @abstractmethod
    def class_sizes(self, classes: int, stream: np.random.Generator) -> tuple[Indices, Indices]:
        """One client's training and test counts of each class: two times `[classes]`."""

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Draw every client's class counts, then its samples."""
        train, test, notes = _origins(dataset, seed)
        # A class that one of the two sets lacks could not be trained and tested alike.
        both = [c for c in range(dataset.classes) if len(train[c]) and len(test[c])]
        require(
            len(both) >= 2,
            f"partition = {self.name}: data '{dataset.name}' has {len(both)} classes with both training and "
            "test samples; at least 2 are needed",
        )
        if len(both) < dataset.classes:
            notes.append(f"{dataset.classes - len(both)} classes without training or test samples are left out")
        pools, tests = [], []
        repeating = 0
        for client in range(self.clients):
            stream = numpy_stream(seed, f"partition:{self.name}", client=client)
            train_sizes, test_sizes = self.class_sizes(len(both), stream)
            pools.append(_sample([train[c] for c in both], train_sizes, stream))
            tests.append(_sample([test[c] for c in both], test_sizes, stream))
            repeating += len(np.unique(pools[-1])) < len(pools[-1]) or len(np.unique(tests[-1])) < len(tests[-1])
        if repeating:
            notes.append(f"{repeating} clients hold samples more than once: a class is smaller than their need")
        return Shares(pools=pools, tests=tests, notes=tuple(notes))


@dataclass(frozen=True)
class DirichletPerClient(ByOrigin):
    """Let each client draw its own class proportions from Dirichlet(alpha); test set alike.

    Alpha is the concentration per class. Of `n` samples, class j gets `int(n·q_j + 0.5)` within what is
    left, in class order; the last class takes the remainder.

    >>> import torch
    >>> data = Dataset("toy", torch.zeros(900, 1), torch.arange(900) % 3, classes=3, train_size=600)
    >>> part = DirichletPerClient(clients=2, train_samples=50, test_samples=10)(data, seed=0)
    >>> part.sizes.tolist(), [len(test) for test in part.test]
    ([50, 50], [10, 10])
    """

    alpha: float = 0.1

    name: ClassVar[str] = "dirichlet_per_client"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_alpha(self.alpha)

    def class_sizes(self, classes: int, stream: np.random.Generator) -> tuple[Indices, Indices]:
        """Both counts from one draw of the proportions."""
        logs = log_gamma_draws(stream, self.alpha, (classes,))
        weights = np.exp(logs - logs.max())
        shares = weights / weights.sum()
        return _apportioned(self.train_samples, shares), _apportioned(self.test_samples, shares)


@dataclass(frozen=True)
class TwoClass(ByOrigin):
    """Let each client draw two classes, with equally many samples of both; test set alike.

    >>> import torch
    >>> data = Dataset("toy", torch.zeros(900, 1), torch.arange(900) % 3, classes=3, train_size=600)
    >>> part = TwoClass(clients=1, train_samples=50, test_samples=10)(data, seed=0)
    >>> sorted(part.class_counts(data)[0].tolist()), sorted(part.class_counts(data, "test")[0].tolist())
    ([0, 25, 25], [0, 5, 5])
    """

    name: ClassVar[str] = "two_class"

    def class_sizes(self, classes: int, stream: np.random.Generator) -> tuple[Indices, Indices]:
        """Half of the samples for each of two different classes; an odd one goes to the second."""
        pair = stream.choice(classes, 2, replace=False)
        train, test = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
        train[pair] = self.train_samples // 2, self.train_samples - self.train_samples // 2
        test[pair] = self.test_samples // 2, self.test_samples - self.test_samples // 2
        return train, test


def _apportioned(total: int, shares: np.ndarray) -> Indices:
    counts = np.zeros(len(shares), np.int64)
    left = total
    for c, share in enumerate(shares[:-1]):
        counts[c] = min(int(total * share + 0.5), left)
        left -= counts[c]
    counts[-1] = left
    return counts


def _sample(classes: list[Indices], sizes: Indices, stream: np.random.Generator) -> Indices:
    """So many samples of each class; in a class that is too small every sample is used before any repeats."""
    drawn = []
    for samples, size in zip(classes, sizes.tolist(), strict=True):
        rounds = -(-size // len(samples))
        drawn.append(
            np.concatenate([np.empty(0, np.int64), *(stream.permutation(samples) for _ in range(rounds))])[:size]
        )
    return np.concatenate(drawn)


def _origins(dataset: Dataset, seed: int) -> tuple[list[Indices], list[Indices], list[str]]:
    """The official training and test samples of each class, or an own split where there is no test set."""
    if dataset.train_size < len(dataset):
        return by_class(dataset, 0, dataset.train_size), by_class(dataset, dataset.train_size), []
    stream = numpy_stream(seed, "partition:origin")
    train, test = [], []
    for samples in by_class(dataset):
        shuffled = stream.permutation(samples)
        size = max(1, round(OWN_TEST_SHARE * len(samples)))
        test.append(shuffled[:size])
        train.append(shuffled[size:])
    return train, test, ["there is no official test set: each class was split 80/20 by the seed"]
