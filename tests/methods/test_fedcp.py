"""FedCP: a policy that shares out features between a client's classifier and everybody's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, play
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.errors import CoterieError
from coterie.methods.fedcp import COMMON, OWN, SENT, Discrepancy, FedCP, Shared
from support import tiny

RATE = 0.1


def test_a_client_is_the_sum_of_its_classifiers_rows() -> None:
    own = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))
    with torch.no_grad():
        own[0].weight.copy_(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        own[2].weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    # The product's rows: (1, 2), (1, 3), (0, 1); their sum (2, 6), of length √40.
    assert_near(Shared(own, 2)(torch.zeros(1, 2), answer="client"), torch.tensor([2.0, 6.0]) / 40**0.5)


def test_shares_worked_out_by_hand() -> None:
    """Scores (log 3, −5) for the client's classifier, (0, 0) for everybody's: it gets ¾ and, −5 being cut off, ½."""
    model = Shared(nn.Linear(2, 1, bias=False), 2)
    with torch.no_grad():
        model.own.weight.copy_(torch.tensor([[1.0, 10.0]]))
        model.common.weight.copy_(torch.tensor([[100.0, 1000.0]]))
        model.policy[1].weight.zero_()
        model.policy[1].bias.copy_(torch.tensor([1.0986123, -5.0, 0.0, 0.0]))
    assert_near(model(torch.tensor([[4.0, 2.0]])), torch.tensor([[3.0 + 10.0 + 100.0 + 1000.0]]))


def discrepancy(features: Tensor, before: Tensor, shares: Tensor) -> Tensor:
    seen = SimpleNamespace(features=before)
    return Discrepancy(2.0)(
        SimpleNamespace(features=features, labels=shares, shares=shares, under=lambda _: seen)  # type: ignore[arg-type]
    )


def test_a_discrepancy_worked_out_by_hand() -> None:
    """z = 0 and 2, z° = 0 and 0: distances² within are 0 or 4, within z° 0, between 0 or 4."""
    near = sum(float(torch.tensor(-4 / (2 * width)).exp()) for width in (10, 15, 20, 50))
    within, before, between = (2 * 4 + 2 * near) / 4, 4.0, (2 * 4 + 2 * near) / 4
    expected = 2.0 * (within + before - 2 * between)
    features = torch.tensor([[0.0], [2.0]], requires_grad=True)
    found = discrepancy(features, torch.zeros(2, 1), torch.tensor([0.5, 0.5]))
    assert_near(found, torch.tensor([expected, expected]))
    # d/dz₂ of 2 · (2k(z₂, z₁) − 4k(z₂, 0))/4 = −k'(z₂), and k' = −Σ z₂/a · e^{−z₂²/2a}.
    slope = sum(2 / width * float(torch.tensor(-4 / (2 * width)).exp()) for width in (10, 15, 20, 50))
    (gradient,) = torch.autograd.grad(found.mean(), features)
    assert float(gradient[1]) == pytest.approx(slope, abs=1e-6)
    padded = discrepancy(torch.tensor([[0.0], [2.0], [9.0]]), torch.zeros(3, 1), torch.tensor([0.5, 0.5, 0.0]))
    assert_near(padded[:2], found)
    assert_near(discrepancy(features, features.detach(), torch.tensor([0.5, 0.5])), torch.zeros(2))


class ByHand(Hand):
    """FedCP's objective on flat rows."""

    def features(self, row: Tensor, index: Tensor) -> Tensor:
        named = self.layout.views(row)
        x = torch.tanh(self.problem.inputs[index] @ named["body.0.weight"].T + named["body.0.bias"])
        return (x @ named["body.2.weight"].T + named["body.2.bias"]).relu()

    def outputs(self, row: Tensor, received: Tensor, index: Tensor) -> Tensor:
        named, z = self.layout.views(row), self.features(row, index)
        v = self.layout.views(received)["classifier.own.weight"].sum(0)
        h = (z * v / v.norm()) @ named["classifier.policy.0.weight"].T + named["classifier.policy.0.bias"]
        apart = h - h.mean(1, keepdim=True)
        h = apart / ((apart**2).mean(1, keepdim=True) + 1e-5).sqrt()
        h = (h * named["classifier.policy.1.weight"] + named["classifier.policy.1.bias"]).relu()
        width = z.shape[1]
        own = h[:, :width].exp() / (h[:, :width].exp() + h[:, width:].exp())
        return (
            (own * z) @ named["classifier.own.weight"].T
            + named["classifier.own.bias"]
            + ((1 - own) * z) @ named["classifier.common.weight"].T
            + named["classifier.common.bias"]
        )

    def slope(self, row: Tensor, received: Tensor, index: Tensor, lam: float) -> Tensor:
        row = row.detach().clone().requires_grad_()
        loss = cross_entropy(self.outputs(row, received, index), self.problem.labels[index])
        now, before = self.features(row, index), self.features(received, index)
        for width in (10, 15, 20, 50):
            for one, other, sign in ((now, now, 1), (before, before, 1), (now, before, -2)):
                apart = ((one[:, None] - other[None]) ** 2).sum(2)
                loss = loss + lam * sign * (-0.5 * apart / width).exp().mean()
        (gradient,) = torch.autograd.grad(loss, row)
        return gradient


