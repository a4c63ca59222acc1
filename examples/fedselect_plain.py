"""FedSelect, written down line by line: the plain version that checks the fast one.

*FedSelect: Personalized Federated Learning with Customized Selection of Parameters for Fine-Tuning* (CVPR 2024).

Every client has a mask over the elements of its parameters: those that are its own. In each turn it first trains its
own elements, then all others. The server averages each element over the clients of the round that share it, evenly,
and each of them takes the mean. Every few rounds masks grow: in each weight tensor, of the elements that a client
shares, those become its own that have changed most since its mask last grew.

What the paper leaves open is settled thus:

* with partial participation, everything is about this round's clients and the others are left alone;
* biases, and the weights of norms, never become anybody's own; running statistics never leave a client;
* of elements that changed equally, the first ones are taken, so that their number does not depend on ties;
* whatever an optimiser does besides following the gradient (momentum, decay), elements that are held stay.

Run `python examples/fedselect_plain.py` for a small demonstration.
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
    """`models` holds every client's model after the last server step, `own` the elements that are its own."""

    models: list[Named]
    own: list[Named] = field(default_factory=list)


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
    share: float = 0.25,
    limit: float = 0.8,
    every: int = 3,
    alternations: int = 1,
) -> Outcome:
    """Run FedSelect; `train[k]` lists client k's samples. The method needs no classifier: `classifier` is not used."""
    K = len(train)
    skip_single = single_samples_fail(module, inputs[:1])
    models = [copy.deepcopy(module) for _ in range(K)]
    own = [{name: torch.zeros_like(p, dtype=torch.bool) for name, p in module.named_parameters()} for _ in range(K)]
    snapshots = [{name: p.detach().clone() for name, p in module.named_parameters()} for _ in range(K)]

    for t in range(1, rounds + 1):
        rate = lr * decay ** (t - 1)
        cohort: list[int] = draw_cohort(torch.arange(K), join, seed, t).tolist()
        for k in cohort:
            torch.manual_seed(stream_seed(seed, "dropout", t, k))
            models[k].train()
            for turn in range(alternations):
                for trains_own in (True, False):
                    if trains_own and t <= every + 1:
                        continue  # nobody has elements of their own yet
                    optimiser = torch.optim.SGD(
                        models[k].parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay
                    )
                    stream = torch_stream(seed, f"batches:{2 * turn + trains_own}", t, k)
                    for part in batches(len(train[k]), batch, epochs, stream, skip_single):
                        samples = train[k][part]
                        optimiser.zero_grad()
                        cross_entropy(models[k](inputs[samples]), labels[samples]).backward()
                        before = {name: p.detach().clone() for name, p in models[k].named_parameters()}
                        optimiser.step()
                        with torch.no_grad():
                            for name, parameter in models[k].named_parameters():
                                held = own[k][name] != trains_own
                                parameter[held] = before[name][held]

        trained = {k: {name: p.detach().clone() for name, p in models[k].named_parameters()} for k in cohort}
        for name, parameter in module.named_parameters():
            total, count = torch.zeros_like(parameter), torch.zeros_like(parameter)
            for k in cohort:
                total += trained[k][name] * ~own[k][name]
                count += ~own[k][name]
            for k in cohort:
                with torch.no_grad():
                    dict(models[k].named_parameters())[name].copy_(
                        torch.where(own[k][name], trained[k][name], total / count.clamp(min=1))
                    )

        if t > 1 and (t - 1) % every == 0:
            for k in cohort:
                for name, now in trained[k].items():
                    if now.dim() >= 2 and float(own[k][name].double().mean()) <= limit:
                        own[k][name] = grown(own[k][name], (now - snapshots[k][name]).abs(), share)
                snapshots[k] = trained[k]

    return Outcome([state_of(model) for model in models], own)


def grown(own: Tensor, change: Tensor, share: float) -> Tensor:
    """A mask and, of the elements outside it, the share that has changed most.

    >>> grown(torch.tensor([True, False, False, False]), torch.tensor([9.0, 2.0, 3.0, 1.0]), 0.67).tolist()
    [True, True, True, False]
    """
    flat = own.reshape(-1).tolist()
    others = [place for place, mine in enumerate(flat) if not mine]
    changes = change.reshape(-1).tolist()
    others.sort(key=lambda place: (-changes[place], place))
    for place in others[: len(others) - round((1 - share) * len(others))]:
        flat[place] = True
    return torch.tensor(flat).reshape(own.shape)


# Plain tools.


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
    """Eight clients with two digits each: how much of each tensor they keep."""
    from coterie.data import load
    from coterie.models import build
    from coterie.partition import Pathological

    data = load("digits")
    partition = Pathological(clients=8, classes_per_client=2)(data, seed=0)
    torch.manual_seed(0)
    module = build("mlp", data.shape, data.classes)
    train = [torch.from_numpy(own) for own in partition.train]
    settings = {"rounds": 6, "epochs": 1, "batch": 16, "lr": 0.05, "seed": 0, "every": 2}
    outcome = run(data.inputs, data.labels, train, module, "classifier", **settings)
    for k, own in enumerate(outcome.own):
        print(f"{k}: " + "  ".join(f"{name} {float(mask.float().mean()):.0%}" for name, mask in own.items()))


if __name__ == "__main__":
    demonstrate()
