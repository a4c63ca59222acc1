"""PFedCS, written down line by line: the plain version that checks the fast one.

*PFedCS: A Personalized Federated Learning Method for Enhancing Collaboration among Similar Classifiers*
(AAAI 2025). Equation numbers refer to the paper.

The extractor w_f is averaged as in FedAvg. In stage 1 (rounds 1..beta) the server compares the clients'
classifiers w_g, finds each client's collaborators, and mixes their classifiers into a *teacher* v: the client
tunes v on its own data and then trains under its guidance. The teacher is never installed as the client's
classifier. Stage 2 (the other rounds) is FedPer: the classifier stays at home.

What the paper leaves open is settled thus:

* the distance of two classifiers sums over all classes, uses weights only, and is divided by its row's maximum;
  the mix (6) takes weights and biases;
* the first round has no teacher, since all classifiers are still the common initial one;
* stage 1 lasts while t <= beta; beta = T and lambda = 0.5 unless given. With `selection="none"` there are no
  teachers at all, which is FedPer;
* weights (7) do not sum to one as printed once client k itself is added in (6). By default every sum in (7)-(8)
  runs over the collaborators *and* k, with D[k][k] = 0 (`weights="self_inclusive"`);
* with partial participation, the last uploaded classifier of every client takes part. A client that never
  uploaded one has no teacher and trains with cross-entropy alone;
* batch norm's running statistics stay with the client.

Run `python examples/pfedcs_plain.py` for a small demonstration.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from coterie.rng import numpy_stream, stream_seed, torch_stream
from coterie.rounds.sampler import draw_cohort

Named = dict[str, Tensor]
"""Tensors by name."""

Optimiser = Callable[..., torch.optim.Optimizer]
"""Makes an optimiser from parameters and a rate."""

TINY = 1e-12


@dataclass
class Client:
    """What a client keeps: extractor w_f (with nothing in the classifier's place) and classifier w_g."""

    extractor: nn.Module
    head: nn.Module


@dataclass
class Outcome:
    """The result of a run.

    `models` holds every client's model after the last server step. `teachers[t][k]` is the classifier v that the
    server made for client k in round t, before tuning, and `weights[t]` the `[K, K]` matrix of (6) that made it
    (a row of zeros: no teacher). If stage 1 is not over at the end, the entry for the round to come is there too.
    """

    models: list[Named]
    teachers: dict[int, dict[int, Named]] = field(default_factory=dict)
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
    beta: int | None = None,
    lam: float = 0.5,
    rho: int | None = None,
    selection: str = "gmm",
    weights: str = "self_inclusive",
    kl: float = 1.0,
    dist_power: int = 2,
) -> Outcome:
    """Run PFedCS; `train[k]` lists client k's samples and `classifier` is the path of w_g in `module`."""
    rho = epochs if rho is None else rho
    K = len(train)
    sizes = [len(own) for own in train]
    stage_one_rounds = rounds if beta is None else beta
    if selection == "none":
        stage_one_rounds = 0
    skip_single = single_samples_fail(module, inputs[:1])
    sgd = partial(torch.optim.SGD, momentum=momentum, weight_decay=weight_decay)

    clients = [Client(*split(module, classifier)) for _ in range(K)]
    global_extractor = parameters_of(clients[0].extractor)
    uploaded: dict[int, Named] = {}  # the server's memory: each client's last uploaded classifier
    teachers: dict[int, Named] = {}  # the teachers of the coming round
    outcome = Outcome(models=[])

    for t in range(1, rounds + 1):
        rate = lr * decay ** (t - 1)
        in_stage_one = t <= stage_one_rounds
        teaching = in_stage_one and t > 1
        cohort: list[int] = draw_cohort(torch.arange(K), join, seed, t).tolist()

        for k in cohort:
            torch.manual_seed(stream_seed(seed, "dropout", t, k))
            client = clients[k]
            own = train[k]
            install(global_extractor, client.extractor)

            teacher = None
            if teaching and k in teachers:
                teacher = copy.deepcopy(client.head)
                install(teachers[k], teacher)
            if teacher is not None and rho > 0:
                order = batches(len(own), batch, rho, torch_stream(seed, "batches:1", t, k), skip_single)
                tune(client.extractor, teacher, inputs[own], labels[own], order, rate, sgd)

            order = batches(len(own), batch, epochs, torch_stream(seed, "batches:0", t, k), skip_single)
            fit(client, teacher, kl, inputs[own], labels[own], order, rate, sgd)
            if in_stage_one:
                uploaded[k] = parameters_of(client.head)

        # FedAvg on the extractors.
        trained = [parameters_of(clients[k].extractor) for k in cohort]
        shares = [sizes[k] / sum(sizes[j] for j in cohort) for k in cohort]
        global_extractor = {name: weighted_mean([row[name] for row in trained], shares) for name in global_extractor}

        # The teachers of the coming round, whose number enters (4).
        if t + 1 <= stage_one_rounds:
            P = mixing_weights(uploaded, sizes, t + 1, stage_one_rounds, lam, selection, weights, dist_power, seed)
            teachers = {k: mix(uploaded, P[k]) for k in uploaded}
            outcome.teachers[t + 1] = teachers
            outcome.weights[t + 1] = as_matrix(P, K)

    for client in clients:
        install(global_extractor, client.extractor)
        outcome.models.append(state_of(client, classifier))
    return outcome