@pytest.mark.parametrize(("lam", "join"), [(5.0, 1.0), (0.5, 0.5), (0.0, 1.0)])
def test_steps_by_hand_give_the_same_models(lam: float, join: float) -> None:
    ours = play(FedCP(lam=lam), join=join)
    hand = ByHand(ours.prepared)
    own, common = hand.layout.columns(OWN), hand.layout.columns(COMMON)
    rows = [hand.initial.clone() for _ in range(hand.clients)]
    assert torch.equal(own.take(rows[0]), common.take(rows[0])), "everybody's classifier starts as a copy"
    for round, cohort in hand.rounds():
        trained = {}
        for k in cohort:
            row = rows[k]
            for index in hand.batches(k, round):
                step = RATE * hand.slope(row, rows[k], index, lam)
                common.put(step, torch.zeros(common.size))
                row = row - step
            trained[k] = row
        halves = {k: row.clone() for k, row in trained.items()}
        for row in halves.values():
            common.put(row, (own.take(row) + common.take(row)) / 2)
        mean = hand.mean(halves)
        for k in cohort:
            rows[k] = trained[k]
        for k, row in enumerate(rows):
            kept = own.take(row).clone()
            rows[k] = mean.clone()
            own.put(rows[k], kept)
    assert_near(ours.rows(), torch.stack(rows))
    with torch.no_grad():
        losses = [
            cross_entropy(hand.outputs(rows[k], rows[k], index), hand.problem.labels[index])
            for k, index in enumerate(hand.problem.test)
        ]
    assert_near(losses_received(ours), torch.stack(losses))


def test_own_classifiers_stay_and_halves_travel() -> None:
    ours = play(FedCP())
    heads = ours.group(OWN)
    assert bool((torch.cdist(heads, heads).fill_diagonal_(1) > 1e-3).all())
    sent = ours.bytes_of(f"{SENT} + {COMMON}")
    assert_bytes(ours, up=sent, down=sent)
    width = ours.federation.feature_width
    assert sent == ours.bytes_of("extractor") + ours.bytes_of(OWN) + 4 * (2 * width**2 + 6 * width)


def test_a_promise_to_examples_is_for_the_method_without_discrepancy() -> None:
    with pytest.raises(CoterieError, match="looks at a batch as a whole"):
        tiny(FedCP(), privacy="example").prepare()
    tiny(FedCP(lam=0.0), privacy="example").prepare()


def test_classifiers_that_are_no_chain_of_layers_are_refused() -> None:
    with pytest.raises(CoterieError, match=r"^classifier: fedcp needs one of fully connected layers"):
        Shared(nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 3, 2), nn.Flatten()), 2)
    side_by_side = nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 3)])
    for other in (nn.Bilinear(2, 2, 3), side_by_side, nn.Linear(3, 2)):
        with pytest.raises(CoterieError, match=r"^classifier: fedcp needs"):
            Shared(other, 2)


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(FedCP(), join=0.5)


def test_refused_options() -> None:
    options: dict[str, Any] = {"lam": -1.0}
    with pytest.raises(CoterieError, match=r"^lam = -1\.0: must"):
        FedCP(**options)
