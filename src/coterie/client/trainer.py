"""A phase at one client: batches, gradients, steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.client.model import MountedModel
from coterie.client.optimiser import NOTHING, Kept, Optimiser, TensorSGD, make_optimiser
from coterie.client.recipe import Measure, Phase, Recipe, plain_steps, telling_phase, trained_slots
from coterie.client.scores import Seen
from coterie.client.terms import RECEIVED, asked_for_whole_rows, task_loss
from coterie.client.views import BatchView, TrainedPart
from coterie.client.worker import Worker
from coterie.core.columns import Columns
from coterie.core.federation import Federation, memory_slot
from coterie.core.pixels import Views
from coterie.core.training import epoch_batches
from coterie.errors import CoterieError
from coterie.rng import torch_stream


class OwnBatches(Protocol):
    """The batches and gradients of one phase at one client, where they are others than usual."""

    steps: int  # how many batches an epoch has

    def samples(self, count: int) -> Iterator[Tensor]:
        """An epoch's batches: places among the client's `count` examples."""
        ...

    def gradient(self, batch: Batch) -> Tensor | None:
        """Fill the parts' gradients; the outputs for the batch `[B, C]`, if its terms asked for them."""
        ...


class Stepping(Protocol):
    """How clients take their steps otherwise than usual: what a part of a run attaches to a federation."""

    why: str  # it is not as usual, in words

    def begin(self, worker: Worker, phase: Phase, number: int, parts: Sequence[TrainedPart]) -> OwnBatches:
        """What a phase, the recipe's `number`-th, goes through at the client in the seat."""
        ...


def stepping_of(federation: Federation) -> Stepping | None:
    """How a federation's clients take their steps, if otherwise than usual."""
    return cast(Stepping | None, federation.stepping)


