"""Rules that draw who holds how much from Dirichlet distributions: of each class, each bin of numbers, or everything.

Nobody is left with too little: draws are repeated until every client has its least number of samples, and the best
draw is repaired. Where alpha is large all clients are alike, which `Iid` is from the start.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coterie.data.dataset import Dataset
from coterie.errors import require
from coterie.partition.partition import Indices
from coterie.partition.rule import (
    Rule,
    Shares,
    by_class,
    cut,
    require_count,
    require_enough_samples,
    require_skew,
)
from coterie.rng import numpy_stream

DRAWS = 1000
USUAL_LEAST = 40


def least_samples(given: int | None, clients: int, samples: int) -> tuple[int, list[str]]:
    """The smallest client's samples, and a note if that is less than usual.

    Left open it is 40, or half the mean client size where that is smaller; a number that is given is taken at its word.

    >>> least_samples(None, clients=20, samples=60_000), least_samples(7, clients=20, samples=60_000)
    ((40, []), (7, []))
    >>> least_samples(None, clients=40, samples=1797)
    (22, ['least = 22: half the mean client size, which is below 40'])
    """
    mean = samples // clients
    if given is not None:
        require(given <= mean, f"least = {given}: must be at most {mean}: {clients} clients share {samples} samples")
        return given, []
    # Two samples make a training and a test sample, so ask for them wherever they exist.
    least = min(USUAL_LEAST, max(mean // 2, min(2, mean)))
    note = f"least = {least}: half the mean client size, which is below {USUAL_LEAST}"
    return least, [note] if least < USUAL_LEAST else []


def first_accepted(draw: Callable[[int], Indices], least: int, batch: int) -> tuple[Indices, int]:
    """The first draw of counts `[C, K]` that gives everybody `least`, else the best of 1,000; and the draws made.

    `draw(n)` makes n independent draws at once: `[n, C, K]`.
    """
    best, best_minimum, made = np.empty(0, np.int64), -1, 0
    while made < DRAWS:
        counts = draw(min(batch, DRAWS - made))
        minima = counts.sum(1).min(1)
        accepted = np.flatnonzero(minima >= least)
        if len(accepted):
            return counts[accepted[0]], made + int(accepted[0]) + 1
        if minima.max() > best_minimum:
            best, best_minimum = counts[minima.argmax()], int(minima.max())
        made += len(counts)
    return best, made


def repair(pools: list[Indices], least: int, stream: np.random.Generator) -> int:
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


def repaired(draws: int, moved: int) -> str:
    """The note that says so.

    >>> repaired(1000, 12)
    'repaired after 1000 draws: moved 12 samples'
    """
    return f"repaired after {draws} draws: moved {moved} samples"


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


class DealtByDraws(Rule):
    """Abstract: deals out groups of samples, each in Dirichlet(alpha) proportions, until nobody has too little."""

    clients: int
    alpha: float
    least: int | None

    def __post_init__(self) -> None:
        require_skew(self.clients, self.alpha, self.least)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Draw the counts, shuffle each group and cut it; repair what no draw could satisfy."""
        require_enough_samples(self.clients, dataset)
        least, notes = least_samples(self.least, self.clients, len(dataset))
        groups = self.groups(dataset)
        sizes = np.array([len(samples) for samples in groups])
        draw = partial(self.counts, sizes, stream=numpy_stream(seed, f"partition:{self.name}"))
        counts, draws = first_accepted(draw, least, batch_of(len(sizes) * self.clients))
        stream = numpy_stream(seed, f"partition:{self.name}:shuffle")
        slices = [cut(stream.permutation(samples), row) for samples, row in zip(groups, counts, strict=True)]
        pools = [np.concatenate(pieces) for pieces in zip(*slices, strict=True)]
        if counts.sum(0).min() < least:
            notes.append(repaired(draws, repair(pools, least, stream)))
        return Shares(pools=pools, notes=tuple(notes), resolved={"least": least})

    @abstractmethod
    def groups(self, dataset: Dataset) -> list[Indices]:
        """What is dealt out, one after the other."""

    @abstractmethod
    def counts(self, sizes: Indices, draws: int, stream: np.random.Generator) -> Indices:
        """Samples of each group for each client, many independent draws at once: `[draws, C, K]`."""


