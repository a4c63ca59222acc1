"""Who is ahead, within a set and across sets: bootstraps, Wilcoxon's test with Holm's correction, a Bayesian test.

Within a set, clients are drawn first, then seeds: both are samples of those that there could be. Across sets, a set is
one observation. Differences are paired throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.evidence import ERROR, adjusted_by_holm
from coterie.rng import numpy_stream
from coterie.rounds.evaluate import Floats

DRAWS = 2000
"""Resamples of a bootstrap."""
BAYES_DRAWS = 20_000
PRIOR = 0.5
"""The weight of what is thought before: one further set, on which nothing differs."""
ALIKE = 0.005
"""Differences up to half a point are of no practical importance."""
FEWEST_SETS = 6
"""With fewer, no order has a p below 0.05, were it the same on all sets."""
Interval = tuple[float, float]


def hierarchical(
    values: Floats, of: Callable[[Floats], Floats], draws: int = DRAWS, seed: int = 0
) -> tuple[float, Interval]:
    """A number of `values [S, K]`, by seed and client, and its 95 % interval: clients are drawn, for each its seeds.

    `of` makes it from values by client, the means over seeds, along the last dimension.

    >>> hierarchical(np.array([[0.0, 1.0], [0.0, 1.0]]), mean_gain, draws=200)
    (0.5, (0.0, 1.0))
    """
    seeds, clients = values.shape
    stream = numpy_stream(seed, "benchmark:bootstrap")
    chosen = stream.integers(0, clients, size=(draws, 1, clients))
    drawn = stream.integers(0, seeds, size=(draws, seeds, clients))
    low, high = np.quantile(of(values[drawn, chosen].mean(1)), [ERROR / 2, 1 - ERROR / 2]).tolist()
    return float(of(values.mean(0))), (low, high)


def wilcoxon_p(differences: Sequence[float]) -> float:
    """Wilcoxon's signed-rank test, two-sided; sets without a difference are left out, and none at all proves nothing.

    >>> wilcoxon_p([1.0, 2.0, 3.0, 4.0, 5.0]), wilcoxon_p([0.0, 0.0])
    (0.0625, 1.0)
    """
    from scipy.stats import wilcoxon

    apart = [one for one in differences if one]
    return float(wilcoxon(apart).pvalue) if apart else 1.0


def against(rival: Mapping[str, float], others: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Of each of the `others`, the p of its differences to a rival over the sets that both have, after Holm."""
    ps = {}
    for name, scores in others.items():
        shared = sorted(scores.keys() & rival.keys())
        if len(shared) >= FEWEST_SETS:
            ps[name] = wilcoxon_p([scores[one] - rival[one] for one in shared])
    return adjusted_by_holm(ps)


@dataclass(frozen=True)
class Belief:
    """How probable it is that, on the next set, one is behind, alike or ahead: which of the three is likeliest."""

    behind: float
    alike: float
    ahead: float


def bayesian_signed_rank(differences: Sequence[float], alike: float = ALIKE, seed: int = 0) -> Belief:
    """The Bayesian signed-rank test of Benavoli and others (ICML 2014; arXiv 1606.04316), with a region that is alike.

    The sets' differences have Dirichlet weights, and so has one of nothing, which is the prior. A draw of weights says
    how much of all pairs' means lies beyond the region on either side or within; told is how often each is the largest.

    >>> bayesian_signed_rank([0.1] * 8).ahead > 0.99, bayesian_signed_rank([0.001, -0.001, 0.0]).alike > 0.99
    (True, True)
    """
    values = np.array([0.0, *differences])
    sums = values[:, None] + values[None]
    weights = np.ones(len(values))
    weights[0] = PRIOR
    drawn = numpy_stream(seed, "benchmark:bayes").dirichlet(weights, BAYES_DRAWS)  # [draws, sets + 1]
    ahead, behind = (
        np.einsum("di,ij,dj->d", drawn, _beyond(sign * sums, 2 * alike), drawn, optimize=True) for sign in (1, -1)
    )
    largest = np.stack([behind, 1 - ahead - behind, ahead]).argmax(0)
    return Belief(*(float((largest == region).mean()) for region in range(3)))


def _beyond(sums: Floats, edge: float) -> Floats:
    """Which pairs lie beyond an edge; those on it count half."""
    found: Floats = (sums > edge) + 0.5 * (sums == edge)
    return found


def mean_ranks(scores: Floats) -> Floats:
    """Each contestant's mean rank, `[M]`, by `scores [sets, M]`: 1 is the best; equals share their places.

    >>> mean_ranks(np.array([[0.9, 0.8, 0.8], [0.1, 0.2, 0.0]])).tolist()
    [1.5, 1.75, 2.75]
    """
    from scipy.stats import rankdata

    ranks: Floats = rankdata(-scores, axis=1).mean(0)
    return ranks


def rank_intervals(scores: Floats, draws: int = DRAWS, seed: int = 0) -> list[Interval]:
    """The 95 % interval of each contestant's mean rank: sets are drawn."""
    from scipy.stats import rankdata

    ranks = rankdata(-scores, axis=1)
    stream = numpy_stream(seed, "benchmark:ranks")
    drawn = np.stack([ranks[stream.integers(0, len(ranks), size=len(ranks))].mean(0) for _ in range(draws)])
    low, high = np.quantile(drawn, [ERROR / 2, 1 - ERROR / 2], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def worst_tenth(scores: Floats) -> float:
    """The mean of the worst tenth of the clients' `scores [K]`, at least of one."""
    worst = np.sort(scores)[: max(1, len(scores) // 10)]
    return float(worst.mean()) if len(worst) else math.nan


def mean_gain(gains: Floats) -> Floats:
    """The mean of the clients' `gains [..., K]`."""
    found: Floats = gains.mean(-1)
    return found


def share_harmed(gains: Floats) -> Floats:
    """The share of the clients that lose, by `gains [..., K]`: more than what is of no importance."""
    found: Floats = (gains < -ALIKE).mean(-1)
    return found