def tune(
    extractor: nn.Module,
    teacher: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    order: Iterator[Tensor],
    rate: float,
    sgd: Optimiser,
) -> None:
    """Fine-tune the teacher on frozen features: (9) and (10)."""
    extractor.eval()
    with torch.no_grad():
        features = extractor(inputs)
    teacher.train()
    optimiser = sgd(teacher.parameters(), lr=rate)
    for part in order:
        optimiser.zero_grad()
        cross_entropy(teacher(features[part]), labels[part]).backward()
        optimiser.step()


def fit(
    client: Client,
    teacher: nn.Module | None,
    kl: float,
    inputs: Tensor,
    labels: Tensor,
    order: Iterator[Tensor],
    rate: float,
    sgd: Optimiser,
) -> None:
    """Train extractor and classifier with cross-entropy, and the frozen teacher's guidance: (11) to (13)."""
    client.extractor.train()
    client.head.train()
    if teacher is not None:
        teacher.eval()
    optimiser = sgd([*client.extractor.parameters(), *client.head.parameters()], lr=rate)
    for part in order:
        optimiser.zero_grad()
        z = client.extractor(inputs[part])
        logits = client.head(z)
        loss = cross_entropy(logits, labels[part])
        if teacher is not None and kl > 0:
            # The teacher sees the moving features, but no gradient flows through it: KL(p_v || p_w) in (12).
            with torch.no_grad():
                log_p_v = log_softmax(teacher(z), dim=1)
            log_p_w = log_softmax(logits, dim=1)
            loss = loss + kl * (log_p_v.exp() * (log_p_v - log_p_w)).sum(1).mean()
        loss.backward()
        optimiser.step()


# The server: who learns from whom.


def mixing_weights(
    uploaded: dict[int, Named],
    sizes: list[int],
    t: int,
    beta: int,
    lam: float,
    selection: str,
    weights: str,
    dist_power: int,
    seed: int,
) -> dict[int, dict[int, float]]:
    """The weights p of (6) in round t for every client that has uploaded: `P[k][i]`."""
    D = distances(uploaded, dist_power)
    P = {}
    for k in uploaded:
        chosen = collaborators(D[k], k, t, beta, selection, seed)
        P[k] = aggregation_weights(D[k], k, chosen, sizes, lam, weights)
    return P


