"""What happens at one client: receive, train, probe, test. Engines only decide where this runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from coterie.columns import Columns, Span
from coterie.errors import CoterieError
from coterie.federation import Federation, Slot
from coterie.layout import Layout
from coterie.network import Network
from coterie.optim import Optimiser, make_optimiser
from coterie.recipe import Phase, Recipe, Training, cross_entropy, trained_slots
from coterie.rng import stream_seed, torch_stream
from coterie.terms import RECEIVED

if TYPE_CHECKING:
    from coterie.methods.method import Method

TUNING_DIVERGED = (
    "tuning its model for the test diverged (the tuned weights are not finite), so the model is tested untuned. "
    "A smaller lr or clip= may help."
)

# Large enough to be efficient, small enough that several workers share the samples of a single model.
TEST_BATCH = 128


@dataclass(frozen=True)
class Problem:
    """Everything about a run that never changes: model, data, who holds which samples, how to train."""

    module: nn.Module
    layout: Layout
    inputs: Tensor  # [N, ...]
    labels: Tensor  # [N]
    train: tuple[Tensor, ...]  # K index vectors
    validation: tuple[Tensor, ...]
    test: tuple[Tensor, ...]
    training: Training
    skip_single_samples: bool


@dataclass(frozen=True)
class Score:
    """A model's result on test data, sample by sample; `untuned` says that the copy tuned for it was not finite."""

    correct: Tensor  # [n] bool
    losses: Tensor  # [n]
    probabilities: Tensor | None = None  # [n, C], where asked for
    untuned: bool = False

    def split(self, sizes: list[int]) -> list[Score]:
        """Cut into the scores of consecutive parts of the samples."""
        parts = zip(self.correct.split(sizes), self.losses.split(sizes), strict=True)
        if self.probabilities is None:
            return [Score(correct, losses) for correct, losses in parts]
        probabilities = self.probabilities.split(sizes)
        return [Score(*part, kept) for part, kept in zip(parts, probabilities, strict=True)]


class Batch:
    """One batch at one client, as loss terms see it. Everything is computed when first asked for."""

    def __init__(self, worker: Worker, slot: str, index: Tensor, features: Tensor | None = None) -> None:
        self._worker = worker
        self._index = index
        self._features = features
        self._logits: Tensor | None = None
        self._inputs: Tensor | None = None
        self.slot = slot
        self.labels = worker.problem.labels[index]

    @property
    def inputs(self) -> Tensor:
        """The samples: `[B, ...]`."""
        if self._inputs is None:
            self._inputs = self._worker.problem.inputs[self._index]
        return self._inputs

    @property
    def features(self) -> Tensor:
        """The extractor's output: `[B, d]`."""
        if self._features is None:
            self._features = self._worker.trunk(self.slot)(self.inputs)
        return self._features

    @property
    def logits(self) -> Tensor:
        """The classifier's output on the features: `[B, C]`."""
        if self._logits is None:
            self._logits = self.head(self.slot)
        return self._logits

    def head(self, slot: str, features: Tensor | None = None) -> Tensor:
        """The output of the classifier in `slot` on these (or the given) features: `[B, C]`."""
        head: nn.Module = self._worker.network(slot).head
        out: Tensor = head(self.features if features is None else features)
        return out

    def under(self, slot: str) -> Batch:
        """The same samples seen by the model in another slot."""
        other = Batch(self._worker, slot, self._index)
        other._inputs = self.inputs
        return other

    def split(self, pieces: int) -> list[Batch]:
        """The samples in disjoint batches of (nearly) the same size; some are empty if there are too few."""
        features: Sequence[Tensor | None] = [None] * pieces
        if self._features is not None:
            features = self._features.tensor_split(pieces)
        return [
            Batch(self._worker, self.slot, index, part)
            for index, part in zip(self._index.tensor_split(pieces), features, strict=True)
        ]

    def value(self, name: str) -> Tensor:
        """A value of the server's as this client got it: its own row, or the one for everybody."""
        return self._worker.value(name)

    def stream(self, purpose: str) -> torch.Generator:
        """The client's random numbers of this round for a purpose; every batch goes on where the last one stopped."""
        return self._worker.stream(purpose)


