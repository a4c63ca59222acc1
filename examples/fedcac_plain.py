"""FedCAC, written down line by line: the plain version that checks the fast one.

*Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through Cautiously Aggressive
Collaboration* (ICCV 2023). Equation numbers refer to the paper.

Each client marks the parameters that its own training moved most: they are critical, the others are not.
Non-critical parameters are averaged over everybody. Critical ones are averaged over the clients whose critical
parameters lie in the same places; the required overlap grows with the rounds, and after round beta critical
parameters are the client's own.

What the paper leaves open is settled thus:

* a "layer" is one named parameter tensor; of n elements int(tau * n) are critical, and ties with the last of them;
* the overlap printed in the paper is a difference. The similarity 1 - |M_i - M_j| / (2 |M_i|) is used, which is 1 for
  equal masks and 0 for disjoint ones of equal size;
* the threshold (7) is one for all clients; after round beta nobody collaborates;
* both means, (9) and (10), are uniform; weights="size" weighs (9) by the clients' samples, as the authors' code does;
* elements that never moved would be critical by a tie at zero: there the threshold is the smallest sensitivity that
  is not zero, and of a tensor that did not move at all nothing is critical (unless tau is 1);
* with partial participation, everything is computed among this round's clients and the others are left alone;
* batch norm's scale and shift are ordinary tensors, its running statistics stay with the client.

Run `python examples/fedcac_plain.py` for a small demonstration.
"""

from __future__ import annotations

import copy
import math
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
    """The result of a run.

    `models` holds every client's model after the last server step. Per round: `weights` the `[K, K]` matrix of
    (10) (a row of zeros: the client sat out). `masks` are each client's last critical parameters.
    """

    models: list[Named]
    weights: list[Tensor] = field(default_factory=list)
    masks: dict[int, Named] = field(default_factory=dict)


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
    tau: float = 0.5,
    beta: int = 100,
    mask: str = "sensitivity",
    collaboration: str = "threshold",
    weights: str = "uniform",
) -> Outcome:
    """Run FedCAC; `train[k]` lists client k's samples. The method needs no classifier: `classifier` is not used."""
    K = len(train)
    sizes = [len(own) for own in train]
    skip_single = single_samples_fail(module, inputs[:1])

    models = [copy.deepcopy(module) for _ in range(K)]
    outcome = Outcome(models=[])

    # Algorithm 1.
    for t in range(1, rounds + 1):
        rate = lr * decay ** (t - 1)
        cohort: list[int] = draw_cohort(torch.arange(K), join, seed, t).tolist()

        w: dict[int, Named] = {}
        M: dict[int, Named] = {}
        for k in cohort:
            torch.manual_seed(stream_seed(seed, "dropout", t, k))
            start = parameters_of(models[k])
            order = batches(len(train[k]), batch, epochs, torch_stream(seed, "batches:0", t, k), skip_single)
            optimiser = torch.optim.SGD(models[k].parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)
            models[k].train()
            for part in order:
                samples = train[k][part]
                optimiser.zero_grad()
                cross_entropy(models[k](inputs[samples]), labels[samples]).backward()
                optimiser.step()
            w[k] = parameters_of(models[k])
            M[k] = critical_parameters(start, w[k], tau, mask, torch_stream(seed, "mask", t, k))
        outcome.masks |= M

        overlap = overlaps(M)
        C = collaborators(overlap, t, beta, collaboration)
        if weights == "size":
            shares = {k: sizes[k] / sum(sizes[j] for j in cohort) for k in cohort}
        else:
            shares = {k: 1 / len(cohort) for k in cohort}
        w_bar = mix(w, shares)  # (9)
        P = torch.zeros(K, K, dtype=torch.float64)
        for i in cohort:
            group = sorted([i, *C[i]])
            for j in group:
                P[i, j] = 1 / len(group)
            u = mix(w, {j: 1 / len(group) for j in group})  # (10)
            others = u if collaboration == "as_critical" else w_bar
            with torch.no_grad():
                for name, parameter in models[i].named_parameters():
                    parameter.copy_(torch.where(M[i][name], u[name], others[name]))  # (11)
        outcome.weights.append(P)

    outcome.models = [state_of(model) for model in models]
    return outcome


def critical_parameters(start: Named, end: Named, tau: float, mask: str, stream: torch.Generator) -> Named:
    """Which parameters are critical, tensor by tensor, from the values before and after training: (5) and (6)."""
    M = {}
    for name in end:
        sensitivity = ((end[name] - start[name]) * end[name]).abs()  # (5)
        if mask == "sensitivity":
            M[name] = top(sensitivity, tau)
        elif mask == "reverse":
            M[name] = bottom(sensitivity, tau)
        elif mask == "random":
            M[name] = top(torch.rand(sensitivity.numel(), generator=stream).reshape(sensitivity.shape), tau)
        else:
            raise ValueError(f"mask = {mask}: allowed: sensitivity, random, reverse")
    return M


