"""Rules that say which classes a client holds: a few alone, or those of its group over a common background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.errors import require, unknown
from coterie.partition.partition import Indices
from coterie.partition.rule import ROUNDING, Rule, Shares, Split, by_class, cut, require_count, require_enough_samples
from coterie.rng import numpy_stream

VARIANTS = ("order", "random")


@dataclass(frozen=True)
class Pathological(Rule):
    """Give each client only a few classes, in disjoint slices of each class.

    The official training and test sets are merged. `variant="order"` walks through the classes: each goes
    to the first ⌈K·classes_per_client / C⌉ clients that still want one, in contiguous slices. The clients
    then form perfect groups, and the last group may hold fewer classes: with 20 clients, 10 classes and 3
    per client, clients 18 and 19 hold class 9 alone. `variant="random"` lets every client draw its classes
    at random. `unbalanced=True` draws the slices' sizes uniformly from [max(m/10, least/C), m), where m is
    the mean slice, and leaves the rest to the last taker; otherwise slices are equal.

    >>> import torch
    >>> data = Dataset("toy", torch.zeros(400, 1), torch.arange(400) % 4, classes=4)
    >>> (Pathological(clients=4, classes_per_client=2)(data, seed=0).class_counts(data) > 0).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 1],
           [0, 0, 1, 1]])
    """

    clients: int = 20
    classes_per_client: int = 2
    variant: str = "order"
    unbalanced: bool = True
    least: int = 40

    name: ClassVar[str] = "pathological"
    needs_classes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("clients", self.clients)
        require_count("classes_per_client", self.classes_per_client)
        require_count("least", self.least)
        if self.variant not in VARIANTS:
            raise unknown("variant", self.variant, VARIANTS)

    def shares(self, dataset: Dataset, seed: int) -> Shares:
        """Choose the takers of each class, then slice the class among them."""
        require_enough_samples(self.clients, dataset)
        classes = by_class(dataset)
        present = [c for c, samples in enumerate(classes) if len(samples)]
        require(
            self.classes_per_client <= len(present),
            f"classes_per_client = {self.classes_per_client}: must be from 1 to {len(present)}, the number "
            f"of classes in data '{dataset.name}'",
        )
        stream = numpy_stream(seed, f"partition:pathological:{self.variant}")
        takers = self._in_order(len(present)) if self.variant == "order" else self._at_random(len(present), stream)
        pieces: list[list[Indices]] = [[] for _ in range(self.clients)]
        for c, takers_of_class in zip(present, takers, strict=True):
            if not takers_of_class:
                continue
            samples = classes[c]
            require(
                len(samples) >= len(takers_of_class),
                f"clients = {self.clients}: class {c} has {len(samples)} samples for {len(takers_of_class)} "
                "clients; use fewer clients or fewer classes_per_client",
            )
            if self.variant == "random":
                samples = stream.permutation(samples)
            slices = cut(samples, self._sizes(len(samples), len(takers_of_class), len(present), stream))
            for client, piece in zip(takers_of_class, slices, strict=True):
                pieces[client].append(piece)
        unused = [str(c) for c, takers_of_class in zip(present, takers, strict=True) if not takers_of_class]
        return Shares(
            pools=[np.concatenate(piece) for piece in pieces],
            notes=(f"no client holds class {', '.join(unused)}",) if unused else (),
        )

    def _in_order(self, classes: int) -> list[list[int]]:
        """The takers of each class: the first clients, by index, that still want a class."""
        still_wants = [self.classes_per_client] * self.clients
        places = -(-self.clients * self.classes_per_client // classes)
        takers = []
        for _ in range(classes):
            chosen = [client for client in range(self.clients) if still_wants[client]][:places]
            for client in chosen:
                still_wants[client] -= 1
            takers.append(chosen)
        return takers

    def _at_random(self, classes: int, stream: np.random.Generator) -> list[list[int]]:
        """The takers of each class, in random order, when every client draws its own classes."""
        takers: list[list[int]] = [[] for _ in range(classes)]
        for client in stream.permutation(self.clients).tolist():
            for c in stream.choice(classes, self.classes_per_client, replace=False):
                takers[c].append(client)
        return takers

    def _sizes(self, samples: int, takers: int, classes: int, stream: np.random.Generator) -> Indices:
        """The sizes of a class's slices: `[takers]`, each at least 1."""
        mean = samples // takers
        if self.unbalanced:
            smallest = max(1, int(max(samples / takers / 10, self.least / classes)))
            # A class too small for the bounds gets nearly equal slices.
            smallest = min(smallest, max(1, mean - 1))
            sizes = stream.integers(smallest, max(mean, smallest + 1), takers)
        else:
            sizes = np.full(takers, mean, dtype=np.int64)
        sizes[-1] = samples - sizes[:-1].sum()
        return sizes


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
