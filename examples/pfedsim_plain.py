"""pFedSim, written down line by line: the plain version that checks the fast one.

*pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning* (arXiv 2305.15706).
Equation and algorithm numbers refer to the paper.

The first floor(rho * T) rounds are FedAvg. Then every client gets a copy of the global model, and from there on
the server mixes extractors omega only, in proportion to the similarity Phi of the clients' classifiers. The
classifiers varphi themselves are never mixed.

What the paper leaves open is settled thus:

* `similarity="code"` (default) averages the cosines over the classes, clips at zero and then takes the logarithm, as
  the authors' implementation does; `"paper"` is (3) as printed: clip and logarithm class by class;
* Phi's diagonal is a constant (the formula would be infinite): -log(1e-4) = 9.2103 for `"code"`, 1 for `"paper"`;
* cosines are at most 1 - 2**-23, so equal classifiers have a finite similarity; only weights enter, no biases;
* a pair that was never drawn in the same round has similarity 0: it does not collaborate;
* batch norm's running statistics stay with the client.

Run `python examples/pfedsim_plain.py` for a small demonstration.
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
class Client:
    """A model in two parts: extractor omega (with nothing in the classifier's place) and classifier varphi."""

    extractor: nn.Module
    head: nn.Module


@dataclass
class Outcome:
    """The result of a run.

    `models` are what the clients would download next: (4) applied to everybody, in the first phase the global
    model. `stored` are the server's models of all clients, without (4). `similarity [K, K]` is Phi, and
    `weights[t]` the `[K, K]` matrix of (4) for round t of the second phase (a row of zeros: the client sat out);
    the entry after the last round made `models`.
    """

    models: list[Named]
    stored: list[Named]
    similarity: Tensor
    weights: dict[int, Tensor] = field(default_factory=dict)


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
    rho: float = 0.5,
    similarity: str = "code",
    self_weight: float | None = None,
) -> Outcome:
    """Run pFedSim; `train[k]` lists client k's samples and `classifier` is the path of varphi in `module`."""
    if similarity not in ("code", "paper"):
        raise ValueError(f"similarity = {similarity}: allowed: code, paper")
    K = len(train)
    sizes = [len(own) for own in train]
    skip_single = single_samples_fail(module, inputs[:1])
    if self_weight is None:
        self_weight = -math.log(1e-4) if similarity == "code" else 1.0

    clients = [Client(*split(module, classifier)) for _ in range(K)]
    T_g = math.floor(rho * rounds + 1e-9)  # 0.29 * 100 is 28.999…

    def train_client(k: int, t: int) -> None:
        """ClientUpdate: all parameters jointly, with cross-entropy."""
        torch.manual_seed(stream_seed(seed, "dropout", t, k))
        client, rate = clients[k], lr * decay ** (t - 1)
        order = batches(len(train[k]), batch, epochs, torch_stream(seed, "batches:0", t, k), skip_single)
        parameters = [*client.extractor.parameters(), *client.head.parameters()]
        optimiser = torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay)
        client.extractor.train()
        client.head.train()
        for part in order:
            samples = train[k][part]
            optimiser.zero_grad()
            cross_entropy(client.head(client.extractor(inputs[samples])), labels[samples]).backward()
            optimiser.step()

    # Generalization phase: Algorithm 1, FedAvg.
    omega, phi = parameters_of(clients[0].extractor), parameters_of(clients[0].head)
    for t in range(1, T_g + 1):
        cohort: list[int] = draw_cohort(torch.arange(K), join, seed, t).tolist()
        for k in cohort:
            install(omega, clients[k].extractor)
            install(phi, clients[k].head)
            train_client(k, t)
        shares = {k: sizes[k] / sum(sizes[j] for j in cohort) for k in cohort}
        omega = mix({k: parameters_of(clients[k].extractor) for k in cohort}, shares)
        phi = mix({k: parameters_of(clients[k].head) for k in cohort}, shares)

    # Personalization phase: Algorithm 2. Sampled or not, every client starts from the global model.
    omegas = dict.fromkeys(range(K), omega)
    phis = dict.fromkeys(range(K), phi)
    Phi = torch.zeros(K, K, dtype=torch.float64)
    for k in range(K):
        Phi[k, k] = self_weight
    outcome = Outcome(models=[], stored=[], similarity=Phi)

    for t in range(T_g + 1, rounds + 1):
        cohort = draw_cohort(torch.arange(K), join, seed, t).tolist()
        # What everybody gets is computed from the store before anybody trains.
        outcome.weights[t] = P = mixing_weights(Phi, cohort)
        for k in cohort:
            install(mix(omegas, {j: float(P[k, j]) for j in range(K)}), clients[k].extractor)  # (4)
            install(phis[k], clients[k].head)
        for k in cohort:
            train_client(k, t)
        for k in cohort:
            omegas[k], phis[k] = parameters_of(clients[k].extractor), parameters_of(clients[k].head)
        for i in cohort:
            for j in cohort:
                if i != j:
                    Phi[i, j] = classifier_similarity(class_rows(phis[i]), class_rows(phis[j]), similarity)

    outcome.weights[rounds + 1] = P = mixing_weights(Phi, list(range(K)))
    for k in range(K):
        install(phis[k], clients[k].head)
        install(omegas[k], clients[k].extractor)
        outcome.stored.append(state_of(clients[k], classifier))
        install(mix(omegas, {j: float(P[k, j]) for j in range(K)}), clients[k].extractor)
        outcome.models.append(state_of(clients[k], classifier))
    return outcome


