"""One phase of a recipe, done by all clients of a stack at once: the serial engine's batches, padded to one size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.optimiser import STEEPEST, leaf_of, torch_optimiser
from coterie.client.recipe import Phase
from coterie.client.scores import TrainingScores
from coterie.client.terms import RECEIVED, asked_for_whole_rows, task_loss
from coterie.core.columns import Columns
from coterie.core.federation import memory_slot
from coterie.core.pixels import Inputs, Views, samples_at
from coterie.core.task import LossWithSlope
from coterie.core.training import Training, epoch_batches
from coterie.engines.stacked.backward import HandWrittenNet
from coterie.engines.stacked.batch import Mode, StackedBatch
from coterie.engines.stacked.model import chunks
from coterie.engines.stacked.stack import Stack
from coterie.engines.stacked.training_layers import InTraining
from coterie.rng import torch_stream

# Outputs are scored many at a time, which costs next to nothing, but no more numbers than this are kept for it.
MOST_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Schedule:
    """The steps of clients that train together; those with most steps come first."""

    positions: Tensor  # [S, m, B], among the client's own samples
    shares: Tensor  # [S, m, B], what a sample counts in its batch's mean: 0 where padded
    active: list[int]  # [S], how many clients take each step
    late: list[np.ndarray]  # [S] places of those of them that are in their last epoch
    counts: Tensor  # [S, m], how many samples every client takes in every step

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        streams: Sequence[torch.Generator],
        steps: Sequence[int],
        batch: int,
        skip_single: bool = False,
    ) -> Schedule:
        """Draw every epoch's order from each client's stream; batches of a single sample may be passed over.

        >>> schedule = Schedule.of([3, 2], [torch.Generator(), torch.Generator()], steps=[2, 1], batch=2)
        >>> schedule.active, schedule.shares[:, 0].tolist()
        ([2, 1], [[0.5, 0.5], [1.0, 0.0]])
        >>> [late.tolist() for late in Schedule.of([3, 2], [torch.Generator()] * 2, steps=[3, 3], batch=2).late]
        [[], [], [0, 1]]
        >>> Schedule.of([3], [torch.Generator()], steps=[1], batch=2, skip_single=True).counts.tolist()
        [[2]]
        """
        shape = _shape(tuple(sizes), tuple(steps), batch, skip_single)
        width, clients = shape.shares.shape[2], len(sizes)
        drawn = torch.zeros(clients, shape.longest, dtype=torch.int64)
        for row, size, (epochs, samples), stream in zip(drawn.unbind(), sizes, shape.epochs, streams, strict=True):
            for order in row[: epochs * samples].view(epochs, samples).unbind():
                torch.randperm(size, generator=stream, out=order[:size])
        positions = drawn.view(clients, -1, width)[torch.arange(clients), shape.places]
        return cls(positions, shape.shares, shape.active, shape.late, shape.counts)


@dataclass(frozen=True)
class _Shape:
    """All of a schedule that does not depend on what is drawn: where everybody takes part, each round's is the same."""

    epochs: list[tuple[int, int]]  # [m], those that a client begins, and its samples filled up to whole batches
    longest: int  # the most that any client goes through in all of them
    places: Tensor  # [S, m], which of a client's batches each step takes
    shares: Tensor  # [S, m, B]
    active: list[int]
    late: list[np.ndarray]
    counts: Tensor  # [S, m]


@lru_cache(maxsize=4)
def _shape(sizes: tuple[int, ...], steps: tuple[int, ...], batch: int, skip_single: bool) -> _Shape:
    width = min(batch, max(sizes))
    counts, taken = torch.tensor(sizes), torch.tensor(steps)
    batches = (counts + width - 1) // width  # of an epoch, those that are passed over among them
    an_epoch = torch.tensor([epoch_batches(size, width, skip_single) for size in sizes]).clamp(min=1)
    epochs = (taken + an_epoch - 1) // an_epoch
    step = torch.arange(max(steps))[:, None]
    epoch, number, acts = step // an_epoch, step % an_epoch, step < taken  # [S, m]
    left = torch.where(acts, counts - number * width, 0).clamp(0, width)
    return _Shape(
        epochs=list(zip(epochs.tolist(), (batches * width).tolist(), strict=True)),
        longest=max(int((epochs * batches).max()), 1) * width,
        places=torch.where(acts, epoch * batches + number, 0),
        shares=(torch.arange(width) < left[..., None]) / left.clamp(min=1)[..., None],
        active=acts.sum(1).tolist(),
        late=[np.flatnonzero(row) for row in (acts & (epoch == epochs - 1)).numpy()],
        counts=left,
    )