class Worker:
    """A seat at which clients take turns: one network a slot, mounted once, rows copied in and out."""

    def __init__(self, problem: Problem, method: Method, seed: int) -> None:
        self.problem = problem
        self.method = method
        self.seed = seed
        self._networks: dict[str, Network] = {}
        self._present: set[str] = set()
        self._anchors: dict[str, Tensor] = {}
        self._features: dict[str, Tensor] = {}
        self._streams: dict[str, torch.Generator] = {}
        # What step rules found out about the client in the seat, for later phases and for probes.
        self.notes: dict[str, Tensor] = {}
        self.optimisers: dict[object, Optimiser] = {}

    def seat(self, federation: Federation, client: int) -> None:
        """Let a client take the seat: whatever is used of its slots is read from the federation."""
        self.federation, self.client = federation, client
        self.key = int(federation.keys[client])
        self._present.clear()
        self._anchors.clear()
        self.forget_features()
        self._streams.clear()
        self.notes.clear()
        torch.default_generator.manual_seed(stream_seed(self.seed, "dropout", federation.round, self.key))

    def network(self, slot: str) -> Network:
        """The network of a slot with this client's row in it; `received` is a copy of the model as downloaded."""
        network = self._networks.get(slot)
        if network is None:
            network = self._networks[slot] = Network(self.problem.module, self.problem.layout)
            network.train_only(Columns())
            network.mode(False)
        if slot not in self._present:
            self._slot(slot).copy_row(self.client, network.row)
            self._present.add(slot)
        return network

    def _slot(self, name: str) -> Slot:
        return self.federation["model" if name == RECEIVED else name]

    def trunk(self, slot: str) -> nn.Module:
        """The extractor of a slot; slots that hold a classifier alone use the model's."""
        holds_extractor = self.problem.layout.columns("extractor") <= self._slot(slot).columns
        return self.network(slot if holds_extractor else "model").trunk

    def received(self, slot: str = "model") -> Tensor:
        """The client's row as it was before training here: `[P]`, the slot's columns filled."""
        if slot not in self._anchors:
            row = torch.zeros(self.problem.layout.width)
            self.federation[slot].copy_row(self.client, row)
            self._anchors[slot] = row
        return self._anchors[slot]

    def value(self, name: str) -> Tensor:
        """A server value as this client sees it (first dimension: one for everybody, or one per client)."""
        value = self.federation.values[name]
        return value[0 if len(value) == 1 else self.client]

    def stream(self, purpose: str) -> torch.Generator:
        """This client's stream of random numbers for a purpose, begun anew every round."""
        if purpose not in self._streams:
            self._streams[purpose] = torch_stream(self.seed, purpose, self.federation.round, self.key)
        return self._streams[purpose]

    def peers(self) -> tuple[list[int], Tensor]:
        """The other clients whose models this one downloaded, and their rows `[n, P]`."""
        chosen = list(self.method.peers(self.federation, self.client))
        rows = self.received()[None].repeat(len(chosen), 1)
        # What peers do not upload, such as local running statistics, is the client's own.
        sent = self.problem.layout.columns(self.method.uploads(self.federation).get("model", ""))
        sent.put(rows, self.federation["model"].rows(torch.tensor(chosen, dtype=torch.int64), sent))
        return chosen, rows

    def train_features(self, slot: str = "model") -> Tensor:
        """The extractor's output on all of the client's training samples; kept until the extractor trains: `[n, d]`."""
        if slot not in self._features:
            self._features[slot] = self.features(self.problem.train[self.client], slot)
        return self._features[slot]

    def forget_features(self) -> None:
        """An extractor is about to change."""
        self._features.clear()

    def features(self, index: Tensor, slot: str = "model") -> Tensor:
        """The extractor's output on the given samples, in evaluation mode and without gradients: `[n, d]`."""
        trunk = self.trunk(slot)
        was_training = trunk.training
        trunk.eval()
        with torch.no_grad():
            parts = [trunk(self.problem.inputs[part]) for part in index.split(TEST_BATCH)]
        trunk.train(was_training)
        return torch.cat(parts)

    def train(self, recipe: Recipe) -> None:
        """Run the phases of a recipe on the client's rows."""
        for number, phase in enumerate(recipe):
            trainer = Trainer(self, phase, number)
            phase.rule(trainer, trainer.batches())
            trainer.finish()

    def tune(self) -> bool:
        """Tune the client's models as the method has them tested; False if that diverged and was taken back."""
        recipe = self.method.tune(self.federation)
        networks = [self.network(slot) for slot in trained_slots(recipe)]
        before = [network.row.clone() for network in networks]
        self.train(recipe)
        if all(bool(torch.isfinite(network.row).all()) for network in networks):
            return True
        for network, row in zip(networks, before, strict=True):
            network.row.copy_(row)
        self.forget_features()
        return False

    def test(self, index: Tensor, keep_scores: bool = False) -> Score:
        """Score the method's prediction on the given samples."""
        for slot in self._present:
            self._networks[slot].mode(False)
        correct, losses, kept = [], [], []
        with torch.no_grad():
            for part in index.split(TEST_BATCH):
                batch = Batch(self, self.method.tested, part)
                logits = self.method.predict(batch)
                correct.append(logits.argmax(1) == batch.labels)
                losses.append(nn.functional.cross_entropy(logits, batch.labels, reduction="none"))
                if keep_scores:
                    kept.append(logits.softmax(1))
        return Score(torch.cat(correct), torch.cat(losses), torch.cat(kept) if kept else None)


@dataclass(frozen=True)
class Part:
    """A trained span: flat views of a network's row and gradient, and where it lies."""

    slot: str
    span: Span
    row: Tensor
    grad: Tensor

    @property
    def columns(self) -> Columns:
        """The span's columns."""
        return Columns((self.span,))


