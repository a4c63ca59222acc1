"""GPFL: a valve before each client's classifier, embeddings of classes that all share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_bytes, assert_near, assert_relabelling_permutes, play
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.errors import CoterieError
from coterie.methods.gpfl import GPFL, Valved

RATE = 0.1


def test_a_valve_worked_out_by_hand() -> None:
    """γ(c): c = (1, 3) through the identity, mean 2, variance 1: (−1, 1). β(c): twice (2, 0): mean 2, variance 4."""
    valve = Valved(nn.Identity(), features=2, outputs=3)
    with torch.no_grad():
        for layers, weight in ((valve.scale, [[1.0, 0.0], [0.0, 1.0]]), (valve.shift, [[1.0, 1.0], [-1.0, -1.0]])):
            layers[0].weight.copy_(torch.tensor(weight))
            layers[0].bias.zero_()
    found = valve(torch.tensor([[5.0, 2.0], [5.0, -2.0]]), torch.tensor([1.0, 3.0]))
    # γ + 1 = (0, 2), β = (1, −1): (0 · 5 + 1, 2 · 2 − 1), and 2 · (−2) − 1 is below zero.
    assert_near(found, torch.tensor([[1.0, 3.0], [1.0, 0.0]]), 1e-4)
    squares = sum(float(one.detach().square().sum()) for one in valve.parameters())
    assert float(valve(found, answer="decay").detach()) == pytest.approx(squares / 2)


class ByHand(Hand):
    """GPFL's objective on flat rows."""

    def shares(self, k: int) -> Tensor:
        labels = self.problem.labels[self.problem.train[k]]
        return torch.stack([(labels == c).float().mean() for c in range(self.prepared.data.classes)])

    def parts(self, row: Tensor, index: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The row's tensors by name, and features."""
        named = self.layout.views(row)
        x = self.problem.inputs[index]
        x = torch.tanh(x @ named["body.0.weight"].T + named["body.0.bias"])
        return named, (x @ named["body.2.weight"].T + named["body.2.bias"]).relu()

    def valved(self, named: dict[str, Tensor], z: Tensor, condition: Tensor) -> Tensor:
        made = []
        for part in ("scale", "shift"):
            own = {name: named[f"classifier.{part}.{name}"] for name in ("0.weight", "0.bias", "2.weight", "2.bias")}
            h = (own["0.weight"] @ condition + own["0.bias"]).relu()
            normed = (h - h.mean()) / (((h - h.mean()) ** 2).mean() + 1e-5).sqrt()
            made.append(normed * own["2.weight"] + own["2.bias"])
        return ((made[0] + 1) * z + made[1]).relu()

    def outputs(self, row: Tensor, received: Tensor, index: Tensor, k: int) -> Tensor:
        named, z = self.parts(row, index)
        condition = self.shares(k) @ self.layout.views(received)["classifier.embedding"]
        return self.valved(named, z, condition) @ named["classifier.own.weight"].T + named["classifier.own.bias"]

    def slope(self, row: Tensor, received: Tensor, index: Tensor, k: int, method: GPFL) -> Tensor:
        row = row.detach().clone().requires_grad_()
        fixed = self.layout.views(received)["classifier.embedding"]
        named, z = self.parts(row, index)
        labels = self.problem.labels[index]
        common = self.valved(named, z, fixed.mean(0))
        embedding = named["classifier.embedding"]
        cosines = torch.stack(
            [torch.stack([h @ e / (h.norm().clamp(min=1e-12) * e.norm()) for e in embedding]) for h in common]
        )
        apart = common - fixed[labels]
        distance = apart.norm(dim=1).mean() if method.per_sample else apart.square().sum().sqrt()
        decayed = [one for name, one in named.items() if name.startswith("classifier") and ".own." not in name]
        loss = (
            cross_entropy(self.outputs(row, received, index, k), labels)
            + cross_entropy(cosines, labels)
            + method.lam * distance
            + method.mu / 2 * sum(one.square().sum() for one in decayed)
        )
        (gradient,) = torch.autograd.grad(loss, row)
        return gradient


@pytest.mark.parametrize(
    ("options", "join"), [({}, 1.0), ({"lam": 0.5, "mu": 0.3}, 0.5), ({"lam": 0.5, "mu": 0, "per_sample": True}, 1.0)]
)
def test_steps_by_hand_give_the_same_models(options: dict[str, Any], join: float) -> None:
    method = GPFL(**options)
    ours = play(method, join=join)
    hand = ByHand(ours.prepared)
    shared = hand.layout.columns(GPFL.shared)
    rows = [hand.initial.clone() for _ in range(hand.clients)]
    for round, cohort in hand.rounds():
        trained = {}
        for k in cohort:
            row = rows[k]
            for index in hand.batches(k, round):
                row = row - RATE * hand.slope(row, rows[k], index, k, method)
            trained[k] = row
        mean = hand.mean(trained)
        for k in cohort:
            rows[k] = trained[k]
        for row in rows:
            shared.put(row, shared.take(mean))
    assert_near(ours.rows(), torch.stack(rows))
    with torch.no_grad():
        losses = [
            cross_entropy(hand.outputs(rows[k], rows[k], index, k), hand.problem.labels[index])
            for k, index in enumerate(hand.problem.test)
        ]
    assert_near(losses_received(ours), torch.stack(losses))


def test_classifiers_stay_and_all_else_travels() -> None:
    ours = play(GPFL())
    heads, rest = ours.group("classifier.own"), ours.group(GPFL.shared)
    assert bool((torch.cdist(heads, heads).fill_diagonal_(1) > 1e-3).all())
    assert torch.equal(rest, rest[:1].expand_as(rest))
    sent = ours.bytes_of(GPFL.shared)
    assert_bytes(ours, up=sent, down=sent)
    width, classes = ours.federation.feature_width, ours.federation.classes
    assert sent == ours.bytes_of("extractor") + 4 * (classes * width + 2 * width**2 + 6 * width)


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(GPFL(), join=0.5)


@pytest.mark.parametrize("option", ["lam", "mu"])
def test_refused_options(option: str) -> None:
    with pytest.raises(CoterieError, match=rf"^{option} = -1\.0: must"):
        GPFL(**{option: -1.0})
