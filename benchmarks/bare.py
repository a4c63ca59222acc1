"""The yardstick: bare PyTorch loops that do the same work on the same data, and nothing else."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.client.problem import Problem

TESTED = 128  # samples at a time


def bare_round(problem: Problem, clients: list[int], lr: float, tested: bool = False) -> list[Tensor]:
    """A FedAvg round as one would write it by hand: each client from the common model, then the mean.

    With `tested` each client's model is tested on its own test samples when it is trained.
    """
    module = copy.deepcopy(problem.module)
    start = [parameter.detach().clone() for parameter in module.parameters()]
    total = [torch.zeros_like(parameter) for parameter in start]
    for client in clients:
        load(module, start)
        bare_epochs(problem, module, client, lr)
        if tested:
            bare_test(problem, module, problem.test[client])
        with torch.no_grad():
            for mean, parameter in zip(total, module.parameters(), strict=True):
                mean.add_(parameter, alpha=1 / len(clients))
    return total


def bare_epochs(problem: Problem, module: nn.Module, client: int, lr: float, forwards: int = 1) -> None:
    """A client's epochs of plain SGD; `forwards` > 1 adds gradient-free passes, as some methods need them."""
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=lr)
    own = problem.train[client]
    for _ in range(problem.training.epochs):
        for part in torch.randperm(len(own)).split(problem.training.batch):
            index = own[part]
            inputs = problem.inputs[index]
            for _ in range(forwards - 1):
                with torch.no_grad():
                    module(inputs)
            optimiser.zero_grad()
            cross_entropy(module(inputs), problem.labels[index]).backward()
            optimiser.step()


@torch.no_grad()
def load(module: nn.Module, values: list[Tensor]) -> None:
    """Give a module the values of its parameters."""
    for parameter, value in zip(module.parameters(), values, strict=True):
        parameter.copy_(value)


@torch.no_grad()
def bare_test(problem: Problem, module: nn.Module, index: Tensor) -> tuple[float, int]:
    """The summed loss of a model on samples `[n]`, and how many it gets right."""
    module.eval()
    loss, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    for part in index.split(TESTED):
        labels = problem.labels[part]
        scores = module(problem.inputs[part])
        loss += cross_entropy(scores, labels, reduction="sum")
        correct += (scores.argmax(1) == labels).sum()
    return float(loss), int(correct)
