"""The simplified AlexNet that FedReMa uses on CIFAR-10."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from coterie.models.layers import Shape, image_size, max_pool
from coterie.models.registry import ModelSpec


def alexnet_small(shape: Shape, classes: int) -> nn.Sequential:
    """AlexNet with 3×3 kernels and without dropout or response normalisation (as in FedReMa).

    Convolutions of 32, 64, 128, 256 and 256 channels keep the size; the first two are followed by 2×2,
    the last by 3×3 max-pooling (stride 2), each with ReLU. As in the paper's code there is no activation
    between the last three convolutions, nor between the three fully connected layers, which together are
    FedReMa's classifier. Initialisation: PyTorch's defaults.

    >>> alexnet_small((3, 32, 32), 10).classifier[0].in_features
    2304
    """
    channels, size = image_size(shape)
    pool1, size = max_pool(size)
    pool2, size = max_pool(size)
    pool3, size = max_pool(size, window=3)
    features = nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=3, padding=1),
        pool1,
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        pool2,
        nn.ReLU(),
        nn.Conv2d(64, 128, kernel_size=3, padding=1),
        nn.Conv2d(128, 256, kernel_size=3, padding=1),
        nn.Conv2d(256, 256, kernel_size=3, padding=1),
        pool3,
        nn.ReLU(),
        nn.Flatten(),
    )
    classifier = nn.Sequential(
        nn.Linear(256 * size[0] * size[1], 1024),
        nn.Linear(1024, 512),
        nn.Linear(512, classes),
    )
    parts: OrderedDict[str, nn.Module] = OrderedDict(features=features, classifier=classifier)
    return nn.Sequential(parts)


ALEXNET_SMALL = ModelSpec(
    "alexnet_small",
    "simplified AlexNet: 5 convolutions, 3 linear layers (Krizhevsky et al., 2012; FedReMa)",
    alexnet_small,
    {"last": "classifier.2", "all": "classifier"},
)
