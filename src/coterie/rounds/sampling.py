"""Who takes part in a round: a stream of its own, so all methods see the same sequence of cohorts."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.rng import numpy_stream


def cohort_size(join: float, clients: int) -> int:
    """How many clients take part in a round: max(1, int(join · K)).

    >>> cohort_size(0.25, 10)
    2
    """
    return max(1, int(join * clients + 1e-9))


def draw_cohort(keys: Tensor, join: float, seed: int, round: int) -> Tensor:
    """The ids of max(1, int(join · K)) clients drawn without replacement, in ascending order: `[m]`.

    The draw is over keys, so relabelled clients are drawn in the same rounds as before.

    >>> draw_cohort(torch.arange(10), join=0.25, seed=0, round=1).shape
    torch.Size([2])
    """
    count = cohort_size(join, len(keys))
    if count == len(keys):
        return torch.arange(count)
    by_key = torch.argsort(keys)
    drawn = numpy_stream(seed, "cohort", round).choice(len(keys), count, replace=False)
    return by_key[torch.from_numpy(drawn)].sort().values
