"""Which of the others are near a client, and how much it learns from each: for all clients at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.rng import numpy_stream

FLOOR = 1e-6  # of a component's variance; distances are normalised to a maximum of 1
STEPS = 100
TOLERANCE = 1e-4  # on the mean log-likelihood
EQUAL = 1e-12


def others(distances: Tensor) -> Tensor:
    """Each row of `[m, m]` without its diagonal: `[m, m − 1]`.

    >>> others(torch.tensor([[0, 1, 2], [3, 0, 4], [5, 6, 0]]))
    tensor([[1, 2],
            [3, 4],
            [5, 6]])
    """
    m = len(distances)
    return distances[~torch.eye(m, dtype=torch.bool)].view(m, m - 1)


def near_by_mixture(distances: Tensor) -> Tensor:
    """The others whom a two-component Gaussian mixture puts with the near ones: `[m, m]` bool, diagonal False.

    EM runs on all clients' distances at once, from a deterministic start (2-means from minimum and maximum).
    The result is monotone: whoever is no farther than an accepted client is accepted too, even where a wide
    far component would claim the very smallest distances. Without two groups to tell apart, all are near.
    """
    values = others(distances)
    low = _assigned_low(values, *_em(values, _two_means(values)))
    return _monotone(distances, values, low)


def near_by_means(distances: Tensor) -> Tensor:
    """The nearer group by 2-means: `[m, m]` bool."""
    values = others(distances)
    return _monotone(distances, values, ~_two_means(values))


def near_by_linkage(distances: Tensor) -> Tensor:
    """The nearer of two clusters by average linkage on each client's distances: `[m, m]` bool."""
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import, seldom needed

    values = others(distances)
    low = torch.ones_like(values, dtype=torch.bool)
    if values.shape[1] > 1:
        for row, value in enumerate(values.double().numpy()):
            labels = fcluster(linkage(value[:, None], method="average"), 2, criterion="maxclust")
            low[row] = torch.from_numpy(labels == labels[value.argmin()])
    return _monotone(distances, values, low)


def near_by_distance(distances: Tensor, limit: float = 0.5) -> Tensor:
    """The others within a fixed distance: `[m, m]` bool.

    >>> near_by_distance(torch.tensor([[0.0, 0.4], [0.6, 0.0]]))
    tensor([[False,  True],
            [False, False]])
    """
    return (distances <= limit) & ~torch.eye(len(distances), dtype=torch.bool)


def _monotone(distances: Tensor, values: Tensor, low: Tensor) -> Tensor:
    """Everybody no farther than the farthest of the low group; all, where there are no two groups."""
    m = len(distances)
    reach = torch.where(low, values, -math.inf).amax(1)
    spread = values.amax(1) - values.amin(1)
    one_group = (spread < EQUAL) | low.all(1) | ~low.any(1)
    near = (distances <= reach[:, None]) | one_group[:, None]
    return near & ~torch.eye(m, dtype=torch.bool)


def _two_means(values: Tensor) -> Tensor:
    """Lloyd's iteration per row from the row's minimum and maximum: `[m, n]` bool, True in the upper group."""
    centres = torch.stack([values.amin(1), values.amax(1)], 1)
    upper = torch.zeros_like(values, dtype=torch.bool)
    for _ in range(STEPS):
        updated = (values - centres[:, 1:]).abs() < (values - centres[:, :1]).abs()
        if bool((updated == upper).all()):
            break
        upper = updated
        for side, members in enumerate((~upper, upper)):
            count = members.sum(1)
            mean = (values * members).sum(1) / count.clamp(min=1)
            centres[:, side] = torch.where(count > 0, mean, centres[:, side])
    return upper


