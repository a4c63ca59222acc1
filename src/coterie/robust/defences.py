"""The defences that a run can name: mixes that a few hostile or broken clients cannot bend at will.

Each is a robust reducer of (W, rows), so it wraps any method's mixes, shared or personal. All take the method's W for
what it says: who is to be learned from, and how much. Where they cannot, they refuse in words. A learner trusts itself:
what others lose is its own wherever its own row is among the sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.applying import EXACT
from coterie.errors import CoterieError, require
from coterie.robust.reducing import ROUNDING, Contributions, Reduced, Reducer, lacking, limited

ALIKE = 1e-4
"""By how much weights that count as equal may differ, relatively."""


@dataclass(frozen=True)
class Clip(Reducer):
    """Norm clipping: nobody moves a learner further than `times` the median of all who would move it.

    With c the learner's own row (what stands there, where the result is shared or the learner sent nothing) and
    d_j = ‖x_j − c‖, the result is c + Σ_j w_j min(1, τ / d_j) (x_j − c), τ = times · median of d_j over the others of
    non-zero weight (Sun et al. 2019; around oneself: He, Karimireddy and Jaggi 2022). That is a change of weights: what
    x_j loses is c's.
    """

    times: float = 1.0

    def __post_init__(self) -> None:
        require(self.times > 0, f"times = {self.times}: must be greater than 0")

    def weights(self, mix: Contributions) -> Tensor:
        """The weights that are left, the rest being the learner's own."""
        mix = mix.for_each_learner()
        given, own = mix.weights.double(), mix.own
        others = given > 0 if own is None else (given > 0) & ~own
        if not bool(others.any()):
            return mix.weights
        far = self._distances(mix).sqrt()
        usual = torch.nanquantile(far.masked_fill(~others, torch.nan), 0.5, dim=1, keepdim=True)
        allowed = self.times * usual.nan_to_num(nan=0.0)
        shrunk = torch.where(others & (far > allowed), given * (allowed / far.clamp(min=1e-300)), given)
        return shrunk if own is None else shrunk + own * (given.sum(1) - shrunk.sum(1))[:, None]

    def _distances(self, mix: Contributions) -> Tensor:
        """How far the sources are from each learner: `[r, m]`, squared."""
        own = mix.own
        if own is None:
            return mix.moved()
        here = own.any(1)
        apart = mix.apart()[own.int().argmax(1)]
        return apart if bool(here.all()) else torch.where(here[:, None], apart, mix.moved())


