"""Memory follows what is personal: thousands of clients cost one row if nothing is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.client.worker import Worker
from coterie.engines import Serial
from coterie.partition import Partition
from coterie.rounds.round import Rounds
from coterie.rounds.sampler import Share
from coterie.runs.experiment import Experiment
from coterie.testing.toys import toy_data

pytestmark = pytest.mark.thorough

CLIENTS = 10_000


@pytest.fixture(scope="module")
def many() -> tuple[object, Partition]:
    data = toy_data(2 * CLIENTS)
    train, test = np.arange(CLIENTS)[:, None], CLIENTS + np.arange(CLIENTS)[:, None]
    return data, Partition(train=tuple(train), test=tuple(test))


def test_fedavg_of_ten_thousand_clients_holds_one_row(
    many: tuple[object, Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 0

    def watch(home: object, name: str) -> None:
        original = getattr(home, name)

        def made(*args: object, **options: object) -> torch.Tensor:
            nonlocal largest
            out: torch.Tensor = original(*args, **options)
            largest = max(largest, out.numel())
            return out

        monkeypatch.setattr(home, name, made)

    data, partition = many
    experiment = Experiment("fedavg", data, partition, "mlp", join=0.01, rounds=2, epochs=1)
    prepared = experiment.prepare()
    federation = prepared.federation()
    width = federation.layout.width
    for name in ("empty", "zeros", "cat", "stack"):
        watch(torch, name)
    for name in ("new_empty", "new_zeros"):
        watch(torch.Tensor, name)
    rounds = Rounds(prepared.method, federation, Serial(prepared.problem(), prepared.method, 0), Share(0.01))
    for _ in range(2):
        report = rounds.run_round()
    assert len(report.cohort) == 100
    slot = federation["model"]
    assert (slot.shared.shape, slot.own.shape) == ((1, width), (CLIENTS, 0))
    held = sum(tensor.numel() for _, tensor in federation.state())
    # The row and where it lies; of every client how often and when it took part, what it was sent, what is known of it.
    assert held == width + 4 + 4 * CLIENTS
    assert 100 * width <= largest < CLIENTS * width / 10


def test_personal_columns_alone_are_held_per_client(many: tuple[object, Partition]) -> None:
    data, partition = many
    prepared = Experiment("fedper", data, partition, "mlp").prepare()
    federation = prepared.federation()
    head = federation.layout.columns("classifier").size
    assert federation["model"].own.shape == (CLIENTS, head)
    assert head < federation.layout.width / 3
    Worker(prepared.problem(), prepared.method, 0).seat(federation, CLIENTS - 1)
