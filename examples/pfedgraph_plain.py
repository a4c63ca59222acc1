"""pFedGraph, written down line by line: the plain version that checks the fast one.

*Personalized Federated Learning with Inferred Collaboration Graphs* (ICML 2023).

Each client trains its own aggregated model and sends it. The server compares how the models have changed since the
common initial one, and weighs for each client how alike the others are against how much data they have: row i of the
graph minimises

    sum_j d_ij x_j + alpha * sum_j (x_j - p_j)^2        over x >= 0, sum_j x_j = 1

with d_ij = -cos(change of i, change of j), taken as -1 below -0.9, and p_j the share of the data. Client i receives the
mean of the models with these weights, and, in the same way, the mean u_i of the models scaled to length one: its local
loss is then CE(w) - lam * <u_i, w> / |w|.

What the paper leaves open is settled thus:

* with partial participation, everything is computed among this round's clients and the others are left alone;
* lengths and cosines are of parameters; batch norm's running statistics are averaged with the models;
* the regulariser turns a model towards its aggregate; a negative lam is what the authors' code does.

Run `python examples/pfedgraph_plain.py` for a small demonstration.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.rng import stream_seed, torch_stream
from coterie.rounds.sampler import draw_cohort

Named = dict[str, Tensor]
"""Tensors by name."""


@dataclass
class Outcome:
    """`models` holds every client's model after the last server step, `weights` the graph of each round, `[K, K]`."""

    models: list[Named]
    weights: list[Tensor] = field(default_factory=list)


def run(
    inputs: Tensor,
    labels: Tensor,
    train: list[Tensor],
    module: nn.Module,
    classifier: str,
    *,
    rounds: int,
    epochs: int,
    batch: int,
    lr: float,
    seed: int,
    join: float = 1.0,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    decay: float = 1.0,
    alpha: float = 0.8,
    lam: float = 0.01,
) -> Outcome:
    """Run pFedGraph; `train[k]` lists client k's samples. The method needs no classifier: `classifier` is not used."""
    K = len(train)
    skip_single = single_samples_fail(module, inputs[:1])
    initial = vector(module)
    models = [copy.deepcopy(module) for _ in range(K)]
    directions: dict[int, Tensor] = {}
    outcome = Outcome(models=[])

    for t in range(1, rounds + 1):
        rate = lr * decay ** (t - 1)
        cohort: list[int] = draw_cohort(torch.arange(K), join, seed, t).tolist()
        for k in cohort:
            torch.manual_seed(stream_seed(seed, "dropout", t, k))
            order = batches(len(train[k]), batch, epochs, torch_stream(seed, "batches:0", t, k), skip_single)
            optimiser = torch.optim.SGD(models[k].parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)
            models[k].train()
            for part in order:
                samples = train[k][part]
                optimiser.zero_grad()
                loss = cross_entropy(models[k](inputs[samples]), labels[samples])
                if k in directions:
                    w = torch.cat([parameter.reshape(-1) for parameter in models[k].parameters()])
                    loss = loss - lam * (directions[k] @ w) / w.norm()
                loss.backward()
                optimiser.step()

        trained = {k: state_of(models[k]) for k in cohort}
        w = {k: vector(models[k]) for k in cohort}
        total = sum(len(train[k]) for k in cohort)
        graph = torch.zeros(K, K, dtype=torch.float64)
        for i in cohort:
            wanted = []
            for j in cohort:
                d = -cosine(w[i] - initial, w[j] - initial)
                if d < -0.9:
                    d = -1.0
                wanted.append(len(train[j]) / total - d / (2 * alpha))
            for j, weight in zip(cohort, nearest_shares(wanted), strict=True):
                graph[i, j] = weight
        for i in cohort:
            mean = {name: sum(float(graph[i, j]) * trained[j][name].double() for j in cohort) for name in trained[i]}
            with torch.no_grad():
                for name, tensor in [*models[i].named_parameters(), *models[i].named_buffers()]:
                    if name in mean:
                        tensor.copy_(torch.as_tensor(mean[name]))
            directions[i] = sum((float(graph[i, j]) * w[j] / w[j].norm() for j in cohort), torch.tensor(0.0)).float()
        outcome.weights.append(graph)

    outcome.models = [state_of(model) for model in models]
    return outcome


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two vectors; 0 if one of them is zero, unless they are the same.

    >>> round(cosine(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])), 4)
    0.7071
    """
    if torch.equal(a, b):
        return 1.0
    lengths = float(a.double().norm() * b.double().norm())
    return float(a.double() @ b.double()) / lengths if lengths > 0 else 0.0


def nearest_shares(wanted: list[float]) -> list[float]:
    """The shares that are nearest to some numbers: what is above a level, which is found by halving an interval.

    >>> [round(share, 6) for share in nearest_shares([0.4, 0.0, -2.0])]
    [0.7, 0.3, 0.0]
    """
    low, high = min(wanted) - 1, max(wanted)
    for _ in range(200):
        level = (low + high) / 2
        if sum(max(0.0, number - level) for number in wanted) > 1:
            low = level
        else:
            high = level
    shares = [max(0.0, number - high) for number in wanted]
    return [share / sum(shares) for share in shares]


# Plain tools.


def vector(module: nn.Module) -> Tensor:
    """A copy of all parameters, one after the other."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def state_of(model: nn.Module) -> Named:
    """Parameters and float buffers by name."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in tensors if tensor.is_floating_point()}


def batches(samples: int, batch: int, epochs: int, generator: torch.Generator, skip_single: bool) -> Iterator[Tensor]:
    """Shuffled positions, batch by batch, for all epochs; the last partial batch is kept."""
    for _ in range(epochs):
        for part in torch.randperm(samples, generator=generator).split(batch):
            if len(part) > 1 or not skip_single:
                yield part


def single_samples_fail(module: nn.Module, sample: Tensor) -> bool:
    """Whether the model cannot train on one sample: batch norm over a single value has no variance."""
    try:
        with torch.no_grad():
            copy.deepcopy(module).train()(sample)
    except ValueError:
        return True
    return False


def demonstrate() -> None:
    """Eight clients with two digits each: pairs of neighbours hold the same two."""
    from coterie.data import load
    from coterie.models import build
    from coterie.partition import Pathological

    data = load("digits")
    partition = Pathological(clients=8, classes_per_client=2)(data, seed=0)
    torch.manual_seed(0)
    module = build("mlp", data.shape, data.classes)
    train = [torch.from_numpy(own) for own in partition.train]
    outcome = run(data.inputs, data.labels, train, module, "classifier", rounds=6, epochs=2, batch=16, lr=0.05, seed=0)
    for k, row in enumerate(outcome.weights[-1]):
        digits = sorted(set(data.labels[train[k]].tolist()))
        print(f"{k} {digits}: " + "  ".join(f"{j} ({share:.0%})" for j, share in enumerate(row.tolist()) if share > 0))


if __name__ == "__main__":
    demonstrate()
