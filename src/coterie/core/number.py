"""Numbers that were measured with several seeds, and when one is clearly above another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

ENOUGH_SEEDS = 3
"""Fewer seeds say which way a difference points, and no more."""
CLEAR = (
    f"with {ENOUGH_SEEDS} seeds or more, the differences seed by seed all have one sign and a mean that is larger than "
    "their standard deviation"
)
"""What `clear_sign` asks for, in words."""


@dataclass(frozen=True)
class Number:
    """A number that was measured with some seeds.

    >>> Number({0: 0.5, 1: 0.7}).mean, Number({0: 0.5}).std
    (0.6, None)
    """

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds (n - 1); none with one seed, NaN if a seed has no finite number."""
        if len(self.by_seed) < 2:
            return None
        return stdev(self.by_seed.values()) if all(map(math.isfinite, self.by_seed.values())) else math.nan

    def minus(self, other: Number) -> Number | None:
        """The paired differences of the seeds that both have; nothing if they share none."""
        both = sorted(self.by_seed.keys() & other.by_seed.keys())
        return Number({seed: self.by_seed[seed] - other.by_seed[seed] for seed in both}) if both else None


def clear_sign(differences: Iterable[float]) -> int:
    """The sign of paired differences, one a seed, if it is clear (see `CLEAR`); 0 if it is not.

    >>> clear_sign([1.0, 1.2, 0.9]), clear_sign([-2.0, -2.1, -1.9]), clear_sign([2.0, 2.0])
    (1, -1, 0)
    >>> clear_sign([0.3, 0.1, 0.0]), clear_sign([0.1, 0.1, 3.0])
    (0, 0)
    """
    values = list(differences)
    if len(values) < ENOUGH_SEEDS or not all(map(math.isfinite, values)) or abs(fmean(values)) <= stdev(values):
        return 0
    if all(value > 0 for value in values):
        return 1
    return -1 if all(value < 0 for value in values) else 0
