"""APFL: a mixture of one's own model and the global one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, assert_unlike, play, prepared_for

from coterie.client.trainer import train
from coterie.client.worker import Worker
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.apfl import APFL

CASES = [(0.5, None), (0.3, 0.0), (0.7, 2.0)]


@pytest.mark.parametrize(("start", "rate"), CASES)
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_steps_by_hand_give_the_same_models(join: float, start: float, rate: float | None) -> None:
    ours = play(APFL(alpha=start, lr_alpha=rate), join=join)
    hand, step = Hand(ours.prepared), 0.1 if rate is None else rate
    shared, own, alpha = hand.initial, [hand.initial] * hand.clients, torch.full((hand.clients,), start)
    for round, cohort in hand.rounds():
        models = {}
        for k in cohort:
            w, v, a = shared, own[k], alpha[k]
            for number, index in enumerate(hand.batches(k, round)):
                at_mixture = hand.gradient(a * v + (1 - a) * w, index)
                towards = (v - w) @ at_mixture
                w, v = w - 0.1 * hand.gradient(w, index), v - 0.1 * a * at_mixture
                if number == 0:
                    a = (a - step * towards).clamp(0, 1)
            models[k], own[k], alpha[k] = w, v, a
        shared = hand.mean(models)
    assert_near(ours.rows()[0], shared)
    assert_near(ours.rows("local"), torch.stack(own))
    assert_near(ours.federation.values["alpha"], alpha)
    mixed = [a * v + (1 - a) * shared for a, v in zip(alpha, own, strict=True)]
    assert_near(losses_received(ours), hand.test_losses(torch.stack(mixed)))
    assert bool((alpha != start).any()) == (step > 0)


def test_the_share_moves_towards_the_better_model_and_stays_in_its_bounds() -> None:
    """After a step of size 1,000, who gains by its own model has α = 1, who loses by it α = 0."""
    prepared = prepared_for(APFL(alpha=0.5, lr_alpha=1000.0))
    hand = Hand(prepared)
    ends = set()
    for sign in (1.0, -1.0):
        federation: Federation = prepared.federation()
        federation.round = 1
        (first, *_) = hand.batches(0, 1)
        downhill = -sign * hand.gradient(hand.initial, first)
        federation["local"].write_own(torch.tensor([0]), federation["local"].columns, (hand.initial + downhill)[None])
        worker = Worker(prepared.problem(), prepared.method, prepared.experiment.seed)
        worker.seat(federation, 0)
        measured = train(worker, prepared.method.recipe(federation))
        ends.add((sign, float(measured["alpha"])))
    assert ends == {(1.0, 1.0), (-1.0, 0.0)}


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_with_nothing_of_its_own_it_is_fedavg(join: float, model: str) -> None:
    ours = play(APFL(alpha=0, lr_alpha=0), join=join, model=model)
    fedavg = play(FedAvg(), join=join, model=model)
    assert_near(ours.rows(), fedavg.rows())
    if model == "plain":
        assert_near(losses_received(ours), losses_received(fedavg))


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_with_nothing_of_the_others_it_is_local(join: float) -> None:
    ours, local = play(APFL(alpha=1, lr_alpha=0), join=join), play(Local(), join=join)
    assert_near(ours.rows("local"), local.rows())
    assert_near(losses_received(ours), losses_received(local))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "weight_decay": 0.01}])
def test_the_global_model_is_fedavg_s(options: dict[str, float]) -> None:
    """It takes one step a batch, whatever its client does besides."""
    assert_near(play(APFL(), **options).rows(), play(FedAvg(), **options).rows())


def test_the_mixtures_are_neither_local_nor_fedavg() -> None:
    assert_unlike(play(APFL()).rows("mixture"), play(Local()).rows(), play(FedAvg()).rows())


def test_only_the_global_model_travels() -> None:
    ours = play(APFL(), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("all"), down=ours.bytes_of("all"))
    for report in ours.reports:
        (mix,) = report.mixes
        assert (mix.target, mix.group) == ("model", "all")


def test_own_statistics_of_batch_norm_stay() -> None:
    ours = play(APFL(), model="norm")
    assert len(ours.group("stats", "mixture").unique(dim=0)) == ours.federation.clients
    assert len(ours.group("stats").unique(dim=0)) == 1


def test_the_schedule_scales_the_rate_of_the_share() -> None:
    half, whole = (play(APFL(lr_alpha=rate), rounds=2, schedule="exponential", decay=0.5) for rate in (4.0, 2.0))
    assert_unlike(half.federation.values["alpha"][:, None], whole.federation.values["alpha"][:, None])


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(APFL(), join=join)


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"alpha": -0.1}, {"lr_alpha": -1.0}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        APFL(**options)
