"""Where a site works: its own samples, the federation as it sees it, and a worker at which its models are trained.

The server has no data of its own: what sites will measure, it finds out by measuring it once on noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.client.problem import Problem
from coterie.client.worker import Worker
from coterie.core.columns import Columns
from coterie.core.federation import Federation
from coterie.core.pixels import whole
from coterie.core.slots import Follows, HeldBy, Slot
from coterie.core.tracks import Tracks
from coterie.data import Dataset
from coterie.deployment.agreement import Agreement, Blueprint
from coterie.deployment.wire import Expected
from coterie.devices import PROCESSOR
from coterie.engines.base import Work, do_work, empty_rows
from coterie.errors import CoterieError, require
from coterie.partition.rule import Split


class SiteSlot(Slot):
    """A slot of which only one client's row is here, whatever client is asked for."""

    def rows(self, clients: Tensor, columns: Columns | None = None) -> Tensor:
        """The row of this site, as often as clients are asked for."""
        return super().rows(torch.zeros_like(clients), columns)

    def copy_row(self, client: int, out: Tensor) -> None:
        """Copy this site's row into the slot's columns of `out [P]`."""
        super().copy_row(0, out)

    def write_own(self, clients: Tensor, columns: Columns, values: Tensor) -> None:
        """Write into this site's row."""
        super().write_own(torch.zeros_like(clients), columns, values)


class SiteFederation(Federation):
    """A federation as one site sees it: it knows how many others there are, and holds no row of theirs."""

    simulated = False

    def _new_slot(
        self, initial: Tensor, columns: Columns, shared: Columns, held_by: HeldBy, follows: Follows, beside: str = ""
    ) -> Slot:
        slot = SiteSlot(initial, 1, columns, shared, held_by, beside=beside)
        slot.tracks = Tracks(slot.shared_columns, slot.own_columns, self.clients)
        return slot


class SiteWorker(Worker):
    """A worker whose peers' models came by message."""

    visitors: Tensor | None = None  # [n, |what peers upload|]

    def _peer_rows(self, columns: Columns) -> Tensor:
        rows = torch.empty(0, columns.size) if self.visitors is None else self.visitors
        return rows.to(self.device)

    def held(self) -> dict[str, Tensor]:
        """What the worker holds of each slot in use, as it is now: trained or tuned, in the slot's columns.

        It is brought to the processor, as is all that leaves a worker's device.
        """
        slots = self.federation.slots
        used = sorted(self._present & slots.keys())
        return {name: slots[name].columns.take(self._models[name].row).cpu() for name in used}


@dataclass(frozen=True)
class Workplace:
    """What one client of an agreement trains with and on."""

    agreement: Agreement
    client: int
    problem: Problem
    federation: Federation
    worker: SiteWorker
    first_weights: str  # a text that differs if the first weights do

    def put_inputs(self, inputs: Tensor) -> None:
        """Work on other inputs `[N, ...]` of the same samples from now on."""
        for problem in (self.problem, self.worker.problem):  # on a device they are two
            whole(problem.inputs).copy_(inputs)

    @property
    def train(self) -> Tensor:
        """The samples that it trains on."""
        return self.problem.train[self.client]

    @property
    def test(self) -> Tensor:
        """The samples that it is tested on, and never trains on."""
        return self.problem.test[self.client]


def workplace(
    agreement: Agreement,
    client: int,
    data: Dataset,
    tell: Callable[[int], int] = lambda samples: samples,
    device: str = PROCESSOR,
) -> Workplace:
    """The place of a client before the first round; its data is the only one there.

    `tell` says what others are told of its number of training samples, by which it trains too. Its worker trains on
    `device`; what is sent and kept is on the processor.
    """
    blueprint = agreement.build()
    train, validation, test = own_split(agreement, data, client)
    empty = torch.empty(0, dtype=torch.int64)
    problem = Problem(
        module=blueprint.module,
        layout=blueprint.layout,
        inputs=data.inputs,
        labels=data.labels,
        **{
            part: tuple(index if other == client else empty for other in range(len(agreement.sites)))
            for part, index in (("train", train), ("validation", validation), ("test", test))
        },
        training=agreement.training,
        task=agreement.task,
        skip_single_samples=blueprint.skip_single_samples,
    )
    federation = agreement.federation(blueprint, SiteFederation)
    federation.sizes[client] = tell(len(train))
    if federation.knows_class_counts:
        federation.class_counts[client] = torch.bincount(data.labels[train], minlength=agreement.classes)
    assert federation.validation_sizes is not None
    federation.validation_sizes[client] = len(validation)
    agreement.kind.init(federation)
    for stage in agreement.parts:
        stage.check(agreement.kind, federation)
    worker = SiteWorker(problem.on(device), agreement.kind, agreement.seed)
    return Workplace(agreement, client, problem, federation, worker, blueprint.fingerprint)


def own_split(agreement: Agreement, data: Dataset, client: int) -> tuple[Tensor, Tensor, Tensor]:
    """A site's training, validation and test samples: by the file's own test part if it has one, else by chance."""
    require(
        data.train_size < len(data) or len(data) >= 2,
        f"data '{data.name}': {len(data)} sample; a site needs at least 2, one of them for testing",
    )
    return split_samples(agreement.split, agreement.seed, agreement.keys[client], len(data), data.train_size)


def split_samples(split: Split, seed: int, key: int, count: int, train_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Training, validation and test samples of `count`, of which those from `train_size` on may be a test part."""
    if train_size < count:
        train, validation = split.without_validation(np.arange(train_size), seed, key)
        parts = (train, validation, np.arange(train_size, count))
    else:
        parts = split(np.arange(count), seed, key)
    return torch.from_numpy(parts[0]), torch.from_numpy(parts[1]), torch.from_numpy(parts[2])


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
    rows = [(slot, matrix[0]) for slot, matrix in empty_rows(federation, work, 1).items()]
    with torch.random.fork_rng(devices=[]):
        measured, _, _ = do_work(Worker(problem, method, agreement.seed), federation, 0, work, rows)
    for name, value in measured.items():
        if value.dtype not in (torch.float32, torch.float64, torch.int64, torch.bool):
            raise CoterieError(f"measurement '{name}' gives {value.dtype}, which messages do not carry")
    return {name: Expected.like(value) for name, value in measured.items()}