class LastEpoch:
    """Keeps outputs step by step, which costs nothing, and scores those of many steps at once.

    Clients of different size are in their last epoch in different steps.
    """

    def __init__(self, schedule: Schedule, samples: Tensor, labels: Tensor, training: TrainingScores) -> None:
        self._schedule, self._samples, self._labels, self._training = schedule, samples, labels, training
        self._steps: list[int] = []
        self._outputs: list[Tensor] = []
        self._numbers = 0

    def take(self, step: int, outputs: Tensor) -> None:
        """Take what the models of the clients that are active in a step put out: `[k, B, C]`."""
        late = self._schedule.late[step]
        if len(late):
            self._steps.append(step)
            neighbours = late[-1] - late[0] == len(late) - 1  # who need not be copied
            self._outputs.append(outputs[late[0] : late[-1] + 1] if neighbours else outputs[torch.from_numpy(late)])
            self._numbers += outputs.numel()
            if self._numbers > MOST_NUMBERS:
                self.score()

    def score(self) -> None:
        """Score what was taken so far."""
        if not self._steps:
            return
        schedule, clients = self._schedule, self._samples.shape[1]
        # Who was in the last epoch in which step, in the order of the outputs: places in a list of all steps' clients.
        places = np.concatenate([step * clients + schedule.late[step] for step in self._steps])
        chosen = torch.from_numpy(places)
        real = schedule.shares.flatten(0, 1).index_select(0, chosen).flatten() > 0  # what is not padding
        samples = self._samples.flatten(0, 1).index_select(0, chosen.to(self._samples.device)).flatten()
        outputs = torch.cat([of_step.flatten(0, 1) for of_step in self._outputs])
        owners = (places % clients).repeat(schedule.shares.shape[2])
        self._training.add(owners, outputs, self._labels[samples], real.numpy())
        self._steps, self._outputs, self._numbers = [], [], 0


# Samples of several steps are fetched with one operation, as long as they are no more numbers than this.
FETCHED = 1 << 19


@dataclass
class StackedPart:
    """Columns of a slot that are trained at one rate."""

    slot: str
    span: slice
    rate: float
    rows: Tensor  # [m, n], changed in place
    velocities: Tensor | None = None  # [m, n] likewise, those that clients keep


class StackedOptimiser(ABC):
    """Moves the first k clients' rows along their gradients; k never grows."""

    @abstractmethod
    def step(self, grads: Sequence[Tensor], k: int) -> None:
        """Take a step, given every part's gradient `[k, n]`."""


class StackedSGD(StackedOptimiser):
    """SGD with momentum and weight decay."""

    def __init__(self, parts: Sequence[StackedPart], settings: Training) -> None:
        self._parts, self._settings = parts, settings
        self._velocities = (
            [part.rows.new_zeros(part.rows.shape) if part.velocities is None else part.velocities for part in parts]
            if settings.momentum
            else []
        )

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


