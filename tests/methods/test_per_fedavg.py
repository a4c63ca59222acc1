"""Per-FedAvg: meta-learning steps, FedAvg's server, tuned before every test."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, assert_unlike, play, prepared_for
from torch import Tensor, nn

from coterie.client.batch import Batch
from coterie.client.recipe import Phase
from coterie.client.trainer import Trainer
from coterie.errors import CoterieError
from coterie.methods import FedAvg, Local
from coterie.methods.per_fedavg import PerFedAvg
from coterie.testing.toys import seeded
from support import seat, trained_row

DELTA = 0.02


def meta_step(hand: Hand, row: Tensor, index: Tensor, alpha: float, beta: float, variant: str) -> Tensor:
    """One step by the formulas of the paper."""
    pieces = index.tensor_split(3 if variant == "HF" else 2)
    direction = hand.gradient(row - alpha * hand.gradient(row, pieces[0]), pieces[1])
    if variant == "HF":
        above = hand.gradient(row + DELTA * direction, pieces[2])
        below = hand.gradient(row - DELTA * direction, pieces[2])
        direction = direction - alpha * (above - below) / (2 * DELTA)
    return row - beta * direction


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["FO", "HF"])
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_steps_by_hand_give_the_same_models(join: float, variant: str) -> None:
    ours = play(PerFedAvg(alpha=0.2, beta=0.15, variant=variant, delta=DELTA, tune_epochs=1), join=join, batch=9)
    hand = Hand(ours.prepared)
    shared = hand.initial
    for round, cohort in hand.rounds():
        rows = {}
        for k in cohort:
            rows[k] = shared
            for index in hand.batches(k, round):
                if len(index) >= (3 if variant == "HF" else 2):
                    rows[k] = meta_step(hand, rows[k], index, 0.2, 0.15, variant)
        shared = hand.mean(rows)
    assert_near(ours.rows()[0], shared)
    tuned = []
    for k in range(hand.clients):
        row = ours.rows()[0]
        for index in hand.batches(k, hand.experiment.rounds, number=1, epochs=1):
            row = row - 0.2 * hand.gradient(row, index)
        tuned.append(row)
    assert_near(losses_received(ours), hand.test_losses(torch.stack(tuned)))


class Smooth(nn.Module):
    """Without kinks, so that differences of gradients come near the Hessian."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.classifier = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.body(x))
        return out


def test_one_step_comes_near_the_exact_hessian() -> None:
    """w ← w − β(I − α∇²L(w; b₃))g, by second derivatives."""
    method = PerFedAvg(alpha=0.5, beta=1.0, variant="HF", delta=DELTA)
    ready = prepared_for(method, model=seeded(Smooth), batch=60, epochs=1)
    hand = Hand(ready)
    (index,) = hand.batches(0, 1)
    first, second, third = index.tensor_split(3)
    direction = hand.gradient(hand.initial - 0.5 * hand.gradient(hand.initial, first), second)
    at = hand.initial.clone().requires_grad_()
    (slope,) = torch.autograd.grad(hand.loss(at, third), at, create_graph=True)
    (curved,) = torch.autograd.grad(slope @ direction, at)
    moved = hand.initial - trained_row(ready, method.recipe(ready.federation()))
    assert_near(moved, direction - 0.5 * curved, 1e-4)
    assert float(curved.abs().max()) > 0.01, "the Hessian matters here"


def test_the_hessian_is_not_drowned_by_dropout() -> None:
    """Both gradients of the difference are taken under the same mask: otherwise their noise is divided by 2δ."""
    ready = prepared_for(PerFedAvg(alpha=0.1, variant="HF", delta=1e-3), model="dropout", epochs=1)
    moved = trained_row(ready, ready.method.recipe(ready.federation())) - ready.federation().initial
    plain = trained_row(ready, (Phase(),)) - ready.federation().initial
    assert float(moved.norm()) < 3 * float(plain.norm())


