"""Who does a kind of work faster, by what it really took: looked at again and again, at a bounded price."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

# A contestant is judged by the median of its last measurements: one disturbance does not count, a lasting change does.
REMEMBERED = 3
# Trying the others again may cost this share of the time that the leader has worked since.
PRICE = 0.02
# The first piece of work is slower (memory, kernels); it does not count unless it takes so many seconds.
WARM_UP = 5.0


class Contest:
    """Contestants by name, each with its last paces: seconds for a unit of work.

    >>> contest = Contest()
    >>> for name, seconds in (("serial", 9), ("serial", 2), ("processes", 9), ("processes", 1)):
    ...     contest.observe(name, amount=100, seconds=seconds)
    >>> contest.leader(["serial", "processes"]), contest.choose(["serial", "processes"])
    ('processes', 'processes')
    >>> contest.choose(["serial"])
    'serial'
    """

    def __init__(self) -> None:
        self._paces: dict[str, deque[float]] = {}
        self._warm: set[str] = set()
        self._worked: dict[str, float] = {}  # seconds of the others since a contestant last had a turn
        self._usual = 0.0  # the amount of a piece of work

    def observe(self, name: str, amount: int, seconds: float) -> None:
        """Somebody has done so much in so many seconds."""
        if name not in self._warm:
            self._warm.add(name)
            if seconds < WARM_UP:
                return
        amount = max(amount, 1)
        self._usual = float(amount)
        self._paces.setdefault(name, deque(maxlen=REMEMBERED)).append(seconds / amount)
        for other in self._paces:
            self._worked[other] = 0.0 if other == name else self._worked.get(other, 0.0) + seconds

    def pace(self, name: str) -> float | None:
        """The seconds that a unit of work takes somebody, as far as is known."""
        found = self._paces.get(name)
        return statistics.median(found) if found else None

    def leader(self, names: Sequence[str]) -> str:
        """The fastest of some; one that is not known yet comes first of all."""
        return min(names, key=lambda name: self.pace(name) or 0.0)

    def choose(self, names: Sequence[str]) -> str:
        """Who is to do the next piece: the leader, or now and then another, to see whether that is still so."""
        leader = self.leader(names)
        best = self.pace(leader)
        for other in names:
            pace = self.pace(other)
            if other == leader or pace is None or best is None:
                continue
            lost = (pace - best) * self._usual
            if lost < PRICE * self._worked[other]:
                return other
        return leader