def distances(uploaded: dict[int, Named], dist_power: int = 2) -> dict[int, dict[int, float]]:
    """`D[i][j]`: the squared distance (or with `dist_power=1` the distance) of weights, by row maximum."""
    D: dict[int, dict[int, float]] = {}
    for i in sorted(uploaded):
        raw = {}
        for j in sorted(uploaded):
            squared = 0.0
            for name, phi_i in uploaded[i].items():
                if phi_i.ndim >= 2:  # weights, no biases
                    squared += float(((phi_i.double() - uploaded[j][name].double()) ** 2).sum())
            raw[j] = squared if dist_power == 2 else math.sqrt(squared)
        largest = max(raw.values())
        D[i] = {j: value / largest if largest > 0 else 0.0 for j, value in raw.items()}
    return D


def collaborators(D_k: dict[int, float], k: int, t: int, beta: int, selection: str, seed: int) -> list[int]:
    """The collaborators of client k, without k itself: candidates (GMM) below the threshold (4), as in (5)."""
    others = [j for j in sorted(D_k) if j != k]
    if not others:
        return []
    if selection == "all":
        return others
    if selection == "random":
        drawn = numpy_stream(seed, "selection", t, k).choice(others, size=min(3, len(others)), replace=False)
        return sorted(int(j) for j in drawn)
    values = [D_k[j] for j in others]
    average = sum(values) / len(values)
    tau = average + min(t / beta, 1.0) * (min(values) - average)  # (4)
    is_candidate = candidates(values, selection)
    return [j for j, candidate in zip(others, is_candidate, strict=True) if candidate and D_k[j] <= tau + TINY]  # (5)


def candidates(values: list[float], selection: str = "gmm") -> list[bool]:
    """Which of the distances belong to the nearer of two groups.

    One distance, or distances that are all equal, cannot be grouped: all are candidates. So they are if a group
    ends up empty. Of two distances the smaller one is the candidate.

    >>> candidates([0.1, 0.12, 0.9, 1.0, 0.11])
    [True, True, False, False, True]
    """
    if selection == "fixed":
        return [value <= 0.5 for value in values]
    if len(values) == 1 or max(values) - min(values) < TINY:
        return [True] * len(values)
    if len(values) == 2:
        return [value == min(values) for value in values]
    if selection == "gmm":
        far = gaussian_mixture(values)
    elif selection == "kmeans":
        far = two_means(values)
    elif selection == "hierarchical":
        far = average_linkage(values)
    else:
        raise ValueError(f"selection = {selection}: allowed: gmm, none, all, random, kmeans, hierarchical, fixed")
    groups = [[value for value, label in zip(values, far, strict=True) if label == side] for side in (False, True)]
    if not groups[0] or not groups[1]:
        return [True] * len(values)
    near = min(groups, key=lambda group: sum(group) / len(group))
    # A wide far component may claim the very smallest distances; whoever is nearer than a candidate is one too.
    return [value <= max(near) for value in values]


def two_means(values: list[float]) -> list[bool]:
    """k-means with two centres that start at minimum and maximum; True: the upper centre is nearer."""
    low, high = min(values), max(values)
    labels: list[bool] = []
    for _ in range(100):
        before, labels = labels, [abs(value - high) < abs(value - low) for value in values]
        if labels == before:
            break
        lower = [value for value, label in zip(values, labels, strict=True) if not label]
        upper = [value for value, label in zip(values, labels, strict=True) if label]
        low, high = sum(lower) / len(lower), sum(upper) / len(upper)
    return labels


def gaussian_mixture(values: list[float]) -> list[bool]:
    """A mixture of two Gaussians, fitted by EM from k-means; True: the second component is more probable."""
    start = two_means(values)
    responsibility = [[0.0, 1.0] if label else [1.0, 0.0] for label in start]
    previous = -math.inf
    for _ in range(100):
        # M step: share, mean and variance (at least 1e-6) of both components.
        components = []
        for c in (0, 1):
            count = sum(r[c] for r in responsibility) + 1e-15
            mean = sum(r[c] * x for r, x in zip(responsibility, values, strict=True)) / count
            variance = sum(r[c] * (x - mean) ** 2 for r, x in zip(responsibility, values, strict=True)) / count
            components.append((count / len(values), mean, max(variance, 1e-6)))
        # E step, in log space.
        responsibility, likelihood = [], 0.0
        for x in values:
            joint = [
                math.log(share) - 0.5 * (math.log(2 * math.pi * variance) + (x - mean) ** 2 / variance)
                for share, mean, variance in components
            ]
            peak = max(joint)
            log_density = peak + math.log(sum(math.exp(value - peak) for value in joint))
            responsibility.append([math.exp(value - log_density) for value in joint])
            likelihood += log_density / len(values)
        if abs(likelihood - previous) < 1e-4:
            break
        previous = likelihood
    return [r[1] > r[0] for r in responsibility]


