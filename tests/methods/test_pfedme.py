"""pFedMe: θ̃ near w_k, w_k towards θ̃, the mean of the cohort with a rate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, assert_unlike, play
from torch import Tensor

from coterie.core.federation import Federation
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.pfedme import PFedMe
from support import tiny


def client_round(
    hand: Hand, client: int, round: int, received: Tensor, method: PFedMe, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """θ̃_k and w_k after a round, by the formulas of the paper; both rates times the schedule's `factor`."""
    local, theta = received, received
    inner, outer = factor * method.inner_lr, factor * hand.experiment.lr
    for index in hand.batches(client, round):
        for _ in range(method.steps):
            theta = theta - inner * (hand.gradient(theta, index) + method.lam * (theta - local))
        local = local - outer * method.lam * (local - theta)
    return theta, local


@pytest.mark.thorough
@pytest.mark.parametrize(("join", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.4), (0.5, 1.7)])
def test_steps_by_hand_give_the_same_models(join: float, beta: float) -> None:
    method = PFedMe(lam=4.0, beta=beta, steps=3, inner_lr=0.05)
    ours = play(method, join=join)
    hand = Hand(ours.prepared)
    shared, personal, seen = hand.initial, hand.initial.repeat(hand.clients, 1), set()
    for round, cohort in hand.rounds():
        locals_ = {}
        for k in cohort:
            personal[k], locals_[k] = client_round(hand, k, round, shared, method)
        shared = (1 - beta) * shared + beta * hand.mean(locals_, uniform=True)
        seen |= set(cohort)
        for k in set(range(hand.clients)) - seen:
            personal[k] = shared
    assert_near(ours.rows(), shared.expand(hand.clients, -1))
    assert_near(ours.rows("personal"), personal)
    assert_near(losses_received(ours), hand.test_losses(personal))


def test_the_schedule_scales_both_rates() -> None:
    method = PFedMe(lam=4.0, steps=2, inner_lr=0.2)
    ours = play(method, rounds=2, epochs=1, schedule="exponential", decay=0.25)
    hand = Hand(ours.prepared)
    shared, personal = hand.initial, dict[int, Tensor]()
    for round, factor in ((1, 1.0), (2, 0.25)):
        ended = {k: client_round(hand, k, round, shared, method, factor) for k in range(hand.clients)}
        personal = {k: theta for k, (theta, _) in ended.items()}
        shared = hand.mean({k: local for k, (_, local) in ended.items()}, uniform=True)
    assert_near(ours.rows("personal"), torch.stack(list(personal.values())))
    assert_near(ours.rows()[0], shared)


def test_the_pull_is_towards_the_moving_local_model() -> None:
    """One batch, one inner step from the received model: the pull is zero there, and w_k goes ηλ of the way."""
    ours = play(PFedMe(lam=2.0, steps=1, inner_lr=0.3), rounds=1, epochs=1, batch=60, lr=0.1)
    hand = Hand(ours.prepared)
    for k in range(hand.clients):
        (index,) = hand.batches(k, 1)
        gradient = hand.gradient(hand.initial, index)
        assert_near(ours.rows("personal")[k], hand.initial - 0.3 * gradient)
    steps = {k: hand.gradient(hand.initial, hand.batches(k, 1)[0]) for k in range(hand.clients)}
    assert_near(ours.rows()[0], hand.initial - 0.1 * 2.0 * 0.3 * hand.mean(steps, uniform=True))


@pytest.mark.thorough
def test_a_stronger_pull_keeps_personal_models_nearer() -> None:
    apart = []
    for lam in (0.01, 5.0, 50.0):
        ours = play(PFedMe(lam=lam, inner_lr=0.01), rounds=1, lr=1e-6)
        apart.append(float((ours.rows("personal") - ours.federation.initial).norm()))
    assert apart[0] > apart[1] > apart[2] > 0


@pytest.mark.thorough
def test_it_is_neither_local_nor_fedavg() -> None:
    ours = play(PFedMe())
    others = play(Local()).rows(), play(FedAvg()).rows()
    assert_unlike(ours.rows(), *others)
    assert_unlike(ours.rows("personal"), *others)


