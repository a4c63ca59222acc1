"""The stacked engine: the whole cohort trained as one batch.

Small models spend their time on dispatching operations, not on computing. Here each operation serves all
clients at once. Clients of unequal size are sorted by their number of steps, so that those still training are
always the first ones; shorter batches are padded and masked. Batches, and so results, are those of the serial
engine up to float rounding. What cannot be stacked is trained by the serial engine instead, and the log says why.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as cross_entropy_of

from coterie.columns import Columns
from coterie.engines.batched import BatchedNet, Tensors, cannot_be_batched, chunks, padded
from coterie.engines.engine import Engine, Trained, Work
from coterie.engines.serial import Serial
from coterie.federation import Federation
from coterie.local import Problem, Score
from coterie.methods.method import Method
from coterie.recipe import Phase, Recipe, cross_entropy, plain_steps
from coterie.rng import torch_stream
from coterie.terms import RECEIVED

log = logging.getLogger("coterie")


class Stacked(Engine):
    """Trains the cohort's clients together, and tests clients together."""

    name = "stacked"

    def __init__(self, problem: Problem, method: Method, seed: int) -> None:
        self.problem, self.method, self.seed = problem, method, seed
        self.net = BatchedNet(problem.module, problem.layout)
        self._serial = Serial(problem, method, seed)
        self._model_reason = cannot_be_batched(problem.module)
        self._said: set[str] = set()

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        """Have the cohort do the work together, or one by one where that is impossible."""
        reason = self.declines(work.recipe)
        if reason is None:
            try:
                return self._train(federation, work, cohort)
            except RuntimeError as error:
                # What a loss term does inside `vmap` shows only when it runs.
                reason = str(error).splitlines()[0]
        self._say(reason)
        return self._serial.train(federation, work, cohort)

    def test(self, federation: Federation, clients: Tensor, keep_scores: bool = False) -> list[Score]:
        """Test the clients' models together, or one by one where that is impossible."""
        reason = self.declines(self.method.tune(federation))
        if reason is None and not federation.is_uniform:
            try:
                return self._test(Stack(self, federation, clients), keep_scores)
            except RuntimeError as error:
                self._say(str(error).splitlines()[0])
        return self._serial.test(federation, clients, keep_scores)

    def declines(self, recipe: Recipe) -> str | None:
        """Why a recipe cannot be stacked, if so."""
        if self._model_reason:
            return self._model_reason
        if self.problem.training.optimizer != "sgd":
            return f"optimizer '{self.problem.training.optimizer}' (only sgd is stacked)"
        if any(phase.rule is not plain_steps for phase in recipe):
            return "the method has a step rule of its own"
        return None

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log.warning("stacked engine: clients are trained one by one instead, since %s", reason)

    def _train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        sizes = torch.tensor([len(self.problem.train[client]) for client in cohort.tolist()])
        order = torch.argsort(sizes, descending=True, stable=True)
        back = torch.argsort(order)
        stack = Stack(self, federation, cohort[order])
        early = self._probes(stack, work, "received", back)
        stack.train(work.recipe)
        rows = {slot: federation[slot].columns.take(stack.rows(slot))[back] for slot in work.slots}
        trained = Trained(rows, early | self._probes(stack, work, "trained", back))
        if work.test:
            begin = time.perf_counter()
            scores = self._test(stack, keep_scores=False)
            trained.scores = [scores[position] for position in back.tolist()]
            trained.test_seconds = time.perf_counter() - begin
        return trained

    def _probes(self, stack: Stack, work: Work, moment: str, back: Tensor) -> dict[str, Tensor]:
        """Probes are taken one client at a time, on the client's rows as they are now."""
        wanted = [probe for probe in work.probes if probe.moment == moment]
        found: dict[str, list[Tensor]] = {probe.name: [] for probe in wanted}
        for position in back.tolist() if wanted else ():
            worker = self._serial.worker
            worker.seat(stack.federation, int(stack.clients[position]))
            for slot, rows in stack.trained.items():
                worker.network(slot).row.copy_(rows[position])
            for probe in wanted:
                found[probe.name].append(probe(worker))
        return {name: torch.stack(values) for name, values in found.items()}

    def _test(self, stack: Stack, keep_scores: bool) -> list[Score]:
        stack.train(self.method.tune(stack.federation))
        scores: list[Score] = []
        tests = [self.problem.test[client] for client in stack.clients.tolist()]
        with torch.no_grad():
            for part in chunks(len(tests), max(map(len, tests))):
                index = padded(tests[part])
                batch = StackedBatch(stack, self.method.tested, index, part)
                plain = type(self.method).predict is Method.predict
                logits = batch.logits if plain else batch.per_client(self.method.predict)
                correct = logits.argmax(-1) == batch.labels
                losses = cross_entropy_of(logits.flatten(0, 1), batch.labels.flatten(), reduction="none").view(
                    index.shape
                )
                for row, test in enumerate(tests[part]):
                    n = len(test)
                    kept = logits[row, :n].softmax(-1) if keep_scores else None
                    scores.append(Score(correct[row, :n], losses[row, :n], kept))
        return scores


