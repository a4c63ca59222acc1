"""The common design of federated simulations, written plainly, against the same rounds here.

Every client is an object with a model of its own and files of its own. Each round it reads them anew, wraps them in
a `DataLoader`, copies the global model into its own, trains, and hands over a copy of its state; the server tests
all clients on training and test data, which are read once more. As is common, files are compressed (PFLlib and what
derives from it store them so) and the model's ReLU comes before its pooling. Nothing is transformed sample by sample,
which is in the design's favour.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.engines import LR, Setting, chosen, fastest, formats, note, on_noise, speedup, training, with_threads
from benchmarks.harness import Figure, in_turns
from coterie.setup.prepared import Prepared

BAR = 2.6
Loader = DataLoader[tuple[Tensor, ...]]


def relu_before_pooling(module: nn.Module) -> nn.Module:
    """A copy of a model in which every pooling that is followed by ReLU comes after it: the same values.

    >>> relu_before_pooling(nn.Sequential(nn.MaxPool2d(2), nn.ReLU()))
    Sequential(
      (0): ReLU()
      (1): MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
    )
    """
    module = copy.deepcopy(module)
    for part in module.modules():
        if isinstance(part, nn.Sequential):
            for place, (first, second) in enumerate(pairwise(list(part))):
                if isinstance(first, nn.MaxPool2d) and isinstance(second, nn.ReLU):
                    part[place], part[place + 1] = second, first
    return module


class Client:
    """A client with its files and its model."""

    def __init__(self, folder: Path, number: int, module: nn.Module, batch: int) -> None:
        self.folder, self.number, self.batch = folder, number, batch
        self.module = copy.deepcopy(module)

    def data(self, part: str, shuffle: bool = False) -> Loader:
        """A part of the client's data, read from its file."""
        with np.load(self.folder / f"{part}_{self.number}.npz") as file:
            samples = TensorDataset(torch.from_numpy(file["x"]), torch.from_numpy(file["y"]))
        return DataLoader(samples, batch_size=self.batch, shuffle=shuffle)

    def receive(self, state: dict[str, Tensor]) -> None:
        """Take over the global model."""
        self.module.load_state_dict(copy.deepcopy(state))

    def train(self, epochs: int) -> tuple[int, dict[str, Tensor]]:
        """Train on the client's data; the number of samples and a copy of the state."""
        loader = self.data("train", shuffle=True)
        optimiser = torch.optim.SGD(self.module.parameters(), lr=LR)
        self.module.train()
        samples = 0
        for _ in range(epochs):
            samples = 0
            for inputs, labels in loader:
                optimiser.zero_grad()
                cross_entropy(self.module(inputs), labels).backward()
                optimiser.step()
                samples += len(labels)
        return samples, copy.deepcopy(self.module.state_dict())

    def test(self, part: str) -> tuple[int, int, float]:
        """Samples, right answers and summed loss on a part of the client's data."""
        self.module.eval()
        samples, right, loss = 0, 0, 0.0
        with torch.no_grad():
            for inputs, labels in self.data(part):
                logits = self.module(inputs)
                right += int((logits.argmax(1) == labels).sum())
                loss += float(cross_entropy(logits, labels, reduction="sum"))
                samples += len(labels)
        return samples, right, loss


class Server:
    """The global model and the clients."""

    def __init__(self, prepared: Prepared, folder: Path) -> None:
        problem = prepared.problem()
        self.epochs = problem.training.epochs
        self.module = relu_before_pooling(problem.module)
        for part, indices in (("train", problem.train), ("test", problem.test)):
            for number, index in enumerate(indices):
                x, y = problem.inputs[index].numpy(), problem.labels[index].numpy()
                np.savez_compressed(folder / f"{part}_{number}.npz", x=x, y=y)
        batch = problem.training.batch
        self.clients = [Client(folder, number, self.module, batch) for number in range(len(problem.train))]

    def round(self) -> dict[str, float]:
        """Send the model, test all clients with it on both parts, train, average."""
        for client in self.clients:
            client.receive(self.module.state_dict())
        accuracy = {}
        for part in ("train", "test"):
            found = [client.test(part) for client in self.clients]
            accuracy[part] = sum(right for _, right, _ in found) / sum(samples for samples, _, _ in found)
        uploads = [client.train(self.epochs) for client in self.clients]
        total = sum(samples for samples, _ in uploads)
        mean = {name: torch.zeros_like(value) for name, value in self.module.state_dict().items()}
        for samples, state in uploads:
            for name, value in state.items():
                mean[name] += value * (samples / total)
        self.module.load_state_dict(mean)
        return accuracy


def against_dataloaders(repeats: int = 7, clients: int = 8, trained: int = 240, scale: float = 1.0) -> Iterator[Figure]:
    """A FedAvg round (cnn, batch 10) with all clients tested: ours tests received and trained models."""
    prepared = on_noise("cnn", 10, clients, trained)(scale).prepare()
    threads = torch.get_num_threads()
    kinds = [("serial", threads), *([("processes", 1)] if threads > 1 else [])]
    settings = [Setting(engine, count, memory) for engine, count in kinds for memory in formats(prepared)]
    settings = list(dict.fromkeys([*settings, chosen(prepared)]))
    with ExitStack() as stack:
        server = Server(prepared, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        engines = {str(one): stack.enter_context(training(prepared, one, evaluate_every=1)) for one in settings}
        design = "a DataLoader per client"
        seconds = in_turns({**engines, design: with_threads(threads, server.round)}, repeats, warmup=2)
    note("cnn, batch 10, all clients tested", seconds)
    best = fastest(seconds, engines)
    name = "cnn, batch 10, all clients tested: time of the DataLoader design"
    yield speedup(name, seconds[design], seconds[best], (design, best), BAR)
