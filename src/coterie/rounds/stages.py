"""What an upload goes through on its way from a client's row to the server's mixes: stages, one after the other.

A stage is a value: a frozen dataclass that extends `Stage`. Each has a client half, which sees what clients are about
to send, and a server half, which sees what has come in. Client halves take their turns in order, server halves in the
opposite order, so that what is done last at a client is the first to be undone at the server. In a simulation both see
the whole cohort at once, a row per client; at a real site the client half sees that site alone.

What clients send is what they go on from themselves: a stage that changes it changes what they hold.

Stages of one's own are named in a run's or a federation's `stages`, joined by a plus sign: they come last, next to the
wire. Packages add to them with an entry point of the group `coterie.stages`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.client.recipe import Recipe
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.errors import CoterieError, require
from coterie.methods.base import Method
from coterie.registry import Registry, subclasses_of
from coterie.rounds.listeners import Note
from coterie.typed import TypedOptions


@dataclass(frozen=True)
class Incoming:
    """What clients send, before anything of it is kept: a row per client of the cohort."""

    cohort: Tensor  # [m] client ids
    held: Mapping[str, Tensor]  # slot -> [m, slot width]
    declared: Mapping[str, Columns]  # slot -> columns that are sent
    measured: Mapping[str, Tensor]  # name -> [m, ...]
    losses: Sequence[float | None] = ()  # on each client's test samples after training; none without such samples

    def only(self, chosen: Tensor) -> Incoming:
        """That of some of the clients, `chosen [m]` bool."""
        if bool(chosen.all()):
            return self
        held, measured = (
            {name: values[chosen.to(values.device)] for name, values in rows.items()}
            for rows in (self.held, self.measured)
        )
        zipped = zip(self.losses, chosen.tolist(), strict=bool(self.losses))
        losses = [loss for loss, stays in zipped if stays]
        return Incoming(self.cohort[chosen], held, self.declared, measured, losses)


@dataclass(frozen=True)
class Clients:
    """Who takes part in a run: who each client is to the random streams, and its name."""

    keys: Tensor  # [K]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Course:
    """How a round went, as far as a stage may want to leave a note of it."""

    recipe: Recipe
    declared: Mapping[str, Columns]  # slot -> columns that were to be sent
    asked: Tensor  # ids of all that were asked
    cohort: Tensor  # of those that answered
    set_aside: Mapping[int, str] = field(default_factory=dict)  # by this stage's server half, and why


class Account(ABC):
    """What one real site keeps count of, on its disk; `size` is what others are told of its number of samples."""

    size: int

    @abstractmethod
    def count(self, federation: Federation, recipe: Recipe, declared: Mapping[str, Columns]) -> float:
        """Count what a task will tell, before it does: the ε with it. An error if that must not be."""


@dataclass(frozen=True)
class Stage(metaclass=TypedOptions):
    """One stage of an upload; by itself it changes nothing. Override what it does."""

    name: ClassVar[str] = ""
    """Under which its notes stand in a round's report."""
    needs_losses: ClassVar[bool] = False
    """Whether the server half looks at the losses that uploads were made with."""
    hides_results: ClassVar[bool] = False
    """Whether nobody may learn how good models are: a run then ends as planned, and in no other way."""
    of_certain_clients: ClassVar[bool] = False
    """Whether it is of some clients of the run: it has no place where a few are looked at alone."""

    @classmethod
    def of(cls, settings: Any, clients: Clients) -> Self | None:
        """The stage that the settings of a run or of a federation ask for; nothing if it has nothing to do."""
        return cls()

    @classmethod
    def things(cls, settings: Any) -> tuple[object, ...]:
        """What the settings name for it that may be somebody's own; an error if there is no such thing."""
        return ()

    @property
    def promised(self) -> str:
        """What is promised to whoever has data here, in words; empty if nothing is."""
        return ""

    def described(self) -> dict[str, Any]:
        """What its notes are about, for who reads the record of a run."""
        return {}

    # Before the first round.

    def account(self, folder: Path, agreements: Sequence[str], samples: int, begun: bool) -> Account | None:
        """A real site's account in its folder, of the first of these agreements or of those before; usually none.

        `begun` says that the site has trained under one of them: then there must be an account.
        """
        return None

    def lacks(self, contributors: int) -> str:
        """Why so few uploads are not enough for a mix, in words; empty if they are."""
        return ""

    def attach(self, federation: Federation) -> None:
        """Attach to a new federation what it is to mix or to train with; no method has seen it yet."""

    def simulate(self, federation: Federation) -> None:
        """A simulation knows what clients hold: leave of it what they would tell of their numbers of samples."""

    def problem(self, problem: Problem) -> Problem:
        """What is trained on in a simulation: labels as clients take them."""
        return problem

    def begin(self, federation: Federation) -> None:
        """Make room for what the server remembers (in a simulation: for what clients remember, too)."""

    def check(self, method: Method, federation: Federation) -> None:
        """Refuse a method that cannot work like this, in words, before the first round."""

    def about(self, client: int) -> dict[str, Any]:
        """What a run says of one of its clients; of one that takes no part, -1, the same in general."""
        return {}

    # In each round, in this order.

    def before_training(self, federation: Federation, cohort: Tensor) -> None:
        """The cohort has what it downloads, and has not trained yet; in simulations alone."""

    def trained(self, federation: Federation, incoming: Incoming) -> Incoming:
        """What clients hold after training, before it is seen whose training diverged."""
        return incoming

    def client(self, federation: Federation, incoming: Incoming) -> Incoming:
        """The client half: what clients send, of what they hold and have measured."""
        return incoming

    def server(self, federation: Federation, incoming: Incoming) -> tuple[Incoming, dict[int, str]]:
        """The server half: what counts of all that came in, and the clients whose does not, each with the reason."""
        return incoming, {}

    def out(self, federation: Federation) -> list[int]:
        """The clients whose uploads will not count for now, whatever they are."""
        return []

    def note(self, federation: Federation, course: Course) -> Note | None:
        """What the round's report says of it, and its record; nothing by default."""
        return None