class StackedPhase:
    """The phase's settings, worked out once for all clients."""

    def __init__(self, stack: Stack, phase: Phase, number: int, stays: bool = False) -> None:
        self.stack, self.phase, self._keeps = stack, phase, stack.ground.problem.training.keep_optimizer and not stays
        self.stream = number if phase.stream is None else phase.stream
        problem, federation = stack.ground.problem, stack.federation
        layout, settings = problem.layout, problem.training
        self.factor = settings.factor(max(federation.round, 1), federation.rounds)
        trained: dict[str, Columns] = {}
        for slot, group in ((phase.slot, phase.train), *phase.also.items()):
            stack.begin(slot)
            trained[slot] = layout.columns(group) & layout.trainable & federation[slot].columns
        self._begins = {} if phase.reach == 1 else {slot: stack.trained[slot].clone() for slot in trained}
        self.head_only = all(columns <= layout.columns("classifier") for columns in trained.values())
        self._views = Views(*settings.views) if settings.augment else None
        # What is seen otherwise every time has other features every time.
        self._on_features = self.head_only and self._views is None
        self.by_hand = self._hand_net(trained)
        self.parts = [part for slot, columns in trained.items() for part in self._parts(slot, columns)]
        self.optimiser = stacked_optimiser(self.parts, settings)
        classifier = layout.columns("classifier")
        self.extractors = frozenset(slot for slot, columns in trained.items() if not columns <= classifier)
        if self.extractors:
            stack.features.clear()
        self._passes: list[int] = []  # of each step's samples through an extractor

    def _hand_net(self, trained: dict[str, Columns]) -> HandWrittenNet | None:
        """The written-out passes, if they do all that this phase needs: the task's loss of one slot's whole tensors."""
        stack, phase = self.stack, self.phase
        plain = phase.terms == (task_loss,) and not phase.also
        plain = plain and self._on_features == self.head_only
        own_features = self.head_only or stack.slot_with_extractor(phase.slot) == phase.slot
        columns = trained[phase.slot]
        whole = all(
            not entry.columns & columns or entry.columns <= columns for entry in stack.ground.net.layout.entries
        )
        return stack.ground.by_hand if plain and own_features and whole else None

    def _parts(self, slot: str, columns: Columns) -> Iterator[StackedPart]:
        """The columns by rate. For the written-out passes every tensor is a part, its rows side by side in memory."""
        problem, rows = self.stack.ground.problem, self.stack.trained[slot]
        if self._keeps:
            memory = memory_slot(problem.training, "velocity", slot)
            self.stack.begin(memory)
        rest = problem.training.lr if self.phase.lr is None else self.phase.lr
        by_group: list[tuple[str | Columns, float]] = [*self.phase.rates.items(), (columns, rest)]
        for group, rate in by_group:
            here = columns & problem.layout.columns(group)
            columns = columns - here
            spans = here.spans
            if self.by_hand:
                spans = tuple((entry.start, entry.stop) for entry in problem.layout.entries if entry.columns <= here)
            for start, stop in spans:
                span = rows[:, start:stop]
                part = span.contiguous() if self.by_hand else span
                kept = self.stack.trained[memory][:, start:stop] if self._keeps else None
                yield StackedPart(slot, slice(start, stop), self.factor * rate, part, kept)

    def run(self, training: TrainingScores | None = None) -> None:
        """Every step of every client, as many clients at a time as still have steps to take.

        `training`, if given, is told what the models put out for their samples in their last epoch.
        """
        stack = self.stack
        indices = stack.ground.train.of(stack.clients)
        schedule = self._schedule()
        clients = torch.arange(len(indices), device=indices.device)[:, None]
        samples = indices[clients, schedule.positions.to(indices.device)]  # [S, m, B]
        last_epoch = None if training is None else LastEpoch(schedule, samples, stack.ground.labels, training)
        if self.by_hand:
            self._run_by_hand(self.by_hand, indices, schedule, samples, last_epoch)
        else:
            self._run_by_terms(indices, schedule, samples, last_epoch)
        for slot, begin in self._begins.items():
            stack.trained[slot].copy_(torch.lerp(begin, stack.trained[slot], self.phase.reach))
        stack.took(self.phase.moves, schedule.counts[: len(self._passes)], self._passes)

    def _run_by_terms(self, indices: Tensor, schedule: Schedule, samples: Tensor, last_epoch: LastEpoch | None) -> None:
        stack = self.stack
        for step, (index, x, shares) in enumerate(self._batches(indices, schedule, samples)):
            part = slice(0, len(index))
            batch = StackedBatch(stack, self.phase.slot, index, part, x, is_features=self._on_features)
            batch.training = self._mode(shares, schedule.counts[step].tolist())
            before = stack.passes
            self._step(self._gradients(batch, shares), len(index))
            self._passes.append(stack.passes - before)
            self._take_statistics(batch.training, part)
            if last_epoch is not None and batch.computed is not None:
                last_epoch.take(step, batch.computed)
        if last_epoch is not None:
            last_epoch.score()

    def _run_by_hand(
        self, net: HandWrittenNet, indices: Tensor, schedule: Schedule, samples: Tensor, last_epoch: LastEpoch | None
    ) -> None:
        ground, rows = self.stack.ground, self.stack.trained[self.phase.slot]
        grads = [torch.empty_like(part.rows) for part in self.parts]
        mounted = 0
        for step, (index, x, shares) in enumerate(self._batches(indices, schedule, samples)):
            if len(index) != mounted:
                mounted = len(index)
                weights = ground.net.tensors(rows[:mounted]) | self._tensors(
                    [part.rows for part in self.parts], mounted
                )
                into = self._tensors(grads, mounted)
            outputs = net.gradients(weights, into, x, ground.labels[index], shares, head_only=self.head_only)
            self._step([grad[:mounted] for grad in grads], mounted)
            self._passes.append(0 if self.head_only else 1)
            if last_epoch is not None:
                last_epoch.take(step, outputs)
        if last_epoch is not None:
            last_epoch.score()
        for part in self.parts:
            rows[:, part.span] = part.rows

    def _tensors(self, rows: list[Tensor], k: int) -> dict[str, Tensor]:
        """The first k clients' tensors by name, as views of one `[m, n]` for each part."""
        entries = {entry.start: entry for entry in self.stack.ground.net.layout.entries}
        by_entry = [(entries[part.span.start], matrix) for part, matrix in zip(self.parts, rows, strict=True)]
        return {entry.name: entry.view(matrix[:k]) for entry, matrix in by_entry}

    def _schedule(self) -> Schedule:
        """Which samples every client takes in every step."""
        stack, ground = self.stack, self.stack.ground
        sizes = ground.train.sizes[stack.clients].tolist()
        streams = [
            torch_stream(ground.seed, f"batches:{self.stream}", stack.federation.round, key)
            for key in stack.federation.keys[stack.clients].tolist()
        ]
        settings, skips = ground.problem.training, ground.problem.skip_single_samples
        batches = [epoch_batches(size, settings.batch, skips) for size in sizes]
        steps = [settings.steps_of(self.phase.epochs, an_epoch) for an_epoch in batches]
        return Schedule.of(sizes, streams, steps, settings.batch, skips)

    def _numbers(self, schedule: Schedule) -> Tensor | None:
        """How every sample of the schedule is seen, `[S, m, B]`: drawn as each client alone would."""
        if self._views is None:
            return None
        stack, numbers = self.stack, torch.zeros_like(schedule.positions)
        real = schedule.shares > 0
        for place, key in enumerate(stack.federation.keys[stack.clients].tolist()):
            stream = torch_stream(stack.ground.seed, f"augment:{self.stream}", stack.federation.round, key)
            numbers[:, place][real[:, place]] = self._views.drawn(int(real[:, place].sum()), stream)
        return numbers

    def _mode(self, shares: Tensor, counts: list[int]) -> Mode:
        """Whose models are in training, and what layers are told that draw numbers or keep statistics then."""
        net, k = self.stack.ground.net, len(shares)
        streams = self.stack.streams[:k] if net.trunk_changes or net.head_changes else []
        step = InTraining(shares, counts[:k], streams)
        return Mode(frozenset((self.phase.slot, *self.phase.also)), self.extractors, step)

    def _take_statistics(self, mode: Mode, part: slice) -> None:
        """Write down what batch norm found in a step: statistics are no part of the gradient."""
        if mode.step is None or not mode.step.statistics:
            return
        head, trunk = self.phase.slot, self.stack.slot_with_extractor(self.phase.slot)
        layout = self.stack.ground.net.layout
        for entry in layout.entries:
            if entry.name in mode.step.statistics:
                slot = head if entry.name.startswith(f"{layout.classifier}.") else trunk
                self.stack.trained[slot][part, entry.start : entry.stop] = mode.step.statistics[entry.name]

    def _batches(self, indices: Tensor, schedule: Schedule, samples: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For every step: whose turn it is with which samples `[k, B]`, inputs or features `[k, B, ...]`, shares."""
        ground = self.stack.ground
        source: Inputs = ground.inputs
        places = samples
        if self._on_features:
            features = self._features(indices)
            source = features.flatten(0, 1)
            clients = torch.arange(len(indices), device=ground.device)[:, None]
            places = clients * indices.shape[1] + schedule.positions.to(ground.device)
        shares, numbers = schedule.shares.to(ground.device), self._numbers(schedule)
        a_step = max(1, places.shape[1:].numel() * source[0].numel())
        at_once = max(1, FETCHED // a_step)
        for start in range(0, len(places), at_once):
            steps = range(start, min(start + at_once, len(places)))
            most = schedule.active[start]
            chosen = places[start : steps.stop, :most]
            fetched = samples_at(source, chosen)
            if numbers is not None and self._views is not None:
                fetched = self._views.seen(fetched, numbers[start : steps.stop, :most])
            for step in steps:
                k = schedule.active[step]
                yield samples[step, :k], fetched[step - start, :k], shares[step, :k]

    def _features(self, indices: Tensor) -> Tensor:
        """The frozen extractors' outputs on all training samples `own [m, n]`: `[m, n, d]`."""
        ground, stack = self.stack.ground, self.stack
        slot = stack.slot_with_extractor(self.phase.slot)
        if slot not in stack.features:
            rows = stack.rows(slot)
            with torch.no_grad():
                parts = [
                    ground.net.features(ground.net.tensors(rows[part]), ground.inputs[indices[part]])
                    for part in chunks(len(indices), indices.shape[1])
                ]
            stack.features[slot] = torch.cat(parts)
            stack.forward += ground.train.sizes[stack.clients]
        return stack.features[slot]

    def _gradients(self, batch: StackedBatch, shares: Tensor) -> list[Tensor]:
        """Gradients of every part `[k, n]`; `shares [k, B]` sum to one per client."""
        if not self.phase.terms:
            return [torch.zeros_like(part.rows[batch.part]) for part in self.parts]
        slots = (self.phase.slot, *self.phase.also)
        leaves = {slot: self.stack.trained[slot][batch.part].detach().requires_grad_() for slot in slots}
        batch.leaves = leaves
        loss = self.stack.ground.problem.task.loss
        if self.phase.terms == (task_loss,) and isinstance(loss, LossWithSlope):
            outputs = batch.logits
            batch.computed = outputs.detach()
            flat = loss(outputs.flatten(0, 1), batch.labels.flatten())
            losses = flat.view(batch.labels.shape)
        else:
            losses = torch.stack([batch.per_client(term) for term in self.phase.terms]).sum(0)
        slopes = torch.autograd.grad((losses * shares).sum(), list(leaves.values()))
        grads = dict(zip(slots, slopes, strict=True))
        return [grads[part.slot][:, part.span] for part in self.parts]

    def _step(self, grads: list[Tensor], k: int) -> None:
        """A step of the first k clients, given every part's gradient `[k, n]`."""
        settings = self.stack.ground.problem.training
        moved = [number for number, part in enumerate(self.parts) if part.slot == self.phase.slot]
        for term in self.phase.row_terms:
            for group in [moved] if asked_for_whole_rows(term) else [[number] for number in moved]:
                parts = [self.parts[number] for number in group]
                rows = _joined([part.rows[:k] for part in parts])
                slopes = term.gradient(rows, partial(self._anchors, k, [part.span for part in parts]))
                widths = [part.rows.shape[1] for part in parts]
                for number, slope in zip(group, slopes.split(widths, dim=1), strict=True):
                    grads[number] = grads[number] + slope
        if settings.clip:
            norm = torch.stack([grad.square().sum(1) for grad in grads]).sum(0).sqrt()
            scale = (settings.clip / (norm + 1e-6)).clamp(max=1.0)[:, None]
            grads = [grad * scale for grad in grads]
        self.optimiser.step(grads, k)

    def _anchors(self, k: int, spans: Sequence[slice], slot: str) -> Tensor:
        rows = self.stack.received(self.phase.slot if slot == RECEIVED else slot)[:k]
        return _joined([rows[:, span] for span in spans])


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    """Columns `[k, ·]` one after the other; of a single piece, itself."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces), dim=1)
