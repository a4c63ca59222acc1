"""The four-layer network of FedAvg, which PFedCS, FedTC and FedReMa use on small images."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from coterie.models.layers import Shape, convolved_5x5, image_size, max_pool, padding_5x5
from coterie.models.registry import ModelSpec


def cnn(shape: Shape, classes: int) -> nn.Sequential:
    """FedAvgCNN (McMahan et al., 2017): two 5×5 convolutions (32, 64), then 512 hidden units.

    Each convolution is followed by 2×2 max-pooling and ReLU, without padding. The classifier is the last
    layer for PFedCS and FedTC, both fully connected layers for FedReMa. Initialisation: PyTorch's defaults.

    >>> cnn((1, 28, 28), 10).classifier[0].in_features, cnn((3, 32, 32), 10).classifier[0].in_features
    (1024, 1600)
    """
    channels, size = image_size(shape)
    padding = padding_5x5(size)
    pool1, size = max_pool(convolved_5x5(size, padding))
    pool2, size = max_pool(convolved_5x5(size, padding))
    features = nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=5, padding=padding),
        pool1,
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=5, padding=padding),
        pool2,
        nn.ReLU(),
        nn.Flatten(),
    )
    classifier = nn.Sequential(
        nn.Linear(64 * size[0] * size[1], 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )
    parts: OrderedDict[str, nn.Module] = OrderedDict(features=features, classifier=classifier)
    return nn.Sequential(parts)


CNN = ModelSpec(
    "cnn",
    "FedAvgCNN: 2 convolutions, 2 linear layers (McMahan et al., 2017; PFedCS, FedTC, FedReMa)",
    cnn,
    {"last": "classifier.2", "all": "classifier"},
)
