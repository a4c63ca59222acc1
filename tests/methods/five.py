"""Helpers for the tests of the five methods: a server with given uploads, runs with their mixes, broken clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.client.recipe import Recipe
from coterie.client.scores import Seen
from coterie.client.worker import Worker
from coterie.core.applying import apply
from coterie.core.exchange import Applied
from coterie.core.federation import Federation
from coterie.core.tracks import exchange_mark
from coterie.engines import Trained, base
from coterie.errors import CoterieError
from coterie.methods import Method
from coterie.partition import Partition
from coterie.rounds.collect import collect
from coterie.runs.experiment import Experiment
from coterie.runs.run import Run
from coterie.testing.toys import toy_data, toy_partition
from listening import EachRound
from support import final_rows, permuted_partition, tiny


def sized_partition(sizes: Sequence[int]) -> Partition:
    """Clients with so many training samples, taken in order, and two test samples each."""
    ends = np.cumsum([size + 2 for size in sizes])
    pools = np.split(np.arange(ends[-1]), ends[:-1])
    return Partition(train=tuple(pool[2:] for pool in pools), test=tuple(pool[:2] for pool in pools))


def server(method: Method, clients: int = 5, round: int = 1, **options: Any) -> Federation:
    """A federation of unequal clients in the given round, before anybody has uploaded."""
    partition = sized_partition([3 + 2 * (k % 5) for k in range(clients)])
    data = toy_data(samples=11 * clients + 3)
    options = {"rounds": 10, **options}
    federation = tiny(method, data=data, partition=partition, **options).prepare().federation()
    federation.round = round
    return federation


def random_rows(federation: Federation, count: int | None = None, seed: int = 0) -> Tensor:
    """Trained models that nobody trained: the initial row and noise, `[m, P]`."""
    stream = torch.Generator().manual_seed(seed)
    shape = (federation.clients if count is None else count, federation.layout.width)
    return federation.initial + 0.3 * torch.randn(shape, generator=stream)


def send(
    method: Method, federation: Federation, rows: Tensor, cohort: Sequence[int] | None = None, **measured: Tensor
) -> list[Applied]:
    """Let the cohort upload `rows [m, P]`, exchange, and return the mixes as applied."""
    clients = federation.everyone if cohort is None else torch.tensor(cohort)
    trained = Trained({"model": rows}, measured)
    collected = collect(federation, method.recipe(federation), method.uploads(federation), clients, trained)
    assert not collected.left_out
    uploads = collected.uploads
    return apply(method.exchange(uploads), federation, uploads, exchange_mark(federation.round))


def part(federation: Federation, rows: Tensor, group: str) -> Tensor:
    """The columns of a group of whole rows `[..., P]`."""
    return federation.layout.columns(group).take(rows)


@dataclass
class Watched:
    """A finished run with the mixes of every round."""

    result: Run
    mixes: list[list[Applied]]

    def sent(self, way: str) -> list[float]:
        """Bytes per client of the cohort, round by round."""
        return [getattr(line.bytes, way) / len(line.cohort) for line in self.result.lines]


def watch(experiment: Experiment) -> Watched:
    mixes: list[list[Applied]] = []
    result = experiment.run(listeners=[EachRound(lambda report: mixes.append(report.mixes))])
    return Watched(result, mixes)


def assert_valid_mixes(watched: Watched) -> None:
    assert any(watched.mixes)
    for mix in (mix for mixes in watched.mixes for mix in mixes):
        assert bool((mix.weights >= 0).all())
        torch.testing.assert_close(
            mix.weights.double().sum(1), torch.ones(len(mix.weights)).double(), atol=1e-6, rtol=0
        )


def assert_relabelling_permutes(method: Method, **options: Any) -> None:
    """Shuffled clients give the shuffled result; mixes are valid on the way."""
    data = toy_data(samples=240)
    partition = toy_partition(data, 6)
    shuffled, order = permuted_partition(partition)
    ours = watch(tiny(method, data=data, partition=partition, **options))
    theirs = watch(tiny(method, data=data, partition=shuffled, **options))
    assert_valid_mixes(ours)
    torch.testing.assert_close(final_rows(theirs.result), final_rows(ours.result)[order], atol=2e-6, rtol=1e-5)


def break_client(monkeypatch: pytest.MonkeyPatch, client: int, round: int) -> None:
    """Have a client's model turn out not finite in one round."""
    train = base.train

    def train_and_break(worker: Worker, recipe: Recipe, seen: Seen | None = None) -> dict[str, Tensor]:
        measured = train(worker, recipe, seen)
        if recipe and (worker.client, worker.federation.round) == (client, round):
            worker.model("model").row[3] = torch.nan
        return measured

    monkeypatch.setattr(base, "train", train_and_break)


class ScaleHead(nn.Module):
    """A classifier without a weight matrix: the features are scaled and shifted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * features + self.bias


class ScaleNet(nn.Module):
    """A model whose classifier has no weight matrix."""

    def __init__(self, features: int = 6, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(features, classes)
        self.classifier = ScaleHead(classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


class DeepHeadNet(nn.Module):
    """A classifier of two layers, with dropout between them if asked for."""

    def __init__(self, features: int = 6, classes: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 8), nn.ReLU())
        self.classifier = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Dropout(dropout), nn.Linear(5, classes))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


def refused(text: str) -> Any:
    """Expect a one-line error that says `text`."""
    return pytest.raises(CoterieError, match=rf"\A[^\n]*{text}[^\n]*\Z")
