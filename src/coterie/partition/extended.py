"""Few classes per client, each shared out in Dirichlet proportions: between `pathological` and `dirichlet`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coterie.data.dataset import Dataset
from coterie.errors import require
from coterie.partition.dirichlet import batch_of, log_gamma_draws, proportional
from coterie.partition.least import DRAWS, first_accepted, least_samples, repaired
from coterie.partition.rule import (
    Rule,
    Shares,
    by_class,
    cut,
    require_count,
    require_enough_samples,
    require_skew,
)
from coterie.partition.split import Indices
from coterie.rng import numpy_stream

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
