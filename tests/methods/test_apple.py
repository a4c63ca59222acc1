"""APPLE: core models that are passed on, relations that are learnt."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from by_hand import Hand, assert_relabelling_permutes_matrices, losses_received
from plain_training import assert_near, assert_unlike, play, prepared_for
from torch import Tensor

from coterie.client.trainer import Trainer, train
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.apple import APPLE
from coterie.testing.toys import toy_data, toy_partition
from support import seat


def personal_model(p: Tensor, k: int, own: Tensor, cores: Tensor, known: list[int]) -> Tensor:
    """Σ_j p_j c_j, the own core standing in for those that nobody has heard of."""
    return sum((p[j] * (cores[j] if j in known and j != k else own) for j in range(len(p))), torch.tensor(0.0))


@pytest.mark.thorough
@pytest.mark.parametrize(("join", "horizon"), [(1.0, 0.2), (0.5, 0.9)])
def test_steps_by_hand_give_the_same_models(join: float, horizon: float) -> None:
    method = APPLE(mu=0.5, lr_relations=0.02, horizon=horizon)
    ours = play(method, join=join, rounds=4, lr=0.2)
    hand = Hand(ours.prepared)
    fractions = (hand.sizes / hand.sizes.sum()).float()
    cores, personal = hand.initial.repeat(hand.clients, 1), hand.initial.repeat(hand.clients, 1)
    relations, seen = fractions.repeat(hand.clients, 1), set()
    for round, cohort in hand.rounds():
        r, last = round - 1, horizon * 4
        pull = 0.5 * (math.cos(math.pi * r / last) + 1) / 2 if r < last else 0.0
        new = cores.clone()
        for k in cohort:
            known = [j for j in range(hand.clients) if j in seen or j == k]
            own, p = cores[k], relations[k].clone()
            rest = sum(float(p[j]) for j in range(hand.clients) if j not in known)
            for index in hand.batches(k, round):
                gradient = hand.gradient(personal_model(p, k, own, cores, known), index)
                slopes = {j: gradient @ (own if j == k else cores[j]) for j in known}
                own = own - 0.2 * (p[k] + rest) * gradient
                for j in known:
                    p[j] -= 0.02 * (slopes[j] + pull * (p[j] - fractions[j]))
            new[k], relations[k], personal[k] = own, p, personal_model(p, k, own, cores, known)
        cores = new
        seen |= set(cohort)
    assert_near(ours.rows(), cores)
    assert_near(ours.rows("personal"), personal)
    assert_near(ours.federation.values["relations"], relations)
    assert_near(losses_received(ours), hand.test_losses(personal))
    assert float((relations - fractions).abs().max()) > 1e-3, "relations were learnt"


@pytest.mark.parametrize(("schedule", "rate"), [("constant", 0.1), ("exponential", 0.025)])
def test_slopes_are_the_gradient_in_the_relations(schedule: str, rate: float) -> None:
    """Without pull and with one batch: p moves along ∂L(Σ_j p_j c_j)/∂p, at a rate that follows the schedule."""
    method = APPLE(mu=0.0, lr_relations=0.1)
    ready = prepared_for(method, epochs=1, batch=60, schedule=schedule, decay=0.25)
    worker = seat(ready, 2, round=2)
    federation = worker.federation
    federation.rounds_taken[:] = 1
    federation["model"].own.add_(0.2 * torch.randn(federation["model"].own.shape, generator=torch.manual_seed(4)))
    cores = federation["model"].own.clone()
    hand = Hand(ready)
    (index,) = hand.batches(2, 2)
    federation.values["relations"] = federation.values["shares"].repeat(4, 1)
    relations = federation.values["relations"][2].clone().requires_grad_()
    worker.seat(federation, 2, peers=[0, 1, 3])
    (expected,) = torch.autograd.grad(hand.loss(relations @ cores, index), relations)
    train(worker, method.recipe(federation))
    assert_near(worker.notes["relations"], relations - rate * expected)


@pytest.mark.thorough
def test_a_client_alone_is_local() -> None:
    data = toy_data()
    partition = toy_partition(data, clients=1)
    for model in ("plain", "norm", "dropout"):
        alone = play(APPLE(lr_relations=0.0), data=data, partition=partition, model=model)
        local = play(Local(), data=data, partition=partition, model=model)
        assert torch.equal(alone.rows("personal"), local.rows())
        assert torch.equal(alone.rows(), local.rows())


def test_the_first_round_is_local_training() -> None:
    """All cores are equal and unknown to the others: everybody's weight lies on the own core."""
    ours, local = (play(method, rounds=1, join=0.5) for method in (APPLE(lr_relations=0.0), Local()))
    assert_near(ours.rows("personal"), local.rows())


