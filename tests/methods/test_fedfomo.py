"""FedFomo: helpful models of others, found on validation data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Hand, assert_relabelling_permutes_matrices, losses_received, with_validation
from plain_training import Played, assert_near, assert_unlike, play, prepared_for
from torch import Tensor

from coterie.client.trainer import train
from coterie.core.exchange import Put, Uploads
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local, Method
from coterie.methods.fedfomo import FedFomo, helpfulness
from coterie.partition import Partition
from coterie.testing.toys import toy_data, toy_partition
from support import seat


def fomo_play(method: Method, **options: Any) -> Played:
    """A run whose clients have set six samples aside."""
    data = toy_data()
    partition = options.pop("partition", None) or with_validation(toy_partition(data))
    return play(method, data=data, partition=partition, **options)


def fomo_prepared(**options: Any) -> Any:
    data = toy_data()
    return prepared_for(FedFomo(**options), data=data, partition=with_validation(toy_partition(data)))


@pytest.mark.thorough
@pytest.mark.parametrize(("join", "models"), [(1.0, 2), (0.5, 2), (1.0, 5)])
def test_steps_by_hand_give_the_same_models(join: float, models: int) -> None:
    offered: list[dict[int, list[int]]] = []
    method = FedFomo(models=models)

    def watch(federation: Federation) -> None:
        federation.round += 1
        offered.append({k: list(method.preferred(federation, k)) for k in range(4)})
        federation.round -= 1

    ours = fomo_play(method, join=join, rounds=4, watch=watch)
    hand = Hand(ours.prepared)
    rows, preference, seen = hand.initial.repeat(hand.clients, 1), torch.eye(hand.clients), set()
    helped = 0
    for round, cohort in hand.rounds():
        new, found = rows.clone(), preference.clone()
        for k in cohort:
            others = [j for j in seen if j != k]
            peers = offered[round - 2][k] if round > 1 else []
            assert len(peers) == min(models, len(others))
            assert set(peers) <= set(others)
            worst = min((float(preference[k, j]) for j in peers), default=0.0)
            assert all(float(preference[k, j]) <= worst + 1e-6 for j in others if j not in peers)
            index = hand.problem.validation[k]
            weights = {}
            for n in peers:
                gain = hand.loss(rows[k], index) - hand.loss(rows[n], index)
                weights[n] = float(gain / ((rows[n] - rows[k]).norm() + 1e-5))
                found[k, n] += weights[n]
            positive = {n: weight for n, weight in weights.items() if weight > 0}
            row = rows[k]
            if positive:
                helped += 1
                row = sum(weight / sum(positive.values()) * rows[n] for n, weight in positive.items())
            for batch in hand.batches(k, round):
                row = row - hand.experiment.lr * hand.gradient(row, batch)
            new[k] = row
        rows, preference = new, found
        seen |= set(cohort)
    assert_near(ours.rows(), rows, 1e-4)
    assert_near(ours.federation.values["preference"], preference, 1e-4)
    assert_near(losses_received(ours), hand.test_losses(rows), 1e-4)
    assert helped > 0


def test_helpfulness_by_the_formula() -> None:
    ready = fomo_prepared()
    worker, hand = seat(ready, 1), Hand(ready)
    stream = torch.manual_seed(8)
    rows = hand.initial + 0.5 * torch.randn(3, len(hand.initial), generator=stream)
    rows[2] = hand.initial
    index = hand.problem.validation[1]
    expected = [
        (hand.loss(hand.initial, index) - hand.loss(row, index)) / ((row - hand.initial).norm() + 1e-5) for row in rows
    ]
    found = helpfulness(worker, hand.initial, rows)
    assert_near(found, torch.stack(expected))
    assert float(found[2]) == 0


def test_losses_that_overflow_give_finite_gains() -> None:
    ready = fomo_prepared()
    worker, hand = seat(ready, 1), Hand(ready)
    rows = torch.stack([hand.initial, torch.full_like(hand.initial, 3e38)])
    assert bool(torch.isfinite(helpfulness(worker, hand.initial, rows)).all())
    assert bool(torch.isfinite(helpfulness(worker, rows[1], rows)).all())


def arranged(preference: list[float], taken: list[int], round: int = 2) -> Federation:
    federation: Federation = fomo_prepared().federation()
    federation.round = round
    federation.rounds_taken[taken] = 1
    federation.values["preference"][0] = torch.tensor(preference)
    return federation


def test_the_preferred_models_come_first_and_untried_before_harmful_ones() -> None:
    federation = arranged([9.0, -1.0, 2.0, 0.0], taken=[0, 1, 2, 3])
    assert list(FedFomo(models=3).preferred(federation, 0)) == [2, 3, 1]
    assert list(FedFomo(models=1).preferred(federation, 0)) == [2]
    assert list(FedFomo().preferred(arranged([9.0, -1.0, 2.0, 0.0], taken=[0, 1]), 0)) == [1]
    assert list(FedFomo().preferred(arranged([9.0, -1.0, 2.0, 0.0], taken=[]), 0)) == []


def test_ties_are_broken_anew_in_every_round() -> None:
    orders = {tuple(FedFomo().preferred(arranged([1.0, 0, 0, 0], [0, 1, 2, 3], round), 0)) for round in range(2, 30)}
    assert len(orders) > 3
    assert all(sorted(order) == [1, 2, 3] for order in orders)


def test_if_no_model_helps_the_own_one_is_kept() -> None:
    ready = fomo_prepared()
    worker, hand = seat(ready, 0, round=2), Hand(ready)
    index = hand.problem.validation[0]
    good = hand.initial
    for _ in range(300):
        good = good - 0.1 * hand.gradient(good, index)
    worker.federation["model"].own[0] = good
    worker.seat(worker.federation, 0, peers=[1, 2, 3])
    train(worker, ready.method.recipe(worker.federation))
    row = good
    for batch in hand.batches(0, 2):
        row = row - hand.experiment.lr * hand.gradient(row, batch)
    assert_near(worker.model("model").row, row)
    assert bool((worker.notes["gains"][1:] < 0).all())


def test_the_first_round_is_local_training_and_later_ones_are_not() -> None:
    assert torch.equal(fomo_play(FedFomo(), rounds=1).rows(), fomo_play(Local(), rounds=1).rows())
    rows = fomo_play(FedFomo()).rows()
    local, average = fomo_play(Local()).rows(), fomo_play(FedAvg()).rows()
    assert_unlike(rows, average)
    assert bool(((rows - local).abs().amax(1) > 1e-3).any())


@pytest.mark.parametrize("model", ["norm", "dropout"])
def test_other_models_train_too(model: str) -> None:
    ours = fomo_play(FedFomo(), model=model, join=0.5)
    assert bool(torch.isfinite(ours.rows()).all())
    if model == "norm":
        assert bool(
            (ours.group("stats") != ours.federation.layout.columns("stats").take(ours.federation.initial)).any()
        )


def test_judging_leaves_no_trace_in_statistics_of_batch_norm() -> None:
    data = toy_data()
    ready = prepared_for(FedFomo(), data=data, partition=with_validation(toy_partition(data)), model="norm")
    worker = seat(ready, 0)
    own = worker.model("model").row.clone()
    rows = own[None] * torch.tensor([[1.0], [0.5]])
    first: Tensor = helpfulness(worker, own, rows)
    assert torch.equal(helpfulness(worker, own, rows), first)
    assert torch.equal(worker.model("model").row, rows[-1])


def test_bytes() -> None:
    """|w| and K numbers up; M models down once there are any."""
    ours = fomo_play(FedFomo(models=2), rounds=3)
    up, down = ours.bytes_of("all") + 4 * 4, ours.bytes_of("all") * 2
    assert [report.bytes for report in ours.reports] == [{"up": 4 * up, "down": 4 * got} for got in (0, down, down)]


def test_clients_that_sit_out_keep_their_model() -> None:
    ours = fomo_play(FedFomo(), rounds=1, join=0.5)
    moved = (ours.rows() != ours.federation.initial).any(1)
    assert moved.nonzero()[:, 0].tolist() == ours.reports[0].cohort


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes_matrices(FedFomo(models=2), "preference", join=join)


def test_validation_data_are_needed() -> None:
    with pytest.raises(CoterieError, match=r"^validation = 0: fedfomo .* set validation=0\.2$"):
        prepared_for(FedFomo())


def test_a_client_without_validation_data_downloads_nothing() -> None:
    data = toy_data(60)
    partition = Partition(
        train=(np.arange(20), np.arange(20, 30)),
        validation=(np.arange(30, 40), np.arange(0)),
        test=(np.arange(40, 50), np.arange(50, 60)),
    )
    ours = play(FedFomo(), data=data, partition=partition)
    local = play(Local(), data=data, partition=partition)
    assert torch.equal(ours.rows()[1], local.rows()[1])
    assert list(FedFomo().preferred(ours.federation, 1)) == []
    assert list(FedFomo().preferred(ours.federation, 0)) == [1]


def test_gains_that_a_client_claims_are_bounded() -> None:
    """A sum of numbers such as 3e38 would be infinite, and its difference from another nothing to sort by."""
    federation = prepared_for(FedFomo(), partition=with_validation(toy_partition(toy_data()))).federation()
    everyone = federation.everyone
    for gain in (3e38, 3e38, -3e38):
        gains = torch.full((len(everyone), len(everyone)), gain)
        (put,) = FedFomo().exchange(Uploads(federation, everyone, {}, {}, {"gains": gains}))
        assert isinstance(put, Put)
        federation.values["preference"] = put.value
    assert_near(federation.values["preference"] / 1e9, torch.ones(len(everyone), len(everyone)))


def test_refused_options() -> None:
    with pytest.raises(CoterieError, match=r"^models = 0: must be at least 1"):
        FedFomo(models=0)
