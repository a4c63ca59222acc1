"""Layers that do otherwise in training: batch norm, whose statistics change, and dropout, which draws numbers.

Batches of clients that train together are padded to one size. Statistics leave the padding out, and every client's
dropout is drawn from its own stream for its own samples alone: the numbers are those of the serial engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.client.model import CHANNELS, WHOLE, AnyDropout, dropout_mask
from coterie.core.layout import BatchNorm

Tensors = Mapping[str, Tensor]  # name -> [k, *shape]
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Where a module keeps what runs before and after it; old spectral and weight norm too."""
Asked = list[tuple[AnyDropout, torch.Size]]
"""Dropout layers in the order of their calls, and the shapes `[...]` of the samples that they are given."""


@dataclass(frozen=True)
class InTraining:
    """A step of k clients, as layers see it that do otherwise in training.

    `shares [k, B]` are what samples count in their client's mean, 0 where they are padding; `counts` are the clients'
    numbers of samples, and `streams` where they draw from. New running statistics are left in `statistics`, by tensor.
    """

    shares: Tensor
    counts: Sequence[int]
    streams: Sequence[torch.Generator]
    statistics: dict[str, Tensor] = field(default_factory=dict)

    def mask(self, layer: AnyDropout, sample: torch.Size) -> Tensor:
        """What a dropout layer multiplies its inputs by, every client's drawn from its own stream: `[k, B, ...]`."""
        drawn = [
            dropout_mask(layer, torch.Size([count, *sample]), self.shares, stream)
            for count, stream in zip(self.counts, self.streams, strict=True)
        ]
        mask = self.shares.new_zeros(len(drawn), self.shares.shape[1], *drawn[0].shape[1:])
        for of_client, part in zip(mask, drawn, strict=True):
            of_client[: len(part)] = part
        return mask


class PaddedBatchNorm(BatchNorm):
    """Batch norm of one client inside `vmap`: in training, over the samples that have a share in its batch."""

    path: str  # of the layer in the model
    shares: Tensor | None  # [B], while it trains
    statistics: dict[str, Tensor]  # by tensor

    def forward(self, x: Tensor) -> Tensor:
        """The inputs `[B, C, ...]`, normalised; new running statistics are left in `statistics`."""
        assert self.running_mean is not None
        assert self.running_var is not None
        if self.shares is None:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        others = [0, *range(2, x.ndim)]
        shape = [1, -1, *(1 for _ in range(2, x.ndim))]
        places = x[0, 0].numel()
        weights = (self.shares / places).view(-1, *(1 for _ in range(1, x.ndim)))
        mean = (x * weights).sum(others)
        centred = x - mean.view(shape)
        variance = (centred.square() * weights).sum(others)
        count = places / self.shares.amax()  # shares are 1 / n, or 0
        unbiased = variance * count / (count - 1)
        for name, old, new in (("mean", self.running_mean, mean), ("var", self.running_var, unbiased)):
            self.statistics[f"{self.path}running_{name}"] = torch.lerp(old, new, self.momentum or 0.0).detach()
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        out = centred * scale.view(shape)
        return out if self.bias is None else out + self.bias.view(shape)

    def _check_input_dim(self, _: Tensor) -> None:
        """Any number of dimensions: the layer that this one stands for is particular about them, not this one."""


class PaddedDropout(nn.Dropout):
    """Dropout of one client inside `vmap`, by masks that were drawn outside; before that, it tells what it needs."""

    origin: AnyDropout  # the layer as it was
    masks: list[Tensor]  # of this call and of later ones
    asked: Asked | None

    def forward(self, x: Tensor) -> Tensor:
        """The inputs `[B, ...]`, some of them zero in training."""
        if self.asked is not None:
            self.asked.append((self.origin, x.shape[1:]))
        return x * self.masks.pop(0) if self.masks else x


