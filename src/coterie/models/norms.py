"""Group norm in the place of batch norm, which mixes the samples of a batch and keeps statistics of them."""

from __future__ import annotations

import copy
import math

from torch import nn

from coterie.core.layout import BatchNorm

MOST_GROUPS = 32


def with_group_norm(module: nn.Module) -> nn.Module:
    """A copy whose batch-norm layers are group norm, with up to 32 groups of equally many channels.

    >>> with_group_norm(nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)))[1]
    GroupNorm(6, 6, eps=1e-05, affine=True)
    """
    return _replaced(copy.deepcopy(module))


def _replaced(module: nn.Module) -> nn.Module:
    if isinstance(module, BatchNorm):
        channels = int(module.num_features)
        groups = math.gcd(channels, MOST_GROUPS) if channels > MOST_GROUPS else channels
        return nn.GroupNorm(max(1, groups), channels, eps=module.eps, affine=bool(module.affine))
    for name, child in module.named_children():
        setattr(module, name, _replaced(child))
    return module
