"""FedEM: several models, mixed by each client's shares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, play
from torch import Tensor
from torch.nn.functional import cross_entropy, nll_loss

from coterie.errors import CoterieError
from coterie.methods import FedAvg
from coterie.methods.fedem import FedEM, responsibilities


def test_responsibilities_worked_out_by_hand() -> None:
    """π = (0.2, 0.8), losses (0, log 4): 0.2 · 1 to 0.8 · 1/4, so one half each."""
    found = responsibilities(torch.tensor([[0.0, 4.0]]).clamp(min=1).log(), torch.tensor([0.2, 0.8]))
    assert_near(found, torch.tensor([[0.5, 0.5]]))


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_steps_by_hand_give_the_same_models(join: float) -> None:
    ours = play(FedEM(models=2), join=join, lr=0.3)
    hand = Hand(ours.prepared)
    start = ours.prepared.federation()
    shared = [start[slot].shared[0] for slot in ("model", "model2")]
    shares = torch.full((hand.clients, 2), 0.5)

    def weights(rows: list[Tensor], index: Tensor, share: Tensor) -> Tensor:
        labels = hand.problem.labels[index]
        likely = [(-cross_entropy(hand.logits(row, index), labels, reduction="none")).exp() for row in rows]
        joint = torch.stack(likely, 1) * share
        return (joint / joint.sum(1, keepdim=True)).detach()

    for round, cohort in hand.rounds():
        trained: list[dict[int, Tensor]] = [{}, {}]
        for k in cohort:
            rows = list(shared)
            for index in hand.batches(k, round):
                q = weights(shared, index, shares[k])
                for m in range(2):
                    row = rows[m].detach().clone().requires_grad_()
                    losses = cross_entropy(hand.logits(row, index), hand.problem.labels[index], reduction="none")
                    (slope,) = torch.autograd.grad((q[:, m] * losses).mean(), row)
                    rows[m] = rows[m] - 0.3 * slope
            for m in range(2):
                trained[m][k] = rows[m]
        for k in cohort:
            shares[k] = weights(shared, hand.problem.train[k], shares[k]).mean(0)
        shared = [hand.mean(rows) for rows in trained]
    for slot, row in zip(("model", "model2"), shared, strict=True):
        assert_near(ours.rows(slot)[0], row)
    assert_near(ours.federation.values["model_shares"], shares)
    assert float((shares - 0.5).abs().max()) > 0.01, "shares have moved"
    expected = []
    for k, index in enumerate(hand.problem.test):
        mixture = sum(
            (share * hand.logits(row, index).softmax(1) for share, row in zip(shares[k], shared, strict=True)),
            torch.tensor(0.0),
        )
        expected.append(nll_loss(mixture.log(), hand.problem.labels[index]))
    assert_near(losses_received(ours), torch.stack(expected))


@pytest.mark.parametrize("model", ["plain", "norm"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_with_one_model_it_is_fedavg(join: float, model: str) -> None:
    ours, fedavg = play(FedEM(models=1), join=join, model=model), play(FedAvg(), join=join, model=model)
    assert_near(ours.rows(), fedavg.rows())
    assert_near(losses_received(ours), losses_received(fedavg))


def test_models_start_and_end_apart() -> None:
    ours = play(FedEM())
    rows = torch.stack([ours.rows(slot)[0] for slot in ("model", "model2", "model3")])
    assert float(torch.cdist(rows, rows).fill_diagonal_(9).min()) > 0.1


def test_all_models_travel_and_shares_do_not() -> None:
    ours = play(FedEM(models=2))
    assert_bytes(ours, up=2 * ours.bytes_of("all"), down=2 * ours.bytes_of("all"))
    assert [mix.target for mix in ours.reports[0].mixes] == ["model", "model2"]


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(FedEM(models=2), join=0.5)


@pytest.mark.parametrize("options", [{"models": 0}])
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(CoterieError, match=r"^models = 0: must"):
        FedEM(**options)
