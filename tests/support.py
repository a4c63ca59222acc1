"""Tiny problems for tests: a data set, a partition of unequal clients, models with and without batch norm.

And what tests of processes share: how long to wait, and who is still alive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.client.recipe import Recipe
from coterie.client.trainer import train
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.data import Dataset
from coterie.engines import Serial, Trained, Work
from coterie.experiment.experiment import Experiment
from coterie.experiment.prepared import Prepared
from coterie.experiment.result import Result
from coterie.methods import Method
from coterie.partition import Partition
from coterie.rounds.round import Rounds

FEATURES, CLASSES = 6, 3
PATIENCE = 300.0  # seconds after which something counts as hanging: far more than the busiest machine needs


def toy_data(samples: int = 150, classes: int = CLASSES, features: int = FEATURES, seed: int = 0) -> Dataset:
    """Gaussian clouds, one a class, that overlap enough for accuracies to differ between models."""
    stream = np.random.default_rng(seed)
    labels = stream.integers(classes, size=samples)
    labels[:classes] = np.arange(classes)
    centres = stream.normal(size=(classes, features))
    inputs = centres[labels] + stream.normal(size=(samples, features))
    return Dataset("toy", torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels), classes=classes)


def toy_partition(data: Dataset, clients: int = 4, seed: int = 0) -> Partition:
    """Clients of unequal size that lean towards different classes; a quarter of their samples is for testing."""
    stream = np.random.default_rng(seed)
    order = np.argsort(data.labels.numpy() + 1.5 * stream.random(len(data)), kind="stable")
    weights = np.arange(clients) + 3.0
    ends = np.round(np.cumsum(weights) / weights.sum() * len(data)).astype(int)
    pools = [stream.permutation(pool) for pool in np.split(order, ends[:-1])]
    cuts = [max(1, len(pool) // 4) for pool in pools]
    return Partition(
        train=tuple(pool[cut:] for pool, cut in zip(pools, cuts, strict=True)),
        test=tuple(pool[:cut] for pool, cut in zip(pools, cuts, strict=True)),
    )


class PlainNet(nn.Module):
    """An extractor of two layers and a classifier; nothing random, no batch norm."""

    def __init__(self, features: int = FEATURES, classes: int = CLASSES, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU())
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


class ReluNet(nn.Module):
    """Nothing that saturates: with huge inputs its weights overflow."""

    def __init__(self, features: int = FEATURES, classes: int = CLASSES, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.ReLU())
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


class NormNet(nn.Module):
    """Batch norm whose names do not tell: `foo` and `downsample.1` are batch norm, `bn` is a linear layer.

    Layers before batch norm have no bias: it would be cancelled, and its gradient would be rounding noise.
    Everything is smooth: at the kink of a ReLU the last bit of a sum may decide where training goes.
    """

    def __init__(self, features: int = FEATURES, classes: int = CLASSES, width: int = 8) -> None:
        super().__init__()
        self.bn = nn.Linear(features, width, bias=False)
        self.foo = nn.BatchNorm1d(width)
        self.downsample = nn.Sequential(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.foo(self.bn(x)))
        out: Tensor = self.classifier(torch.tanh(self.downsample(hidden)))
        return out


class DropNet(nn.Module):
    """Dropout before the classifier."""

    def __init__(self, features: int = FEATURES, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Dropout(0.5))
        self.classifier = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


def seeded(kind: type[nn.Module], seed: int = 1, **options: Any) -> nn.Module:
    """A module with reproducible initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(**options)


MODELS = {"plain": PlainNet, "norm": NormNet, "dropout": DropNet, "relu": ReluNet}


def tiny(
    method: Method | str = "fedavg", model: str | nn.Module = "plain", clients: int = 4, **options: Any
) -> Experiment:
    """An experiment of three short rounds on toy data."""
    data = options.pop("data", None) or toy_data()
    partition = options.pop("partition", None) or toy_partition(data, clients)
    if isinstance(model, str):
        model = seeded(MODELS[model])
    settings = {"rounds": 3, "epochs": 1, "batch": 10, "lr": 0.1, "classifier": "classifier", **options}
    return Experiment(method=method, data=data, partition=partition, model=model, **settings)


def rows_of(federation: Federation, slot: str = "model") -> Tensor:
    """All clients' rows of a slot: `[K, P]`."""
    return federation[slot].rows(federation.everyone)


def final_rows(result: Result) -> Tensor:
    """The clients' models after the last round: `[K, P]`."""
    return rows_of(result.federation)


def seat(prepared: Prepared, client: int, round: int = 1) -> Worker:
    """A worker at which a client has taken its seat, in a federation before its first exchange."""
    federation = prepared.federation()
    federation.round = round
    worker = Worker(prepared.problem(), prepared.method, prepared.experiment.seed)
    worker.seat(federation, client)
    return worker


def trained_row(prepared: Prepared, recipe: Recipe, client: int = 0, round: int = 1, slot: str = "model") -> Tensor:
    """The row `[P]` of a client after a recipe."""
    worker = seat(prepared, client, round)
    train(worker, recipe)
    return worker.model(slot).row.clone()


class Recording(Serial):
    """The serial engine, which keeps what it was last asked to do and what came of it."""

    def train(self, federation: Federation, work: Work, cohort: Tensor) -> Trained:
        self.cohort, self.trained = cohort, super().train(federation, work, cohort)
        return self.trained


def stepwise(experiment: Experiment) -> tuple[Rounds, Recording]:
    """A run that can be watched round by round."""
    prepared = experiment.prepare()
    engine = Recording(prepared.problem(), prepared.method, experiment.seed)
    return Rounds(prepared.method, prepared.federation(), engine, experiment.join, experiment.evaluate_every), engine


def without_times(value: Any) -> Any:
    """The same nested value without the entries that measure time."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key != "seconds"}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    return value


def permuted_partition(partition: Partition, seed: int = 5) -> tuple[Partition, Sequence[int]]:
    """The partition under new labels, and the order: its client i is the old client `order[i]`."""
    order = [int(k) for k in np.random.default_rng(seed).permutation(partition.clients)]
    if partition.clients > 1 and order == sorted(order):
        order = order[::-1]
    return partition.permuted(order), order


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether a condition comes true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may still wait for somebody to ask for its exit code."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not stat.is_file() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
