"""A seat at which clients take turns. What they train with, test with and measure with is read from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.client.effort import Effort
from coterie.client.model import MountedModel
from coterie.client.optimiser import Optimiser
from coterie.client.problem import Problem
from coterie.client.recipe import Recipe
from coterie.client.scores import Score
from coterie.client.terms import RECEIVED
from coterie.client.views import BatchView
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.slots import Slot
from coterie.devices import seed_everything_drawn
from coterie.rng import stream_seed, torch_stream


class MethodAtClient(Protocol):
    """What a client needs to know of the method to be tested."""

    @property
    def tested(self) -> str:
        """The slot whose model is tested."""
        ...

    def predict(self, batch: BatchView) -> Tensor:
        """The outputs `[B, C]` by which the method is tested."""
        ...

    def uploads(self, federation: Federation) -> Mapping[str, str]:
        """Which groups of which slots a client sends."""
        ...

    def tune(self, federation: Federation) -> Recipe:
        """What a client trains on a copy of its model just before it is tested."""
        ...


class Worker:
    """A seat at which clients take turns: one model a slot, mounted once, rows copied in and out."""

    def __init__(self, problem: Problem, method: MethodAtClient, seed: int) -> None:
        self.problem = problem
        self.method = method
        self.seed = seed
        self.device = problem.device
        self._models: dict[str, MountedModel] = {}
        self._present: set[str] = set()
        self._anchors: dict[str, Tensor] = {}
        self.known_features: dict[str, Tensor] = {}  # of the training samples, by the slot of the extractor
        self._values: dict[str, Tensor] = {}  # values of the client in the seat
        self._common: dict[str, tuple[Tensor, Tensor]] = {}  # everybody's, as the federation has them and on the device
        self._peers: list[int] = []
        self._streams: dict[str, torch.Generator] = {}
        # What step rules found out about the client in the seat, for later phases and for measurements.
        self.notes: dict[str, Tensor] = {}
        self.optimisers: dict[object, Optimiser | None] = {}
        self.effort = Effort()  # of the client in the seat

    def seat(self, federation: Federation, client: int, peers: Sequence[int] = ()) -> None:
        """Let a client take the seat: whatever is used of its slots (and of its peers') is read from the federation."""
        self.federation, self.client = federation, client
        self._peers = list(peers)
        self.key = int(federation.keys[client])
        self._present.clear()
        self._anchors.clear()
        self.forget_features()
        self._streams.clear()
        self.notes.clear()
        self._values.clear()
        self.effort = Effort()
        seed_everything_drawn(self.device, stream_seed(self.seed, "dropout", federation.round, self.key))

    def model(self, slot: str) -> MountedModel:
        """The model of a slot with this client's row in it; `received` is a copy of the model as downloaded."""
        model = self._models.get(slot)
        if model is None:
            model = self._models[slot] = MountedModel(self.problem.module, self.problem.layout, self.device)
            model.train_only(Columns())
            model.mode(False)
        if slot not in self._present:
            self._slot(slot).copy_row(self.client, model.row)
            self._present.add(slot)
        return model

    def _slot(self, name: str) -> Slot:
        return self.federation["model" if name == RECEIVED else name.removeprefix(f"{RECEIVED} ")]

    def trunk(self, slot: str) -> nn.Module:
        """The extractor of a slot; slots that hold a classifier alone use the model's."""
        return self.model(self.slot_with_extractor(slot)).trunk

    def slot_with_extractor(self, slot: str) -> str:
        """The slot whose extractor belongs to a slot's classifier."""
        holds_extractor = self.problem.layout.inside("extractor") <= self._slot(slot).columns
        return slot if holds_extractor else "model"

    def received(self, slot: str = "model") -> Tensor:
        """The client's row as it was before training here: `[P]`, the slot's columns filled."""
        if slot not in self._anchors:
            row = torch.zeros(self.problem.layout.width, device=self.device)
            self.federation[slot].copy_row(self.client, row)
            self._anchors[slot] = row
        return self._anchors[slot]

    @property
    def rounds_taken(self) -> Tensor:
        """In how many rounds this client has taken part before: a number."""
        return self._brought("", self.federation.rounds_taken[self.client])

    def value(self, name: str) -> Tensor:
        """A value as this client has it: the one for everybody, or its own."""
        whole = self.federation.value_of(name, self.client)
        if self.federation.kinds[name].per_client:
            return self._brought(name, whole)
        known = self._common.get(name)
        if known is None or known[0] is not whole:
            known = self._common[name] = (whole, whole.to(self.device))
        return known[1]

    def _brought(self, name: str, value: Tensor) -> Tensor:
        """Something of the client in the seat on the device, to which it is brought once."""
        if name not in self._values:
            self._values[name] = value.to(self.device)
        return self._values[name]

    def stream(self, purpose: str) -> torch.Generator:
        """This client's stream of random numbers for a purpose, begun anew every round."""
        if purpose not in self._streams:
            self._streams[purpose] = torch_stream(self.seed, purpose, self.federation.round, self.key)
        return self._streams[purpose]

    def peers(self) -> tuple[list[int], Tensor]:
        """The other clients whose models this one downloaded, and their rows `[n, P]`."""
        rows = self.received()[None].repeat(len(self._peers), 1)
        # What peers do not upload, such as local running statistics, is the client's own.
        sent = self.problem.layout.columns(self.method.uploads(self.federation).get("model", ""))
        sent.put(rows, self._peer_rows(sent))
        return self._peers, rows

    def _peer_rows(self, columns: Columns) -> Tensor:
        """Columns of the peers' models: `[n, |columns|]`."""
        rows = self.federation["model"].rows(torch.tensor(self._peers, dtype=torch.int64), columns)
        return rows.to(self.device)

    def train_features(self, slot: str = "model") -> Tensor:
        """The extractor's output on all of the client's training samples; kept until the extractor trains: `[n, d]`."""
        slot = self.slot_with_extractor(slot)
        if slot not in self.known_features:
            self.known_features[slot] = self.features(self.problem.train[self.client], slot)
        return self.known_features[slot]

    def forget_features(self) -> None:
        """An extractor is about to change."""
        self.known_features.clear()

    def features(self, index: Tensor, slot: str = "model") -> Tensor:
        """The extractor's output on the given samples, in evaluation mode and without gradients: `[n, d]`."""
        trunk = self.trunk(slot)
        was_training = trunk.training
        trunk.eval()
        with torch.no_grad():
            parts = [trunk(self.problem.inputs[part]) for part in index.split(self.problem.test_batch)]
        trunk.train(was_training)
        self.effort.forward += len(index)
        return torch.cat(parts)

    def test(self, index: Tensor, keep_scores: bool = False) -> Score:
        """Score the method's prediction on the given samples."""
        for slot in self._present:
            self._models[slot].mode(False)
        task, parts = self.problem.task, []
        with torch.no_grad():
            for part in index.split(self.problem.test_batch):
                batch = Batch(self, self.method.tested, part)
                outputs = self.method.predict(batch)
                parts.append(Score(task.scores(outputs, batch.labels), task.kept(outputs) if keep_scores else None))
        return Score.joined(parts)
