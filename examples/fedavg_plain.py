"""FedAvg, written down line by line: the plain version that checks the fast one.

*Communication-efficient learning of deep networks from decentralized data* (McMahan et al., 2017).

In every round some clients download the global model w, train a copy of it on their own data, and send it back.
The server's new model is their mean, weighted by how much data each has:

    w <- sum_k n_k / (sum_j n_j) * w_k        over the clients k of this round

That is all. Nothing below is clever: every client's model is a deep copy, every batch is a line of a loop. Only
the randomness comes from Coterie, so that both versions see the same samples in the same order:

* the initial model is built after `torch.manual_seed(stream_seed(seed, "model"))`;
* the clients of round t are `draw_cohort(...)`;
* client k's batches in round t are cut from permutations out of `torch_stream(seed, "batches:0", t, key of k)`.

Run `python examples/fedavg_plain.py` for a small demonstration.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.data import Dataset, load
from coterie.models import build
from coterie.partition import Dirichlet, Partition
from coterie.rng import stream_seed, torch_stream
from coterie.rounds.sampler import draw_cohort


def fedavg(
    data: Dataset,
    partition: Partition,
    model: str,
    rounds: int,
    epochs: int,
    batch: int,
    lr: float,
    join: float = 1.0,
    seed: int = 0,
) -> nn.Module:
    """The global model after the given number of rounds."""
    torch.manual_seed(stream_seed(seed, "model"))
    server = build(model, data.shape, data.classes)

    for t in range(1, rounds + 1):
        cohort = draw_cohort(torch.from_numpy(partition.keys), join, seed, t).tolist()
        models, sizes = [], []
        for k in cohort:
            client = copy.deepcopy(server)
            own = torch.from_numpy(partition.train[k])
            stream = torch_stream(seed, "batches:0", t, int(partition.keys[k]))
            train(client, data.inputs[own], data.labels[own], epochs, batch, lr, stream)
            models.append(client)
            sizes.append(len(own))
        server = weighted_mean(models, sizes)

    return server


def train(
    model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int, batch: int, lr: float, stream: torch.Generator
) -> None:
    """Plain SGD: every epoch shuffles the samples and goes through all of them, the last small batch included."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for part in torch.randperm(len(labels), generator=stream).split(batch):
            optimiser.zero_grad()
            cross_entropy(model(inputs[part]), labels[part]).backward()
            optimiser.step()


def weighted_mean(models: list[nn.Module], sizes: list[int]) -> nn.Module:
    """The mean of the models' weights, and of their batch-norm statistics, each model weighted by its data."""
    mean = copy.deepcopy(models[0])
    states = [model.state_dict() for model in models]
    averaged = {}
    for name, tensor in mean.state_dict().items():
        if tensor.is_floating_point():
            averaged[name] = sum(n / sum(sizes) * state[name] for n, state in zip(sizes, states, strict=True))
        else:
            averaged[name] = tensor  # batch norm's count of batches, which nothing depends on
    mean.load_state_dict(averaged)
    return mean


def accuracies(model: nn.Module, data: Dataset, partition: Partition) -> list[float]:
    """The model's accuracy on every client's own test data."""
    model.eval()
    found = []
    with torch.no_grad():
        for index in partition.test:
            chosen = torch.from_numpy(index)
            right = model(data.inputs[chosen]).argmax(1) == data.labels[chosen]
            found.append(float(right.float().mean()))
    return found


def main() -> None:
    data = load("digits")
    partition = Dirichlet(clients=10, alpha=0.5)(data, seed=0)
    for rounds in (1, 5, 10):
        server = fedavg(data, partition, "mlp", rounds=rounds, epochs=2, batch=32, lr=0.1)
        found = accuracies(server, data, partition)
        print(f"{rounds:2d} rounds: mean accuracy over clients {sum(found) / len(found):.3f}, worst {min(found):.3f}")


if __name__ == "__main__":
    main()
