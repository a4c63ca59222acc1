"""Gradients of many small models at once, with the backward pass written out.

For models of a few thousand parameters, autograd's bookkeeping costs more than the arithmetic. Chains of common
layers have a short backward pass of their own here, which writes its results straight into rows of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from coterie.client.model import GradientFreeMaxPool, MountedModel
from coterie.core.layout import Layout
from coterie.core.task import Loss, LossWithSlope
from coterie.engines.stacked.training_layers import Tensors, forward_of

Saved = tuple[Tensor, ...]


class Layer(Protocol):
    """A layer of k clients: inputs and outputs are `[k, B, ...]`, or `[B, k · channels, h, w]` between convolutions."""

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        """The output, and what the way back needs."""

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        """Write the weights' gradients `into` place; the inputs' gradient is used only if `further`."""


class Chain:
    """Layers one after the other.

    >>> chain = Chain.of(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "")
    >>> weights = {"0.weight": torch.ones(1, 2, 3), "0.bias": torch.zeros(1, 2)}
    >>> out, saved = chain.forward(weights, torch.ones(1, 4, 3))
    >>> out[0, 0]
    tensor([3., 3.])
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers

    @classmethod
    def of(cls, module: nn.Module, prefix: str) -> Chain | None:
        """The module as a chain; nothing if it has a layer whose backward pass is not written out."""
        layers: list[Layer] = []
        return cls(layers) if _append(module, prefix, layers) else None

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, list[Saved]]:
        """The output, and what the way back needs."""
        everything = []
        for layer in self._layers:
            x, saved = layer.forward(weights, x)
            everything.append(saved)
        return x, everything

    def backward(self, weights: Tensors, saved: list[Saved], grad: Tensor, into: Tensors, further: bool) -> Tensor:
        """The way back from the output's gradient; `further` asks for the inputs' gradient."""
        for position in reversed(range(len(self._layers))):
            grad = self._layers[position].backward(weights, saved[position], grad, into, further or position > 0)
        return grad


class HandWrittenNet:
    """The gradient of the mean loss of k clients' models, without autograd."""

    def __init__(self, trunk: Chain, head: Chain, loss: LossWithSlope) -> None:
        self._trunk, self._head, self._loss = trunk, head, loss

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, loss: Loss) -> HandWrittenNet | None:
        """A model's passes written out; nothing if it has other than the common layers, or the loss no slope."""
        if not isinstance(loss, LossWithSlope):
            return None
        network = MountedModel(module, layout)
        trunk, head = Chain.of(network.trunk, ""), Chain.of(network.head, f"{layout.classifier}.")
        return None if trunk is None or head is None else cls(trunk, head, loss)

    def gradients(
        self, weights: Tensors, into: Tensors, x: Tensor, labels: Tensor, shares: Tensor, *, head_only: bool
    ) -> Tensor:
        """Write the gradients `into` place; what the models put out, `[k, B, C]`.

        `x [k, B, ...]` are samples, or features if only the head is trained; `shares [k, B]` are what each sample
        counts in its client's mean, 0 where it is padding. Tensors that `into` lacks are not trained. Each is best
        contiguous: a product that is told to fill another would be done one client after the other.
        """
        features, below = (x, []) if head_only else self._trunk.forward(weights, x)
        outputs, above = self._head.forward(weights, features)
        grad = self._loss.slope(outputs, labels).mul_(shares[..., None])
        grad = self._head.backward(weights, above, grad, into, not head_only)
        if not head_only:
            self._trunk.backward(weights, below, grad, into, False)
        return outputs


class _Linear:
    def __init__(self, prefix: str) -> None:
        self._weight, self._bias = f"{prefix}weight", f"{prefix}bias"

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        weight, bias = weights[self._weight].transpose(1, 2), weights.get(self._bias)
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None], x, weight), (x,)

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        if self._weight in into:
            torch.bmm(grad.transpose(1, 2), saved[0], out=into[self._weight])
        if self._bias in into:
            torch.sum(grad, 1, out=into[self._bias])
        return torch.bmm(grad, weights[self._weight]) if further else grad


class _Relu:
    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        out = x.relu()
        return out, (out,)

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        out: Tensor = torch.ops.aten.threshold_backward(grad, saved[0], 0)
        return out


class _Tanh:
    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        out = x.tanh()
        return out, (out,)

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        out: Tensor = torch.ops.aten.tanh_backward(grad, saved[0])
        return out


