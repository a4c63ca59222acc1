"""How a mix makes new rows of rows. The usual way is a weighted mean; a defence may bound its weights, or do otherwise.

Every mix of every method goes through here, be it made in the exchange or at download. A defence that works on weights
overrides `Reducer.weights`, one that works on numbers (a trimmed mean, a median) `Reducer.reduce`. What works on whole
uploads (a quarantine, Krum) decides earlier which of them count at all: see `coterie.rounds.quarantine`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.defence import Defence

EXACT = 1e-9  # what sums of shares may be off by


class Reducer:
    """The weighted mean."""

    def weights(self, weights: Tensor, own: Tensor | None) -> Tensor | None:
        """The weights `[r, m]` that are used in place of these; None if the mix must not be carried out.

        `own [r, m]` (bool) says which entry of a row is the learner itself; there is none where a row is for everybody.
        """
        return weights

    def reduce(self, weights: Tensor, rows: Tensor) -> Tensor:
        """New rows `[r, c]` from weights `[r, m]` and some columns of the contributors' `rows [m, c]`."""
        return weights @ rows


class ShareLimit(Reducer):
    """The weighted mean in which nobody else counts for more than a share of it."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def weights(self, weights: Tensor, own: Tensor | None) -> Tensor | None:
        """Weights with bounded shares."""
        return limited(weights, self.limit, own)


MEAN = Reducer()


def reducer_of(defence: Defence) -> Reducer:
    """How a run's mixes are made."""
    return ShareLimit(defence.share_limit) if defence.bounds else MEAN


def limited(weights: Tensor, limit: float, own: Tensor | None = None) -> Tensor | None:
    """Weights `[r, m]` of which none but a learner's own is above the limit, as near to the given ones as can be.

    What is above the limit goes to the other contributors (those of non-zero weight, the learner among them) in
    proportion to their weights, and so on until nobody is above it: w'_j = min(limit, λ w_j), own λ w_i, with the λ for
    which the row sums to one. If all others are at the limit and the learner has no weight of its own, the rest is its
    own. Where there is no learner to take it, as in a row that is for everybody, fewer than 1 / limit contributors
    cannot keep the limit: None. Rows in which nobody is above the limit stay as they are, to the bit.

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
    full = above[rows]
    while True:
        free = shares.masked_fill(full, 0)
        left = 1 - limit * full.sum(1).double()
        total = free.sum(1)
        # Nobody is left to take anything: what is then missing goes to the learner itself, if there is one.
        spread = free / total.where(total > 0, 1)[:, None] * left[:, None]
        over = (spread > limit) & ~mine
        if not bool(over.any()):
            break
        full |= over
    found = spread.masked_fill(full, limit)
    missing = 1 - found.sum(1)
    if bool(((missing > EXACT) & ~mine.any(1)).any()):
        return None
    found = torch.where(mine & (missing > EXACT)[:, None], found + missing[:, None], found)
    bounded = given.clone()
    bounded[rows] = found
    return bounded
