"""Whom a client learns from, and how much, given its distances to the others (PFedCS's equations 4 to 8)."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.maths import grouping
from coterie.rng import numpy_stream

EPS = 1e-12
WEIGHTS = ("self_inclusive", "renormalised", "peers_only")


def threshold(distances: Tensor, progress: float) -> Tensor:
    """τ of every client (4): from the mean distance down to the smallest as `progress` = t/β goes to 1: `[m]`."""
    values = grouping.others(distances)
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
