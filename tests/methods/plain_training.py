"""Federated rounds by plain loops over copies of the module, and checks that every method must pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.client.batch import Batch
from coterie.client.recipe import Phase
from coterie.client.trainer import Trainer
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.engines import make_engine
from coterie.methods import Method
from coterie.rng import torch_stream
from coterie.rounds.listeners import RoundReport
from coterie.rounds.sampler import draw_cohort
from coterie.setup.prepared import Prepared
from coterie.testing.toys import toy_data, toy_partition
from support import permuted_partition, tiny

SHORT = {"rounds": 3, "epochs": 2, "batch": 7, "lr": 0.1}


@dataclass
class Played:
    """A finished run of the framework."""

    prepared: Prepared
    federation: Federation
    reports: list[RoundReport]

    def rows(self, slot: str = "model") -> Tensor:
        """All clients' rows of a slot: `[K, ·]`."""
        return self.federation[slot].rows(self.federation.everyone)

    def group(self, group: str, slot: str = "model") -> Tensor:
        """Some columns of all clients' rows: `[K, |group|]`."""
        return self.federation[slot].rows(self.federation.everyone, self.federation.layout.columns(group))

    def bytes_of(self, group: str) -> int:
        """The bytes of a group of the model."""
        return 4 * self.federation.layout.columns(group).size


def prepared_for(method: Method, **options: Any) -> Prepared:
    """A short experiment, before its first round."""
    return tiny(method, **{**SHORT, **options}).prepare()


def play(method: Method, watch: Callable[[Federation], None] | None = None, **options: Any) -> Played:
    """Run a short experiment; `watch` sees the federation after every round."""
    prepared = prepared_for(method, **options)
    federation, experiment = prepared.federation(), prepared.experiment
    engine = make_engine("serial", prepared.problem(), method, experiment.seed)
    rounds, reports = prepared.rounds(engine, federation), []
    for _ in range(experiment.rounds):
        reports.append(rounds.run_round())
        if watch is not None:
            watch(federation)
    return Played(prepared, federation, reports)


