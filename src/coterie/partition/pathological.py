"""Few classes per client: the pathological label skew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.dataset import Dataset
from coterie.errors import require, unknown
from coterie.partition.rule import Rule, Shares, by_class, cut, require_count, require_enough_samples
from coterie.partition.split import Indices
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
        wanted = [self.classes_per_client] * self.clients
        places = -(-self.clients * self.classes_per_client // classes)
        takers = []
        for _ in range(classes):
            chosen = [client for client in range(self.clients) if wanted[client]][:places]
            for client in chosen:
                wanted[client] -= 1
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
