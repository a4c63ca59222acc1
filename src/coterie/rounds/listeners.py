"""Whoever wants to know how a run goes: progress, records and byte counts are listeners, and so is what users add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.core.federation import Federation
from coterie.engines.base import Trained, Work
from coterie.errors import CoterieError
from coterie.registry import Registry, subclasses_of
from coterie.rounds.report import RoundReport
from coterie.typed import fitting


@dataclass(frozen=True)
class Start:
    """What is known before the first round."""

    method: str
    clients: tuple[str, ...]  # their names; a cohort's ids are places in here
    rounds: int  # how many there are to be in all
    first_round: int  # 1, or where a resumed run carries on
    federation: Federation  # the live state, to be read between rounds
    prepared: Any = None  # the experiment's `Prepared`: data, partition, model
    directory: Path | None = None  # where the run is kept, if it is
    moved: int = 0  # bytes up and down in the rounds before


@dataclass(frozen=True)
class Outcome:
    """How a run ended: finished, stopped by a listener, or broken off by an error."""

    rounds: int  # whole rounds in all, those before a resumption included
    summary: Mapping[str, Any] | None = None  # unless there was an error
    stopped: str | None = None
    error: BaseException | None = None
    quality: Mapping[str, Tensor] = field(default_factory=dict)  # what the task says of every client's finished model


class Listener:
    """Is told how a run goes. Override what you want to hear; the rest does nothing.

    `begin` comes first and `end` last, in every case. In each round: `delivered`, `clients_done` any number of times,
    `trained`, `round`. A listener ends the run with `report.stop("why")`. An exception ends it too: with a run
    directory, the last whole round is kept and the run can be resumed.

    >>> class Printer(Listener):
    ...     def round(self, report):
    ...         print(report.round, report.cohort)
    >>> Printer().round(RoundReport(1, cohort=[0, 2]))
    1 [0, 2]
    """

    def begin(self, start: Start) -> None:
        """Everything is prepared; the first round comes next."""

    def delivered(self, report: RoundReport, work: Work) -> None:
        """The cohort of a round is drawn and has what it downloads; next it does its work."""

    def clients_done(self, round: int, done: int, total: int) -> None:
        """So many of the cohort's clients are trained."""

    def trained(self, report: RoundReport, trained: Trained) -> None:
        """The cohort is trained; nothing is collected yet."""

    def round(self, report: RoundReport) -> None:
        """A round is over: exchanged and, where it was to be, evaluated."""

    def end(self, outcome: Outcome) -> None:
        """The run is over, whatever the reason."""


class StopAfter(Listener):
    """Ends a run after some of its rounds, where it is to be looked at or carried on later.

    >>> report = RoundReport(2, cohort=[0])
    >>> StopAfter(2).round(report)
    >>> report.stopped
    'after round 2, as wished'
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def round(self, report: RoundReport) -> None:
        """Stop if it is time."""
        if report.round >= self._rounds:
            report.stop(f"after round {report.round}, as wished", planned=True)


class Listeners(Listener):
    """Several listeners as one. They are told in the given order."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._all = tuple(listeners)
        self._begun: list[Listener] = []

    def begin(self, start: Start) -> None:
        """Tell all."""
        for listener in self._all:
            self._begun.append(listener)
            listener.begin(start)

    def delivered(self, report: RoundReport, work: Work) -> None:
        """Tell all."""
        for listener in self._all:
            listener.delivered(report, work)

    def clients_done(self, round: int, done: int, total: int) -> None:
        """Tell all."""
        for listener in self._all:
            listener.clients_done(round, done, total)

    def trained(self, report: RoundReport, trained: Trained) -> None:
        """Tell all."""
        for listener in self._all:
            listener.trained(report, trained)

    def round(self, report: RoundReport) -> None:
        """Tell all."""
        for listener in self._all:
            listener.round(report)

    def end(self, outcome: Outcome) -> None:
        """Tell all that were told of a beginning and not yet of an end.

        After an error it is that error that counts: what goes wrong at the end as well becomes a note to it.
        """
        while self._begun:
            listener = self._begun.pop(0)
            try:
                listener.end(outcome)
            except Exception as another:
                if outcome.error is None:
                    raise
                kind = type(another).__name__
                outcome.error.add_note(f"{type(listener).__name__}.end failed as well ({kind}: {another})")


GivenListener = Listener | type[Listener] | str
"""A listener as it is given: itself, its class, or its name (`LISTENERS`, or `./file.py:Name`)."""


def made_listeners(given: Sequence[GivenListener]) -> tuple[Listener, ...]:
    """The listeners that were given, by name, as classes or as they are.

    >>> class Quiet(Listener):
    ...     pass
    >>> [type(one).__name__ for one in made_listeners([Quiet, Quiet()])]
    ['Quiet', 'Quiet']
    """
    return tuple(_made(one) for one in fitting("listeners", given, Sequence[GivenListener]))


def _made(given: GivenListener) -> Listener:
    if isinstance(given, Listener):
        return given
    name, found = (given, LISTENERS.find(given)) if isinstance(given, str) else (given.__name__, given)
    try:
        return found()
    except TypeError as error:
        raise CoterieError(
            f"listener '{name}': cannot be made without options ({error}); give it as an object"
        ) from None


_OWN: dict[str, type[Listener] | str] = {
    "tensorboard": "coterie.loggers.tensorboard:TensorBoard",
    "wandb": "coterie.loggers.wandb:WandB",
}

LISTENERS: Registry[type[Listener]] = Registry("listener", "coterie.listeners", _OWN, subclasses_of(Listener))
"""Listeners by name: classes that can be made without options."""
