"""FedDBE: offsets of one's own, features whose mean is everybody's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_near, assert_relabelling_permutes, play, prepared_for
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.errors import CoterieError
from coterie.methods import FedAvg
from coterie.methods.feddbe import FedDBE, MeanPull

RATE = 0.1


def pulled(term: MeanPull, features: Tensor, common: Tensor, notes: dict[str, Tensor]) -> Tensor:
    shares = torch.full((len(features),), 1 / len(features))
    return term(
        SimpleNamespace(features=features, labels=features[:, 0], shares=shares, notes=notes, value=lambda _: common)  # type: ignore[arg-type]
    )


def test_the_pull_worked_out_by_hand() -> None:
    """Features (1, 0) and (3, 4): mean (2, 2). z̄ = (0, 1): κ/2 · (4 + 1)/2."""
    features, common = torch.tensor([[1.0, 0.0], [3.0, 4.0]], requires_grad=True), torch.tensor([0.0, 1.0])
    term = pulled(MeanPull(2.0, 1.0), features, common, {})
    assert_near(term, torch.tensor([2.5, 2.5]))
    (slope,) = torch.autograd.grad(term.mean(), features)
    assert_near(slope, torch.tensor([[1.0, 0.5], [1.0, 0.5]]))  # κ/d · (m − z̄)/B
    notes = dict[str, Tensor]()
    assert_near(pulled(MeanPull(2.0, 0.5), features, common, notes), torch.tensor([0.5, 0.5]))  # m = (1, 1)
    second = pulled(MeanPull(2.0, 0.5), features, common, notes)  # m = (1.5, 1.5)
    assert_near(second, torch.tensor([1.25, 1.25]))
    (slope,) = torch.autograd.grad(second.mean(), features)
    assert_near(slope, torch.tensor([[0.375, 0.125], [0.375, 0.125]]))  # κ/d · (m − z̄) · μ/B
    assert_near(pulled(MeanPull(2.0, 1.0), features, torch.tensor([torch.nan] * 2), {}), torch.zeros(2))


class ByHand(Hand):
    """FedDBE's steps on flat rows."""

    def slope(
        self, row: Tensor, index: Tensor, before: Tensor, common: Tensor, method: FedDBE
    ) -> tuple[Tensor, Tensor]:
        row = row.detach().clone().requires_grad_()
        features, logits = self.features_and_logits(row, index)
        mean = (1 - method.momentum) * before + method.momentum * features.mean(0)
        loss = cross_entropy(logits, self.problem.labels[index]) + method.kappa / 2 * ((mean - common) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, row)
        return gradient, mean.detach()


@pytest.mark.parametrize(
    ("options", "join"),
    [({}, 1.0), ({"momentum": 0.3}, 0.5), ({"kappa": 5.0, "lr_offset": 0.5}, 0.5), ({"kappa": 0, "lr_offset": 0}, 1.0)],
)
def test_steps_by_hand_give_the_same_models(options: dict[str, Any], join: float) -> None:
    method = FedDBE(**options)
    ours = play(method, join=join, rounds=4)
    hand = ByHand(ours.prepared)
    shared = hand.layout.columns(method.shared)
    rates = torch.full((hand.layout.width,), RATE)
    offset = hand.layout.columns("classifier.offset")
    offset.put(rates, torch.full((offset.size,), RATE if method.lr_offset is None else method.lr_offset))
    rows, common = [hand.initial.clone() for _ in range(hand.clients)], torch.zeros(offset.size)
    for round, cohort in hand.rounds():
        trained, means = {}, {}
        for k in cohort:
            row, mean = rows[k], torch.zeros(offset.size)
            for index in hand.batches(k, round):
                if round == 1:
                    step = RATE * hand.gradient(row, index)
                    offset.put(step, torch.zeros(offset.size))
                    row = row - step
                else:
                    gradient, mean = hand.slope(row, index, mean, common, method)
                    row = row - rates * gradient
            trained[k] = row
            means[k] = hand.features_and_logits(row, hand.problem.train[k])[0].mean(0).detach()
        if round == 1:
            common = hand.mean(means)
            continue
        mean = hand.mean(trained)
        for k in cohort:
            rows[k] = trained[k]
        for row in rows:
            shared.put(row, shared.take(mean))
    assert_near(ours.federation.values["mean_features"], common)
    assert_near(ours.rows(), torch.stack(rows))
    assert_near(losses_received(ours), hand.test_losses(torch.stack(rows)))


def test_the_first_round_moves_no_model_and_carries_means_alone() -> None:
    ours = play(FedDBE(), rounds=2)
    first, second = ours.reports
    width = ours.federation.feature_width
    assert first.bytes == {"up": 4 * width * len(first.cohort), "down": 0}
    model = ours.bytes_of("all - classifier.offset")
    assert second.bytes == {"up": model * len(second.cohort), "down": 4 * width * len(second.cohort)}
    assert not first.mixes
    start = play(FedDBE(), rounds=1)
    assert torch.equal(start.rows(), start.federation.initial.expand(start.federation.clients, -1))


def test_without_a_pull_and_an_offset_it_is_fedavg_from_round_two_on() -> None:
    """FedAvg's first round is undone, so that both begin round 2 alike."""

    def undo(federation: Any) -> None:
        if federation.round == 1:
            slot = federation["model"]
            slot.write_shared(slot.shared_columns, slot.shared_columns.take(federation.initial)[None])

    ours = play(FedDBE(kappa=0, lr_offset=0))
    fedavg = play(FedAvg(), watch=undo)
    assert_near(ours.group(FedDBE.shared), fedavg.rows())
    assert_near(losses_received(ours), losses_received(fedavg))


def test_offsets_stay_and_differ() -> None:
    ours = play(FedDBE())
    offsets = ours.group("classifier.offset")
    assert bool((torch.cdist(offsets, offsets).fill_diagonal_(1) > 1e-3).all())
    assert torch.equal(ours.group(FedDBE.shared).std(0), torch.zeros(ours.group(FedDBE.shared).shape[1]))


def test_a_model_has_the_same_first_weights_as_without_the_method() -> None:
    ours, plain = prepared_for(FedDBE()), prepared_for(FedAvg())
    with_offset, without = ours.federation(), plain.federation()
    shared = with_offset.layout.columns(FedDBE.shared)
    assert torch.equal(shared.take(with_offset.initial), without.initial)


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(FedDBE(momentum=0.5), join=0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"kappa": -1.0}, "kappa = -1"), ({"momentum": 1.5}, "momentum = 1.5"), ({"lr_offset": -1.0}, "lr_offset = -1")],
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=rf"^{words}\.?0?: must"):
        FedDBE(**options)
    assert FedDBE().momentum == 1.0
