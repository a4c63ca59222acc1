"""Who learned from whom in a round, as one matrix, clients × clients; how well that follows whose classes overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import pdist, squareform

from coterie.core.exchange import Applied
from coterie.errors import require

Floats = npt.NDArray[np.float64]
# Not smaller: SciPy orders the leaves in single precision.
TIE_BREAKER = 1e-3
# Weights that differ by less are rounding errors of each other.
DIGITS = 6
# On a page, weights are whole numbers of this many parts, which halves it; who took no part is ABSENT.
PARTS, ABSENT = 10_000, -1
# With more clients, a browser would be busy with cells that nobody can see.
MOST_CLIENTS = 200


def by_target(mixes: Sequence[Applied]) -> dict[tuple[str, str], list[Applied]]:
    """The mixes of a round by their group and the slot that they go into."""
    targets: dict[tuple[str, str], list[Applied]] = {}
    for mix in mixes:
        targets.setdefault((mix.group, mix.target), []).append(mix)
    return targets


def most_personal(mixes: Sequence[Applied]) -> Applied:
    """The last mix of a round that gives every client a row of its own; without one, the last that all share.

    A round of most methods holds several mixes: a common extractor, say, and each client's own classifier.
    The latter is what tells the clients apart.
    """
    require(bool(mixes), "mixes: there are none; nobody learned from others")
    return next((mix for mix in reversed(mixes) if is_personal(mix)), mixes[-1])


def is_personal(mix: Applied) -> bool:
    """Whether each client that learned has a row of weights of its own."""
    return len(mix.rows) == len(mix.weights)


def learning_matrix(mixes: Sequence[Applied], clients: int) -> Floats:
    """Who learns (rows) from whom (columns) in a round, and how much: `[K, K]`, from its most personal mix.

    Rows sum to one. Where all clients share a mean, all rows are equal. Clients that took no part are NaN:
    their rows if they learned nothing, their columns if nobody could learn from them.

    >>> import torch
    >>> weights, cohort = torch.tensor([[1.0, 0.0], [0.25, 0.75]]), torch.tensor([0, 2])
    >>> mix = Applied(weights, "classifier", "model", gated=False, rows=cohort, columns=cohort)
    >>> learning_matrix([mix], clients=3)
    array([[1.  ,  nan, 0.  ],
           [ nan,  nan,  nan],
           [0.25,  nan, 0.75]])
    """
    mix = most_personal(mixes)
    matrix = np.full((clients, clients), np.nan)
    learners = mix.rows.numpy() if len(mix.rows) else np.arange(clients)
    # A single row of weights stands for all learners.
    matrix[np.ix_(learners, mix.columns.numpy())] = mix.weights.double().numpy()
    return matrix


def influence(matrix: Floats) -> Floats:
    """Every client's share of what the others learn, from who learns from whom `[K, K]` (NaN: took no part): `[K]`.

    It is the sum of a column without the client itself, divided by the number of learners.

    >>> influence(np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.4, 0.6]]))
    array([0. , 0.3, 0. ])
    """
    learners = ~np.isnan(matrix).all(1)
    others = np.where(np.eye(len(matrix), dtype=bool), 0.0, np.nan_to_num(matrix))
    shares: Floats = others.sum(0) / max(int(learners.sum()), 1)
    return shares


def learn_differently(mixes: Sequence[Applied]) -> bool:
    """Whether clients of a round chose whom to learn from: not all alike, and not each from itself alone."""
    if not mixes or not is_personal(mix := most_personal(mixes)):
        return False
    alike = bool((mix.weights == mix.weights[:1]).all())
    others = mix.weights[mix.rows[:, None] != mix.columns]
    return not alike and bool((others > 0).any())


def class_shares(counts: npt.NDArray[Any]) -> Floats:
    """The share of each class at every client, from the counts `[K, C]`: `[K, C]`; zeros for a client without samples.

    >>> class_shares(np.array([[3, 1], [0, 0]]))
    array([[0.75, 0.25],
           [0.  , 0.  ]])
    """
    shares: Floats = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def label_order(counts: npt.NDArray[Any]) -> list[int]:
    """The clients, those with the same classes next to each other, from the class counts `[K, C]`.

    The overlap of two clients is Σ_c min(p_c, q_c) of their class shares. Clients are clustered by what they
    do not share (average linkage), and the leaves of the tree turned so that neighbours overlap most; where
    that leaves a choice, classes rise from the first client to the last.

    >>> label_order(np.array([[5, 0], [0, 4], [9, 0], [0, 1]]))
    [0, 2, 1, 3]
    """
    clients, classes = counts.shape
    if clients < 3:
        return list(range(clients))
    shares = class_shares(counts)
    # For distributions, half the city-block distance is one minus the overlap.
    apart = pdist(shares, "cityblock") / 2
    # Far smaller terms decide what the overlap leaves open: first the classes, then the clients' own order.
    place = shares @ np.linspace(0, 1, classes) + TIE_BREAKER * np.arange(clients)
    tree = linkage(apart + TIE_BREAKER * pdist(place[:, None]), "average", optimal_ordering=True)
    order: list[int] = leaves_list(tree).tolist()
    # An order and its reverse are equally good.
    half = clients // 2
    return order[::-1] if place[order[:half]].mean() > place[order[-half:]].mean() else order


def label_overlap(counts: npt.NDArray[Any]) -> Floats:
    """The overlap Σ_c min(p_c, q_c) of the class shares of every two clients, from the counts `[K, C]`: `[K, K]`.

    It is 1 for clients with the same mix of classes and 0 for those that share none.

    >>> label_overlap(np.array([[4, 0], [3, 1], [0, 9]]))
    array([[1.  , 0.75, 0.  ],
           [0.75, 1.  , 0.25],
           [0.  , 0.25, 1.  ]])
    """
    # For distributions, half the city-block distance is one minus the overlap.
    overlap: Floats = 1 - squareform(pdist(class_shares(counts), "cityblock")) / 2
    return overlap


def agreement(weights: Floats, overlap: Floats) -> float:
    """Spearman's rank correlation of `weights [K, K]` with the clients' overlap, off the diagonal.

    1: whoever overlaps more is learned from more; 0: learning has nothing to do with it. What is NaN does not count.
    NaN where the weights or the overlaps that count are all equal, or fewer than three.

    >>> overlap = np.array([[1, 0.8, 0.1], [0.8, 1, 0.3], [0.1, 0.3, 1]])
    >>> round(agreement(overlap**2, overlap), 6), round(agreement(1 - overlap, overlap), 6)
    (1.0, -1.0)
    >>> agreement(np.full((3, 3), 1 / 3), overlap)
    nan
    """
    counted = ~np.eye(len(weights), dtype=bool) & ~np.isnan(weights)
    ours, theirs = (_ranks(np.round(matrix[counted], DIGITS)) for matrix in (weights, overlap))
    if len(ours) < 3 or not np.ptp(ours) or not np.ptp(theirs):
        return float("nan")
    return float(np.corrcoef(ours, theirs)[0, 1])


def _ranks(values: Floats) -> Floats:
    """The ranks of values, from 1; equal ones share the mean of theirs.

    >>> _ranks(np.array([0.5, 0.1, 0.5])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def whole_numbers(matrix: Floats) -> list[int]:
    """A matrix row by row, in PARTS; one row alone where all are alike."""
    parts = np.where(np.isnan(matrix), ABSENT, np.round(np.nan_to_num(matrix) * PARTS)).astype(int)
    alike = len(parts) > 1 and bool((parts == parts[:1]).all())
    numbers: list[int] = (parts[0] if alike else parts.reshape(-1)).tolist()
    return numbers
