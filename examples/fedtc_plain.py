"""FedTC, written down line by line: the plain version that checks the fast one.

*FedTC: A Personalized Federated Learning Method with Two Classifiers* (CMC 2023). Equation and line numbers
refer to the paper.

Extractors theta and classifiers phi are both averaged as in FedAvg, but the averaged classifier does not replace
the client's own: it is a second, frozen one. The client's extractor learns through the shared classifier,
the client's own classifier learns on the features, with a rate of its own.

What the paper leaves open is settled thus:

* Algorithm 1, line 13, resets the client's classifier to the shared one; the text and figure 2 keep it, and so does
  this file, except the first time a client takes part. `reset_local_head=True` follows line 13;
* momentum and weight decay apply to both parts, and the decay of the rates, once a round, to both rates;
* clients that sit out keep their classifier and get the newest extractor when they are tested; a client that has
  never taken part is tested with the shared classifier, from which it will start;
* batch norm's running statistics stay with the client.

Run `python examples/fedtc_plain.py` for a small demonstration.
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
    """What a client holds: extractor theta (with nothing in the classifier's place) and its own classifier phi."""

    extractor: nn.Module
    head: nn.Module
    took_part: bool = False


@dataclass
class Outcome:
    """The result of a run.

    `models` holds every client's model after the last server step, `shared_head` the shared classifier phi-bar, and
    `weights` per round the weights `[K]` of (7) and (8).
    """

    models: list[Named]
    shared_head: Named
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
    lr_classifier: float | None = None,
    reset_local_head: bool = False,
) -> Outcome:
    """Run FedTC; `train[k]` lists client k's samples and `classifier` is the path of phi in `module`.

    `lr` is the extractor's rate eta_e, `lr_classifier` the classifier's rate eta_c (a hundredth of it unless given).
    """
    lr_classifier = lr / 100 if lr_classifier is None else lr_classifier
    K = len(train)
    sizes = [len(own) for own in train]
    skip_single = single_samples_fail(module, inputs[:1])
    sgd = partial(torch.optim.SGD, momentum=momentum, weight_decay=weight_decay)

    clients = [Client(*split(module, classifier)) for _ in range(K)]
    theta_bar, phi_bar = parameters_of(clients[0].extractor), parameters_of(clients[0].head)
    outcome = Outcome(models=[], shared_head=phi_bar)

    for t in range(1, rounds + 1):
        factor = decay ** (t - 1)
        cohort: list[int] = draw_cohort(torch.arange(K), join, seed, t).tolist()
        for k in cohort:
            torch.manual_seed(stream_seed(seed, "dropout", t, k))
            client = clients[k]
            install(theta_bar, client.extractor)
            if reset_local_head or not client.took_part:
                install(phi_bar, client.head)
            client.took_part = True
            shared_head = copy.deepcopy(client.head)
            install(phi_bar, shared_head)
            order = batches(len(train[k]), batch, epochs, torch_stream(seed, "batches:0", t, k), skip_single)
            x, y = inputs[train[k]], labels[train[k]]
            fit(client, shared_head, x, y, order, factor * lr, factor * lr_classifier, sgd)

        shares = {k: sizes[k] / sum(sizes[j] for j in cohort) for k in cohort}
        theta_bar = mix({k: parameters_of(clients[k].extractor) for k in cohort}, shares)  # (7)
        phi_bar = mix({k: parameters_of(clients[k].head) for k in cohort}, shares)  # (8)
        outcome.weights.append(torch.tensor([shares.get(k, 0.0) for k in range(K)], dtype=torch.float64))

    for client in clients:
        install(theta_bar, client.extractor)
        if reset_local_head or not client.took_part:
            install(phi_bar, client.head)
        outcome.models.append(state_of(client, classifier))
    outcome.shared_head = phi_bar
    return outcome


def fit(
    client: Client,
    shared_head: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    order: Iterator[Tensor],
    extractor_rate: float,
    classifier_rate: float,
    sgd: Optimiser,
) -> None:
    """ClientUpdates, lines 14 to 19. The features are computed once a batch and serve both updates."""
    client.extractor.train()
    client.head.train()
    shared_head.eval()
    for parameter in shared_head.parameters():
        parameter.requires_grad_(False)
    head_optimiser = sgd(client.head.parameters(), lr=classifier_rate)
    extractor_optimiser = sgd(client.extractor.parameters(), lr=extractor_rate)
    for part in order:
        z, y = client.extractor(inputs[part]), labels[part]
        head_optimiser.zero_grad()
        cross_entropy(client.head(z.detach()), y).backward()
        head_optimiser.step()  # (5)
        extractor_optimiser.zero_grad()
        cross_entropy(shared_head(z), y).backward()
        extractor_optimiser.step()  # (6)


def mix(parts: dict[int, Named], shares: dict[int, float]) -> Named:
    """The weighted mean of a part of the models: (7) and (8)."""
    assert math.isclose(sum(shares.values()), 1.0, abs_tol=1e-6)
    names = next(iter(parts.values()))
    return {name: weighted_mean([parts[k][name] for k in shares], list(shares.values())) for name in names}


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
    outcome = run(
        data.inputs,
        data.labels,
        train,
        module,
        "classifier",
        rounds=8,
        epochs=2,
        batch=16,
        lr=0.05,
        seed=0,
        lr_classifier=0.01,
    )

    for k, model in enumerate(outcome.models):
        module.load_state_dict(model, strict=False)
        module.eval()
        test = torch.from_numpy(partition.test[k])
        hits = module(data.inputs[test]).argmax(1) == data.labels[test]
        digits = sorted(set(data.labels[train[k]].tolist()))
        print(f"client {k}  digits {digits}  accuracy {hits.float().mean():.3f}")
    shares = "  ".join(f"{k} ({share:.0%})" for k, share in enumerate(outcome.weights[-1].tolist()))
    print(f"everybody's extractor and second classifier came from\n  {shares}")


if __name__ == "__main__":
    demonstrate()
