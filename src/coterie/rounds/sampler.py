"""Who takes part in a round: whom the server asks, of those who are there, and who of them answers.

A sampler is a value: a frozen dataclass that extends `Sampler`, found by its name, in a file or in a package with an
entry point of the group `coterie.samplers`. Whom it asks must follow from (seed, round) and from what the federation
knows, so that a run repeats; draw over keys, so that relabelled clients take part in the same rounds as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.errors import require
from coterie.registry import Registry, subclasses_of
from coterie.rng import numpy_stream
from coterie.typed import TypedOptions


@dataclass(frozen=True)
class Sampler(metaclass=TypedOptions):
    """Everybody is there, is asked, and answers: what samplers override of that."""

    @classmethod
    def things(cls, settings: Any) -> tuple[object, ...]:
        """What the settings name for it that may be somebody's own; an error if there is no such thing."""
        return ()

    def count(self, clients: int) -> int:
        """How many are asked at the least where so many are there."""
        return clients

    def there(self, federation: Federation, round: int) -> Tensor:
        """The ids of those that can be asked in a round: `[n]`. At real sites that shows by itself."""
        return federation.everyone

    def asked(self, federation: Federation, there: Tensor, round: int) -> Tensor:
        """Whom the server asks of those that are there: ids in ascending order, `[m]`."""
        return there

    def answering(self, federation: Federation, asked: Tensor, round: int) -> Tensor:
        """Who of those that were asked answers in time: `[·]`. At real sites that shows by itself."""
        return asked

    def rests(self, clients: int) -> bool:
        """Whether there may be clients who take no part in a round."""
        return self.count(clients) < clients

    def draw(self, federation: Federation, round: int) -> tuple[Tensor, Tensor]:
        """Whom the server asks in a round of a simulation, and who of them answers: ids `[·]` each."""
        there = self.there(federation, round)
        asked = self.asked(federation, there, round) if len(there) else there
        return asked, self.answering(federation, asked, round)


@dataclass(frozen=True)
class Share(Sampler):
    """max(1, int(join · n)) of the n clients that are there, drawn without replacement, all alike: a run's `join`."""

    join: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.join <= 1, f"join = {self.join}: must be greater than 0 and at most 1")

    def count(self, clients: int) -> int:
        """By the share."""
        return cohort_size(self.join, clients)

    def asked(self, federation: Federation, there: Tensor, round: int) -> Tensor:
        """So many of them."""
        return there[draw_cohort(federation.keys[there], self.join, federation.seed, round)]


@dataclass(frozen=True)
class Count(Sampler):
    """So many clients of those that are there (or all, if they are fewer), drawn without replacement, all alike."""

    clients: int = 10

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"clients = {self.clients}: to ask in a round, must be at least 1")

    def count(self, clients: int) -> int:
        """That number, or all."""
        return min(self.clients, clients)

    def asked(self, federation: Federation, there: Tensor, round: int) -> Tensor:
        """So many of them."""
        return there[drawn(federation.keys[there], self.count(len(there)), federation.seed, "cohort", round)]


SAMPLERS: Registry[type[Sampler]] = Registry(
    "sampler", "coterie.samplers", {"count": Count, "share": Share}, subclasses_of(Sampler)
)
"""Every sampler by name: a class that extends `Sampler`."""


def cohort_size(join: float, clients: int) -> int:
    """How many clients take part in a round: max(1, int(join · K)).

    >>> cohort_size(0.25, 10)
    2
    """
    return max(1, int(join * clients + 1e-9))


def draw_cohort(keys: Tensor, join: float, seed: int, round: int) -> Tensor:
    """The ids of max(1, int(join · K)) clients drawn without replacement, in ascending order: `[m]`.

    The draw is over keys, so relabelled clients are drawn in the same rounds as before.

    >>> draw_cohort(torch.arange(10), join=0.25, seed=0, round=1).shape
    torch.Size([2])
    """
    return drawn(keys, cohort_size(join, len(keys)), seed, "cohort", round)


def drawn(keys: Tensor, count: int, seed: int, purpose: str, round: int) -> Tensor:
    """The places of `count` of the keys, drawn without replacement from the stream of a purpose, in ascending order.

    >>> drawn(torch.arange(10), 3, seed=0, purpose="tested", round=1).shape
    torch.Size([3])
    """
    if count == len(keys):
        return torch.arange(count)
    by_key = torch.argsort(keys)
    chosen = numpy_stream(seed, purpose, round).choice(len(keys), count, replace=False)
    return by_key[torch.from_numpy(chosen)].sort().values