class _Flatten:
    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        return x.flatten(2), (x,)

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        return grad.view(saved[0].shape)


class _SideBySide:
    """Images of k clients become channels of one image: `[k, B, c, h, w]` to `[B, k · c, h, w]`."""

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        return x.transpose(0, 1).flatten(1, 2), (x,)

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        return grad.unflatten(1, (len(saved[0]), -1)).transpose(0, 1) if further else grad


class _Apart:
    """The way back: `[B, k · c, h, w]` to `[k, B, c, h, w]`."""

    def __init__(self, weight: str) -> None:
        self._weight = weight  # a tensor that tells how many clients there are

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        return x.unflatten(1, (len(weights[self._weight]), -1)).transpose(0, 1), ()

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        return grad.transpose(0, 1).flatten(1, 2)


class _Conv:
    """A convolution of k clients is one of k groups."""

    def __init__(self, module: nn.Conv2d, prefix: str) -> None:
        self.weight, self._bias = f"{prefix}weight", f"{prefix}bias"
        assert not isinstance(module.padding, str)
        self._geometry = (list(module.stride), list(module.padding), list(module.dilation), False, [0, 0])

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        weight, bias = weights[self.weight], weights.get(self._bias)
        flat = None if bias is None else bias.reshape(-1)
        return torch.convolution(x, weight.flatten(0, 1), flat, *self._geometry, groups=len(weight)), (x,)

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        weight = weights[self.weight]
        outputs = weight.shape[0] * weight.shape[1]
        gradients = torch.ops.aten.convolution_backward(
            *(grad, saved[0], weight.flatten(0, 1), [outputs], *self._geometry, len(weight)),
            [further, self.weight in into, self._bias in into],
        )
        if self.weight in into:
            into[self.weight].copy_(gradients[1].view(weight.shape))
        if self._bias in into:
            into[self._bias].copy_(gradients[2].view(weight.shape[:2]))
        out: Tensor = gradients[0] if further else grad
        return out


class _MaxPool:
    def __init__(self, module: nn.MaxPool2d) -> None:
        self._geometry = (module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Saved]:
        out, places = torch.ops.aten.max_pool2d_with_indices(x, *map(_pair, self._geometry[:4]), self._geometry[4])
        return out, (x, places)

    def backward(self, weights: Tensors, saved: Saved, grad: Tensor, into: Tensors, further: bool) -> Tensor:
        geometry = (*map(_pair, self._geometry[:4]), self._geometry[4])
        x, places = saved
        out: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *geometry, places)
        return out


def _pair(value: object) -> object:
    """A size as the operators want it: both sides."""
    return [value, value] if isinstance(value, int) else value


def _append(module: nn.Module, prefix: str, layers: list[Layer]) -> bool:
    """Add the module's layers; False if one of them is not known here."""
    kind = forward_of(module)
    if kind is nn.Sequential:
        return all(_append(layer, f"{prefix}{name}.", layers) for name, layer in module.named_children())
    side_by_side = _convolution_before(layers)
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        layers.append(_Linear(prefix))
        return side_by_side is None
    if isinstance(module, nn.Flatten) and kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        layers += [_Flatten()] if side_by_side is None else [_Apart(side_by_side), _Flatten()]
    elif kind is nn.ReLU:
        layers.append(_Relu())
    elif kind is nn.Tanh:
        layers.append(_Tanh())
    elif isinstance(module, nn.Conv2d) and kind is nn.Conv2d and _plain(module):
        layers += [_SideBySide()] if side_by_side is None else []
        layers.append(_Conv(module, prefix))
    elif isinstance(module, nn.MaxPool2d) and _known(module) and side_by_side is not None:
        layers.append(_MaxPool(module))
    else:
        return kind is nn.Identity
    return True


def _known(module: nn.MaxPool2d) -> bool:
    return forward_of(module) in (nn.MaxPool2d, GradientFreeMaxPool) and not module.return_indices


def _plain(module: nn.Conv2d) -> bool:
    return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _convolution_before(layers: Sequence[Layer]) -> str | None:
    """The weight of the convolution that left the clients side by side, if they are."""
    weight = None
    for layer in layers:
        if isinstance(layer, _Conv):
            weight = layer.weight
        elif isinstance(layer, _Apart):
            weight = None
    return weight