class Stack:
    """Clients in a row: their slots' rows `[m, P]`, those in training changed in place."""

    def __init__(self, engine: Stacked, federation: Federation, clients: Tensor) -> None:
        self.engine, self.federation, self.clients = engine, federation, clients
        self.trained: dict[str, Tensor] = {}
        self._received: dict[str, Tensor] = {}

    def received(self, slot: str) -> Tensor:
        """The rows as they were before training here: `[m, P]`."""
        if slot not in self._received:
            source = self.federation["model" if slot == RECEIVED else slot]
            rows = torch.zeros(len(self.clients), self.federation.layout.width)
            source.columns.put(rows, source.rows(self.clients))
            self._received[slot] = rows
        return self._received[slot]

    def rows(self, slot: str) -> Tensor:
        """The rows as they are now: `[m, P]`."""
        return self.trained.get(slot, self.received(slot))

    def value(self, name: str, part: slice) -> Tensor:
        """A server value: the one for everybody, or a row for each client in a part of the stack."""
        value = self.federation.values[name]
        return value[0] if len(value) == 1 else value[self.clients[part]]

    def train(self, recipe: Recipe) -> None:
        """Run the phases of a recipe on all rows."""
        for number, phase in enumerate(recipe):
            StackedPhase(self, phase, number).run()