def average_linkage(values: list[float]) -> list[bool]:
    """Merge the two nearest clusters (mean distance) until two are left; True: the upper one.

    On a line clusters are intervals, only neighbours can be nearest, and their mean distance is that of the means.
    """
    clusters = [[i] for i in sorted(range(len(values)), key=lambda i: values[i])]
    while len(clusters) > 2:
        means = [sum(values[i] for i in cluster) / len(cluster) for cluster in clusters]
        gaps = [means[c + 1] - means[c] for c in range(len(clusters) - 1)]
        nearest = gaps.index(min(gaps))
        clusters[nearest : nearest + 2] = [clusters[nearest] + clusters[nearest + 1]]
    return [i in clusters[1] for i in range(len(values))]


def aggregation_weights(
    D_k: dict[int, float], k: int, chosen: list[int], sizes: list[int], lam: float, weights: str = "self_inclusive"
) -> dict[int, float]:
    """The weights of (7) and (8); they sum to one.

    >>> D_k = {0: 0.0, 1: 0.30, 2: 0.35, 3: 0.40}
    >>> {i: round(p, 3) for i, p in aggregation_weights(D_k, 0, [1, 2, 3], [1, 1, 1, 1], lam=1.0).items()}
    {0: 0.727, 1: 0.182, 2: 0.091, 3: 0.0}
    """
    if not chosen:
        return {k: 1.0}
    if weights == "self_inclusive":
        return literal_weights(D_k, members=[k, *chosen], over=[k, *chosen], sizes=sizes, lam=lam)
    if weights == "peers_only":
        return literal_weights(D_k, members=chosen, over=chosen, sizes=sizes, lam=lam)
    if weights == "renormalised":
        p = literal_weights(D_k, members=[k, *chosen], over=chosen, sizes=sizes, lam=lam)
        return {i: value / sum(p.values()) for i, value in p.items()}
    raise ValueError(f"weights = {weights}: allowed: self_inclusive, renormalised, peers_only")


def literal_weights(
    D_k: dict[int, float], members: list[int], over: list[int], sizes: list[int], lam: float
) -> dict[int, float]:
    """Formula (7) for each of `members`, its sums, maximum and average (8) taken `over` the given clients."""
    D_max = max(D_k[j] for j in over)
    D_avg = sum(D_k[j] for j in over) / len(over)
    samples = sum(sizes[j] for j in over)
    p = {}
    for i in members:
        spread = len(over) * (D_max - D_avg)
        similarity = (D_max - D_k[i]) / spread if spread > TINY else 1 / len(over)
        p[i] = lam * similarity + (1 - lam) * sizes[i] / samples
    return p


def mix(uploaded: dict[int, Named], p: dict[int, float]) -> Named:
    """The weighted mean of classifiers: (6)."""
    names = next(iter(uploaded.values()))
    return {name: weighted_mean([uploaded[i][name] for i in p], list(p.values())) for name in names}


def as_matrix(P: dict[int, dict[int, float]], K: int) -> Tensor:
    """The weights as a `[K, K]` matrix."""
    matrix = torch.zeros(K, K, dtype=torch.float64)
    for k, row in P.items():
        for i, p in row.items():
            matrix[k, i] = p
    return matrix


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
    for t, P in outcome.weights.items():
        print(f"round {t}: client k's teacher came from")
        for k, row in enumerate(P):
            print(f"  {k}: " + "  ".join(f"{i} ({p:.0%})" for i, p in enumerate(row.tolist()) if p > 0))


if __name__ == "__main__":
    demonstrate()