class Trainer:
    """One phase at one client: hands out batches, computes gradients, takes steps.

    `parts` are the trained spans; the rules of unusual methods read and write them directly.
    """

    def __init__(self, worker: Worker, phase: Phase, number: int) -> None:
        self.worker, self.phase, self.number = worker, phase, number
        settings, federation = worker.problem.training, worker.federation
        self.factor = settings.factor(max(federation.round, 1), federation.rounds)
        self.lr = self.factor * (settings.lr if phase.lr is None else phase.lr)
        self.clip = settings.clip
        self.parts: list[Part] = []
        self.head_only = True
        for slot, group in ((phase.slot, phase.train), *phase.also.items()):
            self._open(slot, group)
        self._optimiser = self._fresh_optimiser()

    def _open(self, slot: str, group: str) -> None:
        """Unfreeze a group of a slot and list its spans."""
        worker, layout = self.worker, self.worker.problem.layout
        columns = layout.columns(group) & layout.trainable & worker.federation[slot].columns
        if not columns:
            raise CoterieError(f"a phase trains '{group}', of which slot '{slot}' holds no trainable parameters")
        network = worker.network(slot)
        network.train_only(columns)
        network.mode(True)
        if columns <= layout.columns("classifier"):
            network.trunk.eval()
        else:
            self.head_only = False
            worker.forget_features()
        for start, stop in columns.spans:
            self.parts.append(Part(slot, (start, stop), network.row[start:stop], network.grad[start:stop]))

    def batches(self) -> Iterator[Batch]:
        """Every epoch's batches: shuffled, the last partial one kept."""
        worker, problem = self.worker, self.worker.problem
        own = problem.train[worker.client]
        cached = worker.train_features(self.phase.slot) if self.head_only else None
        epochs = problem.training.epochs if self.phase.epochs is None else self.phase.epochs
        number = self.number if self.phase.stream is None else self.phase.stream
        stream = torch_stream(worker.seed, f"batches:{number}", worker.federation.round, worker.key)
        for _ in range(epochs):
            for part in torch.randperm(len(own), generator=stream).split(problem.training.batch):
                if len(part) == 1 and problem.skip_single_samples:
                    continue
                features = None if cached is None else cached[part]
                yield Batch(worker, self.phase.slot, own[part], features)

    def gradient(self, batch: Batch) -> None:
        """Fill the parts' gradients with that of the phase's objective on the batch."""
        for part in self.parts:
            part.grad.zero_()
        if self.phase.terms:
            self._loss(batch).backward()
        for row_term in self.phase.row_terms:
            for part in self.parts:
                if part.slot == self.phase.slot:
                    part.grad.add_(row_term.gradient(part.row, partial(self.anchor, part)))
        if self.clip:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part.grad) for part in self.parts]))
            scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            for part in self.parts:
                part.grad.mul_(scale)

    def _loss(self, batch: Batch) -> Tensor:
        terms = self.phase.terms
        if terms == (cross_entropy,):
            # The same number as the mean of the term, in one operation instead of two.
            return nn.functional.cross_entropy(batch.logits, batch.labels)
        loss = terms[0](batch)
        for term in terms[1:]:
            loss = loss + term(batch)
        return loss.mean()

    def step(self) -> None:
        """Let the optimiser move the parts along their gradients."""
        self._optimiser.step()

    def finish(self) -> None:
        """Leave the networks as later phases and tests expect them: frozen, in evaluation mode."""
        for slot in (self.phase.slot, *self.phase.also):
            self.worker.network(slot).mode(False)
            self.worker.network(slot).train_only(Columns())

    def anchor(self, part: Part, slot: str) -> Tensor:
        """A part's columns as they were received, or as another slot holds them."""
        row = self.worker.received(self.phase.slot if slot == RECEIVED else slot)
        return row[part.span[0] : part.span[1]]

    def _fresh_optimiser(self) -> Optimiser:
        """The worker's optimiser for this kind of phase, started anew."""
        phase, kept = self.phase, self.worker.optimisers
        key = (phase.slot, phase.train, tuple(phase.also.items()), tuple(phase.rates))
        if key not in kept:
            kept[key] = make_optimiser(self._groups_by_rate(), self.worker.problem.training)
        kept[key].start([*(self.factor * rate for rate in phase.rates.values()), self.lr])
        return kept[key]

    def _groups_by_rate(self) -> list[list[tuple[Tensor, Tensor]]]:
        """The trained spans, those of each group with a rate of its own first, the others last."""
        layout = self.worker.problem.layout
        groups: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(len(self.phase.rates) + 1)]
        for part in self.parts:
            network, rest = self.worker.network(part.slot), part.columns
            named: list[str | Columns] = [*self.phase.rates, part.columns]
            for spans, group in zip(groups, named, strict=True):
                columns = rest & layout.columns(group)
                spans += [(network.row[start:stop], network.grad[start:stop]) for start, stop in columns.spans]
                rest = rest - columns
        return groups
