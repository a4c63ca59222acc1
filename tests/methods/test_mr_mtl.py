"""MR-MTL: models of one's own near the mean of all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, assert_unlike, play

from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.mr_mtl import MRMTL


@pytest.mark.parametrize("average", ["samples", "clients"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_steps_by_hand_give_the_same_models(join: float, average: str) -> None:
    ours = play(MRMTL(lam=2.0, average=average), join=join)
    hand = Hand(ours.prepared)
    own = [hand.initial] * hand.clients
    mean, seen = hand.initial, set[int]()
    for round, cohort in hand.rounds():
        for k in cohort:
            for index in hand.batches(k, round):
                own[k] = own[k] - 0.1 * (hand.gradient(own[k], index) + 2.0 * (own[k] - mean))
        seen |= set(cohort)
        mean = hand.mean({k: own[k] for k in sorted(seen)}, uniform=average == "clients")
    assert_near(ours.rows(), torch.stack(own))
    assert_near(ours.federation["mean"].shared[0], mean)
    assert_near(losses_received(ours), hand.test_losses(torch.stack(own)))


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_without_pull_it_is_local(join: float, model: str) -> None:
    ours, local = play(MRMTL(lam=0), join=join, model=model), play(Local(), join=join, model=model)
    assert torch.equal(ours.rows(), local.rows())


def test_it_is_neither_local_nor_fedavg() -> None:
    assert_unlike(play(MRMTL()).rows(), play(Local()).rows(), play(FedAvg()).rows())


def test_a_stronger_pull_holds_models_closer_together() -> None:
    spread = [float(play(MRMTL(lam=lam)).rows().std(0).mean()) for lam in (0.0, 1.0, 5.0)]
    assert spread[0] > spread[1] > spread[2] > 0


def test_the_mean_is_of_last_uploads_and_all_learn_it_alike() -> None:
    ours = play(MRMTL(average="clients"), join=0.5)
    seen = set[int]()
    for report in ours.reports:
        seen |= set(report.cohort)
        (mix,) = report.mixes
        assert (mix.target, mix.columns.tolist()) == ("mean", sorted(seen))
        assert_near(mix.weights, torch.full((1, len(seen)), 1 / len(seen)))


def test_the_model_goes_up_and_the_mean_comes_down() -> None:
    ours = play(MRMTL())
    assert_bytes(ours, up=ours.bytes_of("parameters"), down=ours.bytes_of("parameters"))


def test_statistics_of_batch_norm_stay() -> None:
    ours = play(MRMTL(), model="norm")
    assert len(ours.group("stats").unique(dim=0)) == ours.federation.clients


@pytest.mark.thorough
@pytest.mark.parametrize("average", ["samples", "clients"])
def test_relabelling(average: str) -> None:
    assert_relabelling_permutes(MRMTL(average=average), join=0.5)


@pytest.mark.parametrize(
    ("options", "words"), [({"lam": -1.0}, "lam = -1.0: must"), ({"average": "mode"}, "unknown average 'mode'")]
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=f"^{words}"):
        MRMTL(**options)
