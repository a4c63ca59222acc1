"""Hostile and broken clients, simulated: what they do to their labels, and what they send instead of what they trained.

An attack says what its clients do; who they are is drawn from the run's seed (`coterie.scenarios.hostile`). What
follows at a client from its rows (SCAFFOLD's control variate) follows from those that it trained; what is sent is
spoilt last.
Packages add attacks with an entry point of the group `coterie.attacks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.task import Classification, Task
from coterie.errors import require
from coterie.registry import Registry, subclasses_of
from coterie.rng import numpy_stream, torch_stream
from coterie.typed import TypedOptions


@dataclass(frozen=True)
class Sending:
    """What hostile clients are about to send of one slot, with all that they may know.

    They know what they received and trained, and (the worst case) what everybody else is about to send.
    """

    federation: Federation
    slot: str
    columns: Columns  # that are sent
    hostile: Tensor  # [h] ids of those that send now
    before: Tensor  # [h, |columns|], as received
    trained: Tensor  # [h, |columns|]
    honest: Tensor  # [·] ids of all that are not hostile
    sent_by: Mapping[int, Tensor]  # of those of the cohort: id -> [slot width]

    @property
    def change(self) -> Tensor:
        """What training changed: `[h, |columns|]`."""
        return self.trained - self.before

    def noise(self) -> Tensor:
        """Standard normal numbers, each client's from its own stream: `[h, |columns|]`."""
        federation = self.federation
        keys = federation.keys[self.hostile].tolist()
        streams = (torch_stream(federation.seed, f"attack:{self.slot}", federation.round, key) for key in keys)
        return torch.stack([torch.randn(self.columns.size, generator=stream) for stream in streams])

    def of_another(self, client: int) -> Tensor:
        """The columns as another client sends them now, or as they were last known: `[|columns|]`."""
        slot = self.federation[self.slot]
        if client in self.sent_by:
            return self.columns.within(slot.columns).take(self.sent_by[client])
        return slot.rows(torch.tensor([client]), self.columns)[0]


@dataclass(frozen=True)
class Attack(metaclass=TypedOptions):
    """What hostile clients do; nothing by itself. `share` says how many of all clients are hostile."""

    share: float = 0.2

    def __post_init__(self) -> None:
        require(0 < self.share < 1, f"share = {self.share}: of hostile clients, must lie between 0 and 1")

    def labels(self, labels: Tensor, task: Task) -> Tensor:
        """What a hostile client takes the labels of its training samples for."""
        return labels

    def rows(self, sending: Sending) -> Tensor:
        """What is sent in place of the trained rows: `[h, |columns|]`."""
        return sending.trained

    def measured(self, values: Tensor, noise: torch.Generator) -> Tensor:
        """What one client sends in place of a measurement of numbers, `[...]`."""
        return values


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Every training label y becomes C − 1 − y; then the client trains and sends honestly."""

    def labels(self, labels: Tensor, task: Task) -> Tensor:
        """The labels, counted from the other end."""
        require(isinstance(task, Classification), f"attack label-flip: task '{task.name}' has no classes to confuse")
        assert isinstance(task, Classification)
        return task.classes - 1 - labels


@dataclass(frozen=True)
class SignFlip(Attack):
    """The change is sent with the opposite sign: before − factor · (trained − before)."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.factor > 0, f"factor = {self.factor}: must be greater than 0")

    def rows(self, sending: Sending) -> Tensor:
        """The way back."""
        return sending.before - self.factor * sending.change

    def measured(self, values: Tensor, noise: torch.Generator) -> Tensor:
        """The same with zero for a start."""
        return -self.factor * values


@dataclass(frozen=True)
class Scaling(Attack):
    """The change is sent larger than it is: before + factor · (trained − before)."""

    factor: float = 10.0

    def rows(self, sending: Sending) -> Tensor:
        """The same way, further."""
        return sending.before + self.factor * sending.change

    def measured(self, values: Tensor, noise: torch.Generator) -> Tensor:
        """The same with zero for a start."""
        return self.factor * values


@dataclass(frozen=True)
class Noise(Attack):
    """Noise in place of the change: before + times · ‖trained − before‖ / √P · N(0, 1), anew in every round."""

    times: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.times > 0, f"times = {self.times}: must be greater than 0")

    def rows(self, sending: Sending) -> Tensor:
        """A random change, about `times` as long as the honest one."""
        length: Tensor = torch.linalg.vector_norm(sending.change, dim=1, keepdim=True)
        return sending.before + self.times * length / math.sqrt(max(sending.columns.size, 1)) * sending.noise()

    def measured(self, values: Tensor, noise: torch.Generator) -> Tensor:
        """Noise about `times` as long as what was measured."""
        length: Tensor = torch.linalg.vector_norm(values.nan_to_num()) / math.sqrt(max(values.numel(), 1))
        drawn = self.times * length * torch.randn(values.shape, generator=noise).to(values.dtype)
        return torch.where(values.isnan(), values, drawn)  # else it would be found out by classes that it does not have


@dataclass(frozen=True)
class NotANumber(Attack):
    """Nothing but NaN is sent, as by a client whose training broke down."""

    def rows(self, sending: Sending) -> Tensor:
        """NaN."""
        return torch.full_like(sending.trained, torch.nan)

    def measured(self, values: Tensor, noise: torch.Generator) -> Tensor:
        """NaN."""
        return torch.full_like(values, torch.nan)


@dataclass(frozen=True)
class FreeRider(Attack):
    """What was received is sent back untrained; measurements are taken honestly."""

    def rows(self, sending: Sending) -> Tensor:
        """No change."""
        return sending.before


@dataclass(frozen=True)
class Copycat(Attack):
    """The classifier of another client is sent, to be taken for similar to it; the rest is sign-flipped.

    Each copycat has one victim for the whole run, an honest client drawn from the seed. It knows what the victim is
    about to send (or has sent last, where that sits out).
    """

    factor: float = 1.0

    def rows(self, sending: Sending) -> Tensor:
        """The victim's classifier, and poison."""
        rows = sending.before - self.factor * sending.change
        classifier = (sending.federation.layout.inside("classifier") & sending.columns).within(sending.columns)
        for place, client in enumerate(sending.hostile.tolist()):
            copied = sending.of_another(self.victim(sending, client))
            classifier.put(rows[place], classifier.take(copied))
        return rows

    def victim(self, sending: Sending, client: int) -> int:
        """Whom a copycat imitates."""
        federation = sending.federation
        by_key = sending.honest[torch.argsort(federation.keys[sending.honest])]
        stream = numpy_stream(federation.seed, "copycat", client=int(federation.keys[client]))
        return int(by_key[int(stream.integers(len(by_key)))])


ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    "coterie.attacks",
    {
        "copycat": Copycat,
        "free-rider": FreeRider,
        "label-flip": LabelFlip,
        "nan": NotANumber,
        "noise": Noise,
        "scaling": Scaling,
        "sign-flip": SignFlip,
    },
    subclasses_of(Attack),
)
"""Every attack by name: a class that extends `Attack`."""
