"""What a search may try: for each option some values, or a range of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.errors import CoterieError, require
from coterie.rng import numpy_stream

DIGITS = 4
"""Significant digits of numbers that are drawn from a range: more make names longer, and no setting better."""
DECADE = 10.0
ATTEMPTS = 50
"""Draws for each setting that is wanted, until it is taken that there are no more."""


@dataclass(frozen=True)
class ValueRange:
    """All numbers from `low` to `high`, or the whole ones among them.

    Where the ends are positive and lie a factor of ten or more apart, factors are alike: 0.001..0.1 has half of its
    numbers below 0.01.

    >>> ValueRange(0.001, 0.1).at(0.5), ValueRange(1, 5, whole=True).at(0.5), ValueRange(0, 1).at(0.25)
    ('0.01', '3', '0.25')
    """

    low: float
    high: float
    whole: bool = False

    @classmethod
    def read(cls, text: str) -> ValueRange | None:
        """The range that a text `LOW..HIGH` describes, whole numbers if its ends are; nothing if it describes none."""
        low, dots, high = (part.strip() for part in text.partition(".."))
        if not dots or "/" in text:  # a path may have dots too
            return None
        try:
            whole = all(part.lstrip("+-").isdecimal() for part in (low, high))
            ends = cls(float(low), float(high), whole)
        except ValueError:
            raise CoterieError(f"'{text}': a range is LOW..HIGH, two numbers") from None
        require(math.isfinite(ends.low) and math.isfinite(ends.high), f"'{text}': the ends of a range are finite")
        require(ends.low < ends.high, f"'{text}': the first number of a range is the smaller one")
        return ends

    @property
    def by_factors(self) -> bool:
        """Whether factors are alike rather than differences."""
        return self.low > 0 and self.high >= DECADE * self.low

    def at(self, place: float) -> str:
        """The number at a place from 0 to 1, as it is written."""
        if self.by_factors:
            value = math.exp(math.log(self.low) * (1 - place) + math.log(self.high) * place)
        else:
            value = self.low * (1 - place) + self.high * place
        return self.written(value)

    def written(self, value: float) -> str:
        """A number of the range as text."""
        within = min(max(value, self.low), self.high)
        return str(round(within)) if self.whole else f"{within:.{DIGITS}g}"


Space = Mapping[str, Sequence[str] | ValueRange]
"""For each option its values as texts, or a range."""


def read_space(
    option: str, texts: Sequence[str], fractions: Collection[str] = ()
) -> dict[str, Sequence[str] | ValueRange]:
    """Options and what to try for each; `option` is the name of that on the command line.

    Numbers of those among `fractions` need not be whole, however the ends of a range are written.

    >>> read_space("grid", ["lr=0.01,0.05", "mu=0"])
    {'lr': ['0.01', '0.05'], 'mu': ['0']}
    >>> read_space("grid", ["lr=0.001..0.1"])
    {'lr': ValueRange(low=0.001, high=0.1, whole=False)}
    """
    space: dict[str, Sequence[str] | ValueRange] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name, tried = name.strip().replace("-", "_"), [value.strip() for value in values.split(",") if value.strip()]
        require(bool(name and equals and tried), f"{option} = '{text}': must be NAME=VALUE,VALUE,… or NAME=LOW..HIGH")
        require(name not in space, f"{option} = '{text}': {name} is given twice")
        ranges = [ValueRange.read(value) for value in tried]
        if ranges == [None] * len(ranges):
            space[name] = tried
        else:
            require(ranges[0] is not None and len(ranges) == 1, f"{option} = '{text}': is a range or values, not both")
            assert ranges[0] is not None
            space[name] = replace(ranges[0], whole=ranges[0].whole and name not in fractions)
    return space


def grid_of(space: Space, draw: int | None = None, seed: int = 0) -> list[dict[str, str]]:
    """Every combination of values, or `draw` of them by chance, of which ranges have no end.

    >>> grid_of({"lr": ["0.1", "0.2"], "mu": ["0"]})
    [{'lr': '0.1', 'mu': '0'}, {'lr': '0.2', 'mu': '0'}]
    """
    lists = {name: values for name, values in space.items() if not isinstance(values, ValueRange)}
    if len(lists) < len(space):
        ranges = ", ".join(name for name in space if name not in lists)
        require(draw is not None, f"{ranges}: a range has no end of values; --random N or --optuna N tries so many")
        assert draw is not None
        return _drawn(space, draw, seed)
    whole = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    if draw is None or draw >= len(whole):
        return whole
    chosen = numpy_stream(seed, "sweep").choice(len(whole), draw, replace=False)
    return [whole[place] for place in sorted(chosen.tolist())]


def _drawn(space: Space, draw: int, seed: int) -> list[dict[str, str]]:
    """So many different settings by chance; fewer if there are no more."""
    stream = numpy_stream(seed, "sweep")
    drawn: list[dict[str, str]] = []
    for _ in range(ATTEMPTS * draw):
        places = stream.random(len(space)).tolist()
        settings = {
            name: values.at(place) if isinstance(values, ValueRange) else values[int(place * len(values))]
            for place, (name, values) in zip(places, space.items(), strict=True)
        }
        if settings not in drawn:
            drawn.append(settings)
        if len(drawn) == draw:
            break
    return drawn
