"""What happened in a round, and who is told: progress, records, byte counts, and what users add, are listeners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from coterie.client.effort import EffortColumns
from coterie.core.exchange import Applied
from coterie.core.federation import Federation
from coterie.engines.base import Trained, Work
from coterie.errors import require
from coterie.rounds.evaluate import Evaluation, Moment


class Note(msgspec.Struct, frozen=True):
    """What a part of a round leaves in its report, and in the record of the run: plain values, which a part adds."""

    def warnings(self) -> Iterator[tuple[int, str]]:
        """What the log should say of clients."""
        yield from ()

    @property
    def shown(self) -> str:
        """What is shown beside the progress of a run; nothing by default."""
        return ""


@dataclass
class RoundReport:
    """What happened in a round."""

    round: int
    cohort: list[int]
    received: Evaluation | None = None
    trained: Evaluation | None = None
    stored: Evaluation | None = None  # where not everybody took part; otherwise it is what `trained` is
    everybody: dict[Moment, Evaluation] = field(default_factory=dict)  # in the end, where a sample is tested otherwise
    cohort_trained: Evaluation | None = None  # of the cohort alone, likewise
    training: Evaluation | None = None  # of the cohort, on the samples it trains on, while it does
    efforts: EffortColumns = field(default_factory=dict)  # of the cohort; none where it is not told
    tuning: tuple[int, int] = (0, 0)  # gradients of all tests in which clients tuned, and how many tests these are
    mixes: list[Applied] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)  # asked, but no part of the cohort: they did not answer in time
    diverged: list[int] = field(default_factory=list)
    tuning_diverged: list[int] = field(default_factory=list)  # tested with the model that was to be tuned
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    parts: dict[str, Note] = field(default_factory=dict)  # notes of stages, by their names
    hides_results: bool = False  # whether nobody may learn how good models are
    stopped: str | None = None

    def stop(self, reason: str, planned: bool = False) -> None:
        """Let the run end with this round; the first reason given is the one that is recorded.

        Where results are hidden, only what was `planned` beforehand may end it: a run that ends for how well it goes
        tells something of the data.

        >>> report = RoundReport(3, cohort=[0, 1])
        >>> report.stop("good enough")
        >>> report.stop("out of time")
        >>> report.stopped
        'good enough'
        """
        require(
            planned or not self.hides_results,
            f"a listener stops the run ({reason}), which tells of the data and is not accounted for; leave it out, or "
            "privacy",
        )
        if self.stopped is None:
            self.stopped = reason


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
