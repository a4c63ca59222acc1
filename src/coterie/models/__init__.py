"""The models, each for any image size and any number of classes, each declaring its classifier.

>>> sorted(MODELS)
['alexnet_small', 'cnn', 'lenet5', 'linear', 'mlp', 'mobilenet_v2', 'resnet10', 'resnet18', 'resnet8']
"""

from typing import TYPE_CHECKING

from coterie.models.registry import MODELS as MODELS
from coterie.models.registry import ModelSpec as ModelSpec
from coterie.models.registry import build as build
from coterie.models.registry import own_model as own_model
from coterie.registry import on_first_use

if TYPE_CHECKING:
    from coterie.models.weights import load_weights as load_weights

__getattr__ = on_first_use(__name__, __file__)
