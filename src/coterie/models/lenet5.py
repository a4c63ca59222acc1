"""LeNet-5 with batch norm, which pFedSim uses on CIFAR-10, CINIC-10 and EMNIST."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from coterie.models.layers import Shape, convolved_5x5, image_size, max_pool, padding_5x5
from coterie.models.registry import ModelSpec


def lenet5(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet5-BN (LeCun et al., 1998; as in pFedSim): two 5×5 convolutions (6, 16), then 120 and 84 units.

    Each convolution is followed by batch norm, 2×2 max-pooling and ReLU, without padding. pFedSim's table
    of layers lists a single pooling layer and 3 inputs for the second convolution; two pools and 6 inputs
    are what its code trains, and what is built here. Initialisation: PyTorch's defaults.

    >>> lenet5((1, 28, 28), 10).classifier[0].in_features, lenet5((3, 32, 32), 10).classifier[0].in_features
    (256, 400)
    """
    channels, size = image_size(shape)
    padding = padding_5x5(size)
    pool1, size = max_pool(convolved_5x5(size, padding))
    pool2, size = max_pool(convolved_5x5(size, padding))
    features = nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5, padding=padding),
        nn.BatchNorm2d(6),
        pool1,
        nn.ReLU(),
        nn.Conv2d(6, 16, kernel_size=5, padding=padding),
        nn.BatchNorm2d(16),
        pool2,
        nn.ReLU(),
        nn.Flatten(),
    )
    classifier = nn.Sequential(
        nn.Linear(16 * size[0] * size[1], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
    parts: OrderedDict[str, nn.Module] = OrderedDict(features=features, classifier=classifier)
    return nn.Sequential(parts)


LENET5 = ModelSpec(
    "lenet5",
    "LeNet-5 with batch norm (LeCun et al., 1998; pFedSim)",
    lenet5,
    {"last": "classifier.4", "all": "classifier"},
)
