"""Who is there in a round and who answers in time: clients that drop out, are slow, come late, leave, come and go.

A client that is not there is not asked. One that is asked and does not answer has downloaded for nothing: like a site
that did not answer in a federation it keeps what it had, nothing of it counts, and what the server owes it stays owed.
So to every method a round is one with the cohort that answered. If nobody answers, nothing changes.

Behaviours are named in a run's `presence`, joined by a plus sign; packages add to them with an entry point of the group
`coterie.presences`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.errors import CoterieError, require
from coterie.options import made
from coterie.registry import Registry, at_hand, subclasses_of
from coterie.rng import numpy_stream
from coterie.rounds.sampler import Sampler
from coterie.rounds.stages import Clients
from coterie.scenarios.options import Scenario
from coterie.typed import TypedOptions

JITTER = 0.25  # the deviation of the logarithm of how long a client takes, from round to round


@dataclass(frozen=True)
class Presence(metaclass=TypedOptions):
    """Everybody is always there and answers in time: what behaviours override of that."""

    def there(self, federation: Federation, names: Sequence[str], round: int) -> Tensor:
        """Who can be asked in a round: `[K]` bool."""
        return torch.ones(federation.clients, dtype=torch.bool)

    def answers(self, federation: Federation, cohort: Tensor, round: int) -> Tensor:
        """Who of the cohort answers in time: `[m]` bool."""
        return torch.ones(len(cohort), dtype=torch.bool)


@dataclass(frozen=True)
class Dropout(Presence):
    """Whoever is asked does not answer with this probability, anew in every round."""

    probability: float = 0.1

    def __post_init__(self) -> None:
        _require_share("probability", self.probability)

    def answers(self, federation: Federation, cohort: Tensor, round: int) -> Tensor:
        """Each by its own draw."""
        return _draws(federation, cohort, "dropout", round) >= self.probability


@dataclass(frozen=True)
class Available(Presence):
    """Everybody is there with this probability, anew in every round."""

    probability: float = 0.8

    def __post_init__(self) -> None:
        _require_share("probability", self.probability)

    def there(self, federation: Federation, names: Sequence[str], round: int) -> Tensor:
        """Each by its own draw."""
        return _draws(federation, federation.everyone, "available", round) < self.probability


@dataclass(frozen=True)
class Stragglers(Presence):
    """A share of the clients is `slower` times as slow, and the server waits for `deadline` times the usual.

    A client takes as long as it takes steps, times `slower` if it is a straggler, times exp(0.25 · N(0, 1)) in each
    round. The usual is the median client's number of steps.
    """

    share: float = 0.2
    slower: float = 4.0
    deadline: float = 2.0

    def __post_init__(self) -> None:
        _require_share("share", self.share)
        require(self.slower >= 1, f"slower = {self.slower}: must be at least 1")
        require(self.deadline > 0, f"deadline = {self.deadline}: must be greater than 0")

    def answers(self, federation: Federation, cohort: Tensor, round: int) -> Tensor:
        """Who is ready by the deadline."""
        usual = float(federation.steps(federation.everyone).double().quantile(0.5))
        return self.seconds(federation, cohort, round) <= self.deadline * usual

    def seconds(self, federation: Federation, cohort: Tensor, round: int) -> Tensor:
        """How long the cohort takes, in steps of a client that is no straggler: `[m]`, float64."""
        keys = federation.keys[cohort].tolist()
        noise = [float(numpy_stream(federation.seed, "jitter", round, key).standard_normal()) for key in keys]
        slow = torch.isin(cohort, _some(federation, "stragglers", self.share))
        factors = torch.where(slow, self.slower, 1.0).double() * torch.tensor(noise).mul(JITTER).exp()
        return federation.steps(cohort).double() * factors


@dataclass(frozen=True)
class Late(Presence):
    """A share of the clients joins late: each in a round drawn from 2 to `by` (0: to the middle of the run)."""

    share: float = 0.2
    by: int = 0

    def __post_init__(self) -> None:
        _require_share("share", self.share)
        require(self.by == 0 or self.by >= 2, f"by = {self.by}: must be at least 2, or 0 for the middle of the run")

    def there(self, federation: Federation, names: Sequence[str], round: int) -> Tensor:
        """All whose round has come."""
        last = self.by or max(2, federation.rounds // 2)
        return round >= _turning(federation, "late", self.share, 2, last, otherwise=1)


@dataclass(frozen=True)
class Leave(Presence):
    """A share of the clients leaves for good: each after a round drawn from `after` (0: the middle of the run) on."""

    share: float = 0.2
    after: int = 0

    def __post_init__(self) -> None:
        _require_share("share", self.share)
        require(self.after >= 0, f"after = {self.after}: must not be negative (0: the middle of the run)")

    def there(self, federation: Federation, names: Sequence[str], round: int) -> Tensor:
        """All who have not left."""
        first = self.after or max(1, federation.rounds // 2)
        last = max(first, federation.rounds - 1)
        return round <= _turning(federation, "leave", self.share, first, last, otherwise=federation.rounds)


@dataclass(frozen=True)
class Trace(Presence):
    """Who is there, from a CSV file with the columns client, probability and perhaps round.

    Without `round`, the probability holds in all rounds; with it, from that round to the client's next line. A client
    is there with that probability, anew in every round; clients that the file does not name, and rounds before a
    client's first line, have probability 1.
    """

    file: str

    @property
    def files(self) -> tuple[str, ...]:
        """What the run depends on besides."""
        return (self.file,)

    @cached_property
    def lines(self) -> tuple[tuple[str, int, float], ...]:
        """The file's lines by round, as they were when they were first asked for: client, first round, probability."""
        return read_trace(self.file)

    def there(self, federation: Federation, names: Sequence[str], round: int) -> Tensor:
        """Each by its own draw."""
        wanted = [1.0] * len(names)
        places = {name: place for place, name in enumerate(names)}
        for client, first, probability in self.lines:
            require(client in places, f"presence: {self.file} names '{client}', who is no client of this run")
            if round >= first:
                wanted[places[client]] = probability
        return _draws(federation, federation.everyone, "trace", round) < torch.tensor(wanted, dtype=torch.float64)


