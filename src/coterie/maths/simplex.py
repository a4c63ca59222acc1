"""Quadratic programmes on the simplex: the mixture that makes a quadratic form smallest."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-10  # relative; makes the minimiser unique where the form alone does not


def simplex_minimiser(form: Tensor) -> Tensor:
    """argmin aᵀQa over a ≥ 0, Σa = 1 for a positive semi-definite `form [m, m]`: `[m]`, float64.

    With Q = LLᵀ this is the non-negative least-squares problem min ‖Lᵀb‖² + (1ᵀb − 1)² up to scale: both have
    the conditions Qb = c·1 + ν, ν ≥ 0, ν ⊥ b, so a = b / Σb. An active-set solver gives the exact answer.

    >>> simplex_minimiser(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    form = form.double()
    scale = form.diagonal().max()
    if scale <= 0:
        return torch.full((len(form),), 1 / len(form), dtype=torch.float64)
    root = torch.linalg.cholesky(form / scale + RIDGE * torch.eye(len(form), dtype=torch.float64)).T
    system = torch.cat([root, torch.ones(1, len(form), dtype=torch.float64)])
    wanted = torch.zeros(len(system), dtype=torch.float64)
    wanted[-1] = 1
    from scipy.optimize import nnls  # slow to import, seldom needed

    solution = torch.from_numpy(nnls(system.numpy(), wanted.numpy())[0])
    return solution / solution.sum()


def without_traces(weights: Tensor, smallest: float = 1e-3) -> Tensor:
    """Weights `[r, m]` without those below `smallest`; what remains sums to one again.

    >>> without_traces(torch.tensor([[0.7496, 0.25, 0.0004]]))
    tensor([[0.7499, 0.2501, 0.0000]])
    """
    # Among very many clients all weights may be traces; then the largest stays.
    kept = (weights >= smallest) | (weights == weights.max(1, keepdim=True).values)
    left = torch.where(kept, weights, 0.0)
    return left / left.sum(1, keepdim=True)
