"""Residual networks (He et al., 2016): ResNet-8 and -10 of FedCAC, ResNet-18 of PFedCS and FedTC.

All have the ImageNet stem (7×7 convolution and 3×3 pooling, both with stride 2), also on small images: that
is what the papers' code trains. The parameter names are those of the customary PyTorch checkpoints
(`conv1`, `layer1.0.bn2`, `layer2.0.downsample.0`, `fc` …), so that such weights can be loaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from coterie.models.layers import GlobalAveragePool, Shape, image_size, init_fan_out
from coterie.models.registry import ModelSpec


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, added to the input (projected where the shapes differ)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, maps: Tensor) -> Tensor:
        """ReLU of the residual branch plus the shortcut."""
        residual = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(maps)))))
        activated: Tensor = self.relu(residual + self.downsample(maps))
        return activated


def residual_network(shape: Shape, classes: int, blocks: Sequence[int]) -> nn.Sequential:
    """A residual network with `blocks[i]` basic blocks in stage i; widths 64, 128, 256, … by stage.

    Every stage but the first halves the map. All windows are padded, so images of any size fit.
    Convolutions start from He's fan-out normal distribution, the linear layer from PyTorch's default.

    >>> model = residual_network((3, 32, 32), 10, blocks=[1, 1])
    >>> len(model.layer2), model.fc.in_features
    (1, 128)
    """
    channels, _ = image_size(shape)
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(64),
        maxpool=nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
        relu=nn.ReLU(),
    )
    inputs = 64
    for stage, count in enumerate(blocks):
        outputs = 64 * 2**stage
        first = BasicBlock(inputs, outputs, stride=1 if stage == 0 else 2)
        others = [BasicBlock(outputs, outputs, stride=1) for _ in range(count - 1)]
        parts[f"layer{stage + 1}"] = nn.Sequential(first, *others)
        inputs = outputs
    parts["avgpool"] = GlobalAveragePool()
    parts["fc"] = nn.Linear(inputs, classes)
    model = nn.Sequential(parts)
    init_fan_out(model)
    return model


def _spec(name: str, blocks: Sequence[int], papers: str) -> ModelSpec:
    def build(shape: Shape, classes: int) -> nn.Sequential:
        return residual_network(shape, classes, blocks)

    stages = f"{len(blocks)} stages of {blocks[0]} block{'s' * (blocks[0] > 1)}"
    description = f"residual network, {stages} (He et al., 2016; {papers})"
    return ModelSpec(name, description, build, {"last": "fc", "all": "fc"})


RESNET8 = _spec("resnet8", [1, 1, 1], "FedCAC")
"""ResNet-8: that of FedCAC on CIFAR-10."""
RESNET10 = _spec("resnet10", [1, 1, 1, 1], "FedCAC")
"""ResNet-10: that of FedCAC on CIFAR-100 and Tiny-ImageNet."""
RESNET18 = _spec("resnet18", [2, 2, 2, 2], "PFedCS, FedTC")
"""ResNet-18: that of PFedCS on Tiny-ImageNet and FedTC on CIFAR-100."""
