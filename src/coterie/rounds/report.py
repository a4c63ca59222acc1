"""What happened in a round, as listeners are told it."""

from __future__ import annotations

from dataclasses import dataclass, field

from coterie.core.exchange import Applied
from coterie.rounds.evaluate import Evaluation


@dataclass
class RoundReport:
    """What happened in a round."""

    round: int
    cohort: list[int]
    received: Evaluation | None = None
    trained: Evaluation | None = None
    stored: Evaluation | None = None  # where not everybody took part; otherwise it is what `trained` is
    cohort_trained: Evaluation | None = None  # of the cohort alone, likewise
    training: Evaluation | None = None  # of the cohort, on the samples it trains on, while it does
    mixes: list[Applied] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)  # asked, but no part of the cohort: they did not answer in time
    diverged: list[int] = field(default_factory=list)
    quarantined: dict[int, str] = field(default_factory=dict)  # whose uploads were set aside, and why
    tuning_diverged: list[int] = field(default_factory=list)  # tested with the model that was to be tuned
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None

    def stop(self, reason: str) -> None:
        """Let the run end with this round; the first reason given is the one that is recorded.

        >>> report = RoundReport(3, cohort=[0, 1])
        >>> report.stop("good enough")
        >>> report.stop("out of time")
        >>> report.stopped
        'good enough'
        """
        if self.stopped is None:
            self.stopped = reason