PRESENCES: Registry[type[Presence]] = Registry(
    "presence",
    "coterie.presences",
    {
        "available": Available,
        "dropout": Dropout,
        "late": Late,
        "leave": Leave,
        "stragglers": Stragglers,
        "trace": Trace,
    },
    subclasses_of(Presence),
)
"""Every behaviour by name: a class that extends `Presence`."""


@dataclass(frozen=True)
class Attendance(Sampler):
    """The behaviours of a run's clients, all at once, around whatever draws the cohort of those that are there."""

    drawing: Sampler
    parts: tuple[Presence, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def around(cls, drawing: Sampler, settings: Scenario, clients: Clients) -> Attendance:
        """The behaviours that a run asks for."""
        return cls(drawing, behaviours(settings.presence), clients.names)

    @classmethod
    def things(cls, settings: Scenario) -> tuple[object, ...]:
        """The behaviours that are named."""
        return behaviours(settings.presence)

    def count(self, clients: int) -> int:
        """As many as are drawn."""
        return self.drawing.count(clients)

    def rests(self, clients: int) -> bool:
        """Somebody may always be away."""
        return True

    def there(self, federation: Federation, round: int) -> Tensor:
        """The ids of those that can be asked in a round: `[n]`."""
        found = torch.ones(federation.clients, dtype=torch.bool)
        for part in self.parts:
            found &= part.there(federation, self.names, round)
        return federation.everyone[found]

    def asked(self, federation: Federation, there: Tensor, round: int) -> Tensor:
        """Whom the sampler draws of them."""
        return self.drawing.asked(federation, there, round)

    def answering(self, federation: Federation, asked: Tensor, round: int) -> Tensor:
        """The ids of those that answer in time: `[·]`."""
        found = torch.ones(len(asked), dtype=torch.bool)
        for part in self.parts:
            found &= part.answers(federation, asked, round)
        return asked[found]


def behaviours(text: str) -> tuple[Presence, ...]:
    """Those that a run's `presence` names.

    >>> behaviours("dropout:0.1+stragglers:0.2:slower=8")[1].slower
    8.0
    """
    return tuple(made(PRESENCES, part) for part in text.split("+")) if text else ()


def read_trace(path: str) -> tuple[tuple[str, int, float], ...]:
    """The lines of a trace by round: client, the first round, the probability."""
    try:
        return _lines_of(path, at_hand(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CoterieError(f"presence: {path} cannot be read as CSV ({error}); see docs/client-behaviour.md") from None


@lru_cache(maxsize=8)
def _lines_of(path: str, text: str) -> tuple[tuple[str, int, float], ...]:
    """The same of a file's text."""
    lines = list(csv.DictReader(io.StringIO(text)))
    found = []
    for number, line in enumerate(lines, 2):
        try:
            first, probability = int(line.get("round") or 1), float(line["probability"])
            client = line["client"]
        except (KeyError, TypeError, ValueError):
            raise CoterieError(
                f"presence: line {number} of {path} must have the columns client, probability and perhaps round"
            ) from None
        require(
            first >= 1 and 0 <= probability <= 1 and bool(client),
            f"presence: line {number} of {path}: a round counts from 1, a probability lies from 0 to 1",
        )
        found.append((client, first, probability))
    return tuple(sorted(found, key=lambda entry: entry[1]))


def _draws(federation: Federation, clients: Tensor, purpose: str, round: int) -> Tensor:
    """A number from 0 to 1 for each client, from its own stream: `[m]`, float64."""
    keys = federation.keys[clients].tolist()
    drawn = [float(numpy_stream(federation.seed, f"presence:{purpose}", round, key).random()) for key in keys]
    return torch.tensor(drawn, dtype=torch.float64)


def _some(federation: Federation, purpose: str, share: float) -> Tensor:
    """The ids of round(share · K) clients, drawn by key: `[·]`."""
    by_key = torch.argsort(federation.keys)
    count = round(share * federation.clients)
    stream = numpy_stream(federation.seed, f"presence:{purpose}")
    return by_key[torch.from_numpy(stream.choice(federation.clients, count, replace=False))]


def _turning(federation: Federation, purpose: str, share: float, first: int, last: int, otherwise: int) -> Tensor:
    """A round from `first` to `last` for each of a share of the clients, `otherwise` for all others: `[K]`."""
    rounds = torch.full((federation.clients,), otherwise)
    for client in _some(federation, purpose, share).tolist():
        stream = numpy_stream(federation.seed, f"presence:{purpose}", client=int(federation.keys[client]))
        rounds[client] = int(stream.integers(first, max(first, last) + 1))
    return rounds


def _require_share(option: str, value: float) -> None:
    require(0 <= value <= 1 and not math.isnan(value), f"{option} = {value}: must lie from 0 to 1")
