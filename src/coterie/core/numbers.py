"""How numbers are read: those of a metric, those of several seeds, bytes.

Apart from tasks, so that whoever prints a finished run loads no PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from coterie.core.evidence import Evidence


@dataclass(frozen=True)
class Scale:
    """A metric's name, which of its numbers are better, and whether they are shares of one.

    >>> Scale("mae", higher_is_better=False).best([0.3, 0.2, 0.4])
    0.2
    """

    name: str
    higher_is_better: bool = True
    share: bool = False

    def best(self, values: Sequence[float]) -> float:
        """The best of the values; those that are no numbers do not count unless there are no others."""
        known = [value for value in values if not math.isnan(value)] or [math.nan]
        return max(known) if self.higher_is_better else min(known)

    def worst_first(self, values: Iterable[float]) -> list[float]:
        """The values sorted, the worst of them first.

        >>> Scale("mae", higher_is_better=False).worst_first([0.3, 0.2, 0.4])
        [0.4, 0.3, 0.2]
        """
        return sorted(values, reverse=not self.higher_is_better)

    def lead(self, ours: float, theirs: float) -> float:
        """By how much `ours` is better than `theirs`."""
        return ours - theirs if self.higher_is_better else theirs - ours

    @property
    def title(self) -> str:
        """What a table of its numbers is called.

        >>> ACCURACY.title, Scale("mae").title
        ('Accuracy in %', 'mae')
        """
        return f"{self.name.capitalize()} in %" if self.share else self.name


NO_NUMBER = "–"
"""What stands for a number that is none."""
ACCURACY = Scale("accuracy", share=True)


def judged_scale(summary: Mapping[str, Any]) -> Scale:
    """The scale of the metric that a run is judged by, from its summary: accuracy unless that says otherwise.

    >>> judged_scale({}).name
    'accuracy'
    """
    if "task" not in summary:
        return ACCURACY
    name = summary["task"]["judged_by"]
    return Scale(name, **summary["task"]["metrics"][name])


def number_text(value: float | None) -> str:
    """A metric's value for people; a dash if there is none.

    >>> number_text(0.25), number_text(1e30), number_text(None)
    ('0.2500', '1e+30', '–')
    """
    if value is None or math.isnan(value):
        return NO_NUMBER
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"


def spoken_bytes(count: float) -> str:
    """A number of bytes for people.

    >>> spoken_bytes(0), spoken_bytes(19_240), spoken_bytes(2_500_000)
    ('0 B', '19.2 kB', '2.5 MB')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


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

    @property
    def evidence(self) -> Evidence:
        """The same as differences that are evidence of a true one."""
        return Evidence.of(self.by_seed.values())
