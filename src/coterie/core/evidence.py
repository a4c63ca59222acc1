"""What differences between paired runs, one a seed, say of the true difference: an interval, and a word for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

ENOUGH_SEEDS = 3
"""Fewer seeds say which way a difference points, and no more."""
ERROR = 0.05
"""How often a true difference of nothing may be taken for one."""
MOST_SEEDS = 100
"""Where more would be needed, how many more is not said: the estimate is too rough."""
CLEAR = (
    f"with {ENOUGH_SEEDS} seeds or more, paired differences whose 95 % interval (Student's t) leaves out zero, after "
    "Holm's correction for several rivals"
)
"""What makes a lead clear, in words."""
Rival = TypeVar("Rival")


@dataclass(frozen=True)
class Evidence:
    """Paired differences, one a seed, as evidence of the true one.

    The interval is that of Student's t with n − 1 degrees of freedom: mean ± t · s/√n. It narrows with every seed, so
    that more seeds make a true difference clearer and a false one rarer.

    >>> evidence = Evidence.of([1.0, 2.0, 3.0])
    >>> evidence.mean, [round(end, 3) for end in evidence.interval], round(evidence.p, 4)
    (2.0, [-0.484, 4.484], 0.0742)
    >>> evidence.sign, Evidence.of([1.0, 1.2, 0.9]).sign, Evidence.of([1.0]).sign
    (0, 1, 0)
    """

    differences: tuple[float, ...]

    @classmethod
    def of(cls, differences: Iterable[float]) -> Evidence:
        """Those of some seeds."""
        return cls(tuple(differences))

    @property
    def seeds(self) -> int:
        """How many there are: n."""
        return len(self.differences)

    @property
    def finite(self) -> bool:
        """Whether every seed gave a number."""
        return bool(self.differences) and all(map(math.isfinite, self.differences))

    @property
    def mean(self) -> float:
        """The mean difference."""
        return fmean(self.differences)

    @property
    def _error_of_mean(self) -> float:
        """The standard error of the mean; infinite with a single seed, or where a seed has no number."""
        if self.seeds < 2 or not self.finite:
            return math.inf
        return stdev(self.differences) / math.sqrt(self.seeds)

    @property
    def interval(self) -> tuple[float, float]:
        """What covers the true difference in 95 of 100 cases."""
        if not math.isfinite(self._error_of_mean):
            return -math.inf, math.inf
        reach = _quantile(self.seeds) * self._error_of_mean
        return self.mean - reach, self.mean + reach

    @property
    def p(self) -> float:
        """How often differences as large as these would come from a true one of nothing."""
        error = self._error_of_mean
        if not math.isfinite(error):
            return 1.0
        if error == 0.0:  # what does not depend on the seed, such as bytes
            return 0.0 if self.mean else 1.0
        from scipy.stats import t

        return float(2 * t.sf(abs(self.mean) / error, self.seeds - 1))

    @property
    def sign(self) -> int:
        """The sign of the true difference, if it is clear; otherwise 0."""
        return self.direction if self.seeds >= ENOUGH_SEEDS and self.p < ERROR else 0

    @property
    def direction(self) -> int:
        """The sign of the mean."""
        return (self.mean > 0) - (self.mean < 0)

    def within(self, margin: float) -> bool:
        """Whether the whole interval lies within a margin of nothing, so that no difference that matters is left.

        >>> Evidence.of([0.1, -0.1, 0.0]).within(0.5), Evidence.of([1.0, -1.0, 0.0]).within(0.5)
        (True, False)
        """
        low, high = self.interval
        return self.seeds >= ENOUGH_SEEDS and -margin < low and high < margin

    @property
    def further_seeds(self) -> int | None:
        """About how many more seeds would make it clear, if mean and spread stay as they are; none: too many to say.

        >>> Evidence.of([1.0, 2.0, 3.0]).further_seeds, Evidence.of([1.0, -1.0, 0.1]).further_seeds
        (1, None)
        """
        return further_seeds(self.seeds, self.mean, stdev(self.differences)) if self.seeds > 1 and self.finite else None


def further_seeds(seeds: int, effect: float, deviation: float) -> int | None:
    """How many seeds beyond those there are let a 95 % interval leave out zero, for an effect and its spread by seed.

    >>> further_seeds(3, effect=1.0, deviation=1.0), further_seeds(3, effect=0.1, deviation=1.0)
    (4, None)
    """
    enough = (
        count
        for count in range(max(seeds, ENOUGH_SEEDS), MOST_SEEDS + 1)
        if _quantile(count) * deviation / math.sqrt(count) < abs(effect)
    )
    count = next(enough, None)
    return None if count is None else count - seeds


def clear_rivals(evidence: Mapping[Rival, Evidence]) -> dict[Rival, int]:
    """Against which of several rivals a difference is clear, by Holm's procedure: its sign, or 0.

    >>> one, two = Evidence.of([1.0, 1.2, 0.9]), Evidence.of([1.0, 1.6, 0.6])
    >>> round(one.p, 3), round(two.p, 3), clear_rivals({"a": one, "b": two}), clear_rivals({"b": two})
    (0.007, 0.067, {'a': 1, 'b': 0}, {'b': 0})
    """
    ps = {rival: known.p if known.seeds >= ENOUGH_SEEDS else 1.0 for rival, known in evidence.items()}
    adjusted = adjusted_by_holm(ps)
    return {rival: known.direction if adjusted[rival] < ERROR else 0 for rival, known in evidence.items()}


def adjusted_by_holm(ps: Mapping[Rival, float]) -> dict[Rival, float]:
    """How small several p are once it is allowed for that there are several, by Holm's procedure.

    Ordered by p, the i-th of m counts m − i + 1 times as much, and never less than those before it.

    >>> adjusted_by_holm({"a": 0.03, "b": 0.01, "c": 0.9})
    {'a': 0.06, 'b': 0.03, 'c': 0.9}
    """
    adjusted: dict[Rival, float] = dict.fromkeys(ps, 1.0)
    so_far = 0.0
    for place, rival in enumerate(sorted(ps, key=lambda rival: ps[rival])):
        so_far = adjusted[rival] = max(so_far, min(1.0, (len(ps) - place) * ps[rival]))
    return adjusted


def _quantile(seeds: int) -> float:
    """How many standard errors the interval of so many seeds reaches to either side."""
    from scipy.stats import t

    return float(t.ppf(1 - ERROR / 2, seeds - 1))