@dataclass(frozen=True)
class Dirichlet(DealtByDraws):
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

    def groups(self, dataset: Dataset) -> list[Indices]:
        """The samples of every class."""
        return by_class(dataset)

    def counts(self, sizes: Indices, draws: int, stream: np.random.Generator) -> Indices:
        """Class by class, with those left out that hold their share already."""
        logs = log_gamma_draws(stream, self.alpha, (draws, len(sizes), self.clients))
        counts = np.zeros(logs.shape, dtype=np.int64)
        held = np.zeros((draws, self.clients), dtype=np.int64)
        for c, size in enumerate(sizes):
            if size == 0:
                continue
            # Before the last sample is dealt out somebody holds less than the mean, so one client is open.
            closed = held * self.clients >= sizes.sum()
            counts[:, c] = proportional(np.where(closed & self.cap, -np.inf, logs[:, c]), size)
            held += counts[:, c]
        return counts


@dataclass(frozen=True)
class Quantile(Dirichlet):
    """Cut the target into bins of equally many samples, and deal each bin out in Dirichlet(alpha) proportions.

    The samples are ranked by their labels (equal ones in the order of the data) and cut into `bins` blocks whose sizes
    differ by at most one: the lowest values, the next, and so on. These blocks are then shared out exactly as
    `dirichlet` does with classes: small alpha, and a client sees a narrow range of the target; `bins=1` only makes
    clients of unequal size.

    >>> import torch
    >>> from coterie.core.task import Regression
    >>> data = Dataset("toy", torch.zeros(200, 1), torch.arange(200.0), task=Regression())
    >>> part = Quantile(clients=4, alpha=0.1, least=10)(data, seed=0)
    >>> part.clients, sum(map(len, part.train + part.test))
    (4, 200)
    """

    clients: int = 10
    alpha: float = 0.5
    bins: int = 5

    name: ClassVar[str] = "quantile"
    needs_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("bins", self.bins)

    def groups(self, dataset: Dataset) -> list[Indices]:
        """The samples of every bin, in ascending order of their labels."""
        require(
            not dataset.classes,
            f"partition = {self.name}: cuts numbers into bins, and the labels of data '{dataset.name}' are classes; "
            "use dirichlet",
        )
        require(
            self.bins <= len(dataset),
            f"bins = {self.bins}: must be at most {len(dataset)}, the samples in data '{dataset.name}'",
        )
        ranked = np.argsort(dataset.labels.numpy(), kind="stable").astype(np.int64)
        return np.array_split(ranked, self.bins)


Holders = npt.NDArray[np.bool_]
"""Who holds which class: `[C, K]`."""


