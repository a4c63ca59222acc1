"""Small pieces that several models share, and the rule that lets every model take every image size.

A paper's architecture is built for one or two image sizes. Two rules make it fit the others, and neither
changes anything at the papers' sizes:

* a max-pool window never exceeds the map it slides over: along an axis of 1 pixel nothing is pooled, so
  no map ever vanishes (`max_pool`);
* two blocks of unpadded 5×5 convolution and 2×2 pooling need 16 pixels (16 → 12 → 6 → 2 → 1); if either
  side is shorter, the convolutions are padded by 2 and keep the size (`padding_5x5`).

Max-pooling comes *before* ReLU throughout. ReLU never decreases, so it can be swapped with a maximum:
values and gradients are the same, and it then touches a quarter of the pixels. (Batch norm stays before the
pool: its scale may be negative.)

ReLU never works in place, so that the models can be used under `torch.func`.
"""

from __future__ import annotations

from torch import Tensor, nn

from coterie.core.inventory import copied
from coterie.core.layout import BatchNorm

Shape = tuple[int, ...]
"""The shape of one input: (channels, height, width), or (features,)."""

Size = tuple[int, int]
"""Height and width of a map, in pixels."""


def image_size(shape: Shape) -> tuple[int, Size]:
    """Channels and (height, width) of an image shape.

    >>> image_size((3, 32, 32))
    (3, (32, 32))
    """
    channels, height, width = shape
    return channels, (height, width)


def max_pool(size: Size, window: int = 2) -> tuple[nn.MaxPool2d, Size]:
    """Max-pooling with stride 2, its window clipped to the map, and the size that comes out.

    >>> max_pool((28, 28))[1], max_pool((8, 8), window=3)[1], max_pool((1, 5))[1]
    ((14, 14), (3, 3), (1, 2))
    """
    clipped = (min(window, size[0]), min(window, size[1]))
    pooled = ((size[0] - clipped[0]) // 2 + 1, (size[1] - clipped[1]) // 2 + 1)
    return nn.MaxPool2d(clipped, stride=2), pooled


def padding_5x5(size: Size) -> int:
    """Padding for the 5×5 convolutions of a two-block network: 0, or 2 for images that are too small.

    >>> padding_5x5((28, 28)), padding_5x5((8, 8))
    (0, 2)
    """
    return 0 if min(size) >= 16 else 2


def convolved_5x5(size: Size, padding: int) -> Size:
    """The size of a map after a 5×5 convolution with this padding.

    >>> convolved_5x5((28, 28), padding=0), convolved_5x5((8, 8), padding=2)
    ((24, 24), (8, 8))
    """
    return size[0] - 4 + 2 * padding, size[1] - 4 + 2 * padding


class GlobalAveragePool(nn.Module):
    """The mean of every channel: `[B, channels, H, W]` to `[B, channels]`."""

    def forward(self, maps: Tensor) -> Tensor:
        """Average over height and width."""
        return maps.mean(dim=(2, 3))


def init_fan_out(module: nn.Module) -> None:
    """Draw all convolution weights from He's normal distribution, scaled by the outputs (fan-out).

    This is what the residual networks and MobileNetV2 are customarily started from; all other layers keep
    PyTorch's defaults (batch norm: scale 1, shift 0).
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


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