@dataclass(frozen=True)
class Coding(Stage):
    """A stage that changes how numbers travel: what `packed` makes of them is what the ledger and the wire count.

    To pack what was unpacked must give the same again. Offered are all numbers in single precision: the columns of each
    slot, and measurements.
    """

    @abstractmethod
    def packed(self, values: Tensor) -> Tensor:
        """A client's numbers `[n]`, float32, as they travel."""

    @abstractmethod
    def unpacked(self, values: Tensor) -> Tensor:
        """What they are on the other side: `[n]`, float32."""

    def client(self, federation: Federation, incoming: Incoming) -> Incoming:
        """All that is sent becomes what it will be on the other side."""
        held = dict(incoming.held)
        for slot, columns in incoming.declared.items():
            if slot in held and columns:
                within = columns.within(federation[slot].columns)
                held[slot] = held[slot].clone()
                within.put(held[slot], self._travelled(within.take(held[slot])))
        measured = {name: self._travelled(values) for name, values in incoming.measured.items()}
        return replace(incoming, held=held, measured=measured)

    def _travelled(self, values: Tensor) -> Tensor:
        """Numbers of several clients, `[m, ...]`, after they have been on their way."""
        if values.dtype != torch.float32 or not len(values):
            return values
        return torch.stack([self.unpacked(self.packed(one.flatten())).view(one.shape) for one in values])


def require_enough(stages: Sequence[Stage], contributors: int, way_out: str) -> None:
    """An error if as few uploads as there may be in a round are not enough for a stage."""
    for stage in stages:
        if why := stage.lacks(contributors):
            raise CoterieError(f"{why}; {way_out}")


def coding_of(stages: Sequence[Stage]) -> Coding | None:
    """The stage that changes how numbers travel, if one does."""
    codings = [stage for stage in stages if isinstance(stage, Coding)]
    require(
        len(codings) < 2,
        f"stages: {' and '.join(type(one).__name__ for one in codings)} both say how numbers travel; name one of them",
    )
    return codings[0] if codings else None


def packed(coding: Coding | None, values: Tensor) -> Tensor:
    """What one client sends as it travels: coded, one number after the other, or as it is."""
    return values if coding is None or values.dtype != torch.float32 else coding.packed(values.flatten())


def unpacked(coding: Coding | None, values: Tensor, shape: Sequence[int]) -> Tensor:
    """The same on the other side, of the given shape."""
    return values if coding is None else coding.unpacked(values).reshape(*shape)


STAGES: Registry[type[Stage]] = Registry("stage", "coterie.stages", {}, subclasses_of(Stage))
"""The stages that can be named in `stages`: classes that extend `Stage`."""
