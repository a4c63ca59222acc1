"""What happened in a round, as listeners are told it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from coterie.client.effort import Effort
from coterie.core.exchange import Applied
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
    efforts: list[Effort] = field(default_factory=list)  # of the cohort; none where it is not told
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
