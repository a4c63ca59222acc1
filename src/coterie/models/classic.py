"""The networks of one layer after the other that papers train from scratch: MLP, CNN, LeNet-5, a small AlexNet."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from coterie.errors import require
from coterie.models.layers import Shape, convolved_5x5, image_size, max_pool, padding_5x5
from coterie.models.registry import ModelSpec


def mlp(shape: Shape, classes: int, *, hidden: Sequence[int] = (64,)) -> nn.Sequential:
    """Fully connected layers of `hidden` widths with ReLU, then a linear classifier.

    Takes inputs of any shape and flattens them. The classifier is the last layer under both readings:
    if it were all fully connected layers, nothing would be left to extract features. Without hidden layers
    (`hidden=()`) this is softmax regression. Initialisation: PyTorch's defaults.

    >>> [tuple(p.shape) for p in mlp((1, 8, 8), 10).parameters()]
    [(64, 64), (64,), (10, 64), (10,)]
    """
    require(
        isinstance(hidden, (list, tuple)) and all(type(width) is int and width >= 1 for width in hidden),
        f"hidden = {hidden!r}: must be a list of layer widths, each a whole number of at least 1",
    )
    widths = [math.prod(shape), *hidden]
    features: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        features += [nn.Linear(inputs, outputs), nn.ReLU()]
    return _in_two(nn.Sequential(*features), nn.Linear(widths[-1], classes))


MLP = ModelSpec(
    "mlp",
    "multi-layer perceptron for any input, one hidden layer of 64 by default",
    mlp,
    {"last": "classifier", "all": "classifier"},
    takes_flat=True,
)


def linear(shape: Shape, classes: int) -> nn.Sequential:
    """Softmax regression, or linear regression where one number is predicted: a classifier and nothing before it.

    Takes inputs of any shape and flattens them. Initialisation: PyTorch's defaults.

    >>> [tuple(p.shape) for p in linear((12,), 4).parameters()]
    [(4, 12), (4,)]
    """
    return mlp(shape, classes, hidden=())


LINEAR = ModelSpec(
    "linear",
    "softmax or linear regression, for any input",
    linear,
    {"last": "classifier", "all": "classifier"},
    takes_flat=True,
)


def cnn(shape: Shape, classes: int) -> nn.Sequential:
    """FedAvgCNN (McMahan et al., 2017): two 5×5 convolutions (32, 64), then 512 hidden units.

    Each convolution is followed by 2×2 max-pooling and ReLU, without padding. The classifier is the last
    layer for PFedCS and FedTC, both fully connected layers for FedReMa. Initialisation: PyTorch's defaults.

    >>> cnn((1, 28, 28), 10).classifier[0].in_features, cnn((3, 32, 32), 10).classifier[0].in_features
    (1024, 1600)
    """
    features, width = _two_blocks(shape, (32, 64), batch_norm=False)
    classifier = nn.Sequential(
        nn.Linear(width, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )
    return _in_two(features, classifier)


CNN = ModelSpec(
    "cnn",
    "FedAvgCNN: 2 convolutions, 2 linear layers (McMahan et al., 2017; PFedCS, FedTC, FedReMa)",
    cnn,
    {"last": "classifier.2", "all": "classifier"},
)


def lenet5(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet5-BN (LeCun et al., 1998; as in pFedSim): two 5×5 convolutions (6, 16), then 120 and 84 units.

    Each convolution is followed by batch norm, 2×2 max-pooling and ReLU, without padding. pFedSim's table
    of layers lists a single pooling layer and 3 inputs for the second convolution; two pools and 6 inputs
    are what its code trains, and what is built here. Initialisation: PyTorch's defaults.

    >>> lenet5((1, 28, 28), 10).classifier[0].in_features, lenet5((3, 32, 32), 10).classifier[0].in_features
    (256, 400)
    """
    features, width = _two_blocks(shape, (6, 16), batch_norm=True)
    classifier = nn.Sequential(
        nn.Linear(width, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
    return _in_two(features, classifier)


LENET5 = ModelSpec(
    "lenet5",
    "LeNet-5 with batch norm (LeCun et al., 1998; pFedSim)",
    lenet5,
    {"last": "classifier.4", "all": "classifier"},
)


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
    return _in_two(features, classifier)


ALEXNET_SMALL = ModelSpec(
    "alexnet_small",
    "simplified AlexNet: 5 convolutions, 3 linear layers (Krizhevsky et al., 2012; FedReMa)",
    alexnet_small,
    {"last": "classifier.2", "all": "classifier"},
)


def _two_blocks(shape: Shape, widths: tuple[int, int], batch_norm: bool) -> tuple[nn.Sequential, int]:
    """Two 5×5 convolutions of these widths, each followed by 2×2 max-pooling and ReLU; and how many features."""
    inputs, size = image_size(shape)
    padding = padding_5x5(size)
    layers: list[nn.Module] = []
    for outputs in widths:
        pool, size = max_pool(convolved_5x5(size, padding))
        norm = [nn.BatchNorm2d(outputs)] if batch_norm else []
        layers += [nn.Conv2d(inputs, outputs, kernel_size=5, padding=padding), *norm, pool, nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten()), inputs * size[0] * size[1]


def _in_two(features: nn.Module, classifier: nn.Module) -> nn.Sequential:
    """The model that ends with its classifier."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(features=features, classifier=classifier)
    return nn.Sequential(parts)
