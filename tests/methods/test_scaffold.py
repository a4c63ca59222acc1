"""SCAFFOLD: controls that take the drift out of local steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import (
    assert_bytes,
    assert_near,
    assert_relabelling_permutes,
    assert_unlike,
    gradient_at,
    play,
    prepared_for,
)
from torch import Tensor

from coterie.client.recipe import Phase
from coterie.client.trainer import Trainer
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.scaffold import SCAFFOLD
from coterie.partition import Partition
from coterie.testing.toys import toy_data
from support import seat


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("join", "server_lr", "weights"), [(1.0, 1.0, "uniform"), (0.5, 1.0, "uniform"), (0.5, 0.6, "size")]
)
def test_steps_by_hand_give_the_same_models(join: float, server_lr: float, weights: str) -> None:
    ours = play(SCAFFOLD(server_lr=server_lr, weights=weights), join=join, schedule="exponential", decay=0.8)
    hand = Hand(ours.prepared)
    even = weights == "uniform"
    shared, mean = hand.initial, torch.zeros_like(hand.initial)
    controls = {k: torch.zeros_like(hand.initial) for k in range(hand.clients)}
    for round, cohort in hand.rounds():
        rate = hand.experiment.lr * 0.8 ** (round - 1)
        moved, changes = {}, {}
        for k in cohort:
            row, steps = shared, 0
            for index in hand.batches(k, round):
                row = row - rate * (hand.gradient(row, index) - controls[k] + mean)
                steps += 1
            new = controls[k] - mean + (shared - row) / (steps * rate)
            moved[k], changes[k] = row - shared, new - controls[k]
            controls[k] = new
        shared = shared + server_lr * hand.mean(moved, even)
        # With uniform weights, the incremental form of the paper.
        step = len(cohort) / hand.clients * hand.mean(changes, uniform=True)
        mean = mean + step if even else hand.mean(controls)
    assert_near(ours.rows(), shared.expand(hand.clients, -1))
    assert_near(ours.rows("control"), torch.stack([controls[k] for k in range(hand.clients)]))
    assert_near(ours.rows("mean_control")[0], mean)
    assert_near(losses_received(ours), hand.test_losses(ours.rows()))


def test_every_gradient_is_corrected() -> None:
    prepared = prepared_for(SCAFFOLD())
    stream = torch.manual_seed(3)

    def arrange(federation: Federation) -> None:
        federation["control"].own.copy_(torch.randn(federation["control"].own.shape, generator=stream))
        federation["mean_control"].shared.copy_(torch.randn(federation["mean_control"].shared.shape, generator=stream))

    phase = prepared.method.recipe(prepared.federation())[0]
    found, batch, worker = gradient_at(prepared, phase, client=2, arrange=arrange)
    plain, _, _ = gradient_at(prepared, Phase(), client=2)
    federation = worker.federation
    correction = federation["mean_control"].shared[0] - federation["control"].own[2]
    assert_near(found["model"], plain["model"] + correction)
    assert len(batch.labels) > 0


def test_the_new_control_is_the_mean_gradient_of_the_first_round() -> None:
    ours = play(SCAFFOLD(), rounds=1, epochs=1, batch=60)
    hand = Hand(ours.prepared)
    for k in range(hand.clients):
        (index,) = hand.batches(k, 1)
        assert_near(ours.rows("control")[k], hand.gradient(hand.initial, index), 1e-4)


@pytest.mark.thorough
def test_the_first_round_is_fedavg_s_and_later_ones_are_not() -> None:
    by_size = {"weights": "size"}
    assert torch.equal(play(SCAFFOLD(**by_size), rounds=1).rows(), play(FedAvg(), rounds=1).rows())
    assert_unlike(play(SCAFFOLD(**by_size)).rows(), play(FedAvg()).rows(), play(Local()).rows())


def test_the_corrections_of_everybody_cancel() -> None:
    """With all clients present, Σ(c − c_k) = 0 under the weights of the model's mean."""
    for weights in ("uniform", "size"):
        ours = play(SCAFFOLD(weights=weights))
        share = ours.reports[-1].mixes[0].weights
        assert float((share @ (ours.rows("control") - ours.rows("mean_control"))).abs().max()) < 1e-5


def test_clients_that_sit_out_keep_their_control() -> None:
    ours = play(SCAFFOLD(), rounds=1, join=0.5)
    moved = (ours.rows("control") != 0).any(1).nonzero()[:, 0].tolist()
    assert moved == ours.reports[0].cohort
    assert_near(ours.rows("mean_control")[0], ours.rows("control").mean(0))


def one_client_short_of_a_batch(model: str, batch: int) -> tuple[Tensor, list[int]]:
    """What the federation says about steps, and how many batches each client sees."""
    data = toy_data(60)
    partition = Partition(
        train=(np.arange(21), np.arange(21, 40), np.arange(40, 41)),
        test=(np.arange(41, 50), np.arange(50, 55), np.arange(55, 60)),
    )
    ready = prepared_for(SCAFFOLD(), model=model, data=data, partition=partition, batch=batch)
    seen = [sum(1 for _ in Trainer(seat(ready, k), Phase(), 0).batches()) for k in range(3)]
    federation = ready.federation()
    return federation.steps(federation.everyone), seen


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("batch", [1, 2, 10, 20, 100])
def test_steps_are_counted_as_they_are_taken(model: str, batch: int) -> None:
    told, seen = one_client_short_of_a_batch(model, batch)
    assert told.tolist() == seen


def test_a_client_without_a_step_keeps_its_control() -> None:
    data = toy_data(60)
    partition = Partition(train=(np.arange(30), np.arange(30, 31)), test=(np.arange(31, 45), np.arange(45, 60)))
    ours = play(SCAFFOLD(), model="norm", data=data, partition=partition)
    assert bool((ours.rows("control")[1] == 0).all())
    assert bool(torch.isfinite(ours.rows("control")).all())


def test_bytes_and_weights() -> None:
    ours = play(SCAFFOLD(), join=0.5)
    assert_bytes(ours, up=2 * ours.bytes_of("all"), down=2 * ours.bytes_of("all"))
    for report in ours.reports:
        model, control = report.mixes
        assert_near(model.weights, torch.full((1, 2), 0.5))
        assert_near(control.weights, torch.full((1, 4), 0.25))


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(SCAFFOLD(), join=join)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 0.9}, "momentum = 0.9: scaffold needs plain SGD"),
        ({"optimizer": "adam"}, "optimizer = adam: scaffold"),
        ({"clip": 1.0}, "clip = 1.0: scaffold needs whole gradients, clip 0"),
    ],
)
def test_refused_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=f"^{message}"):
        prepared_for(SCAFFOLD(), **options)


def test_refused_options() -> None:
    with pytest.raises(CoterieError, match=r"^server_lr = 0.0: must be greater than 0"):
        SCAFFOLD(server_lr=0)
    with pytest.raises(CoterieError, match="unknown weights 'sizes'; did you mean 'size'"):
        SCAFFOLD(weights="sizes")
