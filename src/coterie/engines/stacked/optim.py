"""Steps of clients that train together, on rows `[k, n]`: what `coterie.client.optim` does for one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.client.optim import STEEPEST, leaf_of, torch_optimiser
from coterie.core.training import Training


@dataclass
class StackedPart:
    """Columns of a slot that are trained at one rate."""

    slot: str
    span: slice
    rate: float
    rows: Tensor  # [m, n], changed in place


class StackedOptimiser(ABC):
    """Moves the first k clients' rows along their gradients; k never grows."""

    @abstractmethod
    def step(self, grads: Sequence[Tensor], k: int) -> None:
        """Take a step, given every part's gradient `[k, n]`."""


class StackedSGD(StackedOptimiser):
    """SGD with momentum and weight decay."""

    def __init__(self, parts: Sequence[StackedPart], settings: Training) -> None:
        self._parts, self._settings = parts, settings
        self._velocities = [torch.zeros_like(part.rows) for part in parts] if settings.momentum else []

    def step(self, grads: Sequence[Tensor], k: int) -> None:
        """v ← μv + g + δw; w ← w − ηv."""
        settings = self._settings
        for number, (part, grad) in enumerate(zip(self._parts, grads, strict=True)):
            rows = part.rows[:k]
            direction = grad.add(rows, alpha=settings.weight_decay) if settings.weight_decay else grad
            if settings.momentum:
                direction = self._velocities[number][:k].mul_(settings.momentum).add_(direction)
            rows.add_(direction, alpha=-part.rate)


class StackedTorch(StackedOptimiser):
    """Any element-wise optimiser of PyTorch's: to it, the rows of all clients are one parameter."""

    def __init__(self, parts: Sequence[StackedPart], settings: Training) -> None:
        self._parts, self._settings = parts, settings
        self._inner: torch.optim.Optimizer | None = None
        self._k = 0

    def step(self, grads: Sequence[Tensor], k: int) -> None:
        """As PyTorch takes it."""
        if self._inner is None or k != self._k:
            self._inner = self._for(k, self._inner)
            self._k = k
        for group, grad in zip(self._inner.param_groups, grads, strict=True):
            group["params"][0].grad = grad
        self._inner.step()

    def _for(self, k: int, before: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
        """An optimiser of the first k clients, which goes on from what the one before knows of them."""
        leaves = [leaf_of(part.rows[:k], torch.zeros_like(part.rows[:k])) for part in self._parts]
        made = torch_optimiser([[leaf] for leaf in leaves], self._settings)
        for group, part in zip(made.param_groups, self._parts, strict=True):
            group["lr"] = min(part.rate, STEEPEST)
        if before is not None:
            for group, leaf in zip(before.param_groups, leaves, strict=True):
                old = group["params"][0]
                made.state[leaf] = {name: _first(k, value, old) for name, value in before.state[old].items()}
        return made


def _first(k: int, value: Any, leaf: Tensor) -> Any:
    """What an optimiser remembers of the first k clients; numbers such as the count of steps are everybody's."""
    return value[:k] if isinstance(value, Tensor) and value.shape == leaf.shape else value


def stacked_optimiser(parts: Sequence[StackedPart], settings: Training) -> StackedOptimiser:
    """The optimiser that the settings name."""
    return StackedSGD(parts, settings) if settings.optimizer == "sgd" else StackedTorch(parts, settings)
