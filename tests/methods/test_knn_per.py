"""kNN-Per: FedAvg, and votes of the client's own nearest samples."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import Hand, losses_received
from plain_training import assert_near, assert_relabelling_permutes, play
from torch import Tensor

from coterie.errors import CoterieError
from coterie.methods import FedAvg
from coterie.methods.knn_per import KNNPer


def batch_of(features: list[list[float]], logits: list[list[float]], lam: float = 0.5) -> Any:
    """Samples beside a memory of four on a line, of classes 0, 1, 1 and 2."""
    memory = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [4.0, 0.0]])
    return SimpleNamespace(
        features=torch.tensor(features),
        logits=torch.tensor(logits),
        own_samples=(memory, torch.tensor([0, 1, 1, 2])),
        value=lambda name: torch.tensor(lam),
    )


def test_a_mixture_worked_out_by_hand() -> None:
    """Sample 0: squared distances 0, 1, 9, 16; of the nearest three by 2 · 0.5: weights 1, e⁻¹, e⁻⁹."""
    batch = batch_of([[0.0, 0.0]], [[math.log(0.2), math.log(0.3), math.log(0.5)]], lam=0.25)
    kernel = [1.0, math.exp(-1.0), math.exp(-9.0)]
    votes = [kernel[0] / sum(kernel), (kernel[1] + kernel[2]) / sum(kernel), 0.0]
    expected = [0.25 * vote + 0.75 * share for vote, share in zip(votes, [0.2, 0.3, 0.5], strict=True)]
    method = KNNPer(lam=0.25, neighbours=3, scale=0.5)
    assert_near(method.predict(batch).exp(), torch.tensor([expected]))
    assert_near(method.votes(batch, 3), torch.tensor([votes]))


def test_more_neighbours_than_samples_are_all_samples() -> None:
    batch = batch_of([[4.0, 0.0], [2.0, 0.0]], [[0.0, 0.0, 0.0]] * 2)
    assert_near(KNNPer(neighbours=99).votes(batch, 3), KNNPer(neighbours=4).votes(batch, 3))
    # From the middle, the two of class 1 are nearest and equally far.
    assert_near(KNNPer(neighbours=2).votes(batch, 3)[1], torch.tensor([0.0, 1.0, 0.0]))


def test_a_class_without_a_vote_has_a_finite_loss_and_far_samples_still_vote() -> None:
    batch = batch_of([[1e4, 0.0]], [[0.0, 0.0, 0.0]], lam=1.0)
    outputs = KNNPer(lam=1.0, neighbours=1).predict(batch)
    assert bool(outputs.isfinite().all())
    assert int(outputs.argmax()) == 2


class ByHand(Hand):
    """Memories and votes by loops."""

    def features(self, row: Tensor, index: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = self.module.get_submodule(self.layout.classifier).register_forward_pre_hook(
            lambda _, inputs: seen.append(inputs[0])
        )
        self.logits(row, index)
        hook.remove()
        return seen[0].detach()

    def loss_with_votes(self, row: Tensor, k: int, method: KNNPer) -> float:
        own, tested = self.problem.train[k], self.problem.test[k]
        memory, labels = self.features(row, own), self.problem.labels[own]
        losses = []
        for z, logits, y in zip(
            self.features(row, tested), self.logits(row, tested), self.problem.labels[tested], strict=True
        ):
            distances = sorted(
                (float((z - other).square().sum()) / (len(z) * method.scale), int(c))
                for other, c in zip(memory, labels, strict=True)
            )[: method.neighbours]
            total = sum(math.exp(-distance) for distance, _ in distances)
            vote = sum(math.exp(-distance) for distance, c in distances if c == int(y)) / total
            share = method.lam * vote + (1 - method.lam) * float(logits.softmax(0)[y])
            losses.append(-math.log(share))
        return sum(losses) / len(losses)


@pytest.mark.parametrize("join", [1.0, 0.5])
def test_tests_are_those_of_plain_loops(join: float) -> None:
    method = KNNPer(lam=0.4, neighbours=5, scale=0.5)
    ours = play(method, join=join)
    hand = ByHand(ours.prepared)
    expected = [hand.loss_with_votes(ours.rows()[0], k, method) for k in range(hand.clients)]
    assert_near(losses_received(ours), torch.tensor(expected))


@pytest.mark.parametrize("model", ["plain", "norm"])
def test_the_model_is_fedavg_s_and_so_are_its_tests_without_votes(model: str) -> None:
    ours, plain, fedavg = (play(one, join=0.5, model=model) for one in (KNNPer(), KNNPer(lam=0), FedAvg()))
    assert torch.equal(ours.rows(), fedavg.rows())
    assert_near(losses_received(plain), losses_received(fedavg))
    assert bool((losses_received(ours) != losses_received(fedavg)).any())
    assert [report.bytes for report in ours.reports] == [report.bytes for report in fedavg.reports]


@pytest.mark.thorough
def test_relabelling() -> None:
    assert_relabelling_permutes(KNNPer(), join=0.5)


@pytest.mark.parametrize("options", [{"lam": 1.5}, {"lam": -0.1}, {"neighbours": 0}, {"scale": 0.0}])
def test_refused_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(CoterieError, match=rf"^{name} = {options[name]}: must"):
        KNNPer(**options)
