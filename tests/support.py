"""Tiny problems for tests: a data set, a partition of unequal clients, models with and without batch norm.

And what tests of processes share: how long to wait, and who is still alive.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import Struct, to_builtins
from torch import Tensor, nn

from coterie.client.recipe import Recipe
from coterie.client.trainer import train
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.engines import Serial, Trained, Work
from coterie.methods import METHODS, Method
from coterie.partition import Partition
from coterie.rounds.round import Rounds
from coterie.runs.experiment import Experiment
from coterie.runs.run import Run
from coterie.setup.prepared import Prepared
from coterie.testing.toys import CLASSES, FEATURES, seeded, toy_data, toy_partition
from coterie.testing.toys import MODELS as TOYS

# Methods that between them use every way in which a client learns, is mixed, measured and tested.
KINDS = (
    *("fedavg", "fedper", "fedrep", "ditto", "apple", "fedproto", "scaffold", "fedala", "fedfomo"),
    *("pfedcs", "fedrema", "fedcac", "pfedsim", "fedtc"),
)
PATIENCE = 300.0  # seconds after which something counts as hanging: far more than the busiest machine needs


def every_method(always: Sequence[str] = KINDS) -> list[Any]:
    """The names of all methods for a test's parameter; those that are not tried `always` are left to `make full`."""
    return [name if name in always else pytest.param(name, marks=pytest.mark.slow) for name in sorted(METHODS)]


class DropNet(nn.Module):
    """Dropout before the classifier."""

    def __init__(self, features: int = FEATURES, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Dropout(0.5))
        self.classifier = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


MODELS: dict[str, type[nn.Module]] = {**TOYS, "dropout": DropNet}


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


def normalise(pixels: np.ndarray) -> Tensor:
    """Pixels 0..255 as float32 in [−1, 1], the same shape: (x / 255 − 0.5) / 0.5, step by step."""
    return torch.from_numpy((pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5))


def rows_of(federation: Federation, slot: str = "model") -> Tensor:
    """All clients' rows of a slot: `[K, P]`."""
    return federation[slot].rows(federation.everyone)


def final_rows(result: Run) -> Tensor:
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
    return prepared.rounds(engine), engine


def without_times(value: Any) -> Any:
    """The same nested value without the entries that measure time."""
    if isinstance(value, Struct):
        return without_times(to_builtins(value))
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


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine on which nobody listens but whoever is told of it, while inside.

    It is bound, so that the system gives it to nobody who asks for any free one; and it may be used again, so that a
    server of ours can be given it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may still wait for somebody to ask for its exit code."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not stat.is_file() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What Coterie has warned of, but for models that tests give as instances, and know that they do."""
    said = [one.getMessage() for one in caplog.records if one.name == "coterie" and one.levelname == "WARNING"]
    return [line for line in said if not line.startswith("model = ")]