class StackedPhase:
    """One phase for all clients of a stack."""

    def __init__(self, stack: Stack, phase: Phase, number: int) -> None:
        self.stack, self.phase, self.number = stack, phase, number
        problem, federation = stack.engine.problem, stack.federation
        layout, settings = problem.layout, problem.training
        self.factor = settings.factor(max(federation.round, 1), federation.rounds)
        self.epochs = settings.epochs if phase.epochs is None else phase.epochs
        self.parts: list[tuple[str, slice, float]] = []  # slot, span, rate
        self.head_only = True
        for slot, group in ((phase.slot, phase.train), *phase.also.items()):
            if slot not in stack.trained:
                stack.trained[slot] = stack.received(slot).clone()
            columns = layout.columns(group) & layout.trainable & federation[slot].columns
            self.head_only &= columns <= layout.columns("classifier")
            self._add_parts(slot, columns)

    def _add_parts(self, slot: str, columns: Columns) -> None:
        problem = self.stack.engine.problem
        for group, rate in self.phase.rates.items():
            here = columns & problem.layout.columns(group)
            self.parts += [(slot, slice(*span), self.factor * rate) for span in here.spans]
            columns = columns - here
        rate = self.factor * (problem.training.lr if self.phase.lr is None else self.phase.lr)
        self.parts += [(slot, slice(*span), rate) for span in columns.spans]

    def run(self) -> None:
        """Every step of every client, as many clients at a time as still have steps to take."""
        problem, settings = self.stack.engine.problem, self.stack.engine.problem.training
        own = padded([problem.train[client] for client in self.stack.clients.tolist()])
        features = self._features(own) if self.head_only else None
        positions, weights, active = self._plan()
        velocities = [torch.zeros(len(own), part.stop - part.start) for _, part, _ in self.parts]
        clients = torch.arange(len(own))[:, None]
        for step, k in enumerate(active):
            here, share = positions[step, :k], weights[step, :k]
            batch = StackedBatch(self.stack, self.phase.slot, own[:k].gather(1, here), slice(0, k))
            if features is not None:
                batch.given = features[clients[:k], here]
            grads = self._gradients(batch, share)
            self._step(grads, velocities, k, settings.momentum, settings.weight_decay, settings.clip)

    def _plan(self) -> tuple[Tensor, Tensor, list[int]]:
        """Every client's batches, the serial engine's in the same order, padded to one size.

        Positions among the client's own samples `[S, m, B]`, the samples' shares in the batch's mean `[S, m, B]`
        (0 where padded), and how many clients take each step (those with most steps come first).
        """
        stack, problem = self.stack, self.stack.engine.problem
        number = self.number if self.phase.stream is None else self.phase.stream
        sizes = [len(problem.train[client]) for client in stack.clients.tolist()]
        width = min(problem.training.batch, max(sizes))
        per_epoch = [math.ceil(n / width) for n in sizes]
        positions = np.zeros((self.epochs * max(per_epoch), len(sizes), width), np.int64)
        weights = np.zeros_like(positions, dtype=np.float32)
        for row, (client, n, steps) in enumerate(zip(stack.clients.tolist(), sizes, per_epoch, strict=True)):
            key = int(stack.federation.keys[client])
            stream = torch_stream(stack.engine.seed, f"batches:{number}", stack.federation.round, key)
            drawn = np.zeros((self.epochs, steps * width), np.int64)
            for epoch in drawn:
                epoch[:n] = torch.randperm(n, generator=stream).numpy()
            real = (np.arange(steps * width) < n).reshape(steps, width)
            positions[: self.epochs * steps, row] = drawn.reshape(-1, width)
            weights[: self.epochs * steps, row] = np.tile(real / real.sum(1, keepdims=True), (self.epochs, 1))
        active = [sum(self.epochs * steps > step for steps in per_epoch) for step in range(len(positions))]
        return torch.from_numpy(positions), torch.from_numpy(weights), active

    def _features(self, own: Tensor) -> Tensor:
        """The frozen extractors' outputs on all training samples: `[m, n, d]`."""
        net, stack = self.stack.engine.net, self.stack
        slot = _slot_with_extractor(stack, self.phase.slot)
        with torch.no_grad():
            parts = [
                net.features(net.tensors(stack.rows(slot)[part]), stack.engine.problem.inputs[own[part]])
                for part in chunks(len(own), own.shape[1])
            ]
        return torch.cat(parts)

    def _gradients(self, batch: StackedBatch, weights: Tensor) -> dict[str, Tensor]:
        """Gradients of every trained slot's rows `[k, P]`; `weights [k, B]` sum to one per client."""
        slots = (self.phase.slot, *self.phase.also)
        leaves = {slot: self.stack.trained[slot][batch.part].detach().requires_grad_() for slot in slots}
        batch.leaves = leaves
        if self.phase.terms == (cross_entropy,):
            losses = _losses(batch.logits, batch.labels)
        else:
            losses = torch.stack([batch.per_client(term) for term in self.phase.terms]).sum(0)
        total = (losses * weights).sum()
        found = torch.autograd.grad(total, list(leaves.values()))
        return dict(zip(slots, found, strict=True))

    def _step(
        self, grads: dict[str, Tensor], velocities: list[Tensor], k: int, momentum: float, decay: float, clip: float
    ) -> None:
        """SGD on the trained spans of the first k clients."""
        pieces = [grads[slot][:, part] for slot, part, _ in self.parts]
        for number, (slot, part, _) in enumerate(self.parts):
            for term in self.phase.row_terms if slot == self.phase.slot else ():
                row = self.stack.trained[slot][:k, part]
                pieces[number] = pieces[number] + term.gradient(row, partial(self._anchor, k, part))
        if clip:
            norm = torch.stack([piece.square().sum(1) for piece in pieces]).sum(0).sqrt()
            scale = (clip / (norm + 1e-6)).clamp(max=1.0)[:, None]
            pieces = [piece * scale for piece in pieces]
        for (slot, part, rate), piece, velocity in zip(self.parts, pieces, velocities, strict=True):
            rows = self.stack.trained[slot][:k, part]
            direction = piece.add(rows, alpha=decay) if decay else piece
            if momentum:
                direction = velocity[:k].mul_(momentum).add_(direction)
            rows.add_(direction, alpha=-rate)

    def _anchor(self, k: int, part: slice, slot: str) -> Tensor:
        return self.stack.received(self.phase.slot if slot == RECEIVED else slot)[:k, part]