def test_pieces_of_a_batch_are_disjoint_and_cover_it() -> None:
    ready = prepared_for(PerFedAvg())
    worker = seat(ready, 0)
    batch = next(Trainer(worker, Phase(), 0).batches())
    pieces = batch.split(3)
    assert [len(piece.labels) for piece in pieces] == [3, 2, 2]
    assert torch.equal(torch.cat([piece.inputs for piece in pieces]), batch.inputs)
    assert torch.equal(torch.cat([piece.labels for piece in pieces]), batch.labels)
    head_only = next(Trainer(worker, Phase(train="classifier"), 0).batches())
    cached = [piece.features for piece in head_only.split(2)]
    assert torch.equal(torch.cat(cached), head_only.features)


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "variant"), [("norm", "HF"), ("norm", "FO"), ("dropout", "HF")])
def test_small_batches_do_not_break_batch_norm(model: str, variant: str) -> None:
    ours = play(PerFedAvg(variant=variant), model=model, batch=4)
    assert bool(torch.isfinite(ours.rows()).all())
    assert not any(report.diverged for report in ours.reports)


@pytest.mark.thorough
def test_tuning_happens_on_a_copy() -> None:
    tuned, plain = play(PerFedAvg(alpha=0.3)), play(PerFedAvg(alpha=0.3, tune_epochs=0))
    assert torch.equal(tuned.rows(), plain.rows())
    assert bool((losses_received(tuned) != losses_received(plain)).all())
    hand = Hand(plain.prepared)
    assert_near(losses_received(plain), hand.test_losses(plain.rows()))


@pytest.mark.thorough
def test_both_rates_are_the_run_s_unless_given() -> None:
    assert torch.equal(play(PerFedAvg(), lr=0.05).rows(), play(PerFedAvg(alpha=0.05, beta=0.05), lr=0.7).rows())


def test_the_schedule_scales_both_rates() -> None:
    scheduled = play(PerFedAvg(alpha=0.4), rounds=1, schedule="exponential", decay=0.5)
    ready = prepared_for(PerFedAvg(alpha=0.4), schedule="exponential", decay=0.5)
    second = trained_row(ready, ready.method.recipe(ready.federation()), client=1, round=2)
    hand = Hand(ready)
    row = hand.initial
    for index in hand.batches(1, 2):
        row = meta_step(hand, row, index, 0.2, 0.05, "FO") if len(index) > 1 else row
    assert_near(second, row)
    assert scheduled.federation.round == 1


@pytest.mark.thorough
def test_it_is_neither_local_nor_fedavg() -> None:
    assert_unlike(play(PerFedAvg(alpha=0.1)).rows(), play(Local()).rows(), play(FedAvg()).rows())


def test_bytes_and_weights() -> None:
    ours = play(PerFedAvg(), join=0.5)
    assert_bytes(ours, up=ours.bytes_of("all"), down=ours.bytes_of("all"))
    for report in ours.reports:
        (mix,) = report.mixes
        assert float(mix.weights.double().sum()) == pytest.approx(1)


@pytest.mark.thorough
@pytest.mark.parametrize("join", [1.0, 0.5])
def test_relabelling(join: float) -> None:
    assert_relabelling_permutes(PerFedAvg(variant="HF"), join=join)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"beta": 0.0}, {"delta": 0.0}, {"tune_epochs": -1}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=f"^{name} = {options[name]}: must"):
        PerFedAvg(**options)


def test_refused_variants() -> None:
    with pytest.raises(CoterieError, match="unknown variant 'SO'"):
        PerFedAvg(variant="SO")


def test_batches_may_be_seen_again() -> None:
    """A batch caches what it computed; under its own slot it starts anew."""
    ready = prepared_for(PerFedAvg())
    trainer = Trainer(seat(ready, 0), Phase(), 0)
    batch: Batch = next(trainer.batches())
    trainer.gradient(batch.under(batch.slot))
    before = [part.grad.clone() for part in trainer.parts]
    trainer.gradient(batch.under(batch.slot))
    assert all(torch.equal(part.grad, old) for part, old in zip(trainer.parts, before, strict=True))
