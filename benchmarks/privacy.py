"""The bar of DP-SGD: a step against the same step in a bare Opacus loop."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.harness import Figure, in_turns, random_images, ratio
from coterie.client.recipe import Phase
from coterie.client.trainer import train
from coterie.client.worker import Worker
from coterie.partition import Iid
from coterie.privacy.steps import batches_an_epoch
from coterie.runs.experiment import Experiment
from coterie.setup.prepared import Prepared

CASES = [  # model, shape, samples, the most that it may take; of `cnn` the ratio is reported, and bounded loosely
    ("mlp", (1, 8, 8), 1280, 1.2),
    ("cnn", (3, 32, 32), 320, 3.0),
]
BATCH, RATE = 32, 0.01


def step_against_opacus(repeats: int = 21, scale: float = 1.0) -> Iterator[Figure]:
    """An epoch of private steps at one client."""
    for model, shape, samples, bar in CASES:
        prepared = _prepared(model, shape, int(samples * scale))
        seconds = in_turns({"ours": _ours(prepared), "opacus": _opacus(prepared)}, repeats)
        name = f"DP-SGD step, {model}, batch {BATCH}"
        yield ratio(name, seconds["ours"], seconds["opacus"], ("private steps", "bare Opacus loop"), bar)


def _prepared(model: str, shape: tuple[int, ...], samples: int) -> Prepared:
    settings = {"epochs": 1, "batch": BATCH, "lr": RATE, "privacy": "example", "size_noise": 0.0, "test": 0.1}
    data = random_images(int(samples / 0.9) + 2, shape)
    return Experiment(data=data, partition=Iid(clients=1), model=model, rounds=1, **settings).prepare()


def _ours(prepared: Prepared) -> Callable[[], object]:
    federation = prepared.federation()
    federation.round = 1
    worker = Worker(prepared.problem(), prepared.method, 0)

    def epoch() -> None:
        worker.seat(federation, 0)
        train(worker, (Phase(),))

    return epoch


def _opacus(prepared: Prepared) -> Callable[[], object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
    problem = prepared.problem()
    own = problem.train[0]
    steps = batches_an_epoch(len(own), BATCH)
    module = GradSampleModule(copy.deepcopy(problem.module))
    plain = torch.optim.SGD(module.parameters(), lr=RATE)
    optimiser = DPOptimizer(
        plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=max(1, len(own) // steps)
    )
    loss = nn.CrossEntropyLoss()

    def epoch() -> None:
        for _ in range(steps):
            index = own[torch.rand(len(own)) < 1 / steps]
            optimiser.zero_grad()
            loss(module(problem.inputs[index]), problem.labels[index]).backward()
            optimiser.step()

    return epoch
