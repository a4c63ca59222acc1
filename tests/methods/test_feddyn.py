"""FedDyn: duals of one's own, and the server's."""

from __future__ import annotations

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
from torch.nn.functional import cross_entropy

from coterie.core.exchange import Mix, Put, Uploads
from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, FedProx, Local
from coterie.methods.feddyn import FedDyn


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_steps_by_hand_give_the_same_models(join: float) -> None:
    alpha = 0.2
    ours = play(FedDyn(alpha=alpha), join=join)
    hand = Hand(ours.prepared)
    shared, h = hand.initial, torch.zeros_like(hand.initial)
    duals = {k: torch.zeros_like(hand.initial) for k in range(hand.clients)}
    for round, cohort in hand.rounds():
        rows = {}
        for k in cohort:
            row = shared
            for index in hand.batches(k, round):
                row = row - hand.experiment.lr * (hand.gradient(row, index) - duals[k] + alpha * (row - shared))
            duals[k] = duals[k] - alpha * (row - shared)
            rows[k] = row
        h = h - alpha / hand.clients * sum(row - shared for row in rows.values())
        shared = hand.mean(rows, uniform=True) - h / alpha
    assert_near(ours.rows(), shared.expand(hand.clients, -1))
    assert_near(ours.rows("dual"), torch.stack([duals[k] for k in range(hand.clients)]))
    assert_near(ours.rows("server_dual")[0], h)
    assert_near(losses_received(ours), hand.test_losses(ours.rows()))


def test_server_step_on_two_clients_of_four() -> None:
    """w_t = 1, uploads 3 and 5, h = 0.5, α = 0.1: h ← 0.5 − 0.1/4·(2 + 4) = 0.35, w ← 4 − 3.5 = 0.5."""
    prepared = prepared_for(FedDyn(alpha=0.1))
    federation = prepared.federation()
    federation["model"].shared.fill_(1.0)
    federation["server_dual"].shared.fill_(0.5)
    width = federation.layout.width
    rows = torch.tensor([[3.0], [5.0]]).expand(2, width)
    uploads = Uploads(federation, torch.tensor([1, 3]), {"model": rows}, {"model": federation.layout.columns("all")})
    mix, dual, model = prepared.method.exchange(uploads)
    assert isinstance(mix, Mix)
    assert isinstance(dual, Put)
    assert isinstance(model, Put)
    assert_near(mix.weights, torch.full((1, 2), 0.5))
    assert_near(dual.value, torch.full((1, width), 0.35))
    assert_near(model.value, torch.full((1, width), 0.5))


def test_the_regulariser_has_the_gradient_of_the_formula() -> None:
    prepared = prepared_for(FedDyn(alpha=0.7))
    phase = prepared.method.recipe(prepared.federation())[0]
    layout, module = prepared.problem_base.layout, prepared.problem_base.module

    def arrange(federation: Federation) -> None:
        shape = federation["dual"].own.shape
        federation["dual"].own.copy_(torch.randn(shape, generator=torch.manual_seed(2)))

    found, batch, worker = gradient_at(prepared, phase, client=3, arrange=arrange)
    received = layout.row(module)
    row = received.clone().requires_grad_()
    logits = torch.func.functional_call(module, layout.views(row), (batch.inputs,))
    dual = worker.federation["dual"].own[3]
    loss = cross_entropy(logits, batch.labels) - dual @ row + 0.35 * (row - received).square().sum()
    (expected,) = torch.autograd.grad(loss, row)
    assert_near(found["model"], expected)
    # Away from the received model the quadratic term pulls back.
    pull = phase.row_terms[1].gradient(torch.tensor([3.0]), lambda _: torch.tensor([1.0]))
    assert float(pull) == pytest.approx(1.4)


def test_the_first_local_round_is_fedprox_s() -> None:
    """w_t + 2·mean(Δ): all clients present, h = −α·mean(Δ)."""
    ours = play(FedDyn(alpha=0.3), rounds=1, join=0.5)
    prox = play(FedProx(mu=0.3), rounds=1, join=0.5)
    initial = ours.federation.initial
    cohort = ours.reports[0].cohort
    displacement = -ours.rows("dual")[cohort] / 0.3
    sizes = ours.federation.sizes[cohort].float()
    assert_near((sizes / sizes.sum()) @ displacement, prox.rows()[0] - initial)
    assert_near(ours.rows()[0], initial + (1 + len(cohort) / 4) * displacement.mean(0))


def test_duals_are_each_client_s_own_and_rest_while_it_sits_out() -> None:
    ours = play(FedDyn(), rounds=1, join=0.5)
    assert (ours.rows("dual") != 0).any(1).nonzero()[:, 0].tolist() == ours.reports[0].cohort
    everybody = play(FedDyn())
    assert len(everybody.rows("dual").unique(dim=0)) == everybody.federation.clients
    assert_near(everybody.rows("server_dual")[0], everybody.rows("dual").mean(0))


def test_it_is_neither_local_nor_fedavg_nor_fedprox() -> None:
    ours = play(FedDyn()).rows()
    assert_unlike(ours, play(Local()).rows(), play(FedAvg()).rows(), play(FedProx(mu=0.01)).rows())


def test_statistics_of_batch_norm_are_averaged() -> None:
    ours, plain = (play(method, model="norm", rounds=1, join=0.25) for method in (FedDyn(), FedProx(mu=0.01)))
    assert_near(ours.group("stats"), plain.group("stats"))


def test_bytes_and_weights() -> None:
    ours = play(FedDyn(), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("all"), down=ours.bytes_of("all"))
    for report in ours.reports:
        (mix,) = report.mixes
        assert_near(mix.weights, torch.full((1, 2), 0.5))


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(FedDyn(), join=join)


def test_refused_options() -> None:
    with pytest.raises(CoterieError, match=r"^alpha = 0.0: must be greater than 0"):
        FedDyn(alpha=0)
