"""A model applied to many clients at once: every layer takes a row of weights per client.

Layers that are common in small models are batched by hand (a linear layer is one batched product, a convolution
one grouped convolution); any other module runs under `torch.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from coterie.client.model import GradientFreeMaxPool, MountedModel
from coterie.core.layout import Layout
from coterie.engines.stacked.training_layers import InTraining, StackedModule, Tensors, changes_in_training, forward_of

# (weights, [k, B, ...], what is known of the step if it is one) -> [k, B, ...]
Layer = Callable[[Tensors, Tensor, InTraining | None], Tensor]


class BatchedNet:
    """`features(rows, x)` and `logits(rows, z)` for rows `[k, P]` and inputs `[k, B, ...]`."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        network = MountedModel(module, layout)
        self.layout = layout
        self.trunk_changes, self.head_changes = changes_in_training(network.trunk), changes_in_training(network.head)
        self._trunk = _batched(network.trunk, "")
        self._head = _batched(network.head, f"{layout.classifier}.")
        self._trunk_module, self._head_module = network.trunk, network.head
        prefix = f"{layout.classifier}."
        names = [entry.name for entry in layout.entries]
        self._trunk_names = [name for name in names if not name.startswith(prefix)]
        self._head_names = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    def tensors(self, rows: Tensor) -> dict[str, Tensor]:
        """Every tensor of every client by name, cut from rows `[k, P]` with one differentiable operation."""
        pieces = rows.split([entry.stop - entry.start for entry in self.layout.entries], dim=1)
        return {entry.name: entry.view(piece) for entry, piece in zip(self.layout.entries, pieces, strict=True)}

    def features(self, tensors: Tensors, inputs: Tensor, now: InTraining | None = None) -> Tensor:
        """The extractors' outputs, in training if `now` says so: `[k, B, d]`."""
        _set_mode(self._trunk_module, now is not None)
        return self._trunk(tensors, inputs, now)

    def logits(self, tensors: Tensors, features: Tensor, now: InTraining | None = None) -> Tensor:
        """The classifiers' outputs, in training if `now` says so: `[k, B, C]`."""
        _set_mode(self._head_module, now is not None)
        return self._head(tensors, features, now)

    def one_features(self, tensors: Tensors, inputs: Tensor, training: bool) -> Tensor:
        """One client's extractor on its inputs, inside `vmap`: `[B, d]`."""
        _set_mode(self._trunk_module, training)
        of_trunk = {name: tensors[name] for name in self._trunk_names}
        out: Tensor = torch.func.functional_call(self._trunk_module, of_trunk, (inputs,))
        return out

    def one_logits(self, tensors: Tensors, features: Tensor, training: bool, **asked: Any) -> Tensor:
        """One client's classifier on its features, inside `vmap`: `[B, C]`."""
        _set_mode(self._head_module, training)
        of_head = {local: tensors[name] for name, local in self._head_names.items()}
        out: Tensor = torch.func.functional_call(self._head_module, of_head, (features,), asked)
        return out


def _set_mode(module: nn.Module, training: bool) -> None:
    if module.training != training:
        module.train(training)


def _batched(module: nn.Module, prefix: str) -> Layer:
    """A module as a function of batched weights and inputs."""
    kind = forward_of(module)
    if kind is nn.Sequential:
        layers = [_batched(layer, f"{prefix}{name}.") for name, layer in module.named_children()]

        def run(tensors: Tensors, x: Tensor, now: InTraining | None) -> Tensor:
            for layer in layers:
                x = layer(tensors, x, now)
            return x

        return run
    by_hand = _BY_HAND.get(kind, StackedModule)
    return by_hand(module, prefix) or StackedModule(module, prefix)


def _linear(_: nn.Linear, prefix: str) -> Layer:
    def run(tensors: Tensors, x: Tensor, _now: InTraining | None) -> Tensor:
        weight, bias = tensors[f"{prefix}weight"].transpose(1, 2), tensors.get(f"{prefix}bias")
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None], x, weight)

    return run


def _conv(module: nn.Conv2d, prefix: str) -> Layer | None:
    if module.groups != 1 or module.padding_mode != "zeros":
        return None

    def run(tensors: Tensors, x: Tensor, _now: InTraining | None) -> Tensor:
        clients, batch = x.shape[:2]
        weight = tensors[f"{prefix}weight"]
        bias = None if module.bias is None else tensors[f"{prefix}bias"].reshape(-1)
        side_by_side = x.transpose(0, 1).reshape(batch, clients * x.shape[2], *x.shape[3:])
        out = F.conv2d(
            side_by_side, weight.flatten(0, 1), bias, module.stride, module.padding, module.dilation, groups=clients
        )
        together: Tensor = out.unflatten(1, (clients, -1)).transpose(0, 1)
        return together

    return run


def _flatten(module: nn.Flatten, prefix: str) -> Layer | None:
    if module.start_dim != 1 or module.end_dim != -1:
        return None
    return lambda tensors, x, now: x.flatten(2)


def _same_for_all(module: nn.Module, prefix: str) -> Layer:
    """Layers without weights that treat every sample alike: clients and batch become one dimension."""

    def run(tensors: Tensors, x: Tensor, _now: InTraining | None) -> Tensor:
        out: Tensor = module(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return out

    return run


_BY_HAND: dict[type[nn.Module], Callable[..., Layer | None]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.Flatten: _flatten,
    nn.Identity: lambda module, prefix: lambda tensors, x, now: x,
    nn.ReLU: lambda module, prefix: lambda tensors, x, now: x.relu(),
    nn.Tanh: lambda module, prefix: lambda tensors, x, now: x.tanh(),
    nn.MaxPool2d: _same_for_all,
    GradientFreeMaxPool: _same_for_all,
    nn.AvgPool2d: _same_for_all,
}


def padded(parts: list[Tensor]) -> Tensor:
    """Vectors of unequal length as one matrix, filled up with zeros: `[k, longest]`.

    >>> padded([torch.tensor([5, 6]), torch.tensor([7])])
    tensor([[5, 6],
            [7, 0]])
    """
    return nn.utils.rnn.pad_sequence(parts, batch_first=True)


def chunks(total: int, width: int, budget: int = 1 << 16) -> list[slice]:
    """Slices of `total` clients such that clients × `width` samples stay within a budget."""
    size = max(1, budget // max(width, 1))
    return [slice(start, start + size) for start in range(0, total, size)] if total else []
