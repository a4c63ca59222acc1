"""DP-SGD at one client (Abadi et al., 2016): Poisson batches, every example's gradient clipped, noise on their sum.

    B_t   each example with probability q = 1 / s, on its own
    g_i   = ∇ of the phase's objective on example i alone, over all that the phase trains
    g     = (Σ_{i ∈ B_t} g_i · min(1, C / ‖g_i‖) + N(0, (zC)²)) / (n / s)

s is the number of batches an epoch, ⌈n / batch⌉. n is the number of examples as the client tells it, with noise:
nothing here depends on the exact one. Terms of the row alone know no example and are added afterwards; so is what
optimisers do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.client.batch import Batch, Outputs
from coterie.client.recipe import Phase, Recipe, phases
from coterie.client.terms import task_loss
from coterie.client.views import TrainedPart
from coterie.client.worker import Worker
from coterie.core.training import Training
from coterie.privacy.noise import noise_of
from coterie.privacy.promise import Privacy

# Numbers in the gradients of examples that are held at one time.
HELD = 1 << 25

Place = tuple[str, str]
"""A trained tensor: its slot and its name there."""


def batches_an_epoch(size: int, batch: int) -> int:
    """How many batches an epoch has where a client tells that it has so many examples.

    >>> batches_an_epoch(100, 32), batches_an_epoch(3, 32)
    (4, 1)
    """
    return max(1, math.ceil(size / batch))


def epochs_on_examples(recipe: Recipe, training: Training) -> int:
    """How many epochs of a recipe look at examples.

    >>> epochs_on_examples((Phase(epochs=2), Phase()), Training(epochs=5))
    7
    """
    looking = (phase for phase in phases(recipe) if phase.terms)
    return sum(int(training.epochs if phase.epochs is None else phase.epochs) for phase in looking)


@dataclass(frozen=True)
class PrivateStepping:
    """How clients step where a single example is promised privacy: what is attached to a federation."""

    promise: Privacy
    why: ClassVar[str] = "every example's gradient is clipped (privacy = example)"

    def begin(self, worker: Worker, phase: Phase, number: int, parts: Sequence[TrainedPart]) -> PrivateSteps:
        """A phase at the client in the seat."""
        return PrivateSteps(self.promise, worker, phase, number, parts)


class PrivateSteps:
    """The batches and gradients of one phase at one client."""

    def __init__(
        self, promise: Privacy, worker: Worker, phase: Phase, number: int, parts: Sequence[TrainedPart]
    ) -> None:
        self._worker, self._phase, self._parts = worker, phase, parts
        self._promise, self._layout = promise, worker.problem.layout
        self._noise = noise_of(worker.federation, worker.client, f"noise:{number}")
        # Phases that would see samples in the same order do not here: what is accounted for are samples on their own.
        self._sampling = noise_of(worker.federation, worker.client, f"batches:{number}")
        size = max(1, int(worker.federation.sizes[worker.client]))
        self.steps = batches_an_epoch(size, worker.problem.training.batch)
        self._expected = size / self.steps
        self._mounted = False
        self._passes = [0]  # through an extractor, of the examples that are worked on at one time
        # Tuples, not tables by name: to take those apart and put them together would take as long as the gradients.
        self._places, self._tensors, self._sums = self._trained()
        self._width = sum(view.numel() for view in self._sums)
        self._flat = all(tensor.ndim < 3 for tensor in self._tensors)
        of_one: Any = self._objective if self._flat else torch.func.grad(self._objective, has_aux=True)
        copied = 0 if self._flat else None
        self._each: Any = torch.func.vmap(of_one, in_dims=(copied, 0, 0, 0), randomness="different")

    def _trained(self) -> tuple[list[Place], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What the phase trains, tensor by tensor: where it is, and views of rows and of gradients."""
        places: list[Place] = []
        tensors, sums = [], []
        for part in self._parts:
            model = self._worker.model(part.slot)
            rows, gradients = self._layout.views(model.row), self._layout.views(model.grad)
            for entry in self._layout.entries:
                if entry.columns <= part.columns:
                    places.append((part.slot, entry.name))
                    tensors.append(rows[entry.name])
                    sums.append(gradients[entry.name])
        return places, tuple(tensors), tuple(sums)

    def samples(self, count: int) -> Iterator[Tensor]:
        """An epoch's batches: places among the client's examples."""
        for _ in range(self.steps):
            yield self._sampling.chosen(count, 1 / self.steps).to(self._worker.device)

    def gradient(self, batch: Batch) -> Tensor | None:
        """Fill the parts' gradients; the outputs for the batch `[B, C]`, if its terms asked for them."""
        self._mount(batch)
        outputs = self._clipped_sum(batch.inputs, batch.given_features, batch.labels)
        deviation = self._promise.deviation
        for part in self._parts:
            if deviation:
                part.grad.add_(self._noise.normal(len(part.grad)).to(part.grad.device), alpha=deviation)
            part.grad.div_(self._expected)
        return outputs

    def _mount(self, batch: Batch) -> None:
        """Have all models in place that terms look at: inside `vmap` none can be mounted any more."""
        if self._mounted or not len(batch.labels):
            return
        self._mounted = True
        if self._phase.terms != (task_loss,):
            example = batch.split(len(batch.labels))[0]
            with torch.no_grad():
                for term in self._phase.terms:
                    term(example)

    def _clipped_sum(self, inputs: Tensor, features: Tensor | None, labels: Tensor) -> Tensor | None:
        """Put the sum of the examples' clipped gradients where the parts' gradients are, which are zero."""
        seen: list[Tensor] = []
        at_once = max(1, HELD // max(1, self._width))
        for start in range(0, len(labels), at_once):
            some = slice(start, start + at_once)
            given = () if features is None else (features[some],)
            self._passes[0] = 0
            gradients, outputs = self._per_example(inputs[some], given, labels[some])
            self._worker.effort.forward += self._passes[0] * len(labels[some])
            seen += outputs
            flat = [each.flatten(1) for each in gradients]
            shares = self._shares(flat)
            for total, each in zip(self._sums, flat, strict=True):
                total.add_((shares @ each).view(total.shape))
        return torch.cat(seen).flatten(0, 1) if seen else None

    def _per_example(
        self, x: Tensor, given: tuple[Tensor, ...], labels: Tensor
    ) -> tuple[Sequence[Tensor], tuple[Tensor, ...]]:
        """Every example's gradient, `[B, ...]` for each trained tensor, and its outputs.

        Fully connected layers are quicker if each example has a copy of the weights, which costs no memory, and plain
        backward passes over all; convolutions are not.
        """
        if not self._flat:
            each: tuple[Sequence[Tensor], tuple[Tensor, ...]] = self._each(self._tensors, x, given, labels)
            return each
        copies = tuple(tensor.expand(len(labels), *tensor.shape).requires_grad_() for tensor in self._tensors)
        losses, outputs = self._each(copies, x, given, labels)
        gradients = torch.autograd.grad(losses.sum(), copies, materialize_grads=True)
        return gradients, tuple(output.detach() for output in outputs)

    def _shares(self, gradients: list[Tensor]) -> Tensor:
        """By how much each example's gradient `[B, ·]` is scaled down: `[B]`. What is not finite becomes zero."""
        each_norm = [torch.linalg.vector_norm(gradient, dim=1) for gradient in gradients]
        norms = torch.linalg.vector_norm(torch.stack(each_norm), dim=0)
        if not bool(norms.isfinite().all()):
            for each in gradients:
                each[~norms.isfinite()] = 0.0
        if not self._promise.privacy_clip:
            return torch.ones_like(norms)
        shares: Tensor = (self._promise.privacy_clip / norms).clamp(max=1.0).nan_to_num(nan=0.0)
        return shares

    def _objective(
        self, tensors: tuple[Tensor, ...], x: Tensor, given: tuple[Tensor, ...], label: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The phase's objective on one example, and the outputs that its terms asked for, inside `vmap`."""
        features = given[0][None] if given else None
        by_place = dict(zip(self._places, tensors, strict=True))
        batch = Example(self._worker, self._phase.slot, label[None], x[None], features, by_place, self._passes)
        terms = self._phase.terms
        loss = terms[0](batch)
        for term in terms[1:]:
            loss = loss + term(batch)
        return loss.sum(), () if batch.computed is None else (batch.computed,)


class Example(Outputs):
    """One example as loss terms see it, inside `vmap`: what `coterie.client.batch.Batch` offers, of a batch of one."""

    def __init__(
        self,
        worker: Worker,
        slot: str,
        labels: Tensor,
        inputs: Tensor,
        features: Tensor | None,
        tensors: Mapping[Place, Tensor],
        passes: list[int],
    ) -> None:
        self._passes = passes
        self._worker, self.slot, self._tensors = worker, slot, tensors
        self.task = worker.problem.task
        self.labels = labels
        self.inputs, self._features = inputs, features

    @property
    def features(self) -> Tensor:
        """The extractor's output: `[1, d]`."""
        if self._features is None:
            slot = self._worker.slot_with_extractor(self.slot)
            trunk = self._of(slot, self._worker.problem.layout.trunk_names)
            self._features = _called(self._worker.model(slot).trunk, trunk, self.inputs)
            self._passes[0] += 1
        return self._features

    def head(self, slot: str, features: Tensor | None = None, **asked: Any) -> Tensor:
        """The output of the classifier in `slot`: `[1, C]`."""
        head = self._of(slot, self._worker.problem.layout.head_names)
        return _called(self._worker.model(slot).head, head, self.features if features is None else features, **asked)

    def _of(self, slot: str, names: Mapping[str, str]) -> dict[str, Tensor]:
        """The given tensors of a slot, by what they are called in a part of the model."""
        return {
            names[name]: tensor for (where, name), tensor in self._tensors.items() if where == slot and name in names
        }

    def under(self, slot: str) -> Example:
        """The same example seen by the model in another slot."""
        return Example(self._worker, slot, self.labels, self.inputs, None, self._tensors, self._passes)

    @property
    def shares(self) -> Tensor:
        """Other samples have no part in the gradient of one."""
        raise RuntimeError("a loss term looks at a batch as a whole")

    @property
    def notes(self) -> dict[str, Tensor]:
        """What is remembered of other samples has no part in the gradient of one."""
        raise RuntimeError("a loss term remembers something from batch to batch")

    def split(self, pieces: int) -> list[Example]:
        """One example cannot be split."""
        raise RuntimeError(f"a loss term splits its batch into {pieces} pieces")

    @property
    def rounds_taken(self) -> Tensor:
        """In how many rounds the client has taken part before: a number."""
        return self._worker.rounds_taken

    def value(self, name: str) -> Tensor:
        """A value as this client has it: its own, or the one for everybody."""
        return self._worker.value(name)

    @property
    def own_samples(self) -> tuple[Tensor, Tensor]:
        """Other samples have no part in the gradient of one."""
        raise RuntimeError("a loss term looks at the client's training samples")

    def stream(self, purpose: str) -> torch.Generator:
        """Random numbers of one's own cannot be drawn for all examples at once."""
        raise RuntimeError(f"a loss term draws random numbers of its own ({purpose})")


def _called(module: Any, tensors: dict[str, Tensor], x: Tensor, **asked: Any) -> Tensor:
    """A module's output, with some of its tensors replaced."""
    out: Tensor = torch.func.functional_call(module, tensors, (x,), asked)
    return out
