"""A multi-layer perceptron: the small model for quick trials and for tabular features."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from coterie.errors import require
from coterie.models.layers import Shape
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
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        features=nn.Sequential(*features),
        classifier=nn.Linear(widths[-1], classes),
    )
    return nn.Sequential(parts)


MLP = ModelSpec(
    "mlp",
    "multi-layer perceptron for any input, one hidden layer of 64 by default",
    mlp,
    {"last": "classifier", "all": "classifier"},
    takes_flat=True,
)
