"""Group norm in the place of batch norm, which mixes the samples of a batch and keeps statistics of them."""

from __future__ import annotations

from torch import nn

from coterie.core.inventory import copied
from coterie.core.layout import BatchNorm

MOST_GROUPS = 32
LEAST_CHANNELS = 4  # of a group: one that normalises a single number leaves nothing of it


def with_group_norm(module: nn.Module) -> nn.Module:
    """A copy whose batch-norm layers are group norm: up to 32 groups of equally many channels, four of them at least.

    >>> with_group_norm(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))[1].num_groups
    2
    """
    return _replaced(copied(module))


def _replaced(module: nn.Module) -> nn.Module:
    if isinstance(module, BatchNorm):
        channels = int(module.num_features)
        most = min(MOST_GROUPS, max(1, channels // LEAST_CHANNELS))
        groups = next(count for count in range(most, 0, -1) if channels % count == 0)
        return nn.GroupNorm(groups, channels, eps=module.eps, affine=bool(module.affine))
    for name, child in module.named_children():
        setattr(module, name, _replaced(child))
    return module
