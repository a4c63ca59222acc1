"""A batch of many clients at once, and how loss terms that are written for one client see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.client.batch import Outputs
from coterie.client.terms import RECEIVED
from coterie.core.pixels import samples_at
from coterie.engines.stacked.model import BatchedNet
from coterie.engines.stacked.stack import Stack
from coterie.engines.stacked.training_layers import InTraining, Tensors


@dataclass(frozen=True)
class Mode:
    """Whose models are in training: `slots`, of which the `extractors` are too, in a `step`."""

    slots: frozenset[str] = frozenset()
    extractors: frozenset[str] = frozenset()
    step: InTraining | None = None


NOT_TRAINING = Mode()


class StackedBatch:
    """A batch of every client in `part` of the stack; each quantity has a leading dimension of clients.

    Inputs, or the features that a frozen extractor gave, may be handed in as `x [k, B, ...]`.
    """

    def __init__(
        self, stack: Stack, slot: str, index: Tensor, part: slice, x: Tensor | None = None, is_features: bool = False
    ) -> None:
        self.stack, self.slot, self.index, self.part = stack, slot, index, part
        self.labels = stack.ground.labels[index]
        self.leaves: dict[str, Tensor] = {}
        # The slots whose models are in training, those whose extractors are, and what layers are told of the step.
        self.training: Mode = NOT_TRAINING
        self._inputs = None if is_features else x
        self._features = x if is_features else None
        self._tensors: dict[str, Tensors] = {}
        # What a term that was computed for each client asked of the models' outputs, if it did: [k, B, C].
        self.computed: Tensor | None = None

    @property
    def inputs(self) -> Tensor:
        """The samples: `[k, B, ...]`."""
        if self._inputs is None:
            self._inputs = samples_at(self.stack.ground.inputs, self.index)
        return self._inputs

    def tensors(self, slot: str) -> Tensors:
        """A slot's tensors of these clients, those in training with gradients."""
        if slot not in self._tensors:
            rows = self.leaves[slot] if slot in self.leaves else self.stack.rows(slot)[self.part]
            self._tensors[slot] = self.stack.ground.net.tensors(rows)
        return self._tensors[slot]

    @property
    def features(self) -> Tensor:
        """The extractors' outputs: `[k, B, d]`."""
        if self._features is None:
            slot = self.stack.slot_with_extractor(self.slot)
            now = self.training.step if slot in self.training.extractors else None
            self._features = self.stack.ground.net.features(self.tensors(slot), self.inputs, now)
            self.stack.passes += 1
        return self._features

    @property
    def logits(self) -> Tensor:
        """The classifiers' outputs: `[k, B, C]`."""
        now = self.training.step if self.slot in self.training.slots else None
        return self.stack.ground.net.logits(self.tensors(self.slot), self.features, now)

    def per_client(self, function: Callable[[Any], Tensor]) -> Tensor:
        """A loss term or a prediction, written for one client's batch, for all clients: `[k, ...]`."""
        net, federation = self.stack.ground.net, self.stack.federation
        named = (
            *(name for name, slot in federation.slots.items() if not slot.beside),
            RECEIVED,
            *getattr(function, "received", ()),
        )
        slots: dict[str, Tensors] = {slot: dict(self.tensors(slot)) for slot in named}
        values = {name: self.stack.value(name, self.part) for name in federation.values}
        taken = self.stack.rounds_taken[self.part]
        step = self.training.step
        of_samples = self.labels.new_zeros(self.labels.shape) if step is None else step.shares

        def one(
            labels: Tensor,
            inputs: Tensor,
            features: Tensor,
            slots: dict[str, Tensors],
            taken: Tensor,
            of_samples: Tensor,
            values: dict[str, Tensor],
        ) -> tuple[Tensor, ...]:
            shares = None if step is None else of_samples
            shown = (labels, inputs, slots, taken, values, features)
            batch = OneClient(self.stack, self.slot, net, *shown, training=self.training, shares=shares)
            result = function(batch)
            return (result,) if batch.computed is None else (result, batch.computed)

        per_value = {name: 0 if federation.kinds[name].per_client else None for name in values}
        batched = torch.vmap(one, in_dims=(0, 0, 0, 0, 0, 0, per_value))
        out: tuple[Tensor, ...] = batched(self.labels, self.inputs, self.features, slots, taken, of_samples, values)
        if self.computed is None and len(out) > 1:
            self.computed = out[1].detach()
        return out[0]


class OneClient(Outputs):
    """What `coterie.client.batch.Batch` offers, inside `vmap`: one client's batch as loss terms see it."""

    def __init__(
        self,
        stack: Stack,
        slot: str,
        net: BatchedNet,
        labels: Tensor,
        inputs: Tensor,
        slots: dict[str, Tensors],
        rounds_taken: Tensor,
        values: dict[str, Tensor],
        features: Tensor | None = None,
        training: Mode = NOT_TRAINING,
        shares: Tensor | None = None,
    ) -> None:
        self._stack, self.slot, self._net, self._training = stack, slot, net, training
        self.task = stack.ground.problem.task
        self.labels, self.inputs = labels, inputs
        self._slots, self._values, self.rounds_taken = slots, values, rounds_taken
        self._features, self._shares = features, shares

    @property
    def features(self) -> Tensor:
        """The extractor's output: `[B, d]`."""
        if self._features is None:
            slot = self._stack.slot_with_extractor(self.slot)
            training = slot in self._training.extractors
            if training and self._net.trunk_changes:
                raise RuntimeError("a loss term runs an extractor anew whose layers change in training")
            self._features = self._net.one_features(self._slots[slot], self.inputs, training)
            self._stack.passes += 1
        return self._features

    def head(self, slot: str, features: Tensor | None = None, **asked: Any) -> Tensor:
        """The output of the classifier in `slot`: `[B, C]`."""
        training = slot in self._training.slots
        if training and self._net.head_changes:
            raise RuntimeError("a loss term runs a classifier whose layers change in training")
        given = self.features if features is None else features
        return self._net.one_logits(self._slots[slot], given, training, **asked)

    def under(self, slot: str) -> OneClient:
        """The same samples seen by the model in another slot."""
        if slot not in self._slots:
            raise RuntimeError(f"a loss term looks at '{slot}', which it does not name in `received`")
        shown = (self.labels, self.inputs, self._slots, self.rounds_taken, self._values)
        return OneClient(self._stack, slot, self._net, *shown, training=self._training, shares=self._shares)

    def value(self, name: str) -> Tensor:
        """A value as this client has it."""
        return self._values[name]

    @property
    def shares(self) -> Tensor:
        """What each sample counts in the batch's mean, 0 where it is padding: `[B]`."""
        if self._shares is None:
            raise RuntimeError("a prediction looks at a batch as a whole")
        return self._shares

    @property
    def notes(self) -> dict[str, Tensor]:
        """Nothing stays of what is worked out for all clients at once: the recipe is declined."""
        raise RuntimeError("a loss term remembers something from batch to batch")

    def split(self, pieces: int) -> list[OneClient]:
        """Batches of unequal size are padded here, so their pieces would be other samples: the recipe is declined."""
        raise RuntimeError(f"a loss term splits its batch into {pieces} pieces")

    @property
    def own_samples(self) -> tuple[Tensor, Tensor]:
        """Clients have different numbers of them: predictions that look at them are made one client at a time."""
        raise RuntimeError("predictions look at the client's training samples")

    def stream(self, purpose: str) -> torch.Generator:
        """Random numbers of a client's own cannot be drawn for all clients at once: the recipe is declined."""
        raise RuntimeError(f"a loss term draws random numbers of its own ({purpose})")
