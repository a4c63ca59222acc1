"""How much clients' classes overlap, and how well who learns from whom follows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist, squareform

from coterie.report.learning import Floats, class_shares

# Weights that differ by less are rounding errors of each other.
DIGITS = 6


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
