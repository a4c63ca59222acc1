"""What the code of methods sees at a client: loss terms a batch, step rules a trainer, measurements the client itself.

These are protocols: engines may show the same things in another way, for one client or for many at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from coterie.client.effort import Effort
from coterie.client.model import MountedModel
from coterie.client.problem import Problem
from coterie.client.scores import Score
from coterie.core.columns import Columns, Span
from coterie.core.federation import Federation
from coterie.core.task import Task


class BatchView(Protocol):
    """One batch at one client, as loss terms and predictions see it. Everything is computed when first asked for."""

    slot: str
    task: Task
    labels: Tensor  # [B]

    @property
    def inputs(self) -> Tensor:
        """The samples: `[B, ...]`."""
        ...

    @property
    def features(self) -> Tensor:
        """The extractor's output: `[B, d]`."""
        ...

    @property
    def logits(self) -> Tensor:
        """The classifier's output on the features, `[B, C]`; for a regression its one number, `[B, 1]`."""
        ...

    @property
    def classifier_logits(self) -> Tensor:
        """The same numbers with a gradient for the classifier alone: `[B, C]`."""
        ...

    def head(self, slot: str, features: Tensor | None = None, **asked: Any) -> Tensor:
        """The output of the classifier in `slot` on these (or the given) features: `[B, C]`.

        What else it is `asked` goes to its `forward`, of a method's own classifier: that may answer with anything.
        """
        ...

    def under(self, slot: str) -> Self:
        """The same samples seen by the model in another slot."""
        ...

    @property
    def shares(self) -> Tensor:
        """What each sample counts in the batch's mean, for terms that look at a batch as a whole: `[B]`."""
        ...

    @property
    def notes(self) -> dict[str, Tensor]:
        """What terms remember from batch to batch, until the client leaves its seat."""
        ...

    def split(self, pieces: int) -> list[Self]:
        """The samples in disjoint batches of (nearly) the same size."""
        ...

    @property
    def rounds_taken(self) -> Tensor:
        """In how many rounds the client has taken part before: a number."""
        ...

    def value(self, name: str) -> Tensor:
        """A value as this client has it: its own, or the one for everybody."""
        ...

    @property
    def own_samples(self) -> tuple[Tensor, Tensor]:
        """Features `[n, d]` and labels `[n]` of the client's training samples, in evaluation mode, for predictions."""
        ...

    def stream(self, purpose: str) -> torch.Generator:
        """The client's random numbers of this round for a purpose; every batch goes on where the last one stopped."""
        ...


class ClientView(Protocol):
    """A client at work: its data, its models, what it was told."""

    problem: Problem
    federation: Federation
    client: int
    key: int  # who it is to the random streams
    seed: int
    effort: Effort  # what it has computed so far
    notes: dict[str, Tensor]  # what step rules found out, for later phases and for measurements

    def model(self, slot: str) -> MountedModel:
        """The model of a slot with this client's row in it; `received` is a copy of the model as downloaded."""
        ...

    def trunk(self, slot: str) -> nn.Module:
        """The extractor of a slot; slots that hold a classifier alone use the model's."""
        ...

    def received(self, slot: str = "model") -> Tensor:
        """The client's row as it was before training here: `[P]`, the slot's columns filled."""
        ...

    @property
    def rounds_taken(self) -> Tensor:
        """In how many rounds this client has taken part before: a number."""
        ...

    def value(self, name: str) -> Tensor:
        """A value as this client has it: its own, or the one for everybody."""
        ...

    def stream(self, purpose: str) -> torch.Generator:
        """This client's stream of random numbers for a purpose, begun anew every round."""
        ...

    def peers(self) -> tuple[list[int], Tensor]:
        """The other clients whose models this one downloaded, and their rows `[n, P]`."""
        ...

    def train_features(self, slot: str = "model") -> Tensor:
        """The extractor's output on all of the client's training samples: `[n, d]`."""
        ...

    def features(self, index: Tensor, slot: str = "model") -> Tensor:
        """The extractor's output on the given samples, in evaluation mode and without gradients: `[n, d]`."""
        ...

    def test(self, index: Tensor, keep_scores: bool = False) -> Score:
        """Score the method's prediction on the given samples."""
        ...


@dataclass(frozen=True)
class TrainedPart:
    """A trained span: flat views of a model's row and gradient, and where it lies."""

    slot: str
    span: Span
    row: Tensor  # [n]
    grad: Tensor  # [n]

    @property
    def columns(self) -> Columns:
        """The span's columns."""
        return Columns((self.span,))


class TrainerView(Protocol):
    """One phase at one client, as step rules see it: gradients, steps, the trained parts."""

    factor: float  # by which the run's schedule scales every rate in this round
    head_only: bool  # whether the classifier alone is trained

    @property
    def worker(self) -> ClientView:
        """The client that trains."""
        ...

    @property
    def parts(self) -> Sequence[TrainedPart]:
        """The trained spans, which rules may read and write."""
        ...

    def gradient(self, batch: BatchView) -> None:
        """Fill the parts' gradients with that of the phase's objective on the batch."""
        ...

    def step(self) -> None:
        """Let the optimiser move the parts along their gradients."""
        ...

    def descend(self, batch: BatchView) -> None:
        """`gradient` and `step` in one, which may be faster: what the gradients were is not known afterwards."""
        ...


Batches = Iterator[BatchView]
