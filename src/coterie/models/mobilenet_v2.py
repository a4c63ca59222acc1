"""MobileNetV2 (Sandler et al., 2018), which pFedSim uses on Tiny-ImageNet and DomainNet."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from coterie.errors import require
from coterie.models.layers import GlobalAveragePool, Shape, image_size, init_fan_out
from coterie.models.registry import ModelSpec

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Table 2 of the paper: (expansion factor, channels, number of blocks, stride of the first block)."""


def conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A size-keeping convolution (up to its stride) with batch norm and ReLU6.

    >>> [type(layer).__name__ for layer in conv_bn_relu6(3, 32, kernel=3)]
    ['Conv2d', 'BatchNorm2d', 'ReLU6']
    """
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Expand, convolve per channel, project linearly; added to the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        expand = [] if expansion == 1 else [conv_bn_relu6(inputs, width, kernel=1)]
        self.conv = nn.Sequential(
            *expand,
            conv_bn_relu6(width, width, kernel=3, stride=stride, groups=width),
            nn.Conv2d(width, outputs, kernel_size=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        """The projected maps, plus the input where there is a shortcut."""
        projected: Tensor = self.conv(maps)
        return maps + projected if self.has_shortcut else projected


def mobilenet_v2(shape: Shape, classes: int, *, dropout: float = 0.2) -> nn.Sequential:
    """MobileNetV2 at width 1: 17 inverted residual blocks, 1,280 features, dropout, a linear classifier.

    The stem has stride 2, as in the original (pFedSim's table of layers says 1, but its text names the stock
    model). All windows are padded, so images of any size fit. Dropout belongs to the features: the
    classifier is the linear layer alone. The parameter names are those of the customary PyTorch checkpoints
    (`features.1.conv.0.0`, `classifier.1` …), so that such weights can be loaded. Convolutions start from
    He's fan-out normal distribution, the linear layer from N(0, 0.01²) with bias 0.

    >>> mobilenet_v2((3, 64, 64), 200).classifier[1].in_features
    1280
    """
    require(
        isinstance(dropout, (int, float)) and 0 <= dropout < 1,
        f"dropout = {dropout!r}: must be a number of at least 0 and less than 1",
    )
    channels, _ = image_size(shape)
    features: list[nn.Module] = [conv_bn_relu6(channels, 32, kernel=3, stride=2)]
    inputs = 32
    for expansion, outputs, blocks, first_stride in STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            features.append(InvertedResidual(inputs, outputs, stride, expansion))
            inputs = outputs
    features.append(conv_bn_relu6(inputs, 1280, kernel=1))
    linear = nn.Linear(1280, classes)
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        features=nn.Sequential(*features),
        avgpool=GlobalAveragePool(),
        classifier=nn.Sequential(nn.Dropout(dropout), linear),
    )
    model = nn.Sequential(parts)
    init_fan_out(model)
    nn.init.normal_(linear.weight, std=0.01)
    nn.init.zeros_(linear.bias)
    return model


MOBILENET_V2 = ModelSpec(
    "mobilenet_v2",
    "inverted residuals and linear bottlenecks (Sandler et al., 2018; pFedSim)",
    mobilenet_v2,
    {"last": "classifier.1", "all": "classifier.1"},
)
