"""Dropout whose numbers can be drawn again: for one client on a device, or for many clients at once.

On the processor PyTorch's layer fills a mask from the generator that the client's seat has seeded. On a GPU it draws
within a kernel of its own, in an order that no other operation repeats; there, the mask is drawn as on the processor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

AnyDropout = nn.modules.dropout._DropoutNd
"""The class that every dropout layer derives from."""


class RepeatableDropout(nn.Dropout):
    """Dropout whose mask is drawn by an operation of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """The inputs, some of them zero in training."""
        return x * dropout_mask(self, x.shape, x) if self.training and self.p > 0 else x


WHOLE = (nn.Dropout, RepeatableDropout)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def dropout_mask(layer: AnyDropout, shape: torch.Size, like: Tensor, stream: torch.Generator | None = None) -> Tensor:
    """What a layer multiplies inputs of a shape `[B, ...]` by: 0 with probability p, else 1 / (1 − p).

    It is drawn from `stream`, or else from the generator of the device that `like` is on. Layers that drop whole
    channels have one number for each.

    >>> mask = dropout_mask(nn.Dropout(0.5), torch.Size([2, 3]), torch.ones(1), torch.Generator().manual_seed(0))
    >>> sorted(set(mask.flatten().tolist())), mask.shape
    ([0.0, 2.0], torch.Size([2, 3]))
    """
    drawn = shape if type(layer) in WHOLE else torch.Size([*shape[:2], *(1 for _ in shape[2:])])
    if layer.p == 1:
        return like.new_zeros(drawn)
    mask: Tensor = like.new_empty(drawn).bernoulli_(1 - layer.p, generator=stream).div_(1 - layer.p)
    return mask


def drop_repeatably(module: nn.Module) -> None:
    """Change the dropout layers of a module that is one's own copy.

    >>> net = nn.Sequential(nn.Dropout(0.1))
    >>> drop_repeatably(net)
    >>> type(net[0]).__name__
    'RepeatableDropout'
    """
    for layer in module.modules():
        if type(layer) is nn.Dropout:
            layer.__class__ = RepeatableDropout