class StackedModule:
    """Any module (one's own copy) for k clients at once, under `vmap`."""

    def __init__(self, module: nn.Module, prefix: str) -> None:
        self._module, self._prefix = module, prefix
        self._norms: list[PaddedBatchNorm] = []
        self._dropouts: list[PaddedDropout] = []
        self._asked: Asked | None = None
        self._names = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        for path, layer in module.named_modules():
            if isinstance(layer, BatchNorm):
                layer.__class__ = PaddedBatchNorm
                assert isinstance(layer, PaddedBatchNorm)
                layer.path = f"{prefix}{path}." if path else prefix
                self._norms.append(layer)
            elif isinstance(layer, AnyDropout) and layer.p > 0:
                origin = type(layer)(layer.p)
                layer.__class__ = PaddedDropout
                assert isinstance(layer, PaddedDropout)
                layer.__dict__["origin"] = origin  # set in this way, it is no part of the layer
                self._dropouts.append(layer)
        self._begin(None, [], {})

    def __call__(self, tensors: Tensors, x: Tensor, now: InTraining | None) -> Tensor:
        """The outputs `[k, B, ...]` for inputs `[k, B, ...]`."""
        local = {
            name.removeprefix(self._prefix): tensor for name, tensor in tensors.items() if name.startswith(self._prefix)
        }
        held = {name: tensor for name, tensor in local.items() if name in self._names}
        if now is None or not (self._norms or self._dropouts):
            out: Tensor = torch.vmap(self._one)(held, x)
            return out
        masks = [now.mask(layer, sample) for layer, sample in self._drawn(held, x)]
        out, statistics = torch.vmap(self._one_in_training)(held, x, now.shares, masks)
        now.statistics.update(statistics)
        return out

    def _drawn(self, held: Tensors, x: Tensor) -> Asked:
        """Which dropout layers are called, in order. It is found out once, on one sample of one client."""
        if self._asked is None:
            asked: Asked = []
            self._begin(None, [], {}, asked)
            with torch.no_grad():
                torch.vmap(self._one)({name: tensor[:1] for name, tensor in held.items()}, x[:1, :1])
            self._begin(None, [], {})
            self._asked = asked
        return self._asked

    def _one(self, held: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self._module, held, (x,))
        return out

    def _one_in_training(
        self, held: dict[str, Tensor], x: Tensor, shares: Tensor, masks: list[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        statistics: dict[str, Tensor] = {}
        self._begin(shares, list(masks), statistics)
        try:
            return self._one(held, x), statistics
        finally:
            self._begin(None, [], {})

    def _begin(
        self, shares: Tensor | None, masks: list[Tensor], statistics: dict[str, Tensor], asked: Asked | None = None
    ) -> None:
        """From here on layers train on samples of these shares `[B]`, with these masks, or (none) are tested."""
        for norm in self._norms:
            norm.shares, norm.statistics = shares, statistics
        for dropout in self._dropouts:
            dropout.masks, dropout.asked = masks, asked


def changes_in_training(module: nn.Module) -> bool:
    """Whether a module has a layer that does otherwise in training.

    >>> changes_in_training(nn.Dropout(0.5)), changes_in_training(nn.ReLU())
    (True, False)
    """
    return any(
        isinstance(layer, BatchNorm) or (isinstance(layer, AnyDropout) and layer.p > 0) for layer in module.modules()
    )


def forward_of(module: nn.Module) -> type[nn.Module]:
    """The class whose forward pass a module has: that of sequences for all that only name one, else its own.

    >>> class Block(nn.Sequential):
    ...     pass
    >>> class Residual(nn.Sequential):
    ...     def forward(self, x):
    ...         return x + super().forward(x)
    >>> forward_of(Block()).__name__, forward_of(Residual()).__name__
    ('Sequential', 'Residual')
    """
    if "forward" in vars(module):
        return nn.Module  # one of this module alone
    same = type(module).forward is nn.Sequential.forward and type(module).__call__ is nn.Module.__call__
    return nn.Sequential if same else type(module)


def cannot_be_batched(module: nn.Module) -> str | None:
    """Why a model cannot be trained for many clients at once, if so.

    >>> cannot_be_batched(nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout()))
    "layer '1' is AlphaDropout"
    """
    for path, layer in module.named_modules():
        if any(vars(layer)[hooks] for hooks in HOOKS):
            return f"layer '{path}' has a hook" if path else "the model has a hook"
        if isinstance(layer, BatchNorm) and layer.running_mean is None:
            return f"layer '{path}' is batch norm without running statistics"
        if isinstance(layer, AnyDropout) and layer.p > 0 and type(layer) not in (*WHOLE, *CHANNELS):
            return f"layer '{path}' is {type(layer).__name__}"
    return None
