"""One batch at one client, as loss terms see it, and what every kind of batch offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.client.views import ClientView
from coterie.core.pixels import Views
from coterie.errors import require


class Outputs(ABC):
    """The outputs of the classifier in `slot`, computed when first asked for."""

    slot: str
    _logits: Tensor | None = None
    _apart: Tensor | None = None

    @property
    @abstractmethod
    def features(self) -> Tensor:
        """The extractor's output: `[B, d]`."""

    @abstractmethod
    def head(self, slot: str, features: Tensor | None = None, **asked: Any) -> Tensor:
        """The output of the classifier in `slot` on these (or the given) features: `[B, C]`."""

    @property
    def logits(self) -> Tensor:
        """The classifier's output on the features: `[B, C]`."""
        if self._logits is None:
            self._logits = self.head(self.slot)
        return self._logits

    @property
    def classifier_logits(self) -> Tensor:
        """The same numbers with a gradient for the classifier alone: `[B, C]`."""
        self._apart = self.head(self.slot, self.features.detach())
        return self._apart

    @property
    def computed(self) -> Tensor | None:
        """The same numbers, if anybody has asked for them: `[B, C]`."""
        return self._apart if self._logits is None else self._logits


class Batch(Outputs):
    """One batch at one client, as loss terms see it. Everything is computed when first asked for."""

    def __init__(
        self,
        client: ClientView,
        slot: str,
        index: Tensor,
        features: Tensor | None = None,
        seen: tuple[Views, Tensor] | None = None,
    ) -> None:
        self._client = client
        self._index = index
        self._features = features
        self._seen = seen  # how its images are to be seen, and the number of each: [B]
        self._inputs: Tensor | None = None
        self.slot = slot
        self.task = client.problem.task
        self.labels = client.problem.labels[index]

    @property
    def inputs(self) -> Tensor:
        """The samples: `[B, ...]`."""
        if self._inputs is None:
            inputs = self._client.problem.inputs[self._index]
            self._inputs = inputs if self._seen is None else self._seen[0].seen(inputs, self._seen[1])
        return self._inputs

    @property
    def features(self) -> Tensor:
        """The extractor's output: `[B, d]`."""
        if self._features is None:
            self._features = self._client.trunk(self.slot)(self.inputs)
            self._client.effort.forward += len(self.labels)
        return self._features

    @property
    def given_features(self) -> Tensor | None:
        """The same, if a frozen extractor made them or somebody has asked for them: `[B, d]`."""
        return self._features

    def head(self, slot: str, features: Tensor | None = None, **asked: Any) -> Tensor:
        """The output of the classifier in `slot` on these (or the given) features: `[B, C]`."""
        head: nn.Module = self._client.model(slot).head
        out: Tensor = head(self.features if features is None else features, **asked)
        return out

    @property
    def shares(self) -> Tensor:
        """What each sample counts in the batch's mean: `[B]`."""
        return torch.full((len(self.labels),), 1 / max(1, len(self.labels)), device=self.labels.device)

    @property
    def notes(self) -> dict[str, Tensor]:
        """What terms remember from batch to batch, until the client leaves its seat."""
        return self._client.notes

    def under(self, slot: str) -> Batch:
        """The same samples seen by the model in another slot."""
        other = Batch(self._client, slot, self._index)
        other._inputs = self.inputs
        return other

    def split(self, pieces: int) -> list[Batch]:
        """The samples in disjoint batches of (nearly) the same size; some are empty if there are too few."""
        features: Sequence[Tensor | None] = [None] * pieces
        if self._features is not None:
            features = self._features.tensor_split(pieces)
        seen: list[tuple[Views, Tensor] | None] = [None] * pieces
        if self._seen is not None:
            views, numbers = self._seen
            seen = [(views, part) for part in numbers.tensor_split(pieces)]
        return [
            Batch(self._client, self.slot, index, part, looks)
            for index, part, looks in zip(self._index.tensor_split(pieces), features, seen, strict=True)
        ]

    @property
    def rounds_taken(self) -> Tensor:
        """In how many rounds the client has taken part before: a number."""
        return self._client.rounds_taken

    def value(self, name: str) -> Tensor:
        """A value as this client has it: its own, or the one for everybody."""
        return self._client.value(name)

    @property
    def own_samples(self) -> tuple[Tensor, Tensor]:
        """Features `[n, d]` and labels `[n]` of the client's training samples, in evaluation mode, for predictions."""
        own = self._client.problem.train[self._client.client]
        require(len(own) > 0, "predictions compare with training samples, of which there are none here; test in a run")
        return self._client.train_features(self.slot), self._client.problem.labels[own]

    def stream(self, purpose: str) -> torch.Generator:
        """The client's random numbers of this round for a purpose; every batch goes on where the last one stopped."""
        return self._client.stream(purpose)
