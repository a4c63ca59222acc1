"""Max-pooling for models that are tested: without gradients nobody asks where a maximum came from.

PyTorch's layer keeps the place of every maximum for the backward pass, and looks at one window after the other. The
maximum of neighbouring rows, then of neighbouring columns, is the same value: on one thread, maps of 32 × 28 × 28 in
batches of 128 took 1.6 ms instead of 18 (contiguous) and 2.3 (channels last). With gradients PyTorch's layer is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GradientFreeMaxPool(nn.MaxPool2d):
    """PyTorch's max-pooling; windows of 2 × 2 side by side are pooled faster where no gradient is wanted.

    >>> maps = torch.tensor([[[1.0, 5.0, 0.0], [2.0, 3.0, 9.0], [7.0, 7.0, 7.0]]])
    >>> with torch.no_grad():
    ...     GradientFreeMaxPool(2)(maps)
    tensor([[[5.]]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """The largest value of each window: `[B, C, H, W]` to `[B, C, H // 2, W // 2]`."""
        if torch.is_grad_enabled() or not self._halves():
            out: Tensor = super().forward(x)
            return out
        height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        rows = torch.maximum(x[..., 0:height:2, :], x[..., 1:height:2, :])
        return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])

    def _halves(self) -> bool:
        sizes = (self.kernel_size, self.stride, self.padding, self.dilation)
        return (
            all(size in (wanted, (wanted, wanted)) for size, wanted in zip(sizes, (2, 2, 0, 1), strict=True))
            and not self.ceil_mode
            and not self.return_indices
        )


def pool_fast_when_tested(module: nn.Module) -> None:
    """Change the max-pooling layers of a module that is one's own copy, whoever wrote it.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))
    >>> pool_fast_when_tested(net)
    >>> type(net[1]).__name__
    'GradientFreeMaxPool'
    """
    for layer in module.modules():
        if type(layer) is nn.MaxPool2d:
            layer.__class__ = GradientFreeMaxPool  # in place: hooks stay, and layers shared by several parts
