"""Whether taking part pays: the federation's model against one that trained alone, on the same held-out samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

NORMAL = 1.959964  # standard deviations around the mean within which 95 % of a normal distribution lie


@dataclass(frozen=True)
class Gain:
    """The difference of two shares of right answers in points, and where it lies with 95 % confidence.

    The confidence is about the held-out samples, of which there are so many; not about chance in training.
    """

    points: float
    low: float
    high: float
    samples: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0

    @property
    def sentence(self) -> str:
        """What that means, in words.

        >>> print(paired_gain(60, 20, 412).sentence)
        Taking part gains you +9.7 points of accuracy (95 % interval +5.5 to +13.8, 412 held-out samples).
        >>> print(paired_gain(1, 0, 9).sentence)
        It is not clear yet whether taking part pays: +11.1 points of accuracy (95 % interval −21.3 to +39.5, 9 \
held-out samples).
        """
        told = f"{_signed(self.points)} points of accuracy"
        around = f"(95 % interval {_signed(self.low)} to {_signed(self.high)}, {self.samples} held-out samples)"
        if not self.clear:
            return f"It is not clear yet whether taking part pays: {told} {around}."
        return f"Taking part {'gains' if self.points > 0 else 'costs'} you {told} {around}."


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def paired_gain(better: int, worse: int, samples: int) -> Gain | None:
    """The gain where one model alone is right on `better` of the samples and the other alone on `worse`; none without.

    The interval is Bonett and Price's for the difference of paired proportions (2012): one sample more is counted each
    way, so that it holds for few samples too, and is not empty where both models are right on the same ones.
    """
    if not samples:
        return None
    total = samples + 2
    ours, theirs = (better + 1) / total, (worse + 1) / total
    spread = NORMAL * math.sqrt((ours + theirs - (ours - theirs) ** 2) / total)
    low, high = max(-1.0, ours - theirs - spread), min(1.0, ours - theirs + spread)
    return Gain(100 * (better - worse) / samples, 100 * low, 100 * high, samples)
