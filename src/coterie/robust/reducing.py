"""How a mix makes new rows of rows. The usual way is a weighted mean; a defence may bound its weights, or do otherwise.

Every mix of every method goes through here, be it made in the exchange or at download. A defence that works on weights
overrides `Reducer.weights`, one that works on numbers (a trimmed mean, a median) `Reducer.reduce`. What works on whole
uploads decides earlier which of them count at all: see `coterie.robust.quarantine`.

The defences that runs can name stand in `coterie.robust.defences`; packages add theirs with an entry point of the group
`coterie.defences`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.applying import EXACT
from coterie.errors import require
from coterie.options import made
from coterie.registry import Registry, subclasses_of
from coterie.robust.options import Defence
from coterie.typed import TypedOptions

ROUNDING = 1e-6
"""What sums of weights in single precision may be off by."""


@dataclass(frozen=True)
class Contributions:
    """What a mix is made of, as a defence sees it.

    `weights [r, m]` are those that the method asks for: a row per learner, or one for all. `learners [n]` are the
    clients that the result is for (none if it is shared), `sources [m]` those whose rows are mixed. `blocks` gives
    some columns at a time of the sources' rows `[m, c]` and of what stands where the result will be written (`[1, c]`
    if that is shared, else `[n, c]`). `what` names the mix in messages.
    """

    weights: Tensor
    learners: Tensor | None
    sources: Tensor
    blocks: Callable[[], Iterator[tuple[Tensor, Tensor]]]
    what: str = "a mix"

    @property
    def own(self) -> Tensor | None:
        """Which entry of a row is the learner itself: `[r, m]` bool; there is none where a row is for all."""
        if self.learners is None or len(self.weights) != len(self.learners):
            return None
        return self.learners[:, None] == self.sources

    def for_each_learner(self) -> Contributions:
        """The same with a row of weights for each learner, unless the result is shared."""
        if self.learners is None or len(self.weights) == len(self.learners):
            return self
        return replace(self, weights=self.weights.expand(len(self.learners), -1))

    def apart(self) -> Tensor:
        """The squared distances of the sources' rows from each other: `[m, m]`, float64."""
        total = torch.zeros(len(self.sources), len(self.sources), dtype=torch.float64)
        for rows, _ in self.blocks():
            # Seen from their middle, honest rows stay apart however far off others are.
            seen = (rows - rows.median(0).values).double()
            total += _squares(seen, seen)
        return total.fill_diagonal_(0)

    def moved(self) -> Tensor:
        """The squared distances of the sources' rows from what stands where the result goes: `[1 or n, m]`, float64."""
        total = torch.zeros(())
        for rows, before in self.blocks():
            middle = rows.median(0).values
            total = total + _squares((before - middle).double(), (rows - middle).double())
        return total


def _squares(left: Tensor, right: Tensor) -> Tensor:
    """Squared distances between rows `[r, c]` and `[m, c]`: `[r, m]`."""
    both = left.square().sum(1)[:, None] + right.square().sum(1)
    return (both - 2 * (left @ right.T)).clamp(min=0)


@dataclass(frozen=True)
class Reduced:
    """New rows `[r, c]`, and what every source counted for in them, summed over the columns (`[r, m]`; none: as the
    weights say).
    """

    values: Tensor
    counted: Tensor | None = None


@dataclass(frozen=True)
class Reducer(metaclass=TypedOptions):
    """The weighted mean, and what defences override of it."""

    def lacks(self, contributors: int) -> str:
        """Why mixes of so many cannot be made, in words; empty if they can."""
        return ""

    def leaves(self, contributors: int) -> int:
        """How many of so many still have a weight afterwards, at least."""
        return contributors

    def weights(self, mix: Contributions) -> Tensor | None:
        """The weights `[r, m]` that are used in place of the mix's; None if it must not be carried out.

        There may be a row per learner where there was one for all. What a row lacks of one stays what it was.
        """
        return mix.weights

    def reduce(self, weights: Tensor, rows: Tensor) -> Reduced:
        """New rows `[r, c]` from weights `[r, m]` and some columns of the contributors' `rows [m, c]`."""
        return Reduced(weights @ rows)

    @property
    def is_mean(self) -> bool:
        """Whether rows are reduced by their weighted mean, whatever becomes of the weights."""
        return type(self).reduce is Reducer.reduce

    @property
    def spans_learners(self) -> bool:
        """Whether a learner's weights depend on the other learners' too, so that all of them must be seen at once."""
        return False


@dataclass(frozen=True)
class ShareLimit(Reducer):
    """The weighted mean in which nobody else counts for more than a share of it."""

    limit: float

    def lacks(self, contributors: int) -> str:
        """Fewer than 1 / limit cannot all keep it."""
        return lacking(contributors, self.limit)

    def weights(self, mix: Contributions) -> Tensor | None:
        """Weights with bounded shares."""
        return limited(mix.weights, self.limit, mix.own)


