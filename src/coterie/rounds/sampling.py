"""Who takes part in a round, and who is tested in it: each a stream of its own, the same for all methods."""

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
    return _drawn(keys, cohort_size(join, len(keys)), seed, "cohort", round)


def draw_tested(keys: Tensor, count: int, seed: int, round: int) -> Tensor:
    """The ids of `count` clients that are tested after a round (0: of all), drawn and ordered alike: `[m]`.

    >>> draw_tested(torch.arange(10), 3, seed=0, round=1).shape, draw_tested(torch.arange(10), 0, 0, 1).shape
    (torch.Size([3]), torch.Size([10]))
    """
    return _drawn(keys, min(count or len(keys), len(keys)), seed, "tested", round)


def _drawn(keys: Tensor, count: int, seed: int, purpose: str, round: int) -> Tensor:
    if count == len(keys):
        return torch.arange(count)
    by_key = torch.argsort(keys)
    drawn = numpy_stream(seed, purpose, round).choice(len(keys), count, replace=False)
    return by_key[torch.from_numpy(drawn)].sort().values
