"""Optimisers: on flat spans of a row, where a step is one operation a span, or on tensors as they lie in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from coterie.core.training import Training

TrainedSpan = tuple[Tensor, Tensor]  # a span's row and gradient, flat views

# By the names of `core.training.OPTIMISERS`, but for `sgd`, which is written out below.
TORCH_OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
}


STEEPEST = 1e30
"""The largest rate that PyTorch's optimisers are given: they scale it, beyond what float32 holds if it is larger. With
this one everything diverges already."""


Kept = Mapping[str, Sequence[Tensor]]
"""What clients keep, by the names of `core.training.OPTIMISERS`: a tensor for each that is moved, changed in place."""
NOTHING: Kept = MappingProxyType({})
ONE_FOR_ALL = ("step", "mu_product", "eta", "mu")
"""Of that, numbers: the same for all of a span."""


class Optimiser(ABC):
    """Moves spans along their gradients; every group of spans has a rate of its own."""

    @abstractmethod
    def start(self, rates: Sequence[float], kept: Kept = NOTHING) -> None:
        """Take these rates and go on from what the client has `kept`; without that, forget everything.

        Nothing carries over between clients.
        """

    @abstractmethod
    def step(self) -> None:
        """Take a step."""

    def finish(self) -> None:  # noqa: B027 (whoever works on what is kept has nothing to put back)
        """Put what is remembered where it is `kept`."""


class SGD(Optimiser):
    """SGD with momentum and weight decay, as `torch.optim.SGD` computes it, without its overhead a step."""

    def __init__(self, momentum: float, weight_decay: float) -> None:
        self._momentum, self._decay = momentum, weight_decay
        self._velocities: list[Tensor] = []
        self._rates: Sequence[float] = ()

    @abstractmethod
    def _moved(self) -> Iterator[Iterable[TrainedSpan]]:
        """What is moved, group by group: rows and their gradients, which are used up."""

    def start(self, rates: Sequence[float], kept: Kept = NOTHING) -> None:
        """Forget all velocities, or go on with those that are kept: 0 before the first step, which is the same."""
        self._rates = rates
        self._velocities = list(kept.get("velocity", ()))

    def step(self) -> None:
        """v ← μv + g + δw (v = g + δw at first); w ← w − ηv."""
        first = not self._velocities
        number = 0
        for group, rate in zip(self._moved(), self._rates, strict=True):
            for row, grad in group:
                if self._decay:
                    grad.add_(row, alpha=self._decay)
                if not self._momentum:
                    row.add_(grad, alpha=-rate)
                    continue
                if first:
                    self._velocities.append(grad.clone())
                else:
                    self._velocities[number].mul_(self._momentum).add_(grad)
                row.add_(self._velocities[number], alpha=-rate)
                number += 1


class FlatSGD(SGD):
    """SGD on spans of a row.

    >>> import torch
    >>> row, grad = torch.tensor([1.0]), torch.tensor([0.5])
    >>> sgd = FlatSGD([[(row, grad)]], momentum=0.0, weight_decay=0.0)
    >>> sgd.start([0.1])
    >>> sgd.step()
    >>> row
    tensor([0.9500])
    """

    def __init__(self, groups: Sequence[Sequence[TrainedSpan]], momentum: float, weight_decay: float) -> None:
        super().__init__(momentum, weight_decay)
        self._groups = groups

    def _moved(self) -> Iterator[Sequence[TrainedSpan]]:
        yield from self._groups


class TensorSGD(SGD):
    """The same numbers, tensor by tensor, with gradients as autograd left them: see `MountedModel.gather_gradients`.

    >>> import torch
    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> sgd = TensorSGD([[weight]], momentum=0.0, weight_decay=0.0)
    >>> sgd.start([0.1])
    >>> (weight * 0.5).sum().backward()
    >>> sgd.step()
    >>> weight.data, weight.grad
    (tensor([0.9500]), None)
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], momentum: float, weight_decay: float) -> None:
        super().__init__(momentum, weight_decay)
        self._groups = groups

    def _moved(self) -> Iterator[Iterator[TrainedSpan]]:
        for group in self._groups:
            yield (_taken(parameter) for parameter in group)


def _taken(parameter: nn.Parameter) -> TrainedSpan:
    """A parameter's numbers and its gradient, which it loses; zeros if the loss does not depend on it."""
    grad = parameter.grad
    parameter.grad = None
    return parameter.data, torch.zeros_like(parameter.data) if grad is None else grad


class TorchOptimiser(Optimiser):
    """Any element-wise optimiser of PyTorch's."""

    def __init__(self, groups: Sequence[Sequence[TrainedSpan]], settings: Training) -> None:
        self._inner = torch_optimiser([[leaf_of(*span) for span in group] for group in groups], settings)
        self._leaves: list[nn.Parameter] = [leaf for group in self._inner.param_groups for leaf in group["params"]]
        self._kept = NOTHING

    def start(self, rates: Sequence[float], kept: Kept = NOTHING) -> None:
        """Drop the optimiser's state, or go on from the one that is kept, if any step was taken."""
        self._inner.state.clear()
        self._kept = kept
        for group, rate in zip(self._inner.param_groups, rates, strict=True):
            group["lr"] = min(rate, STEEPEST)
        for number, leaf in enumerate(self._leaves if kept else ()):
            state = {name: spans[number] for name, spans in kept.items()}
            if float(state["step"][0]) > 0:
                self._inner.state[leaf] = {
                    name: (value[0].cpu() if name in ONE_FOR_ALL else value).clone() for name, value in state.items()
                }

    def step(self) -> None:
        """Take a step."""
        self._inner.step()

    def finish(self) -> None:
        """Put the state where it is kept, of every leaf that took a step."""
        for name, spans in self._kept.items():
            for leaf, span in zip(self._leaves, spans, strict=True):
                if leaf in self._inner.state:
                    span.copy_(self._inner.state[leaf][name])


def torch_optimiser(groups: Sequence[Sequence[nn.Parameter]], settings: Training) -> torch.optim.Optimizer:
    """PyTorch's optimiser that the settings name, for groups of leaves."""
    options = {"momentum": settings.momentum} if settings.momentum else {}
    if settings.optimizer != "rprop":
        options["weight_decay"] = settings.weight_decay
    leaves = [{"params": list(group)} for group in groups]
    return TORCH_OPTIMISERS[settings.optimizer](leaves, lr=min(settings.lr, STEEPEST), **options)


def make_optimiser(groups: Sequence[Sequence[TrainedSpan]], settings: Training) -> Optimiser:
    """The optimiser that the settings name."""
    if settings.optimizer == "sgd":
        return FlatSGD(groups, settings.momentum, settings.weight_decay)
    return TorchOptimiser(groups, settings)


def leaf_of(row: Tensor, grad: Tensor) -> nn.Parameter:
    """A flat parameter that shares memory with a span's row and gradient."""
    leaf = nn.Parameter(row)
    leaf.grad = grad
    return leaf