def _fit(values: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mass, mean and variance of both components `[m, 2]`, given the share `[m, n]` of each value in the upper one."""
    powers = torch.stack([torch.ones_like(values), values, values.square()], -1)
    of_upper = (upper[:, None] @ powers)[:, 0]  # Σ share, Σ share · value, Σ share · value²: [m, 3]
    total, first, second = torch.stack([powers.sum(1) - of_upper, of_upper], -1).unbind(1)
    total = total.clamp(min=1e-300)
    mean = first / total
    return total / values.shape[1], mean, (second / total - mean.square()).clamp(min=FLOOR)


def _log_odds(values: Tensor, mass: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """log(π₁N₁/π₀N₀) of every value `[m, n]`, and log(π₀N₀) averaged over the values `[m]`.

    Both logarithms are quadratic in the value, so that an iteration costs few passes over the values.
    """
    square, linear = -0.5 / variance, mean / variance
    constant = mass.log() - 0.5 * (mean.square() / variance + variance.log() + math.log(2 * math.pi))
    square, linear, constant = (term[..., None] for term in (square, linear, constant))
    odds = torch.addcmul(linear[:, 1] - linear[:, 0], values, square[:, 1] - square[:, 0]).mul_(values)
    odds += constant[:, 1] - constant[:, 0]
    moments = values.mean(1), values.square().mean(1)
    return odds, square[:, 0, 0] * moments[1] + linear[:, 0, 0] * moments[0] + constant[:, 0, 0]


def _em(values: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Expectation-maximisation for every row of `values [m, n]`; rows that have converged are left alone."""
    mass, mean, variance = _fit(values, upper.double())
    active = torch.arange(len(values))
    before = torch.full((len(values),), -math.inf, dtype=torch.float64)
    for _ in range(STEPS):
        still = values[active]
        odds, lower = _log_odds(still, mass[active], mean[active], variance[active])
        likelihood = lower + torch.nn.functional.softplus(odds).mean(1)
        moving = (likelihood - before[active]).abs() >= TOLERANCE
        before[active] = likelihood
        active = active[moving]
        if not len(active):
            break
        mass[active], mean[active], variance[active] = _fit(still[moving], odds[moving].sigmoid())
    return mass, mean, variance


def _assigned_low(values: Tensor, mass: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The values assigned to the component whose assigned values have the lower mean: `[m, n]` bool."""
    second = _log_odds(values, mass, mean, variance)[0] > 0
    first_mean = (values * ~second).sum(1) / (~second).sum(1).clamp(min=1)
    second_mean = (values * second).sum(1) / second.sum(1).clamp(min=1)
    return torch.where((first_mean <= second_mean)[:, None], ~second, second)


EPS = 1e-12
WEIGHTS = ("self_inclusive", "renormalised", "peers_only")


def threshold(distances: Tensor, progress: float) -> Tensor:
    """τ of every client (4): from the mean distance down to the smallest as `progress` = t/β goes to 1: `[m]`."""
    values = others(distances)
    mean, least = values.mean(1), values.amin(1)
    return mean + min(progress, 1.0) * (least - mean)


def teaching_weights(distances: Tensor, chosen: Tensor, sizes: Tensor, lam: float, variant: str) -> Tensor:
    """p of (7)–(8), λ · similarity + (1 − λ) · data size, over each client's collaborators: `[m, m]`."""
    me = torch.eye(len(distances), dtype=torch.bool)
    if variant == "self_inclusive":
        return _literal(distances, chosen | me, chosen | me, sizes, lam)
    lonely = ~chosen.any(1, keepdim=True)
    peers = torch.where(lonely, me, chosen)
    if variant == "peers_only":
        return _literal(distances, peers, peers, sizes, lam)
    total = _literal(distances, peers, peers | me, sizes, lam)
    return total / total.sum(1, keepdim=True)


def _literal(distances: Tensor, summed: Tensor, weighted: Tensor, sizes: Tensor, lam: float) -> Tensor:
    """(7) with its maxima, means and sums over `summed`, evaluated for the members of `weighted`."""
    count = summed.sum(1, keepdim=True)
    farthest = torch.where(summed, distances, -torch.inf).amax(1, keepdim=True)
    room = count * farthest - (distances * summed).sum(1, keepdim=True)
    near = torch.where(room > EPS, (farthest - distances) / room.clamp(min=EPS), 1.0 / count)
    data = sizes.double() / (summed.double() @ sizes.double())[:, None]
    return weighted * (lam * near + (1 - lam) * data)


def three_at_random(federation: Federation, pool: Tensor) -> Tensor:
    """Three random others for every client of the pool, drawn anew each round: `[p, p]` bool."""
    chosen = torch.zeros(len(pool), len(pool), dtype=torch.bool)
    keys = federation.keys[pool]
    by_key = torch.argsort(keys)
    for row, key in enumerate(keys.tolist()):
        candidates = by_key[by_key != row].numpy()
        stream = numpy_stream(federation.seed, "selection", federation.round + 1, key)
        chosen[row, stream.choice(candidates, min(3, len(candidates)), replace=False)] = True
    return chosen