def top(scores: Tensor, tau: float) -> Tensor:
    """The int(tau * n) largest of n scores, with ties: (6).

    >>> top(torch.tensor([0.1, 0.4, 0.3, 0.2]), 0.5)
    tensor([False,  True,  True, False])
    >>> top(torch.tensor([0.0, 0.0, 0.0, 0.2]), 0.5)
    tensor([False, False, False,  True])
    """
    count = int(tau * scores.numel())
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = scores.flatten().sort(descending=True).values[count - 1]
    if threshold == 0 and count < scores.numel():
        moved = scores[scores > 0]
        threshold = moved.min() if len(moved) > 0 else torch.tensor(math.inf)
    return scores >= threshold


def bottom(scores: Tensor, tau: float) -> Tensor:
    """The int(tau * n) smallest of n scores, with ties."""
    count = int(tau * scores.numel())
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    return scores <= scores.flatten().sort().values[count - 1]


def overlaps(M: dict[int, Named]) -> dict[int, dict[int, float]]:
    """`overlap[i][j]`: how much of client i's critical parameters lies where client j's do; none if there are none."""
    overlap: dict[int, dict[int, float]] = {}
    for i in M:
        overlap[i] = {}
        critical = sum(int(mask.sum()) for mask in M[i].values())
        for j in M:
            different = sum(int((M[i][name] != M[j][name]).sum()) for name in M[i])
            both = critical > 0 and any(bool(mask.any()) for mask in M[j].values())
            overlap[i][j] = 1 - different / (2 * critical) if both else 0.0
    return overlap


def threshold(overlap: dict[int, dict[int, float]], t: int, beta: int) -> float:
    """The overlap that collaborators need in round t: (7)."""
    pairs = [overlap[i][j] for i in overlap for j in overlap if i != j]
    average = sum(pairs) / len(pairs)
    return average + t / beta * (max(pairs) - average)


def collaborators(overlap: dict[int, dict[int, float]], t: int, beta: int, collaboration: str) -> dict[int, list[int]]:
    """The clients with whom each client shares its critical parameters: (8)."""
    C: dict[int, list[int]] = {i: [] for i in overlap}
    if len(overlap) == 1 or collaboration == "none":
        return C
    for i in overlap:
        others = [j for j in sorted(overlap) if j != i]
        if collaboration in ("top1", "top5"):
            nearest_first = sorted(others, key=lambda j: -overlap[i][j])
            C[i] = sorted(nearest_first[: int(collaboration[3:])])
        elif collaboration in ("threshold", "as_critical"):
            if t <= beta:
                # The slack is for round beta, in which the best pair meets the threshold exactly.
                least = threshold(overlap, t, beta) - 1e-7
                C[i] = [j for j in others if overlap[i][j] >= least]
        else:
            raise ValueError(f"collaboration = {collaboration}: allowed: threshold, none, top1, top5, as_critical")
    return C


def mix(w: dict[int, Named], shares: dict[int, float]) -> Named:
    """The weighted mean of whole models: (9) and (10)."""
    assert math.isclose(sum(shares.values()), 1.0, abs_tol=1e-6)
    names = next(iter(w.values()))
    return {name: weighted_mean([w[k][name] for k in shares], list(shares.values())) for name in names}


# Plain tools.


def parameters_of(module: nn.Module) -> Named:
    """A copy of the parameters."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def install(values: Named, module: nn.Module) -> None:
    """Overwrite the parameters; buffers (batch norm's statistics) stay."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values[name])


def state_of(model: nn.Module) -> Named:
    """Parameters and float buffers by name."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in tensors if tensor.is_floating_point()}


def weighted_mean(tensors: list[Tensor], weights: list[float]) -> Tensor:
    """The sum of tensors times weights, accumulated in float64."""
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor, weight in zip(tensors, weights, strict=True):
        total += weight * tensor.double()
    return total.to(tensors[0].dtype)


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
    outcome = run(
        data.inputs, data.labels, train, module, "classifier", rounds=8, epochs=2, batch=16, lr=0.05, seed=0, beta=6
    )

    for k, model in enumerate(outcome.models):
        module.load_state_dict(model, strict=False)
        module.eval()
        test = torch.from_numpy(partition.test[k])
        hits = module(data.inputs[test]).argmax(1) == data.labels[test]
        digits = sorted(set(data.labels[train[k]].tolist()))
        print(f"client {k}  digits {digits}  accuracy {hits.float().mean():.3f}")
    for t in (1, len(outcome.weights)):
        print(f"round {t}: client k's critical parameters came from")
        for k, row in enumerate(outcome.weights[t - 1]):
            print(f"  {k}: " + "  ".join(f"{i} ({p:.0%})" for i, p in enumerate(row.tolist()) if p > 0))


if __name__ == "__main__":
    demonstrate()
