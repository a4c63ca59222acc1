"""FedReMa, written down line by line: the plain version that checks the fast one.

*FedReMa: Improving Personalized Federated Learning via Leveraging the Most Relevant Clients* (ECAI 2024).
Equation and algorithm numbers refer to the paper.

The extractor theta is averaged as in FedAvg. The server feeds one random feature vector to all uploaded
classifiers phi; clients whose answers resemble each other are relevant to each other, and the largest gap in
the sorted similarities says where relevance ends (MDS). Once the gaps have shrunk, the critical co-learning
period (CCP) is over for good, and classifiers are mixed by how often each peer was chosen during it.

What the paper leaves open is settled thus:

* Algorithm 1 returns the clients strictly above the largest gap, and the gap below the client itself does not
  count, so every client has a peer (include_lower adds the client just below the gap);
* (8) is the mean over the clients; (9) compares it with the maximum that includes the current round;
* one random vector a round serves all clients, and the temperature applies to both sides of (5);
* if all similarities are equal all are relevant and the gap is 0; so with fewer than three clients, but such a
  round says nothing about gaps and does not enter (9);
* with partial participation, similarities and MDS are among this round's clients; (10) mixes each client's last
  uploaded classifier; clients that sit out keep the classifier they hold;
* batch norm's running statistics stay with the client.

Variants: "F" pulls features towards the global prototypes of their classes (11), "A" trains the classifier
first and then the extractor, "A&F" does both, with the pull while the extractor is trained. A global prototype is
the mean feature of all samples of the class at this round's clients, under their trained extractors; a class that
none of them holds keeps its last prototype.

Run `python examples/fedrema_plain.py` for a small demonstration.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.rng import stream_seed, torch_stream
from coterie.rounds.sampler import draw_cohort

Named = dict[str, Tensor]
"""Tensors by name."""

Optimiser = Callable[..., torch.optim.Optimizer]
"""Makes an optimiser from parameters and a rate."""


@dataclass
class Client:
    """What a client holds: extractor theta (with nothing in the classifier's place) and classifier phi."""

    extractor: nn.Module
    head: nn.Module


@dataclass
class Outcome:
    """The result of a run.

    `models` holds every client's model after the last server step. Per round: `weights` the `[K, K]` matrix of
    (7) or (10) (a row of zeros: the client sat out), `gaps` the mean gap (8) while there was one, `critical`
    whether the round belonged to it. `chosen [K, K]` is the dependency map G.
    """

    models: list[Named]
    weights: list[Tensor] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    critical: list[bool] = field(default_factory=list)
    chosen: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    prototypes: dict[int, Tensor] = field(default_factory=dict)


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
    delta: float = 0.5,
    temperature: float = 0.5,
    variant: str = "",
    alignment: float = 1.0,
    probe: str = "shared",
    probe_high: float = 1.0,
    num_probes: int = 1,
    include_lower: bool = False,
) -> Outcome:
    """Run FedReMa; `train[k]` lists client k's samples and `classifier` is the path of phi in `module`."""
    if variant not in ("", "F", "A", "A&F"):
        raise ValueError(f"variant = {variant}: allowed: '', 'F', 'A', 'A&F'")
    K = len(train)
    sizes = [len(own) for own in train]
    skip_single = single_samples_fail(module, inputs[:1])
    sgd = partial(torch.optim.SGD, momentum=momentum, weight_decay=weight_decay)

    clients = [Client(*split(module, classifier)) for _ in range(K)]
    theta = parameters_of(clients[0].extractor)
    width = features_of(clients[0].extractor, inputs[:1]).shape[1]
    phi_hat: dict[int, Named] = {}  # the server's memory: each client's last uploaded classifier
    G = torch.zeros(K, K, dtype=torch.float64)
    critical = True
    prototypes: dict[int, Tensor] = {}
    outcome = Outcome(models=[])

    # Algorithm 2.
    for t in range(1, rounds + 1):
        rate = lr * decay ** (t - 1)
        cohort: list[int] = draw_cohort(torch.arange(K), join, seed, t).tolist()
        for k in cohort:
            torch.manual_seed(stream_seed(seed, "dropout", t, k))
            client, x, y = clients[k], inputs[train[k]], labels[train[k]]
            install(theta, client.extractor)
            streams = [torch_stream(seed, f"batches:{phase}", t, k) for phase in (0, 1)]
            orders = [batches(len(y), batch, epochs, stream, skip_single) for stream in streams]
            if variant in ("A", "A&F"):
                fit_head(client, x, y, orders[0], rate, sgd)
                pull = prototypes if variant == "A&F" else {}
                fit(client, client.extractor, pull, alignment, x, y, orders[1], rate, sgd)
            else:
                pull = prototypes if variant == "F" else {}
                fit(client, nn.ModuleList([client.extractor, client.head]), pull, alignment, x, y, orders[0], rate, sgd)
            phi_hat[k] = parameters_of(client.head)

        if variant in ("F", "A&F"):
            prototypes |= class_means(
                [clients[k].extractor for k in cohort], [train[k] for k in cohort], inputs, labels
            )

        # (6): FedAvg on the extractors.
        trained = [parameters_of(clients[k].extractor) for k in cohort]
        shares = [sizes[k] / sum(sizes[j] for j in cohort) for k in cohort]
        theta = {name: weighted_mean([row[name] for row in trained], shares) for name in theta}

        P = torch.zeros(K, K, dtype=torch.float64)
        outcome.critical.append(critical)
        if critical:
            heads = {k: clients[k].head for k in cohort}
            vectors = draw_probes(cohort, width, probe, num_probes, probe_high, seed, t)
            S = similarities(heads, vectors, temperature)
            gaps = []
            for k in cohort:
                relevant, gap = mds(S[k], k, include_lower)
                gaps.append(gap)
                samples = sum(sizes[i] for i in relevant)
                for i in relevant:
                    P[k, i] = sizes[i] / samples  # (7)
                    G[k, i] += 1
            if len(cohort) > 2:
                outcome.gaps.append(sum(gaps) / len(gaps))  # (8)
                critical = still_critical(outcome.gaps, delta)
        else:
            for k in cohort:
                if G[k].sum() > 0:
                    P[k] = G[k] / G[k].sum()  # (10)
                else:
                    P[k, k] = 1.0  # never took part while the period lasted
        outcome.weights.append(P)

        # All new classifiers are computed from the uploads before any is installed.
        phi = {k: mix(phi_hat, P[k]) for k in cohort}
        for k in cohort:
            install(phi[k], clients[k].head)

    for client in clients:
        install(theta, client.extractor)
        outcome.models.append(state_of(client, classifier))
    outcome.chosen, outcome.prototypes = G, prototypes
    return outcome


