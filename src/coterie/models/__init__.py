"""The models, each for any image size and any number of classes, each declaring its classifier.

>>> sorted(MODELS)
['alexnet_small', 'cnn', 'lenet5', 'mlp', 'mobilenet_v2', 'resnet10', 'resnet18', 'resnet8']
"""

from coterie.models.registry import MODELS, ModelSpec, build, own_model
from coterie.models.weights import load_weights

__all__ = ["MODELS", "ModelSpec", "build", "load_weights", "own_model"]