@dataclass(frozen=True)
class ExtendedDirichlet(Rule):
    """Let each client draw a few classes, then deal out each class over its holders in Dirichlet(alpha) proportions.

    The extended Dirichlet strategy of Li & Lyu, "Convergence analysis of sequential federated learning on heterogeneous
    data" (NeurIPS 2023). The official training and test sets are merged. Every client draws `classes_per_client`
    different classes, all clients again until every class has a holder; after 1,000 rejected draws, clients give a
    class of many holders up for one that has none. Where a share is less than a sample, a client holds fewer classes.

    `least` is that of `dirichlet`, but samples move only between holders of their class, so that nobody gets a class
    that it did not draw. Where that cannot be, it is an error.

    >>> import torch
    >>> data = Dataset("toy", torch.zeros(600, 1), torch.arange(600) % 6, classes=6)
    >>> part = ExtendedDirichlet(clients=5, classes_per_client=2, alpha=5, least=20)(data, seed=0)
    >>> (part.class_counts(data) > 0).sum(1).tolist(), (part.class_counts(data).sum(0) > 0).tolist()
    ([2, 2, 2, 2, 2], [True, True, True, True, True, True])
    """

    clients: int = 20
    classes_per_client: int = 2
    alpha: float = 0.5
    least: int | None = None

    name: ClassVar[str] = "extended_dirichlet"
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_skew(self.clients, self.alpha, self.least)
        require_count("classes_per_client", self.classes_per_client)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Draw the holders of each class, then its proportions over them; shuffle each class and cut it."""
        require_enough_samples(self.clients, dataset)
        least, notes = least_samples(self.least, self.clients, len(dataset))
        classes = [samples for samples in by_class(dataset) if len(samples)]
        self._require_enough_places(len(classes), dataset.name)
        holders = self._holders(len(classes), numpy_stream(seed, "partition:extended_dirichlet:classes"))
        sizes = [len(samples) for samples in classes]
        proportions = numpy_stream(seed, "partition:extended_dirichlet")

        def draw(draws: int) -> Indices:
            logs = np.where(holders, log_gamma_draws(proportions, self.alpha, (draws, *holders.shape)), -np.inf)
            return np.stack([proportional(logs[:, c], size) for c, size in enumerate(sizes)], axis=1)

        counts, draws = first_accepted(draw, least, batch_of(holders.size))
        if counts.sum(0).min() < least:
            notes.append(repaired(draws, self._level(counts, holders, least)))
        stream = numpy_stream(seed, "partition:extended_dirichlet:shuffle")
        slices = [cut(stream.permutation(samples), row) for samples, row in zip(classes, counts, strict=True)]
        pools = [np.concatenate(pieces) for pieces in zip(*slices, strict=True)]
        return Shares(pools=pools, notes=tuple(notes), resolved={"least": least})

    def _require_enough_places(self, classes: int, data: str) -> None:
        each, places = self.classes_per_client, self.clients * self.classes_per_client
        require(
            each <= classes,
            f"classes_per_client = {each}: must be from 1 to {classes}, the number of classes in data '{data}'",
        )
        require(
            places >= classes,
            f"classes_per_client = {each}: {self.clients} clients hold at most {places} of the {classes} classes in "
            f"data '{data}', and each needs a holder; use more clients or more classes_per_client",
        )

    def _holders(self, classes: int, stream: np.random.Generator) -> Holders:
        """Who holds which class: every client `classes_per_client` of them, every class somebody's."""
        for _ in range(DRAWS):
            # The places of the smallest of so many random numbers are a draw without replacement.
            ranks = stream.random((classes, self.clients)).argsort(0).argsort(0)
            holders: Holders = ranks < self.classes_per_client
            if holders.any(1).all():
                return holders
        for c in np.flatnonzero(~holders.any(1)):
            # There are at least as many places as classes, so one class has two holders or more.
            common = int(holders.sum(1).argmax())
            client = stream.choice(np.flatnonzero(holders[common]))
            holders[common, client], holders[c, client] = False, True
        return holders

    def _level(self, counts: Indices, holders: Holders, least: int) -> int:
        """Move samples within their classes, from the largest client that can spare one, until everybody has `least`.

        Changes `counts [C, K]`, and says how many were moved. Nobody gives the last sample of a class away.
        """
        moved = 0
        for client in np.flatnonzero(counts.sum(0) < least).tolist():
            while counts[:, client].sum() < least:
                sizes = counts.sum(0)
                spare = holders[:, [client]] & (counts > 1) & (sizes > least)
                require(
                    bool(spare.any()),
                    f"least = {least}: the classes of client {client} are too small for so many holders; use a smaller "
                    "least, fewer clients, more classes_per_client or another seed",
                )
                donor = int(np.where(spare.any(0), sizes, -1).argmax())
                c = int(np.where(spare[:, donor], counts[:, donor], -1).argmax())
                counts[c, donor] -= 1
                counts[c, client] += 1
                moved += 1
        return moved


@dataclass(frozen=True)
class Quantity(DealtByDraws):
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

    def groups(self, dataset: Dataset) -> list[Indices]:
        """Everything alike."""
        return [np.arange(len(dataset))]

    def counts(self, sizes: Indices, draws: int, stream: np.random.Generator) -> Indices:
        """The clients' sizes."""
        return proportional(log_gamma_draws(stream, self.alpha, (draws, self.clients)), int(sizes[0]))[:, None]


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
