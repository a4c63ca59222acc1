"""Groups of clients with shared dominant classes over a common background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.errors import require
from coterie.partition.rule import Rule, Shares, by_class, require_count
from coterie.partition.split import ROUNDING, Indices, Split

GROUPS = 5
FIRST_POSITION = 2000


def dominant_classes(group: int, classes: int) -> list[int]:
    """The dominant classes of a group: its fifth of the circle of classes, and the next group's first.

    >>> [dominant_classes(group, 10) for group in range(5)]
    [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]
    >>> dominant_classes(4, 3)
    [2, 0]
    """
    first, last = group * classes // GROUPS, (group + 1) * classes // GROUPS
    return [c % classes for c in range(first, last + 1)]


@dataclass(frozen=True)
class Dominant(Rule):
    """Five groups of clients, each with its dominant classes over a share of evenly mixed samples.

    Of a client's `samples`, `int(samples·iid)` are spread evenly over all classes and the others evenly over
    its group's dominant classes; the last class takes what does not divide. Client k belongs to group
    `5k // K`. The official training and test sets are merged. Each class is read in order from position
    2,000 (modulo its size) on, so clients are disjoint until a class is used up; then it is read again,
    which `Partition.notes` tells. The seed matters for the split only, 80/20 by default.

    >>> import torch
    >>> data = Dataset("toy", torch.zeros(9000, 1), torch.arange(9000) % 10, classes=10)
    >>> part = Dominant(clients=5, samples=600)(data, seed=0)
    >>> (part.class_counts(data) + part.class_counts(data, "test"))[0].tolist()
    [172, 172, 172, 12, 12, 12, 12, 12, 12, 12]
    """

    clients: int = 20
    samples: int = 600
    iid: float = 0.2

    name: ClassVar[str] = "dominant"
    needs_classes: ClassVar[bool] = True
    default_split: ClassVar[Split] = Split(test=0.2)

    def __post_init__(self) -> None:
        require_count("clients", self.clients)
        require_count("samples", self.samples)
        require(0 <= self.iid <= 1, f"iid = {self.iid}: must be from 0 to 1")

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Read each client's samples off the classes, one client after the other."""
        present = {c: samples for c, samples in enumerate(by_class(dataset)) if len(samples)}
        classes = list(present.values())
        class_sizes = np.array([len(samples) for samples in classes])
        cursors = np.full(len(classes), FIRST_POSITION)
        pools = []
        for client in range(self.clients):
            counts = self._counts(client * GROUPS // self.clients, len(classes))
            for c, size, count in zip(present, class_sizes, counts, strict=True):
                # Otherwise a client would meet a training sample again in its test part.
                require(
                    count <= size,
                    f"samples = {self.samples}: client {client} would need {count} samples of class {c}, "
                    f"which has {size} in data '{dataset.name}'; use fewer samples",
                )
            pools.append(
                np.concatenate(
                    [
                        samples[np.arange(start, start + count) % len(samples)]
                        for samples, start, count in zip(classes, cursors, counts, strict=True)
                    ]
                )
            )
            cursors += counts
        again = int(np.maximum(cursors - FIRST_POSITION - class_sizes, 0).sum())
        note = f"classes were used up: {again} of {self.clients * self.samples} samples are used again"
        return Shares(pools=pools, notes=(note,) if again else ())

    def _counts(self, group: int, classes: int) -> Indices:
        """How many samples of each class a client of this group holds: `[classes]`."""
        mixed = int(self.samples * self.iid + ROUNDING)
        counts = np.full(classes, mixed // classes)
        counts[-1] += mixed % classes
        dominant = dominant_classes(group, classes)
        for c in dominant:
            counts[c] += (self.samples - mixed) // len(dominant)
        counts[dominant[-1]] += (self.samples - mixed) % len(dominant)
        return counts