# The client.


def fit(
    client: Client,
    trained: nn.Module,
    prototypes: dict[int, Tensor],
    alignment: float,
    inputs: Tensor,
    labels: Tensor,
    order: Iterator[Tensor],
    rate: float,
    sgd: Optimiser,
) -> None:
    """Train the parameters of `trained` with cross-entropy and, where prototypes are given, the pull of (11)."""
    client.extractor.train()
    client.head.train()
    optimiser = sgd(trained.parameters(), lr=rate)
    for part in order:
        client.extractor.zero_grad()
        client.head.zero_grad()
        z = client.extractor(inputs[part])
        y = labels[part]
        loss = cross_entropy(client.head(z), y)
        if prototypes:
            pulls = []
            for feature, label in zip(z, y.tolist(), strict=True):
                target = prototypes.get(label, feature.detach())  # no prototype, no pull
                pulls.append(((target - feature) ** 2).mean())
            loss = loss + alignment * torch.stack(pulls).mean()
        loss.backward()
        optimiser.step()


def fit_head(
    client: Client, inputs: Tensor, labels: Tensor, order: Iterator[Tensor], rate: float, sgd: Optimiser
) -> None:
    """Train the classifier alone, on the frozen extractor's features."""
    features = features_of(client.extractor, inputs)
    client.head.train()
    optimiser = sgd(client.head.parameters(), lr=rate)
    for part in order:
        optimiser.zero_grad()
        cross_entropy(client.head(features[part]), labels[part]).backward()
        optimiser.step()