def class_rows(phi: Named) -> Tensor:
    """The weight of the classifier's (last) linear layer, one row a class: `[C, d]`."""
    return [tensor for tensor in phi.values() if tensor.ndim == 2][-1].double()


def classifier_similarity(rows_i: Tensor, rows_j: Tensor, similarity: str = "code") -> float:
    """The similarity of two classifiers: (3), or the order of operations of the authors' code.

    >>> a, b = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    >>> round(classifier_similarity(a, b, "paper"), 4)  # (-log(2**-23) - log(1)) / 2
    7.9712
    >>> round(classifier_similarity(a, a, "code"), 4)  # -log(2**-23)
    15.9424
    """
    cosines = []
    for a, b in zip(rows_i.double(), rows_j.double(), strict=True):
        cosine = float((a @ b) / (a.norm() * b.norm() + 1e-8))
        cosines.append(min(cosine, 1 - 2**-23))
    if similarity == "paper":
        return -sum(math.log(1 - max(0.0, cosine)) for cosine in cosines) / len(cosines)
    return -math.log(1 - max(0.0, sum(cosines) / len(cosines)))


def mixing_weights(Phi: Tensor, clients: list[int]) -> Tensor:
    """The rows of Phi, each divided by its sum, for the given clients; the other rows are zero: (4)."""
    P = torch.zeros_like(Phi)
    for i in clients:
        P[i] = Phi[i] / Phi[i].sum()
    return P


def mix(parts: dict[int, Named], shares: dict[int, float]) -> Named:
    """The weighted mean of a part of the models."""
    assert math.isclose(sum(shares.values()), 1.0, abs_tol=1e-6)
    used = [k for k in shares if shares[k] > 0]
    names = parts[used[0]]
    return {name: weighted_mean([parts[k][name] for k in used], [shares[k] for k in used]) for name in names}


# Plain tools.


def split(module: nn.Module, classifier: str) -> tuple[nn.Module, nn.Module]:
    """A copy of the model in two parts: extractor and classifier."""
    extractor = copy.deepcopy(module)
    head = extractor.get_submodule(classifier)
    parent, _, name = classifier.rpartition(".")
    setattr(extractor.get_submodule(parent), name, nn.Identity())
    return extractor, head


def parameters_of(module: nn.Module) -> Named:
    """A copy of the parameters."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def install(values: Named, module: nn.Module) -> None:
    """Overwrite the parameters; buffers (batch norm's statistics) stay."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values[name])


def state_of(client: Client, classifier: str) -> Named:
    """The client's parameters and float buffers under their names in the whole model."""
    state = {}
    for prefix, part in (("", client.extractor), (f"{classifier}.", client.head)):
        for name, tensor in [*part.named_parameters(), *part.named_buffers()]:
            if tensor.is_floating_point():
                state[prefix + name] = tensor.detach().clone()
    return state


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
    outcome = run(data.inputs, data.labels, train, module, "classifier", rounds=8, epochs=2, batch=16, lr=0.05, seed=0)

    for k, model in enumerate(outcome.models):
        module.load_state_dict(model, strict=False)
        module.eval()
        test = torch.from_numpy(partition.test[k])
        hits = module(data.inputs[test]).argmax(1) == data.labels[test]
        digits = sorted(set(data.labels[train[k]].tolist()))
        print(f"client {k}  digits {digits}  accuracy {hits.float().mean():.3f}")
    print("next, client k's extractor would come from")
    for k, row in enumerate(outcome.weights[max(outcome.weights)]):
        print(f"  {k}: " + "  ".join(f"{i} ({p:.0%})" for i, p in enumerate(row.tolist()) if p > 0))


if __name__ == "__main__":
    demonstrate()
