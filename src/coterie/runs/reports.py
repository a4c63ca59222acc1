"""Which of the many numbers of a run somebody shows: a moment, a mean and a way to choose the round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.errors import unknown
from coterie.options import build
from coterie.rounds.evaluate import MOMENTS

OVER = {"mean": "clients", "weighted": "test samples"}
ROUNDS = {
    "best": "best round",
    "last": "last round",
    "last5": "mean of the last five",
    "by_validation": "best round by validation",
}


@dataclass(frozen=True)
class Reports:
    """Which of the recorded numbers a paper shows.

    >>> str(Reports("stored", "weighted", "last")), Reports().column
    ('stored, mean over test samples, last round', 'received.mean.best')
    """

    moment: str = "received"
    mean: str = "mean"
    round: str = "best"

    def __post_init__(self) -> None:
        for option, allowed in (("moment", MOMENTS), ("mean", OVER), ("round", ROUNDS)):
            if getattr(self, option) not in allowed:
                raise unknown(option, getattr(self, option), allowed)

    def changed(self, changes: Mapping[str, str]) -> Reports:
        """The same but for some of it."""
        return build("reports", "reports", Reports, {**vars(self), **changes})

    @property
    def column(self) -> str:
        """The name of the column that shows it."""
        return f"{self.moment}.{self.mean}.{self.round}"

    def __str__(self) -> str:
        return f"{self.moment}, mean over {OVER[self.mean]}, {ROUNDS[self.round]}"