@dataclass(frozen=True)
class TrimmedMean(Reducer):
    """The mean, column by column, without the smallest and the largest numbers: a `share` of the weight at each end.

    Sorted by x, source j covers a stretch of length w_j of [0, 1]; it counts for what lies in [share, 1 − share],
    divided by 1 − 2 share. With equal weights this is the trimmed mean of Yin et al. (2018). It withstands hostile
    clients as long as their weight in W is at most `share`.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.share < 0.5, f"share = {self.share}: must be at least 0 and less than 0.5 (that is 'median')")

    def reduce(self, weights: Tensor, rows: Tensor) -> Reduced:
        """Sort every column, and count what is not cut off."""
        return _by_column(weights, rows, self._counts)

    def _counts(self, upto: Tensor, weights: Tensor) -> Tensor:
        low, high = self.share, 1 - self.share
        return (upto.clamp(max=high) - (upto - weights).clamp(min=low)).clamp(min=0) / (high - low)


@dataclass(frozen=True)
class Median(Reducer):
    """The weighted median, column by column (Yin et al. 2018 with W's weights).

    The smallest number up to which half of the weight lies; the mean of two where exactly half lies up to the first.
    It withstands hostile clients as long as their weight in W is less than a half.
    """

    def reduce(self, weights: Tensor, rows: Tensor) -> Reduced:
        """Sort every column, and count the middle."""
        return _by_column(weights, rows, _middle)


def _middle(upto: Tensor, weights: Tensor) -> Tensor:
    """What each of sorted numbers counts for in the median, `upto [m, c]` being the weight up to and with each."""
    below = upto - weights
    lower = (upto >= 0.5 - ROUNDING) & (below < 0.5 - ROUNDING) & (weights > 0)
    upper = (upto > 0.5 + ROUNDING) & (below <= 0.5 + ROUNDING) & (weights > 0)
    return (lower.double() + upper.double()) / 2


def _by_column(weights: Tensor, rows: Tensor, counts: Callable[[Tensor, Tensor], Tensor]) -> Reduced:
    """Reduce every column of `rows [m, c]` on its own by what sorted numbers count for."""
    different, which = weights.double().unique(dim=0, return_inverse=True)
    values = torch.empty(len(different), rows.shape[1], dtype=torch.float64)
    counted = torch.zeros(len(different), len(rows), dtype=torch.float64)
    numbers, members = rows.double(), which[:0]
    for number, row in enumerate(different):
        contributors = row.nonzero()[:, 0]
        if not contributors.equal(members):  # often the same as those of the row before
            members, (ordered, places) = contributors, numbers[contributors].sort(0)
        sorted_weights = row[members][places]
        used = counts(sorted_weights.cumsum(0), sorted_weights)
        values[number] = (used * ordered).sum(0)
        shares = torch.zeros(len(members), dtype=torch.float64)
        counted[number, members] = shares.index_add_(0, places.flatten(), used.flatten())
    return Reduced(values[which].to(rows.dtype), counted[which])


@dataclass(frozen=True)
class Krum(Reducer):
    """The one row that lies nearest to the others (Blanchard et al. 2017), if at most `hostile` of them are hostile.

    Of n contributors (those of non-zero weight), each is scored by the sum of its squared distances to the n −
    hostile − 2 nearest others; the lowest wins, the first of equals. It needs n ≥ 2 · hostile + 3, and knows no
    weights: only rows of W whose contributors count the same can be honoured (others: `multi-krum`). Rows without
    others stay.
    """

    hostile: int = 1

    def __post_init__(self) -> None:
        require(self.hostile >= 0, f"hostile = {self.hostile}: must not be negative")

    def lacks(self, contributors: int) -> str:
        """Fewer than 2f + 3 may be outvoted."""
        least = 2 * self.hostile + 3
        if contributors >= least:
            return ""
        return f"a mix of {contributors} is too small for {self.hostile} hostile clients (at least {least})"

    def leaves(self, contributors: int) -> int:
        """The chosen alone have a weight."""
        return self.chosen(contributors)

    def weights(self, mix: Contributions) -> Tensor:
        """Weights for the chosen alone."""
        given, own = mix.weights.double(), mix.own
        counts = given > 0
        others = counts if own is None else counts & ~own
        found, apart, known = given.clone(), None, dict[tuple[int, ...], Tensor]()
        for row in others.any(1).nonzero()[:, 0].tolist():
            places = counts[row].nonzero()[:, 0]
            self._require(mix, row, given[row, places])
            key = tuple(places.tolist())
            if key not in known:
                apart = mix.apart() if apart is None else apart
                known[key] = self._order(apart[places][:, places])
            kept = torch.zeros_like(counts[row])
            kept[places[known[key][: self.chosen(len(places))]]] = True
            found[row] = self._shared_out(given[row], kept, None if own is None else own[row])
        return found

    def chosen(self, contributors: int) -> int:
        """How many of so many are chosen."""
        return 1

    def _require(self, mix: Contributions, row: int, weights: Tensor) -> None:
        """An error where it is not defined."""
        whose = "" if mix.own is None or mix.learners is None else f" of client {int(mix.learners[row])}"
        why = self.lacks(len(weights))
        if why:
            raise CoterieError(f"{mix.what}{whose}: {why}; fewer hostile ones can be named, or 'median' used")
        if type(self) is Krum and float(weights.max() / weights.min()) > 1 + ALIKE:
            raise CoterieError(
                f"{mix.what}{whose}: krum cannot honour weights from {float(weights.min()):.3g} to "
                f"{float(weights.max()):.3g}; use multi-krum, median or trimmed-mean"
            )

    def _order(self, apart: Tensor) -> Tensor:
        """The contributors by their scores, from squared distances `[n, n]`: `[n]`."""
        near = len(apart) - self.hostile - 2
        others = apart + torch.diag(torch.full((len(apart),), math.inf, dtype=apart.dtype))
        scores = others.topk(near, dim=1, largest=False).values.sum(1)
        return scores.argsort(stable=True)

    def _shared_out(self, weights: Tensor, kept: Tensor, own: Tensor | None) -> Tensor:
        return kept.double()


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The weighted mean of the n − hostile − 2 rows with the best scores of `krum`, and of the learner's own.

    Their weights are those of W, divided by their sum.
    """

    def chosen(self, contributors: int) -> int:
        """All but the hostile and two more."""
        return contributors - self.hostile - 2

    def _shared_out(self, weights: Tensor, kept: Tensor, own: Tensor | None) -> Tensor:
        left = weights * (kept if own is None else kept | own)
        return left / left.sum()


@dataclass(frozen=True)
class Influence(Reducer):
    """Bounded influence, for methods in which clients choose whom to learn from.

    A client's influence is the mean over all learners but itself of its weight in their mixes, Σ_{i≠j} W_ij / r.
    Where that is above `limit`, its weights in others' mixes shrink in proportion until it is not, and what learners
    lose is their own. In a mix that all share, it is the share limit: what is above goes to the others. Learners are
    the cohort in an exchange; at download they are everybody, whoever downloads at that time: what a client receives
    does not depend on who is served with it.
    """

    limit: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.limit <= 1, f"limit = {self.limit}: must be above 0 and at most 1")

    def lacks(self, contributors: int) -> str:
        """Fewer than 1 / limit cannot all keep it in a mix that all share."""
        return lacking(contributors, self.limit)

    @property
    def spans_learners(self) -> bool:
        """Influence is counted over all learners."""
        return True

    def weights(self, mix: Contributions) -> Tensor | None:
        """Weights whose columns keep the limit."""
        own = mix.own
        if own is None:
            return limited(mix.weights, self.limit)
        given = mix.weights.double()
        influence = given.masked_fill(own, 0).sum(0) / len(given)
        if not bool((influence > self.limit).any()):
            return mix.weights
        factors = torch.where(influence > self.limit, self.limit / influence, 1.0)
        kept = torch.where(own, given, given * factors)
        missing = 1 - kept.sum(1)
        if bool(((missing > EXACT) & ~own.any(1)).any()):
            return None
        return kept + own * missing[:, None]