class Plain:
    """The clients' data and the random orders of an experiment, for loops that know nothing of rows."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.experiment = prepared, prepared.experiment
        self.problem, self.keys = prepared.problem(), prepared.partition.keys
        self.clients = len(self.problem.train)
        self.sizes = [len(own) for own in self.problem.train]
        self.classes = prepared.data.classes
        self.initial: Any = prepared.problem_base.module

    def models(self) -> list[Any]:
        """A copy of the initial model for every client."""
        return [copy.deepcopy(self.initial) for _ in range(self.clients)]

    def rounds(self) -> Iterator[tuple[int, list[int]]]:
        """Every round's number and cohort."""
        for round in range(1, self.experiment.rounds + 1):
            keys = torch.as_tensor(self.keys)
            yield round, draw_cohort(keys, self.experiment.join, self.experiment.seed, round).tolist()

    def data(self, client: int, part: str = "train") -> tuple[Tensor, Tensor]:
        """A client's samples and labels."""
        index = getattr(self.problem, part)[client]
        return self.problem.inputs[index], self.problem.labels[index]

    def descend(
        self,
        client: int,
        round: int,
        parameters: Iterable[nn.Parameter],
        loss: Callable[[Tensor, Tensor], Tensor],
        epochs: int | None = None,
        number: int = 0,
        lr: float | None = None,
    ) -> None:
        """Plain gradient descent of `loss(inputs, labels)` over a client's shuffled batches."""
        inputs, labels = self.data(client)
        moving = list(parameters)
        stream = torch_stream(self.experiment.seed, f"batches:{number}", round, int(self.keys[client]))
        for _ in range(epochs or self.experiment.epochs):
            for part in torch.randperm(len(labels), generator=stream).split(self.experiment.batch):
                gradients = torch.autograd.grad(loss(inputs[part], labels[part]), moving)
                with torch.no_grad():
                    for parameter, gradient in zip(moving, gradients, strict=True):
                        parameter.sub_((lr or self.experiment.lr) * gradient)

    def mean(self, modules: Sequence[nn.Module], cohort: list[int]) -> Any:
        """The mean of the cohort's modules, weighted by data size."""
        total = sum(self.sizes[k] for k in cohort)
        out = copy.deepcopy(modules[cohort[0]])
        named = [dict(modules[k].named_parameters()) for k in cohort]
        with torch.no_grad():
            for name, parameter in out.named_parameters():
                weighted = [self.sizes[k] / total * one[name] for k, one in zip(cohort, named, strict=True)]
                parameter.copy_(torch.stack(weighted).sum(0))
        return out

    def class_means(self, vectors: Tensor, labels: Tensor) -> dict[int, Tensor]:
        """The mean vector of each class that occurs."""
        return {int(c): vectors[labels == c].mean(0).detach() for c in labels.unique()}

    def test_losses(self, predict: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Every client's mean cross-entropy of `predict(client, inputs)` on its test data: `[K]`."""
        losses = []
        for client in range(self.clients):
            inputs, labels = self.data(client, "test")
            with torch.no_grad():
                losses.append(cross_entropy(predict(client, inputs), labels))
        return torch.stack(losses)


def rows_of_modules(modules: Iterable[nn.Module]) -> Tensor:
    """Modules without buffers as rows: `[K, P]`."""
    return torch.stack([torch.cat([p.detach().reshape(-1) for p in one.parameters()]) for one in modules])


def copy_into(target: nn.Module, source: nn.Module) -> None:
    """Overwrite a module's parameters: a download."""
    target.load_state_dict(copy.deepcopy(source.state_dict()))


def assert_near(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """Equal up to rounding, NaN where the other is NaN."""
    ours, theirs = torch.as_tensor(ours).float(), torch.as_tensor(theirs).float()
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def gradient_at(
    prepared: Prepared, phase: Phase, client: int = 0, arrange: Callable[[Federation], None] | None = None
) -> tuple[dict[str, Tensor], Batch, Worker]:
    """The gradient that a phase computes on its first batch, as one row a slot; the batch; the worker."""
    federation = prepared.federation()
    federation.round = 1
    if arrange is not None:
        arrange(federation)
    worker = Worker(prepared.problem(), prepared.method, prepared.experiment.seed)
    worker.seat(federation, client)
    trainer = Trainer(worker, phase, 0)
    batch = next(trainer.batches())
    trainer.gradient(batch)
    return {slot: worker.model(slot).grad.clone() for slot in (phase.slot, *phase.also)}, batch, worker


def assert_relabelling_permutes(method: Method, **options: Any) -> None:
    """Other labels for the clients permute rows, values and results, and change nothing else."""
    data = toy_data()
    partition, order = permuted_partition(toy_partition(data))
    ours = play(method, data=data, **options)
    theirs = play(method, data=data, partition=partition, **options)
    for slot in ours.federation.slots:
        assert_near(theirs.rows(slot), ours.rows(slot)[list(order)])
    for name, value in ours.federation.values.items():
        per_client = ours.federation.kinds[name].per_client
        assert_near(theirs.federation.values[name], value[list(order)] if per_client else value)
    for one, other in zip(ours.reports, theirs.reports, strict=True):
        assert one.received is not None
        assert other.received is not None
        assert_near(other.received.loss, one.received.loss[list(order)])


def assert_bytes(played: Played, up: int, down: int) -> None:
    """What every client of every cohort sent and received; nothing comes down before the first exchange."""
    for report in played.reports:
        received = down if report.round > 1 else 0
        assert report.bytes == {"up": up * len(report.cohort), "down": received * len(report.cohort)}


def assert_unlike(rows: Tensor, *others: Tensor) -> None:
    """Every client's row differs from the other methods' by more than rounding."""
    for other in others:
        assert bool(((rows - other).abs().amax(1) > 1e-3).all())
