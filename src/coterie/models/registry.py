"""The list of models: what each is called, how it is built, and which part of it is the classifier."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from coterie.errors import CoterieError, described, require, unknown
from coterie.models.layers import Shape
from coterie.registry import Registry


@dataclass(frozen=True)
class ModelSpec:
    """A model by name, with the two readings of what its classifier is.

    `classifiers` maps a reading to the dotted path of a submodule: `"last"` is the last linear layer,
    `"all"` all fully connected layers. Every model ends with its classifier: put `nn.Identity()` at that
    path and the model returns the features `[B, d]` that the classifier would have been fed.

    >>> MODELS["cnn"].classifiers
    {'last': 'classifier.2', 'all': 'classifier'}
    """

    name: str
    description: str
    build: Callable[..., nn.Module]
    classifiers: Mapping[str, str]
    takes_flat: bool = False
    takes_any: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The options that this model's builder accepts, with their defaults.

        >>> MODELS["mlp"].options
        {'hidden': (64,)}
        """
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


@dataclass(frozen=True)
class OwnModel:
    """Builds a model of somebody's own, by calling a class or function with (shape, classes) or with nothing."""

    name: str
    make: Callable[..., Any]

    def __call__(self, shape: Shape, classes: int) -> nn.Module:
        """The model for inputs of a shape."""
        try:
            parameters = list(inspect.signature(self.make).parameters.values())
        except ValueError:  # some classes written in C have none
            parameters = []
        needed = [
            p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        sized = len(needed) == 2 or [p.name for p in parameters[:2]] == ["shape", "classes"]
        require(sized or not needed, f"model '{self.name}': must take (shape, classes), or nothing")
        try:
            module = self.make(shape, classes) if sized else self.make()
        except CoterieError:
            raise
        except Exception as error:  # whatever a user's model may raise
            raise CoterieError(f"model '{self.name}': cannot be made ({described(error)})") from error
        require(isinstance(module, nn.Module), f"model '{self.name}': made {type(module).__name__}, no torch.nn.Module")
        assert isinstance(module, nn.Module)
        require("_modules" in vars(module), f"model '{self.name}': its __init__ does not call super().__init__() first")
        return module


def own_model(name: str, thing: object) -> ModelSpec:
    """The specification of a class of modules, or of a function that makes one; its classifier has to be named.

    >>> own_model("mine", nn.Identity).classifiers
    {}
    """
    if isinstance(thing, ModelSpec):
        return replace(thing, name=name)
    allowed = "must be a class that extends torch.nn.Module, a function that makes one, or a ModelSpec"
    if isinstance(thing, nn.Module) or not callable(thing):
        raise CoterieError(f"model '{name}': {allowed}")
    require(not isinstance(thing, type) or issubclass(thing, nn.Module), f"model '{name}': {allowed}")
    about = (thing.__doc__ or "").strip().partition("\n")[0]
    return ModelSpec(name, about, OwnModel(name, thing), {}, takes_any=True)


def is_built_in(model: object) -> bool:
    """Whether a model, by name or specification, is one of Coterie's own.

    >>> is_built_in("cnn"), is_built_in(nn.Identity())
    (True, False)
    """
    if isinstance(model, str):
        return model in _OWN
    return isinstance(model, ModelSpec) and model.name in _OWN and MODELS[model.name] == model


_OWN: dict[str, ModelSpec | str] = {
    "linear": "coterie.models.classic:LINEAR",
    "mlp": "coterie.models.classic:MLP",
    "cnn": "coterie.models.classic:CNN",
    "lenet5": "coterie.models.classic:LENET5",
    "alexnet_small": "coterie.models.classic:ALEXNET_SMALL",
    "resnet8": "coterie.models.resnet:RESNET8",
    "resnet10": "coterie.models.resnet:RESNET10",
    "resnet18": "coterie.models.resnet:RESNET18",
    "mobilenet_v2": "coterie.models.mobilenet_v2:MOBILENET_V2",
}

MODELS: Registry[ModelSpec] = Registry("model", "coterie.models", _OWN, own_model)
"""Every model by name: a `ModelSpec`, which a class of `torch.nn.Module` or a function is made into."""


def build(model: str | ModelSpec, shape: Sequence[int], classes: int, **options: Any) -> nn.Module:
    """Build a model for inputs of `shape`: (channels, height, width), for `mlp` also (features,).

    It is given by name, as `./file.py:Name`, or by its specification. The initial weights come from PyTorch's global
    generator: after the same `torch.manual_seed` they are the same.

    >>> model = build("mlp", (1, 8, 8), 10, hidden=[32])
    >>> sum(p.numel() for p in model.parameters())
    2410
    >>> build("mlp", (1, 8, 8), 10, hiden=[32])
    Traceback (most recent call last):
    ...
    coterie.errors.CoterieError: unknown option of model mlp 'hiden'; did you mean 'hidden'? (allowed: hidden)
    """
    spec = MODELS.find(model) if isinstance(model, str) else model
    name = spec.name
    for option in options:
        if option not in spec.options:
            raise unknown(f"option of model {name}", option, spec.options)
    sides = tuple(shape)
    allowed = "(channels, height, width)" + (" or (features,)" if spec.takes_flat else "")
    require(
        spec.takes_any or len(sides) == 3 or (spec.takes_flat and len(sides) == 1),
        f"shape = {sides}: model '{name}' takes inputs of shape {allowed}",
    )
    require(
        all(isinstance(side, int) and side >= 1 for side in sides),
        f"shape = {sides}: every side must be a whole number of at least 1",
    )
    require(
        isinstance(classes, int) and classes >= 1,
        f"classes = {classes}: must be a whole number of at least 1 (1: a number is predicted)",
    )
    return spec.build(sides, classes, **options)
