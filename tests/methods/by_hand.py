"""Clients' steps computed by hand: autograd on a flat row and an explicit list of batches, nothing of the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from plain_training import Played, assert_near, play
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.methods import Method
from coterie.partition import Partition
from coterie.rng import torch_stream
from coterie.rounds.sampler import draw_cohort
from coterie.setup.prepared import Prepared
from coterie.testing.toys import toy_data, toy_partition
from support import permuted_partition


class Hand:
    """The models of an experiment as plain vectors, its batches and its cohorts."""

    def __init__(self, prepared: Prepared) -> None:
        self.prepared, self.experiment, self.problem = prepared, prepared.experiment, prepared.problem()
        self.layout, self.module = self.problem.layout, prepared.problem_base.module
        self.keys = [int(key) for key in prepared.partition.keys]
        self.clients = len(self.keys)
        self.sizes = torch.tensor([len(own) for own in self.problem.train]).double()
        self.initial = self.layout.row(self.module)

    def rounds(self) -> Iterator[tuple[int, list[int]]]:
        """Every round's number and cohort."""
        for round in range(1, self.experiment.rounds + 1):
            cohort = draw_cohort(torch.tensor(self.keys), self.experiment.join, self.experiment.seed, round)
            yield round, cohort.tolist()

    def batches(self, client: int, round: int, number: int = 0, epochs: int | None = None) -> list[Tensor]:
        """The samples of each batch of a client's round, in order."""
        own = self.problem.train[client]
        stream = torch_stream(self.experiment.seed, f"batches:{number}", round, self.keys[client])
        listed: list[Tensor] = []
        for _ in range(self.experiment.epochs if epochs is None else epochs):
            listed += own[torch.randperm(len(own), generator=stream)].split(self.experiment.batch)
        return listed

    def logits(self, row: Tensor, index: Tensor) -> Tensor:
        """The module's output with `row` for its weights."""
        self.module.eval()
        out: Tensor = torch.func.functional_call(self.module, self.layout.views(row), (self.problem.inputs[index],))
        return out

    def features_and_logits(self, row: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """What the classifier is given, and what it says."""
        seen: list[Tensor] = []
        watch = self.module.get_submodule(self.layout.classifier).register_forward_pre_hook(
            lambda _, inputs: seen.append(inputs[0])
        )
        logits = self.logits(row, index)
        watch.remove()
        return seen[0], logits

    def loss(self, row: Tensor, index: Tensor) -> Tensor:
        """The mean cross-entropy."""
        return cross_entropy(self.logits(row, index), self.problem.labels[index])

    def gradient(self, row: Tensor, index: Tensor) -> Tensor:
        """The gradient of the mean cross-entropy."""
        row = row.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(row, index), row)
        return gradient

    def mean(self, rows: dict[int, Tensor], uniform: bool = False) -> Tensor:
        """The mean of the cohort's rows, by data size or uniform."""
        weights = {k: 1.0 if uniform else float(self.sizes[k]) for k in rows}
        return sum((weights[k] * row for k, row in rows.items()), torch.tensor(0.0)) / sum(weights.values())

    def test_losses(self, rows: Tensor) -> Tensor:
        """Every client's mean loss on its test data: `[K]`."""
        return torch.stack([self.loss(row, index) for row, index in zip(rows, self.problem.test, strict=True)])


def losses_received(played: Played, round: int = -1) -> Tensor:
    """The clients' test losses at the moment `received`."""
    evaluation = played.reports[round].received
    assert evaluation is not None
    return torch.as_tensor(evaluation.loss)


def with_validation(partition: Partition, samples: int = 6) -> Partition:
    """The partition with some of everybody's training samples set aside."""
    return replace(
        partition,
        train=tuple(own[samples:] for own in partition.train),
        validation=tuple(own[:samples] for own in partition.train),
    )


def assert_relabelling_permutes_matrices(method: Method, matrix: str, **options: Any) -> None:
    """Like `assert_relabelling_permutes`, for a value with a row and a column for every client."""
    data = toy_data()
    partition = with_validation(toy_partition(data))
    relabelled, order = permuted_partition(partition)
    ours = play(method, data=data, partition=partition, **options)
    theirs = play(method, data=data, partition=relabelled, **options)
    for slot in ours.federation.slots:
        assert_near(theirs.rows(slot), ours.rows(slot)[list(order)])
    assert_near(theirs.federation.values[matrix], ours.federation.values[matrix][list(order)][:, list(order)])
    assert_near(losses_received(theirs), losses_received(ours)[list(order)])
