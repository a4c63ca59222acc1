"""Training as in a text book: one module a client, loops, deep copies. What the framework's rows are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from coterie.methods import Method
from coterie.partition import Partition
from coterie.rng import torch_stream
from coterie.rounds.listeners import RoundReport
from coterie.rounds.sampler import draw_cohort
from coterie.runs.run import Run
from coterie.testing.toys import PlainNet, seeded, toy_data, toy_partition
from listening import EachRound
from support import final_rows, permuted_partition, tiny

DATA = toy_data()
PARTITION = toy_partition(DATA)
CLIENTS = PARTITION.clients
TRAIN = [torch.from_numpy(own) for own in PARTITION.train]
SIZES = [len(own) for own in TRAIN]
WIDTH = sum(p.numel() for p in PlainNet().parameters())
HEAD = sum(p.numel() for p in PlainNet().classifier.parameters())

__all__ = [
    "CLIENTS",
    "DATA",
    "HEAD",
    "PARTITION",
    "SIZES",
    "TRAIN",
    "WIDTH",
    "PlainNet",
    "assert_relabelling_changes_nothing",
    "assert_rows",
    "bytes_a_client",
    "cohort_of",
    "copies",
    "differs_from_both",
    "fresh",
    "load",
    "mean_of",
    "run",
    "train",
    "vector",
]

Extra = Callable[[nn.Module, Tensor, Tensor], Tensor]


def fresh() -> PlainNet:
    """The common initial model."""
    model = seeded(PlainNet)
    assert isinstance(model, PlainNet)
    return model


def copies(count: int = CLIENTS) -> list[PlainNet]:
    return [fresh() for _ in range(count)]


def cohort_of(round: int, join: float = 1.0) -> list[int]:
    return draw_cohort(torch.arange(CLIENTS), join, 0, round).tolist()


def train(
    model: nn.Module,
    client: int,
    round: int,
    *,
    moving: Iterable[nn.Parameter] | None = None,
    lr: float = 0.1,
    phase: int = 0,
    extra: Extra | None = None,
) -> None:
    """One epoch of batches of ten, as `support.tiny` has it; `extra(model, x, y)` is added to the mean loss."""
    parameters = list(model.parameters() if moving is None else moving)
    own = TRAIN[client]
    stream = torch_stream(0, f"batches:{phase}", round, client)
    for part in torch.randperm(len(own), generator=stream).split(10):
        x, y = DATA.inputs[own[part]], DATA.labels[own[part]]
        loss = nn.functional.cross_entropy(model(x), y)
        if extra is not None:
            loss = loss + extra(model, x, y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(lr * gradient)


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def load(model: nn.Module, row: Tensor) -> None:
    """A copy: parameters that were views of one row would all move when one model trains."""
    nn.utils.vector_to_parameters(row.float().clone(), model.parameters())


def mean_of(rows: list[Tensor], weights: list[float] | None = None) -> Tensor:
    """The weighted mean, one row after the other."""
    weights = [1.0] * len(rows) if weights is None else weights
    total = torch.zeros_like(rows[0], dtype=torch.float64)
    for row, weight in zip(rows, weights, strict=True):
        total += weight / sum(weights) * row.double()
    return total.float()


def run(method: Method, **options: Any) -> tuple[Run, list[RoundReport]]:
    """A tiny run, and what each of its rounds reported."""
    reports: list[RoundReport] = []
    result = tiny(method, **options).run(listeners=[EachRound(lambda report: reports.append(copy.deepcopy(report)))])
    return result, reports


def assert_rows(result: Run, expected: list[Tensor]) -> None:
    torch.testing.assert_close(final_rows(result), torch.stack(expected), rtol=1e-5, atol=1e-5)


def assert_relabelling_changes_nothing(method: Method, **options: Any) -> None:
    """Permuted clients give the permuted rows."""
    partition: Partition = options.pop("partition", PARTITION)
    permuted, order = permuted_partition(partition)
    rows = final_rows(tiny(method, partition=partition, **options).run())
    others = final_rows(tiny(method, partition=permuted, **options).run())
    torch.testing.assert_close(others, rows[torch.tensor(list(order))], rtol=1e-4, atol=1e-5)


def bytes_a_client(report: RoundReport) -> tuple[float, float]:
    """Bytes up and down in a round, per client of its cohort."""
    return report.bytes["up"] / len(report.cohort), report.bytes["down"] / len(report.cohort)


def personal_and_shared(method: Method, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The rows after three rounds of the method, of local training and of FedAvg."""
    runs = [tiny(one, **options).run() for one in (method, "local", "fedavg")]
    ours, local, fedavg = (final_rows(one) for one in runs)
    return ours, local, fedavg


def differs_from_both(method: Method, **options: Any) -> bool:
    """Whether three rounds of it are neither local training nor FedAvg."""
    ours, local, fedavg = personal_and_shared(method, **options)
    return not torch.allclose(ours, local, atol=1e-4) and not torch.allclose(ours, fedavg, atol=1e-4)
