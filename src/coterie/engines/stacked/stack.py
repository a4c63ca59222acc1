"""Clients side by side: what the stacked engine holds of them while they train together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coterie.client.effort import FORWARD, STEPS, EffortColumns
from coterie.client.problem import Problem
from coterie.client.terms import RECEIVED
from coterie.core.federation import Federation
from coterie.core.pixels import Inputs
from coterie.devices import stream_on
from coterie.engines.stacked.backward import HandWrittenNet
from coterie.engines.stacked.model import BatchedNet, padded
from coterie.rng import stream_seed


class PaddedIndices:
    """Which samples each client has, of the clients that are asked for, as a matrix.

    The last answer is kept: where everybody takes part in every round, it is the next one too.

    >>> indices = PaddedIndices([torch.tensor([5, 6]), torch.tensor([7])])
    >>> indices.of(torch.tensor([1, 0]))
    tensor([[7, 0],
            [5, 6]])
    >>> indices.sizes.tolist()
    [2, 1]
    """

    def __init__(self, samples: Sequence[Tensor]) -> None:
        self._samples = samples
        self.sizes = torch.tensor([len(indices) for indices in samples], dtype=torch.int64)
        self._last: tuple[Tensor, Tensor] | None = None

    def of(self, clients: Tensor) -> Tensor:
        """The clients' samples, filled up with zeros: `[m, longest]`."""
        if self._last is None or not torch.equal(self._last[0], clients):
            self._last = clients.clone(), padded([self._samples[client] for client in clients.tolist()])
        return self._last[1]


@dataclass(frozen=True)
class Ground:
    """What all stacks of an engine have in common: the problem, its data on the device, and the batched model."""

    problem: Problem
    seed: int
    device: torch.device
    inputs: Inputs  # [N, ...]
    labels: Tensor  # [N]
    train: PaddedIndices
    test: PaddedIndices
    net: BatchedNet
    by_hand: HandWrittenNet | None

    @classmethod
    def of(cls, problem: Problem, seed: int, device: str) -> Ground:
        """Bring a problem's data to a device."""
        problem = problem.on(device)
        return cls(
            problem=problem,
            seed=seed,
            device=problem.device,
            inputs=problem.inputs,
            labels=problem.labels,
            train=PaddedIndices(problem.train),
            test=PaddedIndices(problem.test),
            net=BatchedNet(problem.module, problem.layout),
            by_hand=HandWrittenNet.of(problem.module, problem.layout, problem.task.loss),
        )


class Stack:
    """Clients with their slots' rows `[m, P]`, those in training changed in place."""

    def __init__(self, ground: Ground, federation: Federation, clients: Tensor) -> None:
        self.ground, self.federation, self.clients = ground, federation, clients
        self.trained: dict[str, Tensor] = {}
        self._received: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}
        self._streams: list[torch.Generator] = []
        # The frozen extractors' outputs on all training samples, `[m, n, d]` by slot, until an extractor trains.
        self.features: dict[str, Tensor] = {}
        self.passes = 0  # of a batch through an extractor, so far
        self.forward = torch.zeros(len(clients), dtype=torch.int64)
        self.steps: dict[str, Tensor] = {}

    def took(self, moves: str, samples: Tensor, passes: Sequence[int]) -> None:
        """Steps were taken, each client's with so many `samples [S, m]`, which went so often through an extractor."""
        self.steps[moves] = self.steps.get(moves, torch.zeros_like(self.forward)) + (samples > 0).sum(0)
        self.forward += (torch.tensor(passes, dtype=torch.int64)[:, None] * samples).sum(0)

    def efforts(self, order: Tensor) -> EffortColumns:
        """What every client has computed, the clients in this `order [m]`."""
        kinds = {f"{STEPS}{moves}": self.steps[moves][order].tolist() for moves in sorted(self.steps)}
        return {FORWARD: self.forward[order].tolist(), **kinds}

    @property
    def gradients(self) -> Tensor:
        """How many gradients every client has computed: `[m]`."""
        return sum(self.steps.values(), torch.zeros_like(self.forward))

    @property
    def streams(self) -> list[torch.Generator]:
        """Where every client's dropout is drawn from, begun anew with the stack: as at the seat of a worker."""
        if not self._streams:
            federation, ground = self.federation, self.ground
            seeds = [
                stream_seed(ground.seed, "dropout", federation.round, int(key)) for key in federation.keys[self.clients]
            ]
            self._streams = [stream_on(ground.device, seed) for seed in seeds]
        return self._streams

    def received(self, slot: str) -> Tensor:
        """The rows as they were before training here: `[m, P]`."""
        if slot not in self._received:
            self._received[slot] = self._copy("model" if slot == RECEIVED else slot.removeprefix(f"{RECEIVED} "))
        return self._received[slot]

    def rows(self, slot: str) -> Tensor:
        """The rows as they are now: `[m, P]`."""
        return self.trained[slot] if slot in self.trained else self.received(slot)

    def begin(self, slot: str) -> None:
        """Make a slot's rows ready to be changed."""
        if slot not in self.trained:
            self.trained[slot] = self._copy(slot)

    def _copy(self, slot: str) -> Tensor:
        """New rows `[m, P]` as the federation holds them; 0 where the slot has no columns."""
        source, width = self.federation[slot], self.federation.layout.width
        rows = source.rows(self.clients)
        if source.width < width:
            whole = rows.new_zeros(len(rows), width)
            source.columns.put(whole, rows)
            rows = whole
        return rows.to(self.ground.device)

    def value(self, name: str, part: slice) -> Tensor:
        """A value: the one for everybody, or a row for each client in a part of the stack."""
        per_client = self.federation.kinds[name].per_client
        if name not in self._values:
            value = self.federation.values[name]
            self._values[name] = (value[self.clients] if per_client else value).to(self.ground.device)
        kept = self._values[name]
        return kept[part] if per_client else kept

    @cached_property
    def rounds_taken(self) -> Tensor:
        """In how many rounds each client has taken part before: `[m]`."""
        return self.federation.rounds_taken[self.clients].to(self.ground.device)

    def slot_with_extractor(self, slot: str) -> str:
        """The slot itself, or the model's if it holds a classifier alone."""
        if slot == RECEIVED:
            return slot
        extractor = self.federation.layout.columns("extractor")
        return slot if extractor <= self.federation[slot.removeprefix(f"{RECEIVED} ")].columns else "model"