def test_clients_that_sit_out_keep_their_personal_model_and_newcomers_hold_the_global_one() -> None:
    seen: list[Tensor] = []
    ours = play(PFedMe(), join=0.5, watch=lambda federation: seen.append(federation["personal"].own.clone()))
    taken: set[int] = set()
    for before, after, report in zip(seen, seen[1:], ours.reports[1:], strict=False):
        for k in range(ours.federation.clients):
            if k not in report.cohort and k in taken | set(ours.reports[0].cohort):
                assert torch.equal(before[k], after[k])
        taken |= set(report.cohort)
    first = play(PFedMe(), join=0.5, rounds=1)
    for k in set(range(4)) - set(first.reports[0].cohort):
        assert torch.equal(first.rows("personal")[k], first.rows()[k])


@pytest.mark.thorough
@pytest.mark.parametrize("stats", ["mean", "local"])
def test_statistics_of_batch_norm_follow_the_model_that_sees_data(stats: str) -> None:
    ours = play(PFedMe(beta=0.5), model="norm", stats=stats)
    initial = ours.federation.layout.columns("stats").take(ours.federation.initial)
    assert len(ours.group("stats", "personal").unique(dim=0)) == ours.federation.clients
    assert bool((ours.group("stats") != initial).any(1).all())
    assert len(ours.group("stats").unique(dim=0)) == (1 if stats == "mean" else ours.federation.clients)
    assert bool((ours.group("stats") > -10).all())


@pytest.mark.thorough
def test_relaxing_leaves_statistics_as_trained() -> None:
    """β = 1.7 extrapolates parameters; an extrapolated variance could be negative."""
    one, far = (play(PFedMe(beta=beta), model="norm", rounds=1) for beta in (1.0, 1.7))
    assert_near(one.group("stats"), far.group("stats"))
    initial = one.federation.layout.columns("parameters").take(one.federation.initial)
    moved = one.group("parameters") - initial
    assert_near(far.group("parameters") - initial, 1.7 * moved)


@pytest.mark.thorough
def test_bytes_and_weights() -> None:
    whole = play(PFedMe(beta=0.5))
    assert_bytes(whole, up=whole.bytes_of("all"), down=whole.bytes_of("all"))
    ours = play(PFedMe(beta=0.5), join=0.5, rounds=6)
    seen: set[int] = set()
    late = 0
    for report in ours.reports:
        # Whoever joins after the first round gets the newest model as its personal one, too.
        joined = set(report.cohort) - seen if seen else set()
        late += len(joined)
        assert report.bytes["up"] == ours.bytes_of("all") * len(report.cohort)
        received = len(report.cohort) + len(joined) if seen else 0
        assert report.bytes["down"] == ours.bytes_of("all") * received
        seen |= set(report.cohort)
    assert late > 0
    for report in ours.reports:
        for mix in report.mixes:
            assert float((mix.weights.double().sum(1) - 1).abs().max()) < 1e-6
        assert report.mixes[0].target == "model"


def test_momentum_acts_on_the_outer_step() -> None:
    plain, moving = play(PFedMe(), rounds=1), play(PFedMe(), rounds=1, momentum=0.5)
    assert_unlike(moving.rows(), plain.rows())


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(PFedMe(), join=join)


@pytest.mark.parametrize("options", [{"lam": 0.0}, {"beta": 0.0}, {"steps": 0}, {"inner_lr": 0.0}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        PFedMe(**options)


@pytest.mark.thorough
def test_the_tested_slot_is_the_personal_one() -> None:
    ours = play(PFedMe())
    federation: Federation = ours.federation
    assert PFedMe.tested == "personal"
    assert federation["personal"].own.shape == (federation.clients, federation.layout.width)


def test_the_inner_rate_is_the_run_s_unless_told_otherwise() -> None:
    federation = tiny(lr=0.2).prepare().federation()
    assert [PFedMe(inner_lr=rate).resolved(federation) for rate in (None, 0.5)] == [
        {"inner_lr": 0.2},
        {"inner_lr": 0.5},
    ]