class StackedBatch:
    """A batch of every client in `part` of the stack; each quantity has a leading dimension of clients."""

    def __init__(self, stack: Stack, slot: str, index: Tensor, part: slice) -> None:
        self.stack, self.slot, self.index, self.part = stack, slot, index, part
        self.labels = stack.engine.problem.labels[index]
        self.leaves: dict[str, Tensor] = {}
        self.given: Tensor | None = None
        self._inputs: Tensor | None = None
        self._features: Tensor | None = None
        self._tensors: dict[str, Tensors] = {}

    @property
    def inputs(self) -> Tensor:
        """The samples: `[k, B, ...]`."""
        if self._inputs is None:
            self._inputs = self.stack.engine.problem.inputs[self.index]
        return self._inputs

    def tensors(self, slot: str) -> Tensors:
        """A slot's tensors of these clients, those in training with gradients."""
        if slot not in self._tensors:
            rows = self.leaves[slot] if slot in self.leaves else self.stack.rows(slot)[self.part]
            self._tensors[slot] = self.stack.engine.net.tensors(rows)
        return self._tensors[slot]

    @property
    def features(self) -> Tensor:
        """The extractors' outputs: `[k, B, d]`."""
        if self.given is not None:
            return self.given
        if self._features is None:
            slot = _slot_with_extractor(self.stack, self.slot)
            self._features = self.stack.engine.net.features(self.tensors(slot), self.inputs)
        return self._features

    @property
    def logits(self) -> Tensor:
        """The classifiers' outputs: `[k, B, C]`."""
        return self.stack.engine.net.logits(self.tensors(self.slot), self.features)

    def per_client(self, function: Callable[[Any], Tensor]) -> Tensor:
        """A loss term or a prediction, written for one client's batch, for all clients: `[k, ...]`."""
        net, federation = self.stack.engine.net, self.stack.federation
        slots: dict[str, Tensors] = {slot: dict(self.tensors(slot)) for slot in (*federation.slots, RECEIVED)}
        values = {name: self.stack.value(name, self.part) for name in federation.values}

        def one(
            labels: Tensor, inputs: Tensor, features: Tensor, slots: dict[str, Tensors], values: dict[str, Tensor]
        ) -> Tensor:
            return function(OneClient(self.stack, self.slot, net, labels, inputs, slots, values, features))

        per_value = {name: 0 if len(federation.values[name]) > 1 else None for name in values}
        batched = torch.vmap(one, in_dims=(0, 0, 0, 0, per_value))
        out: Tensor = batched(self.labels, self.inputs, self.features, slots, values)
        return out


class OneClient:
    """What `coterie.local.Batch` offers, inside `vmap`: one client's batch as loss terms see it."""

    def __init__(
        self,
        stack: Stack,
        slot: str,
        net: BatchedNet,
        labels: Tensor,
        inputs: Tensor,
        slots: dict[str, Tensors],
        values: dict[str, Tensor],
        features: Tensor | None = None,
    ) -> None:
        self._stack, self.slot, self._net = stack, slot, net
        self.labels, self.inputs = labels, inputs
        self._slots, self._values = slots, values
        self._features = features
        self._logits: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """The extractor's output: `[B, d]`."""
        if self._features is None:
            slot = _slot_with_extractor(self._stack, self.slot)
            self._features = self._net.one_features(self._slots[slot], self.inputs)
        return self._features

    @property
    def logits(self) -> Tensor:
        """The classifier's output: `[B, C]`."""
        if self._logits is None:
            self._logits = self.head(self.slot)
        return self._logits

    def head(self, slot: str, features: Tensor | None = None) -> Tensor:
        """The output of the classifier in `slot`: `[B, C]`."""
        return self._net.one_logits(self._slots[slot], self.features if features is None else features)

    def under(self, slot: str) -> OneClient:
        """The same samples seen by the model in another slot."""
        return OneClient(self._stack, slot, self._net, self.labels, self.inputs, self._slots, self._values)

    def value(self, name: str) -> Tensor:
        """A value of the server's as this client got it."""
        return self._values[name]

    def stream(self, purpose: str) -> torch.Generator:
        """Random numbers of a client's own cannot be drawn for all clients at once: the recipe is declined."""
        raise RuntimeError(f"a loss term draws random numbers of its own ({purpose})")


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits `[k, B, C]` for every sample: `[k, B]`."""
    return cross_entropy_of(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def _slot_with_extractor(stack: Stack, slot: str) -> str:
    """The slot itself, or the model's if it holds a classifier alone."""
    if slot == RECEIVED:
        return slot
    extractor = stack.federation.layout.columns("extractor")
    return slot if extractor <= stack.federation[slot].columns else "model"
