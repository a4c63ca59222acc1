"""FedALA: the global model blended with one's own, element by element, before training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, assert_unlike, play, prepared_for
from torch import Tensor

from coterie.client.trainer import train
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.fedala import MOST_PASSES, WINDOW, FedALA
from coterie.rng import torch_stream
from support import seat


def aggregate(
    hand: Hand, client: int, round: int, received: Tensor, last: Tensor, blend: Tensor, first: bool, method: FedALA
) -> tuple[Tensor, Tensor]:
    """ŵ and the new blend, by the formulas of the paper; `blend` is 1 outside the adapted columns."""
    own = hand.problem.train[client]
    stream = torch_stream(hand.experiment.seed, "aggregation", round, hand.keys[client])
    chosen = own[torch.randperm(len(own), generator=stream)][: math.ceil(method.share * len(own))]
    adapted = torch.zeros_like(blend)
    method.columns(hand.layout).put(adapted, torch.ones(method.columns(hand.layout).size))
    # Columns that are not adapted come from the global model: there, the own model counts as equal to it.
    last = torch.where(adapted.bool(), last, received)
    losses: list[float] = []
    while True:
        total = 0.0
        for index in chosen.split(hand.experiment.batch):
            mixed = last + (received - last) * blend
            total += float(hand.loss(mixed, index)) * len(index)
            step = method.eta * hand.gradient(mixed, index) * (received - last)
            blend = torch.where(adapted.bool(), (blend - step).clamp(0, 1), blend)
        losses.append(total / len(chosen))
        if not first:
            break
        if len(losses) > WINDOW and torch.tensor(losses[-WINDOW:]).std(correction=0) < method.settled:
            break
    return last + (received - last) * blend, blend


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("join", "adapted"), [(1.0, "classifier"), (0.5, "classifier"), (1.0, "all"), (1.0, "body.2 + classifier")]
)
def test_steps_by_hand_give_the_same_models(join: float, adapted: str) -> None:
    method = FedALA(eta=2.0, share=0.6, adapted=adapted, settled=0.05)
    ours = play(method, join=join, rounds=4, epochs=1)
    hand = Hand(ours.prepared)
    shared = hand.initial
    last, blends, taken = {}, torch.ones(hand.clients, len(hand.initial)), [0] * hand.clients

    def downloaded(k: int, round: int) -> tuple[Tensor, Tensor]:
        if taken[k] == 0:
            return shared, blends[k]
        return aggregate(hand, k, round, shared, last[k], blends[k], taken[k] == 1, method)

    for round, cohort in hand.rounds():
        rows = {}
        for k in cohort:
            row, blends[k] = downloaded(k, round)
            for index in hand.batches(k, round):
                row = row - hand.experiment.lr * hand.gradient(row, index)
            rows[k] = last[k] = row
            taken[k] += 1
        shared = hand.mean(rows)
    assert_near(ours.rows(), shared.expand(hand.clients, -1))
    columns = method.columns(hand.layout)
    assert_near(ours.rows("blend"), columns.take(blends), 1e-4)
    tested = torch.stack([downloaded(k, 4)[0] for k in range(hand.clients)])
    assert_near(losses_received(ours), hand.test_losses(tested), 1e-4)
    assert float(blends.min()) < 0.99, "something was learnt"


def test_one_step_follows_the_gradient_and_is_clipped() -> None:
    """∂L(w_k + (w − w_k) ⊙ a)/∂a on one batch, from a = 0.5."""
    method = FedALA(eta=0.4, share=1.0, adapted="all")
    ready = prepared_for(method, batch=100)
    worker = seat(ready, 1, round=3)
    federation = worker.federation
    federation.rounds_taken[:] = 2
    federation["previous"].own.add_(torch.randn(federation["previous"].own.shape, generator=torch.manual_seed(6)))
    federation["blend"].own.fill_(0.5)
    hand = Hand(ready)
    blend = torch.full_like(hand.initial, 0.5).requires_grad_()
    last = federation["previous"].own[1]
    index = hand.problem.train[1]
    (slope,) = torch.autograd.grad(hand.loss(last + (hand.initial - last) * blend, index), blend)
    train(worker, method.tune(federation))
    expected = (0.5 - 0.4 * slope).clamp(0, 1)
    assert_near(worker.model("blend").row, expected)
    assert_near(worker.model("model").row, last + (hand.initial - last) * expected)
    before = worker.model("model").row.clone()
    train(worker, method.tune(federation))
    assert torch.equal(worker.model("model").row, before), "once a visit"


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["plain", "norm", "dropout"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_at_rate_zero_it_is_fedavg(join: float, model: str) -> None:
    ours, plain = play(FedALA(eta=0), join=join, model=model), play(FedAvg(), join=join, model=model)
    assert torch.equal(ours.rows(), plain.rows())
    assert_near(losses_received(ours), losses_received(plain))


@pytest.mark.thorough
def test_it_is_neither_local_nor_fedavg() -> None:
    ours = play(FedALA())
    assert_unlike(ours.rows(), play(Local()).rows(), play(FedAvg()).rows())
    assert torch.equal(play(FedALA(), rounds=1).rows(), play(FedAvg(), rounds=1).rows())


def test_a_client_that_never_trained_takes_the_global_model_as_it_is() -> None:
    ours = play(FedALA(), rounds=1, join=0.5)
    others = [k for k in range(4) if k not in ours.reports[0].cohort]
    hand = Hand(ours.prepared)
    plain = hand.test_losses(ours.rows())
    assert_near(losses_received(ours)[others], plain[others])
    assert bool((losses_received(ours)[ours.reports[0].cohort] != plain[ours.reports[0].cohort]).all())
    assert bool((ours.rows("blend")[others] == 1).all())


@pytest.mark.thorough
def test_the_trained_moment_tests_what_training_left() -> None:
    ours = play(FedALA(), rounds=2)
    hand = Hand(ours.prepared)
    trained = torch.stack([hand.initial] * 4)
    first = play(FedALA(), rounds=1)
    assert ours.reports[0].trained is not None
    local = play(Local(), rounds=1).rows()
    assert_near(ours.reports[0].trained.loss, hand.test_losses(local))
    assert ours.reports[1].trained is not None
    # The classifiers of the second round are kept, its extractors follow from training on the blended model.
    for k in range(4):
        row, _ = aggregate(hand, k, 2, first.rows()[0], local[k], torch.ones_like(hand.initial), True, FedALA())
        for index in hand.batches(k, 2):
            row = row - hand.experiment.lr * hand.gradient(row, index)
        trained[k] = row
    assert_near(ours.reports[1].trained.loss, hand.test_losses(trained), 1e-4)
    assert_near(ours.rows("previous"), hand.layout.columns("classifier").take(trained), 1e-4)


def test_passes_end_even_if_losses_never_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    method = FedALA(settled=1e-30, eta=0.01)
    ready = prepared_for(method)
    counts = []
    for rounds in (1, 2):
        worker = seat(ready, 0, round=2)
        worker.federation.rounds_taken[:] = rounds
        noise = torch.randn(worker.federation["previous"].own.shape, generator=torch.manual_seed(6))
        worker.federation["previous"].own.add_(noise)
        seen = 0

        def counted(batch: Any) -> Tensor:
            nonlocal seen
            seen += 1
            return torch.full((len(batch.labels),), float(seen % 7))

        monkeypatch.setattr("coterie.methods.fedala.task_loss", counted)
        train(worker, method.tune(worker.federation))
        counts.append(seen)
    assert counts[0] == MOST_PASSES * counts[1]


def test_batch_norm_keeps_its_statistics_while_blending() -> None:
    ready = prepared_for(FedALA(adapted="all"), model="norm")
    worker = seat(ready, 0, round=2)
    worker.federation.rounds_taken[:] = 1
    worker.federation["previous"].own.mul_(0.5)
    stats = worker.federation.layout.columns("stats")
    before = stats.take(worker.model("model").row).clone()
    row = worker.model("model").row.clone()
    train(worker, ready.method.tune(worker.federation))
    assert torch.equal(stats.take(worker.model("model").row), before)
    assert not torch.equal(worker.model("model").row, row)


def test_memory_follows_what_is_blended() -> None:
    federation = prepared_for(FedALA()).federation()
    size = federation.layout.columns("classifier").size
    assert federation["previous"].own.shape == federation["blend"].own.shape == (4, size)
    assert federation["model"].own.shape[1] == 0


def test_bytes_and_weights() -> None:
    ours = play(FedALA(), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("all"), down=ours.bytes_of("all"))
    for report in ours.reports:
        (mix,) = report.mixes
        assert (mix.target, mix.group) == ("model", "all")
        assert float(mix.weights.double().sum()) == pytest.approx(1)


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(FedALA(), join=join)


@pytest.mark.parametrize("options", [{"eta": -1.0}, {"share": 0.0}, {"share": 1.5}, {"settled": 0.0}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        FedALA(**options)


@pytest.mark.parametrize(
    ("adapted", "message"), [("clasifier", "unknown group"), ("stats", "adapted = stats: holds no")]
)
def test_refused_groups(adapted: str, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        prepared_for(FedALA(adapted=adapted), model="norm")
