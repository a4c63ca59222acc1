"""What sites will measure, found out by measuring it once on noise: the server has no data of its own."""

from __future__ import annotations

import torch

from coterie.client.problem import Problem
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.deployment.agreement import Agreement, Blueprint
from coterie.deployment.wire import Expected
from coterie.engines.base import Work, do_work
from coterie.errors import CoterieError

SAMPLES = 4  # of each class


def measured_shapes(agreement: Agreement, blueprint: Blueprint, round: int) -> dict[str, Expected]:
    """The shape and kind of everything that a site measures in a round.

    >>> two = Agreement(name="trial", sites=("a", "b"), shape=(4,), classes=3, method="fedproto")
    >>> measured_shapes(two, two.build(), round=1)["class_means"].shape
    (3, 64)
    """
    labels = torch.arange(agreement.classes).repeat(SAMPLES)
    everything = torch.arange(len(labels))
    count = len(agreement.sites)
    problem = Problem(
        module=blueprint.module,
        layout=blueprint.layout,
        inputs=torch.rand(len(labels), *agreement.shape, generator=torch.Generator().manual_seed(0)),
        labels=labels,
        train=(everything,) * count,
        validation=(everything,) * count,
        test=(everything,) * count,
        training=agreement.training,
        task=agreement.task,
        skip_single_samples=blueprint.skip_single_samples,
    )
    federation: Federation = agreement.federation(blueprint)
    federation.sizes[:] = len(labels)
    federation.class_counts[:] = SAMPLES
    federation.round = round
    method = agreement.kind
    method.init(federation)
    work = Work(method.recipe(federation))
    rows = [(slot, torch.empty(federation[slot].width)) for slot in work.slots]
    with torch.random.fork_rng(devices=[]):
        measured, _, _ = do_work(Worker(problem, method, agreement.seed), federation, 0, work, rows)
    for name, value in measured.items():
        if value.dtype not in (torch.float32, torch.float64, torch.int64, torch.bool):
            raise CoterieError(f"measurement '{name}' gives {value.dtype}, which messages do not carry")
    return {name: Expected.like(value) for name, value in measured.items()}