@dataclass(frozen=True)
class InTurn(Reducer):
    """One defence after the other: all have their say about weights, and at most one makes other than means."""

    parts: tuple[Reducer, ...]

    def __post_init__(self) -> None:
        others = [type(part).__name__ for part in self.parts if not part.is_mean]
        require(len(others) < 2, f"defence: {' and '.join(others)} both replace the mean; name one of them")

    def lacks(self, contributors: int) -> str:
        """What the first of them lacks that lacks anything, given how many those before it leave."""
        for part in self.parts:
            why = part.lacks(contributors)
            if why:
                return why
            contributors = part.leaves(contributors)
        return ""

    def leaves(self, contributors: int) -> int:
        """How many are left after all of them."""
        for part in self.parts:
            contributors = part.leaves(contributors)
        return contributors

    def weights(self, mix: Contributions) -> Tensor | None:
        """What becomes of the weights in the end."""
        for part in self.parts:
            found = part.weights(mix)
            if found is None:
                return None
            mix = replace(mix, weights=found)
        return mix.weights

    def reduce(self, weights: Tensor, rows: Tensor) -> Reduced:
        """What the one says that makes other than means."""
        return next((part for part in self.parts if not part.is_mean), MEAN).reduce(weights, rows)

    @property
    def spans_learners(self) -> bool:
        """Whether any of them does."""
        return any(part.spans_learners for part in self.parts)


MEAN = Reducer()

DEFENCES: Registry[type[Reducer]] = Registry(
    "defence",
    "coterie.defences",
    {
        "clip": "coterie.robust.defences:Clip",
        "influence": "coterie.robust.defences:Influence",
        "krum": "coterie.robust.defences:Krum",
        "median": "coterie.robust.defences:Median",
        "multi-krum": "coterie.robust.defences:MultiKrum",
        "trimmed-mean": "coterie.robust.defences:TrimmedMean",
    },
    subclasses_of(Reducer),
)
"""Every defence by name: a class that extends `Reducer`."""


def reducer_of(defence: Defence) -> Reducer:
    """How a run's mixes are made. The share limit has the last word about weights, so that it holds for what is used.

    >>> reducer_of(Defence(defence="clip:2+median", share_limit=0.5))
    InTurn(parts=(Clip(times=2.0), Median(), ShareLimit(limit=0.5)))
    """
    parts = [made(DEFENCES, text) for text in defence.defence.split("+")] if defence.defence else []
    if defence.share_limit < 1:
        parts.append(ShareLimit(defence.share_limit))
    return InTurn(tuple(parts)) if len(parts) > 1 else parts[0] if parts else MEAN


def lacking(contributors: int, limit: float) -> str:
    """Why so many cannot all count for at most a share; empty if they can.

    >>> lacking(2, 0.4)
    'a mix of 2 cannot keep it (at least 0.5)'
    """
    if contributors * limit >= 1 - EXACT:
        return ""
    least = 1 / contributors if contributors else math.inf
    return f"a mix of {contributors} cannot keep it (at least {least:.4g})"


def limited(weights: Tensor, limit: float, own: Tensor | None = None) -> Tensor | None:
    """Weights `[r, m]` of which none but a learner's own is above the limit, as near to the given ones as can be.

    What is above the limit goes to the other contributors (those of non-zero weight, the learner among them) in
    proportion to their weights, and so on until nobody is above it: w'_j = min(limit, λ w_j), own λ w_i, with the λ for
    which the row sums to what it did (less than one where a part stays what it was). If all others are at the limit
    and the learner has no weight of its own, the rest is its own. Where there is no learner to take it, as in a row
    that is for everybody, fewer than 1 / limit contributors cannot keep the limit: None. Rows in which nobody is above
    the limit stay as they are, to the bit.

    >>> limited(torch.tensor([[0.7, 0.2, 0.1]]), 0.4)
    tensor([[0.4000, 0.4000, 0.2000]], dtype=torch.float64)
    >>> limited(torch.tensor([[0.7, 0.3]]), 0.4) is None
    True
    """
    given = weights.double()
    exempt = torch.zeros_like(given, dtype=torch.bool) if own is None else own
    above = (given > limit) & ~exempt
    rows = above.any(1)
    if not bool(rows.any()):
        return weights
    shares, mine = given[rows], exempt[rows]
    sums = shares.sum(1)
    sums = sums.where((1 - sums).abs() > ROUNDING, 1)
    full = above[rows]
    while True:
        free = shares.masked_fill(full, 0)
        left = sums - limit * full.sum(1).double()
        total = free.sum(1)
        # Nobody is left to take anything: what is then missing goes to the learner itself, if there is one.
        spread = free / total.where(total > 0, 1)[:, None] * left[:, None]
        over = (spread > limit) & ~mine
        if not bool(over.any()):
            break
        full |= over
    found = spread.masked_fill(full, limit)
    missing = sums - found.sum(1)
    if bool(((missing > EXACT) & ~mine.any(1)).any()):
        return None
    found = torch.where(mine & (missing > EXACT)[:, None], found + missing[:, None], found)
    bounded = given.clone()
    bounded[rows] = found
    return bounded
