"""Local training with all rates halved, for a federation in which it diverged at too many sites."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from coterie.core.training import Training


@dataclass(frozen=True, kw_only=True)
class SlowedTraining(Training):
    """Settings of training whose rates are halved so many times, those of phases and methods too."""

    halvings: int = 0

    def factor(self, round: int, rounds: int) -> float:
        """By how much all rates are scaled in a round, counted from 1."""
        return super().factor(round, rounds) / (1 << self.halvings)


def slowed(training: Training, halvings: int) -> Training:
    """The same settings with rates halved so many times.

    >>> slowed(Training(lr=0.4), 2).rate(round=1, rounds=10)
    0.1
    """
    return SlowedTraining(**asdict(training.training), halvings=halvings) if halvings else training.training