def class_means(extractors: list[nn.Module], train: list[Tensor], inputs: Tensor, labels: Tensor) -> dict[int, Tensor]:
    """The mean feature of every class at the given clients, all samples counted alike."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for extractor, own in zip(extractors, train, strict=True):
        for feature, label in zip(features_of(extractor, inputs[own]).double(), labels[own].tolist(), strict=True):
            sums[label] = sums.get(label, 0) + feature
            counts[label] = counts.get(label, 0) + 1
    return {label: (total / counts[label]).to(inputs.dtype) for label, total in sums.items()}


# The server.


def draw_probes(
    cohort: list[int], width: int, probe: str, count: int, high: float, seed: int, t: int
) -> dict[int, Tensor]:
    """The random feature vectors of round t for every client's row of similarities: `[count, width]` each."""
    if probe not in ("shared", "per_row"):
        raise ValueError(f"probe = {probe}: allowed: shared, per_row")
    vectors = {}
    for k in cohort:
        stream = torch_stream(seed, "probe", t) if probe == "shared" else torch_stream(seed, "probe", t, k)
        vectors[k] = torch.rand(count, width, generator=stream) * high
    return vectors


def similarities(
    heads: dict[int, nn.Module], vectors: dict[int, Tensor], temperature: float
) -> dict[int, dict[int, float]]:
    """`S[k][i]`: the cosine of soft logits (5), averaged over the probe vectors of row k; 1 for the client itself."""
    S: dict[int, dict[int, float]] = {}
    for k in heads:
        logits = {}
        for i, head in heads.items():
            head.eval()
            with torch.no_grad():
                logits[i] = head(vectors[k]).double()
        S[k] = {}
        for i in heads:
            total = 0.0
            for z_k, z_i in zip(logits[k], logits[i], strict=True):
                if torch.isfinite(z_k).all() and torch.isfinite(z_i).all():  # a diverged client resembles nobody
                    p_k, p_i = torch.softmax(z_k / temperature, 0), torch.softmax(z_i / temperature, 0)
                    total += float((p_k @ p_i) / (p_k.norm() * p_i.norm()))
            S[k][i] = 1.0 if i == k else total / len(vectors[k])
    return S


def mds(s: dict[int, float], k: int, include_lower: bool = False) -> tuple[list[int], float]:
    """Maximum difference segmentation, Algorithm 1: the clients relevant to client k, and the largest gap.

    >>> mds({0: 0.1, 1: 0.2, 2: 0.8, 3: 0.9, 4: 1.0}, k=4)
    ([2, 3, 4], 0.6000000000000001)
    """
    everyone = sorted(s)
    ranked = [*sorted((i for i in everyone if i != k), key=lambda i: s[i]), k]  # ascending, the client itself last
    gaps = [s[ranked[m + 1]] - s[ranked[m]] for m in range(len(ranked) - 2)]  # without the gap below k
    if not gaps or max(gaps) <= 1e-12:
        return everyone, 0.0
    m = gaps.index(max(gaps))
    return sorted(ranked[m if include_lower else m + 1 :]), gaps[m]


def still_critical(gaps: list[float], delta: float) -> bool:
    """Whether the critical co-learning period goes on after the rounds with these mean gaps: (9)."""
    return max(gaps) == 0 or delta == 0 or gaps[-1] / max(gaps) > delta


def mix(phi_hat: dict[int, Named], weights: Tensor) -> Named:
    """The weighted mean of uploaded classifiers: (7) and (10); `weights` is one row of the matrix."""
    used = [i for i in sorted(phi_hat) if weights[i] > 0]
    assert math.isclose(sum(float(weights[i]) for i in used), 1.0, abs_tol=1e-6)
    shares = [float(weights[i]) for i in used]
    return {name: weighted_mean([phi_hat[i][name] for i in used], shares) for name in phi_hat[used[0]]}


# Plain tools.


def features_of(extractor: nn.Module, inputs: Tensor) -> Tensor:
    """Features in evaluation mode, without gradients."""
    extractor.eval()
    with torch.no_grad():
        features: Tensor = extractor(inputs)
    return features


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
    print("critical co-learning period in rounds", [t for t, critical in enumerate(outcome.critical, 1) if critical])
    print("in the last round, client k's classifier came from")
    for k, row in enumerate(outcome.weights[-1]):
        print(f"  {k}: " + "  ".join(f"{i} ({p:.0%})" for i, p in enumerate(row.tolist()) if p > 0))


if __name__ == "__main__":
    demonstrate()
