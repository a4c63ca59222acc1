"""Builders of mixing matrices: who learns from whom, how much."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.exchange import Uploads


def by_size(uploads: Uploads) -> Tensor:
    """Weights in proportion to the clients' training samples: `[1, m]`, FedAvg's n_k / Σn.

    >>> from types import SimpleNamespace
    >>> by_size(SimpleNamespace(sizes=torch.tensor([30.0, 10.0])))
    tensor([[0.7500, 0.2500]])
    """
    return (uploads.sizes / uploads.sizes.sum())[None]


def uniform(count: int) -> Tensor:
    """Equal weights: `[1, m]`.

    >>> uniform(4)
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]], dtype=torch.float64)
    """
    return torch.full((1, count), 1 / count, dtype=torch.float64)


def identity(count: int) -> Tensor:
    """Everybody learns from themselves alone: `[m, m]`; as a mix it changes nothing.

    >>> identity(2)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    return torch.eye(count, dtype=torch.float64)


def among(members: Tensor, sizes: Tensor) -> Tensor:
    """Each row's `members [r, m]` (bool) weighted by `sizes [m]`: `[r, m]`; each row needs a member.

    >>> among(torch.tensor([[True, True, False]]), torch.tensor([30.0, 10.0, 60.0]))
    tensor([[0.7500, 0.2500, 0.0000]], dtype=torch.float64)
    """
    return normalised(members.double() * sizes.double())


def normalised(scores: Tensor) -> Tensor:
    """Non-negative scores divided by their row sums: `[r, m]`.

    >>> normalised(torch.tensor([[1.0, 3.0]]))
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    scores = scores.double()
    return scores / scores.sum(1, keepdim=True)


def embedded(weights: Tensor, members: Tensor, clients: int) -> Tensor:
    """Weights among some clients, `[p, p]`, as weights among all: the others learn from themselves alone.

    >>> embedded(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 2]), 3)
    tensor([[0.5000, 0.0000, 0.5000],
            [0.0000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    full = identity(clients)
    full[members] = 0
    full[members[:, None], members] = weights.double()
    return full
