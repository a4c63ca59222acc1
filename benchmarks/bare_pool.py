"""The yardstick of two cores: bare PyTorch loops in processes of one thread each, clients dealt out beforehand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing
from torch import Tensor

from benchmarks.bare import bare_round, bare_test, load
from coterie.client.problem import Problem

Indices = npt.NDArray[np.int64]


class BareCrew:
    """Processes that each train their share of the clients; parameters go and come through shared memory.

    They start once and wait between rounds. Only the means of a process's clients come back, which is the
    least that FedAvg needs. With `tested` clients are tested when they are trained, and then the common model on
    everybody's test samples, dealt out alike.
    """

    def __init__(
        self, problem: Problem, clients: list[int], lr: float, processes: int = 2, tested: bool = False
    ) -> None:
        by_size = sorted(clients, key=lambda client: len(problem.train[client]), reverse=True)
        shares = [by_size[position::processes] for position in range(processes)]
        self._weights = [len(share) / len(clients) for share in shares]
        self._start = [_shared(parameter) for parameter in problem.module.parameters()]
        self._means = [[_shared(parameter) for parameter in self._start] for _ in shares]
        context = torch.multiprocessing.get_context("spawn")
        lean = replace(problem, train=(), validation=(), test=())
        everybody = torch.cat(problem.test).tensor_split(processes)
        self._tested = tested
        self._connections: list[Connection] = []
        self._processes = []
        for share, means, tests in zip(shares, self._means, everybody, strict=True):
            ours, theirs = context.Pipe()
            own = _Share(
                [problem.train[client].numpy() for client in share],
                [problem.test[client].numpy() for client in share] if tested else [],
                tests.numpy(),
            )
            process = context.Process(target=_serve, args=(theirs, lean, own, self._start, means, lr), daemon=True)
            process.start()
            self._connections.append(ours)
            self._processes.append(process)
        for connection in self._connections:
            connection.recv()

    def round(self) -> list[Tensor]:
        """One round from the present common model, which it replaces."""
        self._all("round")
        for start, *means in zip(self._start, *self._means, strict=True):
            start.zero_()
            for weight, mean in zip(self._weights, means, strict=True):
                start.add_(mean, alpha=weight)
        if self._tested:
            self._all("test")
        return self._start

    def _all(self, word: str) -> None:
        """Have all processes do something at the same time."""
        for connection in self._connections:
            connection.send(word)
        for connection in self._connections:
            connection.recv()

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.send("end")
        for process in self._processes:
            process.join()

    def __enter__(self) -> BareCrew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _shared(tensor: Tensor) -> Tensor:
    """A copy in shared memory, strides kept."""
    shared: Tensor = tensor.detach().clone().share_memory_()
    return shared


@dataclass(frozen=True)
class _Share:
    """What a process has to do: its clients' samples, and its part of all test samples."""

    train: list[Indices]
    test: list[Indices]
    everybody: Indices


def _serve(
    connection: Connection, problem: Problem, share: _Share, start: list[Tensor], means: list[Tensor], lr: float
) -> None:
    torch.set_num_threads(1)
    train, test = (tuple(map(torch.from_numpy, part)) for part in (share.train, share.test))
    problem, everybody = replace(problem, train=train, test=test), torch.from_numpy(share.everybody)
    connection.send("ready")
    while (word := _told(connection)) != "end":
        load(problem.module, start)
        if word == "test":
            bare_test(problem, problem.module, everybody)
        else:
            for mean, found in zip(means, bare_round(problem, list(range(len(train))), lr, bool(test)), strict=True):
                mean.copy_(found)
        connection.send("done")


def _told(connection: Connection) -> str:
    """What to do now; the end has come if nobody is left to say."""
    try:
        return str(connection.recv())
    except (EOFError, OSError):
        return "end"
