"""Tiny problems: a data set, a partition of unequal clients, models with and without batch norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data import Dataset
from coterie.methods.base import Method
from coterie.partition import Partition
from coterie.runs.experiment import Experiment

FEATURES, CLASSES, CLIENTS, ROUNDS = 6, 3, 4, 3


def toy_data(samples: int = 150, classes: int = CLASSES, features: int = FEATURES, seed: int = 0) -> Dataset:
    """Gaussian clouds, one a class, that overlap enough for accuracies to differ between models."""
    stream = np.random.default_rng(seed)
    labels = stream.integers(classes, size=samples)
    labels[:classes] = np.arange(classes)
    centres = stream.normal(size=(classes, features))
    inputs = centres[labels] + stream.normal(size=(samples, features))
    return Dataset("toy", torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels), classes=classes)


def toy_partition(data: Dataset, clients: int = CLIENTS, seed: int = 0) -> Partition:
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


def with_validation(partition: Partition) -> Partition:
    """The last samples of each client's training part become its validation part."""
    cuts = [max(1, len(train) // 5) for train in partition.train]
    return Partition(
        train=tuple(train[:-cut] for train, cut in zip(partition.train, cuts, strict=True)),
        validation=tuple(train[-cut:] for train, cut in zip(partition.train, cuts, strict=True)),
        test=partition.test,
    )


class PlainNet(nn.Module):
    """An extractor of two layers and a classifier; nothing random, no batch norm."""

    def __init__(self, features: int = FEATURES, classes: int = CLASSES, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.ReLU())
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[B, C]`."""
        out: Tensor = self.classifier(self.body(x))
        return out


class ReluNet(nn.Module):
    """Nothing that saturates: with huge inputs its weights overflow."""

    def __init__(self, features: int = FEATURES, classes: int = CLASSES, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.ReLU())
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[B, C]`."""
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
        """Class scores `[B, C]`."""
        hidden = torch.tanh(self.foo(self.bn(x)))
        out: Tensor = self.classifier(torch.tanh(self.downsample(hidden)))
        return out


def seeded(kind: type[nn.Module], seed: int = 1, **options: Any) -> nn.Module:
    """A module with reproducible initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(**options)


MODELS: dict[str, type[nn.Module]] = {"plain": PlainNet, "norm": NormNet, "relu": ReluNet}


def toy_experiment(method: Method, model: str = "plain", **options: Any) -> Experiment:
    """Three short rounds on toy data, with validation samples for the methods that want some."""
    data = options.pop("data", None) or toy_data(180)
    partition = options.pop("partition", None) or with_validation(toy_partition(data, options.pop("clients", CLIENTS)))
    settings = {"rounds": ROUNDS, "epochs": 1, "batch": 16, "lr": 0.1, "classifier": "classifier", **options}
    return Experiment(method=method, data=data, partition=partition, model=MODELS[model], **settings)