class Trainer:
    """One phase at one client: hands out batches, computes gradients, takes steps.

    `parts` are the trained spans; the rules of unusual methods read and write them directly. `seen`, if given, holds in
    the end what the model put out in the last epoch. `stepping`, if given, has batches and gradients of its own. What
    `stays` at the client begins with an optimiser that remembers nothing.
    """

    def __init__(
        self,
        worker: Worker,
        phase: Phase,
        number: int,
        seen: Seen | None = None,
        stepping: Stepping | None = None,
        stays: bool = False,
    ) -> None:
        self.worker, self.phase, self.number = worker, phase, number
        self._keeps = worker.problem.training.keep_optimizer and not stays
        self._seen, self._moves = seen, phase.moves
        worker.effort.begin(self._moves)
        settings, federation = worker.problem.training, worker.federation
        self.factor = settings.factor(max(federation.round, 1), federation.rounds)
        self.lr = self.factor * (settings.lr if phase.lr is None else phase.lr)
        self.clip = settings.clip
        self.parts: list[TrainedPart] = []
        self.head_only = True
        for slot, group in ((phase.slot, phase.train), *phase.also.items()):
            self._open(slot, group)
        slots = () if phase.reach == 1 else (phase.slot, *phase.also)
        self._begins = {slot: worker.model(slot).row.clone() for slot in slots}
        self._own = None if stepping is None else stepping.begin(worker, phase, number, self.parts)
        self._optimiser = self._fresh_optimiser(self._flat_optimiser)
        # Where nobody looks at gradients between backward pass and step, they need not be gathered.
        unseen = phase.rule is plain_steps and not (phase.row_terms or self.clip or stepping)
        self._at_once = self._fresh_optimiser(self._tensor_optimiser) if unseen else None
        self._gathers: bool | None = None

    def _open(self, slot: str, group: str) -> None:
        """Unfreeze a group of a slot and list its spans."""
        worker, layout = self.worker, self.worker.problem.layout
        columns = layout.columns(group) & layout.trainable & worker.federation[slot].columns
        if not columns:
            raise CoterieError(
                f"a phase trains '{group}', of which slot '{slot}' holds no trainable parameters; leave some of them "
                "unfrozen (requires_grad), or use a method that does not train them by themselves, such as fedavg"
            )
        model = worker.model(slot)
        model.train_only(columns)
        model.mode(True)
        if columns <= layout.inside("classifier"):
            model.trunk.eval()
        else:
            self.head_only = False
            worker.forget_features()
        for start, stop in columns.spans:
            self.parts.append(TrainedPart(slot, (start, stop), model.row[start:stop], model.grad[start:stop]))

    def batches(self) -> Iterator[Batch]:
        """The phase's batches, epoch by epoch: shuffled, the last partial one kept, unless others are asked for."""
        worker, problem = self.worker, self.worker.problem
        samples = problem.train[worker.client]
        views = Views(*problem.training.views) if problem.training.augment else None
        # What is seen otherwise every time has other features every time.
        cached = worker.train_features(self.phase.slot) if self.head_only and views is None else None
        settings, single, own = problem.training, problem.skip_single_samples, self._own
        an_epoch = epoch_batches(len(samples), settings.batch, single) if own is None else own.steps
        left = settings.steps_of(self.phase.epochs, an_epoch)
        number = self.number if self.phase.stream is None else self.phase.stream
        stream, looks = (
            torch_stream(worker.seed, f"{purpose}:{number}", worker.federation.round, worker.key)
            for purpose in ("batches", "augment")
        )
        while left:
            if self._seen is not None:
                self._seen.clear()
            for part in (
                torch.randperm(len(samples), generator=stream).to(worker.device).split(settings.batch)
                if own is None
                else own.samples(len(samples))
            ):
                skipped = single and len(part) == 1
                left -= own is not None or not skipped  # what others draw counts, whatever comes of it
                if not skipped:
                    features = None if cached is None else cached[part]
                    seen = None if views is None else (views, views.drawn(len(part), looks))
                    yield Batch(worker, self.phase.slot, samples[part], features, seen)
                if not left:
                    break

    def gradient(self, batch: BatchView) -> None:
        """Fill the parts' gradients with that of the phase's objective on the batch."""
        self._gather_gradients(True)
        for part in self.parts:
            part.grad.zero_()
        self._backward(batch)
        moved = [part for part in self.parts if part.slot == self.phase.slot]
        for row_term in self.phase.row_terms:
            for group in [moved] if asked_for_whole_rows(row_term) else [[part] for part in moved]:
                slopes = row_term.gradient(_joined([part.row for part in group]), partial(self._anchors, group))
                for part, slope in zip(group, slopes.split([len(part.row) for part in group]), strict=True):
                    part.grad.add_(slope)
        if self.clip:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part.grad) for part in self.parts]))
            scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            for part in self.parts:
                part.grad.mul_(scale)

    def _backward(self, batch: BatchView) -> None:
        """Add the gradients of the phase's terms to what is there, and keep what the model put out."""
        self.worker.effort.step(self._moves)
        if self.phase.terms:
            outputs = self._fill(batch)
            if self._seen is not None and outputs is not None:
                self._seen.append((outputs.detach(), batch.labels))

    def _gather_gradients(self, gather: bool) -> None:
        if self._gathers is not gather:
            self._gathers = gather
            for slot in (self.phase.slot, *self.phase.also):
                self.worker.model(slot).gather_gradients(gather)

    def _fill(self, batch: BatchView) -> Tensor | None:
        """Fill the parts' gradients with that of the phase's terms; the outputs for the batch, if they are known."""
        if self._own is not None:
            assert isinstance(batch, Batch), "such a step takes the phase's own batches"
            return self._own.gradient(batch)
        self._loss(batch).backward()
        return batch.computed if isinstance(batch, Batch) else None

    def _loss(self, batch: BatchView) -> Tensor:
        terms = self.phase.terms
        if terms == (task_loss,):
            # The same number as the mean of the term, in fewer operations.
            return batch.task.loss_mean(batch.logits, batch.labels)
        loss = terms[0](batch)
        for term in terms[1:]:
            loss = loss + term(batch)
        return loss.mean()

    def step(self) -> None:
        """Let the optimiser move the parts along their gradients."""
        assert self._optimiser is not None
        self._optimiser.step()

    def descend(self, batch: BatchView) -> None:
        """Both at once, with the same result: the parts' gradients are used up by the way."""
        if self._at_once is None:
            self.gradient(batch)
            self.step()
            return
        self._gather_gradients(False)
        self._backward(batch)
        self._at_once.step()

    def finish(self) -> None:
        """Leave the models as later phases and tests expect them: as far as they go, frozen, in evaluation mode."""
        for optimiser in (self._optimiser, self._at_once):
            if optimiser is not None:
                optimiser.finish()
        for slot, begin in self._begins.items():
            row = self.worker.model(slot).row
            row.copy_(torch.lerp(begin, row, self.phase.reach))
        for slot in (self.phase.slot, *self.phase.also):
            self.worker.model(slot).mode(False)
            self.worker.model(slot).train_only(Columns())

    def anchor(self, part: TrainedPart, slot: str) -> Tensor:
        """A part's columns as they were received, or as another slot holds them."""
        row = self.worker.received(self.phase.slot if slot == RECEIVED else slot)
        return row[part.span[0] : part.span[1]]

    def _anchors(self, parts: Sequence[TrainedPart], slot: str) -> Tensor:
        return _joined([self.anchor(part, slot) for part in parts])

    def _fresh_optimiser(self, make: Callable[[], Optimiser | None]) -> Optimiser | None:
        """The worker's optimiser of a kind for this kind of phase, started anew."""
        phase, kept = self.phase, self.worker.optimisers
        key = (make.__name__, phase.slot, phase.train, tuple(phase.also.items()), tuple(phase.rates))
        if key not in kept:
            kept[key] = make()
        optimiser = kept[key]
        if optimiser is not None:
            rates = [*(self.factor * rate for rate in phase.rates.values()), self.lr]
            optimiser.start(rates, self._kept(isinstance(optimiser, TensorSGD)) if self._keeps else NOTHING)
        return optimiser

    def _kept(self, by_tensor: bool) -> Kept:
        """What the client keeps of the optimiser, for each span or tensor that it moves."""
        kept: dict[str, list[Tensor]] = {}
        for name in self.worker.problem.training.remembered:
            if by_tensor:
                kept[name] = [tensor.data for group in self._tensors_by_rate(name) or () for tensor in group]
            else:
                kept[name] = [row for group in self._groups_by_rate(name) for row, _ in group]
        return kept

    def _flat_optimiser(self) -> Optimiser:
        """One for the parts."""
        return make_optimiser(self._groups_by_rate(), self.worker.problem.training)

    def _tensor_optimiser(self) -> Optimiser | None:
        """One for the parts' tensors with gradients of their own; nothing where that would not be the same."""
        settings = self.worker.problem.training
        tensors = self._tensors_by_rate() if settings.optimizer == "sgd" else None
        return None if tensors is None else TensorSGD(tensors, settings.momentum, settings.weight_decay)

    def _groups_by_rate(self, memory: str = "") -> list[list[tuple[Tensor, Tensor]]]:
        """The trained spans, those of each group with a rate of its own first, the others last; or a memory of them."""
        groups: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(len(self.phase.rates) + 1)]
        for number, model, columns in self._by_rate(memory):
            groups[number] += [(model.row[start:stop], model.grad[start:stop]) for start, stop in columns.spans]
        return groups

    def _tensors_by_rate(self, memory: str = "") -> list[list[nn.Parameter]] | None:
        """The trained tensors in the same order; nothing if a rate or a phase cuts one in two."""
        groups: list[list[nn.Parameter]] = [[] for _ in range(len(self.phase.rates) + 1)]
        for number, model, columns in self._by_rate(memory):
            tensors = model.parameters_in(columns)
            if tensors is None:
                return None
            groups[number] += tensors
        return groups

    def _by_rate(self, memory: str = "") -> Iterator[tuple[int, MountedModel, Columns]]:
        """What is trained of every model, with the number of its rate; or where a memory of it lies."""
        layout, settings = self.worker.problem.layout, self.worker.problem.training
        for part in self.parts:
            slot = memory_slot(settings, memory, part.slot) if memory else part.slot
            model, rest = self.worker.model(slot), part.columns
            named: list[str | Columns] = [*self.phase.rates, part.columns]
            for number, group in enumerate(named):
                columns = rest & layout.columns(group)
                yield number, model, columns
                rest = rest - columns


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    """Columns one after the other; of a single piece, itself."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


def train(worker: Worker, recipe: Recipe, seen: Seen | None = None, stays: bool = False) -> dict[str, Tensor]:
    """Do what a recipe says at the client in the seat; what was measured, by name.

    What clients keep of it follows from the rows and is left to whoever collects them. `seen`, if given, is filled with
    what the model put out for its training samples (`telling_phase`). What is trained `stays` at the client if nobody
    else ever sees what comes of it: steps are as usual then, whatever the federation asks for.
    """
    stepping = None if stays else stepping_of(worker.federation)
    measured: dict[str, Tensor] = {}
    number = 0
    telling = None if seen is None else telling_phase(recipe, worker.method.tested)
    for step in recipe:
        if isinstance(step, Phase):
            trainer = Trainer(worker, step, number, seen if number == telling else None, stepping, stays)
            step.rule(trainer, trainer.batches())
            trainer.finish()
            number += 1
        elif isinstance(step, Measure):
            measured[step.name] = step.take(worker)
    return measured


def tune(worker: Worker) -> bool:
    """Tune the models of the client in the seat as the method has them tested; False if that diverged: it is undone."""
    recipe = worker.method.tune(worker.federation)
    models = [worker.model(slot) for slot in trained_slots(recipe)]
    before = [model.row.clone() for model in models]
    train(worker, recipe, stays=True)
    if all(bool(torch.isfinite(model.row).all()) for model in models):
        return True
    for model, row in zip(models, before, strict=True):
        model.row.copy_(row)
    worker.forget_features()
    return False
