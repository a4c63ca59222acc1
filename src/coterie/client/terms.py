"""Parts of the local objective: of a batch, or of the row alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from coterie.client.views import BatchView

# A loss term gives one value per sample of the batch, [B]; the engine takes the mean. One in which a sample's value
# depends on the others of its batch says `whole_batch = True`.
Term = Callable[[BatchView], Tensor]

RECEIVED = "received"  # the anchor that means: the model as it was downloaded


def received_of(slot: str) -> str:
    """Under which name a batch shows the model of any slot as it was before training here.

    A term that looks at others than `model`'s names them in an attribute `received`, so that it can be computed for
    many clients at once.

    >>> received_of("model"), received_of("model2")
    ('received', 'received model2')
    """
    return RECEIVED if slot == "model" else f"{RECEIVED} {slot}"


class RowTerm(Protocol):
    """A part of the objective that depends on the row alone, given by its gradient.

    It is asked for some columns at a time. One that says `whole = True` is asked for all trained columns of the slot at
    once, in order: of a client `[n]`, or of several `[k, n]`.
    """

    def gradient(self, row: Tensor, anchor: Callable[[str], Tensor]) -> Tensor:
        """The gradient `[n]` at the trained columns `row [n]`; `anchor(slot)` gives the same columns elsewhere."""
        ...


def task_loss(batch: BatchView) -> Tensor:
    """The loss of the run's task, such as cross-entropy: `[B]`.

    >>> from types import SimpleNamespace
    >>> from coterie.core.task import Classification
    >>> batch = SimpleNamespace(task=Classification(), logits=torch.zeros(3, 2), labels=torch.tensor([0, 1, 0]))
    >>> task_loss(batch)
    tensor([0.6931, 0.6931, 0.6931])
    """
    return batch.task.loss(batch.logits, batch.labels)


@dataclass(frozen=True)
class Proximal:
    """(μ/2)‖w − anchor‖²: pulls the row towards what was received, or towards a slot.

    >>> import torch
    >>> Proximal(0.5).gradient(torch.tensor([3.0]), lambda slot: torch.tensor([1.0]))
    tensor([1.])
    """

    strength: float
    anchor: str = RECEIVED

    def gradient(self, row: Tensor, anchor: Callable[[str], Tensor]) -> Tensor:
        """μ(w − anchor)."""
        return self.strength * (row - anchor(self.anchor))


def asked_for_whole_rows(term: RowTerm) -> bool:
    """Whether a term's gradient at a column depends on the others."""
    return bool(getattr(term, "whole", False))


def looks_at_whole_batches(term: Term) -> bool:
    """Whether a term's value for a sample depends on the others of its batch."""
    return bool(getattr(term, "whole_batch", False))


@dataclass(frozen=True)
class Linear:
    """⟨factor · slot, w⟩: adds a constant direction to every gradient.

    >>> import torch
    >>> Linear("dual", -1.0).gradient(torch.tensor([3.0]), lambda slot: torch.tensor([2.0]))
    tensor([-2.])
    """

    slot: str
    factor: float = 1.0

    def gradient(self, row: Tensor, anchor: Callable[[str], Tensor]) -> Tensor:
        """The direction itself, wherever the row is."""
        return self.factor * anchor(self.slot)


@dataclass(frozen=True)
class PrototypeDistance:
    """weight · MSE(z, prototype of y), over features; classes without a prototype (NaN) are passed over.

    >>> from types import SimpleNamespace
    >>> prototypes = torch.tensor([[1.0, 1.0], [torch.nan, torch.nan]])
    >>> labels, features = torch.tensor([0, 1]), torch.zeros(2, 2)
    >>> batch = SimpleNamespace(value=lambda name: prototypes, labels=labels, features=features)
    >>> PrototypeDistance("prototypes")(batch)
    tensor([1., 0.])
    """

    value: str
    weight: float = 1.0

    def __call__(self, batch: BatchView) -> Tensor:
        """The term for every sample: `[B]`."""
        prototypes = batch.value(self.value)[batch.labels]
        known = ~prototypes.isnan().any(1)
        distance = (batch.features - prototypes.nan_to_num()).square().mean(1)
        return self.weight * torch.where(known, distance, 0.0)