def test_it_is_neither_local_nor_fedavg() -> None:
    ours, others = play(APPLE()), (play(Local()).rows(), play(FedAvg()).rows())
    assert_unlike(ours.rows(), *others)
    assert_unlike(ours.rows("personal"), *others)
    assert_unlike(ours.rows("personal"), ours.rows())


def test_only_cores_travel() -> None:
    """|w| up, and down the core of everybody else who has taken part; relations stay, shares come down once."""
    ours = play(APPLE(), rounds=4, join=0.5)
    width, shares, taken = ours.bytes_of("all"), 4 * 4, set()
    for report in ours.reports:
        cores = sum(len(taken - {k}) for k in report.cohort)
        told = len(set(report.cohort) - taken)
        assert report.bytes == {"up": width * len(report.cohort), "down": width * cores + shares * told}
        assert report.mixes == []
        taken |= set(report.cohort)
    everybody = play(APPLE())
    assert everybody.reports[0].bytes == {"up": 4 * width, "down": 4 * shares}
    assert everybody.reports[1].bytes == {"up": 4 * width, "down": 4 * 3 * width}


def test_clients_that_sit_out_keep_everything() -> None:
    ours = play(APPLE(), rounds=1, join=0.5)
    fractions = ours.federation.sizes / ours.federation.sizes.sum()
    for k in set(range(4)) - set(ours.reports[0].cohort):
        assert torch.equal(ours.rows()[k], ours.federation.initial)
        assert torch.equal(ours.rows("personal")[k], ours.federation.initial)
        assert not bool(ours.federation.values["relations"][k].any()), "they will start from the shares"
    for k in ours.reports[0].cohort:
        moved = ours.federation.values["relations"][k] != fractions
        assert moved.nonzero()[:, 0].tolist() == [k], "nobody else's core is known yet"


@pytest.mark.thorough
@pytest.mark.parametrize("stats", ["local", "mean"])
def test_statistics_of_batch_norm_are_never_mixed(stats: str) -> None:
    ours = play(APPLE(), model="norm", stats=stats)
    assert torch.equal(ours.group("stats"), ours.group("stats", "personal"))
    assert len(ours.group("stats").unique(dim=0)) == ours.federation.clients
    local = play(Local(), model="norm", rounds=1).group("stats")
    assert_near(play(APPLE(lr_relations=0.0), model="norm", rounds=1, stats=stats).group("stats"), local)


def test_peers_send_no_more_than_they_upload() -> None:
    """Local running statistics are not among the uploads: a downloaded model has the client's own."""
    ready = prepared_for(APPLE(), model="norm")
    worker = seat(ready, 1)
    federation = worker.federation
    federation["model"].own.copy_(torch.arange(4.0)[:, None].expand_as(federation["model"].own))
    worker.seat(federation, 1, peers=[0, 2, 3])
    peers, rows = worker.peers()
    layout = federation.layout
    assert peers == [0, 2, 3]
    assert layout.columns("parameters").take(rows)[:, 0].tolist() == [0.0, 2.0, 3.0]
    assert bool((layout.columns("stats").take(rows) == 1.0).all())


def test_the_pull_fades_until_the_horizon() -> None:
    method = APPLE(mu=2.0, horizon=0.4)
    federation = prepared_for(method, rounds=10).federation()
    pulls = []
    for federation.round in range(1, 11):
        pulls.append(method.pull(federation))
    assert pulls[:4] == pytest.approx([2.0, 1 + math.cos(math.pi / 4), 1.0, 1 + math.cos(3 * math.pi / 4)])
    assert pulls[4:] == [0.0] * 6
    federation.round = 1
    assert APPLE(horizon=0.0).pull(federation) == 0.0


def test_head_and_core_move_in_one_phase() -> None:
    ready = prepared_for(APPLE())
    trainer = Trainer(seat(ready, 0), ready.method.recipe(ready.federation())[0], 0)
    assert sorted({part.slot for part in trainer.parts}) == ["model", "personal"]


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes_matrices(APPLE(lr_relations=0.01), "relations", join=join)


@pytest.mark.parametrize("options", [{"mu": -1.0}, {"lr_relations": -1.0}, {"horizon": 1.5}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        APPLE(**options)
